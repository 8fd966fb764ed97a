"""What each verb of the command line does with its parsed flags; returns the exit status."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from predictor import catalog
from predictor.errors import InputError

if TYPE_CHECKING:
    from predictor.training import Explanation
    from reckon.verbs.serving import ServingSweep
    from reckon.verbs.training import Sweep

LISTS = [
    "model",
    "system",
    "accelerator",
    "gpus",
    "tp",
    "pp",
    "vpp",
    "cp",
    "ep",
    "dp",
    "micro_batch",
    "global_batch",
    "seq_len",
    "precision",
    "recompute",
    "sharding",
    "attention",
    "framework",
    "era",
    "batch",
    "concurrency",
    "input_len",
    "output_len",
    "kv_precision",
    "rate",
]
"""Flags whose commas separate values of a sweep."""

SERVING_ONLY = ["batch", "concurrency", "rate", "input_len", "output_len", "kv_precision"]
TRAINING_ONLY = [
    "vpp",
    "cp",
    "micro_batch",
    "global_batch",
    "seq_len",
    "recompute",
    "sharding",
    "attention",
]

FLAGS = [
    *(name for name in LISTS if name not in SERVING_ONLY),
    "sequence_parallel",
    "tokens",
    "price_per_gpu_hour",
]
"""Flags that are keys of a training plan."""

INFER_FLAGS = [*(name for name in LISTS if name not in TRAINING_ONLY), "saturated", "simulate"]
"""Flags that are keys of a serving plan."""


def _split_lists(flags: dict[str, Any]) -> dict[str, Any]:
    """Turn 'a,b' into lists, where the flag takes them."""
    found = {}
    for name, value in flags.items():
        if name in LISTS and isinstance(value, str) and "," in value:
            found[name] = [part.strip() for part in value.split(",") if part.strip()]
        else:
            found[name] = value
    return found


def settings_of(pairs: list[str]) -> dict[str, Any]:
    found = {}
    for pair in pairs:
        key, separator, value = pair.partition("=")
        if not separator:
            raise InputError(f"--set {pair!r}: write KEY=VALUE, e.g. --set grad_overlap=false")
        found[key.strip().replace("-", "_")] = value.strip()
    return found


def _requested(file: str | None, flags: dict[str, Any], settings: list[str]) -> dict[str, Any]:
    """Keys of a request from a file, flags and further settings; later ones count."""
    content = catalog.read_mapping(Path(file)) if file else {}
    return {**content, **_split_lists(flags), **settings_of(settings)}


def predict_train(
    file: str | None,
    flags: dict[str, Any],
    settings: list[str],
    calibration: str,
    json: str | None,
    allow_oom: bool,
    explain: bool = False,
    lines: dict[str, str] | None = None,
    emit: str | None = None,
    timeline: str | None = None,
) -> int:
    from predictor.catalog import load
    from reckon.verbs.training import sweep

    fields, launch = launched(lines, _requested(file, flags, settings))
    found = sweep(fields, load(calibration), file or "command line")
    if explain and found.varying:
        raise InputError("--explain is of one plan; give no comma lists beside it")
    if timeline:
        from reckon.verbs.timeline import schedule_events, write_timeline

        if found.varying:
            raise InputError("--timeline draws one plan; give no comma lists beside it")
        write_timeline(timeline, schedule_events(found.predictions[0]))
    why = found.predictions[0].explain() if explain else None
    return _finish(found, "training-sweep", json, allow_oom, launch, emit, why)


def predict_infer(
    file: str | None,
    flags: dict[str, Any],
    settings: list[str],
    calibration: str,
    json: str | None,
    allow_oom: bool,
    lines: dict[str, str] | None = None,
    emit: str | None = None,
) -> int:
    from predictor.catalog import load
    from reckon.verbs.serving import engine_parameters, sweep_serving

    fields, launch = launched(lines, _requested(file, flags, settings))
    own = engine_parameters(calibration)
    found = sweep_serving(fields, load(calibration), own, file or "command line")
    return _finish(found, "inference-sweep", json, allow_oom, launch, emit)


def launched(
    lines: dict[str, str] | None, fields: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The request with what a launch line says, and what is to be told of the line."""
    if not lines:
        return fields, {}
    from reckon.verbs.launching import join

    return join(lines, fields)


def _finish(
    found: Sweep | ServingSweep,
    kind: str,
    json: str | None,
    allow_oom: bool,
    launch: dict[str, Any],
    emit: str | None,
    why: Explanation | None = None,
) -> int:
    """Show predictions of one verb, or write them; returns the exit status."""
    extra = {**launch, **({"explain": why.to_dict()} if why else {})}
    if emit:
        from reckon.verbs.launching import emitted

        extra["emitted"] = emitted(emit, found, quiet=json == "-")
    if json:
        from reckon.console.files import write_json

        single = len(found.predictions) == 1 and not found.varying
        content = (
            found.predictions[0].to_dict()
            if single
            else {
                "schema_version": 1,
                "kind": kind,
                "predictions": [result.to_dict() for result in found.predictions],
                "refused": [{"plan": plan, "reason": why} for plan, why in found.refused],
            }
        )
        write_json(json, {**content, **extra})
    if json != "-" and not emit:
        _show(found, why)
    fits = any(result.fits for result in found.predictions)
    held = extra["emitted"]["read_back"]["holds"] if emit else True
    return 0 if held and (fits or allow_oom) else 2


def _show(found: Sweep[Any], why: Explanation | None) -> None:
    from reckon.verbs.results import Prediction

    if isinstance(found.predictions[0], Prediction):
        from reckon.views.terminal import show_prediction, show_sweep

        if found.varying:
            show_sweep(found)
        else:
            show_prediction(found.predictions[0], top=0 if why else 6)
        if why:
            from reckon.views.explanation import show_explanation

            show_explanation(why)
        return
    from reckon.views.serving import show_serving, show_serving_sweep

    if found.varying:
        show_serving_sweep(found)
    else:
        show_serving(found.predictions[0])


def explain(
    trace: Path,
    flags: dict[str, Any],
    settings: list[str],
    calibration: str,
    json: str | None,
    timeline: str | None,
) -> int:
    from reckon.console.files import write_json
    from reckon.verbs.tracing import explain, report

    result = explain(trace, {**flags, **settings_of(settings)}, calibration, timeline)
    if json:
        write_json(json, result)
    if json != "-":
        report(result)
    return 0


def validate(tables: list[Path], calibration: str, folds: str | None, json: str | None) -> int:
    from reckon.console.files import write_json
    from reckon.verbs.validating import report, validate

    result = validate(tables, calibration, folds)
    if json:
        write_json(json, result)
    if json != "-":
        report(result)
    return 0


def calibrate(
    measurements: list[Path],
    out: Path,
    reference: list[Path],
    base: str,
    name: str | None,
    system: str | None,
    json: str | None,
) -> int:
    from reckon.console.files import write_json
    from reckon.verbs.calibrating import calibrate, report

    result = calibrate(measurements, out, reference, base, name, system)
    if json:
        write_json(json, result)
    if json != "-":
        report(result)
    return 0


def import_table(form: str, path: Path, out: Path, stated: dict[str, Any], json: str | None) -> int:
    from reckon.console.files import write_json
    from reckon.verbs.importing import import_table, report

    result = import_table(form, path, out, **stated)
    if json:
        write_json(json, result)
    if json != "-":
        report(result)
    return 0


def profile(out: Path, device: str, budget: str, ranks: int, **more: Any) -> int:
    from reckon.verbs.profiling import profile, report

    models, modes = (
        [p for p in str(more.pop(n) or "").split(",") if p] for n in ("models", "modes")
    )
    report(profile(out, device, budget, ranks, models=models, modes=modes or ["eager"], **more))
    return 0


def show(kind: str, name: str | None, yaml: bool, json: str | None) -> int:
    from reckon.views.catalogs import show

    return show(kind, name, yaml, json)

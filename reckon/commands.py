"""What each verb of the command line does with its parsed flags; returns the exit status."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from predictor.errors import InputError

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


def _settings(pairs: list[str]) -> dict[str, Any]:
    found = {}
    for pair in pairs:
        key, separator, value = pair.partition("=")
        if not separator:
            raise InputError(f"--set {pair!r}: write KEY=VALUE, e.g. --set grad_overlap=false")
        found[key.strip().replace("-", "_")] = value.strip()
    return found


def predict_train(
    file: str | None,
    flags: dict[str, Any],
    settings: list[str],
    calibration: str,
    json: str | None,
    allow_oom: bool,
    timeline: str | None,
) -> int:
    from predictor import catalog
    from predictor.efficiency import load
    from reckon.predict import sweep

    content = catalog.read_mapping(Path(file)) if file else {}
    fields = {**content, **_split_lists(flags), **_settings(settings)}
    found = sweep(fields, load(calibration), file or "command line")
    if timeline:
        from reckon.timeline import schedule_events, write_timeline

        if len(found.predictions) > 1 or found.varying:
            raise InputError("--timeline draws one plan; give no lists")
        write_timeline(timeline, schedule_events(found.predictions[0]))
    if json:
        from reckon.files import write_json

        single = len(found.predictions) == 1 and not found.varying
        write_json(
            json,
            found.predictions[0].to_dict()
            if single
            else {
                "schema_version": 1,
                "kind": "training-sweep",
                "predictions": [result.to_dict() for result in found.predictions],
                "refused": [{"plan": plan, "reason": why} for plan, why in found.refused],
            },
        )
    if json != "-":
        from reckon.terminal import show_prediction, show_sweep

        if found.varying:
            show_sweep(found)
        else:
            show_prediction(found.predictions[0])
    fits = any(result.fits for result in found.predictions)
    return 0 if fits or allow_oom else 2


def predict_infer(
    file: str | None,
    flags: dict[str, Any],
    settings: list[str],
    calibration: str,
    json: str | None,
    allow_oom: bool,
) -> int:
    from predictor import catalog
    from predictor.efficiency import load
    from reckon.serving import engine_parameters, sweep_serving

    content = catalog.read_mapping(Path(file)) if file else {}
    fields = {**content, **_split_lists(flags), **_settings(settings)}
    known = load(calibration)
    found = sweep_serving(fields, known, engine_parameters(calibration), file or "command line")
    if json:
        from reckon.files import write_json

        single = len(found.predictions) == 1 and not found.varying
        write_json(
            json,
            found.predictions[0].to_dict()
            if single
            else {
                "schema_version": 1,
                "kind": "inference-sweep",
                "predictions": [result.to_dict() for result in found.predictions],
                "refused": [{"plan": plan, "reason": why} for plan, why in found.refused],
            },
        )
    if json != "-":
        from reckon.serving_terminal import show_serving, show_serving_sweep

        if found.varying:
            show_serving_sweep(found)
        else:
            show_serving(found.predictions[0])
    fits = any(result.fits for result in found.predictions)
    return 0 if fits or allow_oom else 2


def explain(
    trace: Path,
    flags: dict[str, Any],
    settings: list[str],
    calibration: str,
    json: str | None,
    timeline: str | None,
) -> int:
    from reckon.explaining import explain, report
    from reckon.files import write_json

    result = explain(trace, {**flags, **_settings(settings)}, calibration, timeline)
    if json:
        write_json(json, result)
    if json != "-":
        report(result)
    return 0


def validate(tables: list[Path], calibration: str, folds: str | None, json: str | None) -> int:
    from reckon.files import write_json
    from reckon.validating import report, validate

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
    from reckon.calibrating import calibrate, report
    from reckon.files import write_json

    result = calibrate(measurements, out, reference, base, name, system)
    if json:
        write_json(json, result)
    if json != "-":
        report(result)
    return 0


def import_table(form: str, path: Path, out: Path, stated: dict[str, Any], json: str | None) -> int:
    from reckon.files import write_json
    from reckon.importing import import_table, report

    result = import_table(form, path, out, **stated)
    if json:
        write_json(json, result)
    if json != "-":
        report(result)
    return 0


def profile(out: Path, device: str, budget: str, ranks: int, **more: Any) -> int:
    from reckon.profiling import profile, report

    models, modes = (
        [p for p in str(more.pop(n) or "").split(",") if p] for n in ("models", "modes")
    )
    report(profile(out, device, budget, ranks, models=models, modes=modes or ["eager"], **more))
    return 0


def show(kind: str, name: str | None, yaml: bool, json: str | None) -> int:
    from reckon.show import show

    return show(kind, name, yaml, json)

"""Launch lines on the command line: what was read is told, what is written is printed."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from predictor import catalog
from predictor.errors import InputError
from predictor.hardware import Cluster
from predictor.models import Model
from predictor.plans import TrainingPlan
from predictor.serving import ServingRequest
from predictor.timing import Calibration
from predictor.training import TrainingRequest, predict, reliability_defaults, reliability_of
from predictor.units import GB
from reckon.launch import DIALECTS, Emitted, Launch, Request, emit, read_launch
from reckon.launch.effects import told
from reckon.verbs.naming import reference
from reckon.verbs.results import Prediction
from reckon.verbs.served import ServingResult
from reckon.verbs.serving import ServingSweep, predicted
from reckon.verbs.training import Sweep

LISTED = 6
"""Flags that are named on the terminal; the JSON has all."""


def join(lines: dict[str, str], fields: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """A request with what a launch line says; what is given beside the line counts.

    lines   'from_megatron' and the like, and the text or file
    fields  keys of a plan, lists where they vary

    Returns the request, and the part of the JSON that tells what was read; the terminal is told on
    stderr. Raises InputError.
    """
    if len(lines) > 1:
        named = " and ".join("--" + name.replace("_", "-") for name in lines)
        raise InputError(f"give one launch line, not {named}")
    ((name, text),) = lines.items()
    dialect = name.removeprefix("from_")
    single = {key: value for key, value in fields.items() if not isinstance(value, list)}
    named_model = single.pop("model", None)
    model = catalog.model(named_model) if named_model is not None else None
    beside = {k: _number(v) for k, v in single.items()}
    launch = read_beside(dialect, text, model, beside)
    joined = {**launch.fields, **fields}
    if "model" not in fields and launch.model is not None:
        joined["model"] = reference(launch.model)
    tell(launch)
    return joined, {"launch": launch.to_dict()}


def read_beside(dialect: str, text: str, model: Model | None, beside: Mapping[str, Any]) -> Launch:
    """A launch line read with what stands beside it; where neither says how many accelerators, with
    those that the name of the system does (8xH100). Raises InputError."""
    launch = read_launch(dialect, text, model, beside)
    system = beside.get("system")
    if DIALECTS[launch.dialect].serving or "gpus" in {*launch.fields, *beside}:
        return launch
    meant = catalog.read_machine_name(system) if isinstance(system, str) else None
    if meant is None or not meant.count:
        return launch
    return read_launch(dialect, text, model, {**beside, "gpus": meant.count})


def _number(value: Any) -> Any:
    """A flag's text as the number it is."""
    if not isinstance(value, str):
        return value
    try:
        found = float(value.replace("_", ""))
    except ValueError:
        return value
    return int(found) if found.is_integer() else found


def tell(launch: Launch) -> None:
    """Say on stderr what was understood of a launch line, and what was not."""
    model = f"; model {launch.model.name}" if launch.model else ""
    said = ", ".join(f"{k}={v:g}" if isinstance(v, float) else f"{k}={v}"
                     for k, v in launch.fields.items())  # fmt: skip
    print(f"{launch.dialect}: {len(launch.understood)} flags read: {said}{model}", file=sys.stderr)
    if launch.ignored:
        more = f" and {len(launch.ignored) - LISTED} more" if len(launch.ignored) > LISTED else ""
        named = ", ".join(launch.ignored[:LISTED])
        print(f"ignored, of no effect on speed: {named}{more}", file=sys.stderr)
    if launch.unknown:
        named = told(launch.unknown, LISTED)
        print(f"not known, which may matter, most first: {named}", file=sys.stderr)
    for name, (line, given) in launch.overridden.items():
        print(f"note: {name} {given} is given beside the line, which says {line}", file=sys.stderr)
    for note in launch.notes:
        print(f"note: {note}", file=sys.stderr)


def emitted(name: str, found: Sweep | ServingSweep, quiet: bool) -> dict[str, Any]:
    """Print the launch line of a prediction, of several the best one that fits: the fastest step,
    or most output per accelerator.

    quiet   print only what the line does not say, on stderr
    """
    fitting = [result for result in found.predictions if result.fits]
    if isinstance(found.predictions[0], Prediction):
        best: Any = min(fitting or found.predictions, key=lambda result: result.step_time.value)
        figure = f"{best.step_time.value:.4g} s per step"
    else:
        best = max(
            fitting or found.predictions,
            key=lambda result: result.output_tokens_per_s.value / result.gpus,
        )
        figure = f"{best.output_tokens_per_s.value:.4g} output tokens/s"
    return emitted_request(name, best.request, best.batch.calibration, figure, quiet)


def training_request(
    model: Model, cluster: Cluster, plan: TrainingPlan, tokens: float | None
) -> TrainingRequest:
    """The request that a plan of a search answers, with its budget if there is one."""
    return TrainingRequest(model, cluster, plan, tokens, (), reliability_of(reliability_defaults()))


def emitted_request(
    name: str, request: Request, calibration: Calibration, what: str, quiet: bool = False
) -> dict[str, Any]:
    """Print the launch line of a complete request, and what is predicted when it is read back.

    calibration   that the request was predicted with
    what          what it promises, for the terminal
    quiet         print nothing on stdout

    Returns what `--json` writes; its `read_back` says whether the line holds what was promised.
    """
    written = emit(name, request, calibration.run)
    found = read_back(written, request, calibration)
    where = f"{request.model.name} on {float(request.plan.gpus):g} accelerators"
    report(written, f"{where}, {what}", quiet)
    report_back(found)
    return {**written.to_dict(), "read_back": found}


SAME = 1e-9
"""Relative difference up to which two predictions are the same."""


def read_back(written: Emitted, request: Request, calibration: Calibration) -> dict[str, Any]:
    """What is predicted of a launch line that is read back, beside the request it was written for.

    Returns figures with their unit of both, names of those that differ, whether the line's fits,
    and what has to be given beside it.
    """
    one, two = (_predicted(each, calibration) for each in (request, written.again))
    promised, figures = _figures(one), _figures(two)
    differs = [n for n, own in promised.items() if abs(figures[n] - own) > SAME * abs(own)]
    return {
        "figures": figures,
        "promised": promised,
        "differs": differs,
        "fits": two.fits,
        "holds": two.fits and not differs,
        "beside": written.beside,
    }


def _predicted(request: Request, calibration: Calibration) -> Prediction | ServingResult:
    if isinstance(request, ServingRequest):
        return predicted(request, calibration)
    batch = predict(request.model, request.cluster, request.plan, calibration)
    return Prediction(request, batch)


def _figures(found: Prediction | ServingResult) -> dict[str, float]:
    """What a launch line has to hold."""
    if isinstance(found, Prediction):
        return {"step_time_s": found.step_time.value, "memory_gb": found.peak_memory / GB}
    return {
        "ttft_s": found.ttft.value,
        "tpot_s": found.tpot.value,
        "output_tokens_per_s": found.output_tokens_per_s.value,
        "memory_gb": found.peak_memory / GB,
    }


def report_back(found: Mapping[str, Any]) -> None:
    """Say on stderr what is predicted of the line that was read back."""
    told = ", ".join(f"{name} {value:.6g}" for name, value in found["figures"].items())
    beside = " ".join(
        f"--model {value}" if name == "model" else f"--set {name}={value}"
        for name, value in found["beside"].items()
    )
    said = f"read back{f' with {beside}' if beside else ''}: {told}"
    if found["differs"]:
        other = ", ".join(f"{name} {found['promised'][name]:.6g}" for name in found["differs"])
        print(f"reckon: {said}; the plan it was written for has {other}", file=sys.stderr)
    else:
        print(f"{said}, as promised", file=sys.stderr)
    if not found["fits"]:
        print("reckon: what the line starts does not fit the memory", file=sys.stderr)


def report(written: Emitted, what: str, quiet: bool = False) -> None:
    """Print a launch line on stdout, and what it is for and does not say on stderr."""
    print(f"{written.dialect}: {what}", file=sys.stderr)
    if written.unsaid:
        left = ", ".join(str(one) for one in written.unsaid)
        print(f"not said by the line: {left}", file=sys.stderr)
    if not quiet:
        print(written.text, end="")

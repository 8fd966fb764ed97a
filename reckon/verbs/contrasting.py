"""`reckon compare`: two runs against each other, term by term."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from predictor import catalog
from predictor.catalog import load
from predictor.errors import InputError
from predictor.files import is_file
from predictor.plans import SERVING_FIELDS, TRAINING_FIELDS
from predictor.records import dataclass, replace
from predictor.search import Ratio, differences, ratio, timed
from predictor.timing import Calibration
from reckon.launch.dialect import SPELLED
from reckon.verbs.judging import predicted, understood
from reckon.verbs.results import Prediction
from reckon.verbs.served import ServingResult

SERVED = ("ttft", "tpot", "e2e", "output_tokens_per_s")
"""Figures of serving that are compared."""

MACHINE = ("system", "accelerator")
"""Keys of a request that say where it runs."""

CANCELS = 0.5
"""What of the spread of two runs of one engine and one accelerator remains in their ratio; of two
that have neither in common, all of both."""


@dataclass(frozen=True, slots=True)
class Side:
    """One of two runs: a prediction, or what was measured.

    name      as it was given
    result    the prediction; None where the file holds results alone
    measured  figure -> value in SI, of what was measured
    lacks     why a log's run cannot be predicted; empty where it can
    """

    name: str
    result: Prediction | ServingResult | None
    measured: Mapping[str, float]
    lacks: str = ""


@dataclass(frozen=True, slots=True)
class Contrast:
    """Two runs: ratios of B over A by figure, and terms of a step [s].

    measured  ratios of what was measured, where both were
    terms     (term, seconds of A, seconds of B), the largest difference first
    """

    a: Side
    b: Side
    ratios: Mapping[str, Ratio]
    measured: Mapping[str, float]
    terms: tuple[tuple[str, float, float], ...]

    def to_dict(self) -> dict[str, Any]:
        """As `--json` writes it."""
        return {
            "schema_version": 1,
            "kind": "comparison",
            "a": self.a.name,
            "b": self.b.name,
            "ratios": {
                name: {"value": one.value, "low": one.low, "high": one.high, "tie": one.tie}
                for name, one in self.ratios.items()
            },
            "measured": dict(self.measured),
            "terms": [{"term": t, "a_s": a, "b_s": b} for t, a, b in self.terms],
        }


def side(given: str, fields: Mapping[str, Any], known: Calibration) -> Side:
    """One run: a result (what --json wrote), a run file, a launch line, or a log.

    Raises InputError where it is none of these.
    """
    path = Path(given)
    if is_file(path) and path.suffix == ".json":
        content = _result(path)
        if content is not None:
            return Side(given, _again(content, known), {})
    if is_file(path) and path.suffix not in (".yaml", ".yml", ".sh", ".toml", ".py"):
        try:
            return _logged(path, fields, known)
        except InputError:
            if path.suffix in (".log", ".csv", ".out", ".jsonl", ".gz"):
                raise
    asked, _ = understood(given, fields)
    return Side(given, predicted(asked, known), {})


def _result(path: Path) -> dict[str, Any] | None:
    """What `reckon predict --json` wrote; None for other files."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError):
        return None
    kept = isinstance(content, dict) and "schema_version" in content and "inputs" in content
    return content if kept else None


def _again(content: Mapping[str, Any], known: Calibration) -> Prediction | ServingResult:
    """The prediction of a result's own request, made again: both sides under one calibration.

    Where the request did not name its model or machine, or the file is older than `stated`, the
    completed inputs say so.
    """
    inputs = {SPELLED.get(k, k): v for k, v in content["inputs"].items() if v is not None}
    table = SERVING_FIELDS if "input_len" in inputs else TRAINING_FIELDS
    asked = {key: value for key, value in inputs.items() if key in table}
    try:
        catalog.system(str(asked.get("system")))
    except InputError:
        asked.pop("system", None)
    stated = content.get("stated")
    if not isinstance(stated, Mapping):
        return predicted(asked, known)
    where = MACHINE if not any(name in stated for name in MACHINE) else ()
    beside = {name: asked[name] for name in ("model", *where) if name in asked}
    return predicted({**beside, **stated}, known)


def _logged(path: Path, fields: Mapping[str, Any], known: Calibration) -> Side:
    """What a log measured, and the prediction of the run that it tells, where it says enough."""
    from calibration.tables.requests import InferencePoint, inference_point
    from calibration.tables.runs import Point, point_of
    from predictor.training import predict
    from reckon.logs.rows import Given
    from reckon.verbs.runs import read_one
    from reckon.verbs.serving import predicted as served

    own = dict(fields)
    given = Given(own, own.pop("model", None), own.pop("system", None))
    rows = read_one(path, given).rows
    if "input_len" in rows[0]:
        names = {"ttft_ms": ("ttft", 1e-3), "tpot_ms": ("tpot", 1e-3),
                 "e2e_latency_s": ("e2e", 1.0),
                 "output_tokens_per_s": ("output_tokens_per_s", 1.0)}  # fmt: skip
        measured = {
            names[row["metric"]][0]: float(row["value"]) * names[row["metric"]][1]
            for row in rows
            if row["metric"] in names
        }
        point = inference_point(rows[0], known.run)
        if not isinstance(point, InferencePoint):
            return Side(str(path), None, measured, point.reason)
        return Side(str(path), served(point.request, known), measured)
    one = point_of(rows[-1], known.run)  # of several jobs in one file the last
    if not isinstance(one, Point):
        value = float(rows[-1].get("step_time_s") or math.nan)
        return Side(str(path), None, _finite({"step_time": value}), one.reason)
    of = one.request
    found = Prediction(of, predict(of.model, of.cluster, of.plan, known))
    return Side(str(path), found, _finite({"step_time": one.measured}))


def _finite(figures: Mapping[str, float]) -> dict[str, float]:
    """Figures that are known."""
    return {name: value for name, value in figures.items() if math.isfinite(value)}


def compare(
    a: str,
    b: str,
    fields: Mapping[str, Any] | None = None,
    calibration: str | Path | Calibration = "default",
) -> Contrast:
    """Compare two runs: what --json wrote, run files, launch lines, or logs.

    fields   keys of a plan beside both, which count

    Returns ratios of B over A with their own interval: what both are wrong about alike cancels.
    Raises InputError where one cannot be read, or a training run stands against one of serving.
    """
    known = load(calibration)
    one, two = (side(name, dict(fields or {}), known) for name in (a, b))
    both = {name: two.measured[name] / one.measured[name]
            for name in one.measured if name in two.measured}  # fmt: skip
    ratios: dict[str, Ratio] = {}
    terms: tuple[tuple[str, float, float], ...] = ()
    if isinstance(one.result, Prediction) and isinstance(two.result, Prediction):
        ratios, terms = _training(one.result, two.result, known)
    elif isinstance(one.result, ServingResult) and isinstance(two.result, ServingResult):
        ratios = _serving(one.result, two.result)
    elif one.result is not None and two.result is not None:
        raise InputError("a training run and one of serving have nothing to compare")
    if not ratios and not both:
        why = "; ".join(f"{of.name}: {of.lacks}" for of in (one, two) if of.lacks)
        raise InputError(
            f"{a} and {b} do not say enough of their runs to be compared"
            + (f" ({why}; --set says more)" if why else "")
        )
    return Contrast(one, two, ratios, both, terms)


def _same(a: Prediction | ServingResult, b: Prediction | ServingResult) -> bool:
    """Whether both are predictions of one run, which is as long as itself for sure; however much
    of it was stated."""

    def told(of: Prediction | ServingResult) -> str:
        names = [one.name for one in dataclasses.fields(of.request) if one.name not in SAID]
        return repr([getattr(of.request, name) for name in names])

    return told(a) == told(b)


SAID = ("assumed", "idle", "stated", "guessed")
"""Of a request, what is of its words and not of the run."""


def _training(
    a: Prediction, b: Prediction, known: Calibration
) -> tuple[dict[str, Ratio], tuple[tuple[str, float, float], ...]]:
    """Ratio of step times, of times per token, and terms, as each run is predicted: under limits
    of power, and with stages that are unlike."""
    one, two = (
        replace(
            timed(p.request.model, p.request.cluster, p.request.plan, known)[0],
            step_time=p.step_time.value,
            breakdown=p.breakdown,
        )
        for p in (a, b)
    )
    if _same(a, b) and one == two:
        return dict.fromkeys(("step_time", "time_per_token"), Ratio(1.0, 1.0, 1.0)), ()
    found = ratio(two, one, known)
    tokens = [float(p.request.plan.global_batch * p.request.plan.seq_len) for p in (a, b)]
    per_token = ratio(two, one, known, tokens[0] / tokens[1])
    terms = tuple(
        (term, one.breakdown.get(term, 0.0), two.breakdown.get(term, 0.0))
        for term, more in differences(two, one)
        if abs(more) > 0
    )
    return {"step_time": found, "time_per_token": per_token}, terms


def _serving(a: ServingResult, b: ServingResult) -> dict[str, Ratio]:
    """Ratios of latencies and throughput."""
    plans = a.request.plan, b.request.plan
    machines = a.request.cluster.accelerator.name, b.request.cluster.accelerator.name
    alike = plans[0].framework == plans[1].framework and machines[0] == machines[1]
    share = 0.0 if _same(a, b) else CANCELS if alike else 1.0
    found = {}
    for name in SERVED:
        one, two = getattr(a, name, None), getattr(b, name, None)
        if one is None or two is None or not one.value > 0 or not two.value > 0:
            continue
        wide = [math.log(max(own.high / own.value, 1.0)) for own in (one, two)]
        reach = math.exp(share * math.hypot(*wide))
        value = two.value / one.value
        found[name] = Ratio(value, value / reach, value * reach)
    return found

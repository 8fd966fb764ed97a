"""`reckon explain`: a trace of one's own step, set against its prediction term by term."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from calibration.checks.kernel_rows import score_kernels
from calibration.checks.scored import Scored
from calibration.sources.kineto import read_steps
from calibration.sources.kineto_ranks import Traced, traced
from calibration.sources.kineto_steps import OTHER, Anatomy
from calibration.tables.kernel_table import check_kernels
from calibration.tables.profiles import stated_by
from calibration.tables.runs import Skipped
from predictor import catalog
from predictor.catalog import load
from predictor.errors import InputError
from predictor.hardware import Accelerator
from predictor.timing import Calibration
from reckon.verbs.results import Prediction
from reckon.verbs.timeline import measured_events, schedule_events, write_timeline
from reckon.verbs.training import predict_train

CLASSES = {
    "gemm": "gemm",
    "moe_gemm": "gemm",
    "attention_prefill": "attention",
    "attention_backward": "attention",
}
"""Class of a trace's kernels by the predictor's operator; other operators are their own class."""

KERNELS = (
    "gemm", "attention", "norm", "elementwise", "softmax", "embedding", "loss", "optimizer",
    "convolution", "transfer", OTHER,
)  # fmt: skip
"""Classes of kernels in the order of the report."""

NOTABLE = 0.05
"""Share of the step from which a deviation is worth a sentence."""

LATE = 0.01
"""Share of the step from which a rank that is waited for is named."""

NOTHING = 1e-7
"""Seconds of a step that are not worth a line."""


def explain(
    trace: str | Path,
    fields: Mapping[str, Any],
    calibration: str | Path | Calibration = "default",
    timeline: str | Path | None = None,
    ranks: str | Path | None = None,
) -> dict[str, Any]:
    """Set a recorded step against the prediction of the same plan.

    trace     of PyTorch's profiler, one rank's
    fields    model, system and plan as `reckon predict train` takes them
    timeline  file to write both to, one over the other, in Chrome's trace format
    ranks     folder of traces of the same steps, one a rank: who is waited for

    Returns the terms, the operators and the findings. Raises InputError for a damaged trace, and
    for one of another accelerator.
    """
    known = load(calibration)
    model, system = fields.get("model"), fields.get("system")
    if model is None or system is None:
        raise InputError("explain needs --model and --system (a name or a file)")
    cluster = catalog.system(system)
    plan = {k: v for k, v in fields.items() if k not in ("model", "system")}
    prediction = predict_train(model, cluster, plan, known)
    assert isinstance(prediction, Prediction)
    found, steps = read_steps(Path(trace), stated_by(cluster))
    on = sorted(set(found.rows["accelerator"].dropna()))
    own = [name for name in on if name != cluster.accelerator.name]
    if own:
        raise InputError(
            f"{trace} is of {own[0]}, and {cluster.name} holds {cluster.accelerator.name}; give "
            "its own system"
        )
    if timeline is not None:
        predicted = schedule_events(prediction, first=1)
        write_timeline(timeline, [*measured_events(steps, 0), *predicted])
    operators = compare_operators(found.rows, cluster.accelerator, known, steps.steps, str(trace))
    terms = compare_terms(steps, prediction)
    result = {
        "schema_version": 1,
        "kind": "explanation",
        "trace": str(trace),
        "inputs": prediction.inputs(),
        "calibration": known.name,
        "step_time_s": {"measured": steps.step_time, **_interval(prediction)},
        "terms": terms,
        "operators": operators,
        "work": _work(found.rows, prediction, steps.steps),
        "steps": steps.to_dict(),
    }
    told = findings(result, steps, prediction)
    if ranks is not None:
        among = traced(Path(ranks))
        result["ranks"] = _ranks(among)
        told += awaited(among)
    return {**result, "findings": told}


def _ranks(among: Traced) -> list[dict[str, Any]]:
    """Each rank as plain numbers."""
    return [
        {"rank": one.rank, "waited_s": one.waited, "last_share": one.last, "gain_s": one.gain}
        for one in among.ranks
    ]


def awaited(among: Traced) -> list[str]:
    """Ranks that others wait for, and what the job gains without them, in sentences."""
    found = [
        f"others wait for rank {one.rank}, the last at {one.last:.0%} of its collectives: a step "
        f"gains {one.gain / among.step:.1%} if it comes with the next to last"
        for one in sorted(among.ranks, key=lambda one: -one.gain)
        if one.gain > LATE * among.step
    ]
    none = f"no rank holds a step up by {LATE:.0%} or more"
    return found or [
        f"{none}, over {among.collectives:.0f} collectives of {len(among.ranks)} ranks"
    ]


def _interval(prediction: Prediction) -> dict[str, float]:
    step = prediction.step_time
    return {"predicted": step.value, "low": step.low, "high": step.high}


def compare_terms(steps: Anatomy, prediction: Prediction) -> list[dict[str, Any]]:
    """Seconds of the mean step by term, measured and predicted; each column adds up to its step
    time. What a kernel class has in `kernels` is its number of kernels per step."""
    breakdown = prediction.breakdown
    expected = dict.fromkeys(KERNELS, 0.0)
    for operator in prediction.operators:
        expected[CLASSES.get(operator.op, operator.op)] += operator.time_s
    expected["optimizer"] += breakdown["optimizer"]
    rows = [
        (name, steps.classes.get(name, 0.0), expected[name], steps.counts.get(name, 0.0))
        for name in KERNELS
    ]
    exposed = sum(value for name, value in breakdown.items() if name.endswith("_communication"))
    resting = steps.step_time - steps.window if not steps.on_host else 0.0
    rows += [
        ("kernels at the same time", -steps.together, 0.0, 0.0),
        ("communication, exposed", steps.exposed, exposed, steps.counts.get("communication", 0.0)),
        ("waiting for the host", steps.host_idle, breakdown["host"], steps.gaps),
        ("waiting otherwise", steps.other_idle, breakdown["bubble"], 0.0),
        ("between steps", resting, 0.0, 0.0),
        ("framework factor", 0.0, breakdown["framework"], 0.0),
    ]
    measured, predicted = (sum(float(row[i]) for row in rows) for i in (1, 2))
    rest = (steps.step_time - measured, prediction.step_time.value - predicted)
    if max(abs(value) for value in rest) > NOTHING:
        rows.append(("rest", *rest, 0.0))
    return [
        {"term": name, "measured_s": own, "predicted_s": other, "kernels": count}
        for name, own, other, count in rows
        if abs(own) > NOTHING or abs(other) > NOTHING
    ]


def compare_operators(
    rows: pd.DataFrame, accelerator: Accelerator, known: Calibration, steps: int, where: str
) -> list[dict[str, Any]]:
    """Each shape of the trace: its time per call and what this calibration expects of it, those
    first that cost a step most beyond that."""
    if rows.empty:
        return []
    table = check_kernels(rows, where).reset_index(drop=True)
    table["point_id"] = [str(position) for position in table.index]
    scored: list[Scored] = []
    skipped: list[Skipped] = []
    score_kernels(Path(where), table, known, scored, skipped, {accelerator.name: accelerator})
    found = []
    listed = table.to_dict("records")
    for one in scored:
        row = listed[int(one.point_id)]
        calls = float(row["samples"] or 1) / steps
        found.append(
            {
                "operator": _label(row),
                "calls": calls,
                "measured_s": one.published * 1e-6,
                "predicted_s": one.predicted * 1e-6,
                "low_s": one.low * 1e-6,
                "high_s": one.high * 1e-6,
                "excess_s": calls * (one.published - one.predicted) * 1e-6,
            }
        )
    return sorted(found, key=lambda each: -each["excess_s"])


def _label(row: Mapping[Any, Any]) -> str:
    """An operator in one line."""
    if row["op"].startswith("attention"):
        numbers = " ".join(
            f"{n} {row[n]:g}" for n in ("batch", "heads", "q_len", "kv_len", "head_dim")
        )
    elif row["num_gpus"] > 1:
        numbers = f"{row['message_bytes'] / 1e6:.3g} MB, {row['num_gpus']:g} ranks"
    elif row["op"] == "gemm":
        batch = f"{row['batch']:g} x " if row["batch"] > 1 else ""
        numbers = f"{row['layout']} {batch}{row['m']:g} x {row['n']:g} x {row['k']:g}"
    else:
        numbers = f"{row['kernel']} {row['m']:g} x {row['n']:g}"
    return f"{row['op']} {row['dtype']} {numbers}".replace("  ", " ")


def _work(rows: pd.DataFrame, prediction: Prediction, steps: int) -> dict[str, float]:
    """FLOP of the matrix products of a step: in the trace, and in the model's list."""
    own = rows[rows["op"] == "gemm"]
    product = 2.0 * own["m"] * own["n"] * own["k"] * own["batch"].fillna(1.0)
    listed = prediction.batch.operators
    expected = sum(
        float(times) * float(operator.flop)
        for operator, times in zip(listed, prediction.batch.executions, strict=True)
        if operator.op in ("gemm", "moe_gemm")
    )
    return {
        "gemm_flop_measured": float((product * own["samples"]).sum()) / steps,
        "gemm_flop_predicted": expected,
    }


def findings(result: dict[str, Any], steps: Anatomy, prediction: Prediction) -> list[str]:
    """What stands out, in sentences."""
    total = steps.step_time
    stated = result["step_time_s"]
    ratio = total / stated["predicted"]
    inside = stated["low"] <= total <= stated["high"]
    level = f"{prediction.batch.calibration.interval_level:.0%} interval"
    found = [
        f"the step takes {ratio:.2f} times what is predicted, "
        f"{'inside' if inside else 'outside'} the {level}"
    ]
    work = result["work"]
    if work["gemm_flop_measured"] and work["gemm_flop_predicted"]:
        share = work["gemm_flop_measured"] / work["gemm_flop_predicted"]
        if abs(share - 1) > NOTABLE:
            found.append(
                f"its matrix products do {share:.2f} times the arithmetic of the stated plan: "
                "another model, batch or sequence length, or shapes that were not recorded"
            )
    if not steps.marked:
        found.append("the trace marks no steps (profiler.step()): taken as one")
    for term in result["terms"]:
        own, other = term["measured_s"], term["predicted_s"]
        if term["term"] in KERNELS and own - other > NOTABLE * total:
            times = f"{own / other:.1f} times" if other else "not"
            found.append(f"{term['term']} takes {own / total:.0%} of the step, {times} predicted")
    if steps.communication:
        hidden = 1.0 - steps.exposed / steps.communication
        found.append(
            f"{hidden:.0%} of the communication runs behind computation; "
            f"{steps.exposed / total:.0%} of the step is exposed communication"
        )
    if steps.host_idle > NOTABLE * total:
        what = "between calls" if steps.on_host else "without a kernel that was launched"
        found.append(
            f"the host is the limit: {steps.host_idle / total:.0%} of the step passes {what}"
        )
    slow = [o for o in result["operators"] if o["measured_s"] > o["high_s"]]
    if slow:
        worst = slow[0]
        found.append(
            f"{len(slow)} shapes are slower than their interval; most is lost in "
            f"{worst['operator']}: {worst['measured_s'] / worst['predicted_s']:.1f} times its "
            f"expected time, {worst['excess_s'] / total:.1%} of the step"
        )
    return found

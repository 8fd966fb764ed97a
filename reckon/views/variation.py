"""Pictures of what the best plan of a search will do on machines that vary: how long its steps
take, and how that grows with more accelerators.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from predictor.plans import TrainingPlan
from predictor.training import predict, vary
from predictor.variation import LEVELS
from reckon.verbs.plans import TrainingSearch
from reckon.views.page import marked
from reckon.views.pictures import COLOURS, GREY, LOG, Chart

BINS = 40
"""Bars of a distribution of steps."""
MOST = 65536
"""Accelerators of the curve, at most."""

RARE = 0.002
"""Share of the steps that the histogram leaves out on either side."""


def pictures(found: TrainingSearch) -> list[Chart]:
    """A histogram of steps, and P95 against accelerators, of the best plan."""
    return [_histogram(found), _scale(found)]


def _histogram(found: TrainingSearch) -> Chart:
    """Share of the steps that take how long, with P50, P95 and P99."""
    own = vary(found.prediction(0), found.result.machines)
    edges = np.linspace(float(own.quantile(RARE)), float(own.quantile(1.0 - RARE)), BINS + 1)
    share = np.diff(own.series.below(edges / float(own.centre)))
    data: list[dict[str, Any]] = [
        {"type": "bar", "x": 0.5 * (edges[1:] + edges[:-1]), "y": 100 * share,
         "width": np.diff(edges), "marker": {"color": COLOURS[0]}, "showlegend": False}
    ]  # fmt: skip
    lines: dict[str, list[Any]] = {"shapes": [], "annotations": []}
    for level in LEVELS:
        for key, parts in marked("x", float(own.quantile(level)), f"P{100 * level:g}").items():
            lines[key] += parts
    layout = {
        "xaxis": {"title": {"text": "step time, s"}},
        "yaxis": {"title": {"text": "per cent of the steps"}, "rangemode": "tozero"},
        "bargap": 0,
        **lines,
    }
    note = (
        f"Machines: {found.result.machines.name}. What is not known about the step is not in this "
        f"picture; {RARE:.1%} of the steps lie beyond either end."
    )
    return Chart("Steps of the best plan", data, layout, note)


def scaled(plan: TrainingPlan) -> TrainingPlan:
    """The plan with one replica, two, four, ... up to `MOST` accelerators, each with as many
    micro-batches as now."""
    ranks = float(plan.gpus) / float(plan.dp)
    doublings = int(np.log2(max(MOST / ranks, 1.0)))
    replicas = np.array([2.0**n for n in range(doublings + 1)])
    batches = np.asarray(float(plan.global_batch) / float(plan.dp) * replicas)
    return replace(plan, dp=replicas, global_batch=batches, dp_shard=np.nan)


def _scale(found: TrainingSearch) -> Chart:
    """Predicted step, P50 and P95 against accelerators."""
    result = found.result
    plan = scaled(result.plan(0))
    several = predict(result.model, result.cluster, plan, result.calibration)
    own = vary(several, result.machines)
    gpus = np.asarray(plan.gpus)
    lines = [("predicted step", np.asarray(several.step_time), GREY)]
    lines += [
        (f"P{100 * level:g}", own.quantile(level), COLOURS[number])
        for number, level in enumerate(LEVELS[:2])
    ]
    data = [
        {"type": "scatter", "mode": "lines+markers", "name": name, "x": gpus, "y": times,
         "line": {"color": colour}}
        for name, times, colour in lines
    ]  # fmt: skip
    layout = {
        "xaxis": {"title": {"text": "accelerators"}, **LOG},
        "yaxis": {"title": {"text": "step time, s"}},
    }
    note = "The best plan with more or fewer replicas, each with as many micro-batches as now."
    return Chart("Steps against accelerators", data, layout, note)

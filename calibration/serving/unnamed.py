"""What a run adds to its spread of which nobody says the engine: published rows with their engine
hidden, their source left out of what was fitted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from calibration.serving.late import interval_score
from calibration.serving.spreads import QUEUED_CLASS, class_of
from calibration.sources.hiding import hide, sampled
from calibration.sources.reading import read_table
from calibration.tables.cells import check_runs
from calibration.tables.requests import InferencePoint, inference_point
from predictor.arrays import Array
from predictor.timing import UNNAMED_SPREAD, RunParameters, ServingParameters

HIDDEN = ("framework", "framework_version")
"""Columns that are emptied."""

ROWS = 10
"""Rows of each source and metric that are predicted so."""

LEAST_SOURCES = 5
"""Sources from which what hiding the engine adds is taken; fewer keep the documented one."""

TRIED = np.linspace(0.0, 1.5, 151)
"""Log-standard-deviations among which it is."""


def unnamed_points(paths: Sequence[Path], run: RunParameters) -> list[InferencePoint]:
    """Points of `ROWS` rows of each source and metric as if nobody had said by which engine they
    were served. Without doubtful rows, arrivals at a rate, and those that are read as another kind
    of run then.

    run   memory parameters, to fill in what is unstated
    """
    found: list[InferencePoint] = []
    for path in paths:
        rows = check_runs(read_table(path), str(path)).to_dict("records")
        for metric in sorted({str(row["metric"]) for row in rows}):
            own = sampled([row for row in rows if row["metric"] == metric], ROWS)
            pairs = [(inference_point(r, run), inference_point(hide(r, HIDDEN), run)) for r in own]
            found += [
                made
                for told, made in pairs
                if isinstance(told, InferencePoint) and isinstance(made, InferencePoint)
                if made.kind == told.kind and made.rate is None and not made.request.plan.named
                if not (told.flagged or told.tentative)
            ]
    return found


def fit_unnamed(
    points: Sequence[InferencePoint],
    errors: Array,
    operators: Array,
    loads: Array,
    parameters: ServingParameters,
    q: float,
    level: float,
) -> dict[str, float]:
    """What a run adds to its spread whose engine nobody names, as `timing.UNNAMED_SPREAD`: that
    with the least interval score (`late.interval_score`), every class of every source counting
    alike; nothing where fewer than `LEAST_SOURCES` have points.

    errors      log(predicted / published), held out
    operators   the operators' part of each spread
    loads       what spreads of first tokens grow with, (2, points)
    parameters  spreads of runs whose engine is named
    """
    if len({point.source for point in points}) < LEAST_SOURCES:
        return {}
    labels = [class_of(point) for point in points]
    groups = [(label, point.source) for label, point in zip(labels, points, strict=True)]
    counts = Counter(groups)
    weight = np.array([1.0 / counts[one] for one in groups])
    queued = np.array([label == QUEUED_CLASS for label in labels])
    named = np.array([parameters.spread(*label.split(".")) for label in labels])
    early, late = (
        np.hypot(operators, np.where(queued, parameters.first_token(loads, side), named))
        for side in (False, True)
    )
    costs = [
        float(np.sum(weight * interval_score(
            -q * np.hypot(early, more), q * np.hypot(late, more), -np.asarray(errors), level
        )))
        for more in TRIED
    ]  # fmt: skip
    return {UNNAMED_SPREAD: round(float(TRIED[int(np.argmin(costs))]), 4)}

"""What a run adds to its spread of which nobody says the engine, or in what its weights are:
published rows with that hidden, their source left out of what was fitted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from calibration.serving.late import interval_score
from calibration.serving.spreads import QUEUED_CLASS, beside, class_of
from calibration.sources.hiding import hide, sampled
from calibration.sources.reading import read_table
from calibration.tables.cells import check_runs
from calibration.tables.requests import InferencePoint, inference_point
from predictor.arrays import Array
from predictor.timing import UNNAMED_SPREAD, UNSAID_SPREAD, RunParameters, ServingParameters

HIDDEN: Mapping[str, tuple[str, ...]] = {
    UNNAMED_SPREAD: ("framework", "framework_version"),
    UNSAID_SPREAD: ("weights_precision", "kv_precision"),
}
"""Columns that are emptied, by the name of what that adds."""

ROWS = 10
"""Rows of each source and metric that are predicted so."""

LEAST_SOURCES = 5
"""Sources from which what hiding something adds is taken; fewer keep the documented one."""

TRIED = np.linspace(0.0, 1.5, 151)
"""Log-standard-deviations among which it is."""


def _unsaid(point: InferencePoint) -> set[str]:
    """What nobody says of a run, of `HIDDEN`."""
    request = point.request
    found = {UNSAID_SPREAD} if request.guessed else set()
    return found if request.plan.named else {UNNAMED_SPREAD, *found}


def hidden_points(paths: Sequence[Path], run: RunParameters, what: str) -> list[InferencePoint]:
    """Points of `ROWS` rows of each source and metric that say everything of `HIDDEN`, as if nobody
    had said one of it. Without doubtful rows, arrivals at a rate, and those that are read as
    another kind of run then, or say it otherwise (a checkpoint its data type).

    run    memory parameters, to fill in what is unstated
    what   of `HIDDEN`
    """
    found: list[InferencePoint] = []
    for path in paths:
        rows = check_runs(read_table(path), str(path)).to_dict("records")
        for metric in sorted({str(row["metric"]) for row in rows}):
            own = sampled([row for row in rows if row["metric"] == metric], ROWS)
            pairs = [
                (inference_point(r, run), inference_point(hide(r, HIDDEN[what]), run)) for r in own
            ]
            found += [
                made
                for told, made in pairs
                if isinstance(told, InferencePoint) and isinstance(made, InferencePoint)
                if made.kind == told.kind and made.rate is None
                if (_unsaid(told), _unsaid(made)) == (set(), {what})
                if not (told.flagged or told.tentative)
            ]
    return found


def fit_added(
    what: str,
    points: Sequence[InferencePoint],
    errors: Array,
    operators: Array,
    loads: Array,
    parameters: ServingParameters,
    q: float,
    level: float,
) -> dict[str, float]:
    """What a run adds to its spread of which something is not said, by its name: that with the
    least interval score (`late.interval_score`), every class of every source counting
    alike; nothing where fewer than `LEAST_SOURCES` have points.

    what        is hidden, of `HIDDEN`
    errors      log(predicted / published), held out
    operators   the operators' part of each spread, (2, points)
    loads       what spreads of first tokens grow with, (2, points)
    parameters  spreads of runs that say it
    """
    if len({point.source for point in points}) < LEAST_SOURCES:
        return {}
    labels = [class_of(point) for point in points]
    groups = [(label, point.source) for label, point in zip(labels, points, strict=True)]
    counts = Counter(groups)
    weight = np.array([1.0 / counts[one] for one in groups])
    queued = np.array([label == QUEUED_CLASS for label in labels])
    named = np.array([parameters.spread(*label.split(".")) for label in labels])
    own = beside(parameters, labels, operators)
    early, late = (
        np.hypot(own, np.where(queued, parameters.first_token(loads, side), named))
        for side in (False, True)
    )
    costs = [
        float(np.sum(weight * interval_score(
            -q * np.hypot(early, more), q * np.hypot(late, more), -np.asarray(errors), level
        )))
        for more in TRIED
    ]  # fmt: skip
    return {what: round(float(TRIED[int(np.argmin(costs))]), 4)}

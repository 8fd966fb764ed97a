"""Spreads of runs of inference: what no operator explains, by metric and kind of run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from calibration.serving.timed import Timed
from calibration.spread import Residual, carried_sigma
from calibration.tables.requests import InferencePoint
from predictor.arrays import Array
from predictor.serving import (
    LATER,
    latencies,
    spreads,
)
from predictor.timing import (
    EngineParameters,
    ServingParameters,
)

CLASSES = {
    "ttft_s": "ttft",
    "tpot_s": "tpot",
    "e2e_s": "e2e",
    "output_tokens_per_s": "throughput",
    "requests_per_s": "throughput",
}
"""Metric of an interval for each metric of a table."""


def class_of(point: InferencePoint) -> str:
    """Name of a point's spread in `ServingParameters.sigma`: first tokens of open loops queue as
    those of closed ones do."""
    metric = CLASSES[point.metric]
    return QUEUED_CLASS if (metric, point.kind) == ("ttft", "open") else f"{metric}.{point.kind}"


def operator_sigma(found: Timed, own: EngineParameters) -> Array:
    """The operators' part of each point's spread."""
    latency = latencies(found.work, own)
    still = ServingParameters(sigma={"all": 0.0})
    table = {
        metric: spreads(
            found.spreads["prompts"],
            found.spreads["decoding"],
            found.work,
            latency,
            own,
            metric,
            still,
        )
        for metric in ("ttft", "tpot", "e2e", "throughput")
    }
    return np.array([table[CLASSES[point.metric]][i] for i, point in enumerate(found.points)])


QUEUED_CLASS = "ttft.serving"
"""First tokens under load, which queues spread several times as wide as anything else."""


def as_below(label: str, errors: Array | float) -> Array:
    """Log errors (predicted / published) of a class, those of points above their predictions over
    how much wider the interval is there."""
    wider = LATER if label == QUEUED_CLASS else 1.0
    return np.where(np.asarray(errors) < 0, np.asarray(errors) / wider, errors)


LEAST = 20
"""Points of one class from which its own spread is taken; fewer share that of all."""


FEWEST = 5
"""Points of one source and class below which they say nothing of other sources."""


def fit_spreads(
    points: Sequence[InferencePoint], errors: Array, operators: Array, q: float, level: float
) -> dict[str, float]:
    """Spread of runs by class of metric, by metric and of all, such that intervals cover `level` of
    the points of a source left out, as a mean over sources (`spread.carried_sigma`). First tokens
    under load are a class for themselves, whose spread above the prediction is `LATER` times that
    below, and of which doubtful sources say what clients may meet; else doubtful rows say nothing
    of others.

    errors      log(predicted / published), held out
    operators   the operators' part of each spread
    """
    labels = [class_of(point) for point in points]
    residuals = [
        Residual(float(as_below(label, e)), float(s), point.source)
        for point, label, e, s in zip(points, labels, errors, operators, strict=True)
    ]
    groups: dict[str, list[Residual]] = {}
    counts = Counter(zip(labels, (one.source for one in residuals), strict=True))
    for point, label, one in zip(points, labels, residuals, strict=True):
        if point.flagged or (point.tentative and label != QUEUED_CLASS):
            continue
        names = [label] if label == QUEUED_CLASS else [label, label.partition(".")[0], "all"]
        for name in names:
            if name == "all" or counts[label, one.source] >= FEWEST:
                groups.setdefault(name, []).append(one)
    return {
        name: round(carried_sigma(own, q, level), 4)
        for name, own in sorted(groups.items())
        if len(own) >= LEAST
    }

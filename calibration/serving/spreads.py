"""Spreads of runs of inference: what no operator explains, by metric and kind of run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from calibration.serving.late import fit_first_tokens
from calibration.serving.timed import Timed
from calibration.spread import LEAST_SOURCES, Residual, carried_sigma
from calibration.tables.requests import InferencePoint
from predictor.arrays import Array
from predictor.serving import latencies, load_shares, spreads
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


def loads_of(found: Timed, own: EngineParameters) -> Array:
    """What spreads of first tokens grow with, of each point (`serving.load_shares`)."""
    return load_shares(found.work, latencies(found.work, own))


LEAST = 20
"""Points of one class, of `LEAST_SOURCES` sources, from which its own spread is taken; fewer share
that of the metric or of all: one or two sources do not say how far others lie off."""


FEWEST = 5
"""Points of one source and class below which they say nothing of other sources."""


def _tells(found: Sequence[Residual]) -> bool:
    """Whether there are enough points, and sources, for a spread of their own."""
    return len(found) >= LEAST and len({one.source for one in found}) >= LEAST_SOURCES


def fit_spreads(
    points: Sequence[InferencePoint],
    errors: Array,
    operators: Array,
    loads: Array,
    q: float,
    level: float,
) -> dict[str, float]:
    """Spread of runs by class of metric, by metric and of all, such that intervals cover `level` of
    the points of a source left out, as a mean over sources (`spread.carried_sigma`); doubtful rows
    say nothing of others. First tokens under load are a class for themselves, of which doubtful
    sources say what clients may meet (`late.fit_first_tokens`).

    errors      log(predicted / published), held out
    operators   the operators' part of each spread
    loads       what spreads of first tokens grow with (`loads_of`), (2, points)
    """
    labels = [class_of(point) for point in points]
    residuals = [
        Residual(float(e), float(s), point.source)
        for point, e, s in zip(points, errors, operators, strict=True)
    ]
    groups: dict[str, list[Residual]] = {}
    counts = Counter(zip(labels, (one.source for one in residuals), strict=True))
    for point, label, one in zip(points, labels, residuals, strict=True):
        if point.flagged or point.tentative or label == QUEUED_CLASS:
            continue
        for name in (label, label.partition(".")[0], "all"):
            if name == "all" or counts[label, one.source] >= FEWEST:
                groups.setdefault(name, []).append(one)
    found = {
        name: round(carried_sigma(own, q, level), 4)
        for name, own in sorted(groups.items())
        if name == "all" or _tells(own)
    }
    queued = [
        at
        for at, (point, label) in enumerate(zip(points, labels, strict=True))
        if label == QUEUED_CLASS and not point.flagged
    ]
    if len(queued) < LEAST:
        return found
    return found | fit_first_tokens(
        errors=np.asarray(errors)[queued],
        operators=operators[queued],
        loads=loads[:, queued],
        sources=[points[at].source for at in queued],
        doubtful=np.array([points[at].tentative for at in queued], bool),
        q=q,
        level=level,
    )

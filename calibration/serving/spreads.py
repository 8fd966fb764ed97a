"""Spreads of runs of inference: what no operator explains, by metric and kind of run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from calibration.serving.late import fit_first_tokens, interval_score
from calibration.serving.timed import Timed
from calibration.spread import LEAST_SOURCES, Residual, carried_sigma
from calibration.tables.requests import InferencePoint
from predictor.arrays import Array, Index
from predictor.serving import latencies, load_shares, operator_spreads
from predictor.timing import (
    KERNELS_SHARE,
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
    """The operators' part of each point's spread, (2, points), as `serving.spread_of`."""
    latency = latencies(found.work, own)
    told = found.spreads["prompts"], found.spreads["decoding"]
    metrics = ("ttft", "tpot", "e2e", "throughput")
    table = np.stack([operator_spreads(*told, found.work, latency, own, name) for name in metrics])
    kinds = np.array([metrics.index(CLASSES[point.metric]) for point in found.points], int)
    return np.asarray(table[kinds, :, np.arange(len(kinds))].T)


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


SHARES = np.linspace(0.0, 1.0, 11)
"""Shares of the kernels' own spread among which is the one that stands beside that of runs."""


WORTH = 0.05
"""Share of the score by which another part of the kernels' spread has to be better than all."""


def _score_beyond(
    errors: Array, kernels: Array, source: Index, q: float, level: float
) -> list[float]:
    """Mean interval score of each source under the run's spread of the others, with which `level`
    of their rows lie inside, each of them counting alike.

    source   number of each row's source, 0 to the most
    """
    needed = np.maximum((errors / q) ** 2 - kernels**2, 0.0)
    order = np.argsort(needed)
    counts = np.bincount(source)
    found = []
    for one in range(len(counts)):
        inside = source == one
        covered = np.cumsum(np.where(inside, 0.0, 1.0 / counts[source])[order])
        at = min(int(np.searchsorted(covered, level * covered[-1])), len(order) - 1)
        half = q * np.sqrt(kernels[inside] ** 2 + needed[order][at])
        found.append(float(np.mean(interval_score(-half, half, errors[inside], level))))
    return found


def kernels_share(
    groups: Mapping[str, Sequence[Residual]],
    q: float,
    level: float,
    carried: Mapping[str, Sequence[Residual]] | None = None,
) -> dict[str, float]:
    """Share of the measured kernels' spread that stands beside that of runs by metric, as
    `timing.KERNELS_SHARE`: that of `SHARES` with the least interval score (`late.interval_score`)
    of sources left out, every source of every class of the metric counting alike; all of it,
    unsaid, where that is not worth `WORTH`, or none of its classes tells.

    groups    rows of each class, with the spread of kernels measured on the accelerator itself
    carried   the same rows with that of those that were not, which stands whole
    """
    costs: dict[str, Array] = {}
    for label, own in groups.items():
        if not _tells(own):
            continue
        errors = np.array([one.error for one in own])
        kernels = np.array([one.sigma for one in own])
        source = np.unique([one.source for one in own], return_inverse=True)[1]
        whole = np.array([one.sigma for one in carried[label]]) if carried else 0.0
        parts = [np.hypot(s * kernels, whole) for s in SHARES]
        each = [np.sum(_score_beyond(errors, part, source, q, level)) for part in parts]
        metric = label.partition(".")[0]
        costs[metric] = costs.get(metric, np.zeros(len(SHARES))) + np.array(each)
    return {
        f"{KERNELS_SHARE}.{metric}": round(float(SHARES[int(np.argmin(cost))]), 4)
        for metric, cost in costs.items()
        if cost.min() < (1.0 - WORTH) * cost[-1]
    }


def _groups(
    points: Sequence[InferencePoint], labels: Sequence[str], errors: Array, operators: Array
) -> dict[str, list[Residual]]:
    """Rows by class, by metric and of all, without doubtful ones and first tokens under load."""
    groups: dict[str, list[Residual]] = {}
    counts = Counter((label, point.source) for label, point in zip(labels, points, strict=True))
    rows = zip(points, labels, errors, operators, strict=True)
    for point, label, error, operator in rows:
        if point.flagged or point.tentative or label == QUEUED_CLASS:
            continue
        one = Residual(float(error), float(operator), point.source)
        for name in (label, label.partition(".")[0], "all"):
            if name == "all" or counts[label, one.source] >= FEWEST:
                groups.setdefault(name, []).append(one)
    return groups


def beside(parameters: ServingParameters, labels: Sequence[str], operators: Array) -> Array:
    """What of the operators' part of each spread stands beside that of runs of each class,
    (2, points) -> (points,)."""
    metrics = np.array([label.partition(".")[0] for label in labels])
    found = np.zeros(len(metrics))
    for name in np.unique(metrics):
        found = np.where(metrics == name, parameters.kernels(str(name), operators), found)
    return found


def fit_spreads(
    points: Sequence[InferencePoint],
    errors: Array,
    operators: Array,
    loads: Array,
    q: float,
    level: float,
) -> dict[str, float]:
    """Spread of runs by class of metric, by metric and of all, such that intervals cover `level` of
    the points of a source left out, as a mean over sources (`spread.carried_sigma`), beside as much
    of the kernels' as holds best (`kernels_share`); doubtful rows say nothing of others. First
    tokens under load are a class for themselves, of which sources that doubt their own figures say
    what clients may meet, doubtful or not (`late.fit_first_tokens`).

    errors      log(predicted / published), held out
    operators   the operators' part of each spread (`operator_sigma`), (2, points)
    loads       what spreads of first tokens grow with (`loads_of`), (2, points)
    """
    labels = [class_of(point) for point in points]
    own, carried = (
        {name: few for name, few in _groups(points, labels, errors, one).items() if "." in name}
        for one in operators
    )
    part = kernels_share(own, q, level, carried)
    operators = beside(ServingParameters(sigma=part), labels, operators)
    groups = _groups(points, labels, errors, operators)
    found = part | {
        name: round(carried_sigma(own, q, level), 4)
        for name, own in sorted(groups.items())
        if name == "all" or _tells(own)
    }
    queued = [
        at
        for at, (point, label) in enumerate(zip(points, labels, strict=True))
        if label == QUEUED_CLASS and (point.tentative or not point.flagged)
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

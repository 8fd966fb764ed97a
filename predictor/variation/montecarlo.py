"""The same by drawing lots: a check of the closed forms, seeded, for one plan.

Every accelerator, section of work, step and stall is drawn; ranks of a section wait for the slowest
of them, micro-batches pass the stages as in a flow shop, replicas meet at the end of the step.
"""

from __future__ import annotations

import numpy as np

from predictor.arrays import Array
from predictor.errors import InputError
from predictor.records import dataclass
from predictor.variation.composition import Meeting
from predictor.variation.outcome import LEVELS, LONGEST, Series
from predictor.variation.profile import Profile, drawn

MOST = 40_000_000
"""Numbers that one step may draw."""

ALLOCATIONS = 12
"""Sets of accelerators among which the steps are divided."""


@dataclass(frozen=True, slots=True)
class Lots:
    """What lots say.

    shift    mean share that waiting adds to a pipeline's time, and its standard error
    quantile  of a step over its run's median, at `LEVELS`
    """

    shift: float
    error: float
    quantile: tuple[float, ...]


def _pipelines(times: Array, chunks: float) -> Array:
    """Time of pipelines of (replicas, stages, micro-batches), (replicas,)."""
    replicas, stages, batches = times.shape
    done = np.zeros((replicas, stages))
    for batch in range(batches):
        before = np.zeros(replicas)
        for stage in range(stages):
            before = np.maximum(before, done[:, stage]) + times[:, stage, batch]
            done[:, stage] = before
    pace = times.sum(axis=2).max(axis=1)
    return np.asarray(pace + (done[:, -1] - pace) / chunks)


def draw(
    meeting: Meeting,
    gpu: float,
    work: float,
    of: Profile,
    series: Series,
    share: float = 1.0,
    draws: int = 400,
    seed: int = 0,
) -> Lots:
    """Draw steps of one plan.

    gpu, work   standard deviations, as `composition.waiting` takes them
    series      what else varies from step to step; its `fresh` is left to the draws
    share       of the step that is the pipeline

    Raises InputError where a step draws more than `MOST` numbers.
    """
    names = ("ranks", "stages", "replicas", "batches")
    t, p, d, m = (max(round(float(getattr(meeting, name))), 1) for name in names)
    k = max(round(float(meeting.sections)), 1)
    if t * p * d * m * k > MOST:
        raise InputError(
            f"--monte-carlo draws every section of every rank, {t * p * d * m * k:.3g} a step; "
            f"more than {MOST:.0e} are too many: check a smaller plan"
        )
    if draws < ALLOCATIONS:
        raise InputError(f"--monte-carlo {draws} is too few; draw at least {ALLOCATIONS} steps")
    lots = np.random.default_rng(seed)
    per, plain = draws // ALLOCATIONS, (m + (p - 1) / float(meeting.chunks))
    found = np.empty((ALLOCATIONS, per))
    for allocation in range(ALLOCATIONS):
        slow = drawn((d, p, 1, 1, t), gpu, of, lots)
        for step in range(per):
            noise = work * lots.standard_normal((d, p, m, k, t)) if work > 0 else 0.0
            sections = np.broadcast_to(1.0 + slow + noise, (d, p, m, k, t))
            times = sections.max(axis=4).mean(axis=3)
            found[allocation, step] = _pipelines(times, float(meeting.chunks)).max() / plain
    shift = found.mean() - 1.0
    error = found.mean(axis=1).std(ddof=1) / np.sqrt(ALLOCATIONS)
    steps = 1.0 + share * (found - 1.0)
    # Steps whose work was drawn are used over and over with other lots for the rest.
    again = np.tile(steps / np.median(steps, axis=1, keepdims=True), (1, max(4000 // per, 1)))
    again = again * np.exp(_correlated(again.shape, float(series.same), of.correlation, lots))
    paused = lots.random(again.shape) < float(series.stalled)
    length = of.stall_least * (1.0 - lots.random(again.shape)) ** (-1.0 / of.stall_index)
    again = again + np.where(paused, np.minimum(length, LONGEST), 0.0)
    ratio = again / np.median(again, axis=1, keepdims=True)
    return Lots(float(shift), float(error), tuple(float(v) for v in np.quantile(ratio, LEVELS)))


def _correlated(
    shape: tuple[int, int], spread: float, correlation: float, lots: np.random.Generator
) -> Array:
    """AR(1) series along the last axis."""
    fresh = lots.standard_normal(shape)
    found = np.empty(shape)
    found[:, 0] = fresh[:, 0]
    left = np.sqrt(1.0 - correlation**2)
    for at in range(1, shape[1]):
        found[:, at] = correlation * found[:, at - 1] + left * fresh[:, at]
    return np.asarray(spread * found)

"""A job of which the times of micro-batches are known, and how they scatter: its steps.

Pipelines of micro-batches drawn from those known are played in the order of 1F1B, many at once; a
pipeline's time has a mean, a spread and a skewness, and replicas wait for the longest of such: a
shifted gamma of the same three moments (`order.pearson`), whose maximum needs no drawing.
"""

from __future__ import annotations

import numpy as np

from predictor.arrays import Array, Numeric
from predictor.errors import InputError
from predictor.plans import SCHEDULES
from predictor.records import dataclass
from predictor.variation.order import maximum, pearson

DRAWS = 4000
"""Pipelines that are played."""


def makespans(forward: Array, backward: Array) -> Array:
    """Time of pipelines in the order of 1F1B [s], (pipelines,).

    forward, backward   (pipelines, micro-batches, stages) [s]
    """
    count, m, p = forward.shape
    done: dict[tuple[str, int, int], Array] = {}
    free = [np.zeros(count) for _ in range(p)]
    orders = [
        [work for block in SCHEDULES["1f1b"].order(stage, p, 1, m) for work in block]
        for stage in range(p)
    ]
    left = [0] * p
    while any(left[stage] < len(orders[stage]) for stage in range(p)):
        for stage in range(p):
            while left[stage] < len(orders[stage]):
                direction, batch, _ = orders[stage][left[stage]]
                ahead = direction == "forward"
                place = stage - 1 if ahead else stage + 1
                before = (direction, batch, place)
                if not ahead and stage == p - 1:
                    before = ("forward", batch, stage)
                start = free[stage]
                if 0 <= before[2] < p:
                    if before not in done:
                        break
                    start = np.maximum(start, done[before])
                length = (forward if ahead else backward)[:, batch, stage]
                free[stage] = done[(direction, batch, stage)] = start + length
                left[stage] += 1
    return np.asarray(np.max(free, axis=0))


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """Steps of a job: replicas of a pipeline whose time is a shifted gamma.

    mean, spread   of one pipeline [s]; skew its skewness
    replicas       that wait for each other
    tail           what comes after the pipelines [s]
    """

    mean: float
    spread: float
    skew: float
    replicas: int
    tail: float = 0.0

    @classmethod
    def of(
        cls,
        forward: Array,
        backward: Array,
        batches: int,
        replicas: int,
        tail: float = 0.0,
        seed: int = 0,
    ) -> Job:
        """The job of micro-batches like those known.

        forward, backward   passes of known micro-batches, (samples, stages) [s]
        batches             of a pipeline and step

        Raises InputError where passes and micro-batches do not fit together.
        """
        if forward.shape != backward.shape or forward.ndim != 2 or not len(forward):
            raise InputError("a job needs a forward and a backward pass of every micro-batch")
        lots = np.random.default_rng(seed)
        chosen = lots.integers(len(forward), size=(DRAWS, batches))
        times = makespans(forward[chosen], backward[chosen])
        centred = times - times.mean()
        spread = float(times.std())
        skew = float((centred**3).mean()) / max(spread, 1e-300) ** 3
        return cls(float(times.mean()), spread, skew, replicas, tail)

    def step(self) -> tuple[float, float]:
        """Mean and standard deviation of a step [s]."""
        mean, around = maximum(lambda tail: pearson(tail, self.skew), float(self.replicas))
        return self.mean + self.spread * float(mean) + self.tail, self.spread * float(around)

    def quantile(self, p: Numeric) -> Array:
        """Step that is not exceeded with probability p [s]: one pipeline's at p^(1/replicas)."""
        tail = -np.expm1(np.log(np.asarray(p, float)) / self.replicas)
        return np.asarray(self.mean + self.tail + self.spread * pearson(tail, self.skew))

"""By what plans are ranked on machines that vary: the P95 of a step over the step itself, of many
plans of a pool at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from predictor.arrays import Array, Index, filled
from predictor.plans import TrainingPlan
from predictor.records import dataclass
from predictor.training import Parts, Step, Worklist, meets, slowest_pass, units, vary_meeting
from predictor.variation import LEVELS, Meeting, Profile

P95 = LEVELS[1]


@dataclass(frozen=True, slots=True, eq=False)
class Arithmetic:
    """Time of one execution of all operators of a module [s], by module: of those bound by
    arithmetic, and of all; of distinct layers, (layers,) each."""

    bound: Mapping[str, Array]
    every: Mapping[str, Array]

    @classmethod
    def of(cls, listed: Worklist) -> Arithmetic:
        """Of a list of operators that has been timed."""
        timing, shape = listed.timing, listed.timing.time.shape[1:]
        bound: dict[str, Array] = {}
        every: dict[str, Array] = {}
        for at, operator in enumerate(listed.operators):
            spent = filled(operator.count * timing.time[at], shape)
            slow = spent * (np.asarray(timing.bound[at]) == 0)
            every[operator.module] = every.get(operator.module, 0.0) + spent
            bound[operator.module] = bound.get(operator.module, 0.0) + slow
        return cls(bound, every)

    def share(self, times: Mapping[str, Array], index: Index) -> Array:
        """Share of the kernels' time that is bound by arithmetic, (plans,).

        times   that each module is executed, (plans,)
        index   which of the layers each plan has
        """
        bound, every = (
            sum((times[name] * own[index] for name, own in found.items()), np.zeros(len(index)))
            for found in (self.bound, self.every)
        )
        return np.asarray(bound / np.maximum(every, 1e-300))


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """Plans of one set of categories, which of its distinct layers each has, and their kernels."""

    plan: TrainingPlan
    index: Index
    kernels: Arithmetic


def over_step(found: Parts, step: Step, pieces: Sequence[Piece], machines: Profile) -> Array:
    """P95 of a step over the step, (plans,) of all pieces one after the other.

    found, step   parts and steps of the plans of all pieces
    """
    stage, times = slowest_pass(step.passes), units(found, step)
    ends = np.cumsum([len(piece.index) for piece in pieces])
    meetings, shares = [], []
    for piece, end in zip(pieces, ends, strict=True):
        own = slice(end - len(piece.index), end)
        meetings.append(meets(piece.plan, stage[own], machines.memory_s))
        shares.append(piece.kernels.share({name: t[own] for name, t in times.items()}, piece.index))
    sizes = [len(piece.index) for piece in pieces]
    columns = (
        [filled(getattr(one, name), (size,)) for one, size in zip(meetings, sizes, strict=True)]
        for name in Meeting.__dataclass_fields__
    )
    meeting = Meeting(*(np.concatenate(column) for column in columns))
    varied = vary_meeting(meeting, step.step_time, step.breakdown, np.concatenate(shares), machines)
    return np.asarray(varied.quantile(P95) / step.step_time)

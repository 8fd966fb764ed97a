"""Work at every clock that a device has: how long it takes and what it draws.

Where a device waits for others anyway, a slower clock takes the energy of `worth`: what is drawn
beyond waiting, over the longer time (Chung et al. 2024, Perseus, section 3.2).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from predictor.arrays import Array, Index, Numeric
from predictor.power.clock import LOWEST
from predictor.power.constants import PowerConstants
from predictor.power.demand import Activity, demand, operating
from predictor.records import dataclass

CLOCKS = np.linspace(1.0, LOWEST, 15)
"""Over the highest, at which work is looked at; between them it may spend a part of its time at
the one, the rest at the other."""


@dataclass(frozen=True, slots=True, eq=False)
class Pace:
    """Parts of a pass at clocks, (clocks, parts).

    longer   time over that at the reference clock
    power    [W]
    """

    longer: Array
    power: Array


def pace(
    work: Sequence[Activity],
    constants: PowerConstants,
    limit: Numeric,
    temperature: float,
    clocks: Array = CLOCKS,
) -> Pace:
    """How parts of a pass run at clocks that they do not exceed.

    work    of each part, at the reference clock, plain numbers
    limit   of power, which may hold a part below its clock [W]
    """
    states = [
        operating(demand(one, constants), constants, limit, clocks, temperature) for one in work
    ]
    shape = clocks.shape
    return Pace(
        np.stack([np.broadcast_to(one.slower, shape) for one in states], axis=-1),
        np.stack([np.broadcast_to(one.power, shape) for one in states], axis=-1),
    )


def worth(own: Pace, time: Array, waiting: float) -> tuple[Array, Array]:
    """Time [s] and energy beyond waiting [J] of a pass at every clock, (clocks,) each.

    time      of its parts at the reference clock [s], (parts,)
    waiting   power of a device that waits [W]
    """
    spent = own.longer * time
    return np.sum(spent, axis=-1), np.sum(spent * (own.power - waiting), axis=-1)


def sensible(time: Array, energy: Array) -> Index:
    """Clocks worth choosing: the lower convex hull of energy over time, from the quickest to the
    one of the least energy. Clocks between whose times no other lies are mixed along it."""
    order = np.lexsort((energy, time))
    kept: list[int] = []
    for at in order:
        if kept and energy[at] >= energy[kept[-1]]:
            continue
        while len(kept) > 1:
            first, last = kept[-2], kept[-1]
            slope = (energy[last] - energy[first]) / (time[last] - time[first])
            if energy[at] - energy[last] >= slope * (time[at] - time[last]):
                break
            kept.pop()
        kept.append(int(at))
    return np.array(kept, dtype=np.intp)

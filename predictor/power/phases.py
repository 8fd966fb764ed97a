"""Power over time: phases of a step or of serving, their mean, and peaks as sensors see them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from predictor.arrays import Array
from predictor.records import dataclass

INSTANT, AVERAGED = 0.1, 1.0
"""Windows of a sensor [s]: instantaneous readings; the average that NVML gives from Ampere on (but
for GA100)."""


@dataclass(frozen=True, slots=True, eq=False)
class Phase:
    """A stretch of time at one power: its name, how long it lasts in all [s], in how many pieces,
    and what it draws [W]; arrays of the plans' shape."""

    name: str
    time: Array
    power: Array
    pieces: Array


def mean_power(phases: list[Phase]) -> Array:
    """Energy over time [W]."""
    time = sum((phase.time for phase in phases), np.zeros(()))
    return np.asarray(energy(phases) / np.maximum(time, 1e-15))


def energy(phases: list[Phase]) -> Array:
    """Of all phases [J]."""
    return np.asarray(sum((phase.time * phase.power for phase in phases), np.zeros(())))


def peak_power(
    phases: list[Phase], window: float, rest: str | None = None, bursts: Sequence[Phase] = ()
) -> Array:
    """Highest average over a window [W]: the window centred on the phase, what is left of it at
    the mean of what is around. A phase that lasts shorter than the window is seen thinned.

    window   of the sensor [s]
    rest     phase between the pieces of which all others follow each other: those are what is
             around, as far as they last; None: all phases are
    bursts   that are parts of phases, seldom, and peaks
    """
    around = np.asarray(mean_power(phases))
    if rest is not None:
        around = np.maximum(around, _between(phases, window, rest))
    best, least = around, 1.0 if rest is None else 1e-9
    for phase in (*phases, *bursts):
        lasts = phase.time / np.maximum(phase.pieces, least)
        share = np.clip(lasts / window, 0.0, 1.0)
        best = np.maximum(best, share * phase.power + (1.0 - share) * around)
    return np.asarray(best)


def _between(phases: list[Phase], window: float, rest: str) -> Array:
    """Mean power of a window that begins where a piece of `rest` ends [W]."""
    average = mean_power(phases)
    busy = [phase for phase in phases if phase.name != rest]
    (idle,) = (phase for phase in phases if phase.name == rest)
    time = sum((phase.time for phase in busy), np.zeros(()))
    share = np.clip(time / np.maximum(idle.pieces, 1e-9) / window, 0.0, 1.0)
    return np.asarray(share * mean_power(busy) + (1.0 - share) * average)

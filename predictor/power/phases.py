"""Power over time: phases of a step or of serving, their mean, and peaks as sensors see them."""

from __future__ import annotations

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


def peak_power(phases: list[Phase], window: float) -> Array:
    """Highest average over a window [W]: the window centred on the phase, what is left of it at
    the mean of the rest. A phase that lasts shorter than the window is seen thinned.

    window   of the sensor [s]
    """
    average = mean_power(phases)
    best: Array = np.asarray(average)
    for phase in phases:
        lasts = phase.time / np.maximum(phase.pieces, 1.0)
        share = np.clip(lasts / window, 0.0, 1.0)
        best = np.maximum(best, share * phase.power + (1.0 - share) * average)
    return np.asarray(best)

"""Clock and voltage: what a lower clock saves, what it costs, and where a power limit settles.

All clocks are shares of the one at which the work was timed. Shapes broadcast; everything is
elementwise over plans.
"""

from __future__ import annotations

import numpy as np

from predictor.arrays import Array, Numeric
from predictor.records import dataclass

TRIES = 7
"""Of the search for the clock of a limit; each at least halves what it misses by, most do better
(regula falsi, Illinois)."""

CLOSE = 1e-9
"""Share of a limit by which a power may exceed it and count as below."""

LOWEST = 0.3
"""Share of the clock below which no limit brings a device: an A40 under a limit of 100 W draws 108
and is 2.7 times as slow as at 300 (Zeus, You et al. 2023)."""


@dataclass(frozen=True, slots=True, eq=False)
class VoltageCurve:
    """Voltage over clock.

    slope   relative voltage lost per relative clock lost, above the knee
    floor   relative voltage that is never gone below
    """

    slope: Numeric = 0.6
    floor: Numeric = 0.85


def switching(clock: Numeric, curve: VoltageCurve) -> Array:
    """Energy of a switching event over that at the reference clock: (V / V0)², with V / V0 =
    max(floor, 1 - slope (1 - clock)); voltage is flat below its knee.

    clock   share of the reference, above 0
    """
    volts = np.maximum(curve.floor, 1.0 - curve.slope * (1.0 - np.asarray(clock, float)))
    return np.asarray(volts**2)


def stretch(clock: Numeric, core: Numeric) -> Array:
    """Time over that at the reference clock, of work of which a share `core` follows the clock of
    the processors: 1 - core + core / clock (Rountree et al. 2009; Guerreiro et al. 2018)."""
    return np.asarray(1.0 - np.asarray(core) + np.asarray(core) / np.asarray(clock, float))


def power_at(
    clock: Numeric,
    fixed: Numeric,
    core_power: Numeric,
    other: Numeric,
    core: Numeric,
    curve: VoltageCurve,
) -> Array:
    """Power of work at a clock [W].

    fixed        what does not depend on the clock [W]
    core_power   of the processors at the reference clock [W]
    other        of memory and links at the reference clock [W], which fall as the work slows
    core         share of the time that follows the clock

    Energy per event falls with the voltage, and there are fewer of them each second as the clock
    falls (clock trees, work bound by the processors) or as the work slows (the rest).
    """
    slower = stretch(clock, core)
    events = np.asarray(core) / slower + (1.0 - np.asarray(core)) * np.asarray(clock, float)
    return np.asarray(
        np.asarray(fixed)
        + np.asarray(core_power) * switching(clock, curve) * events
        + np.asarray(other) / slower
    )


def settled(
    limit: Numeric,
    fixed: Numeric,
    core_power: Numeric,
    other: Numeric,
    core: Numeric,
    curve: VoltageCurve,
) -> Array:
    """Clock at which the power of work meets a limit, 1 where it is below anyway; arguments as of
    `power_at`. Power rises with the clock, so that there is one; below `LOWEST` it stays."""
    cap = np.asarray(limit, float)
    whole = power_at(1.0, fixed, core_power, other, core, curve)
    shape = np.broadcast_shapes(whole.shape, cap.shape)
    over = np.broadcast_to(whole > cap * (1.0 + CLOSE), shape)
    found = np.ones(shape)
    if np.any(over):
        given = (cap, whole, fixed, core_power, other, core, curve.slope, curve.floor)
        chosen = [np.broadcast_to(one, shape)[over] for one in given]
        found[over] = _sought(*chosen)
    return found


def _sought(
    cap: Array,
    whole: Array,
    fixed: Array,
    core_power: Array,
    other: Array,
    core: Array,
    slope: Array,
    floor: Array,
) -> Array:
    """Clocks of work that exceeds its limit, (N,) each."""
    parts = (fixed, core_power, other, core, VoltageCurve(slope, floor))
    low, high = np.full(cap.shape, LOWEST), np.ones(cap.shape)
    under, above = power_at(LOWEST, *parts) - cap, whole - cap
    last = np.zeros(cap.shape)
    for _ in range(TRIES):
        width = np.where(above > under, above - under, 1.0)
        middle = np.clip(low - under * (high - low) / width, low, high)
        miss = power_at(middle, *parts) - cap
        upper = miss > 0
        # An end that stays twice counts half (Illinois), so that both move.
        under = np.where(upper, np.where(last > 0, 0.5 * under, under), miss)
        above = np.where(upper, miss, np.where(last < 0, 0.5 * above, above))
        low, high = np.where(upper, low, middle), np.where(upper, middle, high)
        last = np.where(upper, 1.0, -1.0)
    return np.where(under > 0, LOWEST, low)

"""Clock and voltage: what a lower clock saves, what it costs, and where a power limit settles.

All clocks are shares of the one at which the work was timed. Shapes broadcast; everything is
elementwise over plans.
"""

from __future__ import annotations

import numpy as np

from predictor.arrays import Array, Mask, Numeric
from predictor.records import dataclass

TRIES = 5
"""Newton steps from the highest clock to that of a limit: the power that they leave is within 2e-6
of it (four hundred thousand drawn limits and curves; 1e-5 at their knees; one step fewer leaves
2e-3 of some)."""

BLOCK = 1 << 13
"""Of clocks that are sought together: their terms stay in the processor's cache."""

CLOSE = 1e-9
"""Share of a limit by which a power may exceed it and count as below."""

LOWEST = 0.25
"""Share of the clock below which no limit brings a device, which then leaves clocks out: an A40
under a limit of 100 W draws 108 and is 2.7 to 3.3 times as slow as at 300 (Zeus, You et al.
2023)."""


@dataclass(frozen=True, slots=True, eq=False)
class VoltageCurve:
    """Voltage over clock.

    slope   relative voltage lost per relative clock lost, above the knee
    floor   relative voltage that is never gone below
    """

    slope: Numeric
    floor: Numeric


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
    whole = np.asarray(np.asarray(fixed) + core_power + other)
    shape = np.broadcast_shapes(whole.shape, cap.shape)
    over = np.broadcast_to(whole > cap * (1.0 + CLOSE), shape)
    found = np.ones(shape)
    if np.any(over):
        given = (cap - fixed, core_power, other, core, curve.slope, curve.floor)
        parts = [_chosen(one, shape, over) for one in given]
        clocks = np.ones(int(over.sum()))
        for start in range(0, len(clocks), BLOCK):
            block = slice(start, start + BLOCK)
            clocks[block] = _sought(*(one[block] if one.ndim else one for one in parts))
        found[over] = clocks
    return found


def _chosen(values: Numeric, shape: tuple[int, ...], where: Mask) -> Array:
    """Some of the values of a broadcast shape; one value stays one."""
    array = np.asarray(values, float)
    return np.broadcast_to(array, shape)[where] if array.ndim else array


def _sought(
    room: Array,
    core_power: Array,
    other: Array,
    core: Array,
    slope: Array,
    floor: Array,
) -> Array:
    """Clocks of work that exceeds its limit, (N,) each or one for all: `power_at` less the limit,
    and its slope, from the same few terms.

    room   of the limit above what does not depend on the clock [W]
    """
    rest, still = 1.0 - core, 1.0 - slope
    clock = np.ones(())
    for _ in range(TRIES):
        steady = rest * clock
        slowed = 1.0 / (steady + core)
        rate = clock * slowed  # 1 / stretch
        events, turn = core * rate + steady, core * slowed * slowed
        volts = still + slope * clock
        flat = volts < floor
        volts = np.where(flat, floor, volts)
        above = core_power * volts * volts * events + other * rate - room
        bend = volts * (core * turn + rest) + np.where(flat, 0.0, 2.0 * slope * events)
        steep = core_power * volts * bend + other * turn
        clock = np.clip(clock - above / np.maximum(steep, 1e-12), LOWEST, 1.0)
    return clock

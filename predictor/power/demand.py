"""What work draws before anything limits it: from its arithmetic and its traffic.

P = awake(T) + busy x occupancy x (1 - halted) + waiting x spinning + padding x padded
+ (e_flop F + e_byte B + e_widen W + e_link N) / t: the
constant + static + dynamic form of Kandiah et al. 2021 (AccelWattch) and Guerreiro et al. 2018.
"""

from __future__ import annotations

import numpy as np

from predictor.arrays import Array, Numeric
from predictor.power.clock import LOWEST, power_at, settled, stretch
from predictor.power.constants import PowerConstants
from predictor.records import dataclass

LEFT = 0.05
"""Share of a limit that is left to work at least, whatever leaks."""


@dataclass(frozen=True, slots=True, eq=False)
class Activity:
    """What one accelerator does for a time; arrays of one broadcast shape.

    time      at the clock at which work was timed [s]
    flop      in 16-bit equivalents (`relative_energy`)
    bytes     to and from memory
    link      bytes sent on links
    widened   bytes of 16-bit weights that processors make of narrower ones before each product
    rows      of its products and kernels, which fill the processors
    thin      share of the FLOPs in products of a row for each sequence only, 0..1
    spinning  share of the time in which it waits for others in a kernel, 0..1
    padded    share of the time in which its products are tiles of little but padding, 0..1
    core      share of the time that follows the processors' clock, 0..1
    halted    share of the time in which no kernel runs: the host is at work, 0..1
    """

    time: Numeric
    flop: Numeric = 0.0
    bytes: Numeric = 0.0
    link: Numeric = 0.0
    widened: Numeric = 0.0
    rows: Numeric = 0.0
    thin: Numeric = 0.0
    spinning: Numeric = 0.0
    padded: Numeric = 0.0
    core: Numeric = 0.0
    halted: Numeric = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Drawn:
    """Parts of a power at the reference clock [W], and the share of time that follows the clock.

    fixed   leaks, or does not switch
    core    processors and their clock trees
    other   memory and links
    """

    fixed: Array
    core: Array
    other: Array
    share: Array

    @property
    def whole(self) -> Array:
        """All of it [W]."""
        return np.asarray(self.fixed + self.core + self.other)


@dataclass(frozen=True, slots=True, eq=False)
class Timed(Drawn):
    """The same of work as it was timed: nothing exceeds the board's own limit (`as_timed`)."""


@dataclass(frozen=True, slots=True, eq=False)
class Operating:
    """Work as it settles: clock over the reference, time over that at the reference, power [W], and
    what of it memory and links draw [W]."""

    clock: Array
    slower: Array
    power: Array
    beside: Array


def leaking(constants: PowerConstants, temperature: Numeric) -> Array:
    """Power that leaks at a temperature [°C] over that at the reference: exponential (Su et al.
    2003, linearised range)."""
    above = np.asarray(temperature, float) - constants.reference
    return np.asarray(np.exp(constants.leakage * above))


def occupancy(rows: Numeric, constants: PowerConstants) -> Array:
    """Share of the processors' threads that so many rows fill, 0..1."""
    return np.asarray(1.0 / (1.0 + constants.rows / np.maximum(rows, 1e-9)))


def demand(activity: Activity, constants: PowerConstants) -> Drawn:
    """Power that work draws at the reference clock and temperature, by part [W]."""
    time = np.maximum(activity.time, 1e-15)
    full = occupancy(activity.rows, constants) * (1.0 - np.asarray(activity.halted))
    standing = constants.awake + constants.busy * full
    clocked = standing * (1.0 - np.asarray(constants.leaking))
    each = constants.flop * (1.0 + (constants.thin - 1.0) * np.asarray(activity.thin))
    core = (
        clocked
        + constants.waiting * np.asarray(activity.spinning)
        + constants.padding * np.asarray(activity.padded)
        + (each * np.asarray(activity.flop) + constants.widen * activity.widened) / time
    )
    other = (constants.byte * activity.bytes + constants.link * activity.link) / time
    fixed = standing * np.asarray(constants.leaking)
    parts = np.broadcast_arrays(fixed, core, other, np.asarray(activity.core, float))
    return Drawn(*(np.asarray(part) for part in parts))


def as_timed(drawn: Drawn, constants: PowerConstants) -> Timed:
    """Work was timed under the board's own limit: what exceeds that by the constants is held to it
    at the reference clock."""
    if isinstance(drawn, Timed):
        return drawn
    room = np.maximum(constants.tracking * constants.limit - drawn.fixed, 0.0)
    scale = np.minimum(room / np.maximum(drawn.core + drawn.other, 1e-9), 1.0)
    return Timed(drawn.fixed, drawn.core * scale, drawn.other * scale, drawn.share)


def operating(
    drawn: Drawn,
    constants: PowerConstants,
    limit: Numeric,
    clock: Numeric = 1.0,
    temperature: Numeric | None = None,
    stated: Numeric | None = None,
) -> Operating:
    """How work settles under a limit [W], a clock that is not exceeded (share), and heat [°C].

    drawn    at the reference temperature
    stated   what of the limit holds at the lowest clock, too, for which clocks are left out [W]:
             heat does not; None: all of it

    A lower limit than the board's, or leakage above the reference, starts from the work `as_timed`.
    """
    own = np.asarray(constants.tracking * constants.limit)
    drawn = as_timed(drawn, constants)
    fixed, core, other = drawn.fixed, drawn.core, drawn.other
    if temperature is not None:
        fixed = fixed * leaking(constants, temperature)
    bound = np.minimum(np.asarray(limit) * constants.tracking, own)
    found = settled(bound, fixed, core, other, drawn.share, constants.curve)
    if np.ndim(clock) == 0 and float(clock) >= 1.0:
        # Where a limit holds it, it draws the limit, but at the lowest clock.
        power = np.broadcast_to(np.minimum(fixed + core + other, bound), found.shape)
        lowest = found <= LOWEST
        if np.any(lowest):
            least = power_at(LOWEST, fixed, core, other, drawn.share, constants.curve)
            power = np.where(lowest, least, power)
        whole = bool(np.all(found >= 1.0))
        slower = found if whole else stretch(found, drawn.share)
    else:
        found = np.minimum(found, clock)
        power = power_at(found, fixed, core, other, drawn.share, constants.curve)
        power = np.maximum(power, constants.off)  # whatever its clock, it is not off
        slower = stretch(found, drawn.share)
        whole = False
    if stated is not None:
        bound = np.minimum(np.asarray(stated) * constants.tracking, own)
    over = power > bound
    if np.any(over):
        # The same events in a longer time.
        room = np.maximum(bound - fixed, LEFT * bound)
        slower = np.where(over, slower * np.maximum((power - fixed) / room, 1.0), slower)
        power = np.where(over, np.minimum(power, fixed + room), power)
        whole = False
    return Operating(found, slower, power, other if whole else other / slower)

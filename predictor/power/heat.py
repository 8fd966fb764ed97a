"""Heat: the temperature of each accelerator of a node, and what it does to power and clock.

C dT/dt = P - (T - T_air) / R for each; air passes the positions in the order of the chassis and
each warms it by P / (rho c q). Shapes: positions lead, plans follow.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from predictor.arrays import Array, Mask, Numeric
from predictor.power.constants import PowerConstants
from predictor.power.demand import Drawn, Operating, as_timed, operating
from predictor.records import dataclass

AIR = 1160.0
"""Heat that a cubic metre of air takes per kelvin [J/(m³ K)], at 35 °C."""

ROUNDS, MOST = 2, 10
"""Of the fixed point between temperature, leakage, power and clock, which contracts by R dP/dT <
0.05 each round, from the temperature of what is demanded up to the limit; and where a chip has to
be held below its slowdown temperature."""

NEAR = 1e-3
"""Share by which the power that the cooling carries away changes between rounds that agree."""

DEGREES = 0.1
"""By which the temperature changes between them [K]: what leaks, by 0.2 %."""

COOLINGS = ("air", "liquid", "immersion")


@dataclass(frozen=True, slots=True, eq=False)
class Chassis:
    """How a node is cooled.

    cooling   of `COOLINGS`
    inlet     of the air or the coolant [°C]
    rows      accelerators that the same air passes one after the other (1: side by side)
    flow      of air past one accelerator [m³/s]
    coupling  from one die of a package to the other [W/K]
    dies      of an accelerator that stand in the air of another one of their package, or are that
              other; 0: none
    """

    cooling: str
    inlet: Numeric
    rows: int
    flow: float
    coupling: float = 0.0
    dies: int = 0


def ambient(power: Array, chassis: Chassis) -> Array:
    """Temperature of what cools each position [°C]: the inlet and all that stands before it.

    power   of each position of a row, front first, (rows, *plans) [W]
    """
    inlet = np.asarray(chassis.inlet, float)
    if chassis.cooling != "air":
        return np.asarray(inlet + np.zeros_like(power))
    before = np.concatenate([np.zeros_like(power[:1]), np.cumsum(power, axis=0)[:-1]])
    return np.asarray(inlet + before / (AIR * chassis.flow))


def die_gap(difference: Numeric, resistance: Numeric, coupling: Numeric) -> Array:
    """Difference in temperature of two coupled dies [K] whose coolants or powers differ: that of
    each alone, reduced by what flows between them: D / (1 + 2 G R).

    difference   of both alone [K]
    coupling     between them [W/K]
    """
    return np.asarray(np.asarray(difference) / (1.0 + 2.0 * np.asarray(coupling) * resistance))


def package_gap(power: Array, resistance: Numeric, chassis: Chassis) -> Array:
    """Rear die of a package over its front one [K]: the air that reaches it has passed the other.

    power   of accelerators [W], of `Chassis.dies` dies of a package of two
    """
    if not chassis.dies or chassis.cooling != "air":
        return np.zeros_like(power)
    each = np.asarray(power) / chassis.dies
    warmed = each / (AIR * chassis.flow * 2.0 / chassis.dies)
    return die_gap(warmed, np.asarray(resistance) * chassis.dies, chassis.coupling)


@dataclass(frozen=True, slots=True, eq=False)
class Settled:
    """Positions of a node at rest; arrays (rows, *plans).

    temperature   [°C], mean of a package's dies; `gap` [K] between them
    states        how each phase of the work settles
    mean          power [W]
    longer        time of all phases over that at the reference clock
    throttled     whether heat, not the power limit, holds the clock
    """

    temperature: Array
    states: list[Operating]
    mean: Array
    longer: Array
    throttled: Mask
    gap: Array


def settle(
    drawn: Sequence[Drawn],
    share: Sequence[Array],
    constants: PowerConstants,
    limit: Numeric,
    chassis: Chassis,
    clock: Numeric = 1.0,
    rest: int | None = None,
    waits: Numeric | None = None,
) -> Settled:
    """Temperature, clock and power of every position, as a fixed point.

    drawn   demand of each phase of the work, at the reference temperature
    share   of the time that each takes at the reference clock
    waits   power of positions that wait for the slowest [W]; None: none waits

    Phases follow each other faster than chips warm up: the temperature is that of the mean power.
    Beyond the slowdown temperature power is limited to what the cooling carries away there.
    """
    resistance = constants.resistance[chassis.cooling]
    limits: Array = np.asarray(limit, float)
    warm: Array = _expected(drawn, share, constants, limits, chassis)
    timed = [as_timed(one, constants) for one in drawn]
    every = (max(chassis.rows, 1), *(1,) * (warm.ndim - 1))
    throttled: Mask = np.zeros((), dtype=bool)
    moving: Mask = np.ones((1,) * warm.ndim, dtype=bool)
    for turn in range(MOST):
        states = [operating(one, constants, limits, clock, warm, limit) for one in timed]
        times = _lasting(share, states, rest)
        mean, memory = _drawn(times, states, waits, rest)
        mean = np.broadcast_to(mean, np.broadcast_shapes(mean.shape, every, warm.shape))
        warming = mean - (1.0 - constants.beside) * memory
        around = ambient(mean, chassis)
        temperature = around + resistance * warming
        gap = package_gap(mean, resistance, chassis)
        throttled = throttled | (temperature + 0.5 * gap > constants.slowdown + 0.05)
        now = np.minimum(temperature, constants.slowdown)
        if not np.any(throttled):
            if turn + 1 >= ROUNDS:
                break
            warm = now
            continue
        # None draws less than without a context; what stands before it may cool down meanwhile.
        carried = (constants.slowdown - 0.5 * gap - around) / resistance
        room = np.maximum(carried, constants.off) / warming
        held = np.minimum(_holding(limits, states, constants) * room, limit)
        apart = (np.abs(held / limits - 1.0) > NEAR) | (np.abs(now - warm) > DEGREES)
        # A plan that has settled stays as it is, whatever others of its batch do.
        moving = moving & (turn + 1 < ROUNDS or np.any(throttled & apart, axis=0, keepdims=True))
        if not np.any(moving):
            break
        limits, warm = np.where(moving & throttled, held, limits), np.where(moving, now, warm)
    return Settled(
        temperature=np.asarray(temperature),
        states=states,
        mean=mean,
        longer=np.broadcast_to(sum(times, np.zeros(())), mean.shape),
        throttled=np.asarray(throttled & (limits < limit)),
        gap=np.asarray(gap),
    )


def _lasting(share: Sequence[Array], states: Sequence[Operating], rest: int | None) -> list[Array]:
    """Time of each phase as it settles [s]; arguments as of `settle`."""
    times = [part * one.slower for part, one in zip(share, states, strict=True)]
    if rest is not None:
        after, before = (
            sum((time for at, time in enumerate(each) if at != rest), np.zeros(()))
            for each in (times, share)
        )
        times[rest] = np.asarray(share[rest] * after / np.maximum(before, 1e-15))
    return times


def _drawn(
    times: Sequence[Array], states: Sequence[Operating], waits: Numeric | None, rest: int | None
) -> tuple[Array, Array]:
    """Mean power of all phases, and what of it memory and links draw [W].

    waits   of a position that waits in each phase until the slowest has ended it, but in `rest`,
            which lasts as long for all [W]; None: none waits
    """
    joules, memory, lasts = np.zeros(()), np.zeros(()), np.zeros(())
    for at, (time, one) in enumerate(zip(times, states, strict=True)):
        alike = waits is None or len(time) == 1 or not np.any(time[0] != time[-1])
        whole = time if alike else time.max(axis=0, keepdims=True)
        own = whole if at == rest else time
        joules, memory, lasts = joules + own * one.power, memory + own * one.beside, lasts + whole
        if waits is not None and own is not whole:
            joules = joules + (whole - own) * waits
    lasts = np.maximum(lasts, 1e-15)
    return np.asarray(joules / lasts), np.asarray(memory / lasts)


def _holding(limits: Array, states: Sequence[Operating], constants: PowerConstants) -> Array:
    """Limits as far as they hold anything [W]. Above the most that is drawn one holds nothing, nor
    below the least: at the lowest clock that stays, and what lets a warmer chip go on starts from
    there."""
    powers = np.broadcast_arrays(*(one.power / constants.tracking for one in states))
    return np.asarray(np.clip(limits, np.minimum.reduce(powers), np.maximum.reduce(powers)))


def _expected(
    drawn: Sequence[Drawn],
    share: Sequence[Array],
    constants: PowerConstants,
    limit: Array,
    chassis: Chassis,
) -> Array:
    """Mean temperature of the positions [°C] were work to draw what it demands, up to the limit, in
    its time at the reference clock; (1, *plans)."""
    most = np.minimum(limit, constants.limit)
    joules = [part * np.minimum(one.whole, most) for part, one in zip(share, drawn, strict=True)]
    lasts = sum(share, np.zeros(()))
    mean = np.asarray(sum(joules, np.zeros(())) / np.maximum(lasts, 1e-15))[None]
    middle = 0.5 * (ambient(np.repeat(mean, max(chassis.rows, 1), axis=0), chassis)[[0, -1]])
    found = middle.sum(axis=0, keepdims=True) + constants.resistance[chassis.cooling] * mean
    return np.asarray(np.minimum(found, constants.slowdown))

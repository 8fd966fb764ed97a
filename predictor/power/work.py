"""Phases of work under conditions: how long each takes then, what is drawn, how hot it gets."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from predictor.arrays import Array, Mask, Numeric
from predictor.power.conditions import Conditions
from predictor.power.constants import PowerConstants
from predictor.power.demand import Activity, demand
from predictor.power.heat import Chassis, Settled, settle
from predictor.power.phases import AVERAGED, INSTANT, Phase, energy, mean_power, peak_power
from predictor.records import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class Powered:
    """Work under conditions; arrays of the plans' shape, positions of a node lead where they are.

    work         by phase, at the reference clock
    phases       in their time under the conditions, mean over the positions
    longer       time of each phase under the conditions over that by itself
    each         the same of every position, were it to wait for no other, (rows, *plans)
    held         share of each phase's time in which a limit holds the clock
    temperature  of each position [°C], front first; `gap` of its package's dies [K]
    clock        lowest of each position in any phase, over the highest
    throttled    where heat holds a position's clock
    mean         power of an accelerator [W]; instant and averaged peaks [W]
    energy       of an accelerator [J] over the phases
    waited       share of the time that the slowest position costs
    sigma        log-standard-deviation of the power
    """

    work: Mapping[str, Activity]
    phases: list[Phase]
    longer: dict[str, Array]
    each: dict[str, Array]
    held: dict[str, Array]
    temperature: Array
    clock: Array
    throttled: Mask
    mean: Array
    instant: Array
    averaged: Array
    energy: Array
    waited: Array
    sigma: float
    gap: Array

    @property
    def time(self) -> Array:
        """Of all phases [s]."""
        return np.asarray(sum((one.time for one in self.phases), np.zeros(())))

    @property
    def burst(self) -> Array:
        """Instant peak over mean."""
        return np.asarray(self.instant / np.maximum(self.mean, 1e-9))


def powered(
    work: Mapping[str, Activity],
    pieces: Mapping[str, Array],
    constants: PowerConstants,
    chassis: Chassis,
    conditions: Conditions,
    together: bool = True,
    rest: str | None = None,
) -> Powered:
    """Work of phases under conditions.

    work       by phase, at the reference clock; kernels of a phase that draw unlike power, and so
               meet the limit one by one, apart: under its name, a dot and theirs; pieces in which
               each phase comes, and kernels that are a peak by themselves
    together   whether positions wait for the slowest (a synchronous step)
    rest       phase that keeps its share of the time where the others take longer, and lies between
               them in its pieces; None: it takes as long as by itself
    """
    waits = _waits(constants, conditions)
    state, times = _state(work, constants, chassis, conditions, rest, waits if together else None)
    rows = state.temperature.shape[0]
    parts: dict[str, list[Part]] = {}
    mine: Array = np.zeros(())
    each: dict[str, Array] = {}
    kernels: dict[str, Part] = {}
    for name, time, one in zip(work, times, state.states, strict=True):
        shape = (rows, *np.broadcast_shapes(one.power.shape[1:], time.shape))
        slower, power = (np.broadcast_to(each, shape) for each in (one.slower, one.power))
        slowest = slower.max(axis=0) if together else slower.mean(axis=0)
        if together and np.any(slower != 1.0):
            power = (slower * power + (slowest - slower) * waits) / slowest
        mine = mine + time * slower.min(axis=0)
        phase = name.partition(".")[0]
        each[phase] = each.get(phase, np.zeros(())) + time * slower
        own = parts.setdefault(phase, [])
        own.append((time, np.asarray(slowest), np.asarray(power.mean(axis=0))))
        kernels[name] = own[-1]
    phases, longer, held = _together(_resting(parts, rest), pieces)
    bursts = _together(_bursts(kernels, pieces), pieces)[0]
    before = {name: sum((time for time, _, _ in own), np.zeros(())) for name, own in parts.items()}
    each = {name: np.asarray(t / np.maximum(before[name], 1e-15)) for name, t in each.items()}
    whole = np.asarray(sum((one.time for one in phases), np.zeros(())))
    clocks = [np.broadcast_to(one.clock, state.temperature.shape) for one in state.states]
    return Powered(
        work=work,
        phases=phases,
        longer=longer,
        each=each,
        held=held,
        temperature=state.temperature,
        clock=np.min(clocks, axis=0),
        throttled=np.broadcast_to(state.throttled, state.temperature.shape),
        mean=mean_power(phases),
        instant=peak_power(phases, INSTANT, rest, bursts),
        averaged=peak_power(phases, AVERAGED, rest, bursts),
        energy=energy(phases),
        waited=np.maximum(1.0 - mine / np.maximum(whole, 1e-15), 0.0),
        sigma=float(np.max(np.asarray(constants.sigma))),
        gap=state.gap,
    )


def _limit(constants: PowerConstants, conditions: Conditions) -> Numeric:
    """The limit that is stated, or the board's own [W]."""
    return constants.limit if conditions.limit is None else conditions.limit


def _waits(constants: PowerConstants, conditions: Conditions) -> Array:
    """Power of an accelerator that waits for others in a kernel [W]."""
    return np.minimum(constants.awake + constants.waiting, _limit(constants, conditions))


def _state(
    work: Mapping[str, Activity],
    constants: PowerConstants,
    chassis: Chassis,
    conditions: Conditions,
    rest: str | None = None,
    waits: Numeric | None = None,
) -> tuple[Settled, list[Array]]:
    """How positions settle under conditions, and the time of every part of the work [s]."""
    limit = _limit(constants, conditions)
    most = 1.0 if conditions.clock is None else np.minimum(conditions.clock / constants.clock, 1.0)
    drawn = [demand(one, constants) for one in work.values()]
    times = [np.asarray(one.time, float) for one in work.values()]
    gives = None if rest is None else list(work).index(rest)
    found = settle(
        drawn=drawn,
        share=times,
        constants=constants,
        limit=limit,
        chassis=chassis,
        clock=most,
        rest=gives,
        waits=waits,
    )
    return found, times


def unlimited(
    work: Mapping[str, Activity], constants: PowerConstants, chassis: Chassis
) -> dict[str, Array]:
    """Time of each phase over that by itself where only the board's own limit and heat hold it.

    work      as of `powered`
    chassis   as the machine has it
    """
    return lengthened(work, constants, chassis, Conditions())


def lengthened(
    work: Mapping[str, Activity],
    constants: PowerConstants,
    chassis: Chassis,
    conditions: Conditions,
    rest: str | None = None,
) -> dict[str, Array]:
    """Time of each phase under conditions over that by itself, the slowest position deciding:
    `Powered.longer` of `powered`, and no more, but of `rest`, which is told by itself.

    work, rest   as of `powered`
    """
    waits = _waits(constants, conditions)
    state, times = _state(work, constants, chassis, conditions, rest, waits)
    rows = state.temperature.shape[0]
    before: dict[str, Array] = {}
    after: dict[str, Array] = {}
    for name, time, one in zip(work, times, state.states, strict=True):
        shape = (rows, *np.broadcast_shapes(one.slower.shape[1:], time.shape))
        phase = name.partition(".")[0]
        lasts = time * np.broadcast_to(one.slower, shape).max(axis=0)
        before[phase] = before.get(phase, np.zeros(())) + time
        after[phase] = after.get(phase, np.zeros(())) + lasts
    return {name: np.asarray(after[name] / np.maximum(before[name], 1e-15)) for name in before}


Part = tuple[Array, Array, Array]
"""Kernels of a phase: their time [s], how much longer they take, their power [W]."""


def _resting(parts: Mapping[str, list[Part]], rest: str | None) -> Mapping[str, list[Part]]:
    """The same with a phase that keeps its share of the time, all of one kind of kernels."""
    if rest is None:
        return parts
    others = [one for name, own in parts.items() if name != rest for one in own]
    after = sum((time * slower for time, slower, _ in others), np.zeros(()))
    before = sum((time for time, _, _ in others), np.zeros(()))
    ((time, _, power),) = parts[rest]
    return {**parts, rest: [(time, np.asarray(after / np.maximum(before, 1e-15)), power)]}


def _bursts(kernels: Mapping[str, Part], pieces: Mapping[str, Array]) -> dict[str, list[Part]]:
    """Kernels that are a peak by themselves: of all, those with pieces of their own."""
    return {
        peak: [own for name, own in kernels.items() if f"{name}.".startswith(f"{peak}.")]
        for peak in pieces
        if "." in peak
    }


def _together(
    parts: Mapping[str, list[Part]], pieces: Mapping[str, Array]
) -> tuple[list[Phase], dict[str, Array], dict[str, Array]]:
    """Phases from their kernels, how much longer each takes, and what share of it is held."""
    phases, longer, held = [], {}, {}
    for name, own in parts.items():
        before, after, joules, limited = (
            np.asarray(sum(values, np.zeros(())))
            for values in zip(*(_sums(*one) for one in own), strict=True)
        )
        longer[name] = after / np.maximum(before, 1e-15)
        held[name] = limited / np.maximum(after, 1e-15)
        power = joules / np.maximum(after, 1e-15)
        phases.append(Phase(name, after, power, np.asarray(pieces[name])))
    return phases, longer, held


HELD = 1e-6
"""A kernel that takes longer than by itself by more than this is held by a limit."""


def _sums(time: Array, slower: Array, power: Array) -> tuple[Array, Array, Array, Array]:
    """What kernels add to their phase: time before and under the conditions [s], energy [J], and
    time in which a limit holds them [s]."""
    after = time * slower
    return time, after, after * power, np.where(slower > 1.0 + HELD, after, 0.0)

"""The least energy, or money, of a search for fleets: its best engines under limits of power,
within the promise.

A lower limit slows passes over prompts and passes that decode, each as far as processors bound it:
an engine carries less within the promise, and a fleet may need more of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from predictor.arrays import Array, Numeric, kind, stack
from predictor.catalog import power_constants, power_laws
from predictor.errors import InputError
from predictor.hardware import Cluster
from predictor.models import Model
from predictor.power import KWH, Conditions, Tariff
from predictor.records import dataclass
from predictor.search import EngineOffer
from predictor.serving import (
    Capacity,
    LoadPower,
    Promise,
    apart_loads,
    capacity,
    slower_engines,
)
from predictor.timing import Calibration
from reckon.verbs.loads import Load
from reckon.verbs.powering import Machines

SAME = 1e-6
"""Energies that differ by less than this share are one."""


def powered_engines(
    model: Model,
    engines: Sequence[EngineOffer],
    promise: Promise,
    calibration: Calibration,
    limits: Sequence[float | None] = (None,),
) -> list[EngineOffer]:
    """Engines under limits of power, with what they draw: those that keep the promise under them.

    Raises InputError where the power of an accelerator is not known, and for a limit that none of
    the accelerators takes.
    """
    groups: dict[Any, list[EngineOffer]] = {}
    for engine in engines:
        alike = (id(engine.cluster), engine.apart, kind(engine.plan))
        groups.setdefault(alike, []).append(engine)
    found: list[EngineOffer] = []
    refused: dict[float, InputError] = {}
    held: set[float] = set()
    for own in groups.values():
        cluster, plans = own[0].cluster, stack([engine.plan for engine in own])
        carried: Carried = partial(capacity, model, cluster, plans, calibration)
        if own[0].apart:
            carried = apart_loads(model, cluster, plans, calibration).capacity
        for given in _conditions(limits, own[0].apart, cluster):
            stated = (_watts(given.limit), _watts(given.reading))
            named = [one for one in stated if one is not None and one in limits]
            try:
                found += _under(own, carried(promise, given), promise, given)
            except InputError as error:
                if not given.slows:
                    raise
                refused.update(dict.fromkeys(named, error))
            else:
                held.update(named)
    for limit in refused:
        if limit not in held:
            raise refused[limit]
    return found


Carried = Callable[[Promise, Conditions], Capacity]
"""What engines carry and draw under conditions."""


def _conditions(limits: Sequence[float | None], apart: bool, cluster: Cluster) -> list[Conditions]:
    """Conditions of engines under each limit; where prompts are read apart, accelerators that read
    and those that decode each under each."""
    alike = [Conditions(limit=one) for one in limits]
    if not apart:
        return alike
    board = float(np.mean(np.asarray(power_constants(cluster.readers.accelerator).limit)))
    unlike = [
        Conditions(limit=one, reading=board if other is None else other)
        for one in limits
        for other in limits
        if one != other
    ]
    return [*alike, *unlike]


def _under(
    engines: list[EngineOffer], told: Capacity, promise: Promise, conditions: Conditions
) -> list[EngineOffer]:
    """Engines of one cluster and kind under conditions, by what they carry then."""
    best, kept = told.best(promise), told.kept(promise).any(axis=1)
    drawn = told.drawn
    if drawn is None:
        return []
    if engines[0].apart and not conditions.slows:  # what they carry is known
        return [replace(one, drawn=drawn.take(row)) for row, one in enumerate(engines)]
    return [
        _offer(engine, told, row, int(best[row]), conditions, drawn)
        for row, engine in enumerate(engines)
        if kept[row]
    ]


def _offer(
    engine: EngineOffer,
    told: Capacity,
    row: int,
    best: int,
    conditions: Conditions,
    drawn: LoadPower,
) -> EngineOffer:
    """The engine of a row of capacities, at its best load under limits."""
    return replace(
        engine,
        rate=float(told.rate[row, best]),
        ttft=float(told.ttft[row, best]),
        tpot=float(told.tpot[row, best]),
        running=float(told.running[row, best]),
        used=float(told.used[row, best]),
        curve=(told.rate[row], told.ttft[row], told.tpot[row]),
        limit=_watts(conditions.limit),
        reading=_watts(conditions.reading),
        drawn=drawn.take(row),
    )


def _watts(limit: Numeric | None) -> float | None:
    return None if limit is None else float(limit)


def watts_at(engine: EngineOffer, rates: Array) -> Array | None:
    """Mean power of an accelerator of an engine at rates of requests [W]; None where unknown."""
    if engine.drawn is None:
        return None
    return np.interp(rates, engine.drawn.rate, engine.drawn.power)


@dataclass(frozen=True, slots=True)
class Spent:
    """What a fleet that stays through a load's hours takes.

    power    of an accelerator at the peak [W]
    energy   of all accelerators, of a request [J]
    money    of its energy at the meter, an hour; None without a price
    """

    power: float
    energy: float
    money: float | None


def spent(engine: EngineOffer, count: int, load: Load, price: float | None) -> Spent | None:
    """What `count` engines take for a load, each its share of it; None where unknown.

    price   of a kWh
    """
    watts = watts_at(engine, load.rates / count)
    if watts is None:
        return None
    whole = watts * count * engine.gpus
    hourly = None
    if price is not None:
        hourly = float(np.mean(_site(engine, count, watts))) * 3600.0 / KWH * price
    peak = float(watts[int(np.argmax(load.rates))])
    return Spent(peak, float(np.sum(whole) / np.sum(load.rates)), hourly)


def _site(engine: EngineOffer, count: int, watts: Array) -> Array:
    """Power at the meter of all nodes of so many engines whose accelerators draw so much each on
    average [W]."""
    tariff = Tariff(pue=power_laws()["pue"])
    conditions = Conditions(limit=engine.limit, reading=engine.reading, tariff=tariff)
    cluster, apart = engine.cluster, 0
    if cluster.prefill is not None:
        decoding = float(engine.plan.tp * engine.plan.pp * engine.plan.dp)
        apart = round(engine.gpus - decoding) * count
    found: Array = np.zeros(np.shape(watts))
    decoders = (cluster, round(engine.gpus) * count - apart, conditions)
    for machines, gpus, given in (decoders, (cluster.readers, apart, conditions.of_readers)):
        if gpus:
            found = found + Machines(machines, gpus, watts, given).site
    return found


@dataclass(frozen=True, slots=True, eq=False)
class Point:
    """A point of the front of time and energy: time per token at the promised share [s], energy of
    all accelerators for an output token [J], the engine and its load [requests/s]."""

    tpot: float
    energy: float
    engine: EngineOffer
    rate: float


def energy_front(engines: Sequence[EngineOffer], output_len: float) -> list[Point]:
    """Pareto front of time per token and energy per token over engines, limits and loads, fastest
    first."""
    points = []
    for engine in engines:
        if engine.drawn is None:
            continue
        rate, _, tpot = engine.curve
        watts = np.interp(rate, engine.drawn.rate, engine.drawn.power)
        joules = watts * engine.gpus / np.maximum(rate * output_len, 1e-300)
        for at in np.flatnonzero(np.isfinite(tpot) & (rate > 0)):
            points.append(Point(float(tpot[at]), float(joules[at]), engine, float(rate[at])))
    points.sort(key=lambda one: (one.tpot, one.energy))
    kept: list[Point] = []
    for one in points:
        if not kept or one.energy < kept[-1].energy * (1.0 - SAME):
            kept.append(one)
    return kept


def as_limited(engine: EngineOffer, rate: float, calibration: Calibration) -> Calibration:
    """The calibration with passes as much longer as the engine's limit makes them at a rate: by
    it requests are served one by one."""
    if engine.drawn is None or (engine.limit, engine.reading) == (None, None):
        return calibration
    loads = engine.drawn.rate
    prompts = float(np.interp(rate, loads, engine.drawn.prompts))
    passes = float(np.interp(rate, loads, engine.drawn.passes))
    return slower_engines(calibration, prompts, passes)

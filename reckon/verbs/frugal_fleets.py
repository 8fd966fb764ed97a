"""The least energy, or money, of a search for fleets: its best engines under limits of power,
within the promise.

A lower limit slows passes over prompts and passes that decode, each as far as processors bound it:
an engine carries less within the promise, and a fleet may need more of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from predictor.arrays import Array, kind, stack
from predictor.catalog import power_laws
from predictor.errors import InputError
from predictor.models import Model
from predictor.plans import ServingPlan
from predictor.power import KWH, Conditions, Tariff
from predictor.records import dataclass
from predictor.search import EngineOffer
from predictor.serving import (
    Capacity,
    LoadPower,
    Promise,
    apart_capacity,
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
        plans = stack([engine.plan for engine in own])
        for limit in limits:
            try:
                found += _under(model, own, plans, promise, calibration, limit)
            except InputError as error:
                if limit is None:
                    raise
                refused[limit] = error
            else:
                held.update(() if limit is None else (limit,))
    for limit in refused:
        if limit not in held:
            raise refused[limit]
    return found


def _under(
    model: Model,
    engines: list[EngineOffer],
    plans: ServingPlan,
    promise: Promise,
    calibration: Calibration,
    limit: float | None,
) -> list[EngineOffer]:
    """Engines of one cluster and kind under one limit."""
    cluster, conditions, apart = engines[0].cluster, Conditions(limit=limit), engines[0].apart
    carried = apart_capacity if apart else capacity
    told = carried(model, cluster, plans, calibration, promise, conditions)
    best, kept = told.best(promise), told.kept(promise).any(axis=1)
    drawn = told.drawn
    if drawn is None:
        return []
    if apart and limit is None:  # what they carry is known
        return [replace(one, drawn=drawn.take(row)) for row, one in enumerate(engines)]
    return [
        _offer(engine, told, row, int(best[row]), limit, drawn)
        for row, engine in enumerate(engines)
        if kept[row]
    ]


def _offer(
    engine: EngineOffer,
    told: Capacity,
    row: int,
    best: int,
    limit: float | None,
    drawn: LoadPower,
) -> EngineOffer:
    """The engine of a row of capacities, at its best load under a limit."""
    return replace(
        engine,
        rate=float(told.rate[row, best]),
        ttft=float(told.ttft[row, best]),
        tpot=float(told.tpot[row, best]),
        running=float(told.running[row, best]),
        used=float(told.used[row, best]),
        curve=(told.rate[row], told.ttft[row], told.tpot[row]),
        limit=limit,
        drawn=drawn.take(row),
    )


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
    conditions = Conditions(limit=engine.limit, tariff=Tariff(pue=power_laws()["pue"]))
    cluster, apart = engine.cluster, 0
    if cluster.prefill is not None:
        decoding = float(engine.plan.tp * engine.plan.pp * engine.plan.dp)
        apart = round(engine.gpus - decoding) * count
    found: Array = np.zeros(np.shape(watts))
    for machines, gpus in ((cluster, round(engine.gpus) * count - apart), (cluster.readers, apart)):
        if gpus:
            found = found + Machines(machines, gpus, watts, conditions).site
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
    if engine.limit is None or engine.drawn is None:
        return calibration
    loads = engine.drawn.rate
    prompts = float(np.interp(rate, loads, engine.drawn.prompts))
    passes = float(np.interp(rate, loads, engine.drawn.passes))
    return slower_engines(calibration, prompts, passes)

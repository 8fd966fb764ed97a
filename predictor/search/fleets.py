"""Engines that carry the most of a load within promised latencies, and how many it takes: every
layout of every system as arrays through the functions that predict a single one.

Of engines whose prompts are read apart every number of workers is evaluated, and of each layout
those are kept that take the fewest accelerators for the load, and for a request.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

import numpy as np

from predictor.arrays import Array, Index, Numeric, take
from predictor.errors import InputError
from predictor.hardware import Cluster
from predictor.memory import serving_memory
from predictor.models import Model
from predictor.plans import SERVING_NUMBERS, ServingPlan, serving_rules
from predictor.records import dataclass
from predictor.search.bounds import Within, further
from predictor.search.fleet_space import (
    DECODING,
    apart,
    batches,
    not_apart,
    together_too,
    workers,
)
from predictor.serving import (
    EXACT_STEPS,
    Capacity,
    LoadPower,
    Promise,
    capacity,
    enough_accelerators,
    held_by_worker,
    predict_inference,
    read_apart,
)
from predictor.timing import Calibration
from predictor.units import GIB
from predictor.variation import LOAD_KEYS


@dataclass(frozen=True, slots=True, eq=False)
class EngineOffer:
    """One way to serve on one system, and what it carries within the promise.

    gpus      accelerators, with those that read prompts
    rate      most requests per second of one engine
    ttft, tpot  at that load, at the promised shares [s]
    running   requests at a time at that load
    used      share of the time in which prompts are read at that load, by all workers where they
              are read apart
    memory    of the fullest device [bytes]
    curve     loads beyond and below: (rate, ttft, tpot) arrays
    limit     of an accelerator's power [W]; None: its own
    reading   of one that reads prompts apart; None: `limit`
    drawn     power of an accelerator at the loads of the curve, and how much longer passes take
              there; None where that was not asked for
    """

    cluster: Cluster
    plan: ServingPlan
    gpus: float
    rate: float
    ttft: float
    tpot: float
    running: float
    used: float
    memory: float
    curve: tuple[Array, Array, Array]
    limit: float | None = None
    drawn: LoadPower | None = None
    reading: float | None = None

    @property
    def apart(self) -> bool:
        """Whether prompts are read on accelerators of their own."""
        return float(self.plan.prefill_workers) > 0


@dataclass(frozen=True, slots=True, eq=False)
class Engines:
    """Engines that keep the promise at some load.

    enumerated, possible, fitting, keeping   plans in all; that obey every law; that hold a
                 request; that keep the promise at some load. With prompts read apart each counts
                 once, whatever the number of workers
    unsearched   why prompts are nowhere read apart; None where that was searched
    """

    engines: list[EngineOffer]
    enumerated: int
    possible: int
    fitting: int
    keeping: int
    unsearched: str | None = None


def search_engines(
    model: Model,
    clusters: Sequence[Cluster],
    fields: Mapping[str, Any],
    promise: Promise,
    calibration: Calibration,
    load: float = math.inf,
    within: Callable[[Cluster], Within] | None = None,
    readers: Sequence[Cluster] = (),
    prices: Mapping[str, float] | None = None,
) -> Engines:
    """Ways to serve on every system, with the most that each carries within the promise.

    load   requests per second to carry in all, by which engines are compared; inf: by accelerators
           per request
    within  further laws on each system, asked of plans that obey the others
    readers  systems whose accelerators may read prompts apart; none: those that decode alone
    prices  of an accelerator-hour by system, by which numbers of workers are compared

    Of the numbers of workers that read prompts apart beside one layout the best are kept, or those
    that are stated. Raises InputError: no plan is possible, none fits (with the least
    memory that would), or none keeps the promise (with the closest).
    """
    if stated := [name for name in LOAD_KEYS if fields.get(name) is not None]:
        raise InputError(f"{stated[0]} is of a single plan; a search takes expert_load")
    found = _Search(
        model=model,
        fields=fields,
        promise=promise,
        calibration=calibration,
        load=load,
        within=within,
        readers=readers,
        prices=prices,
    )
    for cluster in clusters:
        for batch in batches(model, cluster, fields, calibration):
            found.both(cluster, batch)
    if not found.counts[1]:
        apart_from = f"prompts cannot be read apart: {found.unsearched}"
        reason = found.reason or (apart_from if found.unsearched else "no layout")
        raise InputError(f"no way to serve {model.name} is possible: {reason}")
    if not found.counts[2]:
        raise InputError(
            f"{model.name} with one request fits no layout tried: the least memory that would is "
            f"{found.least[0] / GIB:.1f} GiB per GPU, with {found.least[1]}; more GPUs (--pp, "
            "--tp) would help"
        )
    if not found.engines:
        raise InputError(f"no plan keeps the promise: the closest takes {found.closest[1]}")
    enumerated, possible, fitting, keeping = found.counts
    return Engines(found.engines, enumerated, possible, fitting, keeping, found.unsearched)


@dataclass(slots=True, eq=False)
class _Search:
    """One search on its way.

    counts    plans enumerated, possible, fitting, keeping the promise
    least     smallest memory of a plan [bytes], and which
    closest   smallest miss of the promise, and what it takes
    """

    model: Model
    fields: Mapping[str, Any]
    promise: Promise
    calibration: Calibration
    load: float
    within: Callable[[Cluster], Within] | None
    readers: Sequence[Cluster]
    prices: Mapping[str, float] | None
    engines: list[EngineOffer] = field(default_factory=list)
    counts: list[int] = field(default_factory=lambda: [0, 0, 0, 0])
    least: tuple[float, str] = (math.inf, "")
    closest: tuple[float, str] = (math.inf, "")
    reason: str = ""
    unsearched: str | None = None

    def both(self, cluster: Cluster, batch: ServingPlan) -> None:
        """Engines that read their own prompts, then those whose prompts are read apart."""
        if together_too(self.fields):
            rows, memory = self._fitting(cluster, batch)
            if rows.shape[0]:
                found = capacity(self.model, cluster, rows, self.calibration, self.promise)
                self.counts[3] += int(found.kept(self.promise).any(axis=1).sum())
                self._keep(cluster, rows, found, memory)
        why = not_apart(batch, self.fields)
        if why is not None:
            self.unsearched = why
            return
        for own in self.readers or (None,):
            machines = cluster if own is None else replace(cluster, prefill=own)
            many = apart(self.model, machines, batch, self.fields, self.calibration.run)
            rows, memory = self._fitting(machines, many)
            if rows.shape[0]:
                self._apart(machines, rows, memory)

    def _fitting(self, cluster: Cluster, batch: ServingPlan) -> tuple[ServingPlan, Array]:
        """Plans that obey every law and hold a request, and bytes of the fullest device."""
        self.counts[0] += batch.shape[0]
        model, run = self.model, self.calibration.run
        allowed = np.ones(batch.shape, dtype=bool)
        laws = serving_rules(batch, model)
        if self.within is not None:
            laws += further(self.within(cluster), batch, laws)
        for rule in laws:
            broken = np.broadcast_to(np.asarray(rule.broken, dtype=bool), batch.shape)
            if broken.all() and broken.size:
                self.reason = rule.message.format(
                    **{n: f"{np.ravel(getattr(batch, n))[0]:g}" for n in rule.fields}
                )
            allowed &= ~broken
        lawful = np.flatnonzero(allowed & enough_accelerators(batch, cluster))
        batch = take(batch, lawful)
        self.counts[1] += batch.shape[0]
        if not batch.shape[0]:
            return batch, np.empty(0)
        room = serving_memory(model, cluster, batch, run)
        fits = (room.admitted >= batch.dp) & (room.fits > 0)
        held = room.total
        if np.any(np.asarray(batch.prefill_workers) > 0):
            read = held_by_worker(model, cluster, batch, run)
            fits &= read.fits > 0
            held = np.maximum(held, read.total)
        short = int(np.argmin(held))
        if held[short] < self.least[0]:
            brief = engine_brief(take(batch, np.array([short])))
            self.least = (float(held[short]), f"{brief} on {cluster.machines}")
        there = np.flatnonzero(fits)
        self.counts[2] += there.size
        return take(batch, there), held[there]

    def _apart(self, cluster: Cluster, batch: ServingPlan, memory: Array) -> None:
        """Every number of workers beside every layout: of each the best, or what is stated."""
        promise, stated = self.promise, self.fields.get("prefill_workers")
        engines = read_apart(self.model, cluster, batch, self.calibration)
        at, counts = workers(engines.busiest(), stated)
        whole = replace(take(batch, at), prefill_workers=counts)
        own = np.flatnonzero(enough_accelerators(whole, cluster))
        if not own.size:
            return
        at, counts = at[own], counts[own]
        spent = accelerators(take(whole, own), cluster, self.prices)
        found = engines.capacity(at, counts, promise)
        keeps = found.kept(promise).any(axis=1)
        self.counts[3] += len(np.unique(at[keeps]))
        kept = np.arange(len(at))
        if not isinstance(stated, tuple):
            rate = np.where(keeps, found.rate[kept, found.best(promise)], 0.0)
            kept = np.union1d(
                _least(at, self._needed(rate, spent), spent),
                _least(at, spent / np.maximum(rate, 1e-300), spent),
            )
        rows = replace(take(batch, at[kept]), prefill_workers=counts[kept])
        self._keep(cluster, rows, found.take(kept), memory[at[kept]])

    def _needed(self, rate: Array, gpus: Array) -> Array:
        """Accelerators (or their price) of whole engines for the load, or for a request per
        second."""
        rate = np.maximum(rate, 1e-300)
        if not math.isfinite(self.load):
            return np.asarray(gpus / rate)
        return _whole(self.load, rate) * gpus

    def _keep(self, cluster: Cluster, batch: ServingPlan, found: Capacity, memory: Array) -> None:
        """Keep the plans that keep the promise, each at its best load; note the closest of all."""
        promise = self.promise
        miss = np.maximum(found.ttft / promise.ttft, found.tpot / promise.tpot)
        near = int(np.argmin(miss))
        if miss.ravel()[near] < self.closest[0]:
            row, load = np.unravel_index(near, miss.shape)
            told = (
                f"{1e3 * found.ttft[row, load]:.3g} ms to the first token and "
                f"{1e3 * found.tpot[row, load]:.3g} ms per token, with "
                f"{engine_brief(take(batch, np.array([row])))} on {cluster.machines}"
            )
            self.closest = (float(miss.ravel()[near]), told)
        best = found.best(promise)
        for row in np.flatnonzero(found.kept(promise).any(axis=1)):
            load = best[row]
            plan = take(batch, np.array([row]))
            numbers = {name: float(np.ravel(getattr(plan, name))[0]) for name in SERVING_NUMBERS}
            numbers["batch"] = math.inf
            single = replace(plan, **numbers)  # type: ignore[arg-type]
            engine = EngineOffer(
                cluster=cluster,
                plan=single,
                gpus=float(np.asarray(single.gpus)),
                rate=float(found.rate[row, load]),
                ttft=float(found.ttft[row, load]),
                tpot=float(found.tpot[row, load]),
                running=float(found.running[row, load]),
                used=float(found.used[row, load]),
                memory=float(memory[row]),
                curve=(found.rate[row], found.ttft[row], found.tpot[row]),
            )
            self.engines.append(engine)


def _least(group: Index, first: Array, second: Array) -> Index:
    """Position of the least of each group, of equals that of the least second number."""
    order = np.lexsort((second, first, group))
    return np.asarray(order[np.unique(group[order], return_index=True)[1]], np.intp)


def accelerators(
    plan: ServingPlan, cluster: Cluster, prices: Mapping[str, float] | None = None
) -> Array:
    """Accelerators of an engine, or what they cost an hour where there are prices by system."""
    if prices is None:
        return np.asarray(plan.gpus)
    apart = np.asarray(plan.reading)
    read = prices[cluster.readers.name]
    return np.asarray(prices[cluster.name] * (plan.gpus - apart) + read * apart)


def engine_brief(plan: ServingPlan) -> str:
    """An engine's layout in a few words."""

    def one(name: str) -> float:
        return float(np.ravel(getattr(plan, name))[0])

    sizes = " ".join(f"{n} {one(n):g}" for n in DECODING if n == "tp" or one(n) > 1)
    own = one("prefill_workers")
    copies = f" dp {one('prefill_dp'):g}" if one("prefill_dp") > 1 else ""
    beside = f" + {own:g} x prefill tp {one('prefill_tp'):g}{copies}" if own > 0 else ""
    return f"{sizes}{beside}, {plan.weights}, {plan.kv} cache"


def interruption(model: Model, engine: EngineOffer, calibration: Calibration) -> float:
    """Time by which the prompts of others lengthen each token at the engine's best load [s]."""
    plan = replace(engine.plan, batch=engine.running, synchrony=0.0)
    found = predict_inference(model, engine.cluster, plan, calibration, EXACT_STEPS).latencies
    return max(float(found.tpot - found.step / plan.tokens_per_pass), 0.0)


def _whole(load: Numeric, rate: Numeric) -> Array:
    """Whole engines of a rate for a load, which may fit them exactly; infinitely many of one that
    serves next to nothing."""
    with np.errstate(over="ignore"):
        return np.asarray(np.ceil(load / rate - 1e-9))


def replicas(engine: EngineOffer, load: Array, headroom: float, spare: int) -> Array:
    """Engines for a load [requests/s], with a share of headroom and some to spare."""
    return _whole(load * (1.0 + headroom), engine.rate) + spare


def curve(engines: Sequence[EngineOffer], output_len: float) -> list[tuple[float, float, int, int]]:
    """The Pareto front of output tokens per second and accelerator against time per token, over
    all engines and loads: (tokens/s per accelerator, tpot [s], engine, load), fastest first."""
    gain, slow, which, load = [], [], [], []
    for number, engine in enumerate(engines):
        rate, _, tpot = engine.curve
        gain.append(rate * output_len / engine.gpus)
        slow.append(tpot)
        which.append(np.full(len(rate), number))
        load.append(np.arange(len(rate)))
    columns = [np.concatenate(part) for part in (gain, slow, which, load)]
    order = np.lexsort((-columns[0], columns[1]))
    best = np.maximum.accumulate(columns[0][order])
    keep = order[np.concatenate([[True], best[1:] > best[:-1]])]
    return [(float(columns[0][i]), float(columns[1][i]), int(columns[2][i]), int(columns[3][i]))
            for i in keep]  # fmt: skip

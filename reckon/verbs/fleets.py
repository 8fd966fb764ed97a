"""`search_infer`: the fewest accelerators, or the least money, that carry a load within promised
latencies."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from predictor import catalog
from predictor.catalog import (
    BESIDE,
    Filler,
    ServingPlanSpec,
    complete_cluster,
    load,
    number,
    parse,
    read_given,
)
from predictor.errors import InputError
from predictor.hardware import Cluster
from predictor.models import Model
from predictor.search import (
    FIELDS,
    EngineOffer,
    Within,
    accelerators,
    engine_brief,
    interruption,
    replicas,
    search_engines,
)
from predictor.serving import Promise
from predictor.timing import Calibration
from reckon.launch import framework_of, target_of
from reckon.verbs.finalists import REQUESTS, Fleet, offered, trial
from reckon.verbs.frugal import Thrift, thrift_of
from reckon.verbs.frugal_fleets import powered_engines, spent
from reckon.verbs.loads import Load, load_of, prices
from reckon.verbs.offers import OBJECTIVES, SAVING, InferenceSearch, OtherKind
from reckon.verbs.plans import CLUSTER
from reckon.verbs.training import DEFAULT_CALIBRATION, Ref

THRIFT = ("power_limits", "price_per_kwh")
"""Keys of a search for them."""

MOST = 60
"""Engines of the fewest accelerators for the load that are powered."""

APART = 4
"""The same of those whose prompts are read apart, each of which is powered by itself."""

OPTIONS = (
    "rate", "load", "ttft_ms", "tpot_ms", "ttft_percentile", "tpot_percentile", "headroom",
    "spare", "price", "objective", "simulate", *THRIFT,
)  # fmt: skip
"""Keys that say what for: the load, the promise, the goal."""

NUMBERS = (
    "ttft_ms", "tpot_ms", "ttft_percentile", "tpot_percentile", "headroom", "spare", "simulate",
)  # fmt: skip
"""Those of them that are numbers in any case."""


def search_infer(
    model: Ref | Model,
    clusters: Ref | Cluster | Sequence[Ref | Cluster],
    plan: Mapping[str, Any],
    load_: float | str | Path | Mapping[str, Sequence[float]] | Load,
    *,
    ttft: float = float("inf"),
    tpot: float = float("inf"),
    ttft_share: float = 0.9,
    tpot_share: float = 0.9,
    headroom: float = 0.0,
    spare: float = 0,
    price: str | float | None = None,
    objective: str | None = None,
    simulate: float = 0,
    calibration: str | Path | Calibration = DEFAULT_CALIBRATION,
    target: str | None = None,
    thrift: Thrift | None = None,
) -> InferenceSearch:
    """Find the smallest (or cheapest, or most frugal) fleet for a load.

    model, clusters  as `predict_infer` takes them; several systems to choose among
    plan       keys of a serving plan, `LENGTHS` among them: values, lists or texts 'LOW..HIGH'
    load_      requests per second; a table of hours and requests_per_s, as a mapping or CSV file
    ttft, tpot  promised seconds, for the shares `ttft_share` and `tpot_share` of the requests
    headroom, spare  share of the load, and engines, beyond what the load needs
    price      of an accelerator-hour: a number, or 'SYSTEM=X,SYSTEM=Y'
    objective  one of `OBJECTIVES`; None: cost where there is a price, else gpus
    simulate   requests that finalists serve, until one keeps the promise; 0: `REQUESTS`
    thrift     of an objective of energy or money: limits of power to try, the price of a kWh

    Raises InputError for anything that cannot be.
    """
    known, own_model = load(calibration), catalog.model(model)
    systems, given = _asked(clusters, plan, target)
    readers = [catalog.system(one) for one in given.pop("prefill_system", ())]
    table = prices(price, [*systems, *readers])
    goal = _goal(objective, table, thrift := thrift or Thrift())
    spared, served = _counts(headroom, spare, simulate)
    wanted, promise = load_of(load_), Promise(ttft, tpot, ttft_share, tpot_share)
    found = search_engines(
        own_model, systems, given, promise, known,
        load=wanted.peak * (1.0 + headroom), within=_within(target, own_model, known),
        readers=readers, prices=table if goal == "cost" else None)  # fmt: skip
    fleet_of = partial(_powered_fleet, wanted, headroom, spared, table, thrift.tariff.price)
    engines = found.engines
    if goal in SAVING:
        engines = _few(engines, lambda one: _rank("gpus")(fleet_of(one)))
        engines = powered_engines(own_model, engines, promise, known, (None, *thrift.limits))
    fleets, trials = offered(
        [fleet_of(engine) for engine in engines],
        _rank(goal),
        lambda fleet, more: fleet_of(fleet.engine, more),
        lambda fleet: trial(own_model, fleet, wanted.peak, promise, known, served),
    )
    return InferenceSearch(
        model=own_model, load=wanted, promise=promise, objective=goal, headroom=headroom,
        spare=spared, calibration=known, found=found, fleets=fleets, trials=trials, thrift=thrift,
        contrast=_contrast(own_model, fleets, known), **_lengths(given),
    )  # fmt: skip


def _counts(headroom: float, spare: float, simulate: float) -> tuple[int, int]:
    """Engines to spare and requests to serve; what is kept beyond the load cannot be negative."""
    number("headroom", headroom, least=0)
    spared, served = (
        int(number(name, value, least=0, whole=True))
        for name, value in (("spare", spare), ("simulate", simulate))
    )
    return spared, served or REQUESTS


OF_ONE = (
    "gpus", "batch", "concurrency", "saturated", "trace", "in_doubt", "variation", "lengths",
    "burstiness", "think_s", "turns", "shared_prefix", "rounds", "spacing_s", "replicas", "router",
    "most_replicas", "replica_target", "cold_start_s", "cache_host_gb", "cache_drive_gb",
    "cache_drive_gbs", "adapter_slots", "warmup",
)  # fmt: skip
"""Keys of one engine's clients and of what is around it. A search has a load of requests that share
nothing, at random, and seeks how many engines carry it."""

PROMISED = {"slo_ttft_ms": "ttft_ms", "slo_tpot_ms": "tpot_ms"}
"""Keys of one engine's promise, and what a search calls it."""


def _searched(plan: Mapping[str, Any]) -> None:
    """Raises InputError for keys that a search would pass over."""
    for name, value in plan.items():
        if value is None:
            continue
        if name in PROMISED:
            flag = PROMISED[name].replace("_", "-")
            raise InputError(f"{name} is of a single engine; a search takes --{flag}")
        if name == "gpus":
            raise InputError(
                "gpus: a search seeks how many there must be; tp, pp and dp bound an engine"
            )
        if name in OF_ONE:
            raise InputError(f"{name} is of a single engine: ask reckon predict infer for it")


LENGTHS = ("input_len", "output_len")
"""What a search asks for one value of."""


def _lengths(given: Mapping[str, Any]) -> dict[str, float]:
    """Of prompts and outputs, one each."""
    return {name: float(given[name][0]) for name in LENGTHS}


def _every(
    clusters: Ref | Cluster | Sequence[Ref | Cluster], beside: Mapping[str, Any]
) -> list[Cluster]:
    """One system, or several, with what a plan states of them."""
    many = clusters if isinstance(clusters, list | tuple) else [clusters]
    values = parse(ServingPlanSpec, beside, "plan").to_dict()
    return [catalog.stated_cluster(one, values) for one in many]  # type: ignore[arg-type]


def _asked(
    clusters: Ref | Cluster | Sequence[Ref | Cluster], plan: Mapping[str, Any], target: str | None
) -> tuple[list[Cluster], dict[str, Any]]:
    """Systems to choose among, and what a request states of the plan."""
    own = dict(plan)
    systems = _every(clusters, {name: own.pop(name) for name in BESIDE if name in own})
    return systems, _given(own if target is None else {"framework": framework_of(target), **own})


def _given(plan: Mapping[str, Any]) -> dict[str, Any]:
    """What a request states, its lengths among it."""
    _searched(plan)
    given = dict(read_given(plan, "request", ServingPlanSpec, FIELDS))
    for name in LENGTHS:
        if name not in given:
            raise InputError(f"give --{name.replace('_', '-')}: it has no default")
        if len(given[name]) > 1:
            raise InputError(f"{name} takes one value in a search, not {len(given[name])}")
    return given


def _within(
    target: str | None, model: Model, known: Calibration
) -> Callable[[Cluster], Within] | None:
    """What a target can express on a system, where one is stated."""
    if target is None:
        return None
    return lambda cluster: target_of(target, model, cluster, known.run, serving=True).rules


def _powered_fleet(
    wanted: Load,
    headroom: float,
    spare: int,
    table: dict[str, float] | None,
    price: float | None,
    engine: EngineOffer,
    more: int = 0,
) -> Fleet:
    """The fleet of an engine, and what it draws."""
    whole = _fleet(engine, wanted, headroom, spare + more, table)
    return replace(whole, spent=spent(engine, whole.count, wanted, price))


def _contrast(model: Model, fleets: Sequence[Fleet], known: Calibration) -> OtherKind | None:
    """The best fleet that reads prompts otherwise than the first one, together or apart."""
    best = fleets[0]
    other = next((f for f in fleets if f.engine.apart != best.engine.apart), None)
    if other is None:
        return None
    own = other.engine if best.engine.apart else best.engine
    delay = interruption(model, own, known)
    return OtherKind(other, delay, delay / own.tpot)


def _goal(objective: str | None, table: dict[str, float] | None, thrift: Thrift) -> str:
    """What a search is for: what was asked, else cost where there is a price.

    Raises InputError for what no search is for, and for money without a price.
    """
    goal = objective or ("cost" if table else "gpus")
    if goal not in OBJECTIVES:
        raise InputError(f"objective {goal!r} is not one of {', '.join(OBJECTIVES)}")
    if goal == "cost" and table is None:
        raise InputError("--objective cost needs a --price-per-gpu-hour")
    if goal == "money" and table is None and thrift.tariff.price is None:
        raise InputError("--objective money needs --price-per-kwh or --price-per-gpu-hour")
    return goal


def _few(engines: Sequence[EngineOffer], rank: Callable[[EngineOffer], Any]) -> list[EngineOffer]:
    """Those that are powered: of either kind the first."""
    order = sorted(engines, key=rank)
    own, others = ([one for one in order if one.apart == kind] for kind in (False, True))
    return sorted([*own[:MOST], *others[:APART]], key=rank)


def _rank(goal: str) -> Callable[[Fleet], tuple[float, ...]]:
    """The order of fleets: by what the search is for, then the fewest accelerators."""

    def value(fleet: Fleet) -> float:
        if goal == "cost":
            return fleet.cost or 0.0
        if fleet.spent is not None and goal == "energy":
            return fleet.spent.energy
        if fleet.spent is not None and goal == "money":
            return (fleet.cost or 0.0) + (fleet.spent.money or 0.0)
        return float(fleet.gpus)

    return lambda f: (value(f), float(f.gpus), f.hours, f.tpot, f.ttft)


def _fleet(
    engine: EngineOffer, wanted: Load, headroom: float, spare: int, table: dict[str, float] | None
) -> Fleet:
    counts = replicas(engine, wanted.rates, headroom, spare)
    most = int(max(counts.max(), 1))
    rate, ttft, tpot = engine.curve
    # What the engines meet at the peak, each its share of it.
    share = wanted.peak / most
    own = None if table is None else float(accelerators(engine.plan, engine.cluster, table))
    hours = float(np.sum(np.maximum(counts, 1)) * engine.gpus)
    return Fleet(
        engine=engine,
        count=most,
        gpus=int(most * engine.gpus),
        hours=hours,
        cost=None if own is None else own * most,
        cost_scaled=None if own is None else own * hours / engine.gpus / len(wanted.rates),
        ttft=float(np.interp(share, rate, ttft)),
        tpot=float(np.interp(share, rate, tpot)),
        used=engine.used * min(share / engine.rate, 1.0),
    )


def asked(
    stated: Mapping[str, Any],
    calibration: str | Path | Calibration,
    where: str = "command line",
    target: str | None = None,
) -> InferenceSearch:
    """Search what a flat request asks for: `model`, `system` (or `accelerator`), one or several;
    the load and the promise (`OPTIONS`); keys of a serving plan.

    Raises InputError.
    """
    rest = {name: value for name, value in stated.items() if value is not None}
    own = {name: rest.pop(name) for name in OPTIONS if name in rest}
    if "price_per_gpu_hour" in rest:
        own.setdefault("price", rest.pop("price_per_gpu_hour"))
    model = rest.pop("model", None)
    if model is None:
        raise InputError("give --model (reckon show models)")
    if ("rate" in own) == ("load" in own):
        raise InputError("give the load: --rate X, or --load TABLE.csv (hour, requests_per_s)")
    wanted = own.pop("load") if "load" in own else own.pop("rate")
    saved: dict[str, Any] = {
        name: own.pop(name) for name in ("power_limits", "price_per_kwh") if name in own
    }
    if "power_limits" in saved and own.get("objective") not in SAVING:
        raise InputError(f"limits of power need --objective {' or '.join(SAVING)}")
    numbers = {name: number(name, own.pop(name)) for name in NUMBERS if name in own}
    return search_infer(
        model,
        _systems(rest, where),
        rest,
        wanted if isinstance(wanted, str | Path | Mapping) else number("rate", wanted),
        ttft=numbers.pop("ttft_ms", math.inf) / 1e3,
        tpot=numbers.pop("tpot_ms", math.inf) / 1e3,
        ttft_share=numbers.pop("ttft_percentile", 90.0) / 100.0,
        tpot_share=numbers.pop("tpot_percentile", 90.0) / 100.0,
        headroom=numbers.pop("headroom", 0.0),
        spare=numbers.pop("spare", 0.0),
        simulate=numbers.pop("simulate", 0.0),
        calibration=calibration,
        target=target,
        thrift=thrift_of(saved),
        **own,
    )


def _systems(stated: dict[str, Any], where: str) -> list[Cluster]:
    """Systems (or accelerators) among which to choose; taken out of what is stated."""
    rest = {name: stated.pop(name) for name in CLUSTER if name in stated}
    key = "system" if "system" in rest else "accelerator"
    value = rest.pop(key, None)
    if value is None:
        raise InputError("give --system or --accelerator, one or several (reckon show systems)")
    texts = value.split(",") if isinstance(value, str) else value
    names = texts if isinstance(texts, list) else [texts]
    parsed = (
        parse(ServingPlanSpec, {**rest, key: n.strip() if isinstance(n, str) else n}, where)
        for n in names
    )
    return [complete_cluster(Filler(spec.to_dict())) for spec in parsed]


__all__ = ["InferenceSearch", "engine_brief", "search_infer"]

"""`search_infer`: the fewest accelerators, or the least money, that carry a load within promised
latencies."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from predictor import catalog
from predictor.catalog import (
    Filler,
    ServingPlanSpec,
    complete_cluster,
    load,
    parse,
    read_given,
)
from predictor.errors import InputError
from predictor.hardware import Cluster
from predictor.models import Model
from predictor.plans import SERVING_CATEGORIES, SERVING_NUMBERS
from predictor.records import dataclass
from predictor.search import (
    FIELDS,
    Engine,
    Engines,
    Within,
    accelerators,
    curve,
    engine_brief,
    interruption,
    replicas,
    search_engines,
)
from predictor.serving import Promise, ServingRequest
from predictor.timing import Calibration
from predictor.units import GB
from reckon.launch import framework_of, target_of
from reckon.verbs.finalists import REQUESTS, Fleet, Trial, offered, trial
from reckon.verbs.frugal import Thrift, thrift_of
from reckon.verbs.frugal_fleets import Point, energy_front, powered_engines, spent
from reckon.verbs.loads import Load, load_of, prices
from reckon.verbs.plans import CLUSTER
from reckon.verbs.powering import interval
from reckon.verbs.results import SCHEMA_VERSION
from reckon.verbs.training import DEFAULT_CALIBRATION, Ref

OBJECTIVES = ("gpus", "cost", "energy", "money")

SAVING = OBJECTIVES[2:]
"""Those that power the engines."""

THRIFT = ("power_limits", "price_per_kwh")
"""Keys of a search for them."""

MOST = 60
"""Engines of the fewest accelerators for the load that are powered."""

SHOWN = 24
"""Engines behind the front of time and energy where the search is not for that."""

OPTIONS = (
    "rate", "load", "ttft_ms", "tpot_ms", "ttft_percentile", "tpot_percentile", "headroom",
    "spare", "price", "objective", "simulate", *THRIFT,
)  # fmt: skip
"""Keys that say what for: the load, the promise, the goal."""

NUMBERS = (
    "ttft_ms", "tpot_ms", "ttft_percentile", "tpot_percentile", "headroom", "spare", "simulate",
)  # fmt: skip
"""Those of them that are numbers in any case."""


@dataclass(frozen=True, slots=True, eq=False)
class Contrast:
    """The best fleet of the other kind: prompts read apart, or by the engines that decode.

    delay   time by which prompts lengthen each token of the one of the two that reads its own, at
            the most that its engine carries [s]
    share   of that time per token
    """

    other: Fleet
    delay: float
    share: float


@dataclass(frozen=True, eq=False)
class InferenceSearch:
    """A search as a user sees it: fleets, best first.

    contrast    the best fleet that reads prompts the other way; None where there is none
    trials      fleets whose requests were served one by one, in turn: the best of each kind, and
                those before it, which broke the promise
    thrift      limits of power that were named, and the price of energy
    """

    model: Model
    load: Load
    promise: Promise
    objective: str
    output_len: float
    input_len: float
    headroom: float
    spare: int
    calibration: Calibration
    found: Engines
    fleets: list[Fleet]
    trials: list[Trial]
    contrast: Contrast | None = None
    thrift: Thrift = field(default_factory=Thrift)

    @property
    def reason(self) -> str:
        """Why prompts are read apart by the best fleet, or why not, in a sentence."""
        best, other = self.fleets[0], self.contrast
        kinds = ("where engines read their own prompts", "with prompts read apart")
        if self.objective in SAVING:
            return "fleets by energy read their own prompts: power apart is not predicted"
        if other is None:
            why = self.found.unsearched if not best.engine.apart else None
            if why is not None:
                return f"prompts read apart were not searched: {why}"
            return f"no plan {kinds[not best.engine.apart]} keeps the promise"
        cost = "" if other.other.cost is None else f", {other.other.cost:,.2f} per hour"
        told = f"{engine_brief(other.other.engine.plan)}, takes {other.other.gpus} GPUs{cost}"
        delay = f"{1e3 * other.delay:.3g} ms to each token, {other.share:.0%} of its time"
        if best.engine.apart:
            return (
                "prompts read apart delay no token, and their workers are busy "
                f"{best.used:.0%} of the time; {kinds[0]} they add {delay}, and the best, {told}"
            )
        return (
            f"prompts add {delay}; {kinds[1]}, whose workers would be busy "
            f"{other.other.used:.0%} of the time, the best, {told}"
        )

    @property
    def simulated(self) -> Trial:
        """What came of the best fleet's requests one by one."""
        return next(trial for trial in self.trials if trial.fleet is self.fleets[0])

    @property
    def front(self) -> list[tuple[float, float, Engine]]:
        """Pareto front of the engines that keep the promise: output tokens per second and
        accelerator, time per token [s], engine."""
        points = curve(self.found.engines, self.output_len)
        return [(gain, slow, self.found.engines[at]) for gain, slow, at, _ in points]

    def shown(self, top: int) -> list[Fleet]:
        """The best fleets with what they draw, where that is known."""
        return self._drawn(self.fleets[:top])

    def _drawn(self, fleets: Sequence[Fleet]) -> list[Fleet]:
        if self.objective in SAVING:
            return list(fleets)
        told = [fleet.engine for fleet in fleets]
        try:
            under = powered_engines(self.model, told, self.promise, self.calibration)
        except InputError:
            return list(fleets)
        known = {id(one.plan): one for one in under}
        price = self.thrift.tariff.price
        return [
            replace(fleet, spent=spent(known[id(own.plan)], fleet.count, self.load, price))
            if id(own.plan) in known
            else fleet
            for fleet, own in zip(fleets, told, strict=True)
        ]

    @cached_property
    def saving(self) -> list[Point]:
        """Pareto front of time per token and energy per token of the best engines under their own
        and the named limits of power, fastest first; empty where power is not known."""
        engines = [fleet.engine for fleet in self.fleets if not fleet.engine.apart]
        if self.objective not in SAVING:
            engines = engines[:SHOWN]
            try:
                engines = powered_engines(
                    self.model, engines, self.promise, self.calibration,
                    (None, *self.thrift.limits),
                )  # fmt: skip
            except InputError:
                return []
        return energy_front(engines, self.output_len)

    def emit(self, name: str, quiet: bool = False) -> dict[str, Any]:
        """Print the launch line of one engine of the best fleet, and of the load that it carries,
        as `reckon.launch` writes them."""
        from reckon.verbs.launching import emitted_request

        best = self.fleets[0]
        engine = best.engine
        plan = replace(engine.plan, batch=float("inf"), serving=1.0)
        what = f"one of {best.count} engines"
        rate = round(self.load.peak / best.count, 4)
        request = ServingRequest(self.model, engine.cluster, plan, (), rate)
        return emitted_request(name, request, self.calibration, what, quiet=quiet)

    def to_dict(self, top: int = 20) -> dict[str, Any]:
        """The whole result as `--json` writes it; every key carries its unit."""
        return {
            "schema_version": SCHEMA_VERSION,
            "kind": "inference-search",
            "model": self.model.name,
            "input_len": self.input_len,
            "output_len": self.output_len,
            "objective": self.objective,
            "headroom": self.headroom,
            "spare": self.spare,
            "load": {"hour": self.load.hours.tolist(), "requests_per_s": self.load.rates.tolist()},
            "promise": {
                "ttft_s": self.promise.ttft,
                "ttft_share": self.promise.ttft_share,
                "tpot_s": self.promise.tpot,
                "tpot_share": self.promise.tpot_share,
            },
            "counts": {
                "enumerated": self.found.enumerated,
                "possible": self.found.possible,
                "fitting": self.found.fitting,
                "keep_the_promise": self.found.keeping,
            },
            "fleets": [self.entry(fleet) for fleet in self.shown(top)],
            "prompts": {
                "apart": self.fleets[0].engine.apart,
                "reason": self.reason,
                "other": None if self.contrast is None else self.entry(self.contrast.other),
                "delay_per_token_s": None if self.contrast is None else self.contrast.delay,
            },
            "frontier": [
                {
                    "output_tokens_per_s_per_gpu": gain,
                    "tpot_s": slow,
                    "accelerator": engine.cluster.accelerator.name,
                    "plan": plan_mapping(engine),
                }
                for gain, slow, engine in self.front
            ],
            "energy_frontier": [
                {
                    "tpot_s": one.tpot,
                    "energy_per_token_j": one.energy,
                    "power_limit_w": one.engine.limit,
                    "requests_per_s": one.rate,
                    "accelerator": one.engine.cluster.accelerator.name,
                    "plan": plan_mapping(one.engine),
                }
                for one in self.saving
            ],
            "simulated": {"requests": self.simulated.requests, **self.simulated.figures},
            "finalists": [one.to_dict() for one in self.trials],
        }

    def entry(self, fleet: Fleet) -> dict[str, Any]:
        """One fleet with its figures."""
        engine = fleet.engine
        return {
            "system": engine.cluster.name,
            "accelerator": engine.cluster.accelerator.name,
            **reads(engine.cluster),
            "gpus": fleet.gpus,
            "engines": fleet.count,
            "gpus_per_engine": int(engine.gpus),
            "plan": plan_mapping(engine),
            "ttft_s": fleet.ttft,
            "tpot_s": fleet.tpot,
            "most_requests_per_s_per_engine": engine.rate,
            "running_per_engine": engine.running,
            "prompts_read_share": fleet.used,
            "memory_gb": engine.memory / GB,
            "gpu_hours_following_load": fleet.hours,
            "cost_per_hour": fleet.cost,
            "cost_per_hour_following_load": fleet.cost_scaled,
            "power_limit_w": engine.limit,
            "power": self._power(fleet),
        }

    def _power(self, fleet: Fleet) -> dict[str, Any] | None:
        """What a fleet draws; None where that is not known."""
        own = fleet.spent
        if own is None:
            return None
        constants = catalog.power_constants(fleet.engine.cluster.accelerator)
        sigma = float(np.max(np.asarray(constants.sigma)))
        return {
            "power_w": interval(own.power, sigma),
            "energy_per_request_j": interval(own.energy, sigma),
            "energy_per_token_j": interval(own.energy / self.output_len, sigma),
            "energy_price_per_hour": own.money,
        }


def reads(cluster: Cluster) -> dict[str, str]:
    """The system that reads prompts for another, where there is one, as `--json` names it."""
    return {} if cluster.prefill is None else {"prefill_system": cluster.prefill.name}


def plan_mapping(engine: Engine) -> dict[str, Any]:
    """The engine's plan as a mapping of `ServingPlan` fields; its batch is what runs at a time at
    the most that it carries."""
    found: dict[str, Any] = {}
    for name in SERVING_NUMBERS:
        value = engine.running if name == "batch" else float(getattr(engine.plan, name))
        if np.isfinite(value):  # what has no limit is not stated
            found[name] = int(value) if value == int(value) else value
    return {**found, **{name: getattr(engine.plan, name) for name in SERVING_CATEGORIES}}


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
    spare: int = 0,
    price: str | float | None = None,
    objective: str | None = None,
    simulate: int = 0,
    calibration: str | Path | Calibration = DEFAULT_CALIBRATION,
    target: str | None = None,
    thrift: Thrift | None = None,
) -> InferenceSearch:
    """Find the smallest (or cheapest, or most frugal) fleet for a load.

    model      as `predict_infer` takes it
    clusters   one system or several to choose among
    plan       keys of a serving plan: `input_len` and `output_len`; what else is stated bounds the
               search, as a value, a list or a text 'LOW..HIGH'
    load_      requests per second; a table of hours and requests_per_s, as a mapping or CSV file
    ttft, tpot  promised seconds, for the shares `ttft_share` and `tpot_share` of the requests
    headroom   share of the load that engines are to carry beyond it
    spare      engines beyond those that the load needs
    price      of an accelerator-hour: a number, or 'SYSTEM=X,SYSTEM=Y'
    objective  'gpus', 'cost', 'energy' (of a request) or 'money' (energy and accelerators at
               their prices); None: cost where there is a price
    simulate   requests that each finalist serves one by one, until one keeps the promise; 0:
               `REQUESTS`
    thrift     of an objective of energy or money: limits of power to try, the price of a kWh

    Raises InputError for anything that cannot be.
    """
    known = load(calibration)
    own_model = catalog.model(model)
    many = clusters if isinstance(clusters, list | tuple) else [clusters]
    systems = [catalog.system(one) for one in many]  # type: ignore[arg-type]
    if headroom < 0 or spare < 0:
        raise InputError("--headroom and --spare cannot be below 0")
    within = None
    if target is not None:
        plan = {"framework": framework_of(target), **plan}

        def within(cluster: Cluster) -> Within:
            return target_of(target, own_model, cluster, known.run, serving=True).rules

    given = read_given(plan, "request", ServingPlanSpec, FIELDS)
    for name in ("input_len", "output_len"):
        if name not in given:
            raise InputError(f"give --{name.replace('_', '-')}: it has no default")
        if len(given[name]) > 1:
            raise InputError(f"{name} takes one value in a search, not {len(given[name])}")
    readers = [catalog.system(one) for one in given.pop("prefill_system", ())]
    table = prices(price, [*systems, *readers])
    asked_for = thrift or Thrift()
    goal = _goal(objective, table, asked_for)
    if goal in SAVING:
        given = _own_prompts(given)
    wanted = load_of(load_)
    promise = Promise(ttft, tpot, ttft_share, tpot_share)
    most = wanted.peak * (1.0 + headroom)
    found = search_engines(
        own_model, systems, given, promise, known, most, within, readers,
        table if goal == "cost" else None,
    )  # fmt: skip

    def fleet_of(engine: Engine, more: int = 0) -> Fleet:
        whole = _fleet(engine, wanted, headroom, spare + more, table)
        used = spent(engine, whole.count, wanted, asked_for.tariff.price)
        return replace(whole, spent=used)

    engines = found.engines
    if goal in SAVING:
        first = sorted((fleet_of(engine) for engine in engines), key=_rank("gpus"))[:MOST]
        chosen = [fleet.engine for fleet in first]
        limits = (None, *asked_for.limits)
        engines = powered_engines(own_model, chosen, promise, known, limits)
    fleets, trials = offered(
        [fleet_of(engine) for engine in engines],
        _rank(goal),
        lambda fleet, more: fleet_of(fleet.engine, more),
        lambda fleet: trial(own_model, fleet, wanted.peak, promise, known, simulate or REQUESTS),
    )
    best = fleets[0]
    contrast = None
    other = next((f for f in fleets if f.engine.apart != best.engine.apart), None)
    if other is not None:
        own = other.engine if best.engine.apart else best.engine
        delay = interruption(own_model, own, known)
        contrast = Contrast(other, delay, delay / own.tpot)
    return InferenceSearch(
        model=own_model,
        load=wanted,
        promise=promise,
        objective=goal,
        output_len=float(given["output_len"][0]),
        input_len=float(given["input_len"][0]),
        headroom=headroom,
        spare=spare,
        calibration=known,
        found=found,
        fleets=fleets,
        contrast=contrast,
        trials=trials,
        thrift=asked_for,
    )


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


def _own_prompts(given: Mapping[str, Any]) -> dict[str, Any]:
    """What is stated, with prompts read by the engines that decode.

    Raises InputError where they are to be read apart.
    """
    wanted = given.get("prefill_workers")
    if wanted is not None and wanted != (0,) and not (isinstance(wanted, tuple) and 0 in wanted):
        raise InputError(
            "power of prompts read on accelerators of their own is not predicted: leave "
            "--prefill-workers at 0, or search by gpus or cost"
        )
    return {**given, "prefill_workers": (0,)}


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
    engine: Engine, wanted: Load, headroom: float, spare: int, table: dict[str, float] | None
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
    numbers = {name: _number(name, own.pop(name)) for name in NUMBERS if name in own}
    return search_infer(
        model,
        _systems(rest, where),
        rest,
        wanted if isinstance(wanted, str | Path | Mapping) else _number("rate", wanted),
        ttft=numbers.pop("ttft_ms", math.inf) / 1e3,
        tpot=numbers.pop("tpot_ms", math.inf) / 1e3,
        ttft_share=numbers.pop("ttft_percentile", 90.0) / 100.0,
        tpot_share=numbers.pop("tpot_percentile", 90.0) / 100.0,
        headroom=numbers.pop("headroom", 0.0),
        spare=int(numbers.pop("spare", 0)),
        simulate=int(numbers.pop("simulate", 0)),
        calibration=calibration,
        target=target,
        thrift=thrift_of(saved),
        **own,
    )


def _number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise InputError(f"{name} {value!r} is not a number") from None


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

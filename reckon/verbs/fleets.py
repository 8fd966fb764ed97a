"""`search_infer`: the fewest accelerators, or the least money, that carry a load within promised
latencies."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
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
from reckon.verbs.loads import Load, load_of, prices
from reckon.verbs.plans import CLUSTER
from reckon.verbs.results import SCHEMA_VERSION
from reckon.verbs.training import DEFAULT_CALIBRATION, Ref

OBJECTIVES = ("gpus", "cost")

OPTIONS = (
    "rate", "load", "ttft_ms", "tpot_ms", "ttft_percentile", "tpot_percentile", "headroom",
    "spare", "price", "objective", "simulate",
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

    @property
    def reason(self) -> str:
        """Why prompts are read apart by the best fleet, or why not, in a sentence."""
        best, other = self.fleets[0], self.contrast
        kinds = ("where engines read their own prompts", "with prompts read apart")
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
            "fleets": [self.entry(fleet) for fleet in self.fleets[:top]],
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
) -> InferenceSearch:
    """Find the smallest (or cheapest) fleet for a load.

    model      as `predict_infer` takes it
    clusters   one system or several to choose among
    plan       keys of a serving plan: `input_len` and `output_len`; what else is stated bounds the
               search, as a value, a list or a text 'LOW..HIGH'
    load_      requests per second; a table of hours and requests_per_s, as a mapping or CSV file
    ttft, tpot  promised seconds, for the shares `ttft_share` and `tpot_share` of the requests
    headroom   share of the load that engines are to carry beyond it
    spare      engines beyond those that the load needs
    price      of an accelerator-hour: a number, or 'SYSTEM=X,SYSTEM=Y'
    objective  'gpus' or 'cost'; None: cost where there is a price
    simulate   requests that each finalist serves one by one, until one keeps the promise; 0:
               `REQUESTS`

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
    for field in ("input_len", "output_len"):
        if field not in given:
            raise InputError(f"give --{field.replace('_', '-')}: it has no default")
        if len(given[field]) > 1:
            raise InputError(f"{field} takes one value in a search, not {len(given[field])}")
    readers = [catalog.system(one) for one in given.pop("prefill_system", ())]
    table = prices(price, [*systems, *readers])
    goal = objective or ("cost" if table else "gpus")
    if goal not in OBJECTIVES:
        raise InputError(f"objective {goal!r} is not one of {', '.join(OBJECTIVES)}")
    if goal == "cost" and table is None:
        raise InputError("--objective cost needs a --price-per-gpu-hour")
    wanted = load_of(load_)
    promise = Promise(ttft, tpot, ttft_share, tpot_share)
    most = wanted.peak * (1.0 + headroom)
    found = search_engines(
        own_model, systems, given, promise, known, most, within, readers,
        table if goal == "cost" else None,
    )  # fmt: skip
    fleets, trials = offered(
        [_fleet(engine, wanted, headroom, spare, table) for engine in found.engines],
        lambda f: (
            (f.cost or 0.0) if goal == "cost" else float(f.gpus),
            float(f.gpus),
            f.hours,
            f.tpot,
            f.ttft,
        ),
        lambda fleet, more: _fleet(fleet.engine, wanted, headroom, spare + more, table),
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
    )


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

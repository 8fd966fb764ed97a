"""What a search for a fleet found: fleets, why the first is best, what they draw."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace
from functools import cached_property
from typing import Any

import numpy as np

from predictor import catalog
from predictor.errors import InputError
from predictor.hardware import Cluster
from predictor.models import Model
from predictor.plans import SERVING_CATEGORIES, SERVING_NUMBERS
from predictor.power import Conditions
from predictor.records import dataclass
from predictor.search import (
    EngineOffer,
    Engines,
    curve,
    engine_brief,
)
from predictor.serving import Promise, ServingRequest
from predictor.timing import Calibration
from predictor.units import GB
from reckon.verbs.figures import SCHEMA_VERSION
from reckon.verbs.finalists import Fleet, Trial
from reckon.verbs.frugal import Thrift
from reckon.verbs.frugal_fleets import Point, energy_front, powered_engines, spent
from reckon.verbs.loads import Load
from reckon.verbs.powering import interval, limit_of

OBJECTIVES = ("gpus", "cost", "energy", "money")
"""What is made small: accelerators, their price, energy of a request, energy and accelerators at
their prices."""

SAVING = OBJECTIVES[2:]
"""Those that power the engines."""

SHOWN = 24
"""Engines behind the front of time and energy where the search is not for that."""


@dataclass(frozen=True, slots=True, eq=False)
class OtherKind:
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
    contrast: OtherKind | None = None
    thrift: Thrift = field(default_factory=Thrift)

    def __repr__(self) -> str:
        best = self.fleets[0]
        told = f"the best of {best.gpus:g} accelerators, {engine_brief(best.engine.plan)}"
        return f"<InferenceSearch of {self.model.name}: {len(self.fleets)} fleets, {told}>"

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
        if self.objective in SAVING and other.other.spent is not None:
            cost += f", {other.other.spent.energy:.4g} J per request"
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
    def front(self) -> list[tuple[float, float, EngineOffer]]:
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
        engines = [fleet.engine for fleet in self.fleets]
        if self.objective not in SAVING:
            # Those whose prompts are read apart take longer to be powered.
            engines = [engine for engine in engines if not engine.apart][:SHOWN]
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
                    "prefill_power_limit_w": one.engine.reading,
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
            "prefill_power_limit_w": engine.reading,
            "power": self._power(fleet),
        }

    def _power(self, fleet: Fleet) -> dict[str, Any] | None:
        """What a fleet draws; None where that is not known."""
        own = fleet.spent
        if own is None:
            return None
        constants = catalog.power_constants(fleet.engine.cluster.accelerator)
        sigma, engine = float(np.max(np.asarray(constants.sigma))), fleet.engine
        under = Conditions(limit=engine.limit, reading=engine.reading)
        room = limit_of(engine.cluster, under) / own.power
        return {
            "power_w": interval(own.power, sigma, room),
            "energy_per_request_j": interval(own.energy, sigma, room),
            "energy_per_token_j": interval(own.energy / self.output_len, sigma, room),
            "energy_price_per_hour": own.money,
        }


def reads(cluster: Cluster) -> dict[str, str]:
    """The system that reads prompts for another, where there is one, as `--json` names it."""
    return {} if cluster.prefill is None else {"prefill_system": cluster.prefill.name}


def plan_mapping(engine: EngineOffer) -> dict[str, Any]:
    """The engine's plan as a mapping of `ServingPlan` fields; its batch is what runs at a time at
    the most that it carries."""
    found: dict[str, Any] = {}
    for name in SERVING_NUMBERS:
        value = engine.running if name == "batch" else float(getattr(engine.plan, name))
        if np.isfinite(value):  # what has no limit is not stated
            found[name] = int(value) if value == int(value) else value
    return {**found, **{name: getattr(engine.plan, name) for name in SERVING_CATEGORIES}}

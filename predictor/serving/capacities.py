"""How much of a load plans of serving carry at which latencies, met by a share of the requests.

Requests arrive at random. As many run at a time as Little's law says; their number is close to
Poisson's, so that a share q of requests meets no more than its q-quantile running, and times per
token are those of so many and one more. What a first token waits for is in `gathering`;
`apart_capacities` has engines whose prompts are read apart.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from predictor.arrays import Array, Index, mapped
from predictor.errors import InputError
from predictor.hardware import Cluster
from predictor.models import Model
from predictor.plans import ServingPlan
from predictor.power import Conditions
from predictor.records import dataclass
from predictor.serving.clients import poisson_quantile
from predictor.serving.gathering import first_token_quantile
from predictor.serving.pass_times import Arriving
from predictor.serving.power import limited, serving_power
from predictor.serving.prediction import InferencePrediction, predict_inference
from predictor.serving.rates import arriving_at
from predictor.timing import Calibration

LOADS = 40
"""Loads at which every plan is evaluated, from one running request to as many as it admits."""

FEW = np.array([1e-4, 1e-2, 0.1, 0.3, 0.6])
"""Requests that run at a time at the loads below these at which plans are powered."""

POWERED = 24
"""Loads of the others at which they are."""


@dataclass(frozen=True, slots=True)
class Promise:
    """Latencies that a share of the requests is to meet [s]; inf: none."""

    ttft: float = math.inf
    tpot: float = math.inf
    ttft_share: float = 0.9
    tpot_share: float = 0.9

    def __post_init__(self) -> None:
        for name in ("ttft", "tpot"):
            if not getattr(self, name) > 0:
                raise InputError(f"{name} {getattr(self, name):g} s must be above 0")
        for name in ("ttft_share", "tpot_share"):
            if not 0 < getattr(self, name) < 1:
                raise InputError(f"{name} {getattr(self, name):g} is not between 0 and 1")


@dataclass(frozen=True, slots=True, eq=False)
class LoadPower:
    """What plans draw at loads; arrays of (plans, loads).

    rate              requests per second of the engine, from next to none to the most
    power             of an accelerator, mean [W]
    prompts, passes   time of passes over prompts, and of passes that decode, under the conditions
                      over that by themselves
    """

    rate: Array
    power: Array
    prompts: Array
    passes: Array

    def take(self, row: int) -> LoadPower:
        """That of one plan."""
        return LoadPower(self.rate[row], self.power[row], self.prompts[row], self.passes[row])


@dataclass(frozen=True, slots=True, eq=False)
class Capacity:
    """What every plan of a batch carries at every load; arrays of (plans, loads).

    rate      requests per second of the engine
    ttft, tpot  at the promised shares of the requests [s]
    running   requests at a time, of the engine
    used      share of the time in which prompts are read, by all workers where they are read apart
    drawn     what that takes; None where it was not asked for
    """

    rate: Array
    ttft: Array
    tpot: Array
    running: Array
    used: Array
    drawn: LoadPower | None = None

    def take(self, rows: Index) -> Capacity:
        """Those of some plans, without their power."""
        names = ("rate", "ttft", "tpot", "running", "used")
        return Capacity(*(getattr(self, name)[rows] for name in names))

    def kept(self, promise: Promise) -> Any:
        """Mask of loads at which the promise is kept."""
        return (self.ttft <= promise.ttft) & (self.tpot <= promise.tpot)

    def best(self, promise: Promise) -> Any:
        """Position of the largest rate at which each plan keeps the promise; 0 where it never
        does."""
        return np.argmax(np.where(self.kept(promise), self.rate, -np.inf), axis=1)


def capacity(
    model: Model,
    cluster: Cluster,
    plan: ServingPlan,
    calibration: Calibration,
    promise: Promise,
    conditions: Conditions | None = None,
) -> Capacity:
    """Rate and latencies of every plan at `LOADS` loads.

    plan        a batch of one dimension, each of which fits and reads its own prompts; its `batch`
                is replaced
    conditions  of power, under which they are also powered; None: neither

    Raises InputError where power is asked for and not known, or cannot be as asked.
    """
    count = plan.shape[0]
    column = mapped(plan, lambda value: np.broadcast_to(value, (count,))[:, None])
    column = replace(column, serving=1.0, synchrony=0.0)
    top = predict_inference(model, cluster, replace(column, batch=np.inf), calibration).work.running
    nodes = np.exp(np.linspace(0.0, 1.0, LOADS) * np.log(np.maximum(top, 1.0)))

    engines = _Engines(model, cluster, column, calibration, conditions, np.maximum(top, 1.0))
    both = free, found = engines.meeting(nodes)
    mean, rate = found.latencies, engines.ending(nodes, both)
    drawn = None if conditions is None else _drawn(engines, nodes, conditions)
    slow = engines.meeting(poisson_quantile(nodes, promise.tpot_share))[1].latencies
    own = calibration.serving.of(plan.framework, plan.era)
    first = first_token_quantile(
        free.work, own, engines.ending(nodes, (free, free)), nodes, promise.ttft_share
    )
    used = rate * mean.prompt
    return Capacity(
        rate=rate * column.dp,
        ttft=first * (mean.ttft / free.latencies.ttft),
        tpot=slow.tpot,
        running=nodes * column.dp,
        used=used,
        drawn=drawn,
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Engines:
    """Plans as a column, to be predicted at any number of requests; `most` run at a time."""

    model: Model
    cluster: Cluster
    plan: ServingPlan
    calibration: Calibration
    conditions: Conditions | None
    most: Array

    def running(self, many: Array) -> InferencePrediction:
        """So many of a replica."""
        batch = replace(self.plan, batch=many * self.plan.dp)
        return predict_inference(self.model, self.cluster, batch, self.calibration)

    def held(self, found: InferencePrediction) -> InferencePrediction:
        """As many as run all the time, in the time that the conditions leave them."""
        given = self.conditions
        if given is None or not given.slows:
            return found
        often = replace(found, arriving=Arriving(found.work, np.zeros(())))
        return limited(often, serving_power(often, given), given)

    def meeting(self, others: Array) -> tuple[InferencePrediction, InferencePrediction]:
        """A request that meets so many, and the same under the conditions."""
        found = self.running(np.minimum(others + 1.0, self.most))
        return found, self.held(found)

    def ending(self, others: Array, met: tuple[InferencePrediction, InferencePrediction]) -> Array:
        """Requests of a replica that end in a second while so many run."""
        free, under = (one.latencies for one in met)
        share = others / np.minimum(others + 1.0, self.most)
        # By Little's law as many fewer as their lives are longer.
        return np.asarray(share * free.requests_per_s * (free.e2e / under.e2e))


def _drawn(engines: _Engines, nodes: Array, conditions: Conditions) -> LoadPower:
    """What engines draw at some of the loads and below them, as a prediction at that rate has it.

    nodes   requests that run, of all loads
    """
    some = np.unique(np.linspace(0, nodes.shape[1] - 1, POWERED).round().astype(int))
    others = np.concatenate([FEW * np.ones_like(nodes[:, :1]), nodes[:, some]], axis=1)
    free, held = engines.meeting(others)
    rate = engines.ending(others, (free, held))
    arriving = arriving_at(held, rate, engines.running, engines.held)
    latency = replace(free.latencies, requests_per_s=rate)
    under = serving_power(replace(free, latencies=latency, arriving=arriving), conditions)

    def whole(values: Array) -> Array:
        return np.array(np.broadcast_to(values, rate.shape))

    prompts, passes = (
        np.asarray(after.compute) / np.maximum(before.compute, 1e-300)
        for after, before in ((held.work.single, free.work.single),
                              (held.work.decoding, free.work.decoding))
    )  # fmt: skip
    every = np.maximum.accumulate(rate * free.plan.dp, axis=1)
    return LoadPower(every, whole(under.mean), whole(prompts), whole(passes))

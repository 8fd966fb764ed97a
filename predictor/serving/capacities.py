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
from predictor.power import Conditions, Powered
from predictor.records import dataclass
from predictor.serving.clients import poisson_quantile
from predictor.serving.gathering import first_token_quantile
from predictor.serving.power import limited, serving_power
from predictor.serving.prediction import InferencePrediction, predict_inference
from predictor.timing import Calibration

LOADS = 40
"""Loads at which every plan is evaluated, from one running request to as many as it admits."""


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
    """What plans draw at every load; arrays of (plans, loads).

    power             of an accelerator, mean [W]
    prompts, passes   time of passes over prompts, and of passes that decode, under the conditions
                      over that by themselves
    """

    power: Array
    prompts: Array
    passes: Array


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

    def at(running: Array) -> Any:
        batch = replace(column, batch=running * column.dp)
        return predict_inference(model, cluster, batch, calibration)

    def meeting(others: Array) -> tuple[InferencePrediction, InferencePrediction, Powered | None]:
        """A request that meets so many; the same under the conditions; and what is drawn then."""
        found: InferencePrediction = at(np.minimum(others + 1.0, np.maximum(top, 1.0)))
        if conditions is None:
            return found, found, None
        under = serving_power(found, conditions)
        return found, limited(found, under, conditions), under

    share = nodes / np.minimum(nodes + 1.0, np.maximum(top, 1.0))
    free, found, under = meeting(nodes)
    mean = found.latencies
    drawn = None if under is None else _drawn(found, share, conditions or Conditions())
    slow = meeting(poisson_quantile(nodes, promise.tpot_share))[1].latencies
    own = calibration.serving.of(plan.framework, plan.era)
    first = first_token_quantile(
        free.work, own, share * free.latencies.requests_per_s, nodes, promise.ttft_share
    )
    used = share * mean.requests_per_s * mean.prompt
    return Capacity(
        rate=share * mean.requests_per_s * column.dp,
        ttft=first * (mean.ttft / free.latencies.ttft),
        tpot=slow.tpot,
        running=nodes * column.dp,
        used=used,
        drawn=drawn,
    )


def _drawn(found: InferencePrediction, share: Array, conditions: Conditions) -> LoadPower:
    """What engines draw at the rate that arrives, a share of that of as many clients.

    found   in the time that the conditions leave it
    """
    arriving = replace(found.latencies, requests_per_s=share * found.latencies.requests_per_s)
    own = replace(found, latencies=arriving)
    under = serving_power(own, conditions)
    usual = serving_power(own, Conditions()) if conditions.slows else under

    def whole(values: Array) -> Array:
        return np.array(np.broadcast_to(values, share.shape))

    prompts, passes = (under.longer[name] / usual.longer[name] for name in ("prefill", "decode"))
    return LoadPower(whole(under.mean), whole(prompts), whole(passes))

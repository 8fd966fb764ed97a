"""What an engine whose prompts are read apart carries and draws at every load, under conditions of
power: `capacities.Capacity` of one plan."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from predictor.arrays import Array
from predictor.hardware import Cluster
from predictor.models import Model
from predictor.plans import ServingPlan
from predictor.power import Conditions
from predictor.serving.apart_capacities import FULL
from predictor.serving.apart_power import watts_apart
from predictor.serving.apart_rates import decoding_slower, read_under
from predictor.serving.capacities import Capacity, LoadPower, Promise
from predictor.serving.clients import VARIATION, poisson_quantile
from predictor.serving.pass_times import Arriving
from predictor.serving.power import limited, serving_power
from predictor.serving.prediction import predict_inference
from predictor.timing import Calibration

LOADS = 15
"""Numbers of requests that run at which it is evaluated."""

FEW = np.array([1e-4, 0.1, 0.4])
"""Shares of the rate at which one request runs at a time at which it is powered, too."""

BETWEEN = 60
"""Loads between those, for which latencies are told."""

LISTED = 1024
"""Passes that decode at which all loads together are evaluated."""


def apart_capacity(
    model: Model,
    cluster: Cluster,
    plan: ServingPlan,
    calibration: Calibration,
    promise: Promise,
    conditions: Conditions,
) -> Capacity:
    """Rates, latencies and power of one plan, arrays of (1, loads).

    Raises InputError where the power of either kind of accelerators is not known, or cannot be as
    asked.
    """
    own, few = replace(plan, synchrony=0.0), len(FEW)
    of = (model, cluster)
    most = predict_inference(*of, replace(own, batch=np.inf), calibration).work.running
    dp, every = float(plan.dp), np.geomspace(1.0, max(float(most), 1.0), LOADS)
    nodes = np.concatenate([np.ones(few), every])
    batch = replace(own, batch=nodes * dp)
    free = predict_inference(*of, batch, calibration, LISTED // len(nodes))
    held = free
    if conditions.slows:
        full = replace(free, arriving=Arriving(free.work, np.zeros(()), 1.0))
        held = limited(full, serving_power(full, conditions), conditions)
    lives = (free, held) if conditions.slows else None
    read = read_under((model, cluster, calibration), plan, VARIATION, lives)
    workers = np.asarray(float(plan.prefill_workers))
    rate = np.minimum(held.requests_per_s, FULL * float(workers) * read.held.most)
    rate = np.concatenate([FEW * rate[0], rate[few:]])
    arriving = read.arriving(free, held, rate)
    latency = replace(free.latencies, requests_per_s=rate / dp)
    watts = watts_apart(replace(free, latencies=latency, arriving=arriving), conditions)
    before, after = (np.asarray(one.work.prompts.compute) for one in (free, held))
    drawn = LoadPower(
        rate=np.maximum.accumulate(rate)[None],
        power=_whole(watts, rate),
        prompts=_whole(after / np.maximum(before, 1e-300), rate),
        passes=_whole(decoding_slower(free, held), rate),
    )
    # Between those loads, latencies are read off the number of requests that decode.
    told = held.latencies
    number = np.maximum.accumulate(rate / dp * (told.e2e - told.ttft))
    loads = np.geomspace(rate[few], np.max(rate), BETWEEN)
    decoding = np.interp(loads, np.maximum.accumulate(rate), number)
    slow = np.minimum(poisson_quantile(decoding, promise.tpot_share), number[-1])
    met = read.held.at(loads, workers)
    return Capacity(
        rate=loads[None],
        ttft=read.first_tokens(loads, workers, promise.ttft_share)[None],
        tpot=np.interp(slow, number[few:], told.tpot[few:])[None],
        running=(decoding * dp + loads * (met.wait + met.read))[None],
        used=met.busy[None],
        drawn=drawn,
    )


def _whole(values: Array, rate: Array) -> Array:
    return np.array(np.broadcast_to(values, rate.shape))[None]

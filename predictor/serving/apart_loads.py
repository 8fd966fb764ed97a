"""What engines whose prompts are read apart carry and draw at every load, under conditions of power:
`capacities.Capacity` of plans."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from predictor.arrays import Array, Numeric, combined, distinct_rows, mapped
from predictor.hardware import Cluster
from predictor.models import Model
from predictor.plans import SERVING_NUMBERS, ServingPlan
from predictor.power import Conditions
from predictor.serving.apart_capacities import FULL
from predictor.serving.apart_power import watts_apart
from predictor.serving.apart_rates import (
    Lives,
    ReadApart,
    arriving_apart,
    beside,
    decoding_slower,
)
from predictor.serving.capacities import Capacity, LoadPower, Promise
from predictor.serving.clients import poisson_quantile
from predictor.serving.pass_times import Arriving
from predictor.serving.power import limited, serving_power
from predictor.serving.prediction import predict_inference
from predictor.serving.reading import read_passes
from predictor.timing import Calibration

LOADS = 15
"""Numbers of requests that run at which it is evaluated."""

FEW = np.array([1e-4, 0.1, 0.4])
"""Shares of the rate at which one request runs at a time at which it is powered, too."""

BETWEEN = 60
"""Loads between those, for which latencies are told."""

LISTED = 1024
"""Passes that decode at which all loads of a plan together are evaluated."""

READERS = ("prefill_tp", "prefill_dp", "ep")
"""What tells the workers of plans of one kind apart, but for their link."""


def apart_capacity(
    model: Model,
    cluster: Cluster,
    plan: ServingPlan,
    calibration: Calibration,
    promise: Promise,
    conditions: Conditions,
) -> Capacity:
    """Rates, latencies and power of every plan, arrays of (plans, loads).

    plan   a batch of one dimension, all of whose prompts are read apart

    Raises InputError where the power of either kind of accelerators is not known, or cannot be as
    asked.
    """
    count = plan.shape[0]
    column = mapped(plan, lambda value: np.broadcast_to(value, (count,))[:, None])
    own, few = replace(column, synchrony=0.0), len(FEW)
    of = (model, cluster)
    most = predict_inference(*of, replace(own, batch=np.inf), calibration).work.running
    most = np.broadcast_to(np.maximum(most, 1.0), (count, 1))
    every = np.geomspace(1.0, most[:, 0], LOADS, axis=1)
    nodes = np.concatenate([np.ones((count, few)), every], axis=1)
    batch = replace(own, batch=nodes * own.dp)
    free = predict_inference(*of, batch, calibration, LISTED // nodes.shape[1])
    held = free
    if conditions.slows:
        full = replace(free, arriving=Arriving(free.work, np.zeros(()), 1.0))
        held = limited(full, serving_power(full, conditions), conditions)
    reads = _workers(model, cluster, plan, calibration, (free, held))
    bound = [float(one.table.plan.prefill_workers) * one.held.most for one in reads]
    rate = np.minimum(_whole(held.requests_per_s, nodes), FULL * np.array(bound)[:, None])
    rate = np.concatenate([FEW * rate[:, :1], rate[:, few:]], axis=1)
    met = combined([one.met(row) for one, row in zip(reads, rate, strict=True)], np.stack)
    arriving = arriving_apart(free, held, rate, met)
    latency = replace(free.latencies, requests_per_s=rate / own.dp)
    watts = watts_apart(replace(free, latencies=latency, arriving=arriving), conditions)
    before, after = (np.asarray(one.work.prompts.compute) for one in (free, held))
    drawn = LoadPower(
        rate=np.maximum.accumulate(rate, axis=1),
        power=_whole(watts, rate),
        prompts=_whole(after / np.maximum(before, 1e-300), rate),
        passes=_whole(decoding_slower(free, held), rate),
    )
    told = held.latencies
    number = np.maximum.accumulate(rate / own.dp * (told.e2e - told.ttft), axis=1)
    rows = [
        _told(one, *row, float(dp), promise)
        for one, *row, dp in zip(reads, rate, number, _whole(told.tpot, rate),
                                 np.broadcast_to(plan.dp, (count,)), strict=True)
    ]  # fmt: skip
    return replace(combined(rows, np.stack), drawn=drawn)


def _told(
    read: ReadApart, rate: Array, number: Array, tpot: Array, dp: float, promise: Promise
) -> Capacity:
    """Rates and latencies of one plan between the loads that were evaluated, (`BETWEEN`,): read off
    the number of requests that decode.

    rate, number, tpot   at those loads, the first few of which are of one request
    """
    few, workers = len(FEW), np.asarray(float(read.table.plan.prefill_workers))
    loads = np.geomspace(rate[few], np.max(rate), BETWEEN)
    decoding = np.interp(loads, np.maximum.accumulate(rate), number)
    slow = np.minimum(poisson_quantile(decoding, promise.tpot_share), number[-1])
    met = read.held.at(loads, workers)
    return Capacity(
        rate=loads,
        ttft=read.first_tokens(loads, workers, promise.ttft_share),
        tpot=np.interp(slow, number[few:], tpot[few:]),
        running=decoding * dp + loads * (met.wait + met.read),
        used=met.busy,
    )


def _workers(
    model: Model, cluster: Cluster, plan: ServingPlan, calibration: Calibration, lives: Lives
) -> list[ReadApart]:
    """Workers of every plan of a batch, the passes of alike ones evaluated once.

    lives   of (plans, loads)
    """
    sizes = [np.broadcast_to(getattr(plan, name), plan.shape) for name in READERS]
    rows, kinds = distinct_rows([np.asarray(one, float) for one in sizes])
    passes = [read_passes(model, cluster, _single(plan, row), calibration) for row in rows]
    free, held = (_whole(one.work.prompts.compute, lives[0].plan.batch) for one in lives)
    together, longer = _whole(lives[0].work.together, free), held / free
    slows = lives[0] is not lives[1]
    return [
        beside(passes[kind], _single(plan, row),
               (together[row], longer[row]) if slows else None)
        for row, kind in enumerate(kinds)
    ]  # fmt: skip


def _single(plan: ServingPlan, row: int) -> ServingPlan:
    """One plan of a batch of one dimension, of plain numbers."""
    numbers: dict[str, Any] = {
        name: float(np.broadcast_to(getattr(plan, name), plan.shape)[row])
        for name in SERVING_NUMBERS
    }
    return replace(plan, **numbers)


def _whole(values: Numeric, rate: Array) -> Array:
    return np.array(np.broadcast_to(values, rate.shape))

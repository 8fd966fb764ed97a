"""What engines whose prompts are read apart carry and draw at every load, under conditions of
power: `capacities.Capacity` of plans."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from predictor.arrays import Array, Index, Numeric, combined, distinct_rows, mapped
from predictor.hardware import Cluster
from predictor.models import Model
from predictor.plans import SERVING_NUMBERS, ServingPlan
from predictor.power import Conditions
from predictor.records import dataclass
from predictor.serving.apart_capacities import FULL
from predictor.serving.apart_power import watts_apart
from predictor.serving.apart_rates import (
    ReadApart,
    arriving_apart,
    beside,
    decoding_slower,
)
from predictor.serving.capacities import Capacity, LoadPower, Promise
from predictor.serving.clients import poisson_quantile
from predictor.serving.pass_times import Arriving
from predictor.serving.power import limited, serving_power
from predictor.serving.prediction import InferencePrediction, predict_inference
from predictor.serving.reading import ReadPasses, read_passes
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


@dataclass(frozen=True, slots=True, eq=False)
class ApartLoads:
    """Engines whose prompts are read apart, as many loads of each as are evaluated; (plans, loads).

    plan     a batch of one dimension; `column`: the same of two
    nodes    requests of a replica that run
    free     what is predicted of so many, without limits
    passes   of workers, one for each kind of them; `kinds`: which of these each plan has
    """

    plan: ServingPlan
    column: ServingPlan
    nodes: Array
    free: InferencePrediction
    passes: list[ReadPasses]
    kinds: Index

    def capacity(self, promise: Promise, conditions: Conditions) -> Capacity:
        """Rates, latencies and power of every plan under conditions, arrays of (plans, loads).

        Raises InputError where the power of either kind of accelerators is not known, or cannot be
        as asked.
        """
        free, dp, few = self.free, self.column.dp, len(FEW)
        held = free
        if conditions.slows:
            full = replace(free, arriving=Arriving(free.work, np.zeros(()), 1.0))
            held = limited(full, serving_power(full, conditions), conditions)
        reads = self._workers(held)
        bound = [float(one.table.plan.prefill_workers) * one.held.most for one in reads]
        rate = np.minimum(_whole(held.requests_per_s, self.nodes), FULL * np.array(bound)[:, None])
        rate = np.concatenate([FEW * rate[:, :1], rate[:, few:]], axis=1)
        met = combined([one.met(row) for one, row in zip(reads, rate, strict=True)], np.stack)
        arriving = arriving_apart(free, held, rate, met)
        latency = replace(free.latencies, requests_per_s=rate / dp)
        watts = watts_apart(replace(free, latencies=latency, arriving=arriving), conditions)
        before, after = (np.asarray(one.work.prompts.compute) for one in (free, held))
        drawn = LoadPower(
            rate=np.maximum.accumulate(rate, axis=1),
            power=_whole(watts, rate),
            prompts=_whole(after / np.maximum(before, 1e-300), rate),
            passes=_whole(decoding_slower(free, held), rate),
        )
        told = held.latencies
        number = np.maximum.accumulate(rate / dp * (told.e2e - told.ttft), axis=1)
        each = zip(reads, rate, number, _whole(told.tpot, rate), strict=True)
        rows = [_told(one, load, many, tpot, promise) for one, load, many, tpot in each]
        return replace(combined(rows, np.stack), drawn=drawn)

    def _workers(self, held: InferencePrediction) -> list[ReadApart]:
        """Workers of every plan.

        held   what is predicted in the time that limits leave it
        """
        before, after = (_whole(one.work.prompts.compute, self.nodes) for one in (self.free, held))
        together, longer = _whole(self.free.work.together, self.nodes), after / before
        slows = held is not self.free
        return [
            beside(self.passes[kind], _single(self.plan, row),
                   (together[row], longer[row]) if slows else None)
            for row, kind in enumerate(self.kinds)
        ]  # fmt: skip


def apart_loads(
    model: Model, cluster: Cluster, plan: ServingPlan, calibration: Calibration
) -> ApartLoads:
    """Loads of plans, a batch of one dimension, all of whose prompts are read apart."""
    count, few = plan.shape[0], len(FEW)
    column = mapped(plan, lambda value: np.broadcast_to(value, (count,))[:, None])
    own, of = replace(column, synchrony=0.0), (model, cluster)
    most = predict_inference(*of, replace(own, batch=np.inf), calibration).work.running
    most = np.broadcast_to(np.maximum(most, 1.0), (count, 1))
    every = np.geomspace(1.0, most[:, 0], LOADS, axis=1)
    nodes = np.concatenate([np.ones((count, few)), every], axis=1)
    batch = replace(own, batch=nodes * own.dp)
    sizes = [np.broadcast_to(getattr(plan, name), plan.shape) for name in READERS]
    rows, kinds = distinct_rows([np.asarray(one, float) for one in sizes])
    return ApartLoads(
        plan=plan,
        column=column,
        nodes=nodes,
        free=predict_inference(*of, batch, calibration, LISTED // nodes.shape[1]),
        passes=[read_passes(*of, _single(plan, row), calibration) for row in rows.tolist()],
        kinds=kinds,
    )


def _told(read: ReadApart, rate: Array, number: Array, tpot: Array, promise: Promise) -> Capacity:
    """Rates and latencies of one plan between the loads that were evaluated, (`BETWEEN`,): read off
    the number of requests that decode.

    rate, number, tpot   at those loads, the first few of which are of one request
    """
    own, few = read.table.plan, len(FEW)
    workers = np.asarray(float(own.prefill_workers))
    loads = np.geomspace(rate[few], np.max(rate), BETWEEN)
    decoding = np.interp(loads, np.maximum.accumulate(rate), number)
    slow = np.minimum(poisson_quantile(decoding, promise.tpot_share), number[-1])
    met = read.held.at(loads, workers)
    return Capacity(
        rate=loads,
        ttft=read.first_tokens(loads, workers, promise.ttft_share),
        tpot=np.interp(slow, number[few:], tpot[few:]),
        running=decoding * float(own.dp) + loads * (met.wait + met.read),
        used=met.busy,
    )


def _single(plan: ServingPlan, row: int) -> ServingPlan:
    """One plan of a batch of one dimension, of plain numbers."""
    numbers: dict[str, Any] = {
        name: float(np.broadcast_to(getattr(plan, name), plan.shape)[row])
        for name in SERVING_NUMBERS
    }
    return replace(plan, **numbers)


def _whole(values: Numeric, rate: Array) -> Array:
    return np.array(np.broadcast_to(values, rate.shape))

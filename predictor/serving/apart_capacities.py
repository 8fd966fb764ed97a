"""How much of a load engines carry whose prompts are read apart: what they decode at a time follows
from the rate, what a prompt waits for from the rate and the number of workers.

Passes that decode are evaluated once for each layout, the queue before a worker once for each kind
of worker; every number of workers beside every layout is then looked up.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from predictor.arrays import Array, Index, take
from predictor.hardware import Cluster
from predictor.memory import serving_memory
from predictor.models import Model
from predictor.plans import SERVING_NUMBERS, ServingPlan
from predictor.records import dataclass
from predictor.serving.apart import transfer_time
from predictor.serving.capacities import LOADS, Capacity, Promise
from predictor.serving.clients import poisson_quantile
from predictor.serving.pass_times import decode_time
from predictor.serving.passes import adapted
from predictor.serving.reading import PromptWaits, Queue, read_table
from predictor.serving.tables import pass_work
from predictor.serving.whole_passes import decode_pass
from predictor.timing import Calibration

FULL = 0.98
"""Share of what the workers can read up to which loads are looked at."""

SIZES = ("tp", "pp", "dp", "ep")


@dataclass(frozen=True, slots=True, eq=False)
class Apart:
    """Engines whose prompts are read apart, whatever the number of their workers; by plan.

    plan      a batch of one dimension
    most      sequences that a replica decodes at a time
    step      (plans, nodes): passes that decode 1 .. `most` sequences of a replica, evenly spread
              in the logarithm [s]
    kind      of its workers: position in `queues`
    queues    before one worker of each kind
    request   host time of a request before its first token [s]
    """

    model: Model
    cluster: Cluster
    plan: ServingPlan
    most: Array
    step: Array
    kind: Index
    queues: list[Queue]
    request: float

    def busiest(self) -> Array:
        """Workers that are busy all the time while each plan decodes the most that it can."""
        after = _column(self.plan, "output_len")[:, 0] - 1.0
        spent = after / _passes(self.plan)[:, 0] * self.step[:, -1]
        rate = _column(self.plan, "dp")[:, 0] * self.most / spent
        each = np.array([queue.most for queue in self.queues])[self.kind]
        return np.asarray(rate / each)

    def capacity(self, rows: Index, workers: Array, promise: Promise) -> Capacity:
        """Loads of the plans at `rows`, each with so many workers, up to the most that it decodes
        or `FULL` of what they read."""
        plan = replace(take(self.plan, rows), prefill_workers=workers)
        kind, most, step = self.kind[rows], self.most[rows][:, None], self.step[rows]
        alone = np.array([queue.alone for queue in self.queues])[kind]
        moved = transfer_time(self.model, plan, self.cluster, alone)[:, None]
        dp, tokens = _column(plan, "dp"), _column(plan, "output_len") - 1.0
        after = tokens / _passes(plan)

        def spent(place: Array) -> Array:
            return after * _between(step, place) + moved

        def decoded(place: Array) -> Any:
            return np.exp(place / (LOADS - 1.0) * np.log(most))

        every = np.broadcast_to(np.arange(float(LOADS)), step.shape)
        each = np.array([queue.most for queue in self.queues])[kind][:, None]
        bound = FULL * workers[:, None] * each
        top = _reaches(dp * decoded(every) / spent(every), bound)
        place = top * np.linspace(0.0, 1.0, LOADS)
        number = decoded(place)
        rate = np.minimum(dp * number / spent(place), bound)
        slow = np.minimum(poisson_quantile(number, promise.tpot_share), most)
        slow_place = np.log(slow) / np.maximum(np.log(most), 1e-12) * (LOADS - 1.0)
        met = self._waiting(kind, rate, workers)
        return Capacity(
            rate=rate,
            ttft=met.quantile(promise.ttft_share) + self.request,
            tpot=spent(slow_place) / tokens,
            running=number * dp + rate * (met.wait + met.read),
            used=met.busy,
        )

    def _waiting(self, kind: Index, rate: Array, workers: Array) -> PromptWaits:
        found = np.empty((5, *rate.shape))
        for number, queue in enumerate(self.queues):
            own = kind == number
            met = queue.at(rate[own], workers[own][:, None])
            found[:, own] = (met.wait, met.waits, met.alone, met.behind, met.busy)
        return PromptWaits(*found)


def read_apart(
    model: Model,
    cluster: Cluster,
    plan: ServingPlan,
    calibration: Calibration,
) -> Apart:
    """Passes and queues of a batch of plans of one dimension, each of which fits."""
    plan = adapted(plan, cluster.accelerator)
    own = calibration.serving.of(plan.framework, plan.era)
    sizes = np.stack([_column(plan, name)[:, 0] for name in SIZES], axis=1)
    _, first, layout = np.unique(sizes, axis=0, return_index=True, return_inverse=True)
    few = take(plan, first)
    memory = serving_memory(model, cluster, replace(few, serving=1.0), calibration.run)
    room = memory.sequences if plan.admission == "whole" else memory.admitted
    most = np.maximum(np.minimum(room / few.dp, few.max_batch), 1.0)
    columns: dict[str, Any] = {name: _column(few, name) for name in SERVING_NUMBERS}
    wide = replace(few, **columns)
    nodes = np.exp(np.linspace(0.0, 1.0, LOADS) * np.log(most)[:, None])
    wide = replace(wide, batch=nodes * wide.dp, serving=1.0, synchrony=0.0)
    sequences = nodes / np.minimum(wide.working, nodes)
    passes = decode_pass(model, cluster, wide, sequences, calibration)
    step = np.broadcast_to(decode_time(pass_work(passes, sequences, wide), own), nodes.shape)
    own_sizes = [_column(plan, name)[:, 0] for name in ("prefill_tp", "prefill_dp")]
    readers = np.stack([*own_sizes, sizes[:, 3] > 1], axis=1)
    _, ones, kind = np.unique(readers, axis=0, return_index=True, return_inverse=True)
    tables = [read_table(model, cluster, _single(plan, one), calibration) for one in ones]
    return Apart(
        model=model,
        cluster=cluster,
        plan=plan,
        most=most[layout.ravel()],
        step=step[layout.ravel()],
        kind=kind.ravel(),
        queues=[table.queue() for table in tables],
        request=tables[0].request,
    )


def _single(plan: ServingPlan, row: int) -> ServingPlan:
    numbers: dict[str, Any] = {name: float(_column(plan, name)[row, 0]) for name in SERVING_NUMBERS}
    return replace(plan, **{**numbers, "prefill_workers": 1.0})


def _column(plan: ServingPlan, name: str) -> Array:
    return np.broadcast_to(np.asarray(getattr(plan, name), float), plan.shape).reshape(-1, 1)


def _passes(plan: ServingPlan) -> Array:
    """Tokens that a pass adds to a sequence; a column."""
    return np.broadcast_to(plan.tokens_per_pass, plan.shape).reshape(-1, 1)


def _between(rows: Array, place: Array) -> Array:
    """Values of each row at fractional positions, linear between its nodes."""
    low = np.minimum(place.astype(np.intp), rows.shape[1] - 2)
    below, above = (np.take_along_axis(rows, low + step, axis=1) for step in (0, 1))
    return np.asarray(below + (place - low) * (above - below))


def _reaches(rates: Array, bound: Array) -> Array:
    """Fractional position at which each row first exceeds its bound, a column; else its last."""
    above = np.asarray(rates > bound)
    first = np.argmax(above, axis=1)[:, None]
    last = np.maximum(first - 1, 0)
    low, high = (np.take_along_axis(rates, at, axis=1) for at in (last, first))
    part = np.where(first > 0, (bound - low) / np.maximum(high - low, 1e-300), 0.0)
    ends = np.full(first.shape, rates.shape[1] - 1.0)
    return np.where(above.any(axis=1, keepdims=True), last + part, ends)

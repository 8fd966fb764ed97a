"""Prompts at a rate before workers that read nothing else, and the engines behind them: queues
without limits of power and under them, and passes as they are on average."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from predictor.arrays import Array, Numeric
from predictor.hardware import Cluster
from predictor.models import Model
from predictor.plans import ServingPlan
from predictor.records import dataclass
from predictor.serving.pass_times import Arriving, DeviceTime, Work, decode_time
from predictor.serving.prediction import InferencePrediction, read_pass
from predictor.serving.reading import Queue, ReadPasses, ReadTable, read_passes
from predictor.serving.whole_passes import decode_pass
from predictor.timing import Calibration

ROUNDS = 6
"""Of the fixed point between how many requests decode at a time and how long they do."""


@dataclass(frozen=True, slots=True, eq=False)
class Met:
    """What prompts meet: `reading`, `waiting` and `later` as of `Arriving`, and prompts of a
    worker's pass."""

    reading: Array
    waiting: Array
    later: Array
    together: Array


@dataclass(frozen=True, slots=True, eq=False)
class ReadApart:
    """Workers of one plan, before them prompts that come at random.

    table, held_table   of their passes without limits, and under them
    free, held          queue before one of them
    """

    table: ReadTable
    held_table: ReadTable
    free: Queue
    held: Queue

    def arriving(
        self, one: InferencePrediction, held: InferencePrediction, rate: Array
    ) -> Arriving:
        """What passes have on average at a rate of all replicas [1/s].

        one, held   of as many as run, without limits and under them
        """
        return arriving_apart(one, held, rate, self.met(rate))

    def met(self, rate: Array) -> Met:
        """What prompts at a rate meet [1/s]."""
        workers = float(self.table.plan.prefill_workers)
        free, under = (queue.at(rate, workers) for queue in (self.free, self.held))
        waiting = under.wait - free.wait
        return Met(
            reading=under.busy,
            waiting=waiting,
            later=waiting + (under.read - free.read),
            together=self.held_table.together(rate / workers, under.busy),
        )

    def first_tokens(self, rate: Array, workers: Array, share: float) -> Array:
        """Time to first token under limits that a share of the requests does not exceed [s]."""
        return np.asarray(self.held.at(rate, workers).quantile(share) + self.table.request)


def arriving_apart(
    one: InferencePrediction, held: InferencePrediction, rate: Array, met: Met
) -> Arriving:
    """What passes of plans have on average at rates of all replicas [1/s], where their prompts meet
    so much.

    one, held   of as many as run, without limits and under them
    """
    dp = np.asarray(one.plan.dp, float)
    together = np.maximum(met.together / one.plan.prefill_dp, 1.0)  # of each replica that reads
    work, alone = _decoding(one, held, rate / dp)
    of = (one.model, one.cluster, one.plan, together, one.calibration)
    reads, passes = read_pass(*of)
    prompts = DeviceTime(reads.compute, reads.communication, reads.kernels, passes)
    return Arriving(
        work=replace(work, prompts=prompts, together=together),
        alone=alone,
        reading=met.reading,
        waiting=met.waiting,
        later=met.later,
    )


Lives = tuple[InferencePrediction, InferencePrediction]
"""What is predicted of numbers of requests that run, (numbers,): without limits and under them."""


def read_under(
    given: tuple[Model, Cluster, Calibration],
    plan: ServingPlan,
    variation: float,
    lives: Lives | None,
) -> ReadApart:
    """Workers of a plan; lives None: there are no limits."""
    model, cluster, calibration = given
    passes = read_passes(model, cluster, plan, calibration, variation)
    if lives is None:
        return beside(passes, plan)
    free, under = (one.work.prompts.compute for one in lives)
    return beside(passes, plan, (lives[0].work.together, np.asarray(under) / np.asarray(free)))


def beside(
    passes: ReadPasses, plan: ServingPlan, slower: tuple[Numeric, Array] | None = None
) -> ReadApart:
    """Workers beside the engine of a plan.

    slower   prompts that a replica reads in a pass, (numbers,), and how many times as long limits
             make its kernels; None: there are none
    """
    table = held = passes.table(plan)
    before = behind = table.queue()
    if slower is not None:
        together = np.broadcast_to(slower[0], slower[1].shape)
        sizes, first = np.unique(together, return_index=True)
        longer = slower[1][first]
        if np.any(longer != 1.0):
            held = passes.table(plan, (sizes * float(plan.prefill_dp), longer))
            behind = held.queue()
    return ReadApart(table, held, before, behind)


def _decoding(
    one: InferencePrediction, held: InferencePrediction, rate: Array
) -> tuple[Work, Array]:
    """Passes that decode on average while any does, by themselves, and the share of the time in
    which none does: requests of a replica come to it at a rate [1/s] and none waits (M/G/infinity:
    their number is Poisson's)."""
    plan, own, work = one.plan, one.parameters, one.work
    after = np.maximum(np.asarray(work.output_len) - 1.0, 0.0) / work.per_pass
    slower = decoding_slower(one, held)
    alone = running = np.zeros(np.shape(rate))
    for _ in range(ROUNDS):
        passes = replace(work.decoding, compute=work.decoding.compute * slower)
        load = rate * after * decode_time(replace(work, decoding=passes), own)
        alone = np.exp(-load)
        running = np.maximum(load / np.maximum(1.0 - alone, 1e-12), 1.0)
        sequences = running / np.maximum(np.minimum(plan.working, running), 1.0)
        found = decode_pass(one.model, one.cluster, plan, sequences, one.calibration, one.listed)
        device = DeviceTime(found.compute, found.communication, found.kernels)
        captured = plan.captured(sequences)
        work = replace(work, decoding=device, sequences=sequences, captured=captured)
    return replace(work, running=running), np.asarray(alone)


def decoding_slower(one: InferencePrediction, held: InferencePrediction) -> Array:
    """How much longer limits make the kernels of a pass that decodes as many as they leave.

    one, held   without limits, and under them
    """
    if np.array_equal(held.work.sequences, one.work.sequences):
        before = np.asarray(one.work.decoding.compute)
    else:
        of = (one.model, one.cluster, one.plan, held.work.sequences, one.calibration, one.listed)
        before = decode_pass(*of).compute
    return np.asarray(held.work.decoding.compute / np.maximum(before, 1e-300))

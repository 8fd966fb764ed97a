"""Prompts at a rate before workers that read nothing else, and the engines behind them: queues
without limits of power and under them, and passes as they are on average."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from predictor.hardware import Cluster
from predictor.models import Model
from predictor.plans import ServingPlan
from predictor.records import dataclass
from predictor.serving.pass_times import Arriving, DeviceTime, Work, decode_time
from predictor.serving.prediction import InferencePrediction, decode_pass, read_pass
from predictor.serving.reading import Queue, ReadTable, read_table
from predictor.timing import Calibration

ROUNDS = 6
"""Of the fixed point between how many requests decode at a time and how long they do."""


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
        self, one: InferencePrediction, held: InferencePrediction, rate: float
    ) -> Arriving:
        """What passes have on average at a rate of all replicas [1/s].

        one, held   of as many as run, without limits and under them
        """
        workers = float(one.plan.prefill_workers)
        free, under = (queue.at(rate, workers) for queue in (self.free, self.held))
        waiting = float(under.wait - free.wait)
        together = self.held_table.together(rate / workers, float(under.busy))
        work, alone = _decoding(one, held, rate / float(one.plan.dp))
        of = (one.model, one.cluster, one.plan, np.asarray(together), one.calibration)
        reads, passes = read_pass(*of)
        prompts = DeviceTime(reads.compute, reads.communication, reads.kernels, passes)
        return Arriving(
            work=replace(work, prompts=prompts, together=np.asarray(together)),
            alone=np.asarray(alone),
            reading=np.asarray(float(under.busy)),
            waiting=waiting,
            later=waiting + float(under.read - free.read),
        )


def read_under(
    given: tuple[Model, Cluster, Calibration],
    plan: ServingPlan,
    variation: float,
    lives: tuple[InferencePrediction, InferencePrediction] | None,
) -> ReadApart:
    """Workers of a plan.

    lives   of numbers of requests that run, without limits and under them; None: there are none
    """
    model, cluster, calibration = given
    of = (model, cluster, plan, calibration, variation)
    table = held = read_table(*of)
    before = behind = table.queue()
    if lives is not None:
        free, under = (np.asarray(one.work.prompts.compute, float) for one in lives)
        together = np.broadcast_to(lives[0].work.together, free.shape)
        sizes, first = np.unique(together, return_index=True)
        longer = (under / free)[first]
        if np.any(longer != 1.0):
            held = read_table(*of, slower=(sizes, longer))
            behind = held.queue()
    return ReadApart(table, held, before, behind)


def _decoding(
    one: InferencePrediction, held: InferencePrediction, rate: float
) -> tuple[Work, float]:
    """Passes that decode on average while any does, by themselves, and the share of the time in
    which none does: requests of a replica come to it at a rate [1/s] and none waits (M/G/infinity:
    their number is Poisson's)."""
    plan, own = one.plan, one.parameters
    after = float(np.maximum(one.work.output_len - 1.0, 0.0) / one.work.per_pass)
    working = float(plan.working)
    slower = _longer(one, held)
    work, alone = one.work, 0.0
    for _ in range(ROUNDS):
        passes = replace(work.decoding, compute=work.decoding.compute * slower)
        load = rate * after * float(decode_time(replace(work, decoding=passes), own))
        alone = float(np.exp(-load))
        running = max(load / max(1.0 - alone, 1e-12), 1.0)
        sequences = np.asarray(running / max(min(working, running), 1.0))
        found = decode_pass(one.model, one.cluster, plan, sequences, one.calibration, one.listed)
        device = DeviceTime(found.compute, found.communication, found.kernels)
        captured = plan.captured(sequences)
        work = replace(work, decoding=device, sequences=sequences, captured=captured)
    return replace(work, running=np.asarray(running)), alone


def _longer(one: InferencePrediction, held: InferencePrediction) -> float:
    """How much longer limits make a pass that decodes as many as they leave."""
    if held.work is one.work:
        return 1.0
    of = (one.model, one.cluster, one.plan, held.work.sequences, one.calibration, one.listed)
    return float(np.asarray(held.work.decoding.compute) / decode_pass(*of).compute)

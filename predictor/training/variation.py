"""What a step and a run of a plan will take on machines that vary: the plan's layout, shares and
times put into `predictor.variation`.

Accelerators differ in what they compute, so that of the pipeline's time only kernels bound by
arithmetic and by memory spread with them; collectives have a spread of their own. A calibration has
seen real clusters, and contains the waiting of its `seen_gpus` accelerators: only what a plan waits
beyond that is added.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from predictor.arrays import Array, Index, Numeric
from predictor.plans import SHARDINGS, Passes, TrainingPlan
from predictor.records import dataclass
from predictor.timing import Timing
from predictor.training.decomposition import COMPUTE_TERMS, EXCHANGE_TERMS
from predictor.training.prediction import TrainingPrediction
from predictor.variation import (
    LEVELS,
    TERMS,
    Meeting,
    Profile,
    Series,
    Waiting,
    known,
    levels,
    stalled,
    waiting,
)
from predictor.variation.montecarlo import Lots, draw

P95 = LEVELS[1]

TALK = (*EXCHANGE_TERMS, "pp_communication")


@dataclass(frozen=True, slots=True, eq=False)
class Variation:
    """What a step will take, apart from how well it is known; arrays of the plans' shape.

    centre     the median step without stalls, what waiting adds beyond the calibration's in it [s]
    series     what varies from step to step
    meeting    who waits for whom
    gpu, work  standard deviations between accelerators and of stretches of work, over the
               pipeline's time
    share      of the step that is the pipeline
    waits      what waiting adds, over the pipeline's time
    seen       the same where calibrations were made
    """

    centre: Array
    series: Series
    meeting: Meeting
    gpu: Array
    work: Array
    share: Array
    waits: Waiting
    seen: Array
    step_time: Array

    def quantile(self, p: Numeric) -> Array:
        """Step time that is not exceeded with probability p [s]."""
        return np.asarray(self.centre * self.series.quantile(p))

    @property
    def added(self) -> Array:
        """What waiting adds to the predicted step [s]."""
        return np.asarray(self.centre - self.step_time)

    def average(self, steps: Numeric) -> tuple[Array, Array]:
        """Mean step of a run of so many, and its standard deviation from run to run [s]."""
        mean, spread = self.series.average(steps)
        return np.asarray(self.centre * mean), np.asarray(self.centre * spread)

    def drawn(self, draws: int, seed: int = 0) -> Lots:
        """The same by drawing lots, of a single plan."""
        return draw(
            meeting=self.meeting,
            gpu=float(self.gpu),
            work=float(self.work),
            of=self.series.of,
            series=self.series,
            share=float(self.share),
            draws=draws,
            seed=seed,
        )


def meets(plan: TrainingPlan, stage_time: Numeric, memory_s: float) -> Meeting:
    """Who waits for whom in a step of a plan.

    stage_time  of a micro-batch on the slowest stage [s]
    memory_s    of the machine's noise [s]

    Ranks that meet inside a layer: of tensor and context parallelism; of experts, if those are
    more; those that share out weights, which are gathered layer by layer.
    """
    ranks = np.maximum(plan.tp * plan.cp, plan.ep * plan.etp)
    if SHARDINGS[plan.sharding].weights:
        ranks = np.maximum(ranks, plan.tp * plan.shard_group)
    ranks = np.minimum(ranks, plan.stage_ranks)
    return Meeting(
        ranks=ranks,
        stages=plan.pp,
        replicas=plan.gpus / (ranks * plan.pp),
        batches=plan.micro_batches,
        chunks=plan.vpp,
        sections=np.asarray(stage_time) / memory_s,
    )


def arithmetic_share(executions: Array, timing: Timing, unique: Index) -> Array:
    """Share of the kernels' time, on the slowest stage, that is bound by arithmetic.

    executions   of every operator in a step, (operators, *batch)
    timing       of distinct layers, of which `unique` says every plan's own
    """
    time, bound = timing.time, np.asarray(timing.bound) == 0
    if unique.ndim and time.ndim > 1:
        time, bound = time[:, unique], bound[:, unique]
    spent = executions * time
    return np.asarray((spent * bound).sum(axis=0) / np.maximum(spent.sum(axis=0), 1e-300))


def vary(found: TrainingPrediction, of: Profile, seen: Array | None = None) -> Variation:
    """What the steps of a plan, or of every plan of a batch, will take on machines of a profile
    (`vary_meeting`)."""
    bound = arithmetic_share(found.executions, found.timing, found.unique)
    meeting = meets(found.plan, slowest_pass(found.passes), of.memory_s)
    return vary_meeting(meeting, np.asarray(found.step_time), found.breakdown, bound, of, seen)


def slowest_pass(passes: Passes) -> Array:
    """Both passes of a micro-batch on the slowest stage [s], (*batch)."""
    whole = passes.forward + passes.backward + passes.weights
    return np.asarray(np.max(np.where(passes.present, whole, 0.0), axis=0))


def vary_meeting(
    meeting: Meeting,
    step: Array,
    terms: Mapping[str, Array],
    bound: Array,
    of: Profile,
    seen: Array | None = None,
) -> Variation:
    """What steps in which so many meet will take on machines of a profile.

    step, terms   as of `step.Step`
    bound  share of the kernels' time that is bound by arithmetic (`arithmetic_share`)
    seen   waiting that the calibration contains, over the pipeline's time; None: that of the
           profile's machines

    The pipeline is what lies before gradients, optimizer and loader; waiting that a loader makes
    anyway is not counted again.
    """
    loading = terms["data_loading"]
    ends = terms["dp_communication"] + terms["optimizer"]
    factor = (step - loading) / np.maximum(step - loading - terms["framework"], 1e-300)
    pipeline = step - loading - factor * ends
    kernels = sum((terms[name] for name in COMPUTE_TERMS), np.zeros(step.shape))
    talk = sum((terms[name] for name in TALK), np.zeros(step.shape))
    busy = np.maximum(kernels + talk + terms["host"] + terms["offload"], 1e-300)
    gpu = kernels / busy * np.hypot(bound * of.compute, (1.0 - bound) * of.memory)
    work = np.hypot(of.work * (1.0 - talk / busy), of.collectives * talk / busy)
    waits = waiting(meeting, gpu, work, of)
    if seen is None:
        seen = waiting(meeting.of(float(known()["seen_gpus"])), gpu, work, of).whole
    more = np.maximum(waits.whole - seen, 0.0)
    share = pipeline / step
    centre = step + np.maximum(more * pipeline - loading, 0.0)
    gradients = of.collectives * factor * terms["dp_communication"] / step
    series = Series(
        same=np.asarray(of.step) + np.zeros(step.shape),
        fresh=np.hypot(waits.step * share, gradients),
        stalled=stalled(of.stalls, meeting.accelerators) + np.zeros(step.shape),
        run=np.hypot(of.run, waits.allocation * share),
        of=of,
    )
    return Variation(
        centre=centre,
        series=series,
        meeting=meeting,
        gpu=gpu,
        work=work,
        share=share,
        waits=waits,
        seen=seen,
        step_time=step,
    )


def sensitivity(found: TrainingPrediction, of: Profile) -> dict[str, Array]:
    """What each term of a profile, taken away by itself, takes off the P95 of a step [s]. What the
    calibration contains stays."""
    whole = vary(found, of)
    p95 = whole.quantile(P95)
    return {
        term: np.asarray(p95 - vary(found, of.without(term), whole.seen).quantile(P95))
        for term in TERMS
        if term != "run"
    }


def told(
    own: Variation, less: Mapping[str, Array], steps: float, at: int | None = None
) -> dict[str, Any]:
    """What varies of one plan, as `--json` writes it; every key carries its unit.

    less    its sensitivity
    steps   of the run
    at      position in the batch; None: `own` is of a single plan
    """

    def one(value: Numeric) -> float:
        array = np.asarray(value, float)
        return float(array if at is None or not array.ndim else array[at])

    mean, spread = (one(value) for value in own.average(steps))
    step = {f"p{round(100 * p)}": one(own.quantile(p)) for p in LEVELS}
    run = {
        f"p{round(100 * p)}_s": float(v) for p, v in zip(LEVELS, levels(mean, spread), strict=True)
    }
    pipeline, waits = one(own.share * own.step_time), own.waits
    return {
        "profile": own.series.of.name,
        "step_time_s": step,
        "p95_over_p50": step["p95"] / step["p50"],
        "p99_over_p50": step["p99"] / step["p50"],
        "run": {"steps": steps, "mean_step_time_s": mean, "sd_s": spread, **run},
        "waiting_s": {
            "ranks": pipeline * one(waits.ranks),
            "stages": pipeline * one(waits.stages),
            "replicas": pipeline * one(waits.replicas),
            "in_calibration": pipeline * one(own.seen),
            "added": one(own.added),
        },
        "stalled_share": one(own.series.stalled),
        "p95_less_s": {term: one(value) for term, value in less.items()},
    }


def checked_by_lots(own: Variation, draws: int) -> dict[str, float]:
    """Closed forms of a single plan beside what lots say, as `--json` writes it."""
    lots = own.drawn(draws)
    p50, p95, p99 = (float(own.series.quantile(p)) for p in LEVELS)
    return {
        "draws": float(draws),
        "waiting_share": float(own.waits.whole),
        "waiting_share_drawn": lots.shift,
        "waiting_share_drawn_sd": lots.error,
        "p95_over_p50": p95 / p50,
        "p95_over_p50_drawn": lots.quantile[1] / lots.quantile[0],
        "p99_over_p50": p99 / p50,
        "p99_over_p50_drawn": lots.quantile[2] / lots.quantile[0],
    }

"""Assemble a training prediction: operators, collectives, schedule and memory in one step time.

One code path serves a single plan and a batch of many: operators are timed once per distinct set
of the fields on which they depend (`plan.LAYER_FIELDS`), then gathered.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from predictor.arrays import Array, Numeric, filled, shape_of, varying
from predictor.errors import InputError
from predictor.hardware import Cluster
from predictor.memory import Memory, kept_by, memory
from predictor.models import CONVENTIONS, Model, hardware_flop_per_token, model_flop_per_token
from predictor.plans import (
    LINE,
    STAGES,
    Event,
    Passes,
    TrainingPlan,
    enforce,
    pipeline_rules,
    timeline,
)
from predictor.records import dataclass
from predictor.timing import BOUNDS, Calibration, Timing
from predictor.training.decomposition import Parts, parts
from predictor.training.layer import Layers, Worklist, kernel_class
from predictor.training.ledger import KINDS, TERMS
from predictor.training.own import as_measured
from predictor.training.software import environment_of, stretched
from predictor.training.spread import interval
from predictor.training.step import Step, assemble
from predictor.work import Operator


@dataclass(frozen=True, eq=False)
class TrainingPrediction:
    """What is predicted for a plan or a batch of plans; arrays have the batch's shape. Memory and
    FLOPs are worked out when they are first asked for.

    step_time    [s]; low, high bound the calibration's interval
    sigma        log-standard-deviation of the step time
    passes       of one micro-batch on each kind of stage, over `factor`
    factor       of the framework, and of one's own runs, by which a step stretches its passes
    breakdown    seconds by term of `TERMS`, on the slowest stage
    hidden       seconds of communication that run behind computation, by kind of `KINDS`
    layer_time   forward and backward of one layer (the mean one) and micro-batch, exposed
                 communication included [s]
    need         memory, where it is not that of the plan on one system
    peak         of the linear layers' data type [FLOP/s per device]
    """

    model: Model
    cluster: Cluster
    plan: TrainingPlan
    calibration: Calibration
    step_time: Array
    low: Array
    high: Array
    sigma: Array
    passes: Passes
    factor: Numeric
    breakdown: dict[str, Array]
    hidden: dict[str, Array]
    layer_time: Array
    peak: Numeric
    operators: tuple[Operator, ...]
    timing: Timing
    executions: Array
    unique: npt.NDArray[np.intp]
    need: Memory | None = None

    def lasting(self, step: Array, breakdown: dict[str, Array]) -> TrainingPrediction:
        """The same step in another time [s], of other parts; its interval stretches with it."""
        ratio = step / self.step_time
        return replace(
            self, step_time=step, low=self.low * ratio, high=self.high * ratio, breakdown=breakdown
        )

    @cached_property
    def memory(self) -> Memory:
        """Peak memory by class and stage."""
        if self.need is not None:
            return self.need
        # A single plan is its own layers' base.
        plan = self.plan
        saved = None if plan.shape else kept_by(self.operators, self.model, plan)
        return memory(self.model, plan, self.calibration.run, saved)

    @property
    def p_oom(self) -> Array:
        """Probability that the peak does not fit."""
        capacity = self.cluster.accelerator.memory
        return self.memory.probability_over(capacity, self.calibration.run.memory_sigma)

    @cached_property
    def flop_per_token(self) -> dict[str, tuple[Numeric, Numeric]]:
        """Convention -> (model, hardware) FLOP per token."""
        return _conventions(self.model, self.plan)

    @property
    def tokens_per_step(self) -> Numeric:
        """Tokens that one step trains on, padding aside."""
        return self.plan.global_batch * self.plan.seq_len * self.plan.useful

    @property
    def tokens_per_s(self) -> Array:
        """Tokens per second of the whole cluster."""
        return np.asarray(self.tokens_per_step / self.step_time)

    def utilisation(self, convention: str, hardware: bool = False) -> Array:
        """Model (or hardware) FLOPs utilisation in a convention, of the dense peak, 0..1."""
        flop = self.flop_per_token[convention][1 if hardware else 0]
        return np.asarray(flop * self.tokens_per_s / (self.plan.gpus * self.peak))

    def timeline(self) -> list[Event]:
        """The pipeline of a single plan, event by event [s], before the framework's factor.

        Raises InputError for a batch of plans, where interleaved micro-batches do not fill whole
        groups of stages, and where the schedule asks for more of them.
        """
        plan = self.plan
        if plan.shape:
            raise InputError("a timeline is played for one plan, not for a batch")
        enforce(pipeline_rules(plan, self.model), plan)
        m, pp, vpp = (int(value) for value in (plan.micro_batches, plan.pp, plan.vpp))
        fills = int(plan.fills)
        if plan.pipeline.fold == LINE and vpp > 1 and m % (fills * pp):
            raise InputError(
                f"interleaving needs micro-batches in multiples of pp {pp}, not {m}; change "
                "--global-batch or --micro-batch"
            )
        of = self.passes
        hop = float(of.transfer), float(of.latency)
        return timeline(plan.schedule, *of.of_every_stage(), m, vpp, *hop, fills)


def _conventions(model: Model, plan: TrainingPlan) -> dict[str, tuple[Numeric, Numeric]]:
    """Model and hardware FLOP per token by convention; documents attend to themselves alone."""
    core = plan.recompute != "selective" or "core_attn" in plan.recompute_parts
    again = plan.recompute if core else "none"  # conventions count the attention core only
    frozen = plan.trained != "all"
    share = plan.recompute_share
    seen = np.where(np.isnan(plan.document), plan.seq_len, plan.document)
    return {
        name: (
            model_flop_per_token(model, seen, name, frozen),
            hardware_flop_per_token(model, seen, name, again, share, frozen, plan.unlearned),
        )
        for name in CONVENTIONS
    }


def units(found: Parts, step: Step) -> dict[str, Array]:
    """How often each module runs in a step on the slowest stage, (*batch)."""
    slowest = step.slowest[None]
    return {
        module: np.take_along_axis(value, slowest, axis=0)[0] * found.m
        for module, value in found.modules.items()
    }


def executions(found: Parts, listed: Worklist, step: Step) -> Array:
    """How often each operator runs in a step on the slowest stage, (operators, *batch)."""
    times = units(found, step)
    shape = listed.timing.time.shape[1:]
    counts = [filled(o.count, shape) for o in listed.operators]
    return np.stack(
        [
            times[operator.module] * found.spread(count)
            for operator, count in zip(listed.operators, counts, strict=True)
        ]
    )


def predict(
    model: Model,
    cluster: Cluster,
    plan: TrainingPlan,
    calibration: Calibration,
    layers: Layers | None = None,
) -> TrainingPrediction:
    """Predict one training step of a plan, or of every plan of a batch.

    model        a decoder
    cluster      accelerators and their network; their numbers may be arrays that broadcast with
                 the plan's: one machine for each plan
    plan         numeric fields are floats or arrays of one shape
    calibration  what has been fitted (`catalog.load`)
    layers       what `layers_of` found for the plans; found here if None

    Raises InputError for data types that the accelerator lacks. Whether a plan is possible at all
    is `plan.check`'s business, whether it fits is part of the result.
    """
    run = calibration.run
    if varying(cluster):
        shape = np.broadcast_shapes(plan.shape, shape_of(cluster))
        plan = replace(plan, tp=np.broadcast_to(plan.tp, shape))
    found, listed = parts(model, cluster, plan, calibration, layers)
    using = environment_of(cluster, plan, run)
    step = assemble(found, run, using)
    spread = run.spread(model.is_moe, plan.framework, plan.named, model.untimed)
    total_sigma = interval(step, using.factor, spread)
    of = model, cluster, plan
    step, using, total_sigma = as_measured(found, step, using, total_sigma, of, calibration)

    reach = np.exp(calibration.interval_q * total_sigma)
    architecture = cluster.accelerator.architecture
    classes = [(kernel_class(o, plan.attention, architecture), o.module) for o in listed.operators]
    factors = {each: stretched(run.factors, *each) for each in set(classes)}
    stretch = [factors[each] for each in classes]
    timing = replace(listed.timing, time=(listed.timing.time.T * stretch).T)
    return TrainingPrediction(
        model=model,
        cluster=cluster,
        plan=plan,
        calibration=calibration,
        step_time=step.step_time,
        low=step.step_time / reach,
        high=step.step_time * reach,
        sigma=total_sigma,
        passes=step.passes,
        factor=using.factor,
        breakdown=step.breakdown,
        hidden=step.hidden,
        layer_time=using.factor * step.layer_time,
        peak=cluster.accelerator.peak_for(plan.recipe.peak),
        operators=listed.operators,
        timing=timing,
        executions=executions(found, listed, step),
        unique=found.index,
    )


__all__ = ["BOUNDS", "KINDS", "STAGES", "TERMS", "TrainingPrediction", "predict"]

"""Assemble a training prediction: operators, collectives, schedule and memory in one step time.

One code path serves a single plan and a batch of many: operators are timed once per distinct set
of the fields on which they depend (`plan.LAYER_FIELDS`), then gathered.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from predictor.blocks import blocks
from predictor.collectives import collective_time
from predictor.communication import (
    Collective,
    gradient_collectives,
    groups,
    pipeline_collectives,
    step_collectives,
)
from predictor.efficiency import Calibration, RunParameters
from predictor.flops import CONVENTIONS, hardware_flop_per_token, model_flop_per_token
from predictor.hardware import Array, Cluster, Numeric
from predictor.kernels import BOUNDS, Timing, operator_times
from predictor.memory import Memory, StageParameters, memory, stage_parameters
from predictor.model import Model
from predictor.operators import Operator, step_operators, update_operators
from predictor.pipeline import STAGES, Stages, pipeline_time, stages
from predictor.plan import LAYER_FIELDS, SHARDINGS, TrainingPlan

TERMS = (
    "forward",
    "backward",
    "recompute",
    "tp_communication",
    "cp_communication",
    "ep_communication",
    "pp_communication",
    "host",
    "bubble",
    "dp_communication",
    "optimizer",
    "framework",
)
"""Terms of the breakdown; they add up to the step time."""

COMPUTE_TERMS = ("forward", "backward", "recompute")


@dataclass(frozen=True, slots=True, eq=False)
class TrainingPrediction:
    """What is predicted for a plan or a batch of plans; arrays have the batch's shape.

    step_time    [s]; low, high bound the calibration's interval
    sigma        log-standard-deviation of the step time
    breakdown    seconds by term of `TERMS`, on the slowest stage
    layer_time   forward and backward of one layer (the mean one) and micro-batch, exposed
                 communication included [s]
    memory       by class and stage; p_oom is the probability that it does not fit
    flop_per_token  convention -> (model, hardware) FLOP per token
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
    breakdown: dict[str, Array]
    layer_time: Array
    memory: Memory
    p_oom: Array
    flop_per_token: dict[str, tuple[Numeric, Numeric]]
    peak: Numeric
    operators: tuple[Operator, ...]
    timing: Timing
    executions: Array
    unique: npt.NDArray[np.intp]

    @property
    def tokens_per_step(self) -> Numeric:
        """Tokens that one step trains on."""
        return self.plan.global_batch * self.plan.seq_len

    @property
    def tokens_per_s(self) -> Array:
        """Tokens per second of the whole cluster."""
        return np.asarray(self.tokens_per_step / self.step_time)

    def utilisation(self, convention: str, hardware: bool = False) -> Array:
        """Model (or hardware) FLOPs utilisation in a convention, of the dense peak, 0..1."""
        flop = self.flop_per_token[convention][1 if hardware else 0]
        return np.asarray(flop * self.tokens_per_s / (self.plan.gpus * self.peak))

    def training_time(self, tokens: float) -> Array:
        """Time to train on a number of tokens without interruption [s]."""
        return np.asarray(tokens / self.tokens_per_s)


def _distinct(plan: TrainingPlan) -> tuple[TrainingPlan, npt.NDArray[np.intp]]:
    """Plans with distinct layer fields, and for every plan the index of its own among them."""
    shape = plan.shape
    if not shape:
        return plan, np.zeros((), dtype=np.intp)
    table = np.stack(
        [np.broadcast_to(getattr(plan, name), shape).ravel() for name in LAYER_FIELDS], axis=1
    )
    codes = np.zeros(len(table), dtype=np.int64)
    for column in table.T:
        values, inverse = np.unique(column, return_inverse=True)
        codes = codes * len(values) + inverse
    _, first, inverse = np.unique(codes, return_index=True, return_inverse=True)
    flat = plan.take(np.arange(len(table))) if len(shape) == 1 else plan
    return flat.take(first), inverse.reshape(shape)


@dataclass(frozen=True, slots=True, eq=False)
class _Sums:
    """Seconds per micro-batch by module and term, and by family (for the interval)."""

    terms: dict[tuple[str, str], Array]
    families: dict[tuple[str, str], Array]
    kernels: dict[str, Array]
    sigmas: dict[str, Array]

    def add(self, module: str, term: str, family: str, time: Array, sigma: Array) -> None:
        for table, key in ((self.terms, (module, term)), (self.families, (module, family))):
            table[key] = table[key] + time if key in table else time
        self.sigmas[family] = np.maximum(self.sigmas.get(family, 0.0), sigma)


def _layer_sums(
    operators: list[Operator],
    timing: Timing,
    collectives: Iterable[Collective],
    plan: TrainingPlan,
    cluster: Cluster,
    calibration: Calibration,
) -> _Sums:
    """Add up the operators and the exposed collectives of each module."""
    sums = _Sums({}, {}, {}, {})
    shape = plan.shape
    for index, operator in enumerate(operators):
        time = timing.time[index] * operator.count
        sums.add(operator.module, operator.phase, timing.family[index], time, timing.sigma[index])
        launched = sums.kernels.get(operator.module, np.zeros(shape))
        sums.kernels[operator.module] = launched + operator.count
    position = {operator.name: index for index, operator in enumerate(operators)}
    ranks = groups(plan)
    for collective in collectives:
        if not np.any(
            np.asarray(collective.count) * (np.asarray(ranks[collective.group].size) > 1)
        ):
            continue
        time, sigma = collective_time(
            collective.op,
            collective.bytes,
            ranks[collective.group],
            cluster,
            calibration,
            collective.copies,
        )
        time = time * collective.calls
        if collective.behind:
            # Kinds without a share of their own hide as tensor parallelism does.
            overlap = calibration.run.overlap
            share = overlap.get(collective.group, overlap.get("tp", 0.0))
            time = np.maximum(time - share * timing.time[position[collective.behind]], 0.0)
        time = time * collective.count
        term = (
            "ep_communication" if collective.group == "etp" else f"{collective.group}_communication"
        )
        sums.add(collective.module, term, collective.op, np.broadcast_to(time, shape), sigma)
    return sums


def _gradient_time(
    plan: TrainingPlan,
    at: Stages,
    parameters: StageParameters,
    windows: dict[str, Array],
    cluster: Cluster,
    calibration: Calibration,
) -> tuple[Array, Array]:
    """Exposed data-parallel communication of a step by stage kind [s], (3, *batch), and sigma.

    windows  seconds of one micro-batch's forward and backward pass on each stage kind.

    What hides does so behind the passes of one micro-batch (all of them, where the communication
    repeats with every micro-batch); the last bucket, one part in layers + 1, never hides.
    """
    ranks = groups(plan)
    dense, experts = parameters.dense, parameters.expert
    shape = parameters.layers.shape
    per_micro_batch = SHARDINGS[plan.sharding].per_micro_batch
    repeats = plan.micro_batches if per_micro_batch else 1.0
    hidden = {"forward": np.zeros(shape), "backward": np.zeros(shape)}
    exposed = np.zeros(shape)
    sigma = np.zeros(shape)
    for collective in gradient_collectives(plan, dense, experts, at.layers, parameters.tied):
        time, spread = collective_time(
            collective.op, collective.bytes, ranks[collective.group], cluster, calibration
        )
        time = time * collective.count
        sigma = np.maximum(sigma, spread)
        if collective.behind:
            hidden[collective.behind] = hidden[collective.behind] + time
        else:
            exposed = exposed + time
    share = calibration.run.overlap.get("dp", 0.0)
    for phase, time in hidden.items():
        left = time - share * windows[phase] * repeats
        exposed = exposed + np.maximum(left, time / (at.layers + 1.0) / repeats)
    return exposed, sigma


def _interval(shares: dict[str, Array], sigmas: dict[str, Array], run: RunParameters) -> Array:
    """sigma² = Σ over families (share of the step × sigma)² + sigma_run²."""
    variance: Array = np.asarray(run.sigma**2)
    for family, share in shares.items():
        variance = variance + (share * sigmas[family]) ** 2
    return np.asarray(np.sqrt(variance))


def predict(
    model: Model, cluster: Cluster, plan: TrainingPlan, calibration: Calibration
) -> TrainingPrediction:
    """Predict one training step of a plan, or of every plan of a batch.

    model        a decoder
    cluster      accelerators and their network
    plan         numeric fields are floats or arrays of one shape
    calibration  what has been fitted (`efficiency.load`)

    Raises InputError for data types that the accelerator lacks. Whether a plan is possible at all
    is `plan.check`'s business, whether it fits is part of the result.
    """
    accelerator, run = cluster.accelerator, calibration.run
    shape = plan.shape
    base, index = _distinct(plan)
    operators = step_operators(model, base)
    timing = operator_times(operators, accelerator, calibration, base.shape, sustained=True)
    sums = _layer_sums(operators, timing, step_collectives(model, base), base, cluster, calibration)

    def spread(value: Array) -> Array:
        return np.asarray(value)[index] if shape else np.asarray(value)

    at = stages(model, plan)
    weight = blocks(model, plan, at)
    full = (3, *shape)
    terms = {term: np.zeros(full) for term in TERMS}
    for (module, term), time in sums.terms.items():
        terms[term] = terms[term] + weight[module] * spread(time)
    families = {family: np.zeros(full) for family in sums.sigmas}
    for (module, family), time in sums.families.items():
        families[family] = families[family] + weight[module] * spread(time)
    sigmas = {family: spread(value) for family, value in sums.sigmas.items()}

    ranks = groups(plan)
    windows = {
        "forward": terms["forward"],
        "backward": terms["backward"] + terms["recompute"],
    }
    for collective in pipeline_collectives(model, plan):
        time, sigma = collective_time(
            collective.op, collective.bytes, ranks["pp"], cluster, calibration
        )
        time = time * collective.count * plan.vpp
        if collective.behind:
            time = np.maximum(time - run.overlap.get("pp", 0.0) * windows[collective.phase], 0.0)
        terms["pp_communication"] = terms["pp_communication"] + time
        families["p2p"] = families.get("p2p", np.zeros(full)) + time
        sigmas["p2p"] = np.maximum(sigmas.get("p2p", 0.0), sigma)

    device: Array = sum((terms[term] for term in TERMS), np.zeros(full))
    launches = sum(
        (weight[module] * spread(count) for module, count in sums.kernels.items()), np.zeros(full)
    )
    # A CPU runs its kernels itself; their latency is part of their time.
    host = (0.0 if accelerator.is_host else run.host_per_kernel) * launches
    terms["host"] = np.maximum(host - device, 0.0)
    stage_time = device + terms["host"]

    m = plan.micro_batches
    # Communication and host time are spread over the two passes as their kernels are.
    compute: Array = sum((terms[term] for term in COMPUTE_TERMS), np.zeros(full))
    ahead = terms["forward"] / np.maximum(compute, 1e-30)
    busy = pipeline_time(ahead * stage_time, (1.0 - ahead) * stage_time, at.count, m, plan.vpp)
    slowest = np.argmax(np.where(at.count > 0, stage_time, -1.0), axis=0)

    def critical(value: Array) -> Array:
        """Value of the slowest stage kind."""
        chosen = np.take_along_axis(np.broadcast_to(value, full), slowest[None], axis=0)
        return np.asarray(chosen[0])

    parameters = stage_parameters(model, plan, at)
    trained, experts = parameters.dense.trained, parameters.expert.trained
    present = at.count > 0
    exposed, dp_sigma = _gradient_time(plan, at, parameters, windows, cluster, calibration)
    if SHARDINGS[plan.sharding].optimizer:
        trained, experts = trained / plan.shard_group, experts / plan.expert_shard_group
    updates = update_operators(plan, trained + experts)
    update_timing = operator_times(updates, accelerator, calibration, full)
    update = np.where(present, update_timing.time.sum(axis=0), 0.0)
    after = np.where(present, exposed, 0.0) + update
    last = np.argmax(after, axis=0)[None]
    factor = run.factors.get(f"{plan.framework}/{plan.era}", run.factors.get(plan.framework, 1.0))

    breakdown = {term: m * critical(value) for term, value in terms.items()}
    rest = busy - sum(breakdown.values(), np.zeros(shape))
    breakdown["bubble"] = np.maximum(rest, 0.0)  # not below zero by rounding
    breakdown["dp_communication"] = np.take_along_axis(exposed, last, axis=0)[0]
    breakdown["optimizer"] = np.take_along_axis(update, last, axis=0)[0]
    neutral = sum(breakdown.values(), np.zeros(shape))
    breakdown["framework"] = (factor - 1.0) * neutral
    step_time = factor * neutral

    # A bubble is made of the same work, so its uncertainty is that of the families it consists of.
    stretch = busy / np.maximum(m * critical(stage_time), 1e-30)
    shares = {family: m * critical(value) * stretch / neutral for family, value in families.items()}
    shares["dp"] = breakdown["dp_communication"] / neutral
    sigmas["dp"] = np.max(np.where(present, dp_sigma, 0.0), axis=0)
    shares["optimizer"] = breakdown["optimizer"] / neutral
    sigmas["optimizer"] = np.max(np.where(present, update_timing.sigma, 0.0), axis=(0, 1))
    total_sigma = _interval(shares, sigmas, run)

    need = memory(model, plan, run)
    reach = np.exp(calibration.interval_q * total_sigma)
    core = plan.recompute != "selective" or "core_attn" in plan.recompute_parts
    again = plan.recompute if core else "none"  # conventions count the attention core only
    conventions = {
        name: (
            model_flop_per_token(model, plan.seq_len, name),
            hardware_flop_per_token(model, plan.seq_len, name, again, plan.recompute_share),
        )
        for name in CONVENTIONS
    }
    executions = np.stack(
        [
            np.broadcast_to(
                critical(weight[o.module])
                * spread(np.broadcast_to(np.asarray(o.count, float), base.shape))
                * m,
                shape,
            )
            for o in operators
        ]
    )
    in_a_layer = {
        "layer": 1.0,
        "dense": model.dense_share,
        "moe": model.moe_share,
    }
    layer_time: Array = sum(
        (in_a_layer.get(module, 0.0) * time for (module, _), time in sums.terms.items()),
        np.zeros(base.shape),
    )
    return TrainingPrediction(
        model=model,
        cluster=cluster,
        plan=plan,
        calibration=calibration,
        step_time=step_time,
        low=step_time / reach,
        high=step_time * reach,
        sigma=total_sigma,
        breakdown=breakdown,
        layer_time=spread(layer_time),
        memory=need,
        p_oom=need.probability_over(accelerator.memory, run.memory_sigma),
        flop_per_token=conventions,
        peak=accelerator.peak_for(plan.recipe.peak),
        operators=tuple(operators),
        timing=timing,
        executions=executions,
        unique=index,
    )


__all__ = ["BOUNDS", "STAGES", "TERMS", "TrainingPrediction", "predict"]

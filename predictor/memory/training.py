"""Bytes per device, by class and by kind of stage, from the same operator list as the times.

Activation bytes are the operators' `saved` tensors (Korthikanti et al. 2022, table 2 follows from
them); state is 18 bytes per parameter in mixed precision (Rajbhandari et al. 2020).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from predictor.arrays import Array, Numeric, filled
from predictor.memory.gathered import gathered_bytes
from predictor.memory.kept import GOING, Kept, in_turn, kept_by, on_stages
from predictor.memory.offload import host_states, kept_away
from predictor.memory.parameters import (
    dense_parameters,
    expert_parameters,
    layer_parameters,
    mixers_parameters,
    mixture_parameters,
)
from predictor.memory.reference import compared
from predictor.models import Model
from predictor.plans import LINE, SHARDINGS, Stages, TrainingPlan, blocks, in_flight, stages
from predictor.records import dataclass
from predictor.timing import RunParameters
from predictor.work import Held, held_by_blocks, step_operators

CLASSES = (
    "layer weights and optimizer",
    "expert weights and optimizer",
    "embedding and head weights and optimizer",
    *GOING,
    "backward workspace",
    "graphs of routers",
    "gathered layers",
    "context",
    "fragmentation",
)


MEMORY_FRACTION = 0.95
"""Share of a device's memory that a plan may take which is sought or filled in, unless another is
stated: a plan at the brim runs out of memory half of the time."""

UNHELD = (
    "rank_order",
    "tp_overlap",
    "tp_async_backward",
    "grad_overlap",
    "param_overlap",
    "p2p_overlap",
)
"""Categories of a plan that change nothing of what a device holds, nor break a law: which ranks are
neighbours, and which communication hides."""

HELD, SENT, GATHERED = "held", "sent", "gathered"
FRAGMENTATION, CONTEXT = "fragmentation", "context"
"""Keys 'held/FRAMEWORK' and so on of `RunParameters.factors`: see `Allocation`."""


@dataclass(frozen=True, slots=True)
class Allocation:
    """What a framework's allocation adds to the tensors of a step.

    held           bytes reserved per byte of activations on a stage of a pipeline, however many
                   micro-batches it has in flight: they come and go between longer-lived tensors
                   and leave holes, which those of a device that has all layers do not
    sent           copies of what a stage hands on, or got, that it keeps of every micro-batch in
                   flight beside what its layers keep
    gathered       buffers that stay, each of what all ranks of a tensor-parallel group gather of
                   a micro-batch's residual stream, where they split it
    fragmentation  share of all tensors that the allocator loses
    context        bytes that framework and libraries take beside it on several devices (`beside`)
    """

    held: float
    sent: float
    gathered: float
    fragmentation: float
    context: float


DRIVER = 0.6e9
"""What a process takes on its device before it has a communicator: the driver's context and the
libraries' handles (PyTorch on recent parts, from memory) [bytes]."""


WHOLE_WEIGHT = 2.0
"""Bytes of a weight of a model that every device builds whole: 16 bits, as it computes. What that
takes more than a step is a class by itself; there is no communicator yet, and nothing to lose."""


def divided(plan: TrainingPlan) -> Array:
    """1 where a plan runs on several devices, else 0. How many ways it divides its work in does not
    matter: with a share for each, fewer of the nanotron sweep's plans are told right."""
    return np.asarray(np.where(np.asarray(plan.gpus) > 1, 1.0, 0.0))


def beside(share: Numeric, context: float) -> Array:
    """What driver, libraries and communicators take beside the tensors [bytes]: a device by itself
    has no communicator.

    share    `divided(plan)`
    context  what plans on several devices take
    """
    return np.asarray(min(DRIVER, context) + max(context - DRIVER, 0.0) * np.asarray(share))


def allocation(run: RunParameters, framework: str) -> Allocation:
    """The allocation of a framework: fitted (`calibration.allocation`), else the defaults."""
    held, fragmentation, context = (
        run.factors.get(f"{key}/{framework}", 1.0) for key in (HELD, FRAGMENTATION, CONTEXT)
    )
    sent, gathered = (run.factors.get(f"{key}/{framework}", 0.0) for key in (SENT, GATHERED))
    return Allocation(
        held, sent, gathered, fragmentation * run.fragmentation, context * run.context
    )


@dataclass(frozen=True, slots=True, eq=False)
class Memory:
    """Peak memory; arrays of bytes.

    classes   by class, (3, *batch): first, inner and last stages
    present   whether the plan has a stage of the kind, (3, *batch)
    peak      of the fullest stage, (*batch)
    host      what the host keeps for the device for which it keeps most, (*batch)
    reserved  the allocator's part of it: without what driver and libraries take beside it
    tensors   the tensors' part of that: without what the allocator loses
    """

    classes: dict[str, Array]
    present: npt.NDArray[np.bool_]
    peak: Array
    reserved: Array
    tensors: Array
    host: Array

    def probability_over(self, capacity: Numeric, sigma: float) -> Array:
        """Probability that the peak exceeds `capacity` [bytes], log-normal with `sigma`."""
        z = np.log(self.peak / capacity) / sigma
        normal = np.vectorize(lambda x: 0.5 * (1.0 + math.erf(x / math.sqrt(2.0))), otypes=[float])
        return np.asarray(normal(z))


@dataclass(frozen=True, slots=True, eq=False)
class StageParameters:
    """Parameters that one rank holds before data-parallel sharding, (3, *batch).

    layers, experts, ends  of the layers without routed experts; of those; of embedding, output
                           projection and final norm
    adapters  low-rank adapters, where only they are trained
    tied      of an embedding that first and last stage both hold and train (0 where not)
    """

    layers: Array
    experts: Array
    ends: Array
    adapters: Array
    tied: Array
    frozen: bool

    @property
    def dense(self) -> Held:
        """All but the routed experts."""
        whole = self.layers + self.ends
        if self.frozen:
            return Held(whole + self.adapters, self.adapters)
        return Held(whole, whole)

    @property
    def expert(self) -> Held:
        """The routed experts."""
        return self.own(self.experts)

    def own(self, weights: Array) -> Held:
        """Weights of the model, none of which is trained where only adapters are."""
        return Held(weights, np.zeros_like(weights) if self.frozen else weights)


def stage_parameters(
    model: Model,
    plan: TrainingPlan,
    at: Stages,
    held: Mapping[str, Array],
    saved: Kept | None = None,
) -> StageParameters:
    """Parameters by kind of stage, of both stages where a device holds one from each end; a tied
    output projection is a copy where the ends lie apart.

    held    executions of each module on a stage (`plans.blocks`)
    saved   by the operators of the plan, if at hand; read where only adapters are trained
    """
    table = plan.vocab_share(model.vocab) * model.hidden
    wide = plan.vocab_share(model.vocab) * model.embedding_width
    positions = model.embedding_parameters - model.vocab * model.embedding_width
    positions = positions + model.input_projection + model.alternating_ends
    if model.ngram_embedding:
        positions = positions + model.ngram_layers * model.ngram_matrix
    last = model.stream_sum_matrix + model.stream_norm
    shared = np.minimum(at.embeds, at.heads) * (1.0 if model.tied_embeddings else 0.0)
    looked_up = wide if plan.vocab_parallel else wide * plan.tp
    ends = (
        at.embeds * (looked_up + positions)
        + at.heads * (table + model.norm_parameters + last)
        - shared * table
    )
    layers = (
        held["layer"] * mixers_parameters(model, plan.tp)
        + held["dense"] * dense_parameters(model, plan.tp)
        + held["moe"] * mixture_parameters(model, plan.tp)
        + held["mtp"] * 2.0 * model.hidden**2 / plan.tp
    )
    experts = held["moe"] * model.num_experts / plan.ep * expert_parameters(model, plan.etp)
    zero = np.zeros(np.broadcast_shapes(at.layers.shape, (3, *plan.shape)))
    frozen = plan.frozen
    adapters = zero
    if frozen:
        known = kept_by(step_operators(model, plan), model, plan) if saved is None else saved
        adapters = zero + on_stages(known.adapters, held)
    apart = model.tied_embeddings & (plan.pp > 1) & (plan.pipeline.fold == LINE)
    tied = np.where(apart, 0.0 if frozen else 1.0, 0.0) * np.maximum(at.embeds, at.heads) * table
    copies = plan.pipeline.copies
    return StageParameters(
        layers=filled(copies * layers, zero.shape),
        experts=filled(copies * experts, zero.shape),
        ends=filled(copies * ends, zero.shape),
        adapters=copies * adapters,
        tied=tied,
        frozen=frozen,
    )


def _built_whole(model: Model, plan: TrainingPlan) -> Numeric:
    """Weights of the model on every device before it is divided [bytes]; 0 where none has them."""
    if not plan.built_whole:
        return 0.0
    width = np.minimum(plan.frozen_bytes, WHOLE_WEIGHT) if plan.frozen else WHOLE_WEIGHT
    return width * model.parameters


def table_parameters(model: Model, plan: TrainingPlan) -> Held:
    """One device's part of the tables of n-grams, which all devices divide (`work.ngrams`)."""
    own: Numeric = model.ngram_parameters / np.asarray(plan.gpus)
    return Held(own, 0.0 * own if plan.frozen else own)


LAID = (
    "tp", "pp", "vpp", "ep", "etp", "first_layers", "last_layers", "inner_layers",
    "vocab_multiple", "schedule", "split", "vocab_parallel", "mtp", "trained",
)  # fmt: skip
"""Fields of a plan on which its layout depends where all of the model is trained."""


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """What lies on the stages of a pipeline, before recomputation and sharding.

    at          the stages
    held        executions of each module on them (`plans.blocks`)
    parameters  that they hold
    """

    at: Stages
    held: dict[str, Array]
    parameters: StageParameters


def lay_out(model: Model, plan: TrainingPlan, saved: Kept | None = None) -> Layout:
    """Layers and parameters of a plan, or a batch of plans, on their stages.

    saved   by the operators of the plan, if at hand
    """
    at = stages(model, plan)
    held = blocks(model, plan, at)
    return Layout(at, held, stage_parameters(model, plan, at, held, saved))


def state_bytes(
    plan: TrainingPlan, held: Held, group: Numeric, stored: Numeric | None = None
) -> Numeric:
    """Weight, gradient and optimizer bytes on one rank after sharding over `group`.

    stored   bytes of a weight; the plan's, if not given
    """
    sharding = SHARDINGS[plan.sharding]
    trained = plan.gradient_bytes / (group if sharding.gradients else 1.0)
    trained = trained * (1.0 - plan.gradients_gone)
    if plan.reduce_last:  # whole gradients, as they are reduced, stand in the place of their parts
        alone = plan.accumulates & (np.asarray(plan.pp) == 1)
        trained = np.where(alone, plan.reduce_bytes, trained)
    own = (1.0 - plan.offload_optimizer) * plan.optimizer_bytes
    trained = trained + own / (group if sharding.optimizer else 1.0)
    weights = (plan.weight_bytes if stored is None else stored) / (
        group if sharding.weights else 1.0
    )
    return held.weights * weights * (1.0 - plan.offload_weights) + held.trained * trained


def layer_activations(
    saved: Kept, plan: TrainingPlan, held: dict[str, Array]
) -> tuple[Array, Array]:
    """Bytes that the layers of a stage keep for one micro-batch, (3, *batch): as recomputation
    leaves them, and of one layer without any.

    held   executions of each module on a stage (`blocks.blocks`)
    """
    whole = on_stages(saved.whole, held)
    one = whole / np.maximum(held["layer"], 1.0)
    if plan.recompute == "full":
        # Only the input of the layer, which its first norm would have saved.
        share = plan.recompute_share
        inputs = saved.start * held["layer"] / plan.recompute_chunk
        return share * inputs + (1.0 - share) * whole, one
    if plan.recompute == "per_op":
        return saved.start * held["layer"] + on_stages(saved.outcomes, held), one
    if plan.recompute == "selective":
        return on_stages(saved.left, held), one
    return whole, one


def _behind(
    saved: Kept,
    model: Model,
    plan: TrainingPlan,
    held: dict[str, Array],
    one: Array,
    at: Stages,
) -> Array:
    """What the backward pass of a layer holds beside what was kept for it [bytes], (3, *batch): the
    gradients that pass through, what attention merges of several ranks, of layers recomputed
    whole all that one of them keeps, and by operator what comes again of one. The loss is through
    with the logits when it begins.

    held   executions of each module on a stage (`blocks.blocks`)
    one    that a layer keeps without recomputation
    """
    passing = np.zeros(held["layer"].shape)
    for module, value in saved.passing.items():
        passing = np.maximum(passing, np.where(held[module] > 0, value, 0.0))
    passing = passing + np.where(held["layer"] > 0, held_by_blocks(model, plan), 0.0)
    if plan.recompute == "full":
        return np.asarray(passing + one * np.clip(plan.recompute_chunk, 1.0, at.layers + 1.0))
    if plan.recompute == "per_op":
        kept = layer_activations(saved, plan, held)[0] / np.maximum(held["layer"], 1.0)
        return np.asarray(passing + np.maximum(one - kept, 0.0))
    return passing


def _routers(
    saved: Kept,
    plan: TrainingPlan,
    held: dict[str, Array],
    kept: Array,
    head: Numeric,
    behind: Array,
) -> Array:
    """What losses of routers keep when all layers have gone backward [bytes], (3, *batch): of
    layers that were checkpointed whole the mixer and the way to the router, as they ran again. It
    comes as what was there for these goes, so that what is more than that counts.

    held    executions of each module on a stage (`blocks.blocks`)
    kept    of the layers, for the backward pass
    head    of the output projection
    behind  beside the backward pass of a layer (`_behind`)
    """
    holds = plan.routers_kept and plan.recompute == "full"
    graphs = held["moe"] * (plan.recompute_share * saved.routed if holds else 0.0)
    return np.asarray(np.maximum(graphs + behind - kept - np.maximum(head, behind), 0.0))


def _piece(model: Model, plan: TrainingPlan) -> Numeric:
    """Parameters of a layer on a rank, as they are gathered."""
    experts = model.moe_share * model.num_experts * expert_parameters(model, plan.etp)
    return layer_parameters(model, plan.tp) + experts / plan.ep


def _buffers(model: Model, plan: TrainingPlan, count: float) -> Numeric:
    """Buffers of a micro-batch's whole residual stream on ranks that split it [bytes].

    count   `Allocation.gathered`
    """
    split = (np.asarray(plan.tp) > 1) & (np.asarray(plan.sequence_parallel) > 0)
    return np.where(split, count * plan.recipe.activation * plan.tokens * model.hidden, 0.0)


def memory(
    model: Model,
    plan: TrainingPlan,
    run: RunParameters,
    saved: Kept | None = None,
    laid: Layout | None = None,
) -> Memory:
    """Peak memory per device of a plan or a batch of plans.

    run          what frameworks' allocation differs by, context, fragmentation
    saved, laid  by the operators of the plan (`kept_by`), on its stages (`lay_out`), if at hand
    """
    saved = kept_by(step_operators(model, plan), model, plan) if saved is None else saved
    laid = laid or lay_out(model, plan, saved)
    at, held, parameters = laid.at, laid.held, laid.parameters
    kept, one = layer_activations(saved, plan, held)
    ends, adds = saved.ends, allocation(run, plan.framework)
    flying, several = in_flight(plan, at) / np.maximum(at.layers, 1.0), np.asarray(plan.pp) > 1
    kept = kept * np.where(several, adds.held, 1.0)
    layers, edges = parameters.own(parameters.layers), parameters.own(parameters.ends)
    adapters, experts = Held(parameters.adapters, parameters.adapters), parameters.expert
    group, expert_group = plan.shard_group, plan.expert_shard_group
    own = table_parameters(model, plan)
    zero = np.zeros(np.broadcast_shapes(at.layers.shape, (3, *plan.shape)))
    away = zero + kept_away(plan, held["layer"], flying, kept)
    stored = plan.frozen_bytes if plan.frozen else plan.weight_bytes
    head = plan.pipeline.copies * (held["head"] * ends["head"] + held["mtp"] * ends["mtp"])
    sent = np.where(several, adds.sent * flying * saved.start, 0.0)
    behind = _behind(saved, model, plan, held, one, at)
    classes = {
        "layer weights and optimizer": state_bytes(plan, layers, group, stored)
        + state_bytes(plan, adapters, group),
        "expert weights and optimizer": state_bytes(plan, experts, expert_group, stored),
        "embedding and head weights and optimizer": state_bytes(plan, edges, group, plan.ends_bytes)
        + state_bytes(plan, own, 1.0, stored),
        "activations": flying * kept - away + sent,
        "embedding and head activations": at.embeds * ends["embedding"] * flying + head,
        "backward workspace": np.maximum(behind - head, 0.0) + _buffers(model, plan, adds.gathered),
        "graphs of routers": _routers(saved, plan, held, flying * kept, head, behind),
        "gathered layers": gathered_bytes(plan, _piece(model, plan), at),
        "context": beside(divided(plan), adds.context),
        **compared(plan, parameters),
    }
    classes |= in_turn(plan, classes, (layers, adapters, edges, experts))
    whole = {name: filled(value, zero.shape) for name, value in classes.items()}
    present = np.broadcast_to(at.count > 0, zero.shape)
    subtotal: Array = sum(whole.values(), zero)
    whole["fragmentation"] = (subtotal - whole["context"]) * adds.fragmentation
    if np.any(built := _built_whole(model, plan)):
        rest = built + DRIVER - subtotal - whole["fragmentation"]
        whole["model built whole"] = np.maximum(rest, 0.0)
    parts = ((adapters, group, None), (edges, group, None), (own, 1.0, None))
    for part, ranks, wide in (*parts, (layers, group, stored), (experts, expert_group, stored)):
        away = away + host_states(plan, part, ranks, wide)
    peak = np.where(present, sum(whole.values(), zero), 0.0).max(axis=0)
    reserved = np.maximum(peak - beside(divided(plan), adds.context), built)
    tensors, host = (
        np.where(present, one, 0.0).max(axis=0) for one in (subtotal - whole["context"], away)
    )
    return Memory(whole, present, peak, reserved, np.maximum(tensors, built), host)

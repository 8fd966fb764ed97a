"""Bytes per device, by class and by kind of stage, from the same operator list as the times.

Activation bytes are the operators' `saved` tensors (Korthikanti et al. 2022, table 2 follows from
them); state is 18 bytes per parameter in mixed precision (Rajbhandari et al. 2020).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from predictor.efficiency import RunParameters
from predictor.hardware import Array, Numeric
from predictor.model import Model
from predictor.operators import Operator, step_operators
from predictor.pipeline import Stages, in_flight, stages
from predictor.plan import SHARDINGS, TrainingPlan

CLASSES = (
    "layer weights and optimizer",
    "embedding and head weights and optimizer",
    "activations",
    "embedding and head activations",
    "recomputation workspace",
    "gathered layers",
    "context",
    "fragmentation",
)


@dataclass(frozen=True, slots=True, eq=False)
class Memory:
    """Peak memory; arrays of bytes.

    classes   by class, (3, *batch): first, inner and last stages
    present   whether the plan has a stage of the kind, (3, *batch)
    peak      of the fullest stage, (*batch)
    """

    classes: dict[str, Array]
    present: npt.NDArray[np.bool_]
    peak: Array

    def probability_over(self, capacity: Numeric, sigma: float) -> Array:
        """Probability that the peak exceeds `capacity` [bytes], log-normal with `sigma`."""
        z = np.log(self.peak / capacity) / sigma
        normal = np.vectorize(lambda x: 0.5 * (1.0 + math.erf(x / math.sqrt(2.0))), otypes=[float])
        return np.asarray(normal(z))


@dataclass(frozen=True, slots=True, eq=False)
class StageParameters:
    """Parameters that one rank holds before data-parallel sharding, (3, *batch).

    layers, ends   of the layers; of embedding, output projection and final norm
    tied           of an embedding that first and last stage both hold (0 where not)
    """

    layers: Array
    ends: Array
    tied: Array

    @property
    def total(self) -> Array:
        """All of them."""
        return self.layers + self.ends


def layer_parameters(model: Model, tp: Numeric) -> Numeric:
    """Parameters of one dense layer on one tensor-parallel rank."""
    split, whole = model.layer_vectors
    # Key and value projections are replicated where tp exceeds the key/value heads.
    extra = np.maximum(tp / model.kv_heads, 1.0) - 1.0
    replicated = 2 * model.hidden * model.kv_width * extra
    matrices = model.attention_matrix + model.dense_ffn_matrix + replicated
    return (matrices + split) / tp + whole


def stage_parameters(model: Model, plan: TrainingPlan, at: Stages) -> StageParameters:
    """Parameters by kind of stage; a tied output projection is a copy where pp > 1."""
    table = plan.vocab_share(model.vocab) * model.hidden
    positions = model.embedding_parameters - model.vocab * model.hidden
    final_norm = model.hidden * (2 if model.norm == "layernorm" else 1)
    shared = at.embeds * at.heads * (1.0 if model.tied_embeddings else 0.0)
    ends = at.embeds * (table + positions) + at.heads * (table + final_norm) - shared * table
    copies = np.where(model.tied_embeddings & (plan.pp > 1), 1.0, 0.0)
    tied = copies * np.maximum(at.embeds, at.heads) * table
    return StageParameters(
        layers=at.layers * layer_parameters(model, plan.tp), ends=ends, tied=tied
    )


def bytes_per_parameter(plan: TrainingPlan) -> Numeric:
    """Weight, gradient and optimizer bytes per parameter on one rank after sharding."""
    sharding, group = SHARDINGS[plan.sharding], plan.shard_group
    return (
        plan.weight_bytes / (group if sharding.weights else 1.0)
        + plan.gradient_bytes / (group if sharding.gradients else 1.0)
        + plan.optimizer_bytes / (group if sharding.optimizer else 1.0)
    )


def layer_activations(operators: list[Operator], plan: TrainingPlan) -> tuple[Numeric, Numeric]:
    """Bytes a layer keeps for one micro-batch: (mean over layers as recomputation leaves them,
    without any)."""
    layer = [operator for operator in operators if operator.module == "layer"]
    whole: Numeric = sum((operator.saved for operator in layer), 0.0)
    if plan.recompute == "full":
        # Only the input of the layer, which its first norm would have saved.
        share = plan.recompute_share
        start = next(operator.saved for operator in layer if operator.op == "norm")
        return share * start + (1.0 - share) * whole, whole
    if plan.recompute == "per_op":
        # Kept: what attention saves, and the input of every other product.
        core = sum((o.saved for o in layer if o.core), 0.0)
        return core + 0.5 * sum((o.saved for o in layer if o.op == "gemm"), 0.0), whole
    if plan.recompute == "selective":
        dropped = [o.saved for o in layer if o.core and o.op in ("softmax", "elementwise")]
        return whole - sum(dropped, 0.0), whole
    return whole, whole


def memory(
    model: Model, plan: TrainingPlan, run: RunParameters, operators: list[Operator] | None = None
) -> Memory:
    """Peak memory per device of a plan or a batch of plans.

    run        context, fragmentation
    operators  `step_operators(model, plan)`, if at hand
    """
    operators = step_operators(model, plan) if operators is None else operators
    at = stages(model, plan)
    parameters = stage_parameters(model, plan, at)
    state = bytes_per_parameter(plan)
    kept, whole = layer_activations(operators, plan)
    ends = {
        module: sum((o.saved for o in operators if o.module == module), 0.0)
        for module in ("embedding", "head")
    }
    flying = np.where(at.layers > 0, in_flight(plan, at) / np.maximum(at.layers, 1.0), 0.0)
    sharding = SHARDINGS[plan.sharding]
    # Two gathered layers (one in use, one prefetched) and one layer's unreduced gradients.
    piece = layer_parameters(model, plan.tp) * (2 * plan.gather_bytes + plan.reduce_bytes)
    zero = np.zeros(np.broadcast_shapes(at.layers.shape, (3, *plan.shape)))
    classes = {
        "layer weights and optimizer": parameters.layers * state,
        "embedding and head weights and optimizer": parameters.ends * state,
        "activations": in_flight(plan, at) * kept,
        "embedding and head activations": at.embeds * ends["embedding"] * flying
        + at.heads * ends["head"],
        "recomputation workspace": whole if plan.recompute == "full" else zero,
        "gathered layers": piece if sharding.weights else zero,
        "context": run.context,
    }
    present = np.broadcast_to(at.count > 0, zero.shape)
    filled = {name: zero + np.asarray(value) for name, value in classes.items()}
    subtotal: Array = sum(filled.values(), zero)
    filled["fragmentation"] = (subtotal - filled["context"]) * run.fragmentation
    total = np.where(present, subtotal + filled["fragmentation"], 0.0)
    return Memory(filled, present, total.max(axis=0))

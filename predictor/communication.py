"""The work list's other half: which collectives one training step of a plan runs.

A parallelism is a set of collectives, each with the rank group that takes part and the operator
behind which it may hide; nothing else in the model knows the parallelism by name.

Volumes: Narayanan et al. 2021, section 3 (tensor and pipeline parallelism); Korthikanti et al.
2022, section 4.2 (sequence parallelism: the same volume forward, 1.25 times backward); Rajbhandari
et al. 2020 (sharded data parallelism); Liu et al. 2023 (ring attention).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from predictor.hardware import Numeric
from predictor.model import Model
from predictor.plan import SHARDINGS, TrainingPlan


@dataclass(frozen=True, slots=True, eq=False)
class Collective:
    """One collective call.

    op       'allreduce', 'allgather', 'reducescatter', 'alltoall', 'p2p'
    phase    'forward', 'recompute', 'backward' or 'update'
    module   'layer', 'embedding', 'head' (per micro-batch), 'stage' (per micro-batch and virtual
             stage), 'update' (per step)
    group    'tp', 'cp', 'pp', 'dp', 'shard', 'replicate', 'ends': the ranks that take part
    bytes    message size in nccl-tests' convention [bytes]
    count    executions per unit of `module`
    behind   name of the operator it overlaps with; '' if nothing hides it
    calls    calls per execution, which hide behind that operator together
    """

    name: str
    op: str
    phase: str
    module: str
    group: str
    bytes: Numeric
    count: Numeric = 1.0
    behind: str = ""
    calls: Numeric = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """Ranks of one parallel dimension: how many, and how far apart in rank order."""

    size: Numeric
    stride: Numeric


def groups(plan: TrainingPlan) -> dict[str, Group]:
    """Rank groups in Megatron's default order: TP innermost, then CP, DP and PP outermost."""
    inner = plan.tp * plan.cp
    shard = plan.shard_group
    return {
        "tp": Group(plan.tp, 1.0),
        "cp": Group(plan.cp, plan.tp),
        "dp": Group(plan.gradient_group, plan.tp),
        "shard": Group(shard, plan.tp),
        "replicate": Group(plan.gradient_group / shard, plan.tp * shard),
        "pp": Group(np.minimum(plan.pp, 2.0), inner * plan.dp),
        "ends": Group(np.minimum(plan.pp, 2.0), inner * plan.dp * np.maximum(plan.pp - 1.0, 1.0)),
    }


def _tensor_parallel(plan: TrainingPlan, whole: Numeric) -> list[Collective]:
    """Collectives around the two column- and two row-parallel products of a layer."""
    split = np.where(plan.sequence_parallel > 0, 1.0, 0.0)
    plain = 1.0 - split
    found: list[Collective] = []

    def add(name: str, op: str, phase: str, count: Numeric, behind: str) -> None:
        found.append(Collective(name, op, phase, "layer", "tp", whole, count, behind))

    forward: list[tuple[str, str, Numeric]] = [("forward", "", 1.0)]
    if plan.recompute == "full":
        forward.append(("recompute", ".again", plan.recompute_share))
    overlap, late = plan.tp_overlap, plan.tp_overlap or plan.tp_async_backward
    for enter, leave in (("attention.qkv", "attention.out"), ("mlp.up", "mlp.down")):
        for phase, again, share in forward:
            before, after = (f"{product}{again}" if overlap else "" for product in (enter, leave))
            add(f"{enter}.gather{again}", "allgather", phase, split * share, before)
            add(f"{leave}.scatter{again}", "reducescatter", phase, split * share, after)
            add(f"{leave}.reduce{again}", "allreduce", phase, plain * share, after)
        output = f"{leave}.dgrad" if overlap else ""
        inputs, weights = (f"{enter}.{grad}" if late else "" for grad in ("dgrad", "wgrad"))
        add(f"{leave}.gather.bwd", "allgather", "backward", split, output)
        add(f"{enter}.regather", "allgather", "backward", split, inputs)
        add(f"{enter}.scatter.bwd", "reducescatter", "backward", split, weights)
        add(f"{enter}.reduce.bwd", "allreduce", "backward", plain, weights)
    return found


def _ends(plan: TrainingPlan, whole: Numeric) -> list[Collective]:
    """Tensor-parallel collectives of the embedding and of the output projection."""
    split = np.where(plan.sequence_parallel > 0, 1.0, 0.0)
    scalar = 4.0 * plan.tokens  # fp32 maximum, sum and target logit of the split softmax
    return [
        Collective(
            "embedding.reduce", "allreduce", "forward", "embedding", "tp", whole, 1.0 - split
        ),
        Collective(
            "embedding.scatter", "reducescatter", "forward", "embedding", "tp", whole, split
        ),
        Collective(
            "embedding.gather.bwd", "allgather", "backward", "embedding", "tp", whole, split
        ),
        Collective("head.gather", "allgather", "forward", "head", "tp", whole, split),
        Collective("loss.reduce", "allreduce", "forward", "head", "tp", scalar, 3.0),
        Collective("head.reduce.bwd", "allreduce", "backward", "head", "tp", whole, 1.0 - split),
        Collective("head.scatter.bwd", "reducescatter", "backward", "head", "tp", whole, split),
    ]


def _context_parallel(model: Model, plan: TrainingPlan) -> list[Collective]:
    """Exchange of keys and values between the ranks that split a sequence."""
    kv = np.maximum(model.kv_heads / plan.tp, 1.0) * model.head_dim
    local = 2.0 * plan.recipe.activation * plan.tokens * kv
    found: list[Collective] = []
    flash = plan.attention != "unfused"
    core, gradient = (
        ("attention", "attention.bwd")
        if flash
        else ("attention.context", "attention.context.dgrad")
    )
    for phase, name, behind, volume in (
        ("forward", "attention.exchange", core, 1.0),
        ("recompute", "attention.exchange.again", f"{core}.again", 1.0),
        ("backward", "attention.exchange.bwd", gradient, 2.0),
    ):
        if phase == "recompute" and plan.recompute not in ("selective", "full"):
            continue
        again = plan.recompute_share if phase == "recompute" and plan.recompute == "full" else 1.0
        if plan.cp_kind == "ring":
            message, calls = volume * local, plan.cp - 1.0
            found.append(
                Collective(name, "p2p", phase, "layer", "cp", message, again, behind, calls)
            )
        else:
            message = volume * local * plan.cp
            found.append(Collective(name, "allgather", phase, "layer", "cp", message, again))
    return found


def step_collectives(model: Model, plan: TrainingPlan) -> list[Collective]:
    """Collectives of one micro-batch inside a stage: tensor and context parallelism."""
    whole = plan.recipe.activation * plan.tokens * float(model.hidden)
    return [
        *_tensor_parallel(plan, whole),
        *_ends(plan, whole),
        *_context_parallel(model, plan),
    ]


def pipeline_collectives(model: Model, plan: TrainingPlan) -> list[Collective]:
    """Transfers between stages, per micro-batch and virtual stage, forward and backward.

    Each rank of a tensor-parallel group sends its share of the sequence, or scatters the whole and
    gathers it again inside the node (Narayanan et al. 2021, section 4.1).
    """
    message = plan.recipe.activation * plan.tokens * float(model.hidden) / plan.tp
    behind = "stage" if plan.p2p_overlap else ""
    crossing = np.where(plan.pp > 1, 1.0, 0.0)
    return [
        Collective(f"pipeline.{phase}", "p2p", phase, "stage", "pp", message, crossing, behind)
        for phase in ("forward", "backward")
    ]


def gradient_collectives(
    plan: TrainingPlan, parameters: Numeric, layers: Numeric, shared: Numeric
) -> list[Collective]:
    """Collectives that keep the data-parallel replicas equal.

    parameters   of the stage, on one rank before data-parallel sharding
    layers       layers of the stage: sharded weights are gathered and reduced one by one
    shared       parameters of an embedding that first and last stage hold both (0 if untied)

    Counts are per step; those of fully sharded weights repeat with every micro-batch.
    """
    sharding = SHARDINGS[plan.sharding]
    repeats = plan.micro_batches if sharding.per_micro_batch else 1.0
    hide_reduce = "backward" if plan.grad_overlap else ""
    hide_gather = "forward" if plan.param_overlap else ""
    grads, weights = parameters * plan.reduce_bytes, parameters * plan.gather_bytes
    found: list[Collective] = []

    def add(
        name: str, op: str, phase: str, group: str, size: Numeric, count: Numeric, behind: str
    ) -> None:
        found.append(Collective(name, op, phase, "update", group, size, count, behind))

    if sharding.weights:
        pieces = layers + 1.0  # the layers, and the rest as one
        weight, grad, count = weights / pieces, grads / pieces, pieces * plan.micro_batches
        share = grad / plan.shard_group
        add("weights.gather", "allgather", "forward", "shard", weight, count, hide_gather)
        add("weights.regather", "allgather", "backward", "shard", weight, count, hide_reduce)
        add("gradients.scatter", "reducescatter", "backward", "shard", grad, count, hide_reduce)
        add("gradients.replicate", "allreduce", "backward", "replicate", share, count, hide_reduce)
    elif sharding.optimizer:
        add("gradients.scatter", "reducescatter", "backward", "dp", grads, repeats, hide_reduce)
        add("weights.gather", "allgather", "forward", "dp", weights, 1.0, hide_gather)
    else:
        add("gradients.reduce", "allreduce", "backward", "dp", grads, repeats, hide_reduce)
    crossing = np.where(plan.pp > 1, 1.0, 0.0)
    tied = shared * plan.gradient_bytes
    add("embedding.tie", "allreduce", "backward", "ends", tied, crossing, "")
    return found

"""The work list's other half: which collectives one training step of a plan runs.

A parallelism is a set of collectives, each with the rank group that takes part and the operator
behind which it may hide; nothing else in the model knows the parallelism by name.

Volumes: Narayanan et al. 2021, section 3 (tensor and pipeline parallelism); Korthikanti et al.
2022, section 4.2 (sequence parallelism: the same volume forward, 1.25 times backward); Rajbhandari
et al. 2020 (sharded data parallelism); Liu et al. 2023 (ring attention); Jacobs et al. 2023
(Ulysses); Lepikhin et al. 2020 (expert parallelism).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from predictor.arrays import Numeric
from predictor.models import Model, handed_width
from predictor.plans import SHARDINGS, TrainingPlan, distinct_share
from predictor.precision import ELEMENT_BYTES
from predictor.records import dataclass
from predictor.work import ngrams
from predictor.work.context import context_parallel
from predictor.work.mixture import expert_tokens
from predictor.work.primitives import Collective, Group
from predictor.work.recompute import comes_again, ends_early, region_repeats
from predictor.work.sparse import longer, pooled
from predictor.work.unlearned import UNLEARNED, gathered_again, unlearned_passes
from predictor.work.worklist import BLOCK_SCALED

PASSES = "passes"
"""What hides collectives of one micro-batch where its pass runs beside another micro-batch's: all
computation of both passes, shared among them (DeepSeek-AI 2024, section 3.2.1; Megatron Core's
overlap_moe_expert_parallel_comm)."""


def groups(plan: TrainingPlan) -> dict[str, Group]:
    """Rank groups in the plan's order of dimensions; the ranks of a stage once more in the order
    expert TP, EP, replicas of the experts.

    Ranks that do not follow one another evenly (those that share a gradient where another
    dimension lies between dp and cp; the experts' where pipelines lie inside the stage's ranks) are
    taken as spaced evenly over the same distance.
    """
    order = plan.rank_order.split("-")
    sizes = {"tp": plan.tp, "cp": plan.cp, "dp": plan.dp, "pp": plan.pp}
    stride: dict[str, Numeric] = {}
    whole: Numeric = 1.0
    for name in order:
        stride[name] = whole
        whole = whole * sizes[name]
    # Ranks of a stage that are neighbours, because no pipeline lies between them.
    within: Numeric = 1.0
    for name in order[: order.index("pp")]:
        within = within * sizes[name]
    reach = np.maximum(stride["cp"] * plan.cp, stride["dp"] * plan.dp)
    across = reach / (plan.dp * plan.cp)
    between = np.where(plan.stage_ranks > within, plan.pp, 1.0)
    if plan.pipeline.copies > 1:  # replicas of a stage lie over the whole pipeline
        across = whole / plan.gradient_group
        between = np.maximum(plan.pp / plan.pipeline.copies, 1.0)
    shard, expert = plan.shard_group, plan.ep * plan.etp
    expert_shard = plan.expert_shard_group
    apart = np.where(expert > within, plan.pp, 1.0)
    last = stride["pp"] * np.maximum(plan.pp - 1.0, 1.0)
    return {
        "tp": Group(plan.tp, stride["tp"]),
        "cp": Group(plan.cp, stride["cp"]),
        "dp": Group(plan.gradient_group, across),
        "shard": Group(shard, across),
        "replicate": Group(plan.gradient_group / shard, across * shard),
        "etp": Group(plan.etp, np.where(plan.etp > within, plan.pp, 1.0)),
        "ep": Group(plan.ep, plan.etp * apart),
        "edp": Group(plan.expert_gradient_group, expert * between),
        "eshard": Group(expert_shard, expert * between),
        "ereplicate": Group(
            plan.expert_gradient_group / expert_shard, expert * between * expert_shard
        ),
        "tables": Group(plan.gpus, 1.0),
        "pp": Group(np.minimum(plan.pp, 2.0), stride["pp"]),
        "ends": Group(np.minimum(plan.pp, 2.0), last),
    }


def _passes(plan: TrainingPlan, region: str) -> list[tuple[str, str, Numeric]]:
    """(phase, suffix of the operators, share of the layers) of every run of a region's forward
    pass."""
    share = region_repeats(region, plan)
    again = [] if share is None else [("recompute", ".again", share)]
    return [("forward", "", 1.0), *again, *unlearned_passes(plan)]


def _entered(plan: TrainingPlan) -> list[tuple[str, str, Numeric]]:
    """The same of what tensor-parallel ranks gather where checkpoints keep operators' outcomes:
    sums that are scattered are among these, what is gathered is not (`_op_sac_save_list`, models/
    llama3/infra/parallelize.py of torchtitan @ b39377f9f: `reduce_scatter_tensor` alone)."""
    return [("recompute", ".again", 1.0)] if plan.recompute == "per_op" else []


def _gathered(plan: TrainingPlan) -> tuple[float, float]:
    """Bytes of an element that is gathered for a narrow product, over one of an activation: of an
    input, which one product multiplies, and of a gradient, which two do.

    Ranks narrow their part before it is gathered (Transformer Engine from 2.0 of 2025-02 on,
    pytorch/distributed.py: `gather_along_first_dim` with a quantizer, nvfp4 since 2025-09;
    torchao's `Float8ColwiseParallel`); a gradient with scales by block travels in both directions.
    Scales by row are found after: "all distributed communication is done in high precision"
    (torchtitan docs/float8.md, 2025-06).
    """
    if plan.recipe.by_row:
        return 1.0, 1.0
    dtype, size = plan.recipe.linear, plan.recipe.activation
    share = ELEMENT_BYTES[dtype] / size
    return share, share * (2.0 if dtype in BLOCK_SCALED else 1.0)


@dataclass(frozen=True, slots=True, eq=False)
class Region:
    """A column-parallel product and the row-parallel one that ends the region between them.

    module, share   where it is, and in what share of the module's layers
    enter, leave    names of the two products
    message         bytes that are gathered before the first, in 16 bits
    narrow          bytes of what is gathered before the first over these
    """

    module: str
    share: Numeric
    enter: str
    leave: str
    message: Numeric
    narrow: float = 1.0


def _regions(model: Model, plan: TrainingPlan) -> list[Region]:
    """The tensor-parallel regions of a layer."""
    token = plan.recipe.activation * plan.tokens
    whole = token * float(model.hidden)
    attention, (narrow, _) = model.attention_share, _gathered(plan)
    if model.is_latent:  # the latents are gathered, in 16 bits, not the residual stream
        latent = (model.q_lora_rank or model.hidden) + model.kv_lora_rank + model.qk_rope_head_dim
        enter = "attention.q_up" if model.is_sparse else "attention.kv_up"
        found = [Region("layer", attention, enter, "attention.out", token * latent)]
    else:
        enter = "attention.down" if model.is_compressed else "attention.qkv"
        wide = whole * (model.attention_input / model.hidden)
        found = [Region("layer", attention, enter, "attention.out", wide, narrow)]
    if not model.attends:
        found = []
    if model.is_hybrid and not model.mamba_beside:  # side by side, as blocks below
        share = model.mamba_share
        found.append(Region("layer", share, "mamba.in", "mamba.out", whole, narrow))
    if model.delta_layers:
        found.append(Region("layer", model.delta_share, "delta.in", "delta.out", whole, narrow))
    if model.conv_layers:
        found.append(Region("layer", model.conv_share, "conv.in", "conv.out", whole, narrow))
    # Side by side, what both blocks put out is added up by the ranks once.
    if model.has_dense and not model.parallel:
        found.append(Region("dense", 1.0, "mlp.up", "mlp.down", whole, narrow))
    if model.is_moe and model.shared_width:
        found.append(Region("moe", 1.0, "shared.up", "shared.down", whole, narrow))
    return found


def _tensor_parallel(model: Model, plan: TrainingPlan, whole: Numeric) -> list[Collective]:
    """Collectives around the column- and row-parallel products of a layer."""
    split = np.where(plan.sequence_parallel > 0, 1.0, 0.0)
    plain = 1.0 - split
    found: list[Collective] = []
    overlap, late = plan.tp_overlap, plan.tp_overlap or plan.tp_async_backward
    # What is gathered is cast before it is multiplied: no product can start on a part of it.
    whole_first = plan.recipe.by_row
    # Frozen weights have no gradient to hide behind.
    weight_grad = "dgrad" if plan.frozen else "wgrad"
    late = overlap if plan.frozen else late
    for region in _regions(model, plan):
        enter, leave = region.enter, region.leave

        def add(
            name: str,
            op: str,
            phase: str,
            count: Numeric,
            behind: str,
            message: Numeric = whole,
            at: Region = region,
        ) -> None:
            count = at.share * count
            found.append(
                Collective(
                    name=name,
                    op=op,
                    phase=phase,
                    module=at.module,
                    group="tp",
                    bytes=message,
                    count=count,
                    behind=behind,
                )
            )

        for phase, again, share in (*_passes(plan, enter), *_entered(plan)):
            before, after = (f"{product}{again}" if overlap else "" for product in (enter, leave))
            repeated = phase == "recompute"
            if whole_first or (repeated and not comes_again(enter, model, plan)):
                before = ""
            gathered = region.narrow * region.message
            add(f"{enter}.gather{again}", "allgather", phase, split * share, before, gathered)
            if repeated and (ends_early(leave, model, plan) or plan.recompute == "per_op"):
                continue
            add(f"{leave}.scatter{again}", "reducescatter", phase, split * share, after)
            add(f"{leave}.reduce{again}", "allreduce", phase, plain * share, after)
        output = f"{leave}.dgrad" if overlap and not whole_first else ""
        inputs, weights = (f"{enter}.{grad}" if late else "" for grad in ("dgrad", weight_grad))
        message = region.message
        gradient = _gathered(plan)[1] * whole
        add(f"{leave}.gather.bwd", "allgather", "backward", split, output, gradient)
        if plan.tp_regather and not plan.frozen:
            both = region.narrow * message
            add(f"{enter}.regather", "allgather", "backward", split, inputs, both)
        add(f"{enter}.scatter.bwd", "reducescatter", "backward", split, weights, message)
        add(f"{enter}.reduce.bwd", "allreduce", "backward", plain, weights, message)
    return found


HANDLED = (153e-9, 106e-9, 18e-9)
"""Time that one processor takes to send a token once, or to add up what comes back of it [s]: for
every rank that it goes to, for every KiB of it, and for every KiB and rank. Read off DeepEP's
kernels for throughput on one host of H100, H200, B200, B300 and GB200 with 8 to 20 processors
(aiconfigurator's `wideep_deepep_normal` table: time falls as their number grows, and is alike on
all five, to a tenth). Nobody timed HybridEP's, which are taken to be as quick on each processor."""


def _handled(model: Model, plan: TrainingPlan, tokens: Numeric, turn: float) -> Numeric:
    """Time of a kernel that sends tokens once, or adds up what comes back of them, on the few
    processors that it is given, however fast the links [s].

    tokens   of a rank
    turn     as of a collective
    """
    rank, size, both = HANDLED
    kib = plan.recipe.activation * model.expert_width / 1024.0
    ranks = model.top_k * distinct_share(plan.ep, model.top_k, turn=turn)
    each = rank * ranks + kib * (size + both * ranks)
    return np.where(plan.ep > 1, tokens * each / plan.dispatch_processors, 0.0)


def _expert_parallel(model: Model, plan: TrainingPlan) -> list[Collective]:
    """The way of tokens to their experts and back.

    An all-to-all of all token copies among the expert-parallel ranks each way, preceded by the
    counts of tokens per expert; then a gathering among the ranks that split experts, and a
    reduction of their partial sums. Gradients go the same way backward.
    """
    if not model.is_moe:
        return []
    most = np.minimum(1.0, plan.ep / plan.expert_load)  # a rank is sent every copy at most
    copied = expert_tokens(model, plan) / plan.etp * np.where(plan.ep > 1, most, 1.0)
    sent = plan.recipe.activation * copied * model.expert_width
    copies = float(model.top_k) if plan.dispatch == "once" else 1.0
    turn = float(model.num_experts) if plan.routing == "in_turn" else np.nan
    handled = _handled(model, plan, copied / model.top_k, turn) if copies > 1.0 else 0.0
    found: list[Collective] = []

    def add(name: str, op: str, phase: str, group: str, size: Numeric, count: Numeric) -> None:
        hidden = PASSES if plan.ep_overlap and group == "ep" else ""
        shared = copies if op == "alltoall" else 1.0
        found.append(
            Collective(
                name=name,
                op=op,
                phase=phase,
                module="moe",
                group=group,
                bytes=size,
                count=count,
                behind=hidden,
                copies=shared,
                reach=plan.routed_nodes,
                turn=turn,
                least=handled if op == "alltoall" else 0.0,
            )
        )

    for phase, again, share in _passes(plan, "moe"):
        counts = 8.0 * model.num_experts * plan.ep  # integers of 64 bits, one per expert
        add(f"moe.counts{again}", "allgather", phase, "ep", counts, share)
        add(f"moe.dispatch{again}", "alltoall", phase, "ep", sent, share)
        add(f"moe.gather{again}", "allgather", phase, "etp", sent * plan.etp, share)
        add(f"moe.scatter{again}", "reducescatter", phase, "etp", sent * plan.etp, share)
        add(f"moe.combine{again}", "alltoall", phase, "ep", sent, share)
    add("moe.combine.bwd", "alltoall", "backward", "ep", sent, 1.0)
    add("moe.scatter.bwd", "allgather", "backward", "etp", sent * plan.etp, 1.0)
    add("moe.gather.bwd", "reducescatter", "backward", "etp", sent * plan.etp, 1.0)
    add("moe.dispatch.bwd", "alltoall", "backward", "ep", sent, 1.0)
    return found


def _ends(plan: TrainingPlan, whole: Numeric) -> list[Collective]:
    """Tensor-parallel collectives of the embedding and of the output projection."""
    split = np.where(plan.sequence_parallel > 0, 1.0, 0.0)
    plain = 1.0 - split
    scalar = 4.0 * plan.tokens  # fp32 maximum, sum and target logit of the split softmax
    ahead = 1.0 + np.asarray(plan.unlearned)
    return [
        Collective(
            "embedding.reduce", "allreduce", "forward", "embedding", "tp", whole, plain * ahead
        ),
        Collective(
            "embedding.scatter", "reducescatter", "forward", "embedding", "tp", whole, split * ahead
        ),
        Collective(
            "embedding.gather.bwd", "allgather", "backward", "embedding", "tp", whole, split
        ),
        Collective("head.gather", "allgather", "forward", "head", "tp", whole, split * ahead),
        Collective("loss.reduce", "allreduce", "forward", "head", "tp", scalar, 3.0 * ahead),
        Collective("head.reduce.bwd", "allreduce", "backward", "head", "tp", whole, plain),
        Collective("head.scatter.bwd", "reducescatter", "backward", "head", "tp", whole, split),
    ]


def _taught(model: Model, plan: TrainingPlan) -> list[Collective]:
    """What attention gives the keys that a token chose, added up over the heads of all ranks, for
    what the indexer learns (Megatron Core, dsa.py: an all-reduce in 32 bits); nothing of sequences
    that are no longer than what is chosen."""
    if not plan.index_loss or plan.frozen:
        return []
    found, blocks = [], max(model.attention_blocks, 1)
    length = np.where(np.isnan(plan.document), plan.seq_len, plan.document)
    for count, one in model.attention_kinds:
        if not one.chooses or one.index_block:  # whose index heads are divided as the others are
            continue
        columns = np.minimum(length / max(one.compression, 1), one.index_topk) / pooled(one)
        share: Numeric = model.attention_share * count / blocks
        share = share if one.is_compressed else share * longer(one, length)
        for phase, again, part in _passes(plan, "index"):
            if again == UNLEARNED:
                continue
            found.append(
                Collective(
                    name=f"index.target.reduce{again}",
                    op="allreduce",
                    phase=phase,
                    module="layer",
                    group="tp",
                    bytes=4.0 * plan.tokens * columns,
                    count=share * part,
                )
            )
    return found


def _selected(model: Model, plan: TrainingPlan) -> list[Collective]:
    """Step sizes, B and C of Mamba-1, which every rank projects from its channels and all add up;
    and their gradients, to which every rank's channels add."""
    if not model.mamba_rank:
        return []
    runs = [(f"reduce{again}", phase, part) for phase, again, part in _passes(plan, "mamba")]
    size = plan.recipe.activation * plan.tokens * float(model.mamba_selected_width)
    return [
        Collective(
            name=f"mamba.select.{name}",
            op="allreduce",
            phase=phase,
            module="layer",
            group="tp",
            bytes=size,
            count=model.mamba_share * part,
        )
        for name, phase, part in (*runs, ("reduce.bwd", "backward", 1.0))
    ]


def step_collectives(model: Model, plan: TrainingPlan) -> list[Collective]:
    """Collectives of one micro-batch inside a stage: tensor, context and expert parallelism."""
    whole = plan.recipe.activation * plan.tokens * float(model.hidden)
    return [
        *_tensor_parallel(model, plan, whole),
        *_ends(plan, whole),
        *_taught(model, plan),
        *_selected(model, plan),
        *ngrams.exchanged(model, plan),
        *context_parallel(model, plan),
        *_expert_parallel(model, plan),
    ]


def pipeline_collectives(model: Model, plan: TrainingPlan) -> list[Collective]:
    """Transfers between stages, per micro-batch and virtual stage, forward and backward.

    Each rank of a tensor-parallel group sends its share of the sequence, or scatters the whole and
    gathers it again inside the node (Narayanan et al. 2021, section 4.1).
    """
    each: Numeric = plan.recipe.activation
    if not np.all(np.isnan(plan.handed_bytes)):
        each = np.where(np.isnan(plan.handed_bytes), each, plan.handed_bytes)
    message = each * plan.tokens * handed_width(model) / plan.tp
    behind = "stage" if plan.p2p_overlap else ""
    crossing = np.where(plan.pp > 1, 1.0, 0.0)
    return [
        Collective(
            name=f"pipeline.{phase}",
            op="p2p",
            phase=phase,
            module="stage",
            group="pp",
            bytes=message,
            count=crossing * times,
            behind=behind,
        )
        for phase, times in (("forward", 1.0 + np.asarray(plan.unlearned)), ("backward", 1.0))
    ]


@dataclass(frozen=True, slots=True, eq=False)
class Held:
    """Parameters of one kind on one rank before data-parallel sharding, floats or arrays.

    weights   all of them, as they are gathered where sharded
    trained   those that have gradients
    """

    weights: Numeric
    trained: Numeric


def _update(
    name: str, op: str, phase: str, group: str, size: Numeric, count: Numeric, behind: str
) -> Collective:
    return Collective(
        name=name,
        op=op,
        phase=phase,
        module="update",
        group=group,
        bytes=size,
        count=count,
        behind=behind,
    )


def _replicas(
    plan: TrainingPlan, held: Held, kind: str, prefix: str, shard: Numeric, layers: Numeric
) -> Iterator[Collective]:
    """Collectives of one kind of parameters: groups `prefix`dp, `prefix`shard, ..."""
    hide_reduce = "backward" if plan.grad_overlap else ""
    hide_gather = "forward" if plan.param_overlap else ""
    sharding, repeats = SHARDINGS[plan.sharding], plan.exchanges
    grads, weights = held.trained * plan.reduce_bytes, held.weights * plan.gather_bytes
    scatter, gather = f"{kind}gradients.scatter", f"{kind}weights.gather"
    if sharding.weights:
        pieces = layers + 1.0  # the layers, and the rest as one
        weight, grad, count = weights / pieces, grads / pieces, pieces * repeats
        group = f"{prefix}shard"
        ahead = count * (1.0 + np.asarray(gathered_again(plan)))
        yield _update(gather, "allgather", "forward", group, weight, ahead, hide_gather)
        if plan.reshard:
            again = f"{kind}weights.regather"
            yield _update(again, "allgather", "backward", group, weight, count, hide_reduce)
        last = np.where(plan.accumulates, pieces, count)
        yield _update(scatter, "reducescatter", "backward", group, grad, last, hide_reduce)
        name, group = f"{kind}gradients.replicate", f"{prefix}replicate"
        yield _update(name, "allreduce", "backward", group, grad / shard, last, hide_reduce)
    elif sharding.optimizer:
        group = f"{prefix}dp"
        updated = held.trained * plan.gather_bytes
        yield _update(scatter, "reducescatter", "backward", group, grads, repeats, hide_reduce)
        yield _update(gather, "allgather", "forward", group, updated, 1.0, hide_gather)
    else:
        name, group = f"{kind}gradients.reduce", f"{prefix}dp"
        yield _update(name, "allreduce", "backward", group, grads, repeats, hide_reduce)


def gradient_collectives(
    plan: TrainingPlan, dense: Held, experts: Held, layers: Numeric, shared: Numeric
) -> list[Collective]:
    """Collectives that keep the data-parallel replicas equal.

    dense     of the stage, without its experts
    experts   of the stage; their replicas are other ranks than those of the rest
    layers    layers of the stage: sharded weights are gathered and reduced one by one
    shared    parameters of an embedding that first and last stage hold both (0 if untied)

    Counts are per step (`TrainingPlan.exchanges`).
    """
    found = [*_replicas(plan, dense, "", "", plan.shard_group, layers)]
    if np.any(experts.weights):
        found += _replicas(plan, experts, "experts.", "e", plan.expert_shard_group, layers)
    crossing = np.where(plan.pp > 1, 1.0, 0.0)
    tied = shared * plan.gradient_bytes
    found.append(_update("embedding.tie", "allreduce", "backward", "ends", tied, crossing, ""))
    return found

"""The work list of training: forward, backward and the optimizer of one step under a plan.

Timing, memory, the profiler and the calibration all read this one list, so nothing is counted
twice or in two ways. Its length depends on the model and on the plan's categories only; what a
plan does not do has count 0. All dimensions broadcast over a batch of plans.

Equations: Narayanan et al. 2021 (matrix shapes under tensor parallelism); Korthikanti et al. 2022
(activation bytes, sequence parallelism); Dao 2023 (attention without the score matrix).
"""

from __future__ import annotations

import numpy as np

from predictor.arrays import Numeric
from predictor.models import Model
from predictor.plans import FEW_BITS, FROZEN_BYTES, HUGGINGFACE, OPTIMIZERS, SHARDINGS, TrainingPlan
from predictor.records import replace
from predictor.work.communication import Held
from predictor.work.context import exchanges_heads, meets_blocks
from predictor.work.cores import Reading
from predictor.work.layer import embedding, head, layer_blocks, mean_layer
from predictor.work.mixture import expert_tokens
from predictor.work.primitives import Operator, streaming
from predictor.work.recompute import repeats
from predictor.work.setting import Learning, Portion, Software
from predictor.work.unlearned import gathered_again, unlearned_operators
from predictor.work.worklist import WorkList
from predictor.work.written import FULL


def training_list(model: Model, plan: TrainingPlan) -> WorkList:
    """An empty list of one micro-batch on one rank."""
    recipe = plan.recipe
    software = Software(
        core=recipe.core,
        size=recipe.activation,
        linear=recipe.linear,
        experts=recipe.linear,
        head=recipe.core,
        products=recipe.core,
        attention=plan.attention,
        chains=plan.fused,
        activations=plan.fused and not plan.activation_apart,
        rms=plan.fused or plan.fused_norm,
        direct=plan.dispatch == "once",
        by_row=recipe.by_row,
        clamps=plan.clamps_apart,
        looped=plan.experts_looped,
        apart=plan.framework == HUGGINGFACE,
        masked=plan.windows_masked,
        merges_apart=plan.merges_apart,
        repeats=plan.keys_repeated,
        norms=True,
        persistent=plan.norms_persist,
        stream=np.where(plan.stream_wide, 4.0, 0.0),
        wide=np.ceil(plan.wide_share * model.layers) / max(model.layers, 1),
    )
    rows = plan.tokens / np.where(plan.sequence_parallel > 0, plan.tp, 1.0)
    received: Numeric = 0.0
    if model.is_moe:
        received = expert_tokens(model, plan)
    portion = Portion(
        tp=plan.tp,
        ep=plan.ep,
        etp=plan.etp,
        tokens=plan.tokens,
        rows=rows,
        routed=plan.tokens / plan.tp,
        received=received,
        busy=np.minimum(model.num_experts / plan.ep, received),
        vocab=plan.vocab_share(model.vocab),
        turn=float(model.num_experts) if plan.routing == "in_turn" else np.nan,
    )
    learning = Learning(
        trained=plan.trained,
        rank=plan.lora_rank,
        style=plan.adapter_style,
        sent_narrow=np.where(plan.sent_narrow, 1.0, 0.0),
        dropout=plan.dropout,
        kept_rows=rows if plan.tp_regather or plan.recompute == "per_op" else plan.tokens,
        logits=plan.logit_bytes * (1.0 if plan.vocab_parallel else plan.tp),
        narrow=plan.saves_narrow,
        overwritten=np.where(plan.loss_in_one, 1.0, 0.0),
        index=plan.index_loss and not plan.frozen,
        stored=FROZEN_BYTES[plan.frozen_precision] if plan.frozen else 0.0,
        in_eight=plan.frozen and plan.frozen_precision == "int8",
        restores=plan.frozen and plan.frozen_precision in FEW_BITS and bool(plan.stream_widened),
    )
    return WorkList(model, software, portion, learning)


def training_reading(model: Model, plan: TrainingPlan) -> Reading:
    """The sequences of a micro-batch. Ulysses gives each context-parallel rank whole sequences of
    fewer heads (Jacobs et al. 2023); the other kinds, and what chooses or compresses keys
    (`context.exchanges_heads`), leave it all heads of a part of the sequence, cut so that all ranks
    have as many keys to see. Packed documents attend to themselves alone:
    as so many equal ones with as much attention."""
    whole = exchanges_heads(model, plan)
    sequences, length = plan.micro_batch, plan.seq_len
    if not np.all(np.isnan(plan.document)):
        length = np.where(np.isnan(plan.document), plan.seq_len, plan.document)
        sequences = plan.micro_batch * plan.seq_len / length
    return Reading(
        sequences=sequences,
        query=length + 0.0 * plan.cp if whole else length / plan.cp,
        keys=length,
        seen=model.mean_keys(length, False) * plan.attention_load,
        windowed=(
            model.mean_keys(length, True) * plan.attention_load if model.sliding_window else 0.0
        ),
        reach=length,  # the keys of all ranks come by
        split=plan.cp if whole else 1.0,
        blocks=plan.cp if meets_blocks(model, plan) else 1.0,
    )


def _recomputation(at: WorkList, plan: TrainingPlan) -> None:
    """The forward kernels of a layer that run once more before its backward pass."""
    for operator in list(at.operators):
        count = repeats(operator, at.model, plan)
        if operator.phase == "forward" and count is not None:
            at.operators.append(
                replace(
                    operator,
                    name=f"{operator.name}.again",
                    phase="recompute",
                    count=count * operator.count,
                    saved=0.0,
                )
            )


def _extra_prediction(at: WorkList) -> None:
    """What an extra prediction layer adds to a layer and a head: two norms, and a projection of
    its two inputs together (DeepSeek-AI 2024, DeepSeek-V3, section 2.2)."""
    rows, h = at.portion.rows, at.hidden
    at.norm("mtp.norm", rows, 2.0 * h)
    saved = 2 * at.size * rows * h
    at.linear("mtp.project", h / at.portion.tp, 2.0 * h, saved=saved, adapted=False)


def step_operators(model: Model, plan: TrainingPlan) -> list[Operator]:
    """Kernels of one micro-batch on one rank: the blocks of a layer (forward, backward, what is
    recomputed), the embedding, the output projection and the loss, and what of them runs without
    gradients besides; in a hybrid, the blocks of the mean layer.

    plan   one plan or a batch.

    `blocks.blocks` says how many of each module a stage has.
    """
    at = training_list(model, plan)
    layer_blocks(at, mean_layer(model), training_reading(model, plan))
    _recomputation(at, plan)
    embedding(at.on("embedding"))
    head(at.on("head"), plan.tokens)
    at.operators.extend(unlearned_operators(at.operators, plan))
    if model.mtp_layers and plan.mtp:
        _extra_prediction(at.on("mtp"))
    return at.operators


def flat_operators(plan: TrainingPlan, held: Held, shard: Numeric) -> list[Operator]:
    """Copies between flat buffers, in which sharded weights and gradients travel, and tensors of
    their own; none where nothing is divided. Counts are per step, as those of the collectives.

    held    parameters of one kind on this rank before they are divided
    shard   ranks that divide them

    What was gathered is read and written once more, where it is multiplied; gradients are read as
    narrow as activations, written as wide as they are reduced (PyTorch 2.9, `fully_shard`,
    _fsdp_collectives.py: foreach_all_gather_copy_out, foreach_reduce_scatter_copy_in), both on the
    stream that computes, so that they hide nowhere.
    """
    if not (plan.flat_copies and SHARDINGS[plan.sharding].weights):
        return []
    divided = np.where(np.asarray(shard) > 1, 1.0, 0.0) * plan.exchanges
    last = np.where(plan.accumulates, divided / plan.exchanges, divided)
    gathers = divided * ((2.0 if plan.reshard else 1.0) + gathered_again(plan))
    narrow = plan.recipe.activation
    return [
        streaming(
            name,
            "elementwise",
            "copy",
            *("update", "update", "fp32", parameters, 1.0, moved),
            count=count,
        )
        for name, parameters, moved, count in (
            ("weights.copy_out", held.weights, 2.0 * plan.gather_bytes, gathers),
            ("gradients.copy_in", held.trained, narrow + plan.reduce_bytes, last),
        )
    ]


def cast_operators(plan: TrainingPlan, held: Held) -> list[Operator]:
    """Casts of autocast: weights before they are multiplied, and their gradients, once for each
    micro-batch (PyTorch 2.11, aten/src/ATen/autocast_mode.cpp: `cached_cast` keeps a weight's copy
    until the block ends). Counts are per step; none without it.

    held    parameters of one kind on this rank
    """
    if not plan.autocast.any():
        return []
    times = np.where(plan.autocast, plan.micro_batches, 0.0)
    again = times * (1.0 + np.asarray(plan.unlearned))
    moved = 4.0 + plan.recipe.activation
    return [
        streaming(
            name, "elementwise", "copy", *("update", "update", "fp32", parameters, 1.0, moved),
            count=count,
        )
        for name, parameters, count in (
            ("weights.cast", held.weights, again), ("gradients.cast", held.trained, times),
        )
    ]  # fmt: skip


def sum_operators(plan: TrainingPlan, held: Held) -> list[Operator]:
    """Gradients of each micro-batch after the first, which are read, and added to what is there
    (PyTorch 1.11, torch/csrc/autograd/functions/accumulate_grad.h: `variable_grad += new_grad`).
    Counts are per step; none where products add them (`sums_apart`). Where narrow and wide ones
    stand side by side (more than four bytes), they are added to the wide ones.

    held    parameters of one kind on this rank
    """
    if not plan.sums_apart:
        return []
    summed = np.minimum(plan.gradient_bytes, FULL)
    moved, times = plan.recipe.activation + 2.0 * summed, plan.micro_batches - 1.0
    tags = ("update", "update", plan.recipe.core, held.trained, 1.0, moved)
    return [streaming("gradients.add", "elementwise", "add", *tags, count=times)]


def update_operators(plan: TrainingPlan, parameters: Numeric) -> list[Operator]:
    """Kernels of the optimizer step on one rank.

    parameters   parameters that this rank updates, float or array.

    Adam reads the gradient, the moments and the master copy (the weight itself where there is no
    other) and writes the last three and the weight, and so do others (`plans.optimizers`). With
    clipping, the norm reads the gradients and the scaling reads and writes them. Clearing writes
    them.
    """
    grads, states = plan.gradient_bytes, plan.optimizer_bytes
    own_master = np.where(states < 12, plan.weight_bytes, 0.0)
    adam = grads + 2 * states + own_master + plan.weight_bytes
    one = OPTIMIZERS[plan.optimizer]
    adam = adam + one.more
    clipping = grads * (4 if plan.grad_clip else 1)
    tags = ("update", "update", "fp32", parameters, 1.0)
    return [
        streaming(
            "optimizer", "optimizer", "adam", *tags, adam, stretch=one.stretch, worked=one.worked
        ),
        streaming("gradient.clip", "elementwise", "add", *tags, clipping),
    ]

"""The work list: which kernels one training step of a model under a plan runs.

Timing, memory, the profiler and the calibration all read this one list, so nothing is counted
twice or in two ways. Its length depends on the model and on the plan's categories only; what a
plan does not do has count 0. All dimensions broadcast over a batch of plans.

Equations: Narayanan et al. 2021 (matrix shapes under tensor parallelism); Korthikanti et al. 2022
(activation bytes, sequence parallelism); Dao 2023 (attention without the score matrix).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from predictor.arrays import Numeric
from predictor.errors import InputError
from predictor.models import Model
from predictor.plans import TrainingPlan
from predictor.work.attention import attention_block
from predictor.work.layers import Layers
from predictor.work.mamba import mamba_block
from predictor.work.mixture import mixture_block
from predictor.work.primitives import Operator, gemm, streaming
from predictor.work.recompute import repeats

LAYER_MODULES = ("layer", "dense", "moe")
"""Modules that make up the layers, which recomputation repeats."""


def _layer(at: Layers) -> None:
    """The blocks of one layer; in a hybrid, those of the mean layer."""
    model = at.model
    if model.only_served:
        raise InputError(
            f"training of {model.name} is not predicted yet: its attention (gated delta rules, "
            "gated outputs or chosen keys) is known while serving only"
        )
    attention_block(at.on("layer", model.attention_share))
    if model.is_hybrid:
        mamba_block(at.on("layer", model.mamba_share))
    if model.dense_share or not model.is_moe:
        dense = at.on("dense")
        dense.norm("mlp.norm")
        ffn = model.ffn_hidden / at.plan.tp
        dense.feed_forward("mlp", ffn, dense.size * dense.kept_rows * dense.hidden, model.bias)
        dense.residual("mlp.residual")
    if model.is_moe:
        mixture_block(at.on("moe"))


def _recomputation(at: Layers) -> None:
    """The forward kernels of a layer that run once more before its backward pass."""
    for operator in list(at.operators):
        count = repeats(operator, at.plan)
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


def _embedding(at: Layers, vocab: Numeric) -> None:
    """Look-up of rows; its backward pass clears a whole table of gradients and adds to it."""
    rows, h, size = at.tokens, at.hidden, at.size
    table = size * vocab * h
    found = [("embedding", "fwd", "forward", 2 * size * rows * h, at.mask * at.rows * h)]
    if not at.plan.frozen:
        found.append(("embedding.bwd", "bwd", "backward", 3 * size * rows * h + table, 0.0))
    for name, variant, phase, moved, saved in found:
        at.operators.append(
            Operator(
                name,
                "embedding",
                variant,
                phase,
                at.module,
                at.dtype,
                rows,
                h,
                vocab,
                bytes=moved,
                saved=saved,
            )
        )


def _ends(at: Layers) -> None:
    """Embedding on the first stage; final norm, output projection and loss on the last."""
    size, vocab = at.size, at.plan.vocab_share(at.model.vocab)
    _embedding(at.on("embedding"), vocab)
    head = at.on("head")
    head.norm("final.norm")
    head.linear("head", vocab, head.hidden, size * head.kept_rows * head.hidden, adapted=False)
    logits = head.plan.logit_bytes * head.tokens * vocab
    head.stream("loss", "loss", "fwd", "forward", head.tokens, vocab, size + 4, logits)
    head.stream("loss.bwd", "loss", "bwd", "backward", head.tokens, vocab, size + 4)


def _extra_prediction(at: Layers) -> None:
    """What an extra prediction layer adds to a layer and a head: two norms, and a projection of
    its two inputs together (DeepSeek-AI 2024, DeepSeek-V3, section 2.2)."""
    rows, h = at.rows, at.hidden
    at.norm("mtp.norm", rows, 2.0 * h)
    at.linear("mtp.project", h / at.plan.tp, 2.0 * h, 2 * at.size * at.rows * h, adapted=False)


def step_operators(model: Model, plan: TrainingPlan) -> list[Operator]:
    """Kernels of one micro-batch on one rank: the blocks of a layer (forward, backward, what is
    recomputed), the embedding, the output projection and the loss.

    plan   one plan or a batch.

    `blocks.blocks` says how many of each module a stage has.
    """
    at = Layers(model, plan)
    _layer(at)
    _recomputation(at)
    _ends(at)
    if model.mtp_layers and plan.mtp:
        _extra_prediction(at.on("mtp"))
    return at.operators


def update_operators(plan: TrainingPlan, parameters: Numeric) -> list[Operator]:
    """Kernels of the optimizer step on one rank.

    parameters   parameters that this rank updates, float or array.

    Adam reads the gradient, the moments and the master copy (the weight itself where there is no
    other) and writes the last three and the weight. With clipping, the norm reads the gradients
    and the scaling reads and writes them. Clearing writes them.
    """
    grads, states = plan.gradient_bytes, plan.optimizer_bytes
    own_master = np.where(states < 12, plan.weight_bytes, 0.0)
    adam = grads + 2 * states + own_master + plan.weight_bytes
    clipping = grads * (4 if plan.grad_clip else 1)
    tags = ("update", "update", "fp32", parameters, 1.0)
    return [
        streaming("optimizer", "optimizer", "adam", *tags, adam),
        streaming("gradient.clip", "elementwise", "add", *tags, clipping),
    ]


__all__ = ["LAYER_MODULES", "Operator", "gemm", "step_operators", "streaming", "update_operators"]

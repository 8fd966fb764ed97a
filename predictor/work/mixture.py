"""A mixture of experts: router, the way of tokens to their experts and back, and the experts.

Shazeer et al. 2017; GShard (Lepikhin et al. 2020) for the two all-to-alls; Megatron Core's layout,
in which `ep` ranks hold different experts and `etp` ranks split each of them.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from predictor.arrays import Numeric
from predictor.models import Model, has_wide_router
from predictor.plans import TrainingPlan, distinct_share
from predictor.work.primitives import grouped
from predictor.work.worklist import WorkList

CHOICE = 12.0
"""Traffic of the choice of experts per router logit [bytes]: fp32 logits are read and probabilities
written by the softmax, and read again by the choice of the largest."""

MAPPED = 4.0
"""The same of what follows where a matrix of tokens by experts says who goes where (Megatron Core's
routing map): it is written forward, and its gradient read backward. Engines go by the numbers of
the chosen experts alone, which are few."""


BIASED = (28.0, 40.0)
"""Traffic of the bias of the second product, forward and backward, per element of what it puts out
[bytes]. Megatron Core's `TEGroupedMLP._apply_bias` (main of 2026-05, moe/experts.py) leaves it to
PyTorch, expert by expert, with probabilities in fp32: bias times probability is written (4), added
to 16 bits (2 + 4 + 4), joined (4 + 4), narrowed (4 + 2). Backward the gradient is widened (2 + 4),
narrowed for the product (4 + 2) and joined (2 + 2); times probability it is written and summed over
tokens (4 + 4 + 4), times bias over columns (4 + 4 + 4). That of the first product is part of it."""


WEIGHED = 3.0
"""Reads per element of the activation's output by the gradient of the probability of a copy, by
which that output is multiplied: both inputs of a gated activation and the gradient of its output,
once more, for it is a sum over columns beside what is written for every element (Megatron Core
0.14 to 0.18, fusions/fused_bias_swiglu.py: `weighted_swiglu_back`)."""

CLAMPED = (16.0, 20.0)
"""Traffic of clamping both inputs of a gated activation, forward and backward, per element of its
output [bytes]: each half is read and written, and both are joined (8 + 8); backward the gradient of
each is masked by its input (6 + 6) and both are joined (8). Megatron Core 0.15 to 0.18,
fusions/fused_bias_geglu.py: `weighted_bias_quick_geglu_impl`. Models whose experts have biases are
those that clamp (gpt-oss)."""


LOOPED = (13.0, 20.0)
"""Kernels beside its products that an expert of a loop launches, forward and backward. Transformers
4.57 (models/mixtral/modeling_mixtral.py @ 00d4b3d2, MixtralSparseMoeBlock, and Qwen's alike):
its row of the mask (1), where that holds (3), rows that are gathered (1), the second side of the
gate (1), activation and product (2), weights of the router that are gathered, and multiplied (2),
what is added to the rest (1), 16-bit copies of its three weights, less the one that comes with each
product (2, autocast). Backward: a row that is gathered (1), both gradients of the weighting, one of
them summed (3), its scatter (3), two of the product, one of the activation (3), two more products
and the sum of both inputs' gradients (3), their scatter (4), and the fp32 gradients of three
weights (3). Kernels of a scatter are counted from memory."""


def expert_tokens(model: Model, plan: TrainingPlan) -> Numeric:
    """Token copies that the experts of one rank work on, per micro-batch.

    Each rank of an expert group sends its own tokens top_k times and receives as many, times
    `expert_load` on the busiest; the ranks that split experts see each other's.
    """
    return plan.tokens / plan.tp * model.top_k * plan.etp * plan.expert_load


def mixture_block(at: WorkList) -> None:
    """Norm, router, experts, shared experts and residual of one mixture block."""
    model, portion, size, h = at.model, at.portion, at.size, at.hidden
    own, width = portion.routed, float(model.expert_width)
    at.norm("moe.norm")
    at.linear(
        "moe.router",
        float(model.num_experts),
        h,
        saved=size * portion.rows * h,
        rows=own,
        adapted=False,
        dtype="fp32" if has_wide_router(model) and at.software.cache else at.software.core,
    )
    moved = CHOICE + (0.0 if at.software.experts_joined else MAPPED)
    at.stream(
        "moe.route",
        "softmax",
        "fwd",
        own,
        float(model.num_experts),
        moved,
        backward=("bwd", moved),
    )
    if model.expert_hidden:
        at.linear("moe.latent_down", width, h, rows=own, adapted=False)
    if at.software.experts_joined:
        _joined(at, width)
    else:
        _sorted(at, width)
    if model.expert_hidden:
        kept = size * own * width
        at.linear("moe.latent_up", h, width, saved=kept, rows=own, adapted=False)
    if model.shared_width:
        at.feed_forward("shared", model.shared_width / portion.tp, adapted=False)
        if not at.software.sums:
            at.stream("shared.add", "elementwise", "add", portion.rows, h, 3 * size)
    at.closing_norm("moe.closing_norm")
    at.residual("moe.residual")


def _permute(
    at: WorkList, name: str, rows: Numeric, width: float, streams: Numeric, times: Numeric = 1.0
) -> None:
    """Rows of `width` elements are put in another order, and their gradients back."""
    at.stream(
        name,
        "elementwise",
        "permute",
        rows,
        width,
        streams,
        backward=("permute", streams),
        times=times,
    )


def _beside(at: WorkList) -> tuple[float, float]:
    """Traffic beside an expert's activation, forward and backward, per element of its output
    [bytes]."""
    if at.learning is None:
        return 0.0, 0.0
    ahead, back = CLAMPED if at.software.clamps and at.model.expert_bias else (0.0, 0.0)
    reads = WEIGHED if at.model.gated else WEIGHED - 1.0
    return ahead, back + reads * at.size


def _joined(at: WorkList, width: float) -> None:
    """The experts in one kernel, as engines of inference run them, over the copies that came, which
    it finds in their order and adds up after: tables time `fused_experts` of vLLM, `fused_moe` of
    SGLang and TensorRT-LLM's module whole (ai-dynamo/aiconfigurator, collector/*/collect_moe*.py @
    095f58a). DeepGEMM's products behind DeepEP or over buffers do not."""
    model, portion, size = at.model, at.portion, at.size
    buffered = np.asarray(portion.buffered) > 0
    rows = np.where(buffered, portion.buffered, portion.received)
    apart = np.where(buffered | at.software.ordered, 1.0, 0.0)
    if np.any(apart):
        _permute(at, "moe.permute", portion.received, width, 2 * size, apart)
    at.operators.append(
        grouped(
            "moe.experts",
            at.module,
            at.software.experts,
            rows / portion.busy,
            model.expert_ffn_hidden / portion.etp,
            width,
            portion.busy,
            gated=model.gated,
            size=size,
            count=at.share,
            idle=portion.idle,
        )
    )
    if np.any(apart):
        _permute(at, "moe.unpermute", portion.received, width, 2 * size, apart)


def _one_by_one(at: WorkList, busy: Numeric) -> None:
    """What the host launches beside products where experts are a loop, with what was added last:
    the gather of their tokens, and its gradient.

    busy   experts that have tokens
    """
    if not at.software.looped:
        return
    extra = dict(zip(("forward", "backward"), LOOPED, strict=True))
    for place in range(-2 if at.learning else -1, 0):
        last = at.operators[place]
        kernels = last.kernels + busy * extra[last.phase]
        at.operators[place] = replace(last, kernels=kernels)


def _sorted(at: WorkList, width: float) -> None:
    """The experts as frameworks run them, as products of dense layers, one for each expert
    (Transformer Engine's GroupedLinear: cuBLAS on several streams), and the activation between.

    A token is read once and written top_k times on the way out, the other way round on the way
    back; copies that came from other ranks are sorted by expert. Where tokens travel once, the
    rank that they came to does the first, of the few copies that it has experts for, and nothing is
    left to sort (Megatron Core's `_DeepepManager` and `_HybridEPManager`,
    moe/token_dispatcher.py).
    """
    model, portion, size = at.model, at.portion, at.size
    received, busy = portion.received, portion.busy
    direct = at.software.direct
    copies = received if direct else portion.routed * model.top_k
    across = np.where((portion.ep > 1) & (not direct), 1.0, 0.0)
    sources = (
        distinct_share(portion.ep, model.top_k, turn=portion.turn) if direct else 1.0 / model.top_k
    )
    one_to_many, one_to_one = size * (1.0 + sources), 2 * size
    _permute(at, "moe.permute", copies, width, one_to_many)
    _one_by_one(at, busy)
    _permute(at, "moe.sort", received, width, one_to_one, across)
    _permute(at, "moe.unsort", received, width, one_to_one, across)
    _permute(at, "moe.unpermute", copies, width, one_to_many)
    inner = model.expert_ffn_hidden / portion.etp
    rows, kept = received / busy, size * received
    sides = 2.0 if model.gated else 1.0
    at.linear(
        "moe.up", sides * inner, width, saved=kept * width, rows=rows, groups=busy, adapted=False
    )
    at.activation("moe.activation", inner, rows=received, beside=_beside(at))
    at.linear("moe.down", width, inner, saved=kept * inner, rows=rows, groups=busy, adapted=False)
    if model.expert_bias:
        forward, backward = BIASED
        at.stream(
            "moe.bias",
            "elementwise",
            "expert_bias",
            received,
            width,
            forward,
            backward=("expert_bias", backward),
            alone=True,
        )

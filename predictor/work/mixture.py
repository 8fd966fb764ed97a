"""A mixture of experts: router, the way of tokens to their experts and back, and the experts.

Shazeer et al. 2017; GShard (Lepikhin et al. 2020) for the two all-to-alls; Megatron Core's layout,
in which `ep` ranks hold different experts and `etp` ranks split each of them.
"""

from __future__ import annotations

import numpy as np

from predictor.arrays import Numeric
from predictor.models import Model
from predictor.plans import TrainingPlan
from predictor.work.layers import Layers


def expert_tokens(model: Model, plan: TrainingPlan) -> Numeric:
    """Token copies that the experts of one rank work on, per micro-batch.

    Each rank of an expert group sends its own tokens top_k times and receives as many, times
    `expert_load` on the busiest; the ranks that split experts see each other's.
    """
    return plan.tokens / plan.tp * model.top_k * plan.etp * plan.expert_load


def mixture_block(at: Layers) -> None:
    """Norm, router, experts, shared experts and residual of one mixture block."""
    model, plan, size, h = at.model, at.plan, at.size, at.hidden
    own, width = at.split_tokens, float(model.expert_width)
    at.norm("moe.norm")
    kept = size * at.rows * h
    at.linear(
        "moe.router", float(model.num_experts), h, kept, rows=own, adapted=False, dtype=at.dtype
    )
    # Softmax, choice of the largest and counting are passes over fp32 logits.
    for suffix, variant, phase in (("", "fwd", "forward"), (".bwd", "bwd", "backward")):
        at.stream(f"moe.route{suffix}", "softmax", variant, phase, own, model.num_experts, 16.0)
    if model.expert_hidden:
        at.linear("moe.latent_down", width, h, 0.0, rows=own, adapted=False)
    copies, received = own * model.top_k, expert_tokens(model, plan)
    across = np.where(plan.ep > 1, 1.0, 0.0)
    # A token is read once and written top_k times on the way out, the other way round on the way
    # back; received tokens are sorted by expert.
    one_to_many, one_to_one = size * (1.0 + 1.0 / model.top_k), 2 * size
    for name, rows, streams, times in (
        ("moe.permute", copies, one_to_many, 1.0),
        ("moe.sort", received, one_to_one, across),
        ("moe.unsort", received, one_to_one, across),
        ("moe.unpermute", copies, one_to_many, 1.0),
    ):
        for suffix, phase in (("", "forward"), (".bwd", "backward")):
            at.stream(
                f"{name}{suffix}",
                "elementwise",
                "permute",
                phase,
                rows,
                width,
                streams,
                times=times,
            )
    _experts(at, received, width)
    if model.expert_hidden:
        kept = size * own * width
        at.linear("moe.latent_up", h, width, kept, rows=own, adapted=False)
    if model.shared_width:
        at.feed_forward("shared", model.shared_width / plan.tp, 0.0, False, adapted=False)
        at.stream("shared.add", "elementwise", "add", "forward", at.rows, h, 3 * size)
    at.residual("moe.residual")


def _experts(at: Layers, received: Numeric, width: float) -> None:
    """Both products of the experts on this rank, of those that have tokens, and the activation
    between them. Frameworks run them as products of dense layers, one for each expert
    (Transformer Engine's GroupedLinear: cuBLAS on several streams), not as engines of inference
    do."""
    model, plan, size = at.model, at.plan, at.size
    inner = model.expert_ffn_hidden / plan.etp
    busy = np.minimum(model.num_experts / plan.ep, received)
    rows = received / busy
    sides = 2.0 if model.gated else 1.0
    kept = size * received
    at.linear("moe.up", sides * inner, width, kept * width, rows=rows, groups=busy, adapted=False)
    at.activation("moe.activation", inner, rows=received)
    at.linear("moe.down", width, inner, kept * inner, rows=rows, groups=busy, adapted=False)

"""The state-space block (Mamba-2): projections, a short convolution, and the scan in chunks.

Dao and Gu 2024 (arXiv 2405.21060), section 6: within chunks of Q tokens the scan is a masked
attention, between them a recurrence of states; both are products of small matrices. Check: on A100
the scan takes as long as FlashAttention-2 over 2,048 tokens (their figure 10).
"""

from __future__ import annotations

from predictor.work.layers import Layers

CHUNK = 128.0
"""Tokens of a chunk: the default of Megatron Core's and of the published Nemotron-H models."""


def mamba_block(at: Layers) -> None:
    """Norm, projections, convolution, scan and residual of one state-space block."""
    model, plan, size = at.model, at.plan, at.size
    heads, p, state = model.mamba_heads / plan.tp, model.mamba_head_dim, model.mamba_state
    groups = model.mamba_groups / plan.tp
    channels = heads * p
    mixed = channels + 2 * groups * state  # what the convolution runs over: x, B and C
    at.norm("mamba.norm")
    at.linear(
        "mamba.in", model.mamba_in_width / plan.tp, at.hidden, size * at.kept_rows * at.hidden
    )
    for suffix, phase, streams in (("", "forward", 2.0), (".bwd", "backward", 4.0)):
        at.stream(
            f"mamba.conv{suffix}",
            "elementwise",
            "conv",
            phase,
            at.tokens,
            mixed,
            streams * size,
            size * at.tokens * mixed if phase == "forward" else 0.0,
        )
    chunks = at.tokens / CHUNK
    for name, batch, m, n, k, repeated in (
        ("mamba.scores", chunks * groups, CHUNK, CHUNK, state, True),  # C B^T
        ("mamba.within", chunks * heads, CHUNK, p, CHUNK, False),  # (L * C B^T) x
        ("mamba.states", chunks * heads, state, p, CHUNK, True),  # B^T x
        ("mamba.between", chunks * heads, CHUNK, p, state, False),  # C times the state before
    ):
        at.product(name, "bmm", "forward", m, n, k, batch=batch)
        if repeated:  # scores and states are not kept: the backward pass computes them once more
            at.product(f"{name}.repeat", "bmm", "backward", m, n, k, batch=batch)
        at.product(f"{name}.dgrad", "bmm_bwd", "backward", m, k, n, batch=batch)
        at.product(f"{name}.wgrad", "bmm_bwd", "backward", n, k, m, batch=batch)
    # fp32 states of all chunks are passed on (backward once more, and their gradients back).
    states = chunks * heads * state
    at.stream("mamba.pass", "elementwise", "scan", "forward", states, p, 8.0)
    at.stream("mamba.pass.bwd", "elementwise", "scan", "backward", states, p, 24.0)
    for suffix, phase, streams in (("", "forward", 1.0), (".bwd", "backward", 2.0)):
        kept = 2 * size * at.tokens * channels if phase == "forward" else 0.0
        at.stream(
            f"mamba.gate{suffix}",
            "elementwise",
            "gated_norm",
            phase,
            at.tokens,
            channels,
            3 * size * streams,
            kept,
        )
    at.linear("mamba.out", at.hidden, channels, size * at.tokens * channels)
    at.residual("mamba.residual")

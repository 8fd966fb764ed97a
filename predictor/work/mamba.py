"""The state-space block (Mamba-2): projections, a short convolution, and the scan in chunks.

Dao and Gu 2024 (arXiv 2405.21060), section 6: within chunks of Q tokens the scan is a masked
attention, between them a recurrence of states; both are products of small matrices. Check: on A100
the scan takes as long as FlashAttention-2 over 2,048 tokens (their figure 10). While serving, the
state replaces a cache: its size does not grow with the context, and every new token reads and
writes it whole (section 5, the recurrent form).
"""

from __future__ import annotations

from predictor.arrays import Numeric
from predictor.models import Model
from predictor.work.cores import Reading
from predictor.work.worklist import WorkList

CHUNK = 128.0
"""Tokens of a chunk: the default of Megatron Core's and of the published Nemotron-H models."""

STATE_BYTES = 4.0
"""Of an element of a state while it is summed up over a context (Mamba-2: fp32)."""

CONVOLUTION = 4.0
"""Tokens that the short convolution sees (Mamba-2: a kernel of 4)."""


def _widths(model: Model, tp: Numeric) -> tuple[Numeric, Numeric, Numeric]:
    """Heads and groups of a tensor-parallel rank, and channels of its convolution, which runs over
    x, B and C."""
    heads, groups = model.mamba_heads / tp, model.mamba_groups / tp
    return heads, groups, heads * model.mamba_head_dim + 2.0 * groups * model.mamba_state


def state_bytes(model: Model, tp: Numeric, half: float, each: float) -> Numeric:
    """State of one sequence in one block on one rank [bytes]: of the scan, of `each` bytes an
    element, and of the convolution, whose elements have `half`."""
    heads, _, mixed = _widths(model, tp)
    states = each * heads * model.mamba_head_dim * model.mamba_state
    return states + half * (CONVOLUTION - 1.0) * mixed


def mamba_block(at: WorkList, reading: Reading | None) -> None:
    """Norm, projections, convolution, scan, gate and residual of one state-space block; without
    the scan where nothing is read."""
    model, size, tokens, h = at.model, at.size, at.portion.tokens, at.hidden
    heads, _, mixed = _widths(model, at.portion.tp)
    channels = heads * model.mamba_head_dim
    at.norm("mamba.norm")
    width = model.mamba_in_width / at.portion.tp
    at.linear("mamba.in", width, h, saved=size * at.kept_rows * h)
    at.stream(
        "mamba.conv",
        "elementwise",
        "conv",
        tokens,
        mixed,
        2.0 * size,
        backward=("conv", 5.0 * size),  # once more, then three passes for the gradient
        saved=size * tokens * mixed,
    )
    if reading is not None:
        scan(at, tokens)
    at.stream(
        "mamba.gate",
        "elementwise",
        "gated_norm",
        tokens,
        channels,
        3.0 * size,
        backward=("gated_norm", 6.0 * size),
        saved=2 * size * tokens * channels,
    )
    at.linear("mamba.out", h, channels, saved=size * tokens * channels)
    at.residual("mamba.residual")


def scan(at: WorkList, tokens: Numeric) -> None:
    """Scan of `tokens` tokens in chunks: masked products within them, states between.

    Scores and states are not kept: the backward pass computes them once more, passes the states of
    all chunks on again, and their gradients back; for the gradient of the decay, what the scores'
    gradient is made of is multiplied once more (state-spaces/mamba 2.2 to 2.3, ops/triton/
    ssd_combined.py: `_mamba_chunk_scan_combined_bwd`, `_chunk_scan_bwd_ddAcs_stable`).
    """
    model = at.model
    heads, groups, _ = _widths(model, at.portion.tp)
    p, state, chunks = float(model.mamba_head_dim), float(model.mamba_state), tokens / CHUNK
    for name, batch, m, n, k, repeated in (
        ("mamba.scores", chunks * groups, CHUNK, CHUNK, state, True),  # C B^T
        ("mamba.within", chunks * heads, CHUNK, p, CHUNK, False),  # (L * C B^T) x
        ("mamba.states", chunks * heads, state, p, CHUNK, True),  # B^T x
        ("mamba.between", chunks * heads, CHUNK, p, state, False),  # C times the state before
    ):
        at.mixed(name, m, n, k, batch, repeated=repeated)
    if at.learning:
        wide = chunks * heads
        at.product("mamba.decay", "bmm_bwd", CHUNK, CHUNK, p, batch=wide, phase="backward")
    at.stream(
        "mamba.pass",
        "elementwise",
        "scan",
        chunks * heads * state,
        p,
        2.0 * STATE_BYTES,
        backward=("scan", 6.0 * STATE_BYTES),
    )


def update(at: WorkList, sequences: Numeric) -> None:
    """New token of each of `sequences` sequences: the state is read, decayed, added to, written."""
    model = at.model
    heads, _, _ = _widths(model, at.portion.tp)
    rows, moved = sequences * heads * model.mamba_state, 2.0 * at.software.state
    at.stream("mamba.update", "elementwise", "scan", rows, float(model.mamba_head_dim), moved)

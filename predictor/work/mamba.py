"""The state-space block: projections, a short convolution, and the scan of Mamba-2 or Mamba-1.

Mamba-2 (Dao and Gu 2024, arXiv 2405.21060, section 6): within chunks of Q tokens the scan is a
masked attention, between them a recurrence of states; both are products of small matrices. Check:
on A100 the scan takes as long as FlashAttention-2 over 2,048 tokens (their figure 10).

Mamba-1 (Gu and Dao 2023, arXiv 2312.00752, sections 3.3 and 3.6): every channel decays each element
of its state by itself, h <- exp(d A) h + d B x, y = C h + D x, in one kernel that multiplies no
matrices, which gates the outcome, too. B, C and the step sizes d are projected from the channels
behind the convolution, d through few of them; tensor-parallel ranks, which have some of the
channels, add up what they project (Waleffe et al. 2024, arXiv 2406.07887).

While serving, the state replaces a cache: its size does not grow with the context, and every new
token reads and writes it whole (section 5, the recurrent form).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from predictor.arrays import Numeric
from predictor.models import Model, has_selected_norms
from predictor.work.cores import Reading
from predictor.work.primitives import streaming
from predictor.work.worklist import WorkList

STATE_BYTES = 4.0
"""Of an element of a state while it is summed up over a context (Mamba-2: fp32)."""

CONVOLUTION = 4.0
"""Tokens that the short convolution sees (both: a kernel of 4)."""

FORWARD, BACKWARD = 1.16, 1.42
"""Time of Mamba-2's kernels over that of their products one by one, forward and backward (mamba_ssm
2.3 with Triton 3.6 on an H200, `data/measurements/h200-sxm-4/linear.csv`)."""

LINK = 0.4e-6
"""What a chunk takes in the pass over the states, which waits for the one before [s] (the same)."""

UPDATED = 9.5
"""Bytes that the memory could have moved while an element of a state gets one new token, whatever
type it is kept in (the same: 128 to 256 sequences, states in 16 bits)."""

WORK = 18.0
"""Arithmetic of the selective scan for each element of a channel's state and token, beside an
exponential [FLOP]: nine instructions of two, which multiply the step by A and by B x, widen B and
C, combine pairs of (decay, sum) twice over in a scan among threads, and multiply by C
(state-spaces/mamba 2.2, csrc/selective_scan/selective_scan_fwd_kernel.cuh)."""

BEHIND = 2.0
"""Arithmetic and exponentials of its gradient over these: the scan once more, then one from the end
(the same, selective_scan_bwd_kernel.cuh)."""

SCANNED = 3.3, 7.0
"""Time of the selective scan and of its gradient over that of this arithmetic at the accelerator's
peak (mamba_ssm 2.3 on an H200: 1.1 to 1.3 and 4.0 to 4.9 ps an element, 1,024 and 8,192 channels of
16, 512 to 32,768 tokens)."""

PIECE = 2048.0
"""Tokens after which the selective scan keeps each channel's state, and its decays' product, for
the backward pass (the same: 128 threads of 16 tokens)."""


def _widths(model: Model, tp: Numeric) -> tuple[Numeric, Numeric, Numeric]:
    """Heads and groups of a tensor-parallel rank, whole ones of these, and channels of its
    convolution, which runs over x, in Mamba-2 over B and C, too."""
    heads, groups = model.mamba_heads / tp, np.ceil(model.mamba_groups / tp)
    return heads, groups, heads * model.mamba_head_dim + 2.0 * groups * model.mamba_state


def state_bytes(model: Model, tp: Numeric, half: float, each: float) -> Numeric:
    """State of one sequence in one block on one rank [bytes]: of the scan, of `each` bytes an
    element, and of the convolution, whose elements have `half`."""
    heads, _, mixed = _widths(model, tp)
    states = each * heads * model.mamba_head_dim * model.mamba_state
    return states + half * (CONVOLUTION - 1.0) * mixed


def mamba_block(at: WorkList, reading: Reading | None) -> None:
    """Norm, projections, convolution, scan, gate and residual of one state-space block; without
    the scan where nothing is read. Beside attention, the norm is its, and what is kept of it."""
    model, size, tokens, h = at.model, at.size, at.portion.tokens, at.hidden
    heads, _, mixed = _widths(model, at.portion.tp)
    channels = heads * model.mamba_head_dim
    if not model.mamba_beside:
        at.norm("mamba.norm")
    width = model.mamba_in_width / at.portion.tp + model.mamba_repeated(at.portion.tp)
    kept = size * at.kept_rows * h * (not model.mamba_beside)
    at.linear("mamba.in", width, h, saved=kept)
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
    if model.mamba_rank:
        _selection(at, channels)
    if reading is not None:
        scan(at, tokens, reading.query)
    if not model.mamba_rank:
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
    if model.mamba_beside and at.software.sums:  # no norm behind it adds both blocks'
        at.stream("mamba.add", "elementwise", "add", at.portion.rows, h, 3.0 * size)
    at.residual("mamba.residual")


def _selection(at: WorkList, channels: Numeric) -> None:
    """Step sizes, B and C of Mamba-1 from the channels of a rank, and the step size of each channel
    from the few that all ranks have; some families have a norm of each of the three between."""
    model, size, tokens = at.model, at.size, at.portion.tokens
    selected, rank = float(model.mamba_selected_width), float(model.mamba_rank)
    at.linear("mamba.select", selected, channels, saved=size * tokens * channels)
    if has_selected_norms(model):
        at.stream(
            "mamba.select_norm",
            "norm",
            "rmsnorm",
            tokens,
            selected,
            2.0 * size,
            backward=("rmsnorm_bwd", 3.0 * size),
            saved=size * tokens * selected,
            kernels=(3.0, 3.0),
        )
    at.linear("mamba.steps", channels, rank, saved=size * tokens * selected)


def scan(at: WorkList, tokens: Numeric, query: Numeric) -> None:
    """Scan of `tokens` tokens, `query` of each sequence: Mamba-2's in chunks, or Mamba-1's."""
    if at.model.mamba_rank:
        _selective_scan(at, tokens)
    else:
        _chunked_scan(at, tokens, query)


def _selective_scan(at: WorkList, tokens: Numeric) -> None:
    """Scan of every channel by itself, with its gate: a kernel that reads channels, steps and gate,
    and writes what it sums up and that gated; B and C of a token serve all channels.

    Of these, steps, gate and sums are kept, and each channel's state after every `PIECE`. The
    gradient's kernel reads all of it and writes a gradient for each of three (state-spaces/mamba
    2.2, mamba_ssm/ops/selective_scan_interface.py: `SelectiveScanFn`).
    """
    model, size = at.model, at.size
    channels = model.mamba_heads / at.portion.tp
    state = float(model.mamba_state)
    states = 2.0 * STATE_BYTES * state / PIECE
    passes = [("", "forward", 5.0 * size + states, 1.0, 3.0 * size + states)]
    if at.learning:
        passes.append((".bwd", "backward", 8.0 * size + states, BEHIND, 0.0))
    for suffix, phase, moved, times, kept in passes:
        made = streaming(
            name=f"mamba.scan{suffix}",
            op="elementwise",
            variant="selective",
            phase=phase,
            module=at.module,
            dtype=at.software.core,
            rows=tokens,
            columns=channels,
            bytes_per_element=moved,
            count=at.share,
            saved=at.kept(kept * tokens * channels),
        )
        values = times * tokens * channels * state
        longer = SCANNED[phase == "backward"]
        at.operators.append(
            replace(made, k=state, flop=WORK * values, exponentials=values, stretch=longer)
        )


def _chunked_scan(at: WorkList, tokens: Numeric, query: Numeric) -> None:
    """Scan in chunks: masked products within them, states between.

    Scores and states are not kept: the backward pass computes them once more, passes the states of
    all chunks on again, and their gradients back; for the gradient of the decay, what the scores'
    gradient is made of is multiplied once more (state-spaces/mamba 2.2 to 2.3, ops/triton/
    ssd_combined.py: `_mamba_chunk_scan_combined_bwd`, `_chunk_scan_bwd_ddAcs_stable`).
    """
    model, chunk = at.model, float(at.model.mamba_chunk)
    heads, groups, _ = _widths(model, at.portion.tp)
    start = len(at.operators)
    p, state, chunks = float(model.mamba_head_dim), float(model.mamba_state), tokens / chunk
    for name, batch, m, n, k, repeated in (
        ("mamba.scores", chunks * groups, chunk, chunk, state, True),  # C B^T
        ("mamba.within", chunks * heads, chunk, p, chunk, False),  # (L * C B^T) x
        ("mamba.states", chunks * heads, state, p, chunk, True),  # B^T x
        ("mamba.between", chunks * heads, chunk, p, state, False),  # C times the state before
    ):
        at.mixed(name, m, n, k, batch, repeated=repeated)
    if at.learning:
        wide = chunks * heads
        at.product("mamba.decay", "bmm_bwd", chunk, chunk, p, batch=wide, phase="backward")
    at.stream(
        "mamba.pass",
        "elementwise",
        "scan",
        chunks * heads * state,
        p,
        2.0 * STATE_BYTES,
        backward=("scan", 6.0 * STATE_BYTES),
    )
    at.stretch(start, FORWARD, BACKWARD)
    for i, one in enumerate(at.operators[start:], start):
        if one.name.startswith("mamba.pass"):
            at.operators[i] = replace(one, chain=LINK * query / chunk)


def update(at: WorkList, sequences: Numeric) -> None:
    """New token of each of `sequences` sequences: the state is read, decayed, added to, written."""
    model = at.model
    heads, _, _ = _widths(model, at.portion.tp)
    rows, moved = sequences * heads * model.mamba_state, 2.0 * at.software.state
    longer = max(UPDATED / moved, 1.0)
    at.stream(
        "mamba.update", "elementwise", "scan", rows, float(model.mamba_head_dim), moved,
        stretch=(longer, longer),
    )  # fmt: skip

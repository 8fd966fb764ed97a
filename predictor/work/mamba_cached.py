"""State-space blocks while serving: a scan over prompts, an update of the state per new token.

The state replaces a cache: its size does not grow with the context, and every new token reads and
writes it whole. Dao and Gu 2024 (arXiv 2405.21060), sections 5 (recurrent form) and 6 (chunked
scan); `mamba.py` has the training form.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from predictor.arrays import Numeric
from predictor.models import Model
from predictor.plans import ServingPlan
from predictor.precision import ELEMENT_BYTES
from predictor.work.mamba import CHUNK

if TYPE_CHECKING:
    from predictor.work.serving import WorkList

STATE_BYTES = 4.0
"""Of an element of a state, which is summed up over the whole context (Mamba-2's and vLLM's
default: fp32)."""

CONVOLUTION = 4.0
"""Tokens that the short convolution sees (Mamba-2: a kernel of 4)."""


def _widths(model: Model, plan: ServingPlan) -> tuple[Numeric, Numeric, Numeric]:
    """Heads and groups of a tensor-parallel rank, and channels of its convolution."""
    heads, groups = model.mamba_heads / plan.tp, model.mamba_groups / plan.tp
    return heads, groups, heads * model.mamba_head_dim + 2.0 * groups * model.mamba_state


def state_bytes(model: Model, plan: ServingPlan) -> Numeric:
    """State of one sequence in one block on one rank [bytes]: of the scan and the convolution."""
    heads, _, mixed = _widths(model, plan)
    scan = STATE_BYTES * heads * model.mamba_head_dim * model.mamba_state
    return scan + ELEMENT_BYTES[plan.half] * (CONVOLUTION - 1.0) * mixed


def projections(at: WorkList, tokens: Numeric) -> None:
    """Norm, projections, convolution and gate of one block, the scan aside."""
    model, plan, h = at.model, at.plan, float(at.model.hidden)
    heads, _, mixed = _widths(model, plan)
    channels = heads * model.mamba_head_dim
    at.norm("mamba.norm", tokens, h)
    at.linear("mamba.in", tokens, model.mamba_in_width / plan.tp, h)
    at.stream("mamba.conv", "elementwise", "conv", tokens, mixed, 2.0 * at.size)
    at.stream("mamba.gate", "elementwise", "gated_norm", tokens, channels, 3.0 * at.size)
    at.linear("mamba.out", tokens, h, channels)


def scan(at: WorkList, tokens: Numeric) -> None:
    """Scan of `tokens` tokens of prompts in chunks: masked products within them, states between."""
    model, plan = at.model, at.plan
    heads, groups, _ = _widths(model, plan)
    p, state, chunks = float(model.mamba_head_dim), float(model.mamba_state), tokens / CHUNK
    for name, batch, n, k in (
        ("mamba.scores", chunks * groups, CHUNK, state),
        ("mamba.within", chunks * heads, p, CHUNK),
        ("mamba.states", chunks * heads, p, state),
        ("mamba.between", chunks * heads, p, state),
    ):
        at.linear(name, CHUNK, n, k, plan.half, batch=batch, layout="bmm")
    at.stream("mamba.pass", "elementwise", "scan", chunks * heads * state, p, 2.0 * STATE_BYTES)


def update(at: WorkList, sequences: Numeric) -> None:
    """New token of each of `sequences` sequences: the state is read, decayed, added to, written."""
    model = at.model
    heads, _, _ = _widths(model, at.plan)
    rows = sequences * heads * model.mamba_state
    at.stream(
        "mamba.update", "elementwise", "scan", rows, float(model.mamba_head_dim), 2.0 * STATE_BYTES
    )

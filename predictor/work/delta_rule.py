"""The block of a gated delta rule: projections, a scan over prompts, a state per sequence.

The state of a value head, S[key dim, value dim], decays and is corrected with each token,
S <- a S + k (b (v - a S^T k))^T, and read with the query. It takes the place of a cache: it does
not grow with the context, and every new token reads and writes it whole.

Prompts go through in chunks of `CHUNK` tokens. Within one, the corrections are a triangular system
(WY form), whose solution turns keys and values into W and U; then a chunk meets the state before it
as V' = U - W S, and S' = S + K^T V'. This last step passes from chunk to chunk in turn, so that
only heads, slices of values and sequences run side by side.

Yang, Kautz and Hatamizadeh 2024 (arXiv 2412.06464), section 3.3; kernels as in
fla-org/flash-linear-attention, which vLLM and SGLang use.
"""

from __future__ import annotations

from dataclasses import replace

from predictor.arrays import Numeric
from predictor.models import Model
from predictor.work.cores import Reading
from predictor.work.mamba import STATE_BYTES
from predictor.work.primitives import streaming
from predictor.work.worklist import WorkList

CHUNK = 64.0
"""Tokens of a chunk (flash-linear-attention: `chunk_gated_delta_rule`)."""

SLICE = 32.0
"""Columns of a state that one thread block keeps while it walks over the chunks (the same: BV)."""


def state_bytes(model: Model, tp: Numeric, half: float) -> Numeric:
    """State of one sequence in one block on one rank [bytes]: in 32 bits, and what the convolution
    has seen last, whose elements have `half` bytes."""
    state = model.delta_value_heads / tp * model.delta_key_dim * model.delta_value_dim
    seen = (model.delta_conv - 1.0) * model.delta_mixed_width / tp
    return STATE_BYTES * state + half * seen


def delta_block(at: WorkList, reading: Reading | None) -> None:
    """Norm, projections, convolution, rule and gate of one block; without the rule where nothing is
    read. Decays and step sizes, one each per head, are projected in 16 bits and kept in 32."""
    model, tp, tokens, h = at.model, at.portion.tp, at.portion.tokens, at.hidden
    mixed, values = model.delta_mixed_width / tp, model.delta_value_width / tp
    heads = model.delta_value_heads / tp
    at.norm("delta.norm")
    at.linear("delta.in", mixed + values, h)
    at.linear("delta.steps", 2.0 * heads, h, dtype=at.software.core)
    at.stream("delta.conv", "elementwise", "conv", tokens, mixed, 2.0 * at.size)
    at.stream(
        "delta.decay", "elementwise", "other", tokens, heads, 2.0 * at.size + 2.0 * STATE_BYTES
    )
    if reading is not None:
        scan(at, reading.sequences, reading.query)
    at.stream("delta.gate", "elementwise", "gated_norm", tokens, values, 3.0 * at.size)
    at.linear("delta.out", h, values)
    at.residual("delta.residual")


def scan(at: WorkList, sequences: Numeric, query: Numeric) -> None:
    """The rule over `query` tokens of each of `sequences` prompts, in chunks."""
    model, tp, size = at.model, at.portion.tp, at.size
    key, value = float(model.delta_key_dim), float(model.delta_value_dim)
    heads, chunks = model.delta_value_heads / tp, query / CHUNK
    batch = sequences * chunks * heads
    keys = 2.0 * model.delta_key_width / tp
    at.stream("delta.unit", "norm", "rmsnorm", sequences * query, keys, 2.0 * size)
    for name, m, n, k in (
        ("delta.overlap", CHUNK, CHUNK, key),  # K K^T
        ("delta.solve", CHUNK, CHUNK, CHUNK),  # inverse of the triangle, in blocks
        ("delta.w", CHUNK, key, CHUNK),
        ("delta.u", CHUNK, value, CHUNK),
        ("delta.correct", CHUNK, value, key),  # W S
        ("delta.states", key, value, CHUNK),  # K^T V'
        ("delta.between", CHUNK, value, key),  # Q S
        ("delta.scores", CHUNK, CHUNK, key),  # Q K^T
        ("delta.within", CHUNK, value, CHUNK),
    ):
        at.mixed(name, m, n, k, batch)
    # Each thread block reads W and K, its slice of U, and writes its slices of V' and S.
    slices = value / SLICE
    moved = size * (2.0 * CHUNK * key + 2.0 * CHUNK * SLICE + key * SLICE)
    walk = streaming(
        name="delta.pass",
        op="elementwise",
        variant="recurrence",
        phase="forward",
        module=at.module,
        dtype=at.software.core,
        rows=sequences * heads * slices,
        columns=chunks,
        bytes_per_element=moved,
        count=at.share,
    )
    at.operators.append(replace(walk, batch=sequences * heads * slices))


def update(at: WorkList, sequences: Numeric) -> None:
    """New token of each of `sequences` sequences: the state is read, corrected and written."""
    model = at.model
    rows = sequences * model.delta_value_heads / at.portion.tp * model.delta_key_dim
    at.stream(
        "delta.update", "elementwise", "scan", rows, float(model.delta_value_dim), 2 * STATE_BYTES
    )

"""The block of a gated delta rule: projections, a scan over prompts, a state per sequence.

The state of a value head, S[key dim, value dim], decays and is corrected with each token,
S <- a S + k (b (v - a S^T k))^T, and read with the query. It takes the place of a cache: it does
not grow with the context, and every new token reads and writes it whole.

Prompts go through in chunks of `CHUNK` tokens. Within one, the corrections are a triangular system
(WY form), whose solution turns keys and values into W and U; then a chunk meets the state before it
as V' = U - W S, and S' = S + K^T V'. This last step passes from chunk to chunk in turn, so that
only heads, slices of values and sequences run side by side.

Yang, Kautz and Hatamizadeh 2024 (arXiv 2412.06464), section 3.3; kernels as in
fla-org/flash-linear-attention, which vLLM and SGLang use. Kimi's rule decays each channel of a key
by itself (Kimi Team 2025, arXiv 2510.26692): its decays are as many as keys, and keys and queries
are multiplied by them before chunks meet.

Lightning attention is the same without correction, S <- a S + k v^T, with an `a` for each head that
no token changes: there is neither a system to solve nor a convolution, and chunks are longer (Qin
et al. 2024, arXiv 2401.04658; vllm-project/vllm, layers/mamba/linear_attn.py, `lightning_attn.py`).
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

BLOCK = 256.0
"""Tokens of a chunk of lightning attention (`lightning_attention`: block_size)."""

FORWARD, BACKWARD, CHANNELS = 0.8, 1.3, 1.7
"""Time of the rule's kernels, which join several of its products, over that of these products one
by one: forward, backward, and backward where every channel decays by itself (flash-linear-attention
0.6 with Triton 3.6 on an H200, `data/measurements/h200-sxm-4/linear.csv`: 0.75 to 0.9 of gated
delta rules, 0.8 of Kimi's and of lightning attention, 1.25 backward of that, 1.7 of Kimi's; the
gated rule's own gradient is refused there, and taken to be as much longer as the others')."""

SCALED = 2.8
"""Time in which decays of channels are summed up and multiplied in and out of keys and queries over
that of moving each once: six kernels read them in 32 bits, and products between sub-chunks run on
single elements (the same)."""

LINKS = {"rule": 1.2e-6, "channels": 1.8e-6, "fixed": 0.45e-6}
"""What a chunk of `CHUNK` tokens takes in the pass over the states, which waits for the one before
[s]; backward `BACK_LINKS` times that (the same: few heads, 8,192 to 32,768 tokens)."""

BACK_LINKS = 1.9

UPDATED = {"rule": 1.45, "channels": 1.3, "fixed": 1.22}
"""Time of one new token over that of reading and writing the states at the rate of a copy (the
same, 32 to 256 sequences)."""

CONVOLVED = 1.5, 3.8
"""Time of the short convolution and of its gradient over that of what they move (the same:
`causal_conv1d` in Triton)."""

SLICE = 32.0
"""Columns of a state that one thread block keeps while it walks over the chunks (the same: BV)."""


def state_bytes(model: Model, tp: Numeric, half: float, each: float) -> Numeric:
    """State of one sequence in one block on one rank [bytes], of `each` bytes an element, and what
    the convolution has seen last, whose elements have `half`."""
    state = model.delta_value_heads / tp * model.delta_key_dim * model.delta_value_dim
    seen = max(model.delta_taps - 1.0, 0.0) * model.delta_mixed_width / tp
    return each * state + half * seen


def delta_block(at: WorkList, reading: Reading | None) -> None:
    """Norm, projections, convolution, rule and gate of one block; without the rule where nothing is
    read. Decays and step sizes are projected in 16 bits and kept in 32."""
    model, tp, tokens, h = at.model, at.portion.tp, at.portion.tokens, at.hidden
    mixed, values = model.delta_mixed_width / tp, model.delta_value_width / tp
    at.norm("delta.norm")
    beside = 0.0 if model.delta_gate_rank and not model.delta_whole_gate else values
    beside = beside + model.delta_decay_width / tp * model.delta_whole_decay
    at.linear("delta.in", mixed + beside, h, saved=at.size * at.kept_rows * h)
    if not model.delta_fixed:
        _forgetting(at)
    if reading is not None:
        read(at, reading)
    at.stream(
        "delta.gate",
        "elementwise",
        "gated_norm",
        tokens,
        values,
        3.0 * at.size,
        backward=("gated_norm", 6.0 * at.size),
        saved=2.0 * at.size * tokens * values,
    )
    at.linear("delta.out", h, values, saved=at.size * tokens * values)
    at.residual("delta.residual")


def _forgetting(at: WorkList) -> None:
    """Step sizes and decays of each token, and the convolution."""
    model, tp, tokens, h = at.model, at.portion.tp, at.portion.tokens, at.hidden
    mixed, values = model.delta_mixed_width / tp, model.delta_value_width / tp
    heads = model.delta_value_heads / tp
    if model.delta_gate_rank:
        at.linear("delta.steps", heads, h, dtype=at.software.core)
        _low_ranks(at, values)
    else:
        at.linear("delta.steps", 2.0 * heads, h, dtype=at.software.core)
    at.stream(
        "delta.conv",
        "elementwise",
        "conv",
        tokens,
        mixed,
        2.0 * at.size,
        backward=("conv", 4.0 * at.size),
        stretch=CONVOLVED,
        saved=at.size * tokens * mixed,
    )
    steps, decays = 2.0 * at.size + 2.0 * STATE_BYTES, model.delta_decay_width / tp
    at.stream(
        "delta.decay",
        "elementwise",
        "other",
        tokens,
        decays,
        steps,
        backward=("other", steps),
        saved=steps * tokens * decays,
    )


def _low_ranks(at: WorkList, values: Numeric) -> None:
    """Decays, and the output's gate unless it is projected at once, through few channels, which
    every rank has whole (sgl-project/sglang, models/kimi_linear.py, 2026)."""
    model, tp, tokens = at.model, at.portion.tp, at.portion.tokens
    rank = float(model.delta_gate_rank)
    saved = at.size * tokens * rank
    if model.delta_low_ranks:
        at.linear("delta.down", float(model.delta_low_ranks), at.hidden, adapted=False)
    if not model.delta_whole_decay:
        at.linear("delta.decay_up", model.delta_decay_width / tp, rank, saved=saved, adapted=False)
    if not model.delta_whole_gate:
        at.linear("delta.gate_up", values, rank, saved=saved, adapted=False)


def read(at: WorkList, reading: Reading) -> None:
    """The rule over sequences that are read; ranks that divide heads once more have as many
    sequences less."""
    scan(at, reading.sequences / reading.split, reading.query)


def _scale(at: WorkList, tokens: Numeric) -> None:
    """Decays of channels are added up in 32 bits; keys and queries are multiplied by them, twice
    each."""
    decays, size = at.model.delta_decay_width / at.portion.tp, at.size
    moved = 2.0 * STATE_BYTES + 6.0 * size
    at.stream(
        "delta.scale",
        "elementwise",
        "other",
        tokens,
        decays,
        moved,
        backward=("other", 2.0 * moved),
        stretch=(SCALED, SCALED),
        saved=4.0 * size * tokens * decays,
    )


def _products(
    chunk: float, key: float, value: float, fixed: bool
) -> list[tuple[str, float, float, float, bool]]:
    """Products of one chunk and head, and whether a backward pass computes them again."""
    system = [
        ("delta.overlap", chunk, chunk, key, False),  # K K^T
        ("delta.solve", chunk, chunk, chunk, False),  # inverse of the triangle, in blocks
        ("delta.w", chunk, key, chunk, True),
        ("delta.u", chunk, value, chunk, True),
        ("delta.correct", chunk, value, key, True),  # W S
    ]
    return [
        *([] if fixed else system),
        ("delta.states", key, value, chunk, True),  # K^T V'
        ("delta.between", chunk, value, key, False),  # Q S
        ("delta.scores", chunk, chunk, key, True),  # Q K^T
        ("delta.within", chunk, value, chunk, False),
    ]


def _kind(model: Model) -> str:
    """How states decay: by head, by channel, or at rates that no token changes."""
    if model.delta_fixed:
        return "fixed"
    return "channels" if model.delta_gate_rank else "rule"


def scan(at: WorkList, sequences: Numeric, query: Numeric) -> None:
    """The rule over `query` tokens of each of `sequences` prompts, in chunks.

    Kept for a backward pass are keys, queries and values, and each chunk's solution. It computes
    W, U, the scores and all states once more, and then passes the states' gradients back
    (fla-org/flash-linear-attention, ops/gated_delta_rule/chunk.py: `chunk_gated_delta_rule_bwd`).
    """
    model, tp, size = at.model, at.portion.tp, at.size
    key, value = float(model.delta_key_dim), float(model.delta_value_dim)
    heads, chunk = model.delta_value_heads / tp, BLOCK if model.delta_fixed else CHUNK
    chunks = query / chunk
    batch = sequences * chunks * heads
    keys = 2.0 * model.delta_key_width / tp
    at.stream(
        "delta.unit",
        "norm",
        "rmsnorm",
        sequences * query,
        keys,
        2.0 * size,
        backward=("rmsnorm_bwd", 3.0 * size),
        saved=size * sequences * query * keys,
    )
    if model.delta_gate_rank:
        _scale(at, sequences * query)
    start = len(at.operators)
    for name, m, n, k, repeated in _products(chunk, key, value, model.delta_fixed):
        at.mixed(name, m, n, k, batch, repeated=repeated)
    slices = value / SLICE
    if model.delta_fixed:  # What a chunk adds is read, the state before it is written.
        moved, solution = 2.0 * STATE_BYTES * key * SLICE, 0.0
    else:  # Each thread block reads W and K, its slice of U, and writes its slices of V' and S.
        moved, solution = size * (2.0 * chunk * key + 2.0 * chunk * SLICE + key * SLICE), chunk
    walkers = sequences * heads * slices
    kept = size * sequences * query * heads * (value + solution)
    # Backward: the states once more, and their gradients, which meet two inputs for each output.
    passes = [("", "forward", 1.0, kept)] + [(".bwd", "backward", 3.0, 0.0)] * bool(at.learning)
    for suffix, phase, times, saved in passes:
        walk = streaming(
            name=f"delta.pass{suffix}",
            op="elementwise",
            variant="recurrence",
            phase=phase,
            module=at.module,
            dtype=at.software.core,
            rows=walkers,
            columns=chunks,
            bytes_per_element=times * moved,
            count=at.share,
            saved=at.kept(saved),
        )
        links = (BACK_LINKS if suffix else 1.0) * LINKS[_kind(model)] * query / CHUNK
        at.operators.append(replace(walk, batch=walkers, chain=links))
    at.stretch(start, FORWARD, CHANNELS if model.delta_gate_rank else BACKWARD)


def update(at: WorkList, sequences: Numeric) -> None:
    """New token of each of `sequences` sequences: the state is read, corrected and written."""
    model = at.model
    rows = sequences * model.delta_value_heads / at.portion.tp * model.delta_key_dim
    moved, longer = 2.0 * at.software.state, UPDATED[_kind(model)]
    at.stream(
        "delta.update", "elementwise", "scan", rows, float(model.delta_value_dim), moved,
        stretch=(longer, longer),
    )  # fmt: skip

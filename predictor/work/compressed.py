"""The block of attention over a window and compressed keys, and residual streams (DeepSeek-V4).

One key head, whose keys are the values too. A compressor sums the projections of `compression`
tokens into one key; choosing layers see those that an indexer with keys compressed alike chooses,
pooling layers all. Kernels as in vLLM (vllm/models/deepseek_v4 @ 0484480, 2026): projections down
to latent queries and the key in one product; norms, position encoding and the cache's writing in
one kernel; a compressor's projections kept in 32 bits until its tokens are complete; attention of
prompts and of new tokens over gathered keys; the output rotated back, projected by groups of heads
and then together.
"""

from __future__ import annotations

import numpy as np

from predictor.arrays import Numeric
from predictor.models import Model, keys_seen
from predictor.plans import KV_BYTES
from predictor.work import sparse
from predictor.work.cores import WINDOWED, Reading
from predictor.work.primitives import Operator
from predictor.work.worklist import WorkList

WIDE = 4.0
"""Bytes of an element of a compressor's projections, of streams' mixes and of sums over them."""

SCALED = 64.0
"""Elements of a narrow key that share a scale of one byte; positions stay in 16 bits, and a byte
fills up the row (vllm/v1/attention/backends/mla/sparse_swa.py: 448 + 2 x 64 + 8 = 584 bytes)."""


def key_bytes(model: Model, kv: str) -> float:
    """Cached key of a window or of several tokens, in one block [bytes]; every rank holds it."""
    width, placed = float(model.head_dim), float(model.qk_rope_head_dim)
    if KV_BYTES[kv] > 1:
        return KV_BYTES[kv] * width
    return (width - placed) * KV_BYTES[kv] + 2.0 * placed + width / SCALED


def cache_bytes(model: Model, kv: str, tokens: Numeric) -> Numeric:
    """Cache of a sequence in one block of a model whose blocks are alike [bytes]."""
    held = np.minimum(tokens, float(model.sliding_window)) * key_bytes(model, kv)
    if not model.compression:
        return held
    beside = sparse.index_bytes(model)
    return held + np.asarray(tokens) / model.compression * (key_bytes(model, kv) + beside)


def read_bytes(model: Model, kv: str, tokens: Numeric) -> Numeric:
    """What a new token reads of it [bytes]: of chosen keys those, and all index keys."""
    own = np.asarray(_seen(model, tokens)) * key_bytes(model, kv)
    return own + _compressed(model, tokens) * sparse.index_bytes(model)


def state_bytes(model: Model) -> float:
    """What one block keeps of tokens whose compressed key is incomplete [bytes]: their projections,
    of the tokens before too where sums overlap (vllm/models/deepseek_v4/compressor.py)."""
    width = model.compressor_width + model.index_compressor_width
    return WIDE * model.overlap * model.compression * width


def _compressed(model: Model, tokens: Numeric) -> Numeric:
    return np.asarray(tokens, float) / model.compression if model.compression else 0.0


def _seen(model: Model, tokens: Numeric) -> Numeric:
    """Keys that a new token sees behind so many others."""
    window = np.minimum(tokens, float(model.sliding_window))
    beside = _compressed(model, tokens)
    return window + (np.minimum(beside, float(model.index_topk)) if model.is_sparse else beside)


def _label(model: Model) -> str:
    """Name of the attention of a kind of layer."""
    if not model.compression:
        return WINDOWED
    return "attention.chosen" if model.is_sparse else "attention.pooled"


def block(at: WorkList, reading: Reading | None) -> None:
    """Norm, projections, compressor, attention and residual of one block."""
    model, size, tokens, h = at.model, at.size, at.portion.tokens, at.hidden
    queries, width = model.heads / at.portion.tp, float(model.head_dim)
    rank = float(model.q_lora_rank)
    at.norm("attention.norm")
    at.linear("attention.down", rank + width, h, adapted=False)
    at.norm("attention.latent_norm", tokens, rank + width)
    at.linear("attention.q_up", queries * width, rank)
    at.stream("attention.rope", "elementwise", "rope", tokens, (queries + 1.0) * width, 2.0 * size)
    if model.compression:
        _compressor(at)
    if model.is_sparse:
        _indexer(at)
    if reading is not None:
        read(at, reading)
    at.stream("attention.rotate_back", "elementwise", "rope", tokens, queries * width, 2.0 * size)
    groups = np.maximum(model.out_groups / at.portion.tp, 1.0)
    each = queries * width / groups
    dtype = at.linear_dtype
    at.product(
        "attention.out_groups", "fwd", tokens, model.out_rank, each, dtype=dtype, batch=groups
    )
    at.linear("attention.out", h, groups * model.out_rank)
    at.residual("attention.residual")


def _compressor(at: WorkList) -> None:
    """Projections of every token, in 16 bits; written in 32 with a bias of its place, and summed
    when a key is complete, by a softmax over each channel's weights."""
    model, tokens = at.model, at.portion.tokens
    columns = float(model.compressor_width + model.index_compressor_width)
    at.linear("compress.in", columns, at.hidden, adapted=False, dtype=at.software.core)
    at.stream("compress.keep", "elementwise", "copy", tokens, columns, 2.0 * WIDE)
    at.stream("compress.sum", "elementwise", "other", tokens, columns, model.overlap * WIDE)


def _indexer(at: WorkList) -> None:
    """Index queries and a weight per head; position encoding and 8 bits in one kernel. Every rank
    does all of it."""
    model = at.model
    width = float(model.index_heads * model.index_head_dim)
    at.linear("index.query", width, float(model.q_lora_rank), adapted=False)
    at.linear("index.weights", float(model.index_heads), at.hidden, adapted=False,
              dtype=at.software.core)  # fmt: skip
    at.stream("index.rope", "elementwise", "rope", at.portion.tokens, width, at.size + 1.0)


def read(at: WorkList, reading: Reading) -> None:
    """Attention over sequences: choice where there is one, and all keys that a token sees, of which
    each is its own, so that a thread block has one token."""
    model, size = at.model, at.size
    past = reading.keys - reading.query
    if model.is_sparse:
        sparse.prompt_choice(at, reading.sequences, reading.query, past, model.compression)
    seen = keys_seen(reading.query, reading.keys, 1.0, float(model.sliding_window))
    if model.compression:
        most = float(model.index_topk * model.compression) if model.is_sparse else np.inf
        seen = seen + keys_seen(reading.query, reading.keys, 1.0, most) / model.compression
    queries, d = model.heads / at.portion.tp, float(model.head_dim)
    batch = reading.sequences * np.maximum(queries, sparse.LEAST_ROWS)
    held = reading.keys + _compressed(model, reading.keys)
    at.operators.append(
        Operator(
            name=_label(model),
            op="attention_prefill",
            variant="mla",
            phase="forward",
            module=at.module,
            dtype=at.software.core,
            m=reading.query,
            n=_seen(model, reading.keys),
            k=d,
            batch=batch,
            flop=4.0 * batch * reading.query * d * seen,
            bytes=size * reading.sequences * d * (2.0 * reading.query * queries + held),
            count=at.share,
        )
    )


def decode(at: WorkList, sequences: Numeric, keys: Numeric, guessed: Numeric) -> None:
    """Attention of `guessed` new tokens of each of `sequences` sequences with `keys` others."""
    model, size = at.model, at.size
    seen, d = _seen(model, keys), float(model.head_dim)
    queries = model.heads / at.portion.tp * guessed
    kv = "fp8" if at.software.cache < 2 else "bf16"
    at.operators.append(
        Operator(
            name=_label(model),
            op="attention_decode",
            variant="mla_kv8" if at.software.cache < 2 else "mla",
            phase="forward",
            module=at.module,
            dtype=at.software.core,
            m=queries,
            n=seen,
            k=d,
            batch=sequences,
            flop=4.0 * sequences * queries * seen * d,
            bytes=sequences * (key_bytes(model, kv) * seen + 2.0 * size * queries * d),
            count=at.share,
            core=True,
        )
    )
    if model.is_sparse:
        sparse.choice(at, sequences, _compressed(model, keys), guessed)


def streams(at: WorkList) -> None:
    """What a block reads of the residual streams and writes to them: its output is added to all,
    mixed; then all are multiplied by a narrow matrix, whose outcome says how they are summed for
    the next block (vllm/model_executor/kernels/mhc: `mhc_post`, `mhc_pre`). Every rank does all of
    it on its rows."""
    model, rows, h, n = at.model, at.portion.rows, at.hidden, float(at.model.streams)
    at.stream("streams.mix", "elementwise", "add", rows, h, (2.0 * n + 1.0) * at.size, alone=True)
    mixes = float(model.stream_mixes)
    at.linear("streams.project", mixes, n * h, rows=rows, adapted=False, dtype=at.software.core)
    at.stream("streams.sum", "elementwise", "add", rows, h, (n + 1.0) * at.size, alone=True)

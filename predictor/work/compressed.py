"""The block of attention over a window and compressed keys, and residual streams (DeepSeek-V4).

One key head, whose keys are the values too. A compressor sums the projections of `compression`
tokens into one key; choosing layers see those that an indexer with keys compressed alike chooses,
pooling layers all. Of DeepSeek-V4.1 few layers make keys, and few choose: index keys are projected
from compressed ones, and the decoder's layers choose among the candidates of its first (vllm/
models/deepseek_v41/attention.py @ 02ee13b).

Kernels as in vLLM (vllm/models/deepseek_v4 @ 0484480, 2026): projections down to latent queries and
the key in one product; norms, position encoding and the cache's writing in one kernel; a
compressor's projections kept in 32 bits until its tokens are complete; attention of prompts and of
new tokens over gathered keys; the output rotated back, projected by groups of heads and then
together.

Training has no cache: compressed keys are summed in one kernel, of which gradients read and write
as much again, and nothing is learned through a choice (`sparse`). Norms of queries head by head are
kernels of their own, and groups of heads are projected in 16 bits (Megatron Core, experimental_
attention_variant/deepseek_v4_hybrid_attention.py @ caeff8c80: `_q_rms_norm`, an einsum).
"""

from __future__ import annotations

from functools import partial

import numpy as np

from predictor.arrays import Numeric
from predictor.models import Model, attended_keys
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
    if not model.makes_keys:
        return held
    beside = sparse.index_bytes(model)
    return held + np.asarray(tokens) / model.compression * (key_bytes(model, kv) + beside)


def read_bytes(model: Model, kv: str, tokens: Numeric) -> Numeric:
    """What a new token reads of it [bytes]: of chosen keys those, and all index keys."""
    own = np.asarray(_seen(model, tokens)) * key_bytes(model, kv)
    return own + _scored(model, _compressed(model, tokens)) * sparse.index_bytes(model)


def state_bytes(model: Model) -> float:
    """What one block keeps of tokens whose compressed key is incomplete [bytes]: their projections,
    of the tokens before too where sums overlap (vllm/models/deepseek_v4/compressor.py)."""
    width = model.compressor_width + model.index_compressor_width
    kept = model.overlap * model.compression if model.compression > 1 else 0
    return WIDE * kept * width


def _compressed(model: Model, tokens: Numeric) -> Numeric:
    return np.asarray(tokens, float) / model.compression if model.compression else 0.0


def _scored(model: Model, keys: Numeric) -> Numeric:
    """Of so many compressed keys those that a layer chooses among."""
    return np.minimum(keys, float(model.candidates)) if model.candidates else keys


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
    at.linear("attention.down", rank + width, h, saved=size * at.kept_rows * h, adapted=False)
    at.norm("attention.latent_norm", tokens, rank + width)
    at.linear("attention.q_up", queries * width, rank, saved=size * tokens * rank)
    if not at.software.cache:
        at.norm("attention.query_norm", tokens * queries, width)
    _rotated(at, "attention.rope", (queries + 1.0) * width)
    if model.makes_keys:
        _compressor(at)
    if model.chooses:
        _indexer(at)
    if reading is not None:
        read(at, reading)
    _rotated(at, "attention.rotate_back", queries * width)
    _out_groups(at, queries * width)
    groups = np.maximum(model.out_groups / at.portion.tp, 1.0)
    inner = groups * model.out_rank
    at.linear("attention.out", h, inner, saved=size * tokens * inner)
    at.residual("attention.residual")


def _rotated(at: WorkList, name: str, columns: Numeric) -> None:
    """Position encoding, or its inverse, in place."""
    moved = 2.0 * at.size
    at.stream(
        name, "elementwise", "rope", at.portion.tokens, columns, moved, backward=("rope", moved)
    )


def _out_groups(at: WorkList, width: Numeric) -> None:
    """Each group of heads down to a few channels; `width` is that of all heads on a rank."""
    tokens, rank = at.portion.tokens, float(at.model.out_rank)
    dtype = at.linear_dtype if at.software.cache else at.software.core
    groups = np.maximum(at.model.out_groups / at.portion.tp, 1.0)
    name, each = "attention.out_groups", width / groups
    trained = not (at.learning and at.learning.frozen)
    saved = at.size * tokens * width * trained
    at.product(name, "fwd", tokens, rank, each, dtype=dtype, batch=groups, saved=saved)
    if at.learning:
        back = partial(at.product, phase="backward", dtype=dtype, batch=groups)
        back(f"{name}.dgrad", "dgrad", tokens, each, rank)
        if trained:
            back(f"{name}.wgrad", "wgrad", rank, each, tokens, out_bytes=4.0)


def _compressor(at: WorkList) -> None:
    """Projections of every token, in 16 bits; written in 32 with a bias of its place, and summed
    when a key is complete, by a softmax over each channel's weights. While there is a cache, what
    is incomplete is kept beside it."""
    model, tokens = at.model, at.portion.tokens
    own, chooser = float(model.compressor_width), float(model.index_compressor_width)
    columns = own if at.learning else own + chooser
    at.linear("compress.in", columns, at.hidden, adapted=False, dtype=at.software.core)
    if at.software.cache:
        at.stream("compress.keep", "elementwise", "copy", tokens, columns, 2.0 * WIDE)
    _summed(at, "compress.sum", columns)
    if at.learning and chooser:
        sparse.project(at, "index.compress", chooser, at.hidden, at.software.core)
        _summed(sparse.learnt(at), "index.compress_sum", chooser)
    if model.index_key_matrix:
        width, rows = float(model.index_head_dim), tokens / model.compression
        at.unlearned.linear("index.key", width, float(model.head_dim), rows=rows, adapted=False)


def _summed(at: WorkList, name: str, columns: float) -> None:
    """Projections of the tokens of a key, summed; kept where the sum is learned."""
    rows, each = at.portion.tokens, at.model.overlap * (WIDE if at.software.cache else at.size)
    saved = at.size * rows * columns
    at.stream(
        name, "elementwise", "other", rows, columns, each, backward=("other", 2.0 * each),
        saved=saved,
    )  # fmt: skip


def _indexer(at: WorkList) -> None:
    """Index queries and a weight per head; position encoding and, while serving, 8 bits in one
    kernel. Every rank does all of it."""
    model = at.model
    width = float(model.index_heads * model.index_head_dim)
    sparse.project(at, "index.query", width, float(model.q_lora_rank))
    sparse.project(at, "index.weights", float(model.index_heads), at.hidden, at.software.core)
    sparse.rotated(at, "index.rope", "rope", width, at.size + (at.size if at.learning else 1.0))


def read(at: WorkList, reading: Reading) -> None:
    """Attention over sequences: choice where there is one, and all keys that a token sees, of which
    each is its own, so that a thread block has one token."""
    model = at.model
    if model.chooses:
        sparse.prompt_choice(at, reading, model.compression)
    queries, d = model.heads / at.portion.tp / reading.split, float(model.head_dim)
    beside = _compressed(model, reading.keys)
    held = d * (reading.keys + beside)
    sparse.attend(
        at,
        reading,
        _label(model),
        variant="mla",
        rows=np.maximum(queries, sparse.LEAST_ROWS),
        columns=d,
        d=d,
        held=held,
        queries=queries,
        longest=_seen(model, reading.keys),
        seen=attended_keys(model, sparse.asking(at, reading), reading.keys),
        told=np.minimum(beside, float(model.index_topk)) if model.is_sparse else 0.0,
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
    if model.chooses:
        scored = _scored(model, _compressed(model, keys))
        sparse.choice(at, sequences, scored, guessed)


def streams(at: WorkList) -> None:
    """What a block reads of the residual streams and writes to them: its output is added to all,
    mixed; then all are multiplied by a narrow matrix, whose outcome says how they are summed for
    the next block (vllm/model_executor/kernels/mhc: `mhc_post`, `mhc_pre`). Every rank does all of
    it on its rows. Gradients read the streams, too, beside their own, which they mix; those of all
    three are added up by two kernels, which read two and write one (autograd).

    Where sums are told channel by channel, streams are not mixed but normed, and the matrix is two:
    to `stream_rank` channels, and to a gate for each channel of each stream (Qwen4-Exp:
    transformers, modular_qwen4_exp.py @ 01377e7, `Qwen4ExpTextGatedResidual`)."""
    model, rows, h, n = at.model, at.portion.rows, at.hidden, float(at.model.streams)
    rank = float(model.stream_rank)
    _streamed(at, "streams.mix", 2.0 * n + 1.0 + n * bool(rank), 3.0 * n + 2.0, kept=n + 1.0)
    mixes = rank + n if rank else float(model.stream_mixes)
    at.linear("streams.project", mixes, n * h, rows=rows, adapted=False, dtype=at.software.core)
    if rank:
        saved = at.size * rows * rank
        at.linear("streams.gates", n * h, rank, rows=rows, adapted=False, saved=saved)
    gates = n if rank else 0.0
    _streamed(at, "streams.sum", n + 1.0 + gates, 2.0 * (n + gates) + 1.0, kept=gates)
    if at.learning:
        at.stream(
            "streams.gradients", "elementwise", "add", rows, h, 6.0 * n * at.size,
            phase="backward", alone=True, kernels=(2.0, 1.0),
        )  # fmt: skip


def _streamed(at: WorkList, name: str, forward: float, backward: float, kept: float) -> None:
    """A kernel over the residual streams: how often it moves as much as one of them, forward and
    backward, and how much it keeps."""
    rows, h, size = at.portion.rows, at.hidden, at.size
    at.stream(
        name,
        "elementwise",
        "add",
        rows,
        h,
        forward * size,
        alone=True,
        backward=("add", backward * size),
        saved=kept * size * rows * h,
    )

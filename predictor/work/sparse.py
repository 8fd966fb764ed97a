"""Sparse attention over chosen keys: the indexer that chooses, and the attention that follows.

Every token has one small index key in each block, cached in 8 bits beside the latent. A new token's
index queries are multiplied with all of them, the scores of the heads are weighted and added up,
and attention sees the `index_topk` keys with the largest sums: the work of the indexer grows with
the context, that of attention does not. All ranks choose alike, so each has the whole indexer.

An index key may stand for `index_pool` tokens, a sum of theirs, which are chosen together; and a
layer may see what an earlier one chose, with no indexer of its own (GLM-5.2, GLM-5.3-Flash:
transformers 5.24.0, modeling_glm5_next.py).

MiniMax-M3 chooses blocks of keys: an index head for each group of query heads that share a key
head, divided among ranks as those are, scores all index keys, which are in 16 bits; the largest
score of a block counts (vllm/models/minimax_m3 @ 0484480, 2026: common/indexer.py).

DeepSeek-AI 2025 (DeepSeek-V3.2-Exp), section 2.1; kernels as in deepseek-ai/DeepGEMM (scores in
8 bits) and deepseek-ai/FlashMLA (attention on the latents, prompts too).
"""

from __future__ import annotations

import numpy as np

from predictor.arrays import Numeric
from predictor.models import Model, keys_seen
from predictor.work.cores import kv_heads
from predictor.work.primitives import Operator
from predictor.work.worklist import WorkList

SCALE_BYTES = 4.0
"""Of the scale that an index key of 8 bits comes with."""

SCORED = "fp8"
"""Data type in which index queries and keys are multiplied."""

LEAST_ROWS = 64.0
"""Query heads that attention over chosen keys multiplies at a time: a block of prompt kernels has
one token, whose keys are its own, so that fewer heads leave rows of the matrix unit idle (FlashMLA,
whose callers fill up to 64 heads)."""


def index_bytes(model: Model) -> float:
    """Cached index key of one token in one block [bytes]: every rank holds it."""
    if model.index_block:
        return 2.0 * model.index_head_dim
    return (model.index_head_dim + SCALE_BYTES) / pooled(model) if model.chooses else 0.0


def pooled(model: Model) -> float:
    """Tokens that an index key stands for."""
    return float(max(model.index_pool, 1))


def heads_of(at: WorkList) -> Numeric:
    """Index heads on a rank: all, or those of its groups of query heads."""
    heads = float(at.model.index_heads)
    return np.maximum(heads / at.portion.tp, 1.0) if at.model.index_block else heads


def joined_columns(at: WorkList) -> Numeric:
    """Columns of index queries and the index key that are projected with the others, in one product
    (MiniMax-M3: `MinimaxM3QKVParallelLinearWithIndexer`)."""
    if not at.model.index_block:
        return 0.0
    return (heads_of(at) + 1.0) * at.model.index_head_dim


def projections(at: WorkList) -> None:
    """Index queries, key and weights of all tokens; position encoding, rotation, 8 bits."""
    model, h, tokens = at.model, at.hidden, at.portion.tokens
    if model.index_block:
        columns = joined_columns(at)
        at.stream("index.rope", "elementwise", "rope", tokens, columns, 2.0 * at.size)
        return
    width = float(model.index_heads * model.index_head_dim)
    each = float(model.index_head_dim * (2 if model.index_pool else 1))
    at.linear("index.query", width, float(model.q_lora_rank or h))
    at.linear("index.key", each + model.index_heads, h)
    both = width + model.index_head_dim
    at.stream("index.rope", "elementwise", "rope", tokens, both, 2.0 * at.size)
    at.stream("index.rotate", "elementwise", "other", tokens, both, 2.0 * at.size)
    at.stream("index.narrow", "elementwise", "other", tokens, both, at.size + 1.0)


def choice(at: WorkList, sequences: Numeric, keys: Numeric, guessed: Numeric) -> None:
    """Scores of a new token of each of `sequences` sequences, and of the guesses after it, with
    `keys` cached ones, and the largest of them.

    Scores are timed as the attention that they resemble: one key head, kept in pages.
    """
    heads = heads_of(at)
    rows, width = guessed * heads, float(at.model.index_head_dim)
    keys = keys / pooled(at.model)
    scores = Operator(
        name="index.scores",
        op="attention_decode",
        variant="" if at.model.index_block else "kv8",
        phase="forward",
        module=at.module,
        dtype=at.software.core,
        m=rows,
        n=keys,
        k=width,
        batch=sequences,
        flop=2.0 * sequences * rows * width * keys,
        bytes=sequences * _moved(at, guessed, keys, keys),
        count=at.share,
    )
    at.operators.append(scores)
    _largest(at, sequences * guessed, keys)


def _scores(at: WorkList) -> Numeric:
    """Scores of a pair of tokens that are kept: one, since heads are added up on the way; or, of a
    block of keys, one for each head."""
    block = at.model.index_block
    return heads_of(at) / block if block else 1.0


def _moved(at: WorkList, query: Numeric, keys: Numeric, seen: Numeric) -> Numeric:
    """Traffic of one sequence's scores [bytes]: queries, each cached key once, and 32 bits of each
    score that is kept."""
    model = at.model
    queries = query * heads_of(at) * model.index_head_dim * (2.0 if model.index_block else 1.0)
    held = keys * pooled(model) * index_bytes(model)
    return queries + held + 4.0 * query * seen * _scores(at)


def _largest(at: WorkList, rows: Numeric, seen: Numeric) -> None:
    """A radix selection, which reads the scores twice."""
    at.stream("index.choose", "softmax", "fwd", rows, seen * _scores(at), 8.0, alone=True)


def prompt_choice(
    at: WorkList, sequences: Numeric, query: Numeric, past: Numeric, ratio: float = 1.0
) -> None:
    """Scores of `query` new tokens of each of `sequences` prompts behind `past` cached ones, and
    the largest of them. They are timed as the fused attention that they resemble: tiles of queries
    and keys whose products stay in the processor.

    ratio   tokens that an index key stands for
    """
    keys, before = (past + query) / ratio, (past + 0.5 * query) / ratio
    heads, width = sequences * heads_of(at), float(at.model.index_head_dim)
    # One product instead of the two of attention: half the head size.
    scores = Operator(
        name="index.scores",
        op="attention_prefill",
        variant="flash",
        phase="forward",
        module=at.module,
        dtype=at.software.core if at.model.index_block else SCORED,
        m=query,
        n=keys,
        k=0.5 * width,
        batch=heads,
        flop=2.0 * heads * query * width * before,
        bytes=sequences * _moved(at, query, keys, before),
        count=at.share,
    )
    at.operators.append(scores)
    _largest(at, sequences * query, before)


def prompts(at: WorkList, sequences: Numeric, query: Numeric, past: Numeric) -> None:
    """Choice and attention of `query` new tokens of each of `sequences` prompts behind `past`
    cached ones, where there are more than `index_topk` tokens; on the latents, as while decoding,
    where there are any. Blocks of keys are each met by all queries that chose them, so that rows of
    the matrix unit fill up."""
    model, size = at.model, at.size
    keys = past + query
    if model.chooses:
        prompt_choice(at, sequences, query, past, pooled(model))
    queries = model.heads / at.portion.tp
    seen = keys_seen(query, keys, 1.0, float(model.index_topk))
    held: Numeric
    if model.is_latent:
        latent = float(model.kv_lora_rank)
        stored = latent + model.qk_rope_head_dim
        d, held = 0.5 * (stored + latent), stored
        batch, variant = sequences * np.maximum(queries, LEAST_ROWS), "mla"
    else:
        d = 0.5 * (model.qk_dim + model.v_dim)
        held = 2.0 * d * kv_heads(model, at.portion.tp)
        batch, variant = sequences * queries, "flash"
    at.operators.append(
        Operator(
            name="attention.chosen",
            op="attention_prefill",
            variant=variant,
            phase="forward",
            module=at.module,
            dtype=at.software.core,
            m=query,
            n=np.minimum(keys, float(model.index_topk)),
            k=d,
            batch=batch,
            flop=4.0 * batch * query * d * seen,
            bytes=size * sequences * (query * queries * 2.0 * d + keys * held),
            count=at.share,
        )
    )


def longer(model: Model, keys: Numeric) -> Numeric:
    """1 where a prompt of `keys` tokens is longer than what attention may choose, else 0."""
    return np.where(np.asarray(keys) > model.index_topk, 1.0, 0.0) if model.is_sparse else 0.0

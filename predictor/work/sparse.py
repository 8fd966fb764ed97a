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

Training chooses in 16 bits, and nothing is learned through a choice: what is attended to has its
gradient, scores once more and four products, as of other attention (cuDNN front end 1.24 to 1.28,
sparse attention backward). The indexer learns, if at all, from a loss of its own (`Learning.index`;
DeepSeek-AI 2025, eq. 4; Megatron Core, dsa.py @ d52a24ac5, whose indexer reads detached inputs):
its scores of the chosen keys against what attention gives them, over all heads.
"""

from __future__ import annotations

import numpy as np

from predictor.arrays import Numeric
from predictor.models import Model, attended_keys, keys_seen
from predictor.work.cores import Reading, kv_heads
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
        if at.learning:
            project(at, "index.query", columns, h)
        rotated(at, "index.rope", "rope", columns, 2.0 * at.size)
        return
    width = float(model.index_heads * model.index_head_dim)
    each = float(model.index_head_dim * (2 if model.index_pool else 1)) + model.index_heads
    if model.index_means:
        each = float(model.index_head_dim)
    project(at, "index.query", width, float(model.q_lora_rank or h))
    project(at, "index.key", each, h)
    both = width + model.index_head_dim
    rotated(at, "index.rope", "rope", both, 2.0 * at.size)
    rotated(at, "index.rotate", "other", both, 2.0 * at.size)
    if not at.learning:
        at.stream("index.narrow", "elementwise", "other", tokens, both, at.size + 1.0)


def _learns(at: WorkList) -> bool:
    """Whether what chooses keys learns."""
    return at.learning is not None and at.learning.index


def learnt(at: WorkList) -> WorkList:
    """The same place for what chooses keys, which has gradients where it learns."""
    return at if _learns(at) else at.unlearned


def project(at: WorkList, name: str, columns: Numeric, depth: float, dtype: str = "") -> None:
    """A projection of an indexer: its input has no gradient, its weights where it learns."""
    at.unlearned.linear(name, columns, depth, dtype=dtype)
    if _learns(at):
        at.product(
            f"{name}.wgrad", "wgrad", columns, depth, at.portion.tokens, phase="backward",
            dtype=dtype or at.linear_dtype, out_bytes=4.0,
        )  # fmt: skip


def rotated(at: WorkList, name: str, variant: str, columns: Numeric, moved: float) -> None:
    """Position encoding or rotation of index queries and keys, which are kept where they learn."""
    tokens = at.portion.tokens
    learnt(at).stream(
        name, "elementwise", variant, tokens, columns, moved, backward=(variant, moved),
        saved=at.size * tokens * columns if variant == "rope" else 0.0,
    )  # fmt: skip


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
    model, width = at.model, float(at.model.index_head_dim)
    wide = at.size if at.learning else 2.0 if model.index_block else 1.0
    held = at.size * width if at.learning else pooled(model) * index_bytes(model)
    return query * heads_of(at) * width * wide + keys * held + 4.0 * query * seen * _scores(at)


def _largest(at: WorkList, rows: Numeric, seen: Numeric) -> None:
    """A radix selection, which reads the scores twice."""
    at.stream("index.choose", "softmax", "fwd", rows, seen * _scores(at), 8.0, alone=True)


def prompt_choice(at: WorkList, reading: Reading, ratio: float = 1.0) -> None:
    """Scores of the new tokens of sequences, and the largest of them. They are timed as the fused
    attention that they resemble: tiles of queries and keys whose products stay in the processor.

    ratio   tokens that an index key stands for
    """
    learns = at.learning is not None
    sequences, query = reading.sequences, reading.query
    keys = reading.keys / ratio
    before = (reading.seen if learns else reading.keys - 0.5 * query) / ratio
    if at.model.candidates:
        keys = np.minimum(keys, float(at.model.candidates))
        before = np.minimum(before, keys)
    heads, width = sequences * heads_of(at), float(at.model.index_head_dim)
    # One product instead of the two of attention: half the head size.
    scores = Operator(
        name="index.scores",
        op="attention_prefill",
        variant="flash",
        phase="forward",
        module=at.module,
        dtype=at.software.core if at.model.index_block or learns else SCORED,
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
    if _learns(at):
        _taught(at, reading, ratio)


def _taught(at: WorkList, reading: Reading, ratio: float) -> None:
    """Scores of attention over the chosen keys once more, for what the indexer is to learn; both
    scores' softmax and their divergence, in 32 bits; the indexer's scores once more and the two
    products of their gradient (cuDNN front end 1.24 to 1.28: score recompute, indexer backward)."""
    model, size = at.model, at.size
    sequences, query = reading.sequences, reading.query
    together = ratio if model.is_compressed else 1.0  # tokens of a key that attention sees
    most = float(model.index_topk) * together
    longest = np.minimum(reading.keys, most)
    seen = keys_seen(reading.keys, reading.keys, 1.0, most)
    if model.is_latent:
        wide = float(model.kv_lora_rank + model.qk_rope_head_dim)
    else:
        wide = float(model.qk_dim)
    queries = np.maximum(model.heads / at.portion.tp, LEAST_ROWS)
    chooser = float(model.index_head_dim)
    for name, op, heads, width, products, phase, each in (
        ("index.target", "attention_prefill", queries, wide, 1.0, "forward", together),
        ("index.scores.bwd", "attention_backward", heads_of(at), chooser, 3.0, "backward", ratio),
    ):
        batch = sequences * heads
        moved = size * width * (query * batch + sequences * reading.keys / each)
        at.operators.append(
            Operator(
                name=name,
                op=op,
                variant="mla",
                phase=phase,
                module=at.module,
                dtype=at.software.core,
                m=query,
                n=longest / each,
                k=0.5 * width,
                batch=batch,
                flop=products * 2.0 * batch * query * width * seen / each,
                bytes=products * (moved + 4.0 * sequences * query * seen / each),
                count=at.share,
            )
        )
    rows, columns = sequences * query, seen / ratio
    at.stream("index.loss", "softmax", "fwd", rows, columns, 16.0, alone=True)


def asking(at: WorkList, reading: Reading) -> Numeric:
    """Tokens, the last of a sequence, whose mean tells what a rank's own see: ranks that divide a
    sequence while they learn have places from all of it."""
    return reading.keys if at.learning else reading.query


def prompts(at: WorkList, reading: Reading) -> None:
    """Choice and attention of the new tokens of sequences of more than `index_topk` tokens; on the
    latents, as while decoding, where there are any. Blocks of keys are each met by all queries that
    chose them, so that rows of the matrix unit fill up."""
    model = at.model
    if model.chooses:
        prompt_choice(at, reading, pooled(model))
    queries = model.heads / at.portion.tp / reading.split
    rows: Numeric = queries
    held: Numeric
    if model.is_latent:
        latent = float(model.kv_lora_rank)
        columns = latent + model.qk_rope_head_dim
        d, held = 0.5 * (columns + latent), columns
        rows, variant = np.maximum(queries, LEAST_ROWS), "mla"
    else:
        columns, d = float(model.qk_dim), 0.5 * (model.qk_dim + model.v_dim)
        held = 2.0 * d * kv_heads(model, at.portion.tp)
        variant = "flash"
    most = float(model.index_topk)
    attend(
        at,
        reading,
        "attention.chosen",
        variant=variant,
        rows=rows,
        columns=columns,
        d=d,
        held=held * reading.keys,
        queries=queries,
        longest=np.minimum(reading.keys, most),
        seen=attended_keys(model, asking(at, reading), reading.keys),
        told=_told(at, np.minimum(reading.keys, most)),
    )


def _told(at: WorkList, chosen: Numeric) -> Numeric:
    """Numbers that say which keys a token chose: of each, of those that stand for several tokens,
    or of blocks, for each key head."""
    model = at.model
    if model.index_block:
        return kv_heads(model, at.portion.tp) * chosen / model.index_block
    return chosen / pooled(model)


def attend(
    at: WorkList,
    reading: Reading,
    name: str,
    *,
    variant: str,
    rows: Numeric,
    columns: float,
    d: float,
    held: Numeric,
    queries: Numeric,
    longest: Numeric,
    seen: Numeric,
    told: Numeric,
) -> None:
    """Attention of new tokens over keys of their own choice, and its gradients; kept are queries
    and outcome with a sum of each head, a rank's own keys, and which were chosen.

    rows     of the matrix unit that a token's heads take
    columns  width of a query
    d        mean of the widths of a key and of its values
    held     elements of keys and values of a sequence
    queries  heads of a token
    longest, seen  keys of a token, at most and on average
    told     numbers of 32 bits that say which keys a token sees
    """
    sequences, query, size = reading.sequences, reading.query, at.size
    batch = sequences * rows
    flop = 4.0 * batch * query * d * seen
    moved = size * sequences * (query * queries * 2.0 * d + held)
    asked = size * sequences * query * queries * columns
    own = held * query / reading.keys  # what other ranks hold is gathered again
    saved = sequences * (size * (query * queries * 2.0 * d + own) + 4.0 * query * (queries + told))
    parts = [("", "attention_prefill", "forward", flop, moved, saved)]
    if at.learning:  # gradients of keys are added up in 32 bits
        back = 2.0 * moved + 8.0 * sequences * held
        parts.append((".bwd", "attention_backward", "backward", 2.5 * flop, back, 0.0))
    for suffix, op, phase, work, traffic, kept in parts:
        at.operators.append(
            Operator(
                name=f"{name}{suffix}",
                op=op,
                variant=variant,
                phase=phase,
                module=at.module,
                dtype=at.software.core,
                m=query,
                n=longest,
                k=d,
                batch=batch,
                flop=work,
                bytes=traffic,
                count=at.share,
                saved=at.kept(kept),
                remade=asked / saved,
                core=True,
            )
        )


def longer(model: Model, keys: Numeric) -> Numeric:
    """1 where a prompt of `keys` tokens is longer than what attention may choose, else 0."""
    return np.where(np.asarray(keys) > model.index_topk, 1.0, 0.0) if model.is_sparse else 0.0


def through_choice(at: WorkList, reading: Reading) -> Numeric:
    """1 where prompts are read over the keys that they choose, else 0.

    A model with latents reads them absorbed, with `LEAST_ROWS` rows at least, and so does more
    arithmetic for each key than over expanded ones: engines that mask the keys which were not
    chosen (`Software.short` "masked") do so as long as that is less, whatever is longer than what
    may be chosen (vLLM's pull requests 47327 and 48770, 2026-07, which has crossovers by heads that
    were timed). Others absorb all prompts ("chosen": before; SGLang before its pull request 11892,
    2025-10).
    """
    model, keys = at.model, reading.keys
    beyond = longer(model, keys)
    if not (model.is_sparse and model.is_latent) or at.software.short == "dense":
        return beyond
    if at.software.short == "chosen":
        return np.ones_like(np.asarray(beyond, float))
    heads = model.heads / at.portion.tp
    latent = 2.0 * model.kv_lora_rank + model.qk_rope_head_dim
    absorbed = np.maximum(heads / reading.split, LEAST_ROWS) * latent
    absorbed = absorbed * attended_keys(model, asking(at, reading), keys)
    expanded = heads / reading.split * (model.qk_dim + model.v_dim)
    expanded = expanded * (np.asarray(keys) - 0.5 * np.asarray(reading.query))
    return np.asarray(np.where(absorbed < expanded, beyond, 0.0))

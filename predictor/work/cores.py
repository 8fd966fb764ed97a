"""The attention itself: over prompts and training sequences, fused or not, and of new tokens.

Fused attention keeps no scores (Dao 2023); separate kernels run over the whole score matrix; a
decoding pass reads the cached keys and values of every sequence once (Kwon et al. 2023), or the
latents that all heads share (DeepSeek-AI 2024, section 2.1).
"""

from __future__ import annotations

import numpy as np

from predictor.arrays import Numeric
from predictor.models import Model
from predictor.plans import SEPARATE
from predictor.records import dataclass, replace
from predictor.work.merging import merged
from predictor.work.primitives import Operator
from predictor.work.worklist import WorkList

WINDOWED, LATER, EACH = "attention.window", "attention.later", "attention.each"

MASKED = 2.0
"""Time of fused attention that adds a mask to its scores over that without one: 3.3 and 9.7 ms
where 1.7 and 4.9 are predicted, 0.27 and 0.87 for 0.12 and 0.32 (cuDNN 9.19 on an H200, 8,192
tokens, and 4 x 2,048 with heads of 256)."""

TILED, TILES, SMALL_TILE = "flash2", (192.0, 100.0), 64.0
"""A kernel that walks over tiles, and keys outside a window that it meets with those inside:
forward, backward, and with heads above `LARGE` (FlashAttention-2 of PyTorch 2.11 on an H200,
windows of 128 to 4,096: `data/measurements/h200-sxm-4/windows.csv`)."""

LARGE, LARGE_HEADS = 128, 1.8
"""Size of the largest heads whose backward pass was timed before, and what those of 256 take over
what follows from these (the same: 220 of 275 TFLOP/s, where 410 would follow)."""

CONVERTED = 16.0
"""Traffic per attention score of 16-bit products and of the conversions around them [bytes]:
written in 16 bits, read and written in 32, read and written in 16 once more, read
(ggml_cuda_op_mul_mat_cublas of 2024-05, from memory)."""


UNALIGNED = "fp32"
"""Data type whose products stand for those of heads that matrix units cannot take: they run on the
ordinary units, which are as quick in 16 bits as in 32 where elements come one at a time."""


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """Sequences that are read, as one rank attends over them; floats or arrays.

    sequences  that have `query` new tokens each
    query      tokens of one that ask on this rank
    keys       tokens of one that are there, cached ones with them
    seen       of those, the ones that a query sees on average
    windowed   the same in layers with a sliding window
    reach      there, the keys of one that are read: those that any query of the rank sees
    hidden     keys beyond those that a query sees and whose scores are computed where nothing is
               fused: the rest of its pass, half of which comes after it on average
    split      ranks that divide the heads once more (Ulysses: Jacobs et al. 2023)
    blocks     in which the keys come by where none has a window, one of each rank
    """

    sequences: Numeric
    query: Numeric
    keys: Numeric
    seen: Numeric
    windowed: Numeric
    reach: Numeric
    split: Numeric = 1.0
    hidden: Numeric = 0.0
    blocks: Numeric = 1.0

    @property
    def own(self) -> Reading:
        """The first block: what the rank's own keys have to say."""
        return replace(self, keys=self.keys / self.blocks, seen=self.seen / self.blocks)

    @property
    def later(self) -> Reading:
        """A later block, as much work: behind a causal mask either half of the queries sees all of
        another rank's keys, as here, or all see half of them (torch/distributed/tensor/
        experimental/_attention.py, "Round-robin Load Balance"; Transformer Engine's
        context_parallel.py), without a mask all of both."""
        keys = self.keys / self.blocks
        seen = np.minimum(2.0 * self.seen / self.blocks, keys)
        asked = self.query * (self.seen / self.blocks) / np.maximum(seen, 1e-9)
        return replace(self, query=asked, keys=keys, seen=seen)


def query_heads(model: Model, tp: Numeric) -> Numeric:
    """Query heads on a tensor-parallel rank: whole ones, filled up where ranks do not divide them
    (software that does: `plans.serving_rules.PADS_HEADS`)."""
    return np.ceil(model.heads / tp)


def kv_heads(model: Model, tp: Numeric) -> Numeric:
    """Key and value heads on a tensor-parallel rank: replicated where tp exceeds them; one for each
    query head where the model has as many."""
    if model.kv_heads == model.heads:
        return query_heads(model, tp)
    return np.maximum(model.kv_heads / tp, 1.0)


def prompt_core(at: WorkList, reading: Reading) -> None:
    """Attention of full and of windowed layers over sequences whose keys lie expanded."""
    if at.model.looped:  # calls of their own, however many they are
        at = at.on(at.module, at.share * reading.sequences)
        reading = replace(reading, sequences=1.0)
    if at.software.attention in SEPARATE:
        _separate(at, reading)
        return
    share = at.model.windowed_share
    if share < 1.0:
        _in_blocks(at.on(at.module, at.share * (1.0 - share)), reading)
    if share > 0.0:
        bound: Numeric = 0.0
        if at.software.masked:
            bound = np.where(np.asarray(reading.keys) > at.model.sliding_window, 1.0, 0.0)
            _masked(at.on(at.module, at.share * share * bound), reading)
        _fused(at.on(at.module, at.share * share * (1.0 - bound)), WINDOWED, reading, True)


def _in_blocks(at: WorkList, reading: Reading) -> None:
    """Attention over all keys, a kernel for each block in which they come by, and what merges their
    outcomes."""
    _fused(at, EACH if at.model.looped else "attention", reading.own, False)
    if np.all(np.asarray(reading.blocks) <= 1.0):
        return
    before = len(at.operators)
    _fused(at.on(at.module, at.share * (reading.blocks - 1.0)), LATER, reading.later, False)
    for i, one in enumerate(at.operators[before:], before):
        at.operators[i] = replace(one, saved=0.0)  # the same queries and outcome
    queries, heads = _heads(at, reading)
    rows, both = reading.sequences * reading.query, float(at.model.qk_dim + at.model.v_dim)
    travels = queries if at.software.repeats else heads
    merged(at, reading.blocks, rows, queries * float(at.model.v_dim), travels * both)


def _masked(at: WorkList, reading: Reading) -> None:
    """A window that is a mask: every query meets every key, keys and values are copied for each
    head, and the mask is made what is added to the scores (Transformers 5.17, integrations/
    sdpa_attention.py: `use_gqa_in_sdpa`, masking_utils.py; traces of steps on an H200). Where no
    sequence is longer than the window there is none."""
    queries, heads = _heads(at, reading)
    model, tokens = at.model, reading.sequences * reading.keys
    before = len(at.operators)
    _fused(at, "attention.masked", replace(reading, seen=reading.keys), False)
    at.stretch(before, MASKED, MASKED)
    if np.any(queries > heads):
        columns = queries * (model.qk_dim + model.v_dim) * np.where(queries > heads, 1.0, 0.0)
        moved = at.size * (1.0 + heads / queries)
        at.stream(
            "attention.repeat", "elementwise", "copy", tokens, columns, moved,
            backward=("copy", moved), saved=at.size * tokens * columns, alone=True,
        )  # fmt: skip
    rows = reading.sequences * reading.query
    at.stream(
        "attention.mask", "elementwise", "other", rows, reading.keys, 1.0 + at.size, alone=True
    )


def _heads(at: WorkList, reading: Reading) -> tuple[Numeric, Numeric]:
    """Query heads on a rank, and those of keys and values; latents are expanded for each head."""
    model, tp = at.model, at.portion.tp
    queries = query_heads(model, tp)
    keys = queries if model.is_latent else kv_heads(model, tp)
    return queries / reading.split, np.maximum(keys / reading.split, 1.0)


def _fused(at: WorkList, name: str, reading: Reading, windowed: bool) -> None:
    """Fused attention, which keeps no scores and visits only the keys that a query sees.

    Head sizes of queries (with keys) and values may differ: `k` is their mean, with which the
    arithmetic is exact. Queries and outcome, keys and values pass through memory once; all but the
    outcome is made again where latents are expanded again.
    """
    model, size = at.model, at.size
    queries, heads = _heads(at, reading)
    variant = _kernel_of_prompts(at)
    both = float(model.qk_dim + model.v_dim)
    sequences, query, keys = reading.sequences, reading.query, reading.keys
    longest = np.minimum(float(model.sliding_window), keys) if windowed else keys
    read = reading.reach if windowed else keys
    batch = sequences * queries
    seen = reading.windowed if windowed else reading.seen
    if at.software.scores:
        seen = seen + reading.hidden
    flop = 2.0 * batch * query * both * seen
    stored = at.software.cache if variant == "kv8" else size
    moved = sequences * both * (size * query * queries + stored * read * heads)
    saved = sequences * query * (size * both * (queries + heads) + 4.0 * queries)
    parts = [("", "attention_prefill", "forward", flop, moved, saved)]
    if at.learning:  # the scores once more, and four products instead of two
        parts.append((".bwd", "attention_backward", "backward", 2.5 * flop, 2.0 * moved, 0.0))
    for suffix, op, phase, work, traffic, kept in parts:
        longer = _in_tiles(phase, seen, model.qk_dim, windowed) if variant == TILED else 1.0
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
                k=0.5 * both,
                batch=batch,
                flop=work,
                bytes=traffic,
                count=at.share,
                saved=at.kept(kept),
                remade=1.0 - 0.5 * model.v_dim / both,
                core=True,
                idle=read / longest - 1.0,
                windowed=float(windowed),
                sharing=queries / heads,
                joined=float(at.learning is not None),
                stretch=longer if at.learning else 1.0,
            )
        )
    if at.software.scores:
        rows = batch * query
        at.stream(f"{name}.scores", "softmax", "fwd", rows, seen, at.software.scores, alone=True)
        if at.software.converts:
            at.stream(f"{name}.convert", "elementwise", "copy", rows, seen, CONVERTED, alone=True)


def _in_tiles(phase: str, seen: Numeric, size: float, windowed: bool) -> Numeric:
    """Time of FlashAttention-2 over what the keys that are seen would take: it walks over whole
    tiles, which a window cuts, and those of large heads are small in the backward pass."""
    back = phase == "backward"
    beside = TILES[back] if size <= LARGE else SMALL_TILE
    longer = 1.0 + beside / np.maximum(seen, 1.0) if windowed else 1.0
    return longer * (LARGE_HEADS if back and size > LARGE else 1.0)


def _kernel_of_prompts(at: WorkList) -> str:
    """Variant of the fused kernel: its generation, latent heads, or keys and values of a cache that
    is narrower than what is computed in."""
    variant = "flash2" if at.software.attention == "triton" else at.software.attention
    if variant != "flash":
        return variant
    if at.model.is_latent:
        return "mla"
    return "kv8" if 0.0 < at.software.cache < at.size else "flash"


def _on_matrix_units(*sizes: float) -> bool:
    """Whether heads of these sizes start on boundaries of 16 bytes, in 16 bits: eight elements
    (NVIDIA, "Matrix multiplication background user's guide", table 1: what tensor cores ask for
    until cuBLAS 10, and what they need to be quick since)."""
    return all(size % 8 == 0 for size in sizes)


def _separate(at: WorkList, reading: Reading) -> None:
    """Scores, softmax and context as kernels of their own, over the whole score matrix."""
    model, size, dropout = at.model, at.size, bool(at.mask)
    queries, heads = _heads(at, reading)
    d_qk, d_v = float(model.qk_dim), float(model.v_dim)
    query, key, tokens = reading.query, reading.keys, reading.sequences * reading.query
    batch = reading.sequences * queries
    rows = batch * query
    dtype = at.software.core if _on_matrix_units(d_qk, d_v) else UNALIGNED

    def product(
        name: str, layout: str, m: Numeric, n: Numeric, k: Numeric, saved: Numeric = 0.0
    ) -> None:
        phase = "forward" if layout == "bmm" else "backward"
        at.product(
            f"attention.{name}", layout, m, n, k, phase=phase, batch=batch, saved=saved, core=True,
            dtype=dtype,
        )  # fmt: skip

    def each(name: str, op: str, variant: str, streams: float, saved: Numeric = 0.0) -> None:
        phase = "backward" if variant.endswith("bwd") else "forward"
        at.stream(
            f"attention.{name}", op, variant, rows, key, streams, phase=phase, saved=saved,
            core=True,
        )  # fmt: skip

    product("scores", "bmm", query, key, d_qk, size * tokens * d_qk * (queries + heads))
    eager = at.software.attention == "eager"
    if eager:
        each("scale", "elementwise", "other", 2 * size)
    each("softmax", "softmax", "fwd", 2 * size, size * rows * key)
    if dropout:
        each("dropout", "elementwise", "dropout", 2 * size + 1, (size + 1) * rows * key)
    product("context", "bmm", query, d_v, key, size * tokens * d_v * heads)
    if not at.learning:
        return
    product("context.dgrad", "bmm_bwd", query, key, d_v)
    product("context.wgrad", "bmm_bwd", key, d_v, query)
    if dropout:
        each("dropout.bwd", "elementwise", "dropout_bwd", 2 * size + 1)
    each("softmax.bwd", "softmax", "bwd", 3 * size)
    if eager:
        each("scale.bwd", "elementwise", "other_bwd", 2 * size)
    product("scores.dgrad", "bmm_bwd", query, d_qk, key)
    product("scores.wgrad", "bmm_bwd", key, d_qk, query)


def decoding_core(at: WorkList, sequences: Numeric, keys: Numeric, guessed: Numeric) -> None:
    """Attention of `guessed` new tokens of each of `sequences` sequences over `keys` cached ones.

    m   query rows that share a key head; n  keys; k  head size; batch  sequences x key heads
    """
    share = at.model.windowed_share
    if share < 1.0:
        _decoding(at.on(at.module, at.share * (1.0 - share)), "attention", sequences, keys, guessed)
    if share > 0.0:
        _decoding(
            at.on(at.module, at.share * share), WINDOWED, sequences, keys, guessed, windowed=True
        )


def _decoding(
    at: WorkList,
    name: str,
    sequences: Numeric,
    keys: Numeric,
    guessed: Numeric,
    windowed: bool = False,
) -> None:
    """One kind of layer; the cache is read once for all query heads that share it, in a window at
    most its last tokens."""
    model, cache, size = at.model, at.software.cache, at.size
    seen = np.minimum(keys, float(model.sliding_window)) if windowed else keys
    queries = query_heads(model, at.portion.tp) * guessed
    if model.is_latent:
        rows: Numeric = queries
        heads: Numeric = 1.0
        d = float(model.kv_lora_rank + model.qk_rope_head_dim)
        stored, worked = d, d + model.kv_lora_rank
        variant = "mla_kv8" if cache < 2 else "mla"
    else:
        heads = kv_heads(model, at.portion.tp)
        rows, d = queries / heads, 0.5 * (model.qk_dim + model.v_dim)
        stored = worked = 2.0 * d
        variant = "kv8" if cache < 2 else ""
    at.operators.append(
        Operator(
            name=name,
            op="attention_decode",
            variant=variant,
            phase="forward",
            module=at.module,
            dtype=at.software.core,
            m=rows,
            n=seen,
            k=d,
            batch=sequences * heads,
            flop=2.0 * sequences * queries * seen * worked,
            bytes=sequences * (cache * heads * seen * stored + 2.0 * size * queries * d),
            count=at.share,
            core=True,
            idle=np.maximum(keys / np.maximum(seen, 1e-9) - 1.0, 0.0),
            windowed=float(windowed),
        )
    )

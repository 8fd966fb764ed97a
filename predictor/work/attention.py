"""The attention block: projections, position encoding, and what attends.

Grouped-query attention (Ainslie et al. 2023), multi-head latent attention (DeepSeek-AI 2024,
section 2.1), sliding windows (Beltagy et al. 2020), chosen keys (`sparse`); the kernels of the
attention itself are in `cores`.
"""

from __future__ import annotations

import numpy as np

from predictor.arrays import Numeric
from predictor.models import has_head_norms, has_whole_norms
from predictor.plans import SEPARATE
from predictor.work import compressed, shared, sparse
from predictor.work.cores import Reading, decoding_core, kv_heads, prompt_core, query_heads
from predictor.work.worklist import WorkList


def attention_block(at: WorkList, reading: Reading | None) -> None:
    """Norm, projections, attention and residual of one attention block; without the attention
    itself where nothing is read."""
    model, portion, size = at.model, at.portion, at.size
    if model.is_compressed:
        compressed.block(at, reading)
        return
    queries, keys = query_heads(model, portion.tp), kv_heads(model, portion.tp)
    gated = queries * model.v_dim if model.output_gate or model.head_gate else 0.0
    if model.shared_blocks:
        shared.entered(at)
    else:
        at.norm("attention.norm")
    if model.is_latent:
        _latent_projections(at, queries)
        if np.any(gated):
            at.linear("attention.gate_in", gated if model.output_gate else queries, at.hidden)
    else:
        beside = gated if model.output_gate else queries * model.head_gate
        beside = beside + (0.0 if at.learning else sparse.joined_columns(at))
        width = queries * model.head_dim + keys * model.kv_head_columns + beside
        depth, biased = float(model.attention_input), model.bias or model.qkv_bias
        at.linear("attention.qkv", width, depth, saved=size * at.kept_rows * depth, bias=biased)
        if model.shared_queries:
            shared.adapted(at, "attention.own", queries * model.head_dim, depth, 3.0)
    _query_key_norms(at, queries + keys)
    _rope(at, queries, keys)
    if model.chooses:
        sparse.projections(at)
    if reading is not None:
        read(at, reading)
    if np.any(gated):
        at.stream(
            "attention.gate",
            "elementwise",
            "gate",
            portion.tokens,
            gated,
            3 * size,
            backward=("gate", 5 * size),  # reads gradient, output and gate; writes two gradients
            saved=size * portion.tokens * gated,
        )
    out = queries * model.v_dim
    # Fused attention has saved its output, which is the input of the projection unless it is gated,
    # or in latents.
    kept: Numeric = float(at.software.attention in SEPARATE or bool(np.any(gated)))
    if model.is_latent and reading is not None:
        kept = np.maximum(kept, sparse.longer(model, reading.keys))
    saved = kept * size * portion.tokens * out
    at.linear("attention.out", at.hidden, out, saved=saved, bias=model.bias)
    at.closing_norm("attention.closing_norm")
    if not model.shared_blocks:  # whose feed-forward block sees the outcome alone
        at.residual("attention.residual")


def _query_key_norms(at: WorkList, heads: Numeric) -> None:
    """Norms of queries and keys, head by head or over all heads.

    Over all heads and while serving: squares of a rank's own heads, and, when all ranks' are added
    up, the product (two kernels for both; vllm-project/vllm pull request 31493 and
    sgl-project/sglang pull request 14416, 2025-12). Head by head engines join them with the
    position encoding, and have them in what they are fitted to; training runs a norm for queries
    and one for keys (Megatron Core, transformer/attention.py: `q_layernorm`, `k_layernorm`).
    """
    rows, size = at.portion.tokens, at.model.head_dim
    whole = has_whole_norms(at.model)
    if whole and at.software.cache:
        at.stream("attention.squares", "norm", "fwd", rows, heads * size, at.size)
        at.stream("attention.qk_norm", "norm", "fwd", rows, heads * size, 2.0 * at.size)
    elif at.software.norms and whole:
        at.norm("attention.qk_norm", rows, heads * size)
    elif at.software.norms and has_head_norms(at.model):
        at.norm("attention.qk_norm", rows * heads, float(size))


def _latent_projections(at: WorkList, queries: Numeric) -> None:
    """Down to the latents on each rank's own tokens, norms, and queries up to the heads."""
    model, size, rows, h = at.model, at.size, at.portion.rows, at.hidden
    rank, latent = model.q_lora_rank, model.kv_lora_rank
    shared = model.qk_rope_head_dim
    if at.software.latents:
        at.linear("attention.down", float(rank + latent + shared), h, rows=rows, adapted=False)
        at.norm("attention.latent_norm", rows, float(rank + latent))
    else:
        if rank:
            at.linear("attention.q_down", rank, h, saved=size * rows * h, rows=rows, adapted=False)
            at.norm("attention.q_norm", rows, rank)
        at.linear("attention.kv_down", latent + shared, h, rows=rows, adapted=False)
        at.norm("attention.kv_norm", rows, latent)
    depth = float(rank or h)
    at.linear("attention.q_up", queries * model.qk_dim, depth, saved=size * rows * depth)


def _rope(at: WorkList, queries: Numeric, keys: Numeric) -> None:
    """Position encoding of queries and keys; where there is a cache, keys and values are written to
    it on the way, encoded or not (vLLM's and TensorRT-LLM's joined kernels)."""
    model = at.model
    if model.positions != "rope" and not at.software.cache:
        return
    if model.is_latent:
        columns = (queries + 1.0) * model.qk_rope_head_dim
    else:
        written = 0 if model.borrows else model.v_dim if at.software.cache else 0
        columns = (queries + keys * (not model.borrows)) * model.head_dim + keys * written
    passes = 1 if at.software.chains else 3  # apart: two products, a rotation and a sum
    size = np.maximum(at.software.stream, at.size)  # angles are in fp32 under autocast
    streams = 2 * size * passes
    at.stream(
        "attention.rope",
        "elementwise",
        "rope",
        at.portion.tokens,
        columns,
        streams,
        backward=("rope", streams),
    )


def read(at: WorkList, reading: Reading) -> None:
    """Attention over sequences: over all of their keys, expanded from the latents where there are
    any; or over chosen ones, where sequences are longer than what is chosen (`through_choice`)."""
    model = at.model
    if model.is_compressed:
        compressed.read(at, reading)
        return
    chosen = sparse.through_choice(at, reading)
    whole = at.on(at.module, at.share * (1.0 - chosen))
    if np.any(np.asarray(chosen) < 1.0):
        if model.is_latent:
            _expand(whole, reading)
        prompt_core(whole, reading)
        masked = sparse.longer(model, reading.keys) - chosen
        if np.any(masked > 0.0) and model.chooses:
            behind = at.on(at.module, at.share * np.maximum(masked, 0.0))
            sparse.prompt_choice(behind, reading, sparse.pooled(model))
    if np.any(np.asarray(chosen) > 0.0):
        picked = at.on(at.module, at.share * chosen)
        if model.is_latent:
            _through_latents(picked, reading.sequences * reading.query)
        sparse.prompts(picked, reading)


def _expand(at: WorkList, reading: Reading) -> None:
    """Keys and values of all heads from the latents of all tokens that are there, cached or not;
    of the micro-batch's own where ranks divide a sequence."""
    model = at.model
    latent = float(model.kv_lora_rank)
    up = model.heads / at.portion.tp * (model.qk_nope_head_dim + model.v_dim)
    rows = reading.sequences * reading.keys if at.software.cache else at.portion.tokens
    at.linear("attention.kv_up", up, latent, saved=at.size * at.portion.rows * latent, rows=rows)


def decode(at: WorkList, sequences: Numeric, keys: Numeric, guessed: Numeric) -> None:
    """Attention of `guessed` new tokens of each of `sequences` sequences over `keys` cached ones,
    on the latents where there are any."""
    model = at.model
    if model.is_compressed:
        compressed.decode(at, sequences, keys, guessed)
        return
    seen = np.minimum(keys, float(model.index_topk)) if model.is_sparse else keys
    decoding_core(at, sequences, seen, guessed)
    if model.is_latent:
        _through_latents(at, sequences * guessed)
    if model.chooses:
        sparse.choice(at, sequences, keys, guessed)


def _through_latents(at: WorkList, rows: Numeric) -> None:
    """Queries of `rows` tokens to latents, and what attention returns back to values."""
    model = at.model
    heads, latent = model.heads / at.portion.tp, float(model.kv_lora_rank)
    each = float(model.qk_nope_head_dim)
    saved = at.size * rows * heads * each
    at.mixed("attention.absorb", rows, latent, each, heads, saved=saved, weights=True)
    at.mixed("attention.expand", rows, float(model.v_dim), latent, heads, weights=True)
    at.adapter("attention.kv_up", heads * (each + model.v_dim), latent)

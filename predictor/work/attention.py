"""The attention block: projections, position encoding, and the attention itself.

Grouped-query attention (Ainslie et al. 2023), multi-head latent attention (DeepSeek-AI 2024,
section 2.1), sliding windows (Beltagy et al. 2020), fused (Dao 2023) or as separate kernels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from predictor.arrays import Numeric
from predictor.models import Model
from predictor.plans import TrainingPlan
from predictor.work.layers import Layers
from predictor.work.primitives import Operator

WINDOWED = "attention.window"


@dataclass(frozen=True, slots=True, eq=False)
class Heads:
    """What one rank attends with: query and key/value heads, tokens of each sequence that ask, and
    how many ranks hold its keys."""

    queries: Numeric
    keys: Numeric
    length: Numeric
    spread: Numeric


def kv_heads(model: Model, plan: TrainingPlan) -> Numeric:
    """Key and value heads on a tensor-parallel rank: replicated where tp exceeds them."""
    return np.maximum(model.kv_heads / plan.tp, 1.0)


def heads_of(model: Model, plan: TrainingPlan) -> Heads:
    """Heads on a rank. Ulysses gives each context-parallel rank whole sequences of fewer heads
    (Jacobs et al. 2023); the other kinds leave it all heads of a part of the sequence."""
    queries, keys = model.heads / plan.tp, kv_heads(model, plan)
    if plan.cp_kind == "ulysses":
        whole = plan.seq_len + 0.0 * plan.cp
        return Heads(queries / plan.cp, np.maximum(keys / plan.cp, 1.0), whole, 1.0)
    return Heads(queries, keys, plan.seq_len / plan.cp, plan.cp)


def attention_block(at: Layers) -> None:
    """Norm, projections, attention and residual of one attention block."""
    model, plan, size = at.model, at.plan, at.size
    at.norm("attention.norm")
    queries, keys = model.heads / plan.tp, kv_heads(model, plan)
    if model.is_latent:
        _latent_projections(at, queries)
        at_rope = (queries + 1.0) * model.qk_rope_head_dim
    else:
        width = (queries + 2 * keys) * model.head_dim
        biased = model.bias or model.qkv_bias
        at.linear("attention.qkv", width, at.hidden, size * at.kept_rows * at.hidden, biased)
        at_rope = (queries + keys) * model.head_dim
    _rope(at, at_rope)
    flash = plan.attention != "unfused"
    heads = heads_of(model, plan)
    if flash:
        share = model.windowed_share
        if share < 1.0:
            _flash(at.on(at.module, at.share * (1.0 - share)), "attention", heads, False)
        if share > 0.0:
            _flash(at.on(at.module, at.share * share), WINDOWED, heads, True)
    else:
        _unfused(at, heads)
    out = queries * model.v_dim
    # Flash attention has saved its output, which is the input of the projection.
    at.linear("attention.out", at.hidden, out, 0.0 if flash else size * at.tokens * out, model.bias)
    at.residual("attention.residual")


def _latent_projections(at: Layers, queries: Numeric) -> None:
    """Down to the latents on each rank's own tokens, norms, and up to the heads."""
    model, size, rows, h = at.model, at.size, at.rows, at.hidden
    rank, latent = model.q_lora_rank, model.kv_lora_rank
    shared = model.qk_rope_head_dim
    if rank:
        at.linear("attention.q_down", rank, h, size * rows * h, rows=rows, adapted=False)
        at.norm("attention.q_norm", rows, rank)
    at.linear(
        "attention.q_up",
        queries * model.qk_dim,
        rank or h,
        size * rows * (rank or h),
    )
    at.linear("attention.kv_down", latent + shared, h, 0.0, rows=rows, adapted=False)
    at.norm("attention.kv_norm", rows, latent)
    up = queries * (model.qk_nope_head_dim + model.v_dim)
    at.linear("attention.kv_up", up, latent, size * rows * latent)


def _rope(at: Layers, columns: Numeric) -> None:
    if at.model.positions != "rope":
        return
    passes = 1 if at.plan.fused else 3  # unfused: two products, a rotation and a sum
    for suffix, phase in (("", "forward"), (".bwd", "backward")):
        at.stream(
            f"attention.rope{suffix}",
            "elementwise",
            "rope",
            phase,
            at.tokens,
            columns,
            2 * at.size * passes,
        )


def _flash(at: Layers, name: str, heads: Heads, windowed: bool) -> None:
    """Fused attention, which keeps no scores and visits only the keys that a query sees.

    Head sizes of queries (with keys) and values may differ: `k` is their mean, with which the
    arithmetic is exact.
    """
    model, plan, size = at.model, at.plan, at.size
    d_qk, d_v = float(model.qk_dim), float(model.v_dim)
    batch, query = plan.micro_batch * heads.queries, heads.length
    key = np.minimum(float(model.sliding_window), plan.seq_len) if windowed else plan.seq_len
    d = 0.5 * (d_qk + d_v)
    flop = 4.0 * batch * query * d * model.mean_keys(plan.seq_len, windowed)
    tokens = plan.micro_batch * heads.length
    both = d_qk + d_v
    moved = size * tokens * both * (heads.queries + heads.keys * heads.spread)
    saved = size * tokens * both * (heads.queries + heads.keys) + 4.0 * tokens * heads.queries
    variant = "flash2" if plan.attention == "triton" else plan.attention
    if model.is_latent and variant == "flash":
        variant = "mla"
    for suffix, op, phase, work, traffic, kept in (
        ("", "attention_prefill", "forward", flop, moved, saved),
        (".bwd", "attention_backward", "backward", 2.5 * flop, 2.0 * moved, 0.0),
    ):
        at.operators.append(
            Operator(
                f"{name}{suffix}",
                op,
                variant,
                phase,
                at.module,
                at.dtype,
                query,
                key,
                d,
                batch,
                work,
                traffic,
                at.share,
                kept,
                core=True,
                idle=plan.seq_len / key - 1.0,
            )
        )


def _unfused(at: Layers, heads: Heads) -> None:
    """Scores, softmax and context as kernels of their own, over the whole score matrix."""
    model, plan, size = at.model, at.plan, at.size
    d_qk, d_v = float(model.qk_dim), float(model.v_dim)
    batch, query, key = plan.micro_batch * heads.queries, heads.length, plan.seq_len
    rows, tokens = batch * query, plan.micro_batch * heads.length

    def product(
        name: str,
        layout: str,
        phase: str,
        m: Numeric,
        n: Numeric,
        k: Numeric,
        saved: Numeric = 0.0,
    ) -> None:
        at.product(name, layout, phase, m, n, k, batch=batch, saved=saved, core=True)

    def elementwise(
        name: str, op: str, variant: str, phase: str, streams: float, saved: Numeric = 0.0
    ) -> None:
        at.stream(name, op, variant, phase, rows, key, streams, saved, core=True)

    kept = size * tokens * d_qk * (heads.queries + heads.keys)
    product("attention.scores", "bmm", "forward", query, key, d_qk, kept)
    elementwise("attention.softmax", "softmax", "fwd", "forward", 2 * size, size * rows * key)
    if plan.dropout:
        saved = (size + 1) * rows * key
        elementwise("attention.dropout", "elementwise", "dropout", "forward", 2 * size + 1, saved)
    values = size * tokens * d_v * heads.keys
    product("attention.context", "bmm", "forward", query, d_v, key, values)
    product("attention.context.dgrad", "bmm_bwd", "backward", query, key, d_v)
    product("attention.context.wgrad", "bmm_bwd", "backward", key, d_v, query)
    if plan.dropout:
        elementwise("attention.dropout.bwd", "elementwise", "dropout_bwd", "backward", 2 * size + 1)
    elementwise("attention.softmax.bwd", "softmax", "bwd", "backward", 3 * size)
    product("attention.scores.dgrad", "bmm_bwd", "backward", query, d_qk, key)
    product("attention.scores.wgrad", "bmm_bwd", "backward", key, d_qk, query)

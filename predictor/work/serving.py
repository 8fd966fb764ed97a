"""The work list of serving: which kernels and collectives one pass of a model runs.

A pass takes new tokens, of prompts or one of each running sequence, through all layers. Linear
layers depend on the number of tokens only; attention on whose they are. `count` is per pass, of
all layers together.

Equations: Narayanan et al. 2021 (shapes under tensor parallelism); Kwon et al. 2023 (paged cache);
DeepSeek-AI 2024, section 2.1 (latent attention, whose projections are absorbed while decoding).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from predictor.arrays import Numeric
from predictor.models import Model, experts_hit
from predictor.plans import KV_BYTES, ServingPlan
from predictor.precision import ELEMENT_BYTES, WEIGHT_BYTES
from predictor.work import delta_rule as serving_delta
from predictor.work import mamba_cached as serving_mamba
from predictor.work import sparse as serving_sparse
from predictor.work.communication import Group
from predictor.work.primitives import Operator, gemm, grouped, streaming

PHASE = "forward"

UNFUSED = 3.0
"""Traffic of small kernels where they are not joined over where they are: elements of 4 bytes
instead of 2, and half as many kernels again (norms apart from their scale, sums, conversions)."""

MANY_ROWS = 64.0
"""Rows beyond which engines without kernels of their own for narrow weights widen a matrix in
memory before they multiply it (ggml's cuBLAS path)."""

SCORE_BYTES = 16.0
"""Traffic per attention score that goes through memory [bytes]: written in 32 bits, read and
written by the softmax, read again."""


@dataclass(frozen=True, slots=True, eq=False)
class Exchange:
    """One collective of a pass: `op` as in `communication.Collective`, `bytes` in nccl-tests'
    convention, `count` per pass, `copies` of each element that share the way to one domain."""

    name: str
    op: str
    group: Group
    bytes: Numeric
    count: Numeric
    copies: Numeric = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class WorkList:
    """A work list in the making, and what its operators share."""

    model: Model
    plan: ServingPlan
    operators: list[Operator]
    module: str = "layer"
    blocks: Numeric = 1.0

    def on(self, module: str, blocks: Numeric) -> WorkList:
        """Another kind of block, of which the model has `blocks`."""
        return replace(self, module=module, blocks=blocks)

    @property
    def size(self) -> float:
        """Bytes of an activation element."""
        return ELEMENT_BYTES[self.plan.half]

    def linear(
        self,
        name: str,
        rows: Numeric,
        columns: Numeric,
        depth: Numeric,
        dtype: str = "",
        *,
        batch: Numeric = 1.0,
        layout: str = "fwd",
    ) -> None:
        """y[rows, columns] = x[rows, depth] W; narrow weights widen the traffic of x only as far
        as `primitives.gemm` counts it. Engines without kernels for many rows of narrow weights
        widen those in memory first."""
        dtype = dtype or self.plan.projections
        half = "fp16_acc" if self.plan.accumulation == "fp16" else self.plan.half
        packed = self.plan.fusion == "unfused" and WEIGHT_BYTES[dtype] < ELEMENT_BYTES[dtype]
        many = np.asarray(rows) > MANY_ROWS
        few = self.blocks if not packed else np.where(many, 0.0, self.blocks)

        def product(label: str, made_in: str, count: Numeric) -> None:
            made = gemm(
                label, layout, PHASE, self.module, made_in, rows, columns, depth,
                batch=batch, out_bytes=self.size, count=count,
            )  # fmt: skip
            self.operators.append(made)

        product(name, half if dtype == self.plan.half else dtype, few)
        if packed:
            apart = np.where(many, self.blocks, 0.0)
            moved = WEIGHT_BYTES[dtype] + ELEMENT_BYTES[half]
            widened = streaming(
                f"{name}.widen", "elementwise", "copy", PHASE, self.module, self.plan.half,
                depth, columns, moved, count=apart,
            )  # fmt: skip
            self.operators.append(widened)
            product(f"{name}.wide", half, apart)

    def stream(
        self, name: str, op: str, variant: str, rows: Numeric, columns: Numeric, streams: float
    ) -> None:
        """A memory-bound kernel that moves `streams` bytes per element."""
        half = self.plan.half
        streams = streams * (UNFUSED if self.plan.fusion == "unfused" else 1.0)
        self.operators.append(
            streaming(
                name,
                op,
                variant,
                PHASE,
                self.module,
                half,
                rows,
                columns,
                streams,
                count=self.blocks,
            )
        )

    def norm(self, name: str, rows: Numeric, width: Numeric) -> None:
        """A norm, which adds its input to the residual stream on the way."""
        self.stream(name, "norm", self.model.norm, rows, width, 4 * self.size)


def kv_heads(model: Model, tp: Numeric) -> Numeric:
    """Key and value heads on a tensor-parallel rank: replicated where tp exceeds them."""
    return np.maximum(model.kv_heads / tp, 1.0)


def kv_token_bytes(model: Model, plan: ServingPlan) -> Numeric:
    """Cache of one token in one attention block on one rank [bytes]: keys and values of its heads,
    or the latent and the shared key, which every rank holds whole, with an index key."""
    if model.is_latent:
        stored = KV_BYTES[plan.kv] * float(model.kv_lora_rank + model.qk_rope_head_dim)
        return stored + serving_sparse.index_bytes(model)
    return KV_BYTES[plan.kv] * kv_heads(model, plan.tp) * (model.qk_dim + model.v_dim)


def state_bytes(model: Model, plan: ServingPlan) -> Numeric:
    """What all blocks on one rank keep of a sequence, however long it is [bytes]."""
    found: Numeric = 0.0
    if model.is_hybrid:
        found = found + model.mamba_layers * serving_mamba.state_bytes(model, plan)
    if model.delta_layers:
        found = found + model.delta_layers * serving_delta.state_bytes(model, plan)
    return found


def layer_operators(model: Model, plan: ServingPlan, tokens: Numeric) -> list[Operator]:
    """Kernels of a pass over `tokens` tokens of one attention replica, attention cores and ends
    aside."""
    at = WorkList(model, plan, [])
    _projections(at.on("layer", float(model.attention_blocks)), tokens)
    if dense := float(model.ffn_blocks - model.moe_layers):
        _feed_forward(at.on("dense", dense), "mlp", model.ffn_hidden / plan.tp, tokens)
    if model.is_moe:
        _mixture(at.on("moe", float(model.moe_layers)), tokens)
    if model.is_hybrid:
        serving_mamba.projections(at.on("layer", float(model.mamba_layers)), tokens)
    if model.delta_layers:
        serving_delta.projections(at.on("layer", float(model.delta_layers)), tokens)
    return at.operators


def _projections(at: WorkList, tokens: Numeric) -> None:
    """Norm, queries, keys and values, position encoding with the write to the cache, output."""
    model, plan, h = at.model, at.plan, float(at.model.hidden)
    queries, keys = model.heads / plan.tp, kv_heads(model, plan.tp)
    at.norm("attention.norm", tokens, h)
    if model.is_latent:
        rank, latent, rope = model.q_lora_rank, model.kv_lora_rank, model.qk_rope_head_dim
        at.linear("attention.down", tokens, float(rank + latent + rope), h)
        at.norm("attention.latent_norm", tokens, float(rank + latent))
        at.linear("attention.q_up", tokens, queries * model.qk_dim, float(rank or h))
        width = (queries + 1.0) * rope
    else:
        width = (queries + 2 * keys) * model.head_dim
        gate = queries * model.head_dim if model.output_gate else 0.0
        at.linear("attention.qkv", tokens, width + gate, h)
    at.stream("attention.rope", "elementwise", "rope", tokens, width, 2 * at.size)
    if model.is_sparse:
        serving_sparse.projections(at, tokens)
    if model.output_gate:
        gated = queries * model.head_dim
        at.stream("attention.gate", "elementwise", "gate", tokens, gated, 3 * at.size)
    at.linear("attention.out", tokens, h, queries * model.v_dim)


def _feed_forward(at: WorkList, name: str, inner: Numeric, tokens: Numeric) -> None:
    """Norm, up (and gate), activation, down."""
    at.norm(f"{name}.norm", tokens, float(at.model.hidden))
    _two_sides(at, name, inner, tokens)


def _two_sides(at: WorkList, name: str, inner: Numeric, tokens: Numeric) -> None:
    model, h = at.model, float(at.model.hidden)
    sides = 2.0 if model.gated else 1.0
    at.linear(f"{name}.up", tokens, inner * sides, h)
    kind = "swiglu" if model.gated else model.activation
    at.stream(f"{name}.activation", "elementwise", kind, tokens, inner, (sides + 1.0) * at.size)
    at.linear(f"{name}.down", tokens, h, inner)


def _mixture(at: WorkList, tokens: Numeric) -> None:
    """Norm, router, choice, the experts of this rank that have tokens, sums; shared experts."""
    model, plan, size, h = at.model, at.plan, at.size, float(at.model.hidden)
    at.norm("moe.norm", tokens, h)
    at.linear("moe.router", tokens, float(model.num_experts), h, plan.half)
    at.stream("moe.route", "softmax", "fwd", tokens, float(model.num_experts), 12.0)
    group = tokens * plan.dp
    busy = experts_hit(group, float(model.top_k), float(model.num_experts), 1.0 / plan.ep)
    received = group * model.top_k / plan.ep * plan.expert_load
    at.stream("moe.permute", "elementwise", "permute", received, h, size * 2.0)
    width = float(model.expert_width)
    at.operators.append(
        grouped(
            "moe.experts",
            at.module,
            plan.weights,
            received / busy,
            model.expert_ffn_hidden / plan.etp,
            width,
            busy,
            gated=model.gated,
            size=size,
            count=at.blocks,
        )
    )
    at.stream("moe.unpermute", "elementwise", "permute", received, h, size * 2.0)
    if model.shared_width:
        _two_sides(at, "shared", model.shared_width / plan.tp, tokens)


def end_operators(
    model: Model, plan: ServingPlan, tokens: Numeric, rows: Numeric
) -> list[Operator]:
    """Embedding of `tokens` tokens; final norm, output projection and sampling of `rows`."""
    at = WorkList(model, plan, []).on("embedding", 1.0)
    h, vocab, size = float(model.hidden), model.vocab / plan.tp, at.size
    looked_up = Operator(
        "embedding",
        "embedding",
        "fwd",
        PHASE,
        "embedding",
        plan.half,
        tokens,
        h,
        vocab,
        bytes=2 * size * tokens * h,
    )
    at.operators.append(looked_up)
    head = at.on("head", 1.0)
    head.norm("final.norm", tokens, h)
    head.linear("head", rows, vocab, h, plan.head)
    head.stream("sample", "softmax", "fwd", rows, float(model.vocab), 12.0)
    return at.operators


def decode_attention(
    model: Model, plan: ServingPlan, sequences: Numeric, keys: Numeric
) -> list[Operator]:
    """Attention of one new token of each of `sequences` sequences, and of the guesses after it,
    over `keys` cached tokens.

    m   query rows that share a key head; n  keys; k  head size; batch  sequences x key heads
    """
    cache, size = KV_BYTES[plan.kv], ELEMENT_BYTES[plan.half]
    guessed = 1.0 + plan.drafted
    queries = model.heads / plan.tp * guessed
    blocks = float(model.attention_blocks)
    found: list[Operator] = []

    def core(name: str, seen: Numeric, count: float) -> None:
        if model.is_latent:
            rows: Numeric = queries
            heads: Numeric = 1.0
            d = float(model.kv_lora_rank + model.qk_rope_head_dim)
            stored, worked = d, d + model.kv_lora_rank
            variant = "mla_kv8" if cache < 2 else "mla"
        else:
            heads = kv_heads(model, plan.tp)
            rows, d = queries / heads, 0.5 * (model.qk_dim + model.v_dim)
            stored = worked = 2.0 * d
            variant = "kv8" if cache < 2 else ""
        moved = sequences * (cache * heads * seen * stored + 2.0 * size * queries * d)
        found.append(
            Operator(
                name,
                "attention_decode",
                variant,
                PHASE,
                "layer",
                plan.half,
                rows,
                seen,
                d,
                sequences * heads,
                2.0 * sequences * queries * seen * worked,
                moved,
                count,
            )
        )

    share = model.windowed_share
    seen = np.minimum(keys, float(model.index_topk)) if model.is_sparse else keys
    if share < 1.0:
        core("attention", seen, blocks * (1.0 - share))
    if share > 0.0:
        core("attention.window", np.minimum(keys, float(model.sliding_window)), blocks * share)
    if model.is_latent:
        at = WorkList(model, plan, found).on("layer", blocks)
        _through_latents(at, sequences * guessed)
        if model.is_sparse:
            serving_sparse.choice(at, sequences, keys, guessed)
    at = WorkList(model, plan, found)
    if model.is_hybrid:
        serving_mamba.update(at.on("layer", float(model.mamba_layers)), sequences * guessed)
    if model.delta_layers:
        serving_delta.update(at.on("layer", float(model.delta_layers)), sequences * guessed)
    return found


def _through_latents(at: WorkList, rows: Numeric) -> None:
    """Queries of `rows` tokens to latents, and what attention returns back to values."""
    model, plan = at.model, at.plan
    latent, nope = float(model.kv_lora_rank), float(model.qk_nope_head_dim)
    for name, columns, depth in (
        ("attention.absorb", latent, nope),
        ("attention.expand", float(model.v_dim), latent),
    ):
        heads = model.heads / plan.tp
        at.linear(name, rows, columns, depth, plan.half, batch=heads, layout="bmm")


def prefill_attention(
    model: Model, plan: ServingPlan, sequences: Numeric, query: Numeric, past: Numeric = 0.0
) -> list[Operator]:
    """Attention of `query` new tokens of each of `sequences` prompts, of which `past` are cached.

    Each query sees the cached tokens and those before it: past + query / 2 on average.
    """
    size = ELEMENT_BYTES[plan.half]
    queries, heads = model.heads / plan.tp, kv_heads(model, plan.tp)
    if model.is_latent:
        heads = queries
    d = 0.5 * (model.qk_dim + model.v_dim)
    keys = past + query
    chosen = serving_sparse.longer(model, keys)
    blocks = model.attention_blocks * (1.0 - chosen)
    found: list[Operator] = []

    def core(name: str, seen: Numeric, longest: Numeric, count: Numeric) -> None:
        batch = sequences * queries
        moved = size * sequences * 2.0 * d * (query * queries + longest * heads)
        found.append(
            Operator(
                name,
                "attention_prefill",
                "mla" if model.is_latent else "flash",
                PHASE,
                "layer",
                plan.half,
                query,
                longest,
                d,
                batch,
                4.0 * batch * query * d * seen,
                moved,
                count,
            )
        )
        if plan.fusion == "unfused":
            scores = streaming(
                f"{name}.scores", "softmax", "fwd", PHASE, "layer", plan.half, batch * query,
                seen, SCORE_BYTES, count=count,
            )  # fmt: skip
            found.append(scores)

    share = model.windowed_share
    whole = bool(np.any(np.asarray(chosen) < 1.0))
    if share < 1.0 and whole:
        core("attention", past + 0.5 * query, keys, blocks * (1.0 - share))
    if share > 0.0:
        window = np.minimum(float(model.sliding_window), keys)
        fresh = model.mean_keys(keys, True)
        seen = np.where(np.asarray(past) > 0, np.minimum(window, past + 0.5 * query), fresh)
        core("attention.window", seen, window, blocks * share)
    if model.is_latent and whole:
        at = WorkList(model, plan, found).on("layer", blocks)
        up = queries * (model.qk_nope_head_dim + model.v_dim)
        at.linear("attention.kv_up", sequences * keys, up, float(model.kv_lora_rank))
    at = WorkList(model, plan, found)
    if np.any(np.asarray(chosen) > 0.0):
        sparse = at.on("layer", model.attention_blocks * chosen)
        _through_latents(sparse, sequences * query)
        serving_sparse.prompts(sparse, sequences, query, past)
    if model.is_hybrid:
        serving_mamba.scan(at.on("layer", float(model.mamba_layers)), sequences * query)
    if model.delta_layers:
        serving_delta.scan(at.on("layer", float(model.delta_layers)), sequences, query)
    return found


def exchanges(model: Model, plan: ServingPlan, tokens: Numeric, rows: Numeric) -> list[Exchange]:
    """Collectives of a pass over `tokens` tokens with `rows` rows of logits, per replica."""
    size, h = ELEMENT_BYTES[plan.half], float(model.hidden)
    whole = size * tokens * h
    tp = Group(plan.tp, 1.0)
    dense = float(model.ffn_blocks - model.moe_layers)
    mixers = float(model.attention_blocks + model.mamba_layers + model.delta_layers)
    found = [Exchange("attention.reduce", "allreduce", tp, whole, mixers)]
    if dense:
        found.append(Exchange("mlp.reduce", "allreduce", tp, whole, dense))
    if model.is_moe:
        # One replica: every rank has all tokens, and the experts' parts are added up. Several:
        # tokens travel to the ranks of their experts and back.
        blocks = float(model.moe_layers)
        alone = np.where(np.asarray(plan.dp) > 1, 0.0, blocks)
        found.append(Exchange("moe.reduce", "allreduce", tp, whole, alone))
        sent = whole * model.top_k / plan.tp
        ranks = Group(plan.ep, plan.etp)
        across = 2.0 * (blocks - alone)
        found.append(Exchange("moe.travel", "alltoall", ranks, sent, across, float(model.top_k)))
        split = Group(np.where(np.asarray(plan.dp) > 1, plan.etp, 1.0), 1.0)
        gathered = sent * plan.etp
        found.append(Exchange("moe.gather", "allgather", split, gathered, blocks))
        found.append(Exchange("moe.scatter", "reducescatter", split, gathered, blocks))
    found.append(Exchange("embedding.reduce", "allreduce", tp, whole, 1.0))
    found.append(Exchange("head.gather", "allgather", tp, size * rows * model.vocab, 1.0))
    stages = Group(np.minimum(plan.pp, 2.0), plan.tp * plan.dp)
    found.append(Exchange("pipeline", "p2p", stages, whole / plan.tp, plan.pp - 1.0))
    return found

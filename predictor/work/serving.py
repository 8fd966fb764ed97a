"""The work list of serving: which kernels and collectives one pass of a model runs.

A pass takes new tokens, of prompts or one of each running sequence, through all layers. Linear
layers depend on the number of tokens only; attention on whose they are. `count` is per pass, of
all layers together.

Equations: Narayanan et al. 2021 (shapes under tensor parallelism); Kwon et al. 2023 (paged cache);
DeepSeek-AI 2024, section 2.1 (latent attention, whose projections are absorbed while decoding).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from predictor.arrays import Numeric
from predictor.models import (
    Model,
    experts_hit,
    has_whole_norms,
    has_whole_rules,
    parts,
    passing_share,
)
from predictor.plans import KV_BYTES, ServingPlan
from predictor.precision import ELEMENT_BYTES
from predictor.work import compressed, delta_rule, mamba, short_conv
from predictor.work.cores import Reading, kv_heads
from predictor.work.layer import (
    all_blocks,
    decoding_cores,
    embedding,
    filtered_draw,
    head,
    layer_blocks,
    reading_cores,
)
from predictor.work.primitives import Collective, Group, Operator
from predictor.work.setting import Portion, Software
from predictor.work.sparse import index_bytes
from predictor.work.worklist import WorkList

UNFUSED = 3.0
"""Traffic of small kernels where they are not joined over where they are: elements of 4 bytes
instead of 2, and half as many kernels again (norms apart from their scale, sums, conversions)."""

LEAVE_OUT = ("trtllm",)
"""Libraries whose kernels never touch the rows of other ranks' experts: dividing DeepSeek-V3's
among eight ranks divides their time by seven with TensorRT-LLM on H200, by two with vLLM and SGLang
at 4,096 tokens (ai-dynamo/aiconfigurator, moe_perf, 2026-08)."""

ALIGNED = 128.0
"""Rows of a block of DeepGEMM's products of experts side by side."""

SCORE_BYTES = 16.0
"""Traffic per attention score that goes through memory [bytes]: written in 32 bits, read and
written by the softmax, read again."""


SOFTMAX_BYTES = 8.0
"""The same of a softmax in 32 bits alone [bytes], where what products read and write is converted
by kernels of their own."""


def software_of(plan: ServingPlan) -> Software:
    """What an engine runs a pass with. Engines join what they can; those that do not
    (`plans.FUSIONS`) send scores and small kernels' activations through memory and have no kernels
    of their own for many rows of narrow weights."""
    apart, converts = plan.fusion != "fused", plan.fusion in ("converted", "integers")
    integers = plan.fusion == "integers" and plan.narrow
    half_sums = plan.accumulation == "fp16" and plan.half != "fp32"
    return Software(
        core=plan.half,
        size=ELEMENT_BYTES[plan.half],
        linear=plan.projections,
        blocks=plan.feed_forward,
        experts=plan.weights,
        head=plan.head,
        products="fp16_acc" if half_sums else plan.half,
        cache=KV_BYTES[plan.kv],
        sums=True,
        latents=True,
        ordered=apart or plan.exchange == "deepep",
        experts_joined=True,
        traffic=UNFUSED if apart or plan.modules == "apart" else 1.0,
        scores=SOFTMAX_BYTES if converts else (SCORE_BYTES if apart else 0.0),
        widens=apart,
        integers=integers,
        converts=converts and not integers,
        casts=plan.casts == "apart",
        state=_state_element(plan),
        short=plan.short_prompts,
    )


def _state_element(plan: ServingPlan) -> float:
    """Bytes of an element of the states that are kept between passes."""
    return ELEMENT_BYTES[plan.half] if plan.states == "half" else mamba.STATE_BYTES


def serving_list(model: Model, plan: ServingPlan, tokens: Numeric) -> WorkList:
    """An empty list of a pass over `tokens` tokens of one attention replica, all of which every
    tensor-parallel rank has; experts have the tokens of all replicas."""
    received: Numeric = 0.0
    busy: Numeric = 1.0
    idle: Numeric = 0.0
    if model.is_moe:
        idle = _others_rows(plan)
        together = tokens * plan.dp
        experts = float(model.num_experts)
        chosen = experts if plan.routes_to_all else float(model.top_k)
        load = 1.0 if plan.routes_to_all else plan.expert_load
        busy = experts_hit(together, chosen, experts, plan.ep)
        received = np.maximum(together * chosen / plan.ep * load, busy)
    portion = Portion(
        tp=plan.tp,
        ep=plan.ep,
        etp=plan.etp,
        tokens=tokens,
        rows=tokens,
        routed=tokens,
        received=received,
        busy=busy,
        vocab=model.vocab / plan.tp,
        idle=idle,
    )
    if model.is_moe:
        portion = _in_buffers(model, plan, tokens * plan.dp, portion)
    return WorkList(model, software_of(plan), portion)


def _in_buffers(model: Model, plan: ServingPlan, together: Numeric, portion: Portion) -> Portion:
    """A portion whose experts' products go over buffers that are made for every token copy to come
    to the rank, and for every expert of it to fill its last block of rows with one: M top_k + E
    (`ALIGNED` - 1) rows (`compute_aligned_M` of vllm/model_executor/layers/fused_moe/
    deep_gemm_utils.py, 0.11). Rows that nobody fills are multiplied like the others (deepseek-ai/
    DeepGEMM on Blackwell; on Hopper they and an expert's weights are read all the same). Where
    tokens go to the ranks of their experts alone, buffers are made for those that came; where ranks
    split experts, nothing was timed: the portion is as it was."""
    if not plan.in_buffers:
        return portion
    everywhere = (np.asarray(plan.dp) <= 1) | (plan.exchange == "gather")
    everywhere = everywhere & (np.asarray(plan.etp) <= 1.0)
    own = float(model.num_experts) / np.asarray(plan.ep)
    rows = np.asarray(together) * model.top_k + own * (ALIGNED - 1.0)
    return replace(
        portion,
        busy=np.where(everywhere, own, portion.busy),
        idle=np.where(everywhere, 0.0, portion.idle),
        buffered=np.where(everywhere, rows, 0.0),
    )


def _others_rows(plan: ServingPlan) -> Numeric:
    """Token copies of other ranks' experts that the kernels walk over, per copy of its own: all of
    them where every rank has all tokens, unless the library leaves them out (`LEAVE_OUT`)."""
    if plan.library in LEAVE_OUT:
        return 0.0
    everywhere = (np.asarray(plan.dp) <= 1) | (plan.exchange == "gather")
    return np.where(everywhere, np.asarray(plan.ep) - 1.0, 0.0)


def prompts(
    model: Model, sequences: Numeric, query: Numeric, past: Numeric = 0.0, part: Numeric = np.inf
) -> Reading:
    """`query` new tokens of each of `sequences` prompts behind `past` cached ones.

    Each query sees the cached tokens and those before it: past + query / 2 on average; all of them
    where attention is not causal. part: tokens of a pass at most.
    """
    keys = past + query
    seen = past + 0.5 * query if model.causal else keys
    windowed: Numeric = 0.0
    reach = keys
    if model.sliding_window:
        reach = np.minimum(keys, query + float(model.sliding_window))
        window = np.minimum(float(model.sliding_window), keys)
        fresh = model.mean_keys(keys, True)
        windowed = np.where(np.asarray(past) > 0, np.minimum(window, seen), fresh)
    return Reading(
        sequences=sequences,
        query=query,
        keys=keys,
        seen=seen,
        windowed=windowed,
        reach=reach,
        hidden=0.5 * np.minimum(query, part) if model.causal else 0.0,
    )


def kv_token_bytes(model: Model, plan: ServingPlan) -> Numeric:
    """Cache of one token in one attention block of a model whose blocks are alike, on one rank
    [bytes]: keys and values of its heads, or the latent and the shared key, which every rank holds
    whole, with an index key."""
    if model.is_latent:
        stored = KV_BYTES[plan.kv] * float(model.kv_lora_rank + model.qk_rope_head_dim)
        return stored + index_bytes(model)
    own = KV_BYTES[plan.kv] * kv_heads(model, plan.tp) * (model.qk_dim + model.v_dim)
    return own + index_bytes(model)


def cache_bytes(
    model: Model, plan: ServingPlan, tokens: Numeric, borrowed: bool = False
) -> Numeric:
    """Cache of a sequence of `tokens` tokens in all attention blocks on one rank [bytes]: layers
    with a window keep that; those that borrow keys and values keep nothing, but read them
    (`borrowed`)."""
    found: Numeric = 0.0
    for blocks, one in model.attention_kinds:
        if one.borrows and not borrowed:
            continue
        if one.is_compressed:
            found = found + blocks * compressed.cache_bytes(one, plan.kv, tokens)
            continue
        window = one.windowed_share
        short = np.minimum(tokens, float(one.sliding_window or 1))
        kept = (1.0 - window) * np.asarray(tokens) + window * short
        found = found + blocks * kv_token_bytes(one, plan) * kept
    return found


def read_bytes(model: Model, plan: ServingPlan, tokens: Numeric) -> Numeric:
    """What a new token reads of the cache of `tokens` tokens in all attention blocks on one rank
    [bytes]: of chosen keys those, and the keys that choose them."""
    if not model.is_sparse:
        return cache_bytes(model, plan, tokens, borrowed=True)
    found: Numeric = 0.0
    for blocks, one in model.attention_kinds:
        if one.is_compressed:
            found = found + blocks * compressed.read_bytes(one, plan.kv, tokens)
            continue
        index, each = index_bytes(one), kv_token_bytes(one, plan)
        seen = np.minimum(tokens, float(one.index_topk)) if one.is_sparse else np.asarray(tokens)
        found = found + blocks * (index * np.asarray(tokens) + (each - index) * seen)
    return found


def state_bytes(model: Model, plan: ServingPlan) -> Numeric:
    """What all blocks on one rank keep of a sequence, however long it is [bytes]."""
    half, each = ELEMENT_BYTES[plan.half], _state_element(plan)
    found: Numeric = 0.0
    if model.is_hybrid:
        found = found + model.mamba_layers * mamba.state_bytes(model, plan.tp, half, each)
    if model.delta_layers:
        found = found + model.delta_layers * delta_rule.state_bytes(model, plan.tp, half, each)
    if model.conv_layers:
        found = found + model.conv_layers * short_conv.state_bytes(model, plan.tp, half)
    if model.is_compressed:
        kinds = model.attention_kinds
        found = found + sum(n * compressed.state_bytes(one) for n, one in kinds)
    return found


def passing_tokens(
    model: Model, plan: ServingPlan, fresh: Numeric, decoded: Numeric = 0.0
) -> Numeric | None:
    """Tokens of a pass that go through the decoder's layers: all that are decoded, and of `fresh`
    ones of prompts those of a window; None where all do."""
    if not model.decoder_layers:
        return None
    return decoded + fresh * passing_share(model, plan.new_tokens)


def layer_operators(
    model: Model, plan: ServingPlan, tokens: Numeric, last: Numeric | None = None
) -> list[Operator]:
    """Kernels of a pass over `tokens` tokens of one attention replica, attention cores and ends
    aside; `last` of them pass the decoder's layers, all unless stated."""
    found: list[Operator] = []
    for one, many in parts(model, tokens, last):
        at = serving_list(one, plan, many)
        layer_blocks(at, all_blocks(one), None)
        found += at.operators
    if not np.any(plan.adapters):
        return found
    return found + [_adapted(one, plan) for one in found if one.op == "gemm"]


def _adapted(product: Operator, plan: ServingPlan) -> Operator:
    """What adapters add to a product: rows are multiplied by a narrow matrix and a wide one of the
    rank, those of every adapter that the rows ask for (Chen et al. 2023, Punica: two kernels).

    Of N adapters, all alike often, m rows ask for N (1 - (1 - 1 / N)^m).
    """
    rank, many = np.asarray(plan.adapter_rank, float), np.maximum(plan.adapters, 1.0)
    hit = many * (1.0 - (1.0 - 1.0 / many) ** np.asarray(product.m))
    on = np.asarray(plan.adapters) > 0
    size, widths = ELEMENT_BYTES[plan.half], np.asarray(product.k + product.n)
    moved = size * widths * (hit * rank + product.m) + 2.0 * size * product.m * rank
    return replace(
        product,
        name=f"{product.name}.lora",
        op="elementwise",
        variant="add",
        dtype=plan.half,
        flop=np.where(on, 2.0 * product.m * rank * widths, 0.0),
        bytes=np.where(on, moved, 0.0),
        count=np.where(on, product.count, 0.0),
        kernels=2.0,
    )


def adapter_bytes(model: Model, plan: ServingPlan) -> Numeric:
    """Bytes of one adapter on the fullest accelerator, in 16 bits: the two matrices beside each
    product of a layer."""
    products = [one for one in layer_operators(model, plan, 1.0) if one.op == "gemm"]
    rows = sum(np.asarray((one.k + one.n) * one.count) for one in products)
    here = np.ceil(model.layers / plan.pp) / model.layers
    return ELEMENT_BYTES[plan.half] * np.asarray(plan.adapter_rank, float) * rows * here


def end_operators(
    model: Model, plan: ServingPlan, tokens: Numeric, rows: Numeric
) -> list[Operator]:
    """Embedding of `tokens` tokens; final norm, output projection and sampling of `rows`."""
    at = serving_list(model, plan, tokens)
    embedding(at.on("embedding"))
    head(at.on("head"), rows)
    if plan.sampling != "plain":
        filtered_draw(at.on("head"), rows, plan.sampler, plan.sampling == "penalised")
    return at.operators


def decode_attention(
    model: Model, plan: ServingPlan, sequences: Numeric, keys: Numeric
) -> list[Operator]:
    """Attention of one new token of each of `sequences` sequences, and of the guesses after it,
    over `keys` cached tokens."""
    guessed = 1.0 + plan.drafted
    at = serving_list(model, plan, sequences * guessed)
    decoding_cores(at, all_blocks(model), sequences, keys, guessed)
    return at.operators


def prefill_attention(
    model: Model, plan: ServingPlan, sequences: Numeric, query: Numeric, past: Numeric = 0.0
) -> list[Operator]:
    """Attention of `query` new tokens of each of `sequences` prompts behind `past` cached ones; in
    the decoder's layers, of those of a window."""
    found: list[Operator] = []
    last = np.minimum(query, float(model.sliding_window)) if model.decoder_layers else None
    for one, many in parts(model, query, last):
        at = serving_list(one, plan, sequences * many)
        before = past + query - many
        reading_cores(at, all_blocks(one), prompts(one, sequences, many, before, plan.chunk))
        found += at.operators
    return found


def pass_groups(plan: ServingPlan) -> dict[str, Group]:
    """Rank groups of a served model: tensor parallel innermost, then attention replicas, then
    stages. With one replica no tokens are gathered among the ranks that split experts."""
    split = np.where(np.asarray(plan.dp) > 1, plan.etp, 1.0)
    return {
        "tp": Group(plan.tp, 1.0),
        "ep": Group(plan.ep, plan.etp),
        "etp": Group(split, 1.0),
        "pp": Group(np.minimum(plan.pp, 2.0), plan.tp * plan.dp),
    }


KERNELS = {"nvlink": "one_sided", "deepep": "deepep"}
"""Kernels made for an exchange, as `timing.collective_time` calls them."""


def _exchange(exchange: str, step: str) -> str:
    """The all-to-all of a step ('dispatch' or 'combine') of an exchange."""
    kernel = KERNELS.get(exchange)
    return "alltoall" if kernel is None else f"alltoall.{kernel}_{step}"


def _sent_size(plan: ServingPlan) -> float:
    """Bytes of an element on its way to the experts: kernels made for it take it as narrow as it is
    multiplied, with its scales (deepseek-ai/DeepEP, README: fp8 dispatch, bf16 combine)."""
    half = ELEMENT_BYTES[plan.half]
    if plan.exchange not in KERNELS:
        return half
    return float(min(half, ELEMENT_BYTES.get(plan.weights, half)))


def pass_collectives(
    model: Model,
    plan: ServingPlan,
    tokens: Numeric,
    rows: Numeric,
    last: Numeric | None = None,
) -> list[Collective]:
    """Collectives of a pass over `tokens` tokens with `rows` rows of logits, per replica; counts
    are per pass. `last` tokens pass the decoder's layers, all unless stated."""
    size = ELEMENT_BYTES[plan.half]
    whole = size * tokens * float(model.hidden)
    found: list[Collective] = []
    for one, many in parts(model, tokens, last):
        found += _layer_collectives(one, plan, many)
    found.append(_collective("embedding.reduce", "allreduce", "tp", whole, 1.0, 1.0))
    found.append(_collective("head.gather", "allgather", "tp", size * rows * model.vocab, 1.0, 1.0))
    found.append(_collective("pipeline", "p2p", "pp", whole / plan.tp, plan.pp - 1.0, 1.0))
    return found


def _collective(
    name: str, op: str, group: str, size: Numeric, count: Numeric, copies: float
) -> Collective:
    return Collective(name, op, "forward", "pass", group, size, count, copies=copies)


def _layer_collectives(model: Model, plan: ServingPlan, tokens: Numeric) -> list[Collective]:
    """Collectives of all layers over `tokens` tokens."""
    size, h = ELEMENT_BYTES[plan.half], float(model.hidden)
    whole = size * tokens * h
    held = all_blocks(model)
    found: list[Collective] = []

    def add(
        name: str, op: str, group: str, size: Numeric, count: Numeric, copies: float = 1.0
    ) -> None:
        found.append(_collective(name, op, group, size, count, copies))

    mixers = held.attention + held.mamba + held.delta + held.conv
    add("attention.reduce", "allreduce", "tp", whole, mixers)
    if model.laurel_rank:
        add("laurel.reduce", "allreduce", "tp", whole, held.attention)
    if has_whole_norms(model):  # a sum of squares in 32 bits of queries, and one of keys
        add("attention.squares", "allreduce", "tp", 2.0 * 4.0 * tokens, held.attention)
    if has_whole_rules(model):
        add("delta.squares", "allreduce", "tp", 4.0 * tokens, held.delta)
    if model.mamba_rank:
        add("mamba.sum", "allreduce", "tp", size * tokens * model.mamba_selected_width, held.mamba)
    if held.dense and not model.parallel:  # else added up together with attention's
        add("mlp.reduce", "allreduce", "tp", whole, held.dense)
    if model.is_moe:
        # One replica: every rank has all tokens, and the experts' parts are added up. Several:
        # tokens travel to the ranks of their experts and back.
        alone = np.where(np.asarray(plan.dp) > 1, 0.0, held.moe)
        # What the busiest rank's experts are sent keeps its link busy the longest.
        sent = size * tokens * model.expert_width * model.top_k / plan.tp * plan.expert_load
        add("moe.reduce", "allreduce", "tp", whole, alone)
        across = held.moe - alone
        if plan.exchange == "gather":
            every = size * tokens * plan.dp * model.expert_width
            add("moe.collect", "allgather", "ep", every, across)
            add("moe.return", "reducescatter", "ep", every, across)
        else:
            narrow = sent * _sent_size(plan) / size
            for step, amount in (("dispatch", narrow), ("combine", sent)):
                op = _exchange(plan.exchange, step)
                add(f"moe.{step}", op, "ep", amount, across, float(model.top_k))
        add("moe.gather", "allgather", "etp", sent * plan.etp, held.moe)
        add("moe.scatter", "reducescatter", "etp", sent * plan.etp, held.moe)
    if model.ngram_layers:
        gathered = size * tokens * model.ngram_found
        add("ngrams.gather", "allgather", "tp", gathered, float(model.ngram_layers))
    return found

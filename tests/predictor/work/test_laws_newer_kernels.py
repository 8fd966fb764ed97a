"""Every kernel of newer blocks by hand: compressed keys and residual streams (DeepSeek-V4), chosen
blocks of keys (MiniMax-M3), rules that decay each channel by itself (Kimi)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest

from predictor.models.model import Model
from predictor.work import serving, sparse
from predictor.work.compressed import cache_bytes, key_bytes, read_bytes, state_bytes
from predictor.work.delta_rule import CHUNK, SLICE
from predictor.work.delta_rule import state_bytes as rule_bytes
from predictor.work.primitives import Operator
from predictor.work.serving import decode_attention, layer_operators, prefill_attention
from predictor.work.training import step_operators
from tests.predictor.work.counts import DENSE, LATENTS, D, H, served, trained

HEADS, RANK, ROPE, GROUPS, OUT, STREAMS = 12, 384, 32, 4, 56, 3
INDEX, SMALL, TOP, WINDOW, FEW, MANY = 6, 40, 64, 256, 8, 32
"""Index heads and their size, keys that are chosen, a window, tokens to a key of either kind."""

V4 = replace(
    DENSE, layers=5, kv_heads=1, q_lora_rank=RANK, qk_rope_head_dim=ROPE, out_groups=GROUPS,
    out_rank=OUT, streams=STREAMS, index_heads=INDEX, index_head_dim=SMALL, index_topk=TOP,
    sliding_window=WINDOW, choosing_layers=2, choosing_ratio=FEW, pooling_layers=2,
    pooling_ratio=MANY,
)  # fmt: skip
"""A layer that sees its window alone, two that choose among compressed keys, two that see all."""

LEFT = ("attention.latent_norm", "attention.residual", "delta.residual")

M, TP = 10.0, 2.0
PLAN = served(tp=TP)
CHOOSING, POOLING = 2.0, 2.0


def told(found: Iterable[Operator], *prefixes: str) -> list[tuple[str, tuple[float, ...]]]:
    """Name; rows, columns, depth, products; FLOP, bytes; how often."""
    numbers = ("m", "n", "k", "batch", "flop", "bytes", "count")
    return sorted(
        (one.name, tuple(float(np.max(getattr(one, n))) for n in numbers))
        for one in found if one.name.startswith(prefixes)
    )  # fmt: skip


def product(m: float, n: float, k: float, count: float, batch: float = 1.0) -> tuple[float, ...]:
    moved = 2 * (m * k + k * n + m * n) * batch
    return m, n, k, batch, 2 * m * n * k * batch, moved, count


def stream(m: float, n: float, each: float, count: float) -> tuple[float, ...]:
    return m, n, 1.0, 1.0, 0.0, m * n * each, count


def same(found: list[tuple[str, tuple[float, ...]]], expected: list[tuple[str, tuple]]) -> None:
    expected = sorted(expected)
    assert [name for name, _ in found] == [name for name, _ in expected]
    for (name, own), (_, count) in zip(found, expected, strict=True):
        assert own == pytest.approx(count), name


def test_products_and_streams_of_compressed_layers() -> None:
    """Engines add what a block made as they normalise: two read, two written. One product down to
    latent queries and the key; a compressor's columns are what is summed and
    its weights, twice where sums overlap; a projection of each group of heads, then one of all."""
    queries = HEADS / TP * D
    wide = 2 * 2 * D + 2 * 2 * SMALL
    expected = []
    for count in (1.0, CHOOSING, POOLING):
        expected += [
            ("attention.norm", stream(M, H, 8, count)),
            ("attention.down", product(M, RANK + D, H, count)),
            ("attention.q_up", product(M, queries, RANK, count)),
            ("attention.rope", stream(M, queries + D, 4, count)),
            ("attention.rotate_back", stream(M, queries, 4, count)),
            ("attention.out_groups", product(M, OUT, HEADS * D / GROUPS, count, GROUPS / TP)),
            ("attention.out", product(M, H, GROUPS / TP * OUT, count)),
        ]
    for columns, overlap, count in ((wide, 2, CHOOSING), (2 * D, 1, POOLING)):
        expected += [
            ("compress.in", product(M, columns, H, count)),
            ("compress.keep", stream(M, columns, 8, count)),
            ("compress.sum", stream(M, columns, 4 * overlap, count)),
        ]
    expected += [
        ("index.query", product(M, INDEX * SMALL, RANK, CHOOSING)),
        ("index.weights", product(M, INDEX, H, CHOOSING)),
        ("index.rope", stream(M, INDEX * SMALL, 3, CHOOSING)),
    ]
    latent = next(
        one for one in layer_operators(V4, PLAN, M) if one.name == "attention.latent_norm"
    )
    assert (latent.m, latent.n, latent.op) == (M, RANK + D, "norm")
    found = [one for one in layer_operators(V4, PLAN, M) if one.name not in LEFT]
    same(told(found, "attention", "compress", "index"), expected)


def test_ranks_beyond_the_groups_have_one_each() -> None:
    """Four ranks have a group each, of 144 channels; eight share their heads' groups."""
    for tp, channels in ((4.0, HEADS * D / 4), (6.0, HEADS * D / 6)):
        found = {one.name: one for one in layer_operators(V4, served(tp=tp), M)}
        assert (float(found["attention.out_groups"].batch), found["attention.out_groups"].k) == (
            1.0, channels
        )  # fmt: skip
        assert float(found["attention.out"].k) == OUT


def test_residual_streams_are_read_mixed_and_summed() -> None:
    """Two blocks a layer: what a block made is added to each of n streams, all read and written;
    (2 + n) n numbers are computed of all of them; one sum is written."""
    expected = [
        ("streams.mix", stream(M, H, (2 * STREAMS + 1) * 2, 10.0)),
        ("streams.project", product(M, (2 + STREAMS) * STREAMS, STREAMS * H, 10.0)),
        ("streams.sum", stream(M, H, (STREAMS + 1) * 2, 10.0)),
    ]
    same(told(layer_operators(V4, PLAN, M), "streams"), expected)


@pytest.mark.parametrize(("kv", "each"), [("bf16", 2 * D), ("fp8", D - ROPE + 2 * ROPE + D / 64)])
@pytest.mark.parametrize("keys", [100.0, 400.0, 5000.0])
@pytest.mark.parametrize("drafted", [0.0, 1.0])
def test_a_new_token_over_compressed_keys(
    kv: str, each: float, keys: float, drafted: float
) -> None:
    """Of the window, and of keys that stand for so many tokens the chosen or all."""
    guessed, sequences = 1 + drafted, 3.0
    rows = HEADS / TP * guessed
    window = min(keys, WINDOW)
    expected = []
    for name, seen, count in (
        ("attention.window", window, 1.0),
        ("attention.chosen", window + min(keys / FEW, TOP), CHOOSING),
        ("attention.pooled", window + keys / MANY, POOLING),
    ):
        moved = sequences * (each * seen + 2 * 2 * rows * D)
        flop = 4 * sequences * rows * seen * D
        expected.append((name, (rows, seen, float(D), sequences, flop, moved, count)))
    scored, heads = keys / FEW, INDEX * guessed
    bytes_ = sequences * (heads * SMALL + scored * (SMALL + 4) + 4 * guessed * scored)
    expected += [
        ("index.scores", (heads, scored, float(SMALL), sequences,
                          2 * sequences * heads * SMALL * scored, bytes_, CHOOSING)),
        ("index.choose", stream(sequences * guessed, scored, 8, CHOOSING)),
    ]  # fmt: skip
    plan = served(tp=TP, kv=kv, drafted=drafted)
    found = decode_attention(V4, plan, sequences, keys)
    same(told(found, "attention", "index"), expected)
    narrow = {one.variant for one in found if one.op == "attention_decode"}
    assert narrow == ({"mla", "kv8"} if kv == "bf16" else {"mla_kv8", "kv8"})


def seen_on_average(query: float, keys: float, most: float) -> float:
    """By one token after another: position p sees half of itself and all before, `most` at most."""
    at = np.arange(keys - query, keys) + 0.5
    return float(np.minimum(at, most).mean())


@pytest.mark.parametrize(("query", "past"), [(2048.0, 0.0), (512.0, 4096.0), (128.0, 64.0)])
def test_prompts_over_compressed_keys(query: float, past: float) -> None:
    """64 rows of a token's heads at least; each compressed key once for all; scores of all index
    keys before a token, and as many numbers."""
    sequences, keys = 3.0, query + past
    found = {one.name: one for one in prefill_attention(V4, PLAN, sequences, query, past)}
    window = seen_on_average(query, keys, WINDOW)
    for name, ratio, most, count in (
        ("attention.window", None, 0.0, 1.0),
        ("attention.chosen", FEW, TOP * FEW, CHOOSING),
        ("attention.pooled", MANY, np.inf, POOLING),
    ):
        one = found[name]
        beside = seen_on_average(query, keys, most) / ratio if ratio else 0.0
        assert (float(one.m), float(one.k), float(np.max(one.count))) == (query, D, count)
        assert float(one.batch) == sequences * 64
        last = min(keys, WINDOW) + (min(keys / ratio, most / ratio) if ratio else 0.0)
        assert float(one.n) == pytest.approx(last)
        flop = 4 * sequences * 64 * query * D * (window + beside)
        assert float(one.flop) == pytest.approx(flop, rel=2e-3)
        held = keys + (keys / ratio if ratio else 0.0)
        moved = 2 * sequences * D * (2 * query * HEADS / TP + held)
        assert float(one.bytes) == pytest.approx(moved)
    scored, before = keys / FEW, (past + query / 2) / FEW
    scores, choose = found["index.scores"], found["index.choose"]
    shape = (float(scores.m), float(scores.n), float(scores.k), float(scores.batch))
    assert shape == (query, scored, SMALL / 2, sequences * INDEX)
    assert float(scores.flop) == pytest.approx(2 * sequences * INDEX * query * SMALL * before)
    moved = query * INDEX * SMALL + scored * (SMALL + 4) + 4 * query * before
    assert float(scores.bytes) == pytest.approx(sequences * moved)
    assert scores.dtype == "fp8"
    assert float(choose.bytes) == pytest.approx(sequences * query * before * 8)


def test_cached_bytes_of_each_kind_of_layer() -> None:
    kinds = {one.compression: one for _, one in V4.attention_kinds}
    assert set(kinds) == {0, FEW, MANY}
    assert (key_bytes(V4, "bf16"), key_bytes(V4, "fp8")) == (2 * D, D + ROPE + D / 64)
    for tokens in (100.0, 5000.0):
        window = min(tokens, WINDOW) * 2 * D
        index = SMALL + 4
        assert float(cache_bytes(kinds[0], "bf16", tokens)) == window
        chosen = tokens / FEW * (2 * D + index)
        assert float(cache_bytes(kinds[FEW], "bf16", tokens)) == pytest.approx(window + chosen)
        pooled = tokens / MANY * 2 * D
        assert float(cache_bytes(kinds[MANY], "bf16", tokens)) == pytest.approx(window + pooled)
        assert float(read_bytes(kinds[0], "bf16", tokens)) == window
        read = window + min(tokens / FEW, TOP) * 2 * D + tokens / FEW * index
        assert float(read_bytes(kinds[FEW], "bf16", tokens)) == pytest.approx(read)
        assert float(read_bytes(kinds[MANY], "bf16", tokens)) == pytest.approx(window + pooled)
    # In 32 bits: of so many tokens, twice where sums overlap, what is summed and its weights.
    assert state_bytes(kinds[0]) == 0.0
    assert state_bytes(kinds[FEW]) == 4 * 2 * FEW * (2 * 2 * D + 2 * 2 * SMALL)
    assert state_bytes(kinds[MANY]) == 4 * MANY * 2 * D


BLOCK, LEADING = 16, 1
M3 = replace(
    DENSE, kv_heads=4, index_heads=4, index_head_dim=SMALL, index_topk=128, index_block=BLOCK,
    whole_layers=LEADING,
)  # fmt: skip
"""Blocks of sixteen keys, eight of which are chosen; the first of five layers sees all."""


def test_index_keys_of_chosen_blocks_have_16_bits_and_a_head_for_each_group() -> None:
    choosing = next(one for _, one in M3.attention_kinds if one.index_topk)
    assert sparse.index_bytes(choosing) == 2 * SMALL
    assert sparse.index_bytes(DENSE) == 0.0
    keys, sequences, heads = 5000.0, 3.0, 2.0
    found = told(decode_attention(M3, PLAN, sequences, keys), "index")
    kept = heads / BLOCK
    moved = sequences * (2 * heads * SMALL + keys * 2 * SMALL + 4 * keys * kept)
    same(found, [
        ("index.scores", (heads, keys, float(SMALL), sequences,
                          2 * sequences * heads * SMALL * keys, moved, 4.0)),
        ("index.choose", stream(sequences, keys * kept, 8, 4.0)),
    ])  # fmt: skip
    # A rank of eight has one head, which others have too.
    eight = {o.name: o for o in decode_attention(M3, served(tp=8.0), sequences, keys)}
    assert float(eight["index.scores"].m) == 1.0


def test_index_queries_and_keys_of_blocks_are_projected_with_the_others() -> None:
    """In one product: 2 index heads of a rank and a key, 40 wide."""
    found = layer_operators(M3, PLAN, M)
    own = (HEADS / TP + 2 * 2) * D
    columns = {float(one.n): float(one.count) for one in found if one.name == "attention.qkv"}
    assert columns == {own: 1.0, own + (2 + 1) * SMALL: 4.0}
    same(told(found, "index"), [("index.rope", stream(M, 3 * SMALL, 4, 4.0))])


@pytest.mark.parametrize("past", [0.0, 4096.0])
def test_prompts_over_chosen_blocks_by_hand(past: float) -> None:
    query, sequences = 512.0, 3.0
    keys = query + past
    found = [one for one in prefill_attention(M3, PLAN, sequences, query, past)
             if one.name == "attention.chosen"]  # fmt: skip
    (one,) = found
    heads = sequences * HEADS / TP
    seen = seen_on_average(query, keys, 128)
    assert (float(one.m), float(one.n), float(one.k), float(one.batch)) == (query, 128, D, heads)
    assert float(one.flop) == pytest.approx(4 * heads * query * D * seen, rel=2e-3)
    moved = 2 * sequences * (query * HEADS / TP * 2 * D + keys * 2 * 2 * D)
    assert float(one.bytes) == pytest.approx(moved)
    scores = next(
        o for o in prefill_attention(M3, PLAN, sequences, query, past) if o.name == "index.scores"
    )
    before = past + query / 2
    kept = 2 / BLOCK
    moved = sequences * (query * 2 * SMALL * 2 + keys * 2 * SMALL + 4 * query * before * kept)
    assert float(scores.bytes) == pytest.approx(moved)
    assert (scores.dtype, float(scores.batch)) == ("bf16", sequences * 2)


KEYS, VALUES, KD, VD, CONV, GATE = 4, 8, 64, 128, 4, 24

RULE = replace(
    DENSE, delta_layers=3, delta_key_heads=KEYS, delta_value_heads=VALUES, delta_key_dim=KD,
    delta_value_dim=VD, delta_conv=CONV,
)  # fmt: skip
CHANNELS = replace(RULE, delta_key_heads=VALUES, delta_gate_rank=GATE)
WHOLE = replace(CHANNELS, delta_whole_gate=True)
"""A rule that decays each head; each channel of a key, whose decays and gate come through 24
channels; the same with a gate at once."""


@pytest.mark.parametrize("model", [RULE, CHANNELS, WHOLE], ids=["head", "channel", "whole gate"])
def test_a_layer_of_a_rule(model: Model) -> None:
    keys, values, heads = model.delta_key_heads * KD / TP, VALUES * VD / TP, VALUES / TP
    mixed = 2 * keys + values
    by_channel = model.delta_gate_rank > 0
    gate = 0.0 if by_channel and not model.delta_whole_gate else values
    decays = heads * (KD if by_channel else 1)
    expected = [
        ("delta.norm", stream(M, H, 8, 3.0)),
        ("delta.in", product(M, mixed + gate, H, 3.0)),
        ("delta.steps", product(M, heads if by_channel else 2 * heads, H, 3.0)),
        ("delta.conv", stream(M, mixed, 4, 3.0)),
        ("delta.decay", stream(M, decays, 2 * 2 + 2 * 4, 3.0)),
        ("delta.gate", stream(M, values, 6, 3.0)),
        ("delta.out", product(M, H, values, 3.0)),
    ]
    if by_channel:
        ranks = GATE * (1 if model.delta_whole_gate else 2)
        expected.append(("delta.down", product(M, ranks, H, 3.0)))
        expected.append(("delta.decay_up", product(M, decays, GATE, 3.0)))
        if not model.delta_whole_gate:
            expected.append(("delta.gate_up", product(M, values, GATE, 3.0)))
    found = [one for one in layer_operators(model, PLAN, M) if one.name not in LEFT]
    same(told(found, "delta"), expected)


def test_what_channels_scale_is_added_up_in_32_bits() -> None:
    """Decays read and written in 32; keys and queries read, and written twice each."""
    found = {one.name: one for one in prefill_attention(CHANNELS, PLAN, 3.0, 256.0)}
    decays = VALUES / TP * KD
    assert float(found["delta.scale"].bytes) == 3 * 256 * decays * (2 * 4 + 6 * 2)
    assert "delta.scale" not in {one.name for one in prefill_attention(RULE, PLAN, 3.0, 256.0)}


def test_constants_of_rules_are_their_kernels() -> None:
    """flash-linear-attention: chunks of 64 tokens, 32 columns of a state to a thread block."""
    assert (CHUNK, SLICE) == (64.0, 32.0)
    assert sparse.LEAST_ROWS == 64.0, "FlashMLA fills up to 64 heads"
    assert sparse.SCALE_BYTES == 4.0, "a scale in 32 bits"
    state = 4 * VALUES / TP * KD * VD
    seen = 2 * (CONV - 1) * (2 * KEYS * KD + VALUES * VD) / TP
    assert float(rule_bytes(RULE, TP, 2.0, 4.0)) == state + seen
    assert float(rule_bytes(RULE, TP, 2.0, 2.0)) == state / 2 + seen


@pytest.mark.parametrize("kind", ["ulysses", "ring"])
def test_a_cut_sequence_is_walked_over_once_by_all_ranks_together(kind: str) -> None:
    """Half of the heads over whole sequences, or all over half of each."""
    whole, half = (
        {one.name: one for one in step_operators(RULE, trained(cp=cp, cp_kind=kind))}
        for cp in (1.0, 2.0)
    )
    for name in ("delta.pass", "delta.unit", "delta.w", "delta.within"):
        assert float(half[name].bytes) == pytest.approx(float(whole[name].bytes) / 2), name
        assert float(half[name].flop) == pytest.approx(float(whole[name].flop) / 2), name


@pytest.mark.parametrize("model", [RULE, CHANNELS], ids=["head", "channel"])
def test_what_a_rule_keeps_and_moves_backward(model: Model) -> None:
    """Its convolution twice, its gated norm twice; the pass over chunks three times as much, which
    keeps corrected values and a square of each chunk."""
    found = {one.name: one for one in step_operators(model, trained(sequence_parallel=0.0))}
    tokens = 3.0 * 1280
    keys, values = model.delta_key_heads * KD / TP, VALUES * VD / TP
    mixed, heads = 2 * keys + values, VALUES / TP
    decays = heads * (KD if model.delta_gate_rank else 1)
    for name, each, saved in (
        ("delta.conv", 4 * 2, 2 * tokens * mixed), ("delta.gate", 6 * 2, 2 * 2 * tokens * values),
        ("delta.decay", 2 * 2 + 2 * 4, (2 * 2 + 2 * 4) * tokens * decays),
        ("delta.unit", 3 * 2, 2 * tokens * 2 * keys),
    ):  # fmt: skip
        width = {"delta.gate": values, "delta.decay": decays, "delta.unit": 2 * keys}.get(
            name, mixed
        )
        assert float(found[f"{name}.bwd"].bytes) == pytest.approx(tokens * width * each), name
        assert float(found[name].saved) == pytest.approx(saved), name
    walk = found["delta.pass"]
    assert float(found["delta.pass.bwd"].bytes) == pytest.approx(3 * float(walk.bytes))
    assert float(walk.saved) == pytest.approx(2 * tokens * heads * (VD + 64))
    assert float(found["delta.pass.bwd"].saved) == 0.0
    assert float(walk.batch) == 3 * heads * VD / 32
    assert float(walk.n) == 1280 / 64
    moved = 2 * (2 * 64 * KD + 2 * 64 * 32 + KD * 32)
    assert float(walk.bytes) == pytest.approx(3 * heads * VD / 32 * 1280 / 64 * moved)
    if model.delta_gate_rank:
        scale = found["delta.scale"]
        assert float(found["delta.scale.bwd"].bytes) == pytest.approx(2 * float(scale.bytes))
        assert float(scale.saved) == pytest.approx(4 * 2 * tokens * decays)
        for name in ("delta.decay_up", "delta.gate_up"):
            assert float(found[name].saved) == pytest.approx(2 * tokens * GATE)
    assert float(found["delta.out"].saved) == pytest.approx(2 * tokens * values)
    assert float(found["delta.in"].saved) == pytest.approx(2 * tokens * H)


def test_all_blocks_of_a_model_read_what_each_kind_does() -> None:
    tokens, kinds = 5000.0, V4.attention_kinds
    read = sum(blocks * float(read_bytes(one, "bf16", tokens)) for blocks, one in kinds)
    assert float(serving.read_bytes(V4, PLAN, tokens)) == pytest.approx(read)
    held = sum(blocks * float(cache_bytes(one, "bf16", tokens)) for blocks, one in kinds)
    assert float(serving.cache_bytes(V4, PLAN, tokens)) == pytest.approx(held)
    kept = sum(blocks * state_bytes(one) for blocks, one in kinds)
    assert float(serving.state_bytes(V4, PLAN)) == pytest.approx(kept)


def test_windowed_layers_decode_as_often_as_there_are() -> None:
    """One of five layers sees all, four of them 256 keys."""
    model = replace(DENSE, sliding_window=256, sliding_pattern="4 local : 1 global")
    found = {one.name: one for one in decode_attention(model, PLAN, 3.0, 5000.0)}
    counts = [float(found[name].count) for name in ("attention", "attention.window")]
    assert counts == pytest.approx([1.0, 4.0])
    assert float(found["attention"].flop) == 4 * 3 * 6 * 5000 * D
    assert float(found["attention.window"].flop) == 4 * 3 * 6 * 256 * D


def test_guesses_go_through_latents_too() -> None:
    """Queries of all new tokens, each of its own head: 96 by 320, and 320 by 80 back."""
    for drafted in (0.0, 2.0):
        plan = served(tp=TP, drafted=drafted)
        found = {one.name: one for one in decode_attention(LATENTS, plan, 3.0, 500.0)}
        rows = 3 * (1 + drafted)
        for name, n, k in (("attention.absorb", 320.0, 96.0), ("attention.expand", 80.0, 320.0)):
            one = found[name]
            shape = (float(one.m), float(one.n), float(one.k), float(one.batch))
            assert shape == (rows, n, k, HEADS / TP), name


def test_data_types_of_a_pass() -> None:
    """Layers as the weights are, the head as packed formats have it, all else in 16 bits; casts
    apart from products where a plan says so."""
    dense = {one.name: one for one in layer_operators(DENSE, served(tp=TP, weights="q4_k"), M)}
    assert (dense["attention.qkv"].dtype, dense["mlp.down"].dtype) == ("q4_k", "q4_k")
    ends = serving.end_operators(DENSE, served(tp=TP, weights="q4_k"), M, M)
    assert {one.dtype for one in ends if one.name == "head"} == {"q6_k"}
    joined = {
        casts: {one.name: float(np.max(one.joined)) for one in layer_operators(
            DENSE, served(tp=TP, weights="fp8", casts=casts), M)}
        for casts in ("apart", "joined")
    }  # fmt: skip
    assert joined["apart"] != joined["joined"]
    assert sum(joined["joined"].values()) > sum(joined["apart"].values())

"""Counts of every kind of block by hand, of models of sizes that cannot stand in for each other."""

from __future__ import annotations

import dataclasses
from dataclasses import replace

import numpy as np
import pytest

from predictor.models.choosing import deepseek_v4, minimax_m3
from predictor.models.counts import experts_hit
from predictor.models.encoder import around_layers, encoder, tower_parameters
from predictor.models.huggingface import _windows
from predictor.models.listed import _after_dense
from predictor.models.mixed import gemma4, gemma4_unified
from predictor.models.model import Model
from predictor.models.narrowing import _mean
from predictor.models.tower import LISTENED, TILE, Tower, tower_of
from tests.predictor.dense import dense

H, HEADS, KV, D, FFN, V, L = 64, 6, 2, 16, 200, 1000, 12
PLAIN = Model(name="plain", layers=L, hidden=H, heads=HEADS, kv_heads=KV, head_dim=D,
              ffn_hidden=FFN, vocab=V)  # fmt: skip
ATTENTION = H * (HEADS * D + 2 * KV * D + HEADS * D)
DENSE = 3 * H * FFN


def test_what_is_not_stated_is_not_there() -> None:
    """But a layer's mixture, a short convolution of four tokens, chunks, a gate and causality."""
    usual = {"delta_conv": 4, "mamba_chunk": 128, "moe_every_n": 1, "gated": True, "causal": True}
    needed = {"name", "layers", "hidden", "heads", "kv_heads", "head_dim", "ffn_hidden", "vocab"}
    for one in dataclasses.fields(Model):
        found = getattr(PLAIN, one.name)
        if one.name in usual:
            assert found == usual[one.name], one.name
        elif one.name not in needed and not isinstance(found, str):
            assert not found, one.name
    tower = Tower(kind="vision", layers=1, hidden=2, heads=1, ffn_hidden=4, patches=5, tokens=3,
                  patch_width=6)  # fmt: skip
    assert (tower.merged, tower.gated) == (1, False)
    for name in ("is_latent", "is_hybrid", "is_sparse", "is_moe", "is_compressed", "borrows"):
        assert not getattr(PLAIN, name), name
    for name in ("index_topk", "kv_lora_rank", "mamba_layers"):
        told = {"index_topk": "is_sparse", "kv_lora_rank": "is_latent", "mamba_layers": "is_hybrid"}
        assert getattr(replace(PLAIN, **{name: 1}), told[name])  # type: ignore[arg-type]


def test_a_dense_model() -> None:
    assert PLAIN.attention_matrix == ATTENTION
    assert PLAIN.dense_ffn_matrix == DENSE
    assert PLAIN.matrix_parameters() == PLAIN.matrix_parameters(True) == L * (ATTENTION + DENSE)
    assert PLAIN.vector_parameters == (2 * L + 1) * H
    assert (PLAIN.embedding_parameters, PLAIN.head_parameters) == (V * H, V * H)
    whole = L * (ATTENTION + DENSE) + (2 * L + 1) * H + 2 * V * H
    assert PLAIN.parameters == PLAIN.active_parameters == whole
    assert replace(PLAIN, tied_embeddings=True).parameters == whole - V * H
    positions = replace(PLAIN, positions="learned", max_context=128)
    assert positions.parameters == whole + 128 * H
    assert replace(PLAIN, max_context=128).parameters == whole, "where they are learned alone"
    assert (PLAIN.attention_share, PLAIN.dense_share, PLAIN.moe_share) == (1.0, 1.0, 0.0)


def test_biases_and_norms() -> None:
    """Of layernorms two vectors; biases of queries, keys, values and outputs, of both sides."""
    biased = replace(PLAIN, bias=True, norm="layernorm", gated=False)
    qkv = (HEADS + 2 * KV) * D
    assert biased.mixer_vectors == (qkv, 2 * H + H)
    assert biased.ffn_vectors == (FFN, 2 * H + H)
    assert replace(biased, gated=True).ffn_vectors == (2 * FFN, 3 * H)
    assert replace(PLAIN, qkv_bias=True).mixer_vectors == (qkv, H)
    assert PLAIN.mixer_vectors == (0, H)
    shared = replace(biased, parallel="shared_norm")
    assert shared.ffn_vectors == (FFN, H)
    assert replace(biased, parallel="own_norms").ffn_vectors == (FFN, 3 * H)
    assert biased.vector_parameters == L * (qkv + 3 * H + FFN + 3 * H) + 2 * H
    assert biased.dense_ffn_matrix == 2 * H * FFN


def test_gates_of_attention() -> None:
    """As wide as the queries, or one for each head; keys that are the values."""
    assert replace(PLAIN, output_gate=True).attention_matrix == ATTENTION + H * HEADS * D
    assert replace(PLAIN, head_gate=True).attention_matrix == ATTENTION + H * HEADS
    same = replace(PLAIN, values_are_keys=True, sliding_window=8, sliding_pattern="alternating")
    kinds = same.attention_kinds
    assert [blocks for blocks, _ in kinds] == [6, 6]
    assert [one.attention_matrix for _, one in kinds] == [ATTENTION - H * KV * D, ATTENTION]


def test_a_mixture() -> None:
    """Two dense layers, then every other a mixture: of ten layers five."""
    model = replace(
        PLAIN, num_experts=10, top_k=3, expert_ffn_hidden=40, shared_experts=2, dense_layers=2,
        moe_every_n=2, expert_bias=True,
    )  # fmt: skip
    assert (model.moe_layers, model.moe_share) == (5, 5 / 12)
    assert model.dense_share == 7 / 12
    one, shared, router = 3 * H * 40, 3 * H * 80, H * 10
    assert (model.expert_matrix, model.shared_matrix, model.router_matrix) == (one, shared, router)
    vectors = 2 * 40 + H
    assert sum(model.expert_vectors) == vectors
    rest = L * ATTENTION + 7 * DENSE + 5 * (router + shared)
    assert model.matrix_parameters() == rest + 5 * 10 * one
    assert model.matrix_parameters(True) == rest + 5 * 3 * one
    # A norm before attention and before every feed-forward block, and the last.
    assert model.vector_parameters == (2 * L + 1) * H + 5 * 10 * vectors
    assert model.parameters - model.active_parameters == 5 * 7 * (one + vectors)
    assert replace(model, dense_layers=3).moe_layers == 4, "every other of nine"
    wide = replace(model, shared_expert_ffn_hidden=48)
    assert wide.shared_width == 96
    narrow = replace(model, expert_hidden=20, gated=False)
    assert (narrow.expert_width, narrow.expert_matrix) == (20, 2 * 20 * 40)
    assert narrow.router_matrix == H * (10 + 2 * 20)
    assert narrow.expert_vectors == (40, 20)
    assert narrow.shared_matrix == 2 * H * 80
    assert replace(model, expert_bias=False).expert_vectors == (0, 0)


def test_latents() -> None:
    """Queries through 24, keys and values through 40 and 8 that are encoded; 12 + 8 wide against
    keys, 20 from values."""
    model = replace(
        PLAIN, kv_heads=HEADS, q_lora_rank=24, kv_lora_rank=40, qk_rope_head_dim=8,
        qk_nope_head_dim=12, v_head_dim=20,
    )  # fmt: skip
    down = H * (24 + 40 + 8)
    out = HEADS * 20 * H
    up = 24 * HEADS * 20 + 40 * HEADS * (12 + 20)
    assert model.latent_down_matrix == down
    assert model.attention_matrix == down + up + out
    assert model.mixer_vectors == (0, H + 24 + 40), "a norm before it, and of both latents"
    assert (model.qk_dim, model.v_dim) == (20, 20)
    gated = replace(model, output_gate=True)
    assert gated.attention_matrix == down + up + 2 * out
    alone = replace(model, q_lora_rank=0)
    queries = H * HEADS * 20
    assert alone.attention_matrix == H * 48 + queries + 40 * HEADS * 32 + out
    index = replace(model, index_heads=3, index_head_dim=10, index_topk=50)
    assert index.index_matrix == 24 * 30 + H * (10 + 3)
    assert index.attention_matrix == model.attention_matrix + index.index_matrix
    assert PLAIN.latent_down_matrix == 0
    assert PLAIN.qk_dim == PLAIN.v_dim == D


def test_blocks_of_keys_are_chosen_behind_layers_that_see_all() -> None:
    model = replace(PLAIN, index_heads=2, index_head_dim=10, index_topk=32, index_block=8,
                    whole_layers=3)  # fmt: skip
    (three, whole), (nine, choosing) = model.attention_kinds
    assert (three, nine) == (3, 9)
    assert whole.attention_matrix == ATTENTION
    assert choosing.attention_matrix == ATTENTION + H * 3 * 10
    assert model.attention_matrices == L * ATTENTION + 9 * H * 30


def test_a_hybrid_and_its_state_spaces() -> None:
    model = replace(PLAIN, attention_layers=2, mamba_layers=6, mamba_heads=4, mamba_head_dim=8,
                    mamba_state=5, mamba_groups=2)  # fmt: skip
    inner = 2 * (32 + 10) + 4
    assert (model.mamba_width, model.mamba_in_width) == (32, inner)
    assert model.mamba_matrix == H * (inner + 32)
    assert model.attention_blocks == 2
    assert (model.attention_share, model.mamba_share, model.dense_share) == (1 / 6, 1 / 2, 1 / 3)
    assert model.matrix_parameters() == 2 * ATTENTION + 6 * H * (inner + 32) + 4 * DENSE
    assert model.vector_parameters == (2 + 6 + 4 + 1) * H


@pytest.mark.parametrize("rank", [0, 9])
@pytest.mark.parametrize("whole", [False, True])
def test_rules(rank: int, whole: bool) -> None:
    """Queries and keys of 3 heads of 8, values of 6 of 10; a decay and a step size for each head,
    or for each channel through so many; a gate as wide as the values, so too or at once."""
    keys, values = 24 if not rank else 48, 60
    model = replace(
        PLAIN, delta_layers=9, delta_key_heads=keys // 8, delta_value_heads=6, delta_key_dim=8,
        delta_value_dim=10, delta_gate_rank=rank, delta_whole_gate=whole,
    )  # fmt: skip
    mixed = 2 * keys + values
    out, conv = values * H, 4 * mixed
    if not rank:
        expected = H * (mixed + values + 6 + 6) + out + conv
    else:
        gate = H * values if whole else H * rank + rank * values
        expected = H * (mixed + 6) + H * rank + rank * 6 * 8 + gate + out + conv
    assert model.delta_matrix == expected
    assert model.delta_decay_width == (6 * 8 if rank else 6)
    assert (model.attention_blocks, model.delta_share) == (3, 9 / 12)
    assert model.matrix_parameters() == 3 * ATTENTION + 9 * expected + L * DENSE
    assert model.vector_parameters == (3 + 9 + L + 1) * H


def test_layers_that_borrow_keys_and_have_inputs_of_their_own() -> None:
    """The last four of twelve borrow; every fourth sees all. Theirs are wider blocks."""
    model = replace(
        PLAIN, borrowing_layers=4, borrowing_ffn_hidden=300, layer_inputs=10, sliding_window=8,
        sliding_pattern="3 local : 1 global", window_heads=8, window_kv_heads=4, window_head_dim=12,
    )  # fmt: skip
    full, window = ATTENTION, H * (8 * 12 * 2 + 2 * 4 * 12)
    kinds = [(blocks, one.attention_matrix) for blocks, one in model.attention_kinds]
    assert kinds == [(2, full), (1, 2 * H * HEADS * D), (6, window), (3, 2 * H * 8 * 12)]
    assert model.dense_kinds == ((8, model), (4, model.dense_kinds[1][1]))
    assert model.dense_kinds[1][1].dense_ffn_matrix == 3 * H * 300
    assert (model.layer_input_matrix, model.input_projection) == (2 * H * 10, H * L * 10)
    assert model.embedding_width == H + L * 10
    assert model.embedding_parameters == V * (H + L * 10)
    assert model.vector_parameters == (3 * L + 1) * H, "a norm more of each layer's own"
    own = sum(blocks * matrix for blocks, matrix in kinds) + 8 * DENSE + 4 * 3 * H * 300
    assert model.matrix_parameters() == own + L * 2 * H * 10 + H * L * 10
    assert replace(model, borrowing_layers=0).dense_kinds[0][0] == L
    assert replace(PLAIN, borrowing_layers=L).borrows
    assert not replace(PLAIN, borrowing_layers=L - 1).borrows


@pytest.mark.parametrize(
    ("pattern", "full"),
    [("", 0), ("all layers", 0), ("alternating, first local", 6), ("5 local : 1 global", 2),
     ("2 local : 2 global", 6), ("every 4th layer full", 3), ("every 3rd layer full", 4),
     ("chunked, every 2nd layer full", 6)],
)  # fmt: skip
def test_layers_that_see_everything(pattern: str, full: int) -> None:
    model = replace(PLAIN, sliding_window=100, sliding_pattern=pattern)
    assert model.windowed_share == pytest.approx(1 - full / 12)
    assert PLAIN.windowed_share == 0.0
    odd = replace(PLAIN, layers=13, sliding_window=100, sliding_pattern="alternating")
    assert odd.windowed_share == pytest.approx(1 - 6 / 13)
    alone = replace(model, layers=1, sliding_pattern="0 local : 1 global")
    assert alone.windowed_share == 0.0
    for pattern, every in (("5 local : 1 global", 6), ("every 4th layer full", 4)):
        for layers in range(6, 20):
            seen = sum(at % every == every - 1 for at in range(layers))
            own = replace(model, layers=layers, sliding_pattern=pattern)
            assert own.windowed_share == pytest.approx(1 - seen / layers)
            mixed = replace(own, layers=layers + 3, conv_layers=3, conv_taps=4)
            assert mixed.windowed_share == pytest.approx(own.windowed_share)
            attention = layers * ATTENTION + 3 * mixed.conv_matrix
            assert mixed.matrix_parameters() == attention + (layers + 3) * DENSE


def test_keys_seen_on_average() -> None:
    """A window of w: its last w of s tokens in full, half of them at the start; chunks of w half of
    themselves; encoders all."""
    model = replace(PLAIN, sliding_window=100)
    assert float(model.mean_keys(400.0, True)) == pytest.approx((100 * 50 + 300 * 100) / 400)
    assert float(model.mean_keys(60.0, True)) == 30.0
    assert float(model.mean_keys(400.0, False)) == 200.0
    chunked = replace(model, sliding_pattern="chunked")
    assert float(chunked.mean_keys(400.0, True)) == 50.0
    assert float(chunked.mean_keys(60.0, True)) == 30.0
    assert float(replace(PLAIN, causal=False).mean_keys(400.0, False)) == 400.0
    both = model.mean_keys(np.array([60.0, 400.0]), True)
    assert np.asarray(both).tolist() == [30.0, 87.5]


TOWER = Tower("vision", layers=5, hidden=48, heads=4, ffn_hidden=120, patches=17, tokens=4,
              patch_width=27, merged=4)  # fmt: skip


def test_a_tower_and_what_is_around_it() -> None:
    """Patches are projected to its width; four at a time to the language model's, and once more."""
    own = encoder(TOWER)
    each = 4 * 48 * 48 + 2 * 48 * 120
    assert own.attention_matrix + own.dense_ffn_matrix == each
    assert (own.layers, own.head_dim, own.vocab, own.causal) == (5, 12, 1, False)
    before, behind = 17 * 27 * 48, 4 * (4 * 48 * 64 + 64 * 64)
    assert around_layers(TOWER, 64) == pytest.approx((before + behind) / (17 * each))
    weights = 27 * 48 + 4 * 48 * 64 + 64 * 64
    # Two norms of two vectors a layer, the last one, biases of all four products.
    vectors = 5 * (2 * 2 * 48 + 3 * 48 + 48 + 120 + 48) + 2 * 48
    assert own.vector_parameters == vectors
    assert tower_parameters(TOWER, 64) == weights + 5 * each + vectors


VISION = {"num_hidden_layers": 5, "hidden_size": 48, "num_attention_heads": 4,
          "intermediate_size": 120, "patch_size": 7, "image_size": 28}  # fmt: skip


def test_towers_are_read_from_configurations() -> None:
    """28 pixels in patches of 7: sixteen, and a class token unless its kind has none."""
    plain = tower_of({"vision_config": VISION})
    assert plain == {
        "kind": "vision", "layers": 5, "hidden": 48, "heads": 4, "ffn_hidden": 120, "gated": False,
        "patches": 17, "tokens": 16, "patch_width": 3 * 49, "merged": 1,
        "window": 0, "whole": 0, "several": "batch",
    }  # fmt: skip
    more = {"embed_dim": 44, "temporal_patch_size": 2, "spatial_merge_size": 2}
    qwen = tower_of({"vision_config": {**VISION, "model_type": "qwen2_5_vl", **more}})
    assert qwen is not None
    assert (qwen["patches"], qwen["tokens"], qwen["merged"], qwen["hidden"]) == (16, 4, 4, 44)
    assert (qwen["patch_width"], qwen["gated"]) == (3 * 2 * 49, True)
    internvl = tower_of(
        {"vision_config": {**VISION, "patch_size": [7, 7]}, "downsample_ratio": 0.5}
    )
    assert internvl is not None
    assert (internvl["tokens"], internvl["merged"]) == (4, 4)
    gemma = tower_of({"vision_config": VISION, "mm_tokens_per_image": 4})
    assert gemma is not None
    assert (gemma["tokens"], gemma["merged"]) == (4, 4)
    # What is left of an image, of patches or of frames makes none.
    odd = {**VISION, "image_size": 38, "model_type": "siglip_vision_model"}
    rest = tower_of({"vision_config": odd, "downsample_ratio": 0.5})
    assert rest is not None
    assert (rest["patches"], rest["tokens"]) == (25, 6)
    uneven = tower_of({"vision_config": odd, "mm_tokens_per_image": 10})
    assert uneven is not None
    assert uneven["merged"] == 2
    few = tower_of({"vision_config": VISION, "mm_tokens_per_image": 32})
    assert few is not None
    assert few["merged"] == 1
    ratio = tower_of(
        {"vision_config": {k: v for k, v in VISION.items() if k != "intermediate_size"}}
    )
    assert ratio is not None
    assert ratio["ffn_hidden"] == 4 * 48
    bare = {k: v for k, v in VISION.items() if k not in ("image_size", "patch_size")}
    usual = tower_of({"vision_config": bare})
    assert usual is not None
    assert (usual["patches"], TILE) == ((448 // 14) ** 2 + 1, 448)
    assert tower_of({"vision_config": {**VISION, "num_hidden_layers": "five"}}) is None
    sound = {
        "d_model": 48,
        "encoder_layers": 3,
        "encoder_attention_heads": 4,
        "encoder_ffn_dim": 96,
    }
    heard = tower_of({"audio_config": sound})
    assert heard is not None
    assert (heard["patches"], heard["tokens"], heard["patch_width"]) == (1500, 750, 3 * 128)
    assert (heard["merged"], LISTENED, heard["kind"]) == (1, 1500, "audio")
    short = tower_of({"audio_config": {**sound, "max_source_positions": 100, "num_mel_bins": 80}})
    assert short is not None
    assert (short["tokens"], short["patch_width"]) == (50, 240)
    uneven = tower_of({"audio_config": {**sound, "max_source_positions": 101}})
    assert uneven is not None
    assert uneven["tokens"] == 50


V4 = replace(
    PLAIN, kv_heads=1, q_lora_rank=24, qk_rope_head_dim=8, out_groups=3, out_rank=20, streams=4,
    index_heads=2, index_head_dim=10, index_topk=32, sliding_window=16, choosing_layers=5,
    choosing_ratio=4, pooling_layers=4, pooling_ratio=16,
)  # fmt: skip


def test_vectors_of_compressed_layers() -> None:
    """A sink for each head; norms of latents and the key, of compressed keys and index keys; what
    is added by position to the weights of each channel, twice as many where sums overlap."""
    (three, window), (five, choosing), (four, pooling) = V4.attention_kinds
    assert (three, five, four) == (3, 5, 4)
    assert window.compressed_vectors == (HEADS, 24 + D)
    places = (2 * D + 2 * 10) * 4
    assert choosing.compressed_vectors == (HEADS, 24 + 2 * D + places + 10)
    assert pooling.compressed_vectors == (HEADS, 24 + 2 * D + D * 16)
    assert choosing.mixer_vectors == (HEADS, H + 24 + 2 * D + places + 10)
    assert (window.compression, choosing.compression, pooling.compression) == (0, 4, 16)
    assert (choosing.overlap, pooling.overlap) == (2, 1)
    out = HEADS * D * 20 + 3 * 20 * H
    down = H * (24 + D)
    up = 24 * HEADS * D
    assert window.attention_matrix == down + up + out
    wide, index = 2 * 2 * D + 2 * 2 * 10, 24 * 2 * 10 + H * 2
    assert choosing.attention_matrix == down + up + out + H * wide + index
    assert pooling.attention_matrix == down + up + out + H * 2 * D
    assert V4.stream_mixes == (2 + 4) * 4
    assert V4.stream_matrix == 4 * H * (2 * L * 24 + 4)
    assert replace(V4, streams=2).stream_matrix == 2 * H * (2 * L * 8 + 2)
    assert replace(V4, streams=2).stream_mixes == (2 + 2) * 2
    assert replace(V4, out_groups=1).is_compressed
    single = replace(V4, streams=1)
    assert (single.stream_mixes, single.stream_matrix) == (0, 0)


def test_what_configurations_of_choosing_models_leave_out() -> None:
    """As their configuration classes fill it in (transformers 2026): MiniMax-M3 chooses sixteen
    blocks of 128 keys by four heads of 128."""
    found: dict[str, object] = {"layers": 4}
    own = {"sparse_attention_freq": [0, 1, 1, 1]}
    minimax_m3({"sparse_attention_config": own}, found, "test")
    assert found == {
        "layers": 4, "whole_layers": 1, "index_block": 128, "index_topk": 2048, "index_heads": 4,
        "index_head_dim": 128,
    }  # fmt: skip
    plain: dict[str, object] = {"layers": 4}
    minimax_m3({"sparse_attention_config": {**own, "use_sparse_attention": False}}, plain, "test")
    assert plain == {"layers": 4}
    whole: dict[str, object] = {"layers": 2}
    minimax_m3({"sparse_attention_config": {"sparse_attention_freq": [0, 0]}}, whole, "test")
    assert whole == {"layers": 2}
    # DeepSeek-V4: two pooling layers, then in turn; every fourth and every 128th token.
    found = {"layers": 5}
    deepseek_v4({}, found, "test")
    assert found == {
        "layers": 5, "choosing_layers": 1, "choosing_ratio": 4, "pooling_layers": 4,
        "pooling_ratio": 128, "head_dim": 512, "kv_heads": 1, "q_lora_rank": 1024,
        "qk_rope_head_dim": 64, "out_groups": 8, "out_rank": 1024, "streams": 4, "index_heads": 64,
        "index_head_dim": 128, "index_topk": 512, "sliding_window": 128, "shared_experts": 1,
    }  # fmt: skip
    found = {"layers": 3, "head_dim": 256}
    deepseek_v4({"compress_ratios": [0, 4, 128, 4]}, found, "test")
    assert (found["choosing_layers"], found["pooling_layers"], found["head_dim"]) == (1, 1, 256)


@pytest.mark.parametrize(
    ("kind", "content", "pattern"),
    [
        ("llama4_text", {"sliding_window": 8}, "chunked; every 4th layer full"),
        ("gemma3_text", {}, "5 local : 1 global"), ("gemma2", {}, "alternating sliding/full"),
        ("gpt_oss", {}, "alternating sliding/full"), ("mistral", {}, "all layers"),
        ("cohere2", {"sliding_window_pattern": 4}, "3 local : 1 global"),
        ("exaone4", {"sliding_window_pattern": "LLLG"}, "3 local : 1 global"),
    ],
)  # fmt: skip
def test_windows_in_the_words_of_the_catalog(
    kind: str, content: dict[str, object], pattern: str
) -> None:
    assert _windows(kind, content)["sliding_pattern"] == pattern
    assert _windows(kind, {**content, "use_sliding_window": False}) == {"sliding_window": 0}


def test_a_rank_of_experts_has_one_token_at_least() -> None:
    """One token of two among 256 on sixteen ranks: the rank with most has one of them."""
    assert float(experts_hit(1.0, 2.0, 256.0, 16.0)) == 1.0
    assert float(experts_hit(1.0, 1.0, 256.0, 1.0)) == 1.0
    assert float(experts_hit(1e9, 2.0, 256.0, 16.0)) == pytest.approx(16.0)


def test_the_mean_block_of_several_kinds() -> None:
    window = replace(PLAIN, heads=8)
    each = PLAIN.attention_matrix, window.attention_matrix
    assert _mean(((1, PLAIN),), "attention_matrix") == each[0]
    assert _mean(((1, PLAIN), (3, window)), "attention_matrix") == (each[0] + 3 * each[1]) / 4
    assert _mean(((0, PLAIN),), "attention_matrix") == 0.0


def test_what_configurations_of_gemma_4_leave_out() -> None:
    """Gemma4TextConfig: every sixth layer and the last see all, by heads of 512; others 512 keys,
    by heads of 256; an embedding of 256 of each layer's own."""
    found: dict[str, object] = {"layers": 12, "kv_heads": 4, "ffn_hidden": 100}
    gemma4({}, found, "test")
    assert found == {
        "layers": 12, "kv_heads": 4, "ffn_hidden": 100, "head_dim": 512, "sliding_window": 512,
        "sliding_pattern": "5 local : 1 global", "window_head_dim": 256, "window_kv_heads": 4,
        "values_are_keys": False, "layer_inputs": 256, "borrowing_layers": 0,
    }  # fmt: skip
    found = {"layers": 6, "kv_heads": 4, "ffn_hidden": 100, "head_dim": 128}
    gemma4({"num_kv_shared_layers": 2, "use_double_wide_mlp": True, "attention_k_eq_v": True,
            "num_global_key_value_heads": 2, "enable_moe_block": True}, found, "test")  # fmt: skip
    assert (found["borrowing_layers"], found["borrowing_ffn_hidden"]) == (2, 200)
    assert (found["kv_heads"], found["window_kv_heads"], found["window_head_dim"]) == (2, 4, 128)
    assert (found["shared_experts"], found["shared_expert_ffn_hidden"]) == (1, 100)
    unified: dict[str, object] = {"layers": 6, "kv_heads": 4, "ffn_hidden": 100}
    gemma4_unified({"hidden_size_per_layer_input": 64}, unified, "test")
    assert unified["layer_inputs"] == 0


def test_layers_behind_the_dense_ones_are_counted_from_there() -> None:
    """Of seven dense layers every third sees all keys, of those behind every fourth, the last of as
    many each time."""
    content = {"first_k_dense_replace": 7, "prefix_dense_sliding_window_pattern": 3}
    whole = [at for at in range(16) if _after_dense(at, 16, content)]
    assert whole == [2, 5, 10, 14]


def test_kinds_of_attention_are_of_one_kind_and_all_that_there_is() -> None:
    """Gemma 4's windows and layers that borrow, MiMo's heads of windows, Step's."""
    small = dense(layers=12, heads=8, kv_heads=4, head_dim=32)
    sees = {"sliding_window": 64, "sliding_pattern": "2 local : 1 global"}
    for model in (
        replace(small, **sees, window_heads=4, window_kv_heads=2, window_head_dim=64),
        replace(small, **sees, values_are_keys=True, window_head_dim=16),
        replace(small, **sees, window_head_dim=16, borrowing_layers=6, borrowing_ffn_hidden=900),
        replace(small, borrowing_layers=5),
    ):
        kinds = model.attention_kinds
        assert len(kinds) > 1
        assert sum(n for n, _ in kinds) == model.layers
        for _, one in kinds:
            assert [own for _, own in one.attention_kinds] == [one]
            assert one.borrowing_layers in (0, model.layers)
            assert not any((one.window_heads, one.window_kv_heads, one.window_head_dim,
                            one.borrowing_ffn_hidden, one.sliding_pattern))  # fmt: skip
        borrowed = sum(n for n, one in kinds if one.borrowing_layers)
        assert borrowed == model.borrowing_layers
        for _, one in model.dense_kinds[1:]:
            assert [own for _, own in one.dense_kinds] == [one]


def test_kinds_of_layers_that_choose_are_of_one_kind_and_all_that_there_is() -> None:
    chooses = replace(PLAIN, index_heads=2, index_head_dim=10, index_topk=32)
    pools = replace(chooses, index_pool=4)
    for model in (V4, replace(pools, sharing_layers=5), replace(pools, whole_layers=3),
                  replace(chooses, index_block=8, whole_layers=3)):  # fmt: skip
        kinds = model.attention_kinds
        assert len(kinds) > 1
        assert sum(blocks for blocks, _ in kinds) == model.attention_blocks
        for _, one in kinds:
            assert [own for _, own in one.attention_kinds] == [one]
            if not one.index_topk:
                assert not any((one.index_heads, one.index_head_dim, one.index_pool,
                                one.index_block, one.sharing_layers))  # fmt: skip

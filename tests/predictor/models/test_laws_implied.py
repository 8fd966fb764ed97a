"""What files leave out: one that leaves out what its class implies is the one that states it, and
one that states otherwise is another; what numbers of layers imply, layer by layer."""

from __future__ import annotations

from typing import Any

import pytest

from predictor import catalog
from predictor.errors import InputError
from predictor.models.huggingface import from_config
from predictor.models.listed import USUAL_DENSE, USUAL_WHOLE, _marks, mixtures, sharing
from predictor.models.newer import _first_of_four
from predictor.models.quantization import read_quantization
from tests.predictor.models.sizes import INDEXED, LATENTS, ROUTED

SIZES: dict[str, Any] = {
    "num_hidden_layers": 22, "hidden_size": 96, "num_attention_heads": 6, "head_dim": 32,
    "num_key_value_heads": 2, "intermediate_size": 800, "vocab_size": 100,
}  # fmt: skip
MIXTURE: dict[str, Any] = {**SIZES, **ROUTED}
LATENT: dict[str, Any] = {**MIXTURE, **LATENTS}
INDEX: dict[str, Any] = {**LATENT, **INDEXED}
WINDOWED = {**MIXTURE, "sliding_window": 16}
WINDOW, WHOLE, RULE = "sliding_attention", "full_attention", "linear_attention"
KIMI = {"kda_layers": list(range(1, 22)), "full_attn_layers": [22]}
SPARSE = {"sparse_attention_freq": [0] * 2 + [1] * 20}


def without(sizes: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in sizes.items() if key not in keys}


def sparse(dense: int) -> list[str]:
    return ["dense"] * dense + ["sparse"] * (22 - dense)


IMPLIED: list[tuple[str, dict[str, Any], dict[str, tuple[Any, Any]]]] = [
    # Of transformers' configuration classes (5.24.0): key, what it implies, what else it may be.
    ("glm5_next_text", INDEX, {
        "linear_num_heads": (64, 32), "linear_head_dim": (128, 64), "index_kpool": (16, 8),
        "linear_conv_kernel_dim": (4, 3), "hc_mult": (4, 2),
        "layer_types": (([RULE] * 3 + [WHOLE]) * 5 + [RULE] * 2, [RULE, WHOLE] * 11)}),
    ("hy_v4", INDEX, {
        "hc_mult": (4, 2), "enable_ihc": (True, False), "gated_mla": (True, False),
        "indexer_types": (["full", *["full", *["shared"] * 3] * 6][:22], ["full"] * 22)}),
    ("glm_moe_dsa", {**INDEX, "index_topk_freq": 3}, {"index_skip_topk_offset": (2, 5)}),
    ("glm_moe_dsa", INDEX, {"index_topk_freq": (1, 2), "mlp_layer_types": (sparse(3), sparse(1))}),
    ("bailing_hybrid", {**without(LATENT, "head_dim"), "short_conv_kernel_size": 4}, {
        "layer_group_size": (6, 3), "linear_head_dim": (128, 64), "no_kda_lora": (True, False)}),
    ("bailing_hybrid", {**LATENT, "short_conv_kernel_size": 4}, {"linear_head_dim": (32, 64)}),
    ("bailing_hybrid", {**LATENT, "short_conv_kernel_size": 4, "head_dim": 8}, {
        "linear_head_dim": (128, 64)}),
    ("kimi_linear", {**LATENT, "layer_types": [RULE] * 21 + [WHOLE]}, {
        "linear_num_heads": (32, 16), "linear_head_dim": (128, 64),
        "linear_conv_kernel_dim": (4, 3), "mlp_layer_types": (sparse(1), sparse(2))}),
    ("kimi_linear", {**LATENT, "linear_attn_config": KIMI}, {
        "linear_attn_config": (
            {**KIMI, "num_heads": 6, "head_dim": 128, "short_conv_kernel_size": 4,
             "use_full_rank_gate": False},
            {**KIMI, "num_heads": 8})}),
    ("lfm2", {**SIZES, "full_attn_idxs": [2, 20]}, {
        "conv_L_cache": (3, 4), "block_multiple_of": (256, 100), "block_ff_dim": (800, 1600),
        "block_ffn_dim_multiplier": (1.0, 1.5), "block_auto_adjust_ff_dim": (True, False),
        "tie_word_embeddings": (True, False)}),
    ("olmo_hybrid", SIZES, {
        "linear_num_key_heads": (6, 2), "linear_num_value_heads": (6, 12),
        "linear_key_head_dim": (12, 16), "linear_value_head_dim": (24, 12),
        "layer_types": (([RULE] * 3 + [WHOLE]) * 5 + [RULE] * 2, [RULE, WHOLE] * 11)}),
    ("gemma4_text", without(SIZES, "head_dim"), {
        "head_dim": (256, 128), "sliding_window": (512, 64), "global_head_dim": (512, 64),
        "hidden_size_per_layer_input": (256, 0), "num_kv_shared_layers": (0, 4),
        "layer_types": (([WINDOW] * 5 + [WHOLE]) * 3 + [WINDOW] * 3 + [WHOLE],
                        [WINDOW, WHOLE] * 11)}),
    ("gemma3_text", {**SIZES, "sliding_window": 16}, {"sliding_window_pattern": (6, 2)}),
    ("qwen3_next", {**MIXTURE, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
                    "linear_key_head_dim": 8, "linear_value_head_dim": 8}, {
        "full_attention_interval": (4, 11), "attn_output_gate": (True, False)}),
    ("minimax_m3_vl_text", {**MIXTURE, "sparse_attention_config": SPARSE}, {
        "sparse_attention_config": (
            {**SPARSE, "sparse_block_size": 128, "sparse_topk_blocks": 16,
             "sparse_num_index_heads": 4, "sparse_index_dim": 128},
            {**SPARSE, "sparse_topk_blocks": 8})}),
    ("mimo_v2", {**MIXTURE, "layer_types": [WINDOW, WHOLE] * 11, "sliding_window": 16,
                 "v_head_dim": 32}, {
        "mlp_layer_types": (sparse(1), sparse(0)), "swa_num_attention_heads": (6, 3),
        "swa_num_key_value_heads": (2, 1), "swa_head_dim": (32, 64),
        "moe_layer_freq": ([0] + [1] * 21, [1] * 22)}),
    ("step3p5", WINDOWED, {
        "mlp_layer_types": (sparse(3), sparse(0)), "gating": (True, False),
        "moe_layers_enum": (",".join(map(str, range(3, 22))), ",".join(map(str, range(22))))}),
    ("laguna", WINDOWED, {"mlp_layer_types": (sparse(1), sparse(0)), "gating": (True, False)}),
    ("afmoe", WINDOWED, {"global_attn_every_n_layers": (4, 2)}),
    ("cohere2", WINDOWED, {"sliding_window_pattern": (4, 2)}),
    ("kolibri1", WINDOWED, {"sliding_window_pattern": (5, 2)}),
    ("spark2_5", WINDOWED, {
        "sliding_window_pattern": (4, 2), "headwise_attn_output_gate": (True, False)}),
    ("cohere2_moe", {**WINDOWED, "first_k_dense_replace": 3}, {
        "sliding_window_pattern": (4, 2), "prefix_dense_sliding_window_pattern": (1, 3)}),
    ("falcon", {**without(SIZES, "intermediate_size", "num_key_value_heads")}, {
        "multi_query": (True, False), "parallel_attn": (True, False),
        "intermediate_size": (4 * 96, 96)}),
    ("longcat_flash", {**LATENT, "num_layers": 11, "ffn_hidden_size": 96, "moe_topk": 6,
                       "expert_ffn_hidden_size": 16, "n_routed_experts": 8}, {
        "zero_expert_num": (0, 4)}),
    ("hunyuan_v1_moe", {**MIXTURE, "moe_topk": 2}, {"num_shared_expert": (1, 2)}),
]  # fmt: skip

CASES = [(kind, own, key, *values) for kind, own, keys in IMPLIED for key, values in keys.items()]


@pytest.mark.parametrize(
    ("kind", "own", "key", "implied", "other"),
    CASES,
    ids=[f"{kind}-{key}-{at}" for at, (kind, _, key, *_) in enumerate(CASES)],
)
def test_what_a_class_implies_need_not_be_stated(
    kind: str, own: dict[str, Any], key: str, implied: Any, other: Any
) -> None:
    bare, same, apart = (
        from_config({"model_type": kind, **own, **more}, "test")
        for more in ({}, {key: implied}, {key: other})
    )
    assert same == bare
    assert apart != bare


@pytest.mark.parametrize(
    ("kind", "content", "layers", "whole"),
    [
        ("afmoe", {}, 15, [3, 7, 11]),
        ("afmoe", {"global_attn_every_n_layers": 6}, 15, [5, 11]),
        ("beam", {}, 15, [5, 11, 14]),
        ("cohere2", {}, 15, [3, 7, 11]),
        ("cohere2_moe", {"first_k_dense_replace": 2}, 15, [0, 1, 5, 9, 13]),
        ("flint", {}, 15, [0, 1, 5, 9, 13, 14]),
        ("granite_swa", {}, 15, [0, 4, 8, 12]),
        ("granitemoe_swa", {}, 15, [0, 4, 8, 12]),
        ("iquest_q1", {}, 15, [0, 1, 5, 9, 12, 13, 14]),
        ("kolibri1", {}, 15, [4, 9, 14]),
        ("muse_glimmer_text", {}, 14, [1, 5, 9, 13]),
        ("muse_spark_text", {}, 14, [1, 5, 9, 13]),
        ("spark2_5", {}, 15, [3, 7, 11]),
    ],
)
def test_layers_that_see_all_keys(
    kind: str, content: dict[str, Any], layers: int, whole: list[int]
) -> None:
    found = USUAL_WHOLE[kind]
    assert [at for at in range(layers) if found(at, layers, content)] == whole
    assert set(USUAL_WHOLE) <= {
        "afmoe", "beam", "cohere2", "cohere2_moe", "flint", "granite_swa", "granitemoe_swa",
        "iquest_q1", "kolibri1", "muse_glimmer_text", "muse_spark_text", "spark2_5",
    }, "each has its row"  # fmt: skip


@pytest.mark.parametrize(
    ("content", "sparse"),
    [
        ({"mlp_layer_types": ["dense"] * 2 + ["sparse"] * 9}, range(2, 10)),
        ({"moe_layer_freq": [1] * 10, "first_k_dense_replace": 3}, range(3, 10)),
        ({"moe_layer_freq": [0, 1] * 5, "first_k_dense_replace": 3}, [3, 5, 7, 9]),
        ({"moe_layer_freq": 3, "first_k_dense_replace": 2}, [3, 6, 9]),
        ({"moe_layer_freq": 2}, [0, 2, 4, 6, 8]),
        ({"decoder_sparse_step": 3}, [2, 5, 8]),
        ({"decoder_sparse_step": 3, "mlp_only_layers": [5]}, [2, 8]),
        ({"mlp_only_layers": [0, 9]}, range(1, 9)),
        ({"moe_layer_interval": 3}, [2, 5, 8]),
        (
            {"moe_layer_interval": 2, "moe_layer_start_index": 3, "moe_layer_end_index": 7},
            [3, 5, 7],
        ),
        ({"moe_layer_interval": 2, "moe_layer_end_index": -1}, [1, 3, 5, 7, 9]),
        ({"moe_layer_end_index": 6}, range(7)),
        ({"moe_layer_end_index": 0}, [0]),
    ],
)
def test_layers_that_are_mixtures(content: dict[str, Any], sparse: Any) -> None:
    found = _marks(content, 10)
    assert found is not None
    assert [at for at, mark in enumerate(found[1][:10]) if mark] == list(sparse)


@pytest.mark.parametrize(
    "content",
    [{}, {"moe_layer_freq": 1}, {"decoder_sparse_step": 1}, {"moe_layer_interval": 1},
     {"moe_layer_end_index": 9}, {"moe_layer_end_index": -1}, {"mlp_only_layers": []}],
)  # fmt: skip
def test_all_layers_are_mixtures_where_nothing_says_otherwise(content: dict[str, Any]) -> None:
    assert _marks(content, 10) is None


def test_mixtures_behind_dense_layers_or_every_so_manieth() -> None:
    def told(kind: str = "qwen3_moe", layers: int = 10, **content: Any) -> dict[str, Any]:
        return mixtures(kind, content, {"layers": layers, "num_experts": 4}, "test")

    assert told(decoder_sparse_step=3) == {"moe_every_n": 3, "dense_layers": 0}
    assert told(moe_layer_freq=[0, 0, *[1] * 8]) == {"dense_layers": 2}
    assert told(moe_layer_freq=[0] * 10) == {"dense_layers": 10}
    assert told(mlp_layer_types=["sparse"] * 10) == {"dense_layers": 0}
    assert told() == {}
    with pytest.raises(InputError, match="dense layers behind mixtures"):
        told(moe_layer_freq=3)
    # Of classes that have dense layers where a file says nothing: DeepSeek-V3.2's and GLM-5's three
    # as DeepSeek-V3, Beam's three, one of all others; never more than there are.
    three = {"beam", "glm5_next_text", "glm_moe_dsa", "deepseek_v32"}
    for kind in USUAL_DENSE:
        assert told(kind) == {"dense_layers": 3 if kind in three else 1}
        assert told(kind, layers=1) == {"dense_layers": 1}
    assert mixtures("beam", {}, {"layers": 10}, "test") == {}


@pytest.mark.parametrize(
    ("content", "choosing"),
    [
        ({"index_topk_freq": 3}, [0, 1, 4, 7, 10]),
        ({"index_topk_freq": 3, "index_skip_topk_offset": 4}, [0, 1, 2, 3, 6, 9]),
        ({"index_topk_freq": 1}, list(range(12))),
        ({"index_topk_freq": 0}, [0, 1, 5, 9]),  # as if it said nothing
        ({}, [0, 1, 5, 9]),
        ({"index_topk_pattern": "FSS" * 4}, [0, 3, 6, 9]),
        ({"indexer_types": ["full"]}, [0]),
    ],
)
def test_layers_that_choose_for_those_behind(content: dict[str, Any], choosing: list[int]) -> None:
    """Their number is kept; which they are shows in any number of layers."""
    for layers in range(1, 13):
        own = sum(at < layers for at in choosing)
        found = sharing(content, list(range(layers)), _first_of_four)
        assert found == {"sharing_layers": layers - own}


def test_language_models_within_others_have_their_classes_sizes() -> None:
    """Llama 7B by itself (Touvron et al. 2023, table 2: 6.7B, 32 heads); Gemma 3's class of 26
    layers 2304 wide with heads of 256 on 4 of keys."""
    own = catalog.model({"model_type": "llava", "text_config": {"model_type": "llama"}})
    assert own.parameters / 1e9 == pytest.approx(6.738, rel=1e-3)
    assert (own.layers, own.heads, own.head_dim, own.vocab) == (32, 32, 128, 32000)
    own = catalog.model({"model_type": "gemma3", "text_config": {"model_type": "gemma3_text"}})
    layer = 2304 * 256 * (8 + 4 + 4 + 8) + 3 * 2304 * 9216
    assert own.matrix_parameters() == 26 * layer
    assert (own.heads, own.kv_heads, own.sliding_window, own.vocab) == (8, 4, 4096, 262208)


def test_numbers_that_a_quantization_leaves_out() -> None:
    """compressed-tensors' classes: weights of eight bits, activations of sixteen, one scale; AWQ's
    and GPTQ's four bits (`w_bit` where `bits` is not stated)."""

    def told(method: str, **own: Any) -> tuple[str, str]:
        content = {"quantization_config": {"quant_method": method, **own}}
        found = read_quantization(content, "test")
        assert found is not None
        return found.precision, found.cache

    def group(weights: dict[str, Any], inputs: dict[str, Any] | None = None) -> tuple[str, str]:
        groups = {"group_0": {"weights": weights, "input_activations": inputs}}
        return told("compressed-tensors", config_groups=groups)

    assert group({}) == group({"num_bits": 8, "type": "int", "group_size": 0}) == ("int8_wo", "")
    assert group({}, {}) == group({}, {"num_bits": 16}) == ("int8_wo", "")
    assert group({}, {"num_bits": 8}) == ("sq", "")
    assert group({"num_bits": 4}) == group({"num_bits": 4, "group_size": 128}) == ("int4_wo", "")
    assert told("awq") == told("awq", bits=4) == told("gptq", w_bit=4) == ("int4_wo", "")
    assert told("awq", w_bit=8) == told("awq", bits=8, w_bit=4) == ("int8_wo", "")
    for scheme, cache in (
        ({}, ""),
        ({"num_bits": 8}, "fp8"),
        ({"num_bits": 8, "type": "int"}, "int8"),
    ):
        assert told("fp8", kv_cache_scheme=scheme) == ("fp8", cache)

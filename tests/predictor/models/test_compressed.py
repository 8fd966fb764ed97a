"""DeepSeek-V4 and MiniMax-M3: their files are the catalog's models, whose counts are by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from predictor import catalog
from predictor.errors import InputError
from tests.predictor.models.test_families import unnamed

FLASH: dict[str, Any] = {
    "model_type": "deepseek_v4", "expert_dtype": "fp4", "hc_mult": 4, "head_dim": 512,
    "hidden_size": 4096, "index_head_dim": 128, "index_n_heads": 64, "index_topk": 512,
    "max_position_embeddings": 1048576, "moe_intermediate_size": 2048, "n_routed_experts": 256,
    "n_shared_experts": 1, "num_attention_heads": 64, "num_experts_per_tok": 6,
    "num_hidden_layers": 43, "num_hash_layers": 3, "num_key_value_heads": 1,
    "num_nextn_predict_layers": 1, "o_groups": 8, "o_lora_rank": 1024, "q_lora_rank": 1024,
    "qk_rope_head_dim": 64, "sliding_window": 128, "vocab_size": 129280,
    "compress_ratios": [0, 0, *[4, 128] * 20, 4, 0],
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}  # fmt: skip
PRO: dict[str, Any] = {
    **FLASH, "hidden_size": 7168, "index_topk": 1024, "moe_intermediate_size": 3072,
    "n_routed_experts": 384, "num_attention_heads": 128, "num_hidden_layers": 61, "o_groups": 16,
    "q_lora_rank": 1536, "compress_ratios": [128, 128, *[4, 128] * 29, 4, 0],
}  # fmt: skip
MARKS = [0, 0, 0, *[1] * 57]
M3: dict[str, Any] = {
    "model_type": "minimax_m3_vl",
    "text_config": {
        "model_type": "minimax_m2", "hidden_size": 6144, "intermediate_size": 3072,
        "num_hidden_layers": 60, "num_attention_heads": 64, "num_key_value_heads": 4,
        "head_dim": 128, "vocab_size": 200064, "max_position_embeddings": 1048576,
        "dense_intermediate_size": 12288, "shared_intermediate_size": 3072,
        "num_local_experts": 128, "num_experts_per_tok": 4, "n_shared_experts": 1,
        "num_nextn_predict_layers": 1, "moe_layer_freq": MARKS,
        "sparse_attention_config": {
            "use_sparse_attention": True, "sparse_index_dim": 128, "sparse_num_index_heads": 4,
            "sparse_topk_blocks": 16, "sparse_block_size": 128, "sparse_attention_freq": MARKS,
        },
    },
}  # fmt: skip
FILES = {"deepseek-v4-flash": FLASH, "deepseek-v4-pro": PRO, "minimax-m3": M3}


@pytest.mark.parametrize("name", FILES)
def test_the_files_are_the_catalogs_models(name: str) -> None:
    own = replace(catalog.model(FILES[name]), quantization=None)
    assert unnamed(own) == unnamed(catalog.model(name))


@pytest.mark.parametrize(
    ("name", "stated", "active"),
    [("deepseek-v4-flash", 284, 13), ("deepseek-v4-pro", 1573, 49), ("minimax-m3", 428, 23)],
)
def test_parameters_are_those_that_are_published(name: str, stated: float, active: float) -> None:
    """284B with 13B active and (rounded to 1.6T) 49B of DeepSeek-V4's report; 428B with its tower
    of images, 23B active, of MiniMax-M3's. Their experts by hand give 1,547B of Pro's; what is
    active is stated beside one table or both, rounded or cut off."""
    model = catalog.model(name)
    assert model.parameters / 1e9 == pytest.approx(stated, rel=0.01)
    tables = model.embedding_parameters, model.embedding_parameters + model.head_parameters
    least, most = ((model.active_parameters - table) / 1e9 for table in reversed(tables))
    assert least - 1.0 < active <= most + 0.5


def test_weights_of_a_layer_of_each_kind_by_hand() -> None:
    """Of DeepSeek-V4-Flash."""
    (two, window), (chosen, choosing), (pooled, pooling) = catalog.model(
        "deepseek-v4-flash"
    ).attention_kinds
    assert (two, chosen, pooled) == (2, 21, 20)
    down, queries = 4096 * (1024 + 512), 1024 * 64 * 512
    out = 8 * (64 * 512 // 8) * 1024 + 8 * 1024 * 4096
    assert window.attention_matrix == down + queries + out
    # What is summed and its weights; twice where sums overlap.
    assert pooling.attention_matrix - window.attention_matrix == 4096 * 2 * 512
    index = 1024 * 64 * 128 + 4096 * 64 + 4096 * 2 * 2 * 128
    assert choosing.attention_matrix - window.attention_matrix == 4096 * 2 * 2 * 512 + index


def test_weights_of_residual_streams_by_hand() -> None:
    """Each of two blocks of 43 layers reads four streams and computes 4 + 4 + 16 numbers of each
    token; the last sum has four."""
    model = catalog.model("deepseek-v4-flash")
    assert model.stream_matrix == 4 * 4096 * (2 * 43 * 24 + 4)


def test_kinds_have_all_attention_blocks_and_their_weights() -> None:
    for name in FILES:
        model = catalog.model(name)
        kinds = model.attention_kinds
        assert sum(blocks for blocks, _ in kinds) == model.layers
        for _, one in kinds:
            assert [kind for _, kind in one.attention_kinds] == [one]


def test_index_keys_of_chosen_blocks_are_projected_without_weights_per_head() -> None:
    (three, whole), (rest, choosing) = catalog.model("minimax-m3").attention_kinds
    assert (three, rest) == (3, 57)
    assert whole.attention_matrix == 6144 * (2 * 8192 + 2 * 512)
    assert choosing.attention_matrix - whole.attention_matrix == 6144 * (4 + 1) * 128


def test_a_file_may_name_kinds_instead_of_ratios() -> None:
    names = {0: "sliding_attention", 4: "compressed_sparse_attention",
             128: "heavily_compressed_attention"}  # fmt: skip
    own = {key: value for key, value in FLASH.items() if key != "compress_ratios"}
    kinds = [names[ratio] for ratio in FLASH["compress_ratios"][:43]]
    assert unnamed(catalog.model({**own, "layer_types": kinds})) == unnamed(catalog.model(FLASH))


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("compress_ratios", [4] * 10, "'compress_ratios' must list 0, 4 or 128 for each of the 43"),
        ("compress_ratios", [8] * 43, "'compress_ratios' must list 0, 4 or 128"),
        ("layer_types", ["full_attention"] * 43, "'layer_types' must list sliding_attention"),
        ("o_groups", 7, "out_groups 7 does not divide 64 heads"),
    ],
)
def test_what_a_file_gets_wrong_is_said(key: str, value: Any, told: str) -> None:
    with pytest.raises(InputError, match=told):
        catalog.model({**FLASH, key: value})


def test_blocks_that_are_chosen_before_a_full_layer_are_refused() -> None:
    own = M3["text_config"]
    sparse = {**own["sparse_attention_config"], "sparse_attention_freq": [1, *[0] * 59]}
    text = {**own, "sparse_attention_config": sparse}
    with pytest.raises(InputError, match="full attention behind chosen blocks"):
        catalog.model({**M3, "text_config": text})


def test_experts_are_narrower_than_what_else_is_narrow() -> None:
    stored = catalog.model(FLASH).quantization
    assert stored is not None
    assert (stored.precision, stored.others) == ("w4a8_mxfp4_mxfp8", "fp8_block")
    theirs = {**FLASH["quantization_config"], "moe_quant_algo": "NVFP4"}  # NVIDIA's checkpoint
    nvidia = catalog.model({**FLASH, "quantization_config": theirs}).quantization
    assert nvidia is not None
    assert (nvidia.precision, nvidia.others) == ("nvfp4", "fp8_block")
    plain = {key: value for key, value in FLASH.items() if key != "expert_dtype"}
    other = catalog.model(plain).quantization
    assert other is not None
    assert (other.precision, other.others) == ("fp8_block", "")


def test_checkpoints_in_eight_bits_call_the_type_otherwise() -> None:
    own = {key: value for key, value in FLASH.items() if key != "expert_dtype"}
    assert (
        catalog.model({**own, "model_type": "deepseek_ref"}).parameters
        == catalog.model("deepseek-v4-flash").parameters
    )


LAGUNA: dict[str, Any] = {
    "model_type": "laguna", "vocab_size": 100352, "hidden_size": 3072, "intermediate_size": 12288,
    "num_hidden_layers": 48, "num_attention_heads": 48, "num_key_value_heads": 8, "head_dim": 128,
    "num_experts": 256, "num_experts_per_tok": 10, "moe_intermediate_size": 1024,
    "shared_expert_intermediate_size": 1024, "sliding_window": 512, "gating": "per-head",
    "layer_types": ["full_attention", *["sliding_attention"] * 3] * 12,
    "mlp_layer_types": ["dense", *["sparse"] * 47],
    "num_attention_heads_per_layer": [48, 72, 72, 72] * 12,
}  # fmt: skip


def test_windows_of_laguna_have_more_heads() -> None:
    """By hand, of poolside's Laguna-S-2.1: 12 full layers of 48 heads and 36 windowed ones of 72,
    each with a gate; a dense layer, 47 mixtures of 256 experts and a shared one."""
    model = catalog.model(LAGUNA)
    (full, whole), (windowed, window) = model.attention_kinds
    assert (full, whole.heads, windowed, window.heads, window.sliding_window) == (
        12, 48, 36, 72, 512,
    )  # fmt: skip
    for one in (whole, window):
        assert one.attention_matrix == 3072 * (2 * one.heads * 128 + 2 * 8 * 128 + one.heads)
    mixture = 3072 * (257 * 3 * 1024 + 256)
    assert model.matrix_parameters() == model.attention_matrices + 3 * 3072 * 12288 + 47 * mixture
    usual = {
        key: value for key, value in LAGUNA.items() if key not in ("gating", "mlp_layer_types")
    }
    assert unnamed(catalog.model(usual)) == unnamed(model)
    wide = catalog.model({**LAGUNA, "gating": "per-element"})
    gates = 3072 * 127 * (12 * 48 + 36 * 72)
    assert wide.matrix_parameters() - model.matrix_parameters() == gates
    uneven = {**LAGUNA, "num_attention_heads_per_layer": [48, 72, 64, 72] * 12}
    with pytest.raises(InputError, match="differs among layers of one kind"):
        catalog.model(uneven)

"""DeepSeek-V4.1: keys that layers share, halves of a model, tables of n-grams; counts by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from predictor import catalog
from predictor.errors import InputError
from predictor.models.halves import halves, parts, passing_share
from tests.predictor.models.test_families import unnamed

TEXT: dict[str, Any] = {
    "model_type": "deepseek_v41_text", "vocab_size": 129280, "hidden_size": 5120,
    "num_hidden_layers": 40, "num_attention_heads": 64, "num_key_value_heads": 1, "head_dim": 512,
    "q_lora_rank": 1280, "qk_rope_head_dim": 64, "sliding_window": 128,
    "compress_ratios": [0, 0, *[2] * 18, *[1] * 20, 0, 0, 0],
    "kv_source_layer_ids": [2, 8, 14, 20],
    "index_source_layer_ids": [2, 8, 14, 20, 24, 28, 32, 36], "candidate_source_layer_id": 20,
    "candidate_topk_blocks": 2048, "candidate_block_size": 8, "index_n_heads": 32,
    "index_head_dim": 128, "index_topk": 512, "o_groups": 8, "o_lora_rank": 1024,
    "moe_intermediate_size": 2304, "n_routed_experts": 384, "n_shared_experts": 1,
    "num_experts_per_tok": 6, "hc_mult": 4, "engram_layer_ids": [1, 14],
    "engram_num_embeddings": [384006168, 384016682], "engram_max_ngram_size": 4,
    "engram_n_heads": 8, "engram_head_dim": 256, "num_nextn_predict_layers": 3,
    "max_position_embeddings": 1048576,
}  # fmt: skip
WHOLE: dict[str, Any] = {
    "architectures": ["DeepseekV41ForCausalLM"], "model_type": "deepseek_v41",
    "quantization_config": {
        "quant_method": "fp8", "weight_block_size": [32, 32], "scale_fmt": "ue8m0",
        "expert_dtype": "fp4",
    },
    "text_config": TEXT,
    "vision_config": {
        "model_type": "deepseek_v41_vision", "num_hidden_layers": 32, "hidden_size": 1024,
        "num_attention_heads": 16, "intermediate_size": 2816, "patch_size": 14,
        "downsample_ratio": 3,
    },
}  # fmt: skip
MODEL = catalog.model("deepseek-v4.1-flash")


def changed(**keys: Any) -> dict[str, Any]:
    return {**WHOLE, "text_config": {**TEXT, **keys}}


def test_the_file_is_the_catalogs_model() -> None:
    found = catalog.model(WHOLE)
    assert unnamed(replace(found, quantization=None, tower=None)) == unnamed(MODEL)
    assert found.quantization is not None
    assert (found.quantization.precision, found.quantization.others) == (
        "w4a8_mxfp4_mxfp8",
        "fp8_block",
    )
    assert found.tower is not None
    assert (found.tower.merged, found.tower.gated) == (9, True)


def test_what_a_file_leaves_out_is_that_of_the_class() -> None:
    usual = (
        "compress_ratios", "kv_source_layer_ids", "index_source_layer_ids", "head_dim",
        "candidate_source_layer_id", "candidate_topk_blocks", "candidate_block_size", "o_groups",
        "q_lora_rank", "index_n_heads", "index_topk", "sliding_window", "hc_mult",
        "engram_max_ngram_size", "engram_n_heads", "engram_head_dim",
    )  # fmt: skip
    few = {**WHOLE, "text_config": {key: value for key, value in TEXT.items() if key not in usual}}
    assert unnamed(catalog.model(few)) == unnamed(catalog.model(WHOLE))


def test_parameters_are_those_that_are_published() -> None:
    """552B and 196B of tables beside them, 16B active, 8B of a prompt's token (model card)."""
    assert (MODEL.parameters - MODEL.ngram_parameters) / 1e9 == pytest.approx(552, abs=0.5)
    assert MODEL.ngram_parameters / 1e9 == pytest.approx(196.6, abs=0.05)
    words = MODEL.embedding_parameters
    assert (MODEL.active_parameters - words) / 1e9 == pytest.approx(16, abs=0.5)
    first, _ = halves(MODEL)
    ends = first.embedding_parameters + first.head_parameters
    assert (first.active_parameters - ends) / 1e9 == pytest.approx(8, abs=0.5)


def test_weights_of_a_layer_of_each_kind_by_hand() -> None:
    kinds = MODEL.attention_kinds
    counts, ones = [n for n, _ in kinds], [one for _, one in kinds]
    assert counts == [2, 3, 15, 1, 4, 15]
    down, queries = 5120 * (1280 + 512), 1280 * 64 * 512
    out = 8 * (64 * 512 // 8) * 1024 + 8 * 1024 * 5120
    plain, index = down + queries + out, 1280 * 32 * 128 + 5120 * 32
    key = 512 * 128
    assert [one.attention_matrix - plain for one in ones] == [
        0, 5120 * 2 * 512 + index + key, 0, 5120 * 512 + index + key, index, 0,
    ]  # fmt: skip
    assert [one.compression for one in ones] == [0, 2, 2, 1, 1, 1]
    assert [one.makes_keys for one in ones] == [False, True, False, True, False, False]
    assert [one.chooses for one in ones] == [False, True, False, True, True, False]
    assert [one.candidates for one in ones] == [0, 0, 0, 0, 16384, 0]
    for one in ones:
        assert [kind for _, kind in one.attention_kinds] == [one]


def test_vectors_by_hand() -> None:
    """Norms of latents and the key; of those that make keys one more, and of index keys; streams'
    last sum is told by the last block, and sums need no place."""
    window, maker, reader, *_ = [one for _, one in MODEL.attention_kinds]
    assert window.compressed_vectors == (64, 1280 + 512)
    assert maker.compressed_vectors == (64, 1280 + 512 + 512 + 128)
    assert reader.compressed_vectors == (64, 1280 + 512)
    assert MODEL.stream_matrix == 40 * 2 * 4 * 5120 * 24


def test_tables_by_hand() -> None:
    """Eight heads of two to four tokens, each a row of 256, become four keys and a value."""
    assert MODEL.ngram_found == 3 * 8 * 256
    assert MODEL.ngram_matrix == 6144 * 5 * 5120
    assert MODEL.ngram_vectors == 2 * 4 * 5120
    assert MODEL.ngram_touched == 2 * 6144


def test_halves_are_the_whole() -> None:
    first, last = halves(MODEL)
    assert (first.layers, last.layers) == (20, 20)
    assert (first.ngram_layers, last.ngram_layers) == (2, 0)
    both = (*first.attention_kinds, *last.attention_kinds)
    own = MODEL.attention_kinds
    assert [n for n, _ in both] == [n for n, _ in own]
    assert [one.attention_matrix for _, one in both] == [one.attention_matrix for _, one in own]
    assert first.attention_matrices + last.attention_matrices == MODEL.attention_matrices


def test_what_passes_each_half() -> None:
    assert [(one.layers, many) for one, many in parts(MODEL, 100.0, 7.0)] == [(20, 100), (20, 7)]
    assert parts(MODEL, 100.0, None) == ((MODEL, 100.0),)
    other = catalog.model("deepseek-v4-flash")
    assert parts(other, 100.0, 7.0) == ((other, 100.0),)
    assert [float(passing_share(MODEL, n)) for n in (64.0, 128.0, 1024.0)] == [1.0, 1.0, 0.125]


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"compress_ratios": [0, 1, *[2] * 18, *[1] * 20]}, "other orders are not"),
        ({"compress_ratios": [0, 0, *[2] * 9, *[4] * 9, *[1] * 20]}, "one number above 1"),
        ({"compress_ratios": [0] * 9}, "must list a number for each of the 40 layers"),
        ({"kv_source_layer_ids": [2, 8, 14]}, "must name the first layer of each ratio"),
        ({"kv_source_layer_ids": [2, 20, 24]}, "of the last ratio no other"),
        ({"index_source_layer_ids": [2, 20]}, "each that makes keys must choose"),
        ({"index_source_layer_ids": [0, 2, 8, 14, 20]}, "must name the first layer"),
        ({"kv_source_layer_ids": [2, 60]}, "must list numbers of layers from 0 to 39"),
        ({"candidate_source_layer_id": 24}, "'candidate_source_layer_id' other than 20"),
        ({"engram_layer_ids": [1, 30]}, "must list numbers of layers from 0 to 19"),
        ({"engram_num_embeddings": [5]}, "must list rows for each layer"),
    ],
)
def test_other_files_are_refused_in_a_line(keys: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told) as refused:
        catalog.model(changed(**keys))
    assert "\n" not in str(refused.value)


def test_without_candidates_all_keys_are_scored_and_without_tables_none_looked_up() -> None:
    found = catalog.model(changed(candidate_source_layer_id=-1, engram_layer_ids=[]))
    assert (found.candidates, found.ngram_layers, found.ngram_parameters) == (0, 0, 0)


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"reading_layers": 18}, "must grow in this order"),
        ({"sharing_layers": 16}, "must grow in this order"),
        ({"decoder_choosers": 21}, "decoder_choosers 21 are more than the 20 decoder_layers"),
        ({"ngram_layers": 21}, "more than the layers before the decoder's"),
        ({"choosing_layers": 21}, "more than the 40 layers there are"),
        ({"ngram_rows": 0}, "ngram_layers 2 needs ngram_rows"),
    ],
)
def test_entries_that_contradict_themselves(keys: dict[str, Any], told: str) -> None:
    entry = {**catalog.to_mapping(catalog.spec_of("models", "deepseek-v4.1-flash")), **keys}
    with pytest.raises(InputError, match=told):
        catalog.model(entry)


QWEN4: dict[str, Any] = {
    "model_type": "qwen4_exp", "architectures": ["Qwen4ExpForConditionalGeneration"],
    "text_config": {
        "model_type": "qwen4_exp_text", "vocab_size": 248320, "hidden_size": 2560,
        "num_hidden_layers": 48, "full_attention_interval": 4, "num_attention_heads": 24,
        "num_key_value_heads": 2, "head_dim": 256, "hidden_act": "silu",
        "max_position_embeddings": 262144, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128,
        "linear_value_head_dim": 128, "linear_num_key_heads": 16, "linear_num_value_heads": 48,
        "num_experts": 512, "num_experts_per_tok": 10, "moe_intermediate_size": 640,
        "shared_expert_intermediate_size": 640, "hc_count": 4, "hc_lowrank": 320,
        "ple_layer_ids": [2], "ple_embed_dim": 2560, "ple_conv_kernel_size": 4, "ngram_size": 3,
        "heads_per_ngram": 8, "ngram_vocab_size_base": 20000000, "indexer_n_heads": 4,
        "indexer_kv_heads": 1, "indexer_head_dim": 128, "indexer_budget": 2048,
        "indexer_compress_ratio": 4, "mtp_num_hidden_layers": 1,
    },
}  # fmt: skip
NEXT = catalog.model("qwen3.8-flash-next")


def test_qwen4s_file_is_the_catalogs_model_but_for_primes() -> None:
    """Rows of the table are of the next primes, of which a file says nothing: 1,536 of 320 M."""
    found = catalog.model(QWEN4)
    assert found.ngram_rows == 16 * 20_000_000
    assert NEXT.ngram_rows == 128 * 2_500_012
    assert unnamed(replace(found, ngram_rows=NEXT.ngram_rows)) == unnamed(NEXT)
    text = QWEN4["text_config"]
    kinds = ["linear_attention"] * 3 + ["hybrid_indexed"]
    named = {**QWEN4, "text_config": {**text, "layer_types": kinds * 12}}
    assert unnamed(catalog.model(named)) == unnamed(found)


def test_qwen4s_checkpoint_has_its_size() -> None:
    """335 GiB in 16 bits, with a layer of extra prediction and a tower of images of about 6."""
    assert 2 * NEXT.parameters / 2**30 == pytest.approx(335 - 6, rel=0.01)


def test_qwen4s_weights_by_hand() -> None:
    ((twelve, one),) = NEXT.attention_kinds
    plain = 2560 * (2 * 24 * 256 + 2 * 2 * 256) + 24 * 256 * 2560
    assert (twelve, one.attention_matrix) == (12, plain + 2560 * (4 + 1) * 128)
    wide = 4 * 2560
    assert NEXT.stream_layer_matrix == 2 * wide * (320 + 320 + 4)
    assert NEXT.stream_matrix == 48 * NEXT.stream_layer_matrix + 2 * wide * 320
    assert NEXT.stream_norm == wide
    assert NEXT.ngram_matrix == 2560 * 5 * 2560
    assert NEXT.ngram_vectors == (3 + 4) * wide


def test_a_table_divides_into_heads() -> None:
    text = {**QWEN4["text_config"], "ple_embed_dim": 2570}
    with pytest.raises(InputError, match="'ple_embed_dim' 2570 is not a multiple of 16 heads"):
        catalog.model({**QWEN4, "text_config": text})

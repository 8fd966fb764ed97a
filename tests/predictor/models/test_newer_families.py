"""Families of 2026: what their files list layer by layer, what they share, what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from predictor import catalog
from predictor.errors import InputError
from predictor.models import Model, narrowing
from predictor.models.families import TYPES
from tests.predictor.models.sizes import INDEXED, LATENTS, ROUTED

SIZES: dict[str, Any] = {
    "num_hidden_layers": 8, "hidden_size": 64, "num_attention_heads": 4, "head_dim": 32,
    "num_key_value_heads": 2, "intermediate_size": 96, "vocab_size": 100,
}  # fmt: skip
MIXTURE: dict[str, Any] = {**SIZES, **ROUTED}
LATENT: dict[str, Any] = {**MIXTURE, **LATENTS}
INDEX: dict[str, Any] = {**LATENT, **INDEXED}
WINDOW, WHOLE = "sliding_attention", "full_attention"


def read(kind: str, sizes: dict[str, Any], **more: object) -> Model:
    return catalog.model({**sizes, "model_type": kind, **more})


def test_layers_that_share_what_an_earlier_one_chose_have_no_indexer() -> None:
    """Queries of 2 x 4 from 24 channels, a key of 4 and 2 weights from 64."""
    index = 24 * 8 + 64 * (4 + 2)
    plain = read("glm_moe_dsa", INDEX)
    shared = read("glm_moe_dsa", INDEX, index_topk_freq=4, index_skip_topk_offset=3)
    assert plain.sharing_layers == 0
    # The first three choose, then every fourth: layers 0, 1, 2 and 6 of eight.
    assert shared.sharing_layers == 4
    assert plain.parameters - shared.parameters == 4 * index
    for key, value in (("indexer_types", ["full", "shared"] * 4), ("index_topk_pattern", "FS" * 4)):
        assert read("glm_moe_dsa", INDEX, **{key: value}).parameters == shared.parameters
    kinds = shared.attention_kinds
    assert [(n, one.chooses, one.is_sparse) for n, one in kinds] == [(4, True, True),
                                                                     (4, False, True)]  # fmt: skip


@pytest.mark.parametrize("name", ["indexed_attention", "deepseek_sparse_attention"])
def test_either_name_of_layers_that_choose(name: str) -> None:
    own = read("glm_moe_dsa", INDEX, layer_types=[name] * 8)
    assert own == read("glm_moe_dsa", INDEX)
    with pytest.raises(InputError, match="has full_attention"):
        read("glm_moe_dsa", INDEX, layer_types=[name] * 7 + [WHOLE])


def test_no_layer_chooses_where_all_share() -> None:
    with pytest.raises(InputError, match="leave no layer that chooses keys"):
        read("glm_moe_dsa", INDEX, indexer_types=["shared"] * 8)


def test_glm_5_2_shares_what_three_of_four_layers_see() -> None:
    """21 of its 78 layers choose (public code that reads its config.json)."""
    own = catalog.model("glm-5.2")
    assert [n for n, _ in own.attention_kinds] == [21, 57]
    assert catalog.model("zai-org/GLM-5.2-FP8").sharing_layers == 57
    assert catalog.model("glm-5.1").sharing_layers == 0


def test_short_convolutions_in_place_of_attention() -> None:
    kinds = ["conv", "conv", WHOLE, "conv"] * 2
    own = read("lfm2", SIZES, conv_L_cache=3, layer_types=kinds, block_auto_adjust_ff_dim=False)
    assert (own.conv_layers, own.attention_blocks, own.tied_embeddings) == (6, 2, True)
    # Gates and channels 3 x 64, output, three taps of each channel.
    conv = 64 * 192 + 64 * 64 + 3 * 64
    attention = 64 * (128 + 2 * 64) + 128 * 64
    assert own.matrix_parameters() == 6 * conv + 2 * attention + 8 * 3 * 64 * 96
    listed = {"full_attn_idxs": [2, 6], "block_auto_adjust_ff_dim": False}
    assert read("lfm2", SIZES, conv_L_cache=3, **listed).parameters == own.parameters
    wide = read("lfm2", SIZES, full_attn_idxs=[2], block_ff_dim=12288)
    assert wide.ffn_hidden == 8192  # two thirds, as LFM2-1.2B has
    with pytest.raises(InputError, match="must list conv, full_attention"):
        read("lfm2", SIZES, layer_types=["conv"] * 7 + ["mamba"])


def test_windows_beside_convolutions_are_a_share_of_the_attention() -> None:
    kinds = ["conv", "conv", WHOLE, "conv", WINDOW, "conv", WHOLE, "conv"]
    own = read("lfm3", SIZES, layer_types=kinds, sliding_window=16)
    assert own.windowed_share == pytest.approx(1 / 3)
    assert own.head_gate


@pytest.mark.parametrize(
    ("kind", "more", "share"),
    [
        ("afmoe", {}, 6 / 8),  # every fourth of eight sees all keys
        ("afmoe", {"global_attn_every_n_layers": 2}, 4 / 8),
        ("beam", {}, 6 / 8),  # the sixth and the last
        ("cohere2", {}, 6 / 8),
        ("cohere2_moe", {"first_k_dense_replace": 1}, 6 / 8),  # the dense one, and the fifth
        ("granite_swa", {}, 6 / 8),
        ("muse_glimmer_text", {}, 6 / 8),
        ("qwen3", {"use_sliding_window": True, "max_window_layers": 6}, 2 / 8),
        ("qwen3", {"use_sliding_window": False, "max_window_layers": 6}, 0.0),
        ("mellum", {"layer_types": [WHOLE] * 8}, 0.0),
        ("mellum", {"layer_types": [WINDOW, WHOLE] * 4}, 0.5),
        ("mistral", {}, 1.0),
    ],
)
def test_windows_by_layer(kind: str, more: dict[str, Any], share: float) -> None:
    own = read(kind, MIXTURE, sliding_window=16, **more)
    assert own.windowed_share == pytest.approx(share)


@pytest.mark.parametrize(
    ("more", "dense", "every", "mixtures"),
    [
        ({"mlp_layer_types": ["dense"] * 3 + ["sparse"] * 5}, 3, 1, 5),
        ({"mlp_only_layers": [0, 1]}, 2, 1, 6),
        ({"decoder_sparse_step": 2}, 0, 2, 4),
        ({"moe_layer_freq": [0, 1, 1, 1, 1, 1, 1, 1]}, 1, 1, 7),
        ({"decoder_sparse_step": 1, "mlp_only_layers": []}, 0, 1, 8),
    ],
)
def test_mixtures_by_layer(more: dict[str, Any], dense: int, every: int, mixtures: int) -> None:
    own = read("qwen3_moe", MIXTURE, **more)
    assert (own.dense_layers, own.moe_every_n, own.moe_layers) == (dense, every, mixtures)


def test_leading_dense_layers_where_a_file_says_nothing() -> None:
    assert read("hy_v3", MIXTURE).dense_layers == 1
    assert read("hy_v3", MIXTURE, mlp_layer_types=["sparse"] * 8).dense_layers == 0
    assert read("qwen3_moe", MIXTURE).dense_layers == 0


@pytest.mark.parametrize(
    ("kind", "more", "says"),
    [
        ("qwen3_moe", {"mlp_only_layers": [3]}, "dense layers behind mixtures"),
        ("qwen3", {"layer_types": [WHOLE] * 7 + ["linear_attention"]}, "has linear_attention"),
        ("qwen3", {"layer_types": ["indexed_attention"] * 8}, "has indexed_attention"),
        ("qwen3", {"per_layer_config": {"2": {"num_attention_heads": 2}}}, "per_layer_config"),
        ("hunyuan_v1_moe", {"use_cla": True}, "share their keys"),
        ("hunyuan_v1_moe", {"moe_topk": [2, 1]}, "'moe_topk' differs among layers"),
        ("minimax_text_01", {"attn_type_list": [0, 1]}, "0 or 1 for each of the 8 layers"),
        ("minimax_text_01", {"attn_type_list": [1] * 8}, "layers of both kinds"),
        ("minimax", {}, "layers of both kinds"),
        ("longcat_flash", {"num_layers": 4, "oe_vocab_size_ratio": 78}, "n-grams"),
        (
            "longcat_flash_ngram",
            {"num_layers": 4, "ngram_vocab_size_ratio": 78, "emb_split_num": 5},
            "not a multiple of",
        ),
    ],
)
def test_what_differs_among_layers_is_not_passed_over(
    kind: str, more: dict[str, Any], says: str
) -> None:
    with pytest.raises(InputError, match=says):
        read(kind, LATENT, **more)


def test_dimensions_that_files_state_for_each_layer() -> None:
    own = read("hunyuan_v1_moe", MIXTURE, moe_topk=[2] * 8, num_shared_expert=[1] * 8,
               moe_intermediate_size=[16] * 8)  # fmt: skip
    assert (own.top_k, own.shared_experts, own.expert_ffn_hidden) == (2, 1, 16)


def test_two_blocks_of_attention_around_each_mixture() -> None:
    """LongCat-Flash: 2 of attention and 2 dense blocks a layer; 2 of 3 chosen experts work."""
    own = read("longcat_flash", LATENT, num_layers=4, ffn_hidden_size=96, moe_topk=3,
               expert_ffn_hidden_size=16, n_routed_experts=8, zero_expert_num=4)  # fmt: skip
    assert (own.layers, own.moe_layers, own.top_k) == (8, 4, 2)
    assert own.matrix_parameters() == (
        8 * own.attention_matrix + 8 * 3 * 64 * 96 + 4 * 8 * 3 * 64 * 16 + 4 * 64 * 8
    )
    half = read("longcat_flash", LATENT, num_layers=4, ffn_hidden_size=96, moe_topk=4,
                expert_ffn_hidden_size=16, n_routed_experts=8, zero_expert_num=8)  # fmt: skip
    assert half.top_k == 2, "as many do nothing as work"


def test_lightning_attention_in_files_of_either_family() -> None:
    """4 heads, of 32: queries, keys, values, gate, output."""
    ling = read("bailing_hybrid", LATENT, layer_group_size=4)
    assert (ling.delta_layers, ling.attention_blocks) == (6, 2)
    assert ling.delta_matrix == 64 * 5 * 4 * 32
    assert not ling.head_gate
    kinds = [0, 0, 0, 1] * 2
    text = read("minimax_m1", MIXTURE, attn_type_list=kinds)
    assert (text.delta_layers, text.attention_blocks, text.family) == (6, 2, "minimax_text_01")
    assert text.delta_matrix == ling.delta_matrix
    names = [("linear_attention", "full_attention")[kind] for kind in kinds]
    assert read("minimax", MIXTURE, layer_types=names) == text


def test_words_of_several_tokens_in_the_embedding() -> None:
    """LongCat-Flash-Lite: 2 and 3 tokens, each in 2 tables of 3 x 100 rows of 64 / 4."""
    sizes = {"num_layers": 4, "ffn_hidden_size": 96, "moe_topk": 2, "expert_ffn_hidden_size": 16}
    plain = read("longcat_flash", LATENT, **sizes)
    own = read("longcat_flash_ngram", LATENT, **sizes, ngram_vocab_size_ratio=3,
               emb_neighbor_num=3, emb_split_num=2)  # fmt: skip
    assert own.ngram_parameters == 4 * 300 * 16
    assert own.parameters - plain.parameters == own.ngram_parameters + 64 * 64
    assert own.active_parameters - plain.active_parameters == 64 + 64 * 64


def test_decays_that_are_projected_at_once_and_gates_of_heads() -> None:
    """Ling 3.0: a gate and a decay for each channel of 4 heads of 32; latents with 4 gates."""
    own = read("bailing_hybrid", LATENT, short_conv_kernel_size=4, layer_group_size=4)
    assert (own.delta_layers, own.attention_blocks) == (6, 2)
    wide = 4 * 32
    rule = 64 * (3 * wide + 2 * wide + 4 + wide) + 4 * 3 * wide
    assert own.delta_matrix == rule
    latent = 64 * (24 + 16 + 8) + 24 * 4 * 24 + 16 * 4 * (16 + 16) + 4 * 16 * 64
    assert own.attention_matrix == latent + 4 * 64


def test_index_keys_that_stand_for_several_tokens() -> None:
    sizes = {**INDEX, "qk_rope_head_dim": 0, "index_kpool": 4}
    own = read("glm5_next_text", sizes, linear_num_heads=4, linear_head_dim=32)
    assert (own.delta_layers, own.index_pool, own.positions, own.streams) == (6, 4, "none", 4)
    # A key and its weight in the sum.
    assert own.index_matrix == 24 * 8 + 64 * (2 * 4 + 2)


def test_a_dense_block_beside_the_experts_of_grok_2() -> None:
    """270B are stated (xai-org/grok-2); its file calls itself by another model's type."""
    own = catalog.model({
        "model_type": "git", "architectures": ["Grok1ForCausalLM"], "hidden_size": 8192,
        "num_hidden_layers": 64, "num_attention_heads": 64, "num_key_value_heads": 8,
        "head_dim": 128, "intermediate_size": 32768, "moe_intermediate_size": 16384,
        "num_local_experts": 8, "num_experts_per_tok": 2, "residual_moe": True,
        "vocab_size": 131072,
    })  # fmt: skip
    assert own.parameters / 1e9 == pytest.approx(270, rel=0.01)


def test_a_speaker_within_one_that_hears() -> None:
    text = {**MIXTURE, "model_type": "qwen3_omni_moe_text"}
    thinker = {"model_type": "qwen3_omni_moe_thinker", "text_config": text}
    own = catalog.model({"model_type": "qwen3_omni_moe", "thinker_config": thinker})
    assert (own.layers, own.num_experts) == (8, 8)


def test_the_first_mixture_of_deepseek() -> None:
    """Dai et al. 2024, arXiv 2401.06066, table 2: 16.4B, 2.8B active."""
    own = catalog.model({
        "model_type": "deepseek", "num_hidden_layers": 28, "hidden_size": 2048,
        "num_attention_heads": 16, "num_key_value_heads": 16, "intermediate_size": 10944,
        "moe_intermediate_size": 1408, "n_routed_experts": 64, "n_shared_experts": 2,
        "num_experts_per_tok": 6, "first_k_dense_replace": 1, "moe_layer_freq": 1,
        "vocab_size": 102400,
    })  # fmt: skip
    assert own.parameters / 1e9 == pytest.approx(16.4, rel=0.005)
    assert own.active_parameters / 1e9 == pytest.approx(2.8, rel=0.02)


def test_either_name_of_a_dimension() -> None:
    for name in ("n_shared_experts", "num_shared_experts"):
        assert read("sarvam_moe", MIXTURE, **{name: 2}).shared_experts == 2


def test_files_that_transformers_has_written_back() -> None:
    """Version 5 says in other words what the published file says: Kimi Linear, Gemma 4, state
    spaces of Granite and Nemotron."""
    rules, full = [1, 2, 3, 5, 6, 7], [4, 8]
    own = {"kda_layers": rules, "full_attn_layers": full, "num_heads": 4, "head_dim": 32,
           "short_conv_kernel_size": 4}  # fmt: skip
    kinds = [WHOLE if at + 1 in full else "linear_attention" for at in range(8)]
    published = read("kimi_linear", LATENT, linear_attn_config=own, first_k_dense_replace=1)
    again = read("kimi_linear", LATENT, layer_types=kinds, linear_num_heads=4, linear_head_dim=32,
                 mlp_layer_types=["dense"] + ["sparse"] * 7)  # fmt: skip
    assert again.parameters == published.parameters
    kinds = ([WINDOW] * 3 + [WHOLE]) * 2
    gemma = {"sliding_window": 16, "layer_types": kinds, "hidden_size_per_layer_input": 0,
             "attention_k_eq_v": True}  # fmt: skip
    published = read("gemma4_text", SIZES, **gemma, global_head_dim=64,
                     num_global_key_value_heads=1)  # fmt: skip
    apart = {str(at): {"head_dim": 64, "num_key_value_heads": 1} for at in (3, 7)}
    assert read("gemma4_text", SIZES, **gemma, per_layer_config=apart) == published
    with pytest.raises(InputError, match="not of the layers of one kind"):
        read("gemma4_text", SIZES, **gemma, per_layer_config={"3": {"head_dim": 64}})
    space = {"mamba_n_heads": 4, "mamba_d_head": 32, "mamba_d_state": 8, "mamba_n_groups": 1}
    old, new = (
        read("granitemoehybrid", SIZES, **space, layer_types=kinds)
        for kinds in (["mamba"] * 7 + ["attention"], ["linear_attention"] * 7 + [WHOLE])
    )
    assert old == new


@pytest.mark.parametrize(
    ("kind", "sizes", "stated"),
    [
        # Bamba-9B: 9.78B (ibm-ai-platform/Bamba-9B); OLMo Hybrid 7B: the class's own (transformers
        # 5.24.0: 7.43B parameters)
        ("bamba", {"num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
                   "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128000,
                   "attn_layer_indices": [9, 18, 27], "mamba_n_heads": 128, "mamba_d_head": 64,
                   "mamba_d_state": 128, "mamba_n_groups": 1}, 9.78),
        ("olmo_hybrid", {"num_hidden_layers": 32, "hidden_size": 3840, "num_attention_heads": 30,
                         "intermediate_size": 11008, "vocab_size": 100352}, 7.43),
    ],
)  # fmt: skip
def test_other_hybrids(kind: str, sizes: dict[str, Any], stated: float) -> None:
    assert read(kind, sizes).parameters / 1e9 == pytest.approx(stated, rel=0.002)


@pytest.mark.parametrize("kind", ["deepseek_v4", "minimax_m3_vl_text"])
def test_choices_that_are_not_shared(kind: str) -> None:
    with pytest.raises(InputError, match="choices that layers share"):
        read(kind, {**MIXTURE, "n_routed_experts": 8}, index_topk_freq=2)


def test_what_an_lfm_checkpoint_narrows() -> None:
    """Modules of convolutions and of feed-forward blocks as its layers name them."""
    stated = {"quant_method": "compressed-tensors", "format": "float-quantized",
              "config_groups": {"group_0": {
                  "targets": ["Linear"], "weights": {"num_bits": 8, "type": "float"},
                  "input_activations": {"num_bits": 8, "type": "float", "dynamic": True}}},
              "ignore": ["lm_head", "re:.*conv.in_proj", "re:.*conv.out_proj"]}  # fmt: skip
    own = read("lfm2", SIZES, full_attn_idxs=[2], block_auto_adjust_ff_dim=False,
               quantization_config=stated)  # fmt: skip
    form, remark = narrowing(own)
    assert form == "linear"
    assert "short convolution 100% in 16 bits" in remark


WRONG: list[Any] = [None, "x", -1, 0, 1.5, [], ["a"], {}, {"a": 1}, 10**9, [None] * 8]


@pytest.mark.parametrize("kind", sorted(TYPES))
def test_values_of_another_kind_are_refused_in_one_line(kind: str) -> None:
    """Each key by itself, with each wrong value: it is read, or refused as what the user can
    mend."""
    lists = {
        "layer_types": [WHOLE] * 8, "mlp_layer_types": ["dense"] + ["sparse"] * 7,
        "mlp_only_layers": [0], "decoder_sparse_step": 1, "moe_layer_freq": 1,
        "first_k_dense_replace": 1, "sliding_window": 16, "indexer_types": ["full"] * 8,
        "short_conv_kernel_size": 4, "layer_group_size": 4, "full_attn_idxs": [1],
        "per_layer_config": {}, "sliding_window_pattern": 4, "index_topk_freq": 1,
    }  # fmt: skip
    whole, said = {**INDEX, **lists, "model_type": kind}, []
    for key in (*INDEX, *lists):
        for value in WRONG:
            try:
                catalog.model({**whole, key: value})
            except InputError as error:
                said.append(str(error))
    assert said
    assert not any("\n" in one for one in said)

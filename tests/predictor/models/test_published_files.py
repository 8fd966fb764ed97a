"""Files as they are published: what they leave out, say in other words, or state layer by layer;
parameters by hand."""

from __future__ import annotations

from typing import Any

import pytest

from predictor import catalog
from predictor.errors import InputError
from predictor.models.families import MINICPM

H, INNER, VOCAB, LAYERS = 64, 96, 100, 4
SIZES: dict[str, Any] = {
    "num_hidden_layers": LAYERS, "hidden_size": H, "num_attention_heads": 4, "head_dim": 32,
    "num_key_value_heads": 2, "intermediate_size": INNER, "vocab_size": VOCAB,
}  # fmt: skip
ATTENTION = H * 128 + 2 * H * 64 + 128 * H
BLOCK = 3 * H * INNER
ENDS = 2 * VOCAB * H + H
PLAIN = LAYERS * (ATTENTION + BLOCK + 2 * H) + ENDS
"""Of a gated model with two norms a layer, of which nothing is tied."""

GLM_FLASH: dict[str, Any] = {
    "model_type": "glm4_moe_lite", "hidden_size": 2048, "intermediate_size": 10240,
    "moe_intermediate_size": 1536, "num_attention_heads": 20, "num_key_value_heads": 20,
    "n_routed_experts": 64, "n_shared_experts": 1, "num_experts_per_tok": 4,
    "first_k_dense_replace": 1, "num_hidden_layers": 47, "q_lora_rank": 768, "kv_lora_rank": 512,
    "qk_nope_head_dim": 192, "qk_rope_head_dim": 64, "v_head_dim": 256, "vocab_size": 154880,
    "tie_word_embeddings": False, "num_nextn_predict_layers": 1,
}  # fmt: skip


def test_heads_of_latents_need_not_be_a_part_of_the_width() -> None:
    """GLM-4.7-Flash as published: 20 heads do not divide 2,048, and no head size is stated."""
    own = catalog.model(GLM_FLASH)
    h = 2048
    latents = 768 + h * (768 + 512 + 64) + 768 * 20 * 256 + 512 + 512 * 20 * (192 + 256)
    attention = latents + 20 * 256 * h + 2 * h
    experts = (64 + 1) * 3 * h * 1536 + 64 * h
    whole = 47 * attention + 3 * h * 10240 + 46 * experts + 2 * 154880 * h + h
    assert own.parameters == whole
    assert own.head_dim == 256
    assert own.parameters == catalog.model("glm-4.7-flash").parameters


@pytest.mark.parametrize(
    ("kind", "more", "beside"),
    [
        ("Yi", {}, 0),
        ("plamo3", {}, 0),
        ("emu3_text_model", {}, 0),
        ("internlm", {"bias": True}, LAYERS * (128 + 2 * 64)),
        ("internlm", {"bias": False}, 0),
        ("PanguEmbedded", {"bias": True}, LAYERS * (128 + 2 * 64)),
        ("orion", {}, (2 * LAYERS + 1) * H),  # norms with biases
        ("granite_docling_text", {}, -VOCAB * H),
        ("molmo", {"intermediate_size": 2 * INNER}, 0),  # both halves of a gated block
        ("cosmos3_edge_text", {}, -LAYERS * H * INNER),  # not gated
        ("apertus1p5_text", {}, -LAYERS * H * INNER),
        ("step1", {"num_attention_groups": 2}, 0),
    ],
)
def test_types_that_are_plain(kind: str, more: dict[str, Any], beside: int) -> None:
    own = {**SIZES, "model_type": kind, **more}
    if kind == "step1":
        del own["num_key_value_heads"]
    assert catalog.model(own).parameters == PLAIN + beside


def test_types_with_words_of_their_own() -> None:
    telechat = {"model_type": "telechat", "n_layer": LAYERS, "n_head": 4, "hidden_size": H,
                "ffn_hidden_size": INNER, "vocab_size": VOCAB}  # fmt: skip
    plain = LAYERS * (4 * H * H + BLOCK + 2 * H) + ENDS
    assert catalog.model(telechat).parameters == plain
    jais = {"model_type": "jais", "n_embd": H, "n_head": 4, "n_layer": LAYERS, "n_inner": INNER,
            "vocab_size": VOCAB, "tie_word_embeddings": False}  # fmt: skip
    biases = LAYERS * (4 * H + 2 * INNER + H) + (2 * LAYERS + 1) * H
    assert catalog.model(jais).parameters == plain + biases
    xglm = {"model_type": "xglm", "d_model": H, "attention_heads": 4, "num_layers": LAYERS,
            "ffn_dim": INNER, "vocab_size": VOCAB}  # fmt: skip
    tied = LAYERS * (4 * H * H + 4 * H + 2 * H * INNER + INNER + H + 4 * H) + VOCAB * H + 2 * H
    assert catalog.model(xglm).parameters == tied
    exaone = {**SIZES, "model_type": "exaone"}  # transformers 5 writes num_hidden_layers
    assert catalog.model(exaone).layers == LAYERS
    falcon = {**SIZES, "model_type": "falcon", "ffn_hidden_size": 3 * INNER}
    assert catalog.model(falcon).ffn_hidden == 3 * INNER


@pytest.mark.parametrize("kind", ["aria_text", "aria_moe_lm"])
def test_aria_is_a_mixture_in_every_layer(kind: str) -> None:
    own = catalog.model({
        **SIZES, "model_type": kind, "moe_intermediate_size": 16, "moe_num_experts": 8,
        "moe_num_shared_experts": 2, "moe_topk": 3,
    })  # fmt: skip
    mixture = H * 8 + (8 + 2) * 3 * H * 16
    assert own.parameters == LAYERS * (ATTENTION + mixture + 2 * H) + ENDS
    assert own.parameters - own.active_parameters == LAYERS * 5 * 3 * H * 16


def test_a_language_model_within_a_file_of_a_known_type() -> None:
    """Step 3.7 as transformers writes it: a part of its own, and no layers beside it."""
    text = {**SIZES, "model_type": "step3p5", "layer_types": ["full_attention"] * LAYERS,
            "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
            "share_expert_dim": 16, "mlp_layer_types": ["dense"] * 3 + ["sparse"]}  # fmt: skip
    within = catalog.model({"model_type": "step3p7", "text_config": text})
    assert within.parameters == catalog.model(text).parameters


def test_older_and_newer_words_for_layers_that_scan() -> None:
    sizes = {**SIZES, "model_type": "zamba2", "mamba_headdim": 32}
    named = [[kind, kind, "hybrid", kind] for kind in ("mamba", "linear_attention")]
    old, new = (catalog.model({**sizes, "layers_block_type": kinds}) for kinds in named)
    assert old == new
    assert old.mamba_layers == LAYERS


def test_a_pattern_with_mixtures_and_dense_blocks() -> None:
    """A mixture, and a dense block: each counted as what it is (Nemotron-H)."""
    own = {**SIZES, "model_type": "nemotron_h", "n_routed_experts": 8, "num_experts_per_tok": 2,
           "moe_intermediate_size": 16, "mamba_num_heads": 4, "mamba_head_dim": 16,
           "ssm_state_size": 8, "n_groups": 2}  # fmt: skip
    one, other = (catalog.model({**own, "hybrid_override_pattern": p}) for p in ("M*E-", "M*EE"))
    assert (one.moe_layers, other.moe_layers) == (1, 2)
    mixture = H * 8 + 8 * 2 * H * 16
    assert other.parameters - one.parameters == mixture - 2 * H * INNER


def test_minicpm_says_what_it_is_by_its_version() -> None:
    stated = {**SIZES, "model_type": "minicpmv"}
    for version, kind in MINICPM.items():
        assert catalog.model({**stated, "version": version}).family == kind
    assert catalog.model({**stated, "version": 2.6, "model_type": "minicpmo"}).family == "qwen2"
    assert catalog.model({**stated, "hidden_size": 2304}).family == "minicpm"
    assert catalog.model(stated).family == "llama"
    with pytest.raises(InputError, match="unknown model_type 'minicpmv'"):
        catalog.model({**stated, "version": "9.9"})


def test_a_part_without_a_type_is_told_by_its_architecture() -> None:
    """DeepSeek-OCR's language model: no latents, and zeros for what those would be."""
    text = {**SIZES, "architectures": ["DeepseekV2ForCausalLM"], "kv_lora_rank": None,
            "q_lora_rank": None, "qk_nope_head_dim": 0, "qk_rope_head_dim": 0, "v_head_dim": 0,
            "first_k_dense_replace": 1, "n_routed_experts": 8, "n_shared_experts": 2,
            "num_experts_per_tok": 3, "moe_intermediate_size": 16}  # fmt: skip
    own = catalog.model({"model_type": "deepseek_vl_v2", "language_config": text})
    mixture = H * 8 + (8 + 2) * 3 * H * 16
    assert own.parameters == LAYERS * (ATTENTION + 2 * H) + BLOCK + 3 * mixture + ENDS


SEEN: dict[str, Any] = {
    "num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64,
    "patch_size": 14,
}  # fmt: skip


@pytest.mark.parametrize(
    ("own", "outer", "patches", "tokens"),
    [
        ({"model_type": "pixtral", "image_size": 1540}, {"spatial_merge_size": 2}, 12100, 3025),
        ({"merge_kernel_size": [2, 2]}, {}, 1024, 256),
        ({"merge_size": 2}, {}, 1024, 256),
        ({"image_size": 364}, {"scale_factor": 2}, 676, 169),  # Idefics3
        ({"patch_size": 16, "image_size": 512}, {"downsample_factor": 2}, 1024, 256),
        ({"image_size": 980}, {"query_num": 64, "image_size": 448}, 1024, 64),  # MiniCPM-V
        ({"image_size": 980}, {"downsample_mode": "16x", "image_size": 448}, 1024, 64),
        ({"model_type": "step3p5_vision", "image_size": 728}, {}, 2704, 169),
        ({"hidden_stride": 2}, {}, 1024, 256),  # Ovis2
        ({"default_output_length": 280, "pooling_kernel_size": 3}, {}, 2520, 280),  # Gemma 4
        ({"image_size": 2016, "img_token_compression_config": {"spatial_merge_size": 2}}, {},
         20736, 5184),  # MiniMax-M3
    ],
)  # fmt: skip
def test_tokens_of_an_image(
    own: dict[str, Any], outer: dict[str, Any], patches: int, tokens: int
) -> None:
    text = {**SIZES, "model_type": "qwen3"}
    found = catalog.model(
        {"model_type": "llava", "text_config": text, "vision_config": {**SEEN, **own}, **outer}
    ).tower
    assert found is not None
    assert found.tokens == tokens
    assert found.patches - 1 == patches  # and a class token


def test_towers_whose_blocks_are_gated_or_as_wide_as_the_projector() -> None:
    text = {**SIZES, "model_type": "qwen3"}
    towers = {
        kind: catalog.model({
            "model_type": "llava", "text_config": text,
            "vision_config": {**SEEN, "model_type": kind, "out_hidden_size": 48},
        }).tower
        for kind in ("pixtral", "glm4v_vision", "clip_vision_model")
    }  # fmt: skip
    found = {kind: (one.gated, one.ffn_hidden) for kind, one in towers.items() if one}
    assert found == {
        "pixtral": (True, 64), "glm4v_vision": (True, 48), "clip_vision_model": (False, 64),
    }  # fmt: skip


def test_kimi_k2_5_states_its_tower_in_words_of_its_own() -> None:
    own = {f"vt_{key}": value for key, value in SEEN.items() if key != "patch_size"}
    content = {"model_type": "kimi_k25", "text_config": {**SIZES, "model_type": "qwen3"},
               "vision_config": {**own, "patch_size": 14, "merge_kernel_size": [2, 2]}}  # fmt: skip
    found = catalog.model(content).tower
    assert found is not None
    assert (found.layers, found.hidden, found.ffn_hidden, found.tokens) == (2, 32, 64, 256)


BARE: dict[str, Any] = {"n_heads_in_group": 2, "no_op": False}
NAS: dict[str, Any] = {
    **SIZES, "model_type": "nemotron-nas", "intermediate_size": None, "head_dim": None,
    "num_key_value_heads": None, "hidden_size": 768,
    "block_configs": [
        {"attention": BARE, "ffn": {"ffn_mult": 3.0}},
        {"attention": {"no_op": True}, "ffn": {"ffn_mult": 1.0}},
        {"attention": BARE, "ffn": {"ffn_mult": 1.0}},
        {"attention": {"no_op": True}, "ffn": {"ffn_mult": None, "no_op": True}},
    ],
}  # fmt: skip


def test_layers_without_attention_and_of_several_widths() -> None:
    """Four heads of 192, two to a key head; inner widths 2/3 of 3 and 1 times 768, rounded up to
    multiples of 256; one layer has nothing at all."""
    own = catalog.model(NAS)
    assert (own.kv_heads, own.bare_layers, own.attention_blocks, own.ffn_blocks) == (2, 2, 2, 3)
    assert own.ffn_widths == "1 x 1536, 2 x 512"
    attention = 2 * 768 * 768 + 2 * 768 * 384 + 768
    blocks = 3 * 768 * (1536 + 2 * 512) + 3 * 768
    assert own.parameters == 2 * attention + blocks + 2 * VOCAB * 768 + 768


@pytest.mark.parametrize(
    ("block", "says"),
    [
        ({"attention": {**BARE, "n_heads_in_group": 4}}, "'n_heads_in_group' must be the same"),
        ({"attention": {**BARE, "replace_with_linear": True}}, "one matrix or sparse"),
        ({"attention": {**BARE, "window_length": 8}}, "blocks with windows"),
    ],
)
def test_blocks_of_other_kinds_are_refused(block: dict[str, Any], says: str) -> None:
    changed = [{**NAS["block_configs"][0], **block}, *NAS["block_configs"][1:]]
    with pytest.raises(InputError, match=says):
        catalog.model({**NAS, "block_configs": changed})


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"bare_layers": 4}, "leave none of 4 layers attention"),
        ({"ffn_widths": "5 x 96"}, "must be of 4 layers at most"),
        ({"ffn_widths": "3 x 64"}, "ffn_hidden 96 the widest"),
        ({"ffn_widths": "wide"}, "ffn_widths must be as"),
        ({"bare_layers": 1, "sliding_window": 8}, "beside sliding_window are not predicted"),
    ],
)
def test_what_contradicts_itself_is_refused(more: dict[str, Any], says: str) -> None:
    plain = {"name": "x", "layers": 4, "hidden": H, "heads": 4, "kv_heads": 2, "ffn_hidden": INNER,
             "vocab": VOCAB}  # fmt: skip
    with pytest.raises(InputError, match=says):
        catalog.model({**plain, **more})


def test_nemotron_super_has_its_stated_size() -> None:
    own = catalog.model("nvidia/Llama-3_3-Nemotron-Super-49B-v1_5")
    assert (own.layers, own.attention_blocks) == (80, 49)
    assert own.parameters / 1e9 == pytest.approx(49.9, abs=0.05)


GEMMA3N: dict[str, Any] = {
    **SIZES, "model_type": "gemma3n_text", "num_hidden_layers": 5, "intermediate_size": [INNER] * 5,
    "num_kv_shared_layers": 2, "hidden_size_per_layer_input": 8, "laurel_rank": 16,
    "altup_num_inputs": 4, "sliding_window": 8,
}  # fmt: skip


def test_gemma_3n_has_copies_of_its_residual_stream() -> None:
    """Of each layer: a router of four columns, predictions of 16 and corrections of 4 from these, a
    norm and a scale; a product of rank 16 and its norm; five norms more; its own input's gate and
    projection. At the ends three products of the width each. The last two layers borrow keys."""
    own = catalog.model(GEMMA3N)
    copies = 4 * H + 4 * 16 + 4 * 4 + 2 * H
    each = BLOCK + 2 * H * 128 + copies + 2 * H * 16 + H + 2 * H * 8 + 3 * H
    ends = 6 * H * H + VOCAB * H + H + VOCAB * 5 * 8 + H * 5 * 8
    assert own.parameters == 5 * each + 3 * 2 * H * 64 + ends
    assert (own.borrowing_layers, own.sliding_pattern) == (2, "4 local : 1 global")
    with pytest.raises(InputError, match="'intermediate_size' differs among layers"):
        catalog.model({**GEMMA3N, "intermediate_size": [INNER] * 4 + [H]})


@pytest.mark.parametrize(("name", "stated"), [("gemma-3n-e4b", 6.84), ("gemma-3n-e2b", 4.44)])
def test_gemma_3n_has_its_stated_size(name: str, stated: float) -> None:
    """7.85 and 5.44 billion with encoders of images and sound of 1.0."""
    assert catalog.model(name).parameters / 1e9 == pytest.approx(stated, abs=0.01)


def test_windows_beside_delta_rules() -> None:
    """Of six layers three have a rule, two a window, one sees all (Lara 4 Mini)."""
    kinds = ["linear_attention", "sliding_attention"] * 2 + ["linear_attention", "full_attention"]
    own = {**SIZES, "model_type": "lara_mini", "num_hidden_layers": 6, "layer_types": kinds,
           "sliding_window": 8, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
           "linear_key_head_dim": 16, "linear_value_head_dim": 16}  # fmt: skip
    model = catalog.model(own)
    assert (model.delta_layers, model.windowed_share) == (3, pytest.approx(2 / 3))
    assert not model.output_gate
    with pytest.raises(InputError, match="'layer_types' must list linear_attention or full"):
        catalog.model({**own, "model_type": "qwen3_next"})


def test_mistral_large_4_chooses_keys_from_the_residual_stream() -> None:
    sizes = {**SIZES, "model_type": "mistral_large4_text", "kv_lora_rank": 16,
             "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16, "index_topk": 8,
             "index_n_heads": 2, "index_head_dim": 4, "n_routed_experts": 8, "n_shared_experts": 1,
             "num_experts_per_tok": 2, "moe_intermediate_size": 16}  # fmt: skip
    own = catalog.model({**sizes, "kv_source_layers": [0, 1, 2, 3]})
    index = H * 8 + H * (4 + 2)
    attention = H * 4 * 24 + H * 24 + 16 * 4 * 32 + 4 * 16 * H + 16 + index + 2 * H
    mixture = H * 8 + 9 * 3 * H * 16
    assert own.parameters == 4 * attention + BLOCK + 3 * mixture + ENDS
    with pytest.raises(InputError, match="layers that share latents"):
        catalog.model({**sizes, "kv_source_layers": [0, 0, 2, 2]})


def test_ling_2_5_has_its_stated_size() -> None:
    own = catalog.model("inclusionAI/Ring-2.5-1T")
    assert (own.attention_blocks, own.delta_layers) == (10, 70)
    assert own.parameters / 1e12 == pytest.approx(1.0, abs=0.02)
    assert own.active_parameters / 1e9 == pytest.approx(63, abs=1)

"""What files leave out, as their configuration classes have it, and files in their makers' words;
counts as published."""

from __future__ import annotations

from typing import Any

import pytest

from predictor import catalog
from predictor.errors import InputError

FILES: dict[str, tuple[dict[str, Any], float]] = {
    "gpt-neo-2.7b": ({
        "model_type": "gpt_neo", "hidden_size": 2560, "num_layers": 32, "num_heads": 20,
        "intermediate_size": None, "vocab_size": 50257, "max_position_embeddings": 2048,
    }, 2.651e9),
    "starcoder": ({
        "model_type": "gpt_bigcode", "n_embd": 6144, "n_layer": 40, "n_head": 48, "n_inner": 24576,
        "n_positions": 8192, "multi_query": True, "vocab_size": 49152,
    }, 15.52e9),
    "starcoder2-3b": ({
        "model_type": "starcoder2", "hidden_size": 3072, "num_hidden_layers": 30, "use_bias": True,
        "num_attention_heads": 24, "intermediate_size": 12288, "vocab_size": 49152,
    }, 3.030e9),
    "llava-next-mistral-7b, without its tower": ({
        "model_type": "llava_next", "text_config": {
            "model_type": "mistral", "intermediate_size": 14336, "sliding_window": None,
            "vocab_size": 32064,
    }}, 7.242e9),
    "pixtral-12b, without its tower": ({
        "model_type": "llava", "text_config": {
            "model_type": "mistral", "head_dim": 128, "hidden_size": 5120,
            "intermediate_size": 14336, "num_hidden_layers": 40, "sliding_window": None,
            "vocab_size": 131072,
    }}, 12.25e9),
    "falcon-40b before July 2023": ({
        "model_type": "RefinedWeb", "hidden_size": 8192, "n_layer": 60, "n_head": 128,
        "n_head_kv": 8, "parallel_attn": True, "bias": False, "vocab_size": 65024,
    }, 41.30e9),
    "llama-2-70b's params.json": ({
        "dim": 8192, "multiple_of": 4096, "ffn_dim_multiplier": 1.3, "n_heads": 64, "n_kv_heads": 8,
        "n_layers": 80, "norm_eps": 1e-05, "vocab_size": -1,
    }, 68.98e9),
    "mistral-nemo's params.json": ({
        "dim": 5120, "n_layers": 40, "head_dim": 128, "hidden_dim": 14336, "n_heads": 32,
        "n_kv_heads": 8, "norm_eps": 1e-05, "vocab_size": 131072, "rope_theta": 1000000.0,
    }, 12.25e9),
    "mixtral-8x7b's params.json": ({
        "dim": 4096, "n_layers": 32, "head_dim": 128, "hidden_dim": 14336, "n_heads": 32,
        "n_kv_heads": 8, "norm_eps": 1e-05, "vocab_size": 32000,
        "moe": {"num_experts": 8, "num_experts_per_tok": 2},
    }, 46.70e9),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_files_that_leave_keys_out_have_the_parameters_that_are_published(name: str) -> None:
    content, parameters = FILES[name]
    assert catalog.model(content).parameters == pytest.approx(parameters, rel=0.002)


def test_windows_that_a_file_does_not_say_are_its_class_s() -> None:
    """Mistral's class has windows of 4,096 and eight heads of keys; Qwen2's uses none unless told;
    a class's number of heads that does not divide the file's own is not taken."""
    sizes = {"num_hidden_layers": 4, "hidden_size": 256, "num_attention_heads": 8,
             "intermediate_size": 512, "vocab_size": 1000}  # fmt: skip
    mistral = catalog.model({"model_type": "mistral", **sizes})
    assert (mistral.sliding_window, mistral.kv_heads) == (4096, 8)
    assert catalog.model({"model_type": "mistral", **sizes, "sliding_window": None}).kv_heads == 8
    qwen = catalog.model({"model_type": "qwen2", **sizes, "sliding_window": 4096})
    assert (qwen.sliding_pattern, qwen.kv_heads) == ("", 8)


def test_a_file_of_its_own_must_state_its_sizes() -> None:
    with pytest.raises(InputError, match="num_hidden_layers"):
        catalog.model({"model_type": "mistral", "vocab_size": 1000})


def test_a_params_json_of_another_model_is_refused_by_its_key() -> None:
    content = {"dim": 512, "n_layers": 2, "n_heads": 4, "hidden_dim": 1024, "vocab_size": 100}
    with pytest.raises(InputError, match="'vision_encoder' of a params"):
        catalog.model({**content, "vision_encoder": {"hidden_size": 64}})


def test_a_tower_that_states_no_type_has_the_whole_s() -> None:
    """Qwen2.5-VL 7B's published file: 676 million parameters in gated blocks, none for a class
    token (report, section 2.1)."""
    vision = {"depth": 32, "hidden_act": "silu", "hidden_size": 1280, "intermediate_size": 3420,
              "num_heads": 16, "in_chans": 3, "out_hidden_size": 3584, "patch_size": 14,
              "spatial_merge_size": 2, "temporal_patch_size": 2}  # fmt: skip
    text = {"num_hidden_layers": 28, "hidden_size": 3584, "num_attention_heads": 28,
            "num_key_value_heads": 4, "intermediate_size": 18944, "vocab_size": 152064}  # fmt: skip
    found = catalog.model({"model_type": "qwen2_5_vl", **text, "vision_config": vision}).tower
    assert found is not None
    assert (found.gated, found.patches, found.tokens) == (True, 1024, 256)


@pytest.mark.parametrize(
    ("content", "layers", "hidden", "ffn_hidden", "patches"),
    [
        ({"model_type": "llava",  # Pixtral 12B
          "vision_config": {"model_type": "pixtral", "image_size": 1024, "patch_size": 16}},
         24, 1024, 4096, 64**2 + 1),
        ({"model_type": "qwen2_vl", "vision_config": {"hidden_size": 3584, "in_chans": 3}},
         32, 1280, 5120, 1024),
        ({"model_type": "internvl", "vision_config": {"model_type": "internvl_vision"}},
         24, 1024, 4096, 32**2 + 1),
        ({"model_type": "llava", "vision_config": {  # what is stated by another word counts
            "model_type": "clip_vision_model", "depth": 3, "mlp_ratio": 2, "hidden_size": 64}},
         3, 64, 128, 7**2 + 1),
    ],
)  # fmt: skip
def test_towers_that_leave_their_sizes_out_have_their_classes(
    content: dict[str, Any], layers: int, hidden: int, ffn_hidden: int, patches: int
) -> None:
    """They were left out whole, without a word."""
    text = {"model_type": "qwen2", "num_hidden_layers": 2, "hidden_size": 64,
            "num_attention_heads": 4, "intermediate_size": 128, "vocab_size": 100}  # fmt: skip
    found = catalog.model({**content, "text_config": text}).tower
    assert found is not None
    assert (found.layers, found.hidden) == (layers, hidden)
    assert (found.ffn_hidden, found.patches) == (ffn_hidden, patches)


def test_llama_guard_4_is_a_dense_llama_4() -> None:
    """12 billion parameters, .87 of them the tower's: no mixture, said by zeros."""
    text = {"model_type": "llama4_text", "hidden_size": 5120, "intermediate_size": 8192,
            "intermediate_size_mlp": 8192, "num_attention_heads": 40, "num_hidden_layers": 48,
            "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 202048, "moe_layers": [],
            "num_local_experts": 0, "num_experts_per_tok": 0,
            "interleave_moe_layer_step": 0}  # fmt: skip
    model = catalog.model({"model_type": "llama4", "text_config": text})
    assert model.parameters == pytest.approx(11.13e9, rel=0.002)
    assert not model.is_moe

"""Second towers, as `config.json` states them; their arithmetic by hand."""

from __future__ import annotations

from typing import Any

import pytest

from predictor import catalog
from predictor.models.encoder import around_layers, encoder, tower_parameters
from predictor.models.tower import Tower
from predictor.plans.training import TrainingPlan
from predictor.work.training import step_operators

TEXT: dict[str, Any] = {
    "num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "head_dim": 32,
    "num_key_value_heads": 2, "intermediate_size": 96, "vocab_size": 100,
}  # fmt: skip
LLAMA = {**TEXT, "model_type": "llama"}


def tower(**content: Any) -> Tower:
    found = catalog.model(content).tower
    assert found is not None
    return found


def test_qwen_states_its_language_model_flat_and_leaves_the_size_open() -> None:
    vision = {"depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16,
              "out_hidden_size": 64, "patch_size": 14, "spatial_merge_size": 2,
              "temporal_patch_size": 2, "model_type": "qwen2_5_vl"}  # fmt: skip
    found = tower(**TEXT, model_type="qwen2_5_vl", vision_config=vision)
    assert (found.layers, found.hidden, found.patches, found.tokens) == (32, 1280, 1024, 256)
    assert (found.gated, found.merged, found.patch_width) == (True, 4, 3 * 2 * 14 * 14)
    old = {"depth": 32, "embed_dim": 1280, "hidden_size": 3584, "mlp_ratio": 4, "num_heads": 16,
           "patch_size": 14, "spatial_merge_size": 2, "model_type": "qwen2_vl"}  # fmt: skip
    found = tower(**TEXT, model_type="qwen2_vl", vision_config=old)
    assert (found.hidden, found.ffn_hidden) == (1280, 5120)


def test_internvl_shuffles_pixels_and_has_a_class_token() -> None:
    vision = {"num_hidden_layers": 45, "hidden_size": 3200, "intermediate_size": 12800,
              "num_attention_heads": 25, "patch_size": 14, "image_size": 448,
              "model_type": "intern_vit_6b"}  # fmt: skip
    found = tower(
        model_type="internvl_chat", llm_config=LLAMA, vision_config=vision, downsample_ratio=0.5
    )
    # METHOD of InternVL: 448 px, 1,024 patches and a class token, 256 tokens
    assert (found.patches, found.tokens, found.merged) == (1025, 256, 4)
    assert 5.4e9 < tower_parameters(found, 6144) < 6.1e9  # "InternViT-6B"


def test_llava_gemma_and_llama4() -> None:
    clip = {"num_hidden_layers": 24, "hidden_size": 1024, "intermediate_size": 4096,
            "num_attention_heads": 16, "patch_size": 14, "image_size": 336,
            "model_type": "clip_vision_model"}  # fmt: skip
    found = tower(model_type="llava", text_config=LLAMA, vision_config=clip)
    assert (found.patches, found.tokens) == (577, 576)
    siglip = {**clip, "image_size": 896, "model_type": "siglip_vision_model"}
    found = tower(
        model_type="gemma3", text_config=LLAMA, vision_config=siglip, mm_tokens_per_image=256
    )
    assert (found.patches, found.tokens, found.merged) == (4096, 256, 16)
    own = {**clip, "pixel_shuffle_ratio": 0.5, "model_type": "llama4_vision_model"}
    assert tower(model_type="llama4", text_config=LLAMA, vision_config=own).tokens == 144


def test_sound() -> None:
    audio = {"encoder_layers": 32, "d_model": 1280, "encoder_attention_heads": 20,
             "encoder_ffn_dim": 5120, "max_source_positions": 1500, "num_mel_bins": 128,
             "model_type": "qwen2_audio_encoder"}  # fmt: skip
    found = tower(model_type="qwen2_audio", text_config=LLAMA, audio_config=audio)
    assert (found.kind, found.layers, found.patches, found.tokens) == ("audio", 32, 1500, 750)


def test_text_alone_has_none_and_half_a_description_is_left() -> None:
    assert catalog.model(LLAMA).tower is None
    half = {"model_type": "llava", "text_config": LLAMA, "vision_config": {"hidden_size": 8}}
    assert catalog.model(half).tower is None


def test_arithmetic_of_a_layer_is_that_of_a_vision_transformer() -> None:
    """v (24 h^2 n + 4 n^2 h) of v tiles of n patches (METHOD: two products of attention over all
    pairs, not half of them; queries, keys, values, out and an MLP of four times the width)."""
    one = Tower("vision", 10, 512, 8, 2048, patches=1025, tokens=256, patch_width=588)
    plan = TrainingPlan(
        tp=1.0, pp=1.0, dp=1.0, micro_batch=3.0, global_batch=3.0, seq_len=1025.0, dropout=False
    )
    listed = step_operators(encoder(one), plan)
    flop = sum(
        o.flop * o.count
        for o in listed
        if o.phase == "forward" and o.module in ("layer", "dense") and o.op != "elementwise"
    )
    n, h = 1025.0, 512.0
    products = sum(
        o.flop * o.count
        for o in listed
        if o.phase == "forward" and (o.op == "gemm" or o.core) and o.module in ("layer", "dense")
    )
    assert products == pytest.approx(3.0 * (24 * h * h * n + 4 * n * n * h), rel=1e-3)
    assert flop >= products


def test_what_is_around_the_layers_counts_as_its_arithmetic() -> None:
    one = Tower("vision", 10, 512, 8, 2048, patches=1024, tokens=256, patch_width=588, merged=4)
    layer = 1024 * 12 * 512**2
    projector = 256 * (4 * 512 * 1024 + 1024 * 1024)
    assert around_layers(one, 1024) == pytest.approx((1024 * 588 * 512 + projector) / layer)


def test_a_patch_of_one_picture_has_three_colours() -> None:
    """CLIP ViT-L/14 at 336 pixels (openai/clip-vit-large-patch14-336): 24 x 24 patches and a class
    token, of 3 x 14 x 14 numbers each."""
    vision = {"hidden_size": 1024, "image_size": 336, "intermediate_size": 4096,
              "model_type": "clip_vision_model", "num_attention_heads": 16,
              "num_hidden_layers": 24, "patch_size": 14}  # fmt: skip
    found = tower(model_type="llava", text_config=LLAMA, vision_config=vision)
    assert (found.patches, found.patch_width) == (24 * 24 + 1, 3 * 14 * 14)

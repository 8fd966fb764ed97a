"""Families of 2025 and 2026, as their `config.json` states them: what is read, what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from predictor import catalog
from predictor.catalog.model_names import words
from predictor.errors import InputError
from predictor.models import Model
from predictor.models.families import NOT_READ, TYPES

DENSE: dict[str, Any] = {
    "num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "head_dim": 32,
    "num_key_value_heads": 2, "intermediate_size": 96, "vocab_size": 100,
}  # fmt: skip


def test_the_language_model_of_one_that_sees_images() -> None:
    text = {**DENSE, "model_type": "qwen3_vl_moe_text", "num_experts": 8, "num_experts_per_tok": 2,
            "moe_intermediate_size": 16}  # fmt: skip
    found = catalog.model({"model_type": "qwen3_vl_moe", "text_config": text})
    assert (found.layers, found.num_experts, found.expert_ffn_hidden) == (4, 8, 16)


def test_a_mixture_whose_only_width_is_that_of_an_expert() -> None:
    own = {**DENSE, "model_type": "minimax_m2", "num_local_experts": 8, "num_experts_per_tok": 2}
    found = catalog.model(own)
    # attention: q 64 x 128, k and v 64 x 64 each, o 128 x 64; experts: 8 x 3 x 64 x 96; router
    assert found.expert_ffn_hidden == 96
    layer = 64 * 128 + 2 * 64 * 64 + 128 * 64 + 8 * 3 * 64 * 96 + 64 * 8
    assert found.parameters == pytest.approx(4 * layer + 2 * 100 * 64, rel=0.01)


def test_names_of_experts_that_families_have_of_their_own() -> None:
    own = {**DENSE, "model_type": "ernie4_5_moe", "moe_num_experts": 8, "moe_k": 2,
           "moe_intermediate_size": 16, "moe_num_shared_experts": 1,
           "moe_layer_start_index": 1}  # fmt: skip
    found = catalog.model(own)
    assert (found.num_experts, found.top_k, found.dense_layers, found.shared_experts) == (
        8,
        2,
        1,
        1,
    )


def test_windows_written_as_letters() -> None:
    own = {**DENSE, "model_type": "exaone4", "sliding_window": 32, "sliding_window_pattern": "LLLG"}
    assert catalog.model(own).windowed_share == pytest.approx(0.75)


@pytest.mark.parametrize("kind", NOT_READ)
def test_what_is_not_read_is_refused_by_what_is_missing(kind: str) -> None:
    assert kind not in TYPES
    with pytest.raises(InputError, match="is not predicted: it has"):
        catalog.model({**DENSE, "model_type": kind})


def test_blocks_listed_by_name_are_those_of_a_pattern() -> None:
    own = {**DENSE, "model_type": "nemotron_h", "mamba_num_heads": 4, "mamba_head_dim": 16,
           "ssm_state_size": 8, "n_groups": 2}  # fmt: skip
    del own["num_hidden_layers"]
    named = {"layers_block_type": ["mamba", "mlp", "mamba", "attention", "mlp"]}
    found = catalog.model({**own, **named})
    same = catalog.model({**own, "hybrid_override_pattern": "M-M*-"})
    assert (found.layers, found.mamba_layers, found.attention_layers) == (5, 2, 1)
    assert found.parameters == same.parameters
    with pytest.raises(InputError, match="'layers_block_type' must consist of a list of mamba"):
        catalog.model({**own, "layers_block_type": ["mamba", "rwkv"]})


def test_layers_of_a_mixer_and_a_feed_forward_block_are_two_blocks() -> None:
    own = {**DENSE, "model_type": "granitemoehybrid", "mamba_n_heads": 4, "mamba_d_head": 32,
           "mamba_d_state": 8, "mamba_n_groups": 1, "num_local_experts": 0,
           "shared_intermediate_size": 48, "tie_word_embeddings": True,
           "layer_types": ["mamba", "mamba", "attention", "mamba"]}  # fmt: skip
    found = catalog.model(own)
    assert (found.layers, found.mamba_layers, found.attention_layers) == (8, 3, 1)
    # state space: gate and channels 2 x 128, B and C 2 x 8, 4 steps, from 64; 128 back
    mamba, attention = 64 * (256 + 16 + 4) + 128 * 64, 64 * (128 + 2 * 64) + 128 * 64
    assert found.matrix_parameters() == 3 * mamba + attention + 4 * 3 * 64 * 48
    plain = catalog.model({**own, "layer_types": ["attention"] * 4})
    assert (plain.layers, plain.mamba_layers, plain.positions) == (4, 0, "rope")


def test_windows_listed_by_layer() -> None:
    kinds = (["sliding_attention"] * 3 + ["full_attention"]) * 2
    own = {**DENSE, "model_type": "olmo3", "num_hidden_layers": 8, "sliding_window": 32}
    assert catalog.model({**own, "layer_types": kinds}).windowed_share == pytest.approx(0.75)


def test_names_of_what_is_not_read_are_refused_by_what_is_missing() -> None:
    for kind, names in words()["not_read"].items():
        assert kind in NOT_READ
        for name in names:
            with pytest.raises(InputError, match="is not predicted: it has"):
                catalog.model(f"org/{name}-Instruct-FP8")


def config(kind: str, layers: int, hidden: int, heads: int, **more: object) -> dict[str, object]:
    sizes = {"num_hidden_layers": layers, "hidden_size": hidden, "num_attention_heads": heads}
    return {"model_type": kind, **sizes, **more}


STATED = [
    # Phi-3.5-MoE, Solar Open 100B, CWM, MiniCPM3-4B, Youtu-LLM-2B, InternLM3-8B, Persimmon-8B: the
    # defaults of their classes in transformers 5.23.0; DBRX, K-EXAONE: published configurations.
    (config("phimoe", 32, 4096, 32, num_key_value_heads=8, intermediate_size=6400,
            vocab_size=32064, num_local_experts=16, num_experts_per_tok=2), 41.9, 6.6),
    (config("solar_open", 48, 4096, 64, num_key_value_heads=8, head_dim=128, vocab_size=196608,
            moe_intermediate_size=1280, n_routed_experts=128, n_shared_experts=1,
            num_experts_per_tok=8), 102.6, 12.0),
    (config("cwm", 64, 6144, 48, num_key_value_heads=8, head_dim=128, intermediate_size=21504,
            vocab_size=128256), 32.6, 32.6),
    (config("minicpm3", 62, 2560, 40, intermediate_size=6400, vocab_size=73448,
            q_lora_rank=768, kv_lora_rank=256, qk_nope_head_dim=64, qk_rope_head_dim=32,
            v_head_dim=64, tie_word_embeddings=True), 4.07, 4.07),
    (config("internlm3", 48, 4096, 32, num_key_value_heads=2, head_dim=128,
            intermediate_size=10240, vocab_size=128512), 8.8, 8.8),
    (config("persimmon", 36, 4096, 64, intermediate_size=16384, vocab_size=262144), 9.4, 9.4),
    ({"model_type": "dbrx", "d_model": 6144, "n_heads": 48, "n_layers": 40, "vocab_size": 100352,
      "attn_config": {"kv_n_heads": 8},
      "ffn_config": {"ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4}},
     132.0, 36.0),
    (config("exaone_moe", 48, 6144, 64, num_key_value_heads=8, head_dim=128,
            intermediate_size=18432, moe_intermediate_size=2048, num_experts=128,
            num_experts_per_tok=8, num_shared_experts=1, first_k_dense_replace=1,
            vocab_size=153600), 236.0, 23.0),
]  # fmt: skip


@pytest.mark.parametrize(("own", "total", "active"), STATED, ids=lambda v: str(v)[:40])
def test_counts_of_families_are_those_stated(
    own: dict[str, object], total: float, active: float
) -> None:
    model = catalog.model(own)
    assert model.parameters / 1e9 == pytest.approx(total, rel=0.015)
    touched = model.active_parameters - model.embedding_parameters
    assert any(
        n / 1e9 == pytest.approx(active, rel=0.03) for n in (touched, model.active_parameters)
    )


@pytest.mark.parametrize("kind", ["xlm-roberta", "pegasus", "bitnet", "zamba"])
def test_further_types_are_refused_by_what_they_have(kind: str) -> None:
    with pytest.raises(InputError, match="is not predicted: it has"):
        catalog.model(config(kind, 4, 64, 4, vocab_size=100))


KIMI: dict[str, Any] = {
    "model_type": "kimi_linear", "num_hidden_layers": 27, "hidden_size": 2304, "head_dim": 72,
    "num_attention_heads": 32, "num_key_value_heads": 32, "intermediate_size": 9216,
    "vocab_size": 163840, "kv_lora_rank": 512, "q_lora_rank": None, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "v_head_dim": 128, "mla_use_nope": True, "num_experts": 256,
    "num_experts_per_token": 8, "num_shared_experts": 1, "moe_intermediate_size": 1024,
    "first_k_dense_replace": 1, "moe_layer_freq": 1, "tie_word_embeddings": False,
    "linear_attn_config": {
        "full_attn_layers": [4, 8, 12, 16, 20, 24, 27],
        "kda_layers": [at for at in range(1, 27) if at % 4], "head_dim": 128, "num_heads": 32,
        "short_conv_kernel_size": 4,
    },
}  # fmt: skip
"""moonshotai/Kimi-Linear-48B-A3B-Instruct, `config.json`, as public code repeats it (2026)."""


def unnamed(model: Model) -> Model:
    return replace(model, name="", family="", max_context=0)


def test_a_configuration_of_kimi_linear_is_the_catalogs_model() -> None:
    assert unnamed(catalog.model(KIMI)) == unnamed(catalog.model("kimi-linear-48b-a3b"))


def test_a_configuration_of_kimi_k3_is_the_catalogs_model() -> None:
    """moonshotai/Kimi-K3, `config.json` of 2026-07: gates at once, experts on narrower tokens."""
    full = [*range(4, 93, 4), 93]
    rules = [at for at in range(1, 94) if at not in full]
    text = {
        **KIMI, "num_hidden_layers": 93, "hidden_size": 7168, "num_attention_heads": 96,
        "num_key_value_heads": 96, "intermediate_size": 33792, "q_lora_rank": 1536,
        "mla_use_output_gate": True, "num_experts": 896, "num_experts_per_token": 16,
        "num_shared_experts": 2, "moe_intermediate_size": 3072, "attn_res_block_size": 12,
        "routed_expert_hidden_size": 3584,
        "linear_attn_config": {"full_attn_layers": full, "kda_layers": rules, "head_dim": 128,
                               "num_heads": 96, "use_full_rank_gate": True},
    }  # fmt: skip
    found = catalog.model({"model_type": "kimi_k3", "text_config": text})
    assert unnamed(found) == unnamed(catalog.model("kimi-k3"))
    # Layers of delta rules: q, k, v, gate and output, decays through 128 channels, steps, kernels.
    width = 96 * 128
    rule = 5 * 7168 * width + 128 * (7168 + width) + 7168 * 96 + 4 * 3 * width
    assert (found.delta_layers, found.delta_matrix) == (69, rule)


def test_a_refused_model_is_refused_whatever_its_language_model_is_called() -> None:
    text = {**DENSE, "model_type": "llama"}
    with pytest.raises(InputError, match=r"mllama.*layers that attend to images"):
        catalog.model({"model_type": "mllama_text_model", "text_config": text})


@pytest.mark.parametrize("lists", [{"kda_layers": [1, 2]}, {"full_attn_layers": [1, 27]}])
def test_lists_that_do_not_name_each_layer_once_are_refused(lists: dict[str, Any]) -> None:
    own = {**KIMI, "linear_attn_config": {**KIMI["linear_attn_config"], **lists}}
    with pytest.raises(InputError, match="name each of the 27 layers once"):
        catalog.model(own)

"""What a `quantization_config` says is what is served: types, exempt modules, the cache."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from predictor import catalog
from predictor.catalog.forms import parse
from predictor.catalog.specs import ServingPlanSpec, TrainingPlanSpec
from predictor.errors import InputError
from predictor.models import Model, narrowing
from predictor.serving.completion import ServingRequest, complete_serving
from predictor.timing.calibration import Calibration
from predictor.training.completion import complete_training
from tests.predictor.catalog.test_catalog import LLAMA_CONFIG

DEEPSEEK: dict[str, Any] = {
    "model_type": "deepseek_v3", "hidden_size": 7168, "intermediate_size": 18432,
    "moe_intermediate_size": 2048, "num_hidden_layers": 61, "num_attention_heads": 128,
    "num_key_value_heads": 128, "n_shared_experts": 1, "n_routed_experts": 256,
    "num_experts_per_tok": 8, "first_k_dense_replace": 3, "q_lora_rank": 1536,
    "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128,
    "vocab_size": 129280, "num_nextn_predict_layers": 1,
}  # fmt: skip

GPT_OSS: dict[str, Any] = {
    "model_type": "gpt_oss", "hidden_size": 2880, "intermediate_size": 2880,
    "num_hidden_layers": 24, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64,
    "num_local_experts": 32, "num_experts_per_tok": 4, "vocab_size": 201088, "sliding_window": 128,
}  # fmt: skip


def group(
    weights: dict[str, Any], inputs: dict[str, Any] | None, targets: list[str] | None = None
) -> dict[str, Any]:
    return {"weights": weights, "input_activations": inputs, "targets": targets or ["Linear"]}


def compressed(*groups: dict[str, Any], **beside: Any) -> dict[str, Any]:
    named = {f"group_{n}": one for n, one in enumerate(groups)}
    return {"quant_method": "compressed-tensors", "config_groups": named, "ignore": ["lm_head"],
            "quantization_status": "compressed", **beside}  # fmt: skip


INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128, "symmetric": True}
INT8 = {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True}
FP8 = {"num_bits": 8, "type": "float", "strategy": "channel"}
FP4 = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}
TOKENS8 = {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True}
TOKENS_INT8 = {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True}

KINDS: dict[str, tuple[dict[str, Any], str]] = {
    "fp8 by block": (
        {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
         "weight_block_size": [128, 128]}, "fp8_block"),
    "fp8 by tensor": (
        {"quant_method": "fp8", "activation_scheme": "static", "ignored_layers": ["lm_head"]},
        "fp8"),
    "fbgemm": (
        {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0,
         "modules_to_not_convert": ["lm_head"]}, "fp8"),
    "modelopt fp8": (
        {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": None,
         "ignore": ["lm_head"], "producer": {"name": "modelopt", "version": "0.29"}}, "fp8"),
    "modelopt nvfp4": (
        {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"],
         "config_groups": {"group_0": group(FP4, FP4)}}, "nvfp4"),
    "modelopt's own file": (
        {"quantization": {"quant_algo": "NVFP4", "group_size": 16,
                          "exclude_modules": ["lm_head"]}}, "nvfp4"),
    "awq": (
        {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm",
         "zero_point": True}, "int4_wo"),
    "gptq 4": (
        {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": True, "sym": True},
        "int4_wo"),
    "gptq 8": ({"quant_method": "gptq", "bits": 8, "group_size": 32}, "int8_wo"),
    "autoround": ({"quant_method": "auto-round", "bits": 4, "data_type": "int"}, "int4_wo"),
    "w8a8 floats": (compressed(group(FP8, TOKENS8)), "fp8"),
    "w8a8 blocks": (
        compressed(group({**FP8, "strategy": "block", "block_structure": [128, 128]},
                         {**TOKENS8, "strategy": "group", "group_size": 128})), "fp8_block"),
    "w8a8 integers": (compressed(group(INT8, TOKENS_INT8)), "sq"),
    "w4a16": (compressed(group(INT4, None)), "int4_wo"),
    "w8a16": (compressed(group(INT8, None)), "int8_wo"),
    "nvfp4": (compressed(group(FP4, {**FP4, "dynamic": "local"})), "nvfp4"),
    "mxfp4": (
        compressed(group({**FP4, "strategy": "group", "group_size": 32}, None)), "w4a16_mxfp4"),
    "bitsandbytes 4": (
        {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
        "int4_wo"),
    "bitsandbytes 8": (
        {"quant_method": "bitsandbytes", "load_in_8bit": True, "llm_int8_threshold": 6.0}, "sq"),
    "nvfp4, weights alone": (compressed(group(FP4, None)), "int4_wo"),
    "quark fp8": (
        {"quant_method": "quark", "exclude": ["lm_head"], "layer_quant_config": {},
         "global_quant_config": {"weight": {"dtype": "fp8_e4m3", "qscheme": "per_tensor"},
                                 "input_tensors": {"dtype": "fp8_e4m3", "is_dynamic": False}}},
        "fp8"),
    "quark mxfp4": (
        {"quant_method": "quark", "exclude": ["lm_head"], "global_quant_config": {
            "weight": {"dtype": "fp4", "qscheme": "per_group", "group_size": 32},
            "input_tensors": {"dtype": "fp4", "qscheme": "per_group", "group_size": 32}}},
        "mxfp4"),
    "torchao, by a word": (
        {"quant_method": "torchao", "quant_type": "int4_weight_only"}, "int4_wo"),
    "torchao, by a class": (
        {"quant_method": "torchao", "quant_type": {"default": {
            "_type": "Float8DynamicActivationFloat8WeightConfig", "_data": {}}}}, "fp8"),
    "hqq": (
        {"quant_method": "hqq", "quant_config": {"weight_quant_params": {"nbits": 4}}}, "int4_wo"),
    "eetq": ({"quant_method": "eetq"}, "int8_wo"),
    "exllama": ({"quant_method": "exl2", "bits": 4.0, "head_bits": 6}, "exl2_4"),
}  # fmt: skip
"""As published checkpoints have it, and the data type of the serving plan that it is."""


def loaded(folder: Path, base: dict[str, Any], config: dict[str, Any] | None) -> Model:
    path = folder / "config.json"
    own = {} if config is None else {"quantization_config": config}
    path.write_text(json.dumps({**base, **own}))
    return catalog.model(str(path))


def served(model: Model, run: Any, **stated: Any) -> ServingRequest:
    fields = {"input_len": 1024, "output_len": 128, "tp": 8, "system": "dgx-b200", **stated}
    return complete_serving(parse(ServingPlanSpec, fields, "test"), run, model=model)


@pytest.mark.parametrize("kind", KINDS)
def test_every_format_is_served_as_its_data_type(
    kind: str, tmp_path: Path, kernels_only: Calibration
) -> None:
    config, wanted = KINDS[kind]
    model = loaded(tmp_path, LLAMA_CONFIG, config)
    found = served(model, kernels_only.run)
    assert found.plan.weights == wanted
    assert found.plan.narrowed == "linear"
    (taken,) = [a for a in found.assumed if a.field == "precision"]
    assert taken.rule.startswith("config.json's quantization_config")
    stated = served(loaded(tmp_path, LLAMA_CONFIG, None), kernels_only.run, precision=wanted)
    assert found.plan.weights == stated.plan.weights
    other = served(model, kernels_only.run, precision="bf16")
    assert other.plan.weights == "bf16"
    assert not [a for a in other.assumed if "quantization_config" in a.rule]
    assert catalog.model(asdict(model)) == model


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"quant_method": "gptq", "bits": 3}, "3-bit integer weights"),
        ({"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"}, "quant_algo W4A8_AWQ"),
        ({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}, "MIXED_PRECISION"),
        (compressed(group(INT4, TOKENS8)), "4-bit int weights in groups of 128 with 8-bit"),
        (compressed(group({**FP4, "group_size": 64}, None)), "4-bit float weights in groups of 64"),
        (
            {
                "quant_method": "torchao",
                "quant_type": {"default": {"_type": "Int8DynamicActivationInt4WeightConfig"}},
            },
            "with 8-bit activations",
        ),
        (
            {
                "quant_method": "quark",
                "global_quant_config": {"weight": {"dtype": "fp8_e4m3"}},
                "layer_quant_config": {"*mlp*": {"weight": {"dtype": "fp4"}}},
            },
            "and fp4 of *mlp*",
        ),
        (compressed(group(INT4, None), group(FP8, TOKENS8)), "int4_wo and fp8 in one model"),
    ],
)
def test_what_no_data_type_stands_for_is_refused_until_one_is_stated(
    config: dict[str, Any], told: str, tmp_path: Path, kernels_only: Calibration
) -> None:
    model = loaded(tmp_path, LLAMA_CONFIG, config)
    with pytest.raises(InputError) as caught:
        served(model, kernels_only.run)
    assert told in str(caught.value)
    assert "state --precision" in str(caught.value)
    assert served(model, kernels_only.run, precision="int4_wo").plan.weights == "int4_wo"


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"quant_method": "fp9"}, "quant_method 'fp9' is not read; known are fp8"),
        ({"quant_method": "awq", "bits": "four"}, "bits must be a number"),
        ({"quant_method": "fp8", "ignored_layers": "lm_head"}, "ignored_layers must be a list"),
        ({"quant_method": "compressed-tensors"}, "neither config_groups nor quant_algo"),
        ({"quant_method": "compressed-tensors", "config_groups": [1]}, "must hold groups"),
        (["fp8"], "must hold keys and values"),
    ],
)
def test_a_damaged_one_is_one_line(config: Any, told: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=told) as caught:
        loaded(tmp_path, LLAMA_CONFIG, config)
    assert "\n" not in str(caught.value)


KIMI = ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*",
        "re:.*mlp\\.(gate|up|gate_up|down)_proj.*"]  # fmt: skip

ONLY_EXPERTS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    (
        GPT_OSS,
        {"quant_method": "mxfp4",
         "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router",
                                    "model.embed_tokens", "lm_head"]},
        "w4a16_mxfp4",
    ),
    (DEEPSEEK, compressed(group({**INT4, "group_size": 32}, None), ignore=KIMI), "int4_wo"),
    (
        DEEPSEEK,
        compressed(group(FP8, TOKENS8, ["re:.*mlp\\.experts\\..*"])),
        "fp8",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("base", "config", "precision"), ONLY_EXPERTS)
def test_exempt_attention_leaves_the_experts_alone_narrow(
    base: dict[str, Any],
    config: dict[str, Any],
    precision: str,
    tmp_path: Path,
    kernels_only: Calibration,
) -> None:
    model = loaded(tmp_path, base, config)
    found = served(model, kernels_only.run)
    assert (found.plan.weights, found.plan.narrowed) == (precision, "experts")
    assert narrowing(model) == ("experts", "")


def test_a_part_that_is_exempt_is_told(tmp_path: Path) -> None:
    """FBGEMM's checkpoints of Llama leave attention and the outer layers; DeepSeek's of nvfp4 leave
    attention, but neither shared experts nor dense layers."""
    outer = [f"model.layers.{n}.mlp.{p}_proj" for n in (0, 31) for p in ("gate", "up", "down")]
    outer += [f"model.layers.{n}.self_attn.{p}_proj" for n in range(32) for p in "qkvo"]
    config = {"quant_method": "fbgemm_fp8", "modules_to_not_convert": outer}
    llama = loaded(tmp_path, LLAMA_CONFIG, config)
    form, told = narrowing(llama)
    attention = 32 * llama.attention_matrix + 2 * llama.dense_ffn_matrix
    share = attention / (32 * (llama.attention_matrix + llama.dense_ffn_matrix))
    assert form == "linear"
    assert told.startswith(f"{share:.0%} of the weights are otherwise")
    assert "attention 100% in 16 bits" in told
    assert "dense feed-forward 6% in 16 bits" in told
    listed = [f"model.layers.{n}.self_attn*" for n in range(61)]
    config = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": [*listed, "lm_head"]}
    deepseek = loaded(tmp_path, DEEPSEEK, config)
    form, told = narrowing(deepseek)
    assert form == "experts"
    assert "shared experts 0% in 16 bits" in told


def test_a_model_that_is_exempt_whole_is_in_16_bits(
    tmp_path: Path, kernels_only: Calibration
) -> None:
    config = {"quant_method": "fp8", "modules_to_not_convert": ["model.layers"]}
    found = served(loaded(tmp_path, LLAMA_CONFIG, config), kernels_only.run)
    assert found.plan.weights == "bf16"
    assert any("the most are exempt" in a.rule for a in found.assumed)


def test_the_language_model_of_one_that_sees_images(
    tmp_path: Path, kernels_only: Calibration
) -> None:
    base = {"model_type": "llava", "text_config": LLAMA_CONFIG}
    exempt = ["re:.*vision_tower.*", "language_model.lm_head"]
    found = served(
        loaded(tmp_path, base, compressed(group(FP8, TOKENS8), ignore=exempt)), kernels_only.run
    )
    assert (found.plan.weights, found.plan.narrowed) == ("fp8", "linear")


@pytest.mark.parametrize(
    ("stated", "cache"),
    [
        ({"kv_cache_quant_algo": "FP8"}, "fp8"),
        ({"kv_cache_quant_algo": "INT8"}, "int8"),
        ({"kv_cache_quant_algo": None}, "bf16"),
        ({"kv_cache_scheme": {"num_bits": 8, "type": "float", "dynamic": False}}, "fp8"),
        ({"kv_cache_scheme": None}, "bf16"),
    ],
)
def test_the_cache_is_as_the_file_says(
    stated: dict[str, Any], cache: str, tmp_path: Path, kernels_only: Calibration
) -> None:
    config = {"quant_method": "modelopt", "quant_algo": "FP8", **stated}
    model = loaded(tmp_path, LLAMA_CONFIG, config)
    assert served(model, kernels_only.run).plan.kv == cache
    assert served(model, kernels_only.run, kv_precision="bf16").plan.kv == "bf16"
    old = served(model, kernels_only.run, system="dgx-a100")
    if cache == "fp8":
        assert old.plan.kv == "bf16"
        assert any("has no unit" in a.rule for a in old.assumed if a.field == "kv_precision")
    narrow = loaded(tmp_path, LLAMA_CONFIG, {**config, "kv_cache_quant_algo": "NVFP4"})
    assert served(narrow, kernels_only.run).plan.kv == "nvfp4"
    old = served(narrow, kernels_only.run, system="dgx-h100")
    assert any("not nvfp4" in a.rule for a in old.assumed if a.field == "kv_precision")
    other = loaded(tmp_path, LLAMA_CONFIG, {**config, "kv_cache_quant_algo": "FP6"})
    taken = served(other, kernels_only.run)
    assert any("FP6 cache is not predicted" in a.rule for a in taken.assumed)


def test_training_says_that_narrow_weights_are_widened(
    tmp_path: Path, kernels_only: Calibration
) -> None:
    model = loaded(tmp_path, LLAMA_CONFIG, KINDS["fp8 by block"][0])
    fields = {"gpus": 8, "global_batch": 8, "seq_len": 4096, "system": "dgx-h100"}
    spec = parse(TrainingPlanSpec, fields, "test")
    found = complete_training(spec, kernels_only.run, model=model)
    assert found.plan.precision == "bf16"
    (taken,) = [a for a in found.assumed if a.field == "precision"]
    assert taken.rule.startswith("config.json's quantization_config (fp8): widened before")

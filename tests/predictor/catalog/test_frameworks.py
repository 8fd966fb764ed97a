"""What tables call frameworks and engines: releases, platforms and remarks beside a known name."""

import pytest

import reckon
from predictor.catalog import frameworks, recognised
from predictor.catalog.software import all_engines


@pytest.mark.parametrize(
    ("written", "engine"),
    [
        ("vLLM 0.4.3+rocm614, PyTorch 2.3.0, ROCm 6.1.2", "vllm"),
        ("sglang-v0.5.9", "sglang"),
        ("tensorrt-llm (triton backend)", "tensorrt-llm"),
        ("vllm-gaudi", "vllm-gaudi"),  # an engine of its own, not a platform of vLLM
        ("lmdeploy-turbomind", "lmdeploy"),
        ("Ollama", "llama.cpp"),
        ("vllmesque", None),
        ("CUDA 12.2", None),
    ],
)
def test_engines(written: str, engine: str | None) -> None:
    assert recognised(written, all_engines()) == engine


@pytest.mark.parametrize(
    ("written", "framework"),
    [
        ("NeMo 2.0", "nemo"),
        ("nemo-automodel", "nemo-automodel"),  # not NeMo, with whose name it begins
        ("primus (megatron)", "megatron-lm"),
        ("megatron-deepspeed", "megatron-deepspeed"),
        ("lit-gpt fork (FSDP)", "fms-fsdp"),
        ("AXLearn", "maxtext"),
        ("oneflow", None),
    ],
)
def test_frameworks(written: str, framework: str | None) -> None:
    assert recognised(written, frameworks()) == framework


def test_huggingfaces_trainer_is_plain_pytorch() -> None:
    """DDP with fp32 weights, gradients and moments (4 + 4 + 8 bytes) unless sharding is asked for,
    whose gradients travel in 16 bits; attention is one operator since Transformers 4.36."""
    plan = {"gpus": 8, "global_batch": 32, "seq_len": 2048, "framework": "axolotl"}
    found = reckon.predict_train("qwen2.5-0.5b", "dgx-a100-80gb", plan).request.plan
    assert (found.framework, found.sharding, found.attention) == ("huggingface", "none", "flash2")
    assert found.weight_bytes + found.gradient_bytes + found.optimizer_bytes == 16
    assert (found.reduce_bytes, found.fused) == (4, False)
    old = {**plan, "era": "2023-06"}
    before = reckon.predict_train("qwen2.5-0.5b", "dgx-a100-80gb", old).request.plan
    assert before.attention == "unfused"
    sharded = {**plan, "sharding": "fsdp"}
    other = reckon.predict_train("qwen2.5-0.5b", "dgx-a100-80gb", sharded).request.plan
    assert other.reduce_bytes == 2

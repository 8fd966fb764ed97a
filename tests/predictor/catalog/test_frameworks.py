"""What tables call frameworks and engines: releases, platforms and remarks beside a known name."""

import pytest

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

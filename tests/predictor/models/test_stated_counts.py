"""Models of 2025 and 2026: counts from their dimensions against those that makers state."""

from __future__ import annotations

from dataclasses import replace

import pytest

from predictor import catalog
from predictor.memory.parameters import expert_parameters

STATED = {
    "qwen3.5-0.8b": ("0.8", ""),
    "qwen3.5-4b": ("4", ""),
    "qwen3.5-9b": ("9", ""),
    "qwen3.5-27b": ("27", ""),
    "qwen3.5-35b-a3b": ("35", "3"),
    "qwen3.5-122b-a10b": ("122", "10"),
    "qwen3.5-397b-a17b": ("397", "17"),
    "qwen3-next-80b-a3b": ("80", "3"),
    "nemotron-3-ultra-550b-a55b": ("550", "55"),
    "nemotron-3.5-lightning-30b-a3b": ("31.6", "3.6"),  # as stated for Nano, of these dimensions
    "glm-4.7-flash": ("30", "3"),
    "glm-4-9b-0414": ("9", ""),
    "ling-1t": ("1000", "50"),
    "ling-mini-2.0": ("16", "1.4"),
    "smollm3-3b": ("3", ""),
    "ernie-4.5-21b-a3b": ("21.8", "3"),
    "olmo3-7b": ("7", ""),
    "olmo3-32b": ("32", ""),
    "olmoe-1b-7b": ("6.9", "1.3"),
    "hunyuan-a13b": ("80", "13"),
    "granite-4.0-h-small": ("32", "9"),
    "granite-4.0-h-tiny": ("7", "1"),
    "granite-4.0-h-micro": ("3", ""),
    "apertus-8b": ("8", ""),
    "exaone-3.5-32b": ("32", ""),
    "exaone-4.0-32b": ("32", ""),
    "exaone-4.0-1.2b": ("1.28", ""),
    "ministral-3-3b": ("3.4", ""),
    "ministral-3-8b": ("8.4", ""),
    "ministral-3-14b": ("13.5", ""),
    "mistral-large-3-675b": ("673", "39"),  # beside an encoder of 2.5
    "devstral-2-123b": ("123", ""),
    "gemma-4-31b": ("30.7", ""),
    "gemma-4-26b-a4b": ("25.2", "3.8"),
    "gemma-4-12b": ("11.95", ""),
    "mimo-v2-flash": ("309", "15"),
    "step-3.5-flash": ("196", "11"),
    "kimi-k3": ("2780", "104"),
    "hy3-295b-a21b": ("295", "21"),
    "hy4-770b-a49b": ("770", "49"),
    "mistral-small-4-119b": ("119", "6"),
    "beam-501b-a23b": ("501", "23"),
    "ling-3.0-flash": ("124", "5.1"),
    "ling-2.6-flash": ("104", ""),
    "minimax-text-01": ("456", "45.9"),
    "longcat-flash-560b": ("560", "27"),
    "longcat-flash-lite": ("68.5", ""),
    "a.x-k1": ("519", "33"),
    "solar-open-100b": ("102", "12"),
    "iquest-coder-v1-40b": ("40", ""),
    "jais-2-8b": ("8", ""),
    "granite-swash-2b": ("2", ""),
    "trinity-mini": ("26", "3"),
    "trinity-large": ("398", "13"),
    "lfm2-1.2b": ("1.17", ""),
    "lfm2-2.6b": ("2.6", ""),
    "lfm2-8b-a1b": ("8.3", ""),  # 1.5 active are stated, of 1.56
    "lfm3-1.7b": ("1.7", ""),
    "muse-spark-816b-a42b": ("816", "42"),
    "sarvam-105b": ("105", "10.3"),
}
"""Billions: in all, and of those that a token touches where they differ (model cards)."""

EARLIER = {
    "starcoder-15b": 15.5,
    "starcoder-7b": 7.4,
    "starcoder-3b": 3.0,
    "starcoder-1b": 1.1,
    "santacoder-1.1b": 1.1,
    "granite-20b-code": 20.1,
    "granite-34b-code": 33.7,
    "starcoder2-3b": 3.03,
    "starcoder2-7b": 7.17,
    "starcoder2-15b": 15.96,
    "qwen-1.8b": 1.84,
    "qwen-7b": 7.72,
    "qwen-14b": 14.2,
    "qwen-72b": 72.3,
    "qwen1.5-0.5b": 0.46,
    "qwen1.5-1.8b": 1.84,
    "qwen1.5-4b": 3.95,
    "qwen1.5-7b": 7.72,
    "qwen1.5-14b": 14.2,
    "qwen1.5-32b": 32.5,
    "qwen1.5-72b": 72.3,
    "qwen1.5-110b": 111,
    "qwen1.5-moe-a2.7b": 14.3,
    "codellama-7b": 6.74,
    "codellama-13b": 13.0,
    "codellama-70b": 69.0,
    "openllama-3b": 3.43,
    "solar-10.7b": 10.7,
    "xgen-7b": 6.9,
    "mistral-small-22b": 22.2,
    "ministral-8b-2410": 8.02,
    "mistral-nemo-minitron-8b": 8.41,
    "llama3.1-minitron-4b": 4.51,
    "deepseek-llm-7b": 6.91,
    "deepseek-llm-67b": 67.4,
    "deepseek-coder-1.3b": 1.35,
    "deepseek-coder-6.7b": 6.74,
    "deepseek-coder-33b": 33.3,
    "yi-6b": 6.06,
    "yi-9b": 8.83,
    "baichuan-7b": 7.0,
    "baichuan-13b": 13.3,
    "baichuan2-7b": 7.51,
    "baichuan2-13b": 13.9,
    "internlm-7b": 7.32,
    "internlm-20b": 20.1,
    "internlm2-1.8b": 1.89,
    "internlm2-7b": 7.74,
    "internlm2-20b": 19.9,
    "internlm3-8b": 8.8,
    "chatglm2-6b": 6.24,
    "chatglm-6b": 6.17,
    "glm-130b": 130,
    "glm-4-32b-0414": 32.6,
    "smollm-135m": 0.135,
    "smollm-360m": 0.362,
    "smollm-1.7b": 1.71,
    "granite-3b-code": 3.48,
    "granite-8b-code": 8.05,
    "granite-3.1-8b": 8.17,
    "granite-3.1-2b": 2.53,
    "exaone-3.5-7.8b": 7.82,
    "exaone-3.5-2.4b": 2.41,
    "minicpm-2b": 2.72,
    "salamandra-7b": 7.77,
    "eurollm-9b": 9.15,
    "viking-33b": 33.1,
    "aquila-7b": 7.3,
    "aquila2-34b": 33.7,
    "skywork-13b": 13.9,
    "orion-14b": 14.5,
    "xverse-13b": 13.7,
    "xverse-65b": 66.1,
    "falcon3-1b": 1.67,
    "falcon3-3b": 3.23,
    "falcon3-7b": 7.46,
    "falcon3-10b": 10.3,
    "olmo-1b": 1.18,
    "olmo2-1b": 1.48,
    "olmo2-32b": 32.2,
    "stablelm-3b-4e1t": 2.8,
    "stablelm-2-1.6b": 1.64,
    "stablelm-2-12b": 12.1,
    "command-r-35b": 35.0,
    "command-r-32b": 32.3,
    "command-r-plus-104b": 104,
    "command-r7b": 8.03,
    "command-a-111b": 111,
    "gpt-neo-125m": 0.125,
    "gpt-neo-1.3b": 1.32,
    "gpt-neo-2.7b": 2.65,
    "cerebras-gpt-111m": 0.111,
    "cerebras-gpt-256m": 0.256,
    "cerebras-gpt-590m": 0.59,
    "cerebras-gpt-1.3b": 1.3,
    "cerebras-gpt-2.7b": 2.7,
    "cerebras-gpt-6.7b": 6.7,
    "cerebras-gpt-13b": 13,
    "megatron-1.2b": 1.2,
    "megatron-2.5b": 2.5,
    "megatron-4.2b": 4.2,
    "megatron-8.3b": 8.3,
    "turing-nlg-17b": 17.2,
    "galactica-120b": 121,
    "gpt-sw3-40b": 39.2,
    "pangu-alpha-200b": 207,
    "pangu-alpha-13b": 12.8,
    "pangu-alpha-2.6b": 2.6,
    "gopher-280b": 258,
    "lamda-137b": 137,
    "pangu-ultra-135b": 135,
    "jais-13b": 13.0,
    "jais-30b": 30.0,
    "bloom-1b1": 1.07,
    "bloom-1b7": 1.72,
    "bloom-3b": 3.0,
    "poro-34b": 34.2,
    "replit-code-3b": 2.6,
    "redpajama-3b": 2.78,
    "redpajama-7b": 6.86,
    "stablelm-base-alpha-7b": 7.87,
    "stablelm-base-alpha-3b": 3.64,
    "codegen-2b": 2.8,
    "codegen-6b": 7.07,
    "codegen-16b": 16.0,
    "phi-1.5": 1.42,
    "falcon-11b": 11.1,
    "falcon-rw-1b": 1.31,
    "palm-8b": 8.63,
    "palm-62b": 62.5,
    "minitron-8b": 8.27,
    "minitron-4b": 4.19,
    "persimmon-8b": 9.4,
    "apertus-70b": 70.6,
    "snowflake-arctic-480b": 480,
    "ernie-4.5-300b-a47b": 300,
    "ling-flash-2.0": 103,
}
"""Billions that makers of earlier models state (model cards and papers, from memory)."""


def agrees(counted: float, stated: str) -> bool:
    """Within 2 %, or nearer than the stated number's last digit tells."""
    digit = 10.0 ** -len(stated.partition(".")[2])
    return abs(counted / 1e9 - float(stated)) <= max(0.02 * float(stated), 0.5 * digit)


@pytest.mark.parametrize("name", STATED)
def test_counts_are_those_that_are_stated(name: str) -> None:
    model = catalog.model(name)
    total, active = STATED[name]
    assert agrees(model.parameters, total), model.parameters
    if active:  # makers count the embedding, the output projection, both or neither
        touched = model.active_parameters
        embedding, head = model.embedding_parameters, model.head_parameters
        assert any(
            agrees(touched - less, active) for less in (0, embedding, head, embedding + head)
        ), touched


@pytest.mark.parametrize(("name", "stated"), [("gemma-4-e2b", 2.3), ("gemma-4-e4b", 4.5)])
def test_layers_own_embeddings_are_what_effective_counts_leave_out(
    name: str, stated: float
) -> None:
    model = catalog.model(name)
    own = model.vocab * model.layers * model.layer_inputs
    assert (model.parameters - own) / 1e9 == pytest.approx(stated, rel=0.035)


def test_counts_that_differ_are_told_apart() -> None:
    """Two of 100 layers more are seen, and what a digit hides is not."""
    assert agrees(32.2e9, "32")
    assert not agrees(32.7e9, "32")
    assert agrees(0.753e9, "0.8")
    assert not agrees(0.70e9, "0.8")


@pytest.mark.parametrize("name", EARLIER)
def test_counts_of_earlier_models(name: str) -> None:
    assert catalog.model(name).parameters / 1e9 == pytest.approx(EARLIER[name], rel=0.035)


@pytest.mark.parametrize(("name", "stated"), [("gpt-oss-120b", 116.83), ("gpt-oss-20b", 20.91)])
def test_biases_of_experts_are_parameters(name: str, stated: float) -> None:
    """OpenAI 2025, gpt-oss model card, table 1: to the last digit. A token touches those of the
    experts that it goes to; a training rank and an engine hold them with their experts."""
    model = catalog.model(name)
    assert model.parameters / 1e9 == pytest.approx(stated, abs=0.005)
    bare = replace(model, expert_bias=False)
    one = 2 * model.expert_ffn_hidden + model.expert_ffn_hidden  # gate and up; as wide as hidden
    assert model.hidden == model.expert_ffn_hidden
    assert model.parameters - bare.parameters == model.layers * model.num_experts * one
    assert model.active_parameters - bare.active_parameters == model.layers * model.top_k * one
    assert expert_parameters(model, 1.0) - expert_parameters(bare, 1.0) == one
    halves = expert_parameters(model, 2.0) - expert_parameters(bare, 2.0)
    assert halves == model.expert_ffn_hidden + model.hidden  # what goes out is added whole


def test_kimi_linear_is_stated_beside_its_embeddings() -> None:
    """Kimi Team 2025, arXiv 2510.26692: 48B, 3B active."""
    model = catalog.model("kimi-linear-48b-a3b")
    tables = 2 * model.vocab * model.hidden
    assert (model.parameters - tables) / 1e9 == pytest.approx(48, rel=0.015)
    assert round((model.active_parameters - tables) / 1e9) == 3

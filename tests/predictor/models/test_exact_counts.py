"""Parameters of models whose checkpoints are counted in public, to the last one: every matrix,
bias and norm."""

from __future__ import annotations

import pytest

from predictor import catalog

COUNTED = {
    "llama2-7b": 6_738_415_616,
    "llama2-13b": 13_015_864_320,
    "llama2-70b": 68_976_648_192,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "llama3.1-405b": 405_853_388_800,
    "llama3.2-1b": 1_235_814_400,
    "llama3.2-3b": 3_212_749_824,
    "mistral-7b": 7_241_732_096,
    "mixtral-8x7b": 46_702_792_704,
    "phi-3-medium": 13_960_238_080,
    "falcon-7b": 6_921_720_704,
    "falcon-40b": 41_303_293_952,
    "gpt2-1.5b": 1_557_611_200,
    "gpt-neox-20b": 20_554_567_680,
}
"""As the checkpoints' headers on huggingface.co add up (from memory of these pages, 2026-11)."""

WITHOUT_SOME_NORMS = {
    "qwen3-8b": (8_190_735_360, 36 * 2 * 128),  # of queries and keys, in 36 layers
    "qwen3-30b-a3b": (30_532_122_624, 48 * 2 * 128),
    "bloom-7b1": (7_069_016_064, 2 * 4096),  # of the embedding
}
"""Those that have norms which a model has no field for, and how many parameters those are."""


@pytest.mark.parametrize("name", sorted(COUNTED))
def test_every_parameter_is_counted(name: str) -> None:
    assert catalog.model(name).parameters == COUNTED[name]


@pytest.mark.parametrize("name", sorted(WITHOUT_SOME_NORMS))
def test_what_is_left_out_is_norms_alone(name: str) -> None:
    whole, norms = WITHOUT_SOME_NORMS[name]
    assert catalog.model(name).parameters == whole - norms

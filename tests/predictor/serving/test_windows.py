"""Engines that ignore windows keep and read every key."""

from __future__ import annotations

import pytest

from predictor.catalog import ServingPlanSpec, parse
from predictor.memory.serving import serving_memory
from predictor.serving import complete_serving
from predictor.timing import RunParameters


def completed(**fields: object):
    base = {"model": "mistral-7b", "accelerator": "H100-SXM5-80GB", "input_len": 20000,
            "output_len": 2000, "batch": 2}  # fmt: skip
    return complete_serving(parse(ServingPlanSpec, {**base, **fields}, "test"), RunParameters())


@pytest.mark.parametrize(
    ("framework", "version", "window"),
    [("tensorrt-llm", "0.15", 0), ("tensorrt-llm", "1.0", 4096), ("vllm", "0.6.0", 4096)],
)
def test_who_ignores_windows(framework: str, version: str, window: int) -> None:
    assert completed(framework=framework, version=version).model.sliding_window == window


def test_an_ignored_window_keeps_every_token() -> None:
    """22,000 tokens instead of the last 4,096, in the memory too; what is stated counts more."""
    held = {
        windows: float(
            serving_memory(one.model, one.cluster, one.plan, RunParameters()).per_sequence
        )
        for windows in ("kept", "ignored")
        for one in (completed(framework="tensorrt-llm", version="0.15", windows=windows),)
    }
    assert held["ignored"] / held["kept"] == pytest.approx(22000 / 4096)


def test_models_without_windows_are_as_they_were() -> None:
    one = completed(model="llama3.1-8b", framework="tensorrt-llm", version="0.15")
    other = completed(model="llama3.1-8b", framework="tensorrt-llm", version="0.15", windows="kept")
    assert one.model == other.model

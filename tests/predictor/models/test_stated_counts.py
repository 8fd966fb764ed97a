"""Models of 2025 and 2026: counts from their dimensions against those that makers state."""

from __future__ import annotations

import pytest

from predictor import catalog

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
}
"""Billions: in all, and of those that a token touches where they differ (model cards)."""


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


def test_counts_that_differ_are_told_apart() -> None:
    """Two of 100 layers more are seen, and what a digit hides is not."""
    assert agrees(32.2e9, "32")
    assert not agrees(32.7e9, "32")
    assert agrees(0.753e9, "0.8")
    assert not agrees(0.70e9, "0.8")

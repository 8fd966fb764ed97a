"""What checkpoints by operator run again, counted by hand from the order of a block's matrices."""

from __future__ import annotations

import pytest

from predictor import catalog
from predictor.models import repeated_products
from predictor.models.repeated import repeated_share


def test_latents_shift_what_comes_after_them() -> None:
    """DeepSeek-V3: latents of queries 1, queries 2, latents of keys 3, keys and values 4, output 5,
    gate 6, up 7, down 8; experts are never kept."""
    found = repeated_products(catalog.model("deepseek-v3"))
    assert [found[f"attention.{n}"] for n in ("q_down", "q_up", "kv_down", "kv_up", "out")] == [
        0.0, 1.0, 0.0, 1.0, 0.0,
    ]  # fmt: skip
    assert (found["shared.up"], found["shared.down"]) == (0.5, 1.0)
    assert found["moe.up"] == found["moe.down"] == found["moe.router"] == 1.0


def test_without_a_gate_the_way_down_has_an_even_number() -> None:
    """GPT-3: output 4, up 5, down 6."""
    found = repeated_products(catalog.model("gpt3-175b"))
    assert (found["attention.qkv"], found["attention.out"]) == (pytest.approx(1 / 3), 1.0)
    assert (found["mlp.up"], found["mlp.down"]) == (0.0, 1.0)


@pytest.mark.parametrize("name", ["llama3-8b", "deepseek-v3", "gpt-oss-120b", "nemotron-h-56b"])
def test_no_more_runs_again_than_there_is(name: str) -> None:
    assert 0.0 < repeated_share(catalog.model(name)) < 1.0

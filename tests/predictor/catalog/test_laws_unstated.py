"""What a file leaves out is not there, and what is there is a whole number."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from predictor import catalog
from predictor.catalog.given import Range, read_given
from predictor.errors import InputError
from predictor.models.model import Model

DENSE: dict[str, Any] = {
    "name": "own", "layers": 3, "hidden": 128, "heads": 4, "ffn_hidden": 512, "vocab": 1000,
}  # fmt: skip
MIXED = {**DENSE, "num_experts": 8, "top_k": 2, "expert_ffn_hidden": 256}
ENDS, ATTENTION, NORMS = 2 * 1000 * 128, 4 * 128 * 128, 2 * 128


def test_a_mixture_of_which_no_shared_expert_is_stated_has_none() -> None:
    """By hand: both tables, and for each layer four matrices of attention, a router, three of each
    of eight experts, and two norms; a last norm."""
    layer = ATTENTION + 8 * 128 + 8 * 3 * 128 * 256 + NORMS
    assert catalog.model(MIXED).parameters == ENDS + 3 * layer + 128


def test_a_model_of_which_no_expert_is_stated_is_dense() -> None:
    found = catalog.model(DENSE)
    assert found.parameters == ENDS + 3 * (ATTENTION + 3 * 128 * 512 + NORMS) + 128
    none = ("num_experts", "top_k", "expert_ffn_hidden", "shared_experts", "dense_layers",
            "shared_expert_ffn_hidden", "sliding_window", "mtp_layers", "kv_lora_rank",
            "mamba_layers", "delta_layers", "index_topk")  # fmt: skip
    assert {name: getattr(found, name) for name in none} == dict.fromkeys(none, 0)


def test_heads_that_are_left_out_are_those_that_there_are() -> None:
    found = catalog.model(DENSE)
    assert (found.kv_heads, found.head_dim) == (4, 32)
    plain = {key: value for key, value in DENSE.items() if key != "ffn_hidden"}
    assert catalog.model({**plain, "gated": False}).ffn_hidden == 4 * 128
    with pytest.raises(InputError, match="head_dim"):
        catalog.model({**DENSE, "heads": 3})


@pytest.mark.parametrize("name", ["gpt3-175b", "llama3-70b", "deepseek-v3", "nemotron-h-8b"])
def test_dimensions_are_whole_numbers(name: str) -> None:
    found = catalog.model(name)
    whole = {one.name: getattr(found, one.name) for one in fields(Model) if one.type == "int"}
    assert len(whole) > 10
    assert {key for key, value in whole.items() if type(value) is not int} == set()
    assert type(catalog.model(DENSE).head_dim) is int


def test_a_range_has_a_lower_end_an_upper_one_and_a_step_forward() -> None:
    assert read_given({"tp": "1..1"})["tp"] == Range(1.0, 1.0, None)
    assert read_given({"tp": "2..8:2"})["tp"] == Range(2.0, 8.0, 2.0)
    for text in ("0..4", "2..8:0", "2..8:-2"):
        with pytest.raises(InputError, match="no value of at least 1"):
            read_given({"tp": text})
    with pytest.raises(InputError, match=r"'4\.\.2' ends below where it starts"):
        read_given({"tp": "4..2"})

"""Bytes of data types, from their bits."""

from __future__ import annotations

import pytest

from predictor.plans.training import FROZEN_BYTES
from predictor.precision import (
    ELEMENT_BYTES,
    PACKED,
    PACKED_HEADS,
    PEAK,
    PRECISIONS,
    WEIGHT_BYTES,
)

BITS = {"fp32": 32, "tf32": 32, "bf16": 16, "fp16": 16, "int8": 8, "fp8": 8, "fp8_block": 8}


@pytest.mark.parametrize("name", sorted(PRECISIONS))
def test_a_recipe_keeps_what_its_core_computes(name: str) -> None:
    """Activations and weights as wide as the core; of Adam two moments in fp32, and a copy of the
    weights where these are narrower (Rajbhandari et al. 2020)."""
    recipe = PRECISIONS[name]
    assert recipe.name == name
    assert recipe.activation == recipe.weight == ELEMENT_BYTES[recipe.core]
    assert recipe.optimizer == 2 * 4 + (4 if recipe.weight < 4 else 0)
    assert recipe.peak == PEAK.get(recipe.linear, recipe.linear)


def test_packed_weights_have_the_bits_of_their_names() -> None:
    """exllamav2's bits are per weight with everything; ggml's mixtures hold more than their name
    says, by less than a bit."""
    for name, size in PACKED.items():
        if name.startswith("exl2_"):
            assert size == float(name.removeprefix("exl2_")) / 8
        else:
            bits = int(name[1])
            assert bits < 8 * size < bits + 1


def test_elements_are_their_bits_and_their_share_of_a_scale() -> None:
    """Of 8 bits for 32 elements (OCP MX), of 8 for 16 (NVFP4), of 16 for 128."""
    for name, bits in BITS.items():
        assert ELEMENT_BYTES[name] == WEIGHT_BYTES[name] == bits / 8
    assert ELEMENT_BYTES["mxfp8"] == (8 + 8 / 32) / 8
    assert ELEMENT_BYTES["mxfp4"] == WEIGHT_BYTES["w4a16_mxfp4"] == (4 + 8 / 32) / 8
    assert ELEMENT_BYTES["nvfp4"] == (4 + 8 / 16) / 8
    assert WEIGHT_BYTES["w4a8_mxfp4_mxfp8"] == ELEMENT_BYTES["mxfp4"]
    assert ELEMENT_BYTES["w4a8_mxfp4_mxfp8"] == ELEMENT_BYTES["mxfp8"]
    assert WEIGHT_BYTES["int4_wo"] == pytest.approx((4 + 16 / 128) / 8, rel=1e-3)
    assert (WEIGHT_BYTES["int8_wo"], WEIGHT_BYTES["sq"], ELEMENT_BYTES["sq"]) == (1, 1, 1)
    for name in ("int8_wo", "int4_wo", "w4a16_mxfp4", *PACKED):
        assert ELEMENT_BYTES[name] == 2, "activations stay in 16 bits"


def test_packed_formats_have_their_bits_per_weight() -> None:
    """exllamav2 by name; ggml's by their digits, with scales and a few wider matrices on top: no
    more than a bit and a half. Output projections have six bits, or eight where all do."""
    for name, size in PACKED.items():
        if name.startswith("exl2_"):
            assert size == float(name.removeprefix("exl2_")) / 8
        else:
            bits = int(name[1])
            assert bits < 8 * size <= bits + 1.5
        head = PACKED_HEADS[name]
        assert PACKED[head] >= min(size, 6 / 8)
        assert head == "q8_0" if name == "q8_0" else head in ("exl2_6", "q6_k")


def test_frozen_weights_take_the_bits_that_are_published() -> None:
    """Of QLoRA's NF4, four and 0.127 for what scales them, quantised twice (Dettmers et al. 2023,
    section 3)."""
    assert FROZEN_BYTES["nf4"] == pytest.approx((4.0 + 0.127) / 8.0, abs=1e-3)
    assert FROZEN_BYTES["fp8"] == FROZEN_BYTES["int8"] == 1.0
    assert FROZEN_BYTES["as multiplied"] == 0.0


def test_exllamas_sizes_are_those_that_are_published() -> None:
    sizes = {name.removeprefix("exl2_") for name in PACKED if name.startswith("exl2_")}
    assert sizes == {"2.5", "3", "3.5", "4", "4.65", "5", "6", "8"}

"""Constants of what catalogs leave out, by the machines that they are taken after."""

from __future__ import annotations

import pytest

from predictor import catalog
from predictor.catalog import entries, power
from predictor.catalog.forms import SCALES, scaled


def test_numbers_take_the_scales_that_people_write() -> None:
    """Thousands, millions, billions (or giga), trillions (or tera); in either case."""
    thousand = 1000.0
    expected = {"": 0, "k": 1, "m": 2, "b": 3, "g": 3, "t": 4}
    assert {scale: thousand**power for scale, power in expected.items()} == SCALES
    for text, value in (("15T", 15e12), ("1.5b", 1.5e9), (" 7 k ", 7e3), ("2M", 2e6), ("3G", 3e9)):
        assert scaled(text) == pytest.approx(value)
    for other in ("15", "T", "1e3k", "-2k", 7, None):
        assert scaled(other) == other


def test_accelerators_that_state_little_are_of_the_order_of_a_gpu() -> None:
    """A100's 40 MB, or half of it; between its 108 processors and Blackwell's 152."""
    assert 20e6 <= entries.DEFAULT_L2 <= 40e6
    assert 108 <= entries.DEFAULT_SMS <= 152


def test_memory_is_stacked_where_no_board_of_plain_chips_is_as_quick() -> None:
    """RTX 4090's GDDR6X, and A100's HBM2e."""
    plain, stacked = (catalog.accelerator(name).bandwidth for name in ("RTX-4090-24GB",
                      "A100-SXM4-40GB"))  # fmt: skip
    assert float(plain) < power.STACKED < float(stacked)


def test_heat_sinks_are_of_a_board_of_seven_hundred_watts_and_down_to_a_tenth() -> None:
    """H100's limit, and T4's."""
    hot, cool = (catalog.accelerator(name).power for name in ("H100-SXM5-80GB", "T4-16GB"))
    assert float(hot) == power.HOT
    assert pytest.approx(float(cool)) == power.HOT / power.COOL
    assert power.PJ == 1e-12

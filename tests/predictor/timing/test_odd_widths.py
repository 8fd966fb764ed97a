"""Products of odd widths, of which some tables know a single one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from predictor import catalog
from predictor.arrays import Array
from predictor.catalog import load
from predictor.timing.alternatives import whole_widths
from predictor.timing.kernels import shape_times
from predictor.timing.shapes import Shapes

KNOWN = load("default")


def product(m: float, n: float, k: float) -> Shapes:
    one = np.ones(1)
    return Shapes(
        op="gemm", dtype="bf16", variants=("wgrad",), variant=0 * one,
        m=m * one, n=n * one, k=k * one, batch=one,
        flop=2.0 * m * n * k * one, bytes=2.0 * (m * n + m * k + n * k) * one,
    )  # fmt: skip


def took(name: str, *sizes: float) -> Array:
    return shape_times(product(*sizes), catalog.accelerator(name), KNOWN, sustained=True)[0]


@pytest.mark.parametrize("name", ["MI355X-288GB", "MI350X-288GB", "MI308X-192GB", "H100-SXM5-80GB"])
def test_an_odd_width_takes_about_what_the_next_whole_one_does(name: str) -> None:
    """GPT-3 13B's 5,140 columns took 60 times as long on an MI355X, whose table has 100 alone."""
    for odd, whole in (((2570, 5140, 16384), (2570, 5144, 16384)),
                       ((16384, 5140, 5140), (16384, 5144, 5144))):  # fmt: skip
        assert 0.8 < took(name, *odd)[0] / took(name, *whole)[0] < 1.8


def test_whole_widths_are_left_alone() -> None:
    device = catalog.accelerator("MI355X-288GB")
    assert whole_widths(product(5140, 4096, 8192), device) is None
    assert whole_widths(product(64, 100.5, 64), device) is None  # a mean of several
    found = whole_widths(product(64, 100, 60), device)
    assert found is not None
    wide, beside = found
    assert (wide.m[0], wide.n[0], wide.k[0]) == (64, 104, 64)
    assert wide.flop[0] == pytest.approx(2 * 64 * 104 * 64)
    assert beside[0] > 0


def test_odd_rows_take_about_what_the_next_whole_ones_do() -> None:
    """8,193 rows took 2.9 times as long as 8,192 (fp8 with scales of blocks on MI300X)."""
    device = catalog.accelerator("MI300X-192GB")
    odd, whole = (
        shape_times(
            replace(product(m, 1280, 8192), dtype="fp8_block", variants=("fwd",)), device, KNOWN
        )[0][0]
        for m in (8193, 8200)
    )
    assert 0.8 < odd / whole <= 1.001


def test_odd_widths_of_tf32_are_those_of_16_bits() -> None:
    """Eight times as long on MI308X, which is known by its products in 16 bits."""
    device = catalog.accelerator("MI308X-192GB")
    odd, whole = (
        shape_times(replace(product(2048, n, n), dtype="tf32"), device, KNOWN)[0][0]
        for n in (5140, 5144)
    )
    assert 0.8 < odd / whole < 1.8
    assert whole_widths(replace(product(64, 100, 60), dtype="fp32"), device) is None

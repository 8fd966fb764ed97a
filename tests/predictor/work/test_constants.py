"""Traffic of kernels by the accesses that their sources count, and other constants of kernels by
what they were read off."""

from __future__ import annotations

import math

import pytest

from predictor.plans.serving import NATIVE
from predictor.timing import data_types, fitted, likeness, relatives, training_kernels
from predictor.timing.calibration import EMPTY_KERNEL, ITS_YEAR, LATENCY_TREND
from predictor.work import cores, layer, mamba, mixture, serving, setting

HALF, SINGLE, LONG = 2, 4, 8
"""Bytes of numbers of 16, 32 and 64 bits."""


def test_traffic_by_accesses() -> None:
    """Reads and writes of each, as the docstrings name them."""
    # Scores between 16-bit products: written; read, written wide; read, written; read, written;
    # read.
    assert cores.CONVERTED == HALF + (HALF + SINGLE) + (SINGLE + HALF) + HALF
    assert serving.SCORE_BYTES == 4 * SINGLE, "written, read, written, read"
    assert serving.SOFTMAX_BYTES == 2 * SINGLE
    assert layer.LOSS == SINGLE
    assert layer.OVER == (3.0, 2.0)
    assert layer.DRAW == mixture.CHOICE == 3 * SINGLE, "read, written, read"
    assert math.ceil(32 / 6) == layer.DIGITS
    assert layer.PAIR == 2 * SINGLE + LONG + SINGLE + LONG
    assert layer.PENALTIES == 2 * 17 + 10 + 24 + 17
    assert mixture.MAPPED == SINGLE
    assert mixture.WEIGHED == 3
    assert serving.UNFUSED == (SINGLE / HALF) * 1.5


def test_kernels_that_an_expert_of_a_loop_launches() -> None:
    """One by one, as the docstring names them: mask, where it holds, rows, the gate's other side,
    activation and product, weights, the sum, copies; backward alike."""
    forward = 1 + 3 + 1 + 1 + 2 + 2 + 1 + 2
    backward = 1 + 3 + 3 + 3 + 3 + 4 + 3
    assert (forward, backward) == mixture.LOOPED


def test_traffic_of_what_clamps_and_filters() -> None:
    """Halves of 16 bits read and written and both joined; gradients of each masked by its input and
    both joined. A sort of 32-bit keys, beside what its docstring counts; four reads."""
    half = HALF + HALF
    assert (2 * half + 2 * half, (half + HALF) * 2 + 2 * half) == mixture.CLAMPED
    passes = layer.DIGITS * layer.PAIR
    assert layer.FILTER["sorted"] == passes + 8 + 8 + 12 + 8 + 5 + 9 + 16 + 4 + 12
    assert layer.FILTER["fused"] == 4 * SINGLE
    assert layer.WIDENED == 2 * SINGLE, "written wide, and its gradient"


def test_blocks_and_chunks_are_those_of_their_kernels() -> None:
    assert (mamba.CONVOLUTION, mamba.STATE_BYTES) == (4.0, SINGLE)
    assert serving.ALIGNED == 128.0, "DeepGEMM's rows of a block"
    assert setting.MANY_ROWS == 64.0, "ggml widens a matrix beyond"


def test_hosts_in_another_language() -> None:
    """3 to 4 us of the driver's own against 10 to 20 with what PyTorch adds."""
    assert 3 / 20 <= NATIVE <= 4 / 10


def test_what_was_read_off_kernels() -> None:
    """Hopper's 989.4 TFLOP/s of 132 processors at 1.83 GHz; empty kernels of 2.5 us in 2020 and
    1.65 in 2024; DeepGEMM's products at .94 of H20's peak."""
    per_clock = 989.4e12 / 132 / 1.83e9
    assert pytest.approx(per_clock, rel=1e-3) == training_kernels.PER_CLOCK
    assert (EMPTY_KERNEL, ITS_YEAR) == (2.5e-6, 2020.0)
    assert pytest.approx(math.log(2.5 / 1.65) / 4, rel=0.15) == LATENCY_TREND
    assert pytest.approx(-math.log(0.94), abs=0.005) == relatives.NARROW
    assert relatives.REACH == 1.0
    # Five standard deviations outside add a quarter in the logarithm.
    assert fitted.DISTANCE_SIGMA * fitted.FAR == 0.25


def test_what_makes_accelerators_alike_is_where_errors_were_least() -> None:
    """Of .3, .6, 1.2 and 3 the second; trends unknown as far apart as shipped pools are by one,
    .7 to 1.03; integers at three times 16 bits, between twice (all) and four times (GeForce)."""
    assert 0.3 < likeness.LIKENESS < 1.2
    assert 0.7 <= likeness.STRANGE <= 1.03
    assert 2.0 < likeness.HELD_BACK < 4.0
    assert 0.15 < data_types.HELD_UP < 0.5
    assert likeness.USUAL == {"fp8": 2.0, "int8": 2.0, "fp4": 4.0}

"""Constants of kernels by the figures that they were read off."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest

from predictor.timing import (
    alternatives,
    attention,
    calibration,
    data_types,
    products,
    roofline,
    shapes,
)


def test_shares_of_bandwidths_are_what_benchmarks_reach() -> None:
    """STREAM-like kernels 0.83 to 0.91, casts 0.75 to 0.87, products of few rows 0.76 to 0.83;
    decoding reads no faster than copies do."""
    assert 0.76 <= shapes.DRAWN <= 0.83
    assert 0.75 <= alternatives.CAST_BANDWIDTH <= 0.87
    assert 0.83 <= attention.READ <= 0.91
    assert 1 / 3 <= shapes.CLOCK <= 1 / 2


def test_caches_spill_between_where_tables_hit_and_miss() -> None:
    """Hits at 0.7 of the cache, misses at 1.4; captured graphs 36 of 50 MiB and 48."""
    assert 0.6 < 1.0 / attention.SPILL < 0.7
    assert 1.3 < 2.0 / attention.SPILL < 1.4
    assert 36e6 / (50 * 2**20) < shapes.HELD < 0.75
    assert 48e6 / (50 * 2**20) < shapes.GONE <= 1.0


def test_energy_of_plain_units_is_what_two_cards_say() -> None:
    """17.9 and 18.3 pJ, of cards of 250 and 300 W."""
    assert pytest.approx(0.5 * (17.9e-12 + 18.3e-12), rel=0.02) == shapes.VECTOR_ENERGY


def test_sizes_of_tiles_are_those_of_instructions_and_libraries() -> None:
    """FlashAttention's 128 rows and half of them; CUTLASS's warps of 64 x 64, sums in 32 bits, two
    pieces of operands 32 deep; eight rows of an instruction; tiles without a split of k that
    libraries have."""
    assert (attention.ATTENTION_TILE, attention.LEAST_TILE) == (128, 64)
    assert (roofline.WARP, roofline.ACCUMULATOR) == (64.0, 4.0)
    assert (roofline.DEPTH, roofline.STAGES) == (32.0, 2.0)
    assert alternatives.EIGHT == 8.0
    assert products.WHOLE_TILES == ((256, 128), (128, 128), (64, 128))
    assert tuple(2**power for power in range(4)) == products.SPLITS


def test_typical_tiles_go_from_what_leaves_registers_to_the_least() -> None:
    """Of a processor's 256 KiB sums in 32 bits take half at most, beside the operands; the least
    has the rows of an instruction (m16n8k16). None is as high as another."""
    sizes = [rows * columns for rows, columns in products.TYPICAL_TILES]
    rows = [high for high, _ in products.TYPICAL_TILES]
    assert 4 * sizes[0] == 128 * 1024 < 4 * max(m * n for m, n in products.TILES)
    assert all(less < more for more, less in pairwise(sizes))
    assert all(less < more for more, less in pairwise(rows))
    assert products.TYPICAL_TILES[-1] == min(products.TILES)
    assert min(rows) == 16


def test_units_beside_the_matrix_unit_are_as_slow_as_sheets_say() -> None:
    """A100's 312 and 19.5 TFLOP/s; shift, mask, conversion and scale of a weight."""
    assert pytest.approx(312 / 19.5) == alternatives.VECTOR
    assert alternatives.WIDENING == 4.0
    assert attention.EXPONENTIALS["blackwell-ultra"] == 2.0 * attention.USUAL_EXPONENTIALS


def test_stand_ins_are_off_by_what_comparisons_say() -> None:
    """Types that stand in for another's foretell it to within 16 to 29 %."""
    assert 0.16 <= data_types.STAND_IN <= 0.29


def test_what_is_unlike_lies_between_what_decides_alike() -> None:
    """0.1 of MI350X by MI355X and 1.2 of MI300X by MI308X; few points are less than half a voice; a
    product waits 0.3 to 1.3 us for the memory to begin: their middle, as of a logarithm."""
    assert 0.1 < calibration.UNLIKE < 1.2
    assert pytest.approx(math.sqrt(0.3e-6 * 1.3e-6), rel=0.1) == shapes.RESTART
    assert 0.0 < calibration.SPARSE < 0.5

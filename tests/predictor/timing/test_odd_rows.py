"""Rows that no kernel has to find aligned: by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from predictor.timing.alternatives import whole_rows
from tests.predictor.timing.test_laws_decoding import shapes


def test_rows_of_zeros_make_whole_multiples_of_eight() -> None:
    """Rows that are none already: their arithmetic, operand and outcome grow with them."""
    odd = shapes("gemm", "fp8", 61, 300, 500, 2)
    found, longer = whole_rows(odd) or (odd, 0.0)
    assert float(found.m[0]) == 64.0
    assert longer == 1.0
    assert float(found.flop[0]) == pytest.approx(2 * 64 * 300 * 500 * 2)
    assert float(found.bytes[0] - odd.bytes[0]) == pytest.approx(3 * (500 + 2 * 300) * 2)
    for rows in (64.0, 60.5, 512.0, 1000.0, 1001.5):
        assert whole_rows(shapes("gemm", "fp8", rows, 300, 500)) is None, rows
    for rows in (1.0, 511.0, 1001.0):
        more = whole_rows(shapes("gemm", "fp8", rows, 300, 500))
        assert more is not None
        assert float(more[0].m[0]) == 8.0 * math.ceil(rows / 8.0)
    names = ("n", "k", "batch", "flop", "bytes")
    twice = {name: np.repeat(getattr(odd, name), 2) for name in names}
    both = replace(odd, **twice, m=np.array([61.0, 600.5]))
    some = whole_rows(both)
    assert some is not None
    assert some[0].m.tolist() == [64.0, 600.5]
    assert some[0].bytes[1] == both.bytes[1]
    # Of libraries that were timed with every number of few rows, and one beyond a tile.
    assert whole_rows(shapes("gemm", "fp8", 17, 300, 500), tabled=True) is None
    more = whole_rows(shapes("gemm", "fp8", 18, 300, 500), tabled=True)
    assert more is not None
    assert more[1] == 1.07
    # Rows of gradients of weights are columns of an operand, whose alignment is no one's to choose.
    assert whole_rows(replace(odd, variants=("wgrad",))) is None

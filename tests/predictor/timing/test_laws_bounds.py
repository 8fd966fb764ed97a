"""Features of kernels far smaller and far larger than any that was timed: each stays where those
that were timed end."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from predictor.timing.features import ideal
from predictor.timing.shapes import LONG_KERNEL
from tests.predictor.timing.test_laws_features import H100, shapes

SIDES = (1.0, 64.0, 1e4, 1e8)
BATCHES = (1.0, 100.0, 1e8)
HEADS = (8.0, 128.0, 1e4)

LONGEST = math.log(LONG_KERNEL / 1e-6)
ROWS, TOKENS = math.log(4096.0), math.log(131072.0)

ENDS: dict[str, dict[int, tuple[float | None, float | None]]] = {
    "gemm": {
        0: (-6, 6), 1: (None, LONGEST), 3: (0, 5), 8: (0, ROWS), 9: (0, ROWS), 10: (-6, 6),
        12: (-8, 6), 13: (-8, 6), 20: (3, 10), 22: (0, 4), 24: (0, 4), 26: (0, 4),
    },
    "attention_prefill": {
        0: (-6, None), 1: (None, LONGEST), 2: (-4, 2), 3: (0, 4), 5: (0, 4), 14: (None, 4),
        15: (None, 4), 17: (-2, None), 18: (-2, None), 19: (-2, None), 20: (-2, None),
    },
    "attention_decode": {
        0: (-6, None), 1: (None, LONGEST), 2: (None, 4), 3: (-6, 6),
        4: (math.log(16.0), math.log(65536.0)), 5: (0, math.log(128.0)),
        11: (math.log(16.0), TOKENS),
    },
    "moe_gemm": {
        0: (-6, 6), 1: (None, LONGEST + math.log(4.0)), 2: (-6, 6), 3: (0, ROWS), 7: (-8, 6),
        9: (0, TOKENS), 11: (-4, 4), 12: (-4, 4), 13: (-4, 4),
    },
}  # fmt: skip
"""Least and most of features that have an end, in logarithms but for the power of two of a
product's rows."""


@pytest.mark.parametrize("op", ENDS)
def test_sizes_that_nobody_timed_say_no_more_than_the_last_that_were(op: str) -> None:
    rows = (1.0, 8.0, 1e3, 1e5) if op == "attention_decode" else (1.0, 8.0, 1e3, 1e8)
    deep = HEADS if op.startswith("attention") else SIDES
    found = np.stack([
        ideal(shapes(op, m, n, k, batch), H100).features[0]
        for m, n, k, batch in itertools.product(rows, SIDES, deep, BATCHES)
    ])  # fmt: skip
    assert np.isfinite(found).all()
    for at, (least, most) in ENDS[op].items():
        if least is not None:
            assert found[:, at].min() == pytest.approx(least, abs=1e-9), at
        if most is not None:
            assert found[:, at].max() == pytest.approx(most, abs=1e-9), at

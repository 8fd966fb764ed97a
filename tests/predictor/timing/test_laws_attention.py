"""Waves of blocks of query rows, by limits."""

from __future__ import annotations

import numpy as np
import pytest

from predictor.timing.attention import attention
from predictor.timing.shapes import Shapes
from tests.predictor.timing.test_laws_timing import DEVICE, SMS


def time(rows: float, heads: float, sharing: float = 1.0, keys: float = 4096.0) -> float:
    """Of prompts behind so many cached keys, with next to no traffic."""
    numbers = {"m": rows, "n": keys, "k": 128.0, "batch": heads, "bytes": 1.0}
    columns = {name: np.array([value]) for name, value in numbers.items()}
    own = Shapes(
        "attention_prefill", "bf16", ("flash",), variant=np.zeros(1), sharing=np.array([sharing]),
        flop=np.array([4.0 * rows * keys * 128.0 * heads]), **columns,
    )  # fmt: skip
    return float(attention(own, DEVICE).time[0])


@pytest.mark.parametrize("rows", [17.0, 33.0, 70.0])
@pytest.mark.parametrize("sharing", [2.0, 4.0, 8.0])
def test_heads_that_share_keys_are_as_many_rows_of_one(rows: float, sharing: float) -> None:
    """Packed, rows of four heads of the same keys take what four times the rows of one head take,
    where that fills blocks better than each head by itself."""
    together = time(rows, 8.0 * SMS, sharing)
    one = time(rows * sharing, 8.0 * SMS / sharing)
    assert together == pytest.approx(min(one, time(rows, 8.0 * SMS)))
    assert together <= time(rows, 8.0 * SMS)


def test_a_row_more_than_a_block_is_a_block_more() -> None:
    """As long as no wider block holds both; and no block takes less than its arithmetic."""
    assert time(65.0, 2.0 * SMS) == pytest.approx(2.0 * time(64.0, 2.0 * SMS))
    assert time(64.0, 2.0 * SMS) == pytest.approx(2.0 * time(64.0, SMS))
    assert time(64.0, SMS, keys=8192.0) == pytest.approx(2.0 * time(64.0, SMS))

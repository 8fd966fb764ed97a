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


def walks(rows: float, heads: float, sharing: float) -> np.ndarray:
    """Features that say how much longer blocks that are not packed, and packed ones, walk."""
    numbers = {"m": rows, "n": 4096.0, "k": 128.0, "batch": heads, "bytes": 1.0}
    columns = {name: np.array([value]) for name, value in numbers.items()}
    own = Shapes(
        "attention_prefill", "bf16", ("flash",), variant=np.zeros(1), sharing=np.array([sharing]),
        flop=np.array([4.0 * rows * 4096.0 * 128.0 * heads]), **columns,
    )  # fmt: skip
    return attention(own, DEVICE).features[0, -4:]


def test_heads_that_share_keys_are_told_apart_as_far_as_models_have_them() -> None:
    """One row of each of sixteen heads of the same keys fills a quarter of a block that each would
    take for itself: sixteen times the waves. Beyond some fifty, of which no model is known, more
    are more of the same."""
    found = walks(1.0, 16.0 * 4.0 * SMS, 16.0)
    assert found[:2] == pytest.approx([np.log(16.0), np.log(32.0)])
    assert found[2:] == pytest.approx([0.0, np.log(2.0)], abs=1e-12)
    many = [walks(1.0, sharing * 4.0 * SMS, sharing) for sharing in (256.0, 512.0)]
    assert many[0][:2] == pytest.approx(many[1][:2])
    assert (many[0][:2] < np.log(64.0)).all()

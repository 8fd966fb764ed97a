"""Rows of kernels beside their predictions."""

from __future__ import annotations

import pandas as pd
import pytest

from calibration.checks.kernel_rows import held, predicted_rows
from calibration.checks.strangers import between_sources
from calibration.tables.kernel_table import check_kernels
from predictor.catalog.artifacts import load
from predictor.errors import InputError

PRODUCT = {
    "accelerator": "H200-SXM-141GB",
    "op": "gemm",
    "dtype": "bf16",
    "m": 8192.0,
    "n": 8192.0,
    "k": 8192.0,
    "latency_us": 1500.0,
    "source": "someone",
}


def test_rows_with_their_power_ran_long_enough_to_settle_under_the_limit() -> None:
    small = {**PRODUCT, "m": 8.0}
    rows = [PRODUCT, {**PRODUCT, "power_w": 690.0}, small, {**small, "power_w": 400.0}]
    table = check_kernels(pd.DataFrame(rows), "rows")
    assert held(table).tolist() == [False, True, False, True]
    with pytest.raises(InputError, match="line 3: power_w must be a number"):
        check_kernels(pd.DataFrame([PRODUCT, {**PRODUCT, "power_w": "lots"}]), "rows")
    found = {row.point_id: row.predicted for row in predicted_rows(table, load("kernels-only"))}
    assert found["1"] > 1.02 * found["0"]  # a large product slows under its own power
    assert found["3"] < 1.06 * found["2"]  # one that waits for memory hardly does


def test_a_handful_of_rows_does_not_tell_how_much_harnesses_differ() -> None:
    """Forty products of one source, off by 1 to 2 times; four of another, as predicted."""
    known = load("kernels-only")
    sizes = [{**PRODUCT, "m": 2048.0 + 128.0 * i, "source": "a"} for i in range(40)]
    sizes += [{**PRODUCT, "m": 2048.0 + 128.0 * i, "source": "b"} for i in range(4)]
    table = check_kernels(pd.DataFrame(sizes), "rows")
    times = [row.predicted for row in predicted_rows(table, known)]
    off = [1.0 + i / 40 for i in range(40)] + [1.0] * 4
    table = table.assign(latency_us=[t * o for t, o in zip(times, off, strict=True)])
    alone = between_sources(table[table["source"] == "a"], known, 0.8)
    assert alone > 0.1
    assert between_sources(table, known, 0.8) == pytest.approx(alone)

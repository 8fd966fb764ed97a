"""Rows of kernels beside their predictions."""

from __future__ import annotations

import pandas as pd
import pytest

from calibration.checks.kernel_rows import held, predicted_rows
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

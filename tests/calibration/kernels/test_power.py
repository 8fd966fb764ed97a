from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from calibration.kernels.power import achieved, power_left_out
from calibration.tables.kernel_table import check_kernels
from predictor import catalog
from predictor.timing.shapes import power_limit

NAMES = ["A100-SXM4-80GB", "H100-SXM5-80GB", "B200-SXM-180GB", "B300-SXM-288GB", "L40S-48GB"]


def products(share: dict[str, float]) -> pd.DataFrame:
    """Products of two sizes that run at a share of the peak."""
    rows = [
        {"accelerator": name, "op": "gemm", "dtype": "bf16", "m": size, "n": size, "k": size,
         "latency_us": 2e6 * size**3 / (reach * catalog.accelerator(name).peak["bf16"])}
        for name, reach in share.items()
        for size in (512.0, 4096.0, 8192.0)
    ]  # fmt: skip
    return check_kernels(pd.DataFrame(rows), "t")


def test_only_large_products_count() -> None:
    table = products({"A100-SXM4-80GB": 0.8})
    slow = table.assign(latency_us=table["latency_us"] * np.where(table["m"] < 4096, 9.0, 1.0))
    assert achieved(slow) == {"A100-SXM4-80GB": pytest.approx(0.8)}


def test_accelerators_that_follow_the_ceiling_are_found_without_them() -> None:
    truth = {name: 0.9 * float(power_limit(catalog.accelerator(name))) for name in NAMES}
    for name, found in power_left_out(products(truth)).items():
        assert found.shipped == pytest.approx(truth[name], rel=1e-6)
        assert found.left_out == pytest.approx(truth[name], rel=0.08)


def test_one_that_does_not_moves_alone() -> None:
    truth = {name: 0.9 * float(power_limit(catalog.accelerator(name))) for name in NAMES}
    odd = power_left_out(products({**truth, "L40S-48GB": 0.5 * truth["L40S-48GB"]}))["L40S-48GB"]
    assert odd.achieved == pytest.approx(0.5 * truth["L40S-48GB"])
    assert odd.left_out == pytest.approx(truth["L40S-48GB"], rel=0.04)

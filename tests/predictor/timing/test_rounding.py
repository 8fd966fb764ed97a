"""What arithmetic leaves some ulps off is what it stands for."""

from __future__ import annotations

import numpy as np
import pytest

from predictor import catalog
from predictor.catalog import load
from predictor.timing.kernels import operator_times
from predictor.work.primitives import Operator

KNOWN = load("default")


def experts(rows: np.ndarray, flop: np.ndarray, dtype: str, idle: float) -> Operator:
    """Sixteen gated experts of 2,048 by 7,168."""
    ones, count = np.ones_like(rows), 16.0
    moved = count * (3.0 * 2048.0 * 7168.0 + rows * (2.0 * 7168.0 + 3.0 * 2048.0))
    return Operator(
        name="experts", op="moe_gemm", variant="fwd", phase="forward", module="moe", dtype=dtype,
        m=rows, n=2048.0 * ones, k=7168.0 * ones, batch=count * ones, flop=flop, bytes=moved,
        count=1.0, saved=0.0, core=False, idle=idle,
    )  # fmt: skip


@pytest.mark.parametrize("system", ["dgx-h100", "dgx-h200", "dgx-b200"])
@pytest.mark.parametrize("dtype", ["bf16", "fp8_block"])
@pytest.mark.parametrize("idle", [0.0, 15.0])
@pytest.mark.parametrize("library", ["", "vllm", "trtllm"])
def test_experts_take_as_long_however_their_flops_were_added_up(
    system: str, dtype: str, idle: float, library: str
) -> None:
    """Three matrices are three, some ulps more or fewer: a rule for shapes that nobody timed asks
    what lies outside of those that were, and halved the time of every other number of rows."""
    rows = np.geomspace(8.0, 2000.0, 60)
    flop = 6.0 * rows * 2048.0 * 7168.0 * 16.0
    accelerator = catalog.system(system).accelerator
    exact, less, more = (
        operator_times(
            [experts(rows, flop * (1.0 + part), dtype, idle)], accelerator, KNOWN, rows.shape,
            library=library,
        ).time
        for part in (0.0, -4e-16, 4e-16)
    )  # fmt: skip
    np.testing.assert_allclose(less, exact, rtol=1e-9)
    np.testing.assert_allclose(more, exact, rtol=1e-9)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("H200-SXM-141GB", "fp8_block"), ("H100-SXM5-80GB", "bf16"), ("B200-SXM-180GB", "nvfp4"),
     ("A100-SXM4-80GB", "bf16"), ("L40S-48GB", "fp8"), ("MI300X-192GB", "bf16")],
)  # fmt: skip
@pytest.mark.parametrize("idle", [0.0, 7.0, 15.0])
@pytest.mark.parametrize("library", ["", "vllm", "trtllm"])
def test_experts_take_no_less_for_more_tokens(
    name: str, dtype: str, idle: float, library: str
) -> None:
    """From 2 to 2,000 tokens of each, whole tiles or not: no step of 4 % takes an eighth less, and
    nine of ten no less but for a fiftieth. (Tables hold powers of two and half as much again:
    between these, times fell to a seventh.)"""
    rows = np.geomspace(2.0, 2000.0, 160)
    flop = 6.0 * rows * 2048.0 * 7168.0 * 16.0
    found = operator_times(
        [experts(rows, flop, dtype, idle)], catalog.accelerator(name), KNOWN, rows.shape,
        library=library,
    ).time[0]  # fmt: skip
    steps = found[1:] / found[:-1]
    assert steps.min() > 0.875
    assert np.quantile(steps, 0.1) > 0.98

"""Casts that tables of narrow products time with the product."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from calibration.kernels.casts import casts, with_casts
from calibration.tables.kernel_table import check_kernels

SIZES = 2.0 ** np.arange(5, 14)


def table(added: dict[str, float]) -> pd.DataFrame:
    """Products that take 3 us and their traffic; narrow ones what a library's cast adds, too."""
    m, n = (x.ravel() for x in np.meshgrid([1.0, 8.0, 512.0], SIZES))
    parts = []
    for library, cast in added.items():
        for dtype, more in (("bf16", 0.0), ("fp8", cast)):
            time = 3.0 + n * 1024.0 / 1e6 + more
            parts.append(pd.DataFrame({"accelerator": "H100-SXM5-80GB", "op": "gemm", "m": m,
                                       "n": n, "k": 1024.0, "dtype": dtype, "framework": library,
                                       "latency_us": time}))  # fmt: skip
    return check_kernels(pd.concat(parts, ignore_index=True), "t")


def test_a_cast_is_what_the_smallest_products_take_more() -> None:
    found = casts(table({"trtllm": 9.0, "vllm": 2.0}))
    own = found["fp8", "H100-SXM5-80GB"]
    assert own["trtllm"] == pytest.approx(9e-6)
    assert own["vllm"] == pytest.approx(2e-6)
    assert own[""] == pytest.approx(5.5e-6)


def test_a_table_without_wide_products_says_nothing() -> None:
    rows = table({"trtllm": 9.0})
    assert casts(rows[rows["dtype"] == "fp8"]) == {}


def test_a_library_faster_than_in_16_bits_has_no_cast() -> None:
    assert casts(table({"sglang": -1.0}))["fp8", "H100-SXM5-80GB"]["sglang"] == 0.0


def test_pooled_models_have_the_mean_of_their_accelerators() -> None:
    from tests.predictor.timing.test_likeness import model

    models = {("gemm", "fp8", place): model(place, 0.3) for place in ("a", "b", "*hopper", "*ada")}
    known = {("fp8", "a"): {"": 2e-6}, ("fp8", "b"): {"": 4e-6}}
    found = with_casts(models, known, {"a": "hopper", "b": "hopper"})
    assert found["gemm", "fp8", "a"].casts == {"": 2e-6}
    assert found["gemm", "fp8", "*hopper"].casts == {"": pytest.approx(3e-6)}
    assert not found["gemm", "fp8", "*ada"].casts

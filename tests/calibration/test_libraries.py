"""Kernel libraries as a factor on neutral times."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from calibration.libraries import library, neutral, typical
from calibration.tables import check_kernels

FACTORS = {"sglang": 0.06, "trtllm": -0.01, "vllm": -0.05}
SIZES = 2.0 ** np.arange(3, 13)


def rows(names: list[str], base: float = 10.0) -> pd.DataFrame:
    m, n = (x.ravel() for x in np.meshgrid(SIZES, SIZES))
    one = pd.DataFrame({"accelerator": "A100-SXM4-80GB", "op": "gemm", "dtype": "bf16",
                        "m": m, "n": n, "k": 64.0})  # fmt: skip
    time = base * (1 + m * n / 1e5)
    return check_kernels(
        pd.concat(
            [one.assign(framework=f, latency_us=time * np.exp(FACTORS[f])) for f in names],
            ignore_index=True,
        ),
        "t",
    )


def test_constants_add_up_to_nothing_over_the_libraries() -> None:
    found = typical({"a": rows(list(FACTORS)), "b": rows(["vllm", "sglang"])})
    assert found == pytest.approx(FACTORS)
    assert sum(found.values()) == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("names", [["sglang", "trtllm", "vllm"], ["vllm", "sglang"], ["trtllm"]])
def test_the_neutral_time_does_not_depend_on_who_measured(names: list[str]) -> None:
    table, constants = neutral(rows(names), FACTORS)
    expected = 10.0 * (1 + table["m"] * table["n"] / 1e5)
    assert len(table) == len(SIZES) ** 2
    np.testing.assert_allclose(table["latency_us"], expected, rtol=1e-9)
    assert constants == pytest.approx(FACTORS)


def test_rows_without_a_library_stay_as_they_are() -> None:
    plain = rows(["vllm"]).assign(framework="")
    table, constants = neutral(plain, FACTORS)
    assert table is plain
    assert constants == FACTORS


@pytest.mark.parametrize(
    ("text", "name"),
    [("TensorRT-LLM 1.3", "trtllm"), ("vllm", "vllm"), ("SGLang 0.5.14", "sglang"), ("", "")],
)
def test_libraries_are_known_by_their_tables_names(text: str, name: str) -> None:
    assert library(text) == name

"""Kernel libraries: neutral times, and the library as an input of a fit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from calibration.artifact import write
from calibration.kernels.models import fit_kernels
from calibration.tables.kernel_table import check_kernels, shapes_of
from calibration.tables.libraries import library, neutral, typical
from predictor.catalog.artifacts import load
from predictor.hardware.accelerators import Accelerator
from predictor.timing.calibration import Calibration
from predictor.timing.kernels import shape_times
from tests.calibration.conftest import gemm_table

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
    table = neutral(rows(names), FACTORS)
    expected = 10.0 * (1 + table["m"] * table["n"] / 1e5)
    assert len(table) == len(SIZES) ** 2
    np.testing.assert_allclose(table["latency_us"], expected, rtol=1e-9)


@pytest.mark.parametrize(("slower", "heard"), [(3.0, True), (40.0, False)])
def test_a_kernel_that_was_not_made_for_a_shape_says_nothing_of_it(
    slower: float, heard: bool
) -> None:
    """Of an attention kernel that takes many times what others take, their times are the neutral
    ones; of one that is a little slower, the mean of all."""
    table = rows(list(FACTORS)).assign(op="attention_decode")
    lame = (table["framework"] == "trtllm") & (table["m"] == SIZES[0]) & (table["n"] == SIZES[1])
    table["latency_us"] *= np.where(lame, slower, 1.0)
    found = neutral(table, FACTORS)
    one = found[(found["m"] == SIZES[0]) & (found["n"] == SIZES[1])]["latency_us"].item()
    others = 10.0 * (1 + SIZES[0] * SIZES[1] / 1e5)
    # Its constants are means over the shapes, so that one of a hundred moves them a little.
    assert one / others == pytest.approx(slower ** (1 / 3) if heard else 1.0, rel=0.03)


def test_rows_without_a_library_stay_as_they_are() -> None:
    plain = rows(["vllm"]).assign(framework="")
    assert neutral(plain, FACTORS) is plain


def test_a_library_is_an_input_of_the_fit(a100: Accelerator, tmp_path: Path) -> None:
    """Two libraries, one slower on large products only: a constant each cannot say that."""
    sizes = [64, 128, 320, 512, 1000, 2048, 4096]
    plain = gemm_table("A100-SXM4-80GB", sizes, 0.7, 4.0)
    large = plain["m"] * plain["n"] * plain["k"] > 1e9
    slow = plain["latency_us"] * np.where(large, 1.5, 1.0)
    both = [plain.assign(framework="vllm"), plain.assign(framework="trtllm", latency_us=slow)]
    fitted = fit_kernels(pd.concat(both, ignore_index=True), pool=False)
    key = ("gemm", "bf16", "A100-SXM4-80GB")
    assert fitted.heldout[key].mape < 0.08
    model = fitted.models[key]
    assert set(model.stacks) == {"vllm", "trtllm"}
    write(Calibration("x", kernels=fitted.models), tmp_path / "c")
    known = load(tmp_path / "c")
    shapes = shapes_of(plain, "gemm", "bf16")
    time = {
        name: shape_times(shapes, a100, known, library=name)[0]
        for name in ("", "vllm", "trtllm", "nobody")
    }
    ratio = time["trtllm"] / time["vllm"]
    assert np.median(ratio[large]) == pytest.approx(1.5, abs=0.08)
    assert np.median(ratio[~large]) == pytest.approx(1.0, abs=0.08)
    middle = np.sqrt(time["trtllm"] * time["vllm"])
    assert np.median(np.abs(time[""] / middle - 1.0)) < 0.04
    np.testing.assert_array_equal(time["nobody"], time[""])


def test_a_library_that_nobody_else_timed_stands_for_all() -> None:
    table = gemm_table("A100-SXM4-80GB", [64, 256, 1000, 4096], 0.7, 4.0)
    named = fit_kernels(table.assign(framework="pytorch 2.13"), pool=False)
    plain = fit_kernels(table, pool=False)
    key = ("gemm", "bf16", "A100-SXM4-80GB")
    assert named.models[key].points == plain.models[key].points == len(table)
    assert not named.models[key].stacks


@pytest.mark.parametrize(
    ("text", "name"),
    [("TensorRT-LLM 1.3", "trtllm"), ("vllm", "vllm"), ("SGLang 0.5.14", "sglang"), ("", "")],
)
def test_libraries_are_known_by_their_tables_names(text: str, name: str) -> None:
    assert library(text) == name

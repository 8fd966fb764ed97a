from __future__ import annotations

import numpy as np
import pytest

from calibration.checks.kernels import FOLDS, few_shots, heldout, library_left_out, summary
from predictor import catalog
from tests.calibration.tables.test_libraries import FACTORS, rows

FOLDER = catalog.calibration_dir("kernels-only")


def test_every_model_of_an_accelerator_has_its_error() -> None:
    table = heldout(FOLDER)
    assert set(FOLDS.values()) == set(table["fold"])
    gemm = table[(table["kind"] == "gemm") & (table["dtype"] == "bf16")]
    assert len(gemm[gemm["fold"] == "accelerator left out"]) >= 9
    assert (table["points"] >= 0).all()


def test_the_summary_averages_over_accelerators() -> None:
    table, found = heldout(FOLDER), summary(FOLDER)
    one = found[(found["kind"] == "gemm") & (found["dtype"] == "bf16")].set_index("fold")
    own = table[(table["kind"] == "gemm") & (table["dtype"] == "bf16")]
    for fold, group in own.groupby("fold"):
        assert one.loc[fold, "mape"] == pytest.approx(group["mape"].mean())
        assert one.loc[fold, "most"] == group["mape"].max()


def test_products_meet_what_is_asked_of_relatives() -> None:
    """Left out altogether, predicted from its architecture; measured libraries row by row."""
    table = heldout(FOLDER)
    gemm = table[(table["kind"] == "gemm") & (table["dtype"] == "bf16")]
    left = gemm[gemm["fold"] == "accelerator left out"].set_index("place")["mape"]
    for name in ("H100-SXM5-80GB", "H200-SXM-141GB", "B200-SXM-180GB", "GB200-186GB"):
        assert left[name] < 0.09


def test_bending_does_not_make_it_worse() -> None:
    found = few_shots(FOLDER)
    assert len(found) > 20
    assert (found["own_bent"] < found["own"] + 0.005).all()
    assert (found["bent"] < found["relatives"] + 0.005).mean() > 0.8


def test_a_library_is_predicted_from_the_others() -> None:
    both = {"a": rows(list(FACTORS)), "b": rows(list(FACTORS), base=30.0)}
    found = library_left_out(both, {name: name for name in both})
    assert len(found) == 6
    assert found["mape"].max() < 1e-9
    shifted = {**both, "b": both["b"].assign(latency_us=lambda t: t["latency_us"].where(
        t["framework"] != "vllm", 1.2 * t["latency_us"]))}  # fmt: skip
    off = library_left_out(shifted, {name: name for name in shifted}).set_index(
        ["accelerator", "library"]
    )
    assert off.loc[("b", "vllm"), "bias"] == pytest.approx(-np.log(1.2))

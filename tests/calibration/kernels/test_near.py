"""Few points and what they say of shapes nearby."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from calibration.artifact import write
from calibration.heldout import errors
from calibration.kernels.fit import (
    SIZES,
    Points,
    fit_checked,
    fit_near,
    fit_points,
    predict_points,
)
from calibration.kernels.near import fitted
from predictor.catalog.artifacts import load
from predictor.timing.calibration import ANY, Calibration


def points(count: int, seed: int, variants: int = 1) -> Points:
    """Times whose efficiency bends with the features as no product of two of them does."""
    rng = np.random.default_rng(seed)
    features = rng.uniform(-1, 1, (count, 3))
    side = rng.integers(variants, size=count)
    y = 1.5 + features[:, 0] + np.sin(3 * features[:, 1]) * (1 - 2 * side) + 0.4 * side
    ideal = np.exp(rng.uniform(-9, -6, count))
    names = np.array(["fwd", "bwd"], dtype=object)[side]
    text = np.full(count, "cpu", dtype=object)
    time = 1e-6 + ideal * np.exp(np.maximum(y, 0))
    latency = np.full(count, 1e-6)
    return Points(
        features=features, ideal=ideal, time=time, latency=latency, variant=names, group=text,
        keys=rng.random(count), library=text == "", sizes=np.ones((count, len(SIZES))),
    )  # fmt: skip


def plain(found: Points) -> Points:
    """The same without libraries."""
    return replace(found, library=np.full(len(found.time), "", dtype=object))


@pytest.mark.parametrize("variants", [1, 2])
def test_points_nearby_say_more_than_products_of_features(variants: int) -> None:
    seen, unseen = plain(points(90, 0, variants)), plain(points(200, 1, variants))
    near = errors(predict_points(fit_near(seen, "gemm", "fp32", "cpu"), unseen), unseen.time)
    ridge = errors(predict_points(fit_points(seen, "gemm", "fp32", "cpu"), unseen), unseen.time)
    assert near.mape < 0.06
    assert near.mape < 0.5 * ridge.mape


def test_the_better_of_both_on_shapes_left_out_is_taken() -> None:
    seen = plain(points(90, 0))
    chosen, found = fit_checked(seen, "gemm", "fp32", "cpu", near=True)
    other, worse = fit_checked(seen, "gemm", "fp32", "cpu")
    assert chosen.near is not None
    assert other.near is None
    assert found.mape < worse.mape


def test_far_from_all_points_only_the_trend_is_left() -> None:
    rng = np.random.default_rng(0)
    z = rng.uniform(-1, 1, (40, 2))
    y = 2.0 + 0.5 * z[:, 0] + 0.3 * np.sin(4 * z[:, 1])
    _, _, _, near = fitted(z, np.full(40, "fwd"), y, np.ones(40))
    assert abs(near(np.array([[60.0, 60.0]]))[0]) < 1e-6


def test_a_model_with_points_is_written_and_read(tmp_path: Path) -> None:
    seen, unseen = plain(points(60, 0, 2)), plain(points(50, 3, 2))
    model = replace(fit_near(seen, "gemm", "fp32", "cpu"), lags={"fwd": 2e-6, "bwd": -1e-6})
    key = ("gemm", "fp32", "cpu")
    write(Calibration("x", kernels={key: model}), tmp_path / "made")
    read = load(tmp_path / "made").kernels[key]
    assert read.lags == pytest.approx(dict(model.lags))
    np.testing.assert_allclose(
        predict_points(read, unseen), predict_points(model, unseen), rtol=1e-3
    )


def test_pooled_models_have_no_latency_of_a_variant() -> None:
    seen = plain(points(60, 0, 2))
    mixed = replace(seen, latency=np.where(seen.variant == "fwd", 3e-6, 1e-6))
    own = fit_points(mixed, "norm", "fp32", "cpu")
    lags = dict(own.lags)
    assert lags["fwd"] - lags["bwd"] == pytest.approx(2e-6)
    assert not fit_points(mixed, "norm", "fp32", ANY).lags

"""Pools of few points that lean on what many say."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from calibration.kernels.fit import SIZES, Points, fit_points, inefficiency
from calibration.kernels.leaning import leaning, leans, support
from predictor.timing import VENDOR, EfficiencyModel

FEATURES = 4


def points(count: int, shift: float, seed: int = 0) -> Points:
    """Kernels of the same law, less efficient by `shift`."""
    rng = np.random.default_rng(seed)
    features = rng.uniform(-1, 1, (count, FEATURES))
    y = 0.6 + 0.4 * features[:, 0] * features[:, 1] + 0.2 * features[:, 2] + shift
    ideal = np.exp(rng.uniform(-8, -5, count))
    text = np.full(count, "a", dtype=object)
    return Points(
        features=features, ideal=ideal, time=1e-6 + ideal * np.exp(y),
        latency=np.full(count, 1e-6), variant=np.full(count, "fwd", dtype=object), group=text,
        keys=rng.random(count), library=np.full(count, "", dtype=object),
        sizes=np.ones((count, len(SIZES))),
    )  # fmt: skip


def model(found: Points, place: str, dtype: str = "bf16") -> EfficiencyModel:
    return fit_points(found, "gemm", dtype, place)


def test_a_pool_that_leans_says_more_of_other_shapes_than_it_saw() -> None:
    """Sixty points and the law of many, shifted: nearer to others than sixty points alone."""
    many, few, others = points(1500, 0.0), points(60, 0.3, 1), points(400, 0.3, 2)
    known = model(many, f"{VENDOR}NVIDIA")
    alone = model(few, "*x")
    lent = leaning(alone, few, known)
    missed = [np.abs(inefficiency(one, others) - others.y).mean() for one in (alone, known, lent)]
    assert missed[2] < missed[1]
    assert (lent.accelerator, lent.points, lent.stacks) == ("*x", 60, {})


def test_nothing_is_better_than_the_best_that_was_seen() -> None:
    """Where arithmetic binds, which the first feature says."""
    few, known = points(60, 0.3, 1), model(points(1500, 0.0), f"{VENDOR}NVIDIA")
    lent = replace(leaning(model(few, "*x"), few, known), tilt=np.array([-9.0] + FEATURES * [0.0]))
    bound = few.features[:, 0] > 0
    assert lent.inefficiency(few.features)[bound] == pytest.approx(lent.least)
    assert (lent.inefficiency(few.features)[~bound] == 0.0).all()
    assert np.mean(few.y[bound] < lent.least) < 0.1


def test_who_leans_and_on_whom() -> None:
    """A few dozen to some thousand points; the model with most, of a related type if need be."""
    assert leans(points(60, 0.0), "gemm")
    assert not leans(points(10, 0.0), "gemm")
    assert not leans(points(60, 0.0), "norm.fwd")
    small, large = (model(points(n, 0.0), f"{VENDOR}{v}", "fp8") for n, v in ((50, "A"), (90, "B")))
    models = {("gemm", "fp8", one.accelerator): one for one in (small, large)}
    assert support(models, "gemm", "fp8") is large
    assert support(models, "gemm", "int8") is large
    assert support(models, "norm.fwd", "*") is None

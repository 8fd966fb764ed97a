"""Bending a model to few points of a device."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from calibration.kernels.fewshot import bend, few_shot_trial
from calibration.kernels.fit import Points, fit_points, points_of, predict_points
from predictor import catalog
from tests.calibration.conftest import gemm_table

SIZES = [256, 512, 1024, 2048, 4096]
DEVICE = catalog.accelerator("A100-SXM4-80GB")


def points(efficiency: float, noise: float = 0.0, seed: int = 0) -> Points:
    table = gemm_table("A100-SXM4-80GB", SIZES, efficiency, 3.0)
    shaken = np.exp(noise * np.random.default_rng(seed).standard_normal(len(table)))
    return points_of(table.assign(latency_us=table["latency_us"] * shaken), DEVICE, "gemm", "bf16")


@pytest.fixture(scope="module")
def base() -> object:
    return fit_points(points(0.8), "gemm", "bf16", "A100-SXM4-80GB")


def mape(model: object, test: Points) -> float:
    return float(np.abs(predict_points(model, test) / test.time - 1.0).mean())  # type: ignore[arg-type]


def test_a_slower_device_is_learned_from_sixty_points(base: object) -> None:
    slow = points(0.6)
    few = slow.take(np.random.default_rng(0).permutation(len(slow.time))[:60])
    bent = bend(base, few)  # type: ignore[arg-type]
    assert mape(base, slow) > 0.15
    assert mape(bent, slow) < 0.05


def test_a_model_that_fits_is_not_made_worse(base: object) -> None:
    """In mean over twenty draws of sixty noisy points."""
    noisy, clean = points(0.8, 0.05, 3), points(0.8)
    found = []
    for draw in range(20):
        order = np.random.default_rng(draw).permutation(len(noisy.time))
        found.append(mape(bend(base, noisy.take(order[:60])), clean))  # type: ignore[arg-type]
    assert np.mean(found) < mape(base, clean) + 0.005


def test_too_few_points_change_nothing(base: object) -> None:
    few = points(0.5).take(np.arange(7))
    assert bend(base, few) is base  # type: ignore[arg-type]


def test_efficiency_stays_below_one_when_bent(base: object) -> None:
    fast = points(0.99)
    bent = bend(replace(base, limit=3.0), fast)  # type: ignore[type-var]
    assert (bent.inefficiency(fast.features) >= 0).all()


def test_draws_are_scored_on_other_shapes(base: object) -> None:
    slow = points(0.6)
    own = fit_points(slow, "gemm", "bf16", "A100-SXM4-80GB")
    found = few_shot_trial(base, own, slow)  # type: ignore[arg-type]
    assert found.bent < 0.5 * found.relatives
    assert found.own_bent < found.own + 0.005


def test_calibrating_a_new_device_starts_from_its_relatives() -> None:
    """Sixty points of an unknown Hopper: relatives bent to them beat a fit of sixty points."""
    from calibration.kernels.models import fit_kernels
    from predictor.catalog.artifacts import load

    device = replace(catalog.accelerator("H100-SXM5-80GB"), name="H100-mine")
    rng = np.random.default_rng(0)
    table = gemm_table("H100-SXM5-80GB", SIZES, 0.7, 2.3).assign(accelerator="H100-mine")
    few = table.iloc[rng.permutation(len(table))[:60]].reset_index(drop=True)
    known = {"H100-mine": device}
    fitted = fit_kernels(few, known, pool=False, base=load("kernels-only"))
    key = ("gemm", "bf16", "H100-mine")
    alone = fit_kernels(few, known, pool=False)
    assert fitted.heldout[key].mape <= alone.heldout[key].mape
    test = points_of(table, device, "gemm", "bf16")
    assert mape(fitted.models[key], test) < 0.12


def test_what_a_related_type_lent_is_kept_under_its_own_name(tmp_path: Path) -> None:
    """Hopper's bf16 products bent to tf32 ones of a new device, written and read back."""
    from calibration.artifact import write
    from calibration.kernels.models import fit_kernels
    from predictor.catalog.artifacts import load
    from predictor.timing.calibration import Calibration

    known = load("kernels-only")
    only = {k: m for k, m in known.kernels.items() if k[:2] == ("gemm", "bf16")}
    base = replace(known, kernels=only)
    device = replace(catalog.accelerator("H100-SXM5-80GB"), name="H100-mine", architecture="hopper")
    table = gemm_table("H100-SXM5-80GB", [512, 1024, 2048], 0.6, 2.3)
    table = table.assign(accelerator="H100-mine", dtype="tf32", framework="vLLM 0.24")
    fitted = fit_kernels(table, {"H100-mine": device}, pool=False, base=base)
    key = ("gemm", "tf32", "H100-mine")
    assert (fitted.models[key].kind, fitted.models[key].dtype) == key[:2]
    write(Calibration("x", kernels={**base.kernels, **fitted.models}), tmp_path / "c")
    assert set(load(tmp_path / "c").kernels) == {*only, key}

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from calibration.heldout import errors
from calibration.kernels.derived import derive_backward
from calibration.kernels.fit import Points, latency_of, points_of, predict_points, predict_unseen
from calibration.kernels.models import fit_kernels
from calibration.kernels.throttle import fit_throttle
from predictor import catalog
from predictor.hardware.accelerators import Accelerator
from predictor.timing.calibration import ANY, Calibration
from predictor.timing.kernels import shape_times
from predictor.timing.shapes import Shapes
from tests.calibration.conftest import gemm_table

SIZES = [64, 96, 192, 320, 512, 1000, 1536, 2048, 4096, 8192]
FEW = [*SIZES[2::2], 8192]
"""Where several accelerators are pooled, and each is left out of the fit in turn; and where it is
no matter how many there are."""


def product(m: float, n: float, k: float) -> Shapes:
    own = {"m": m, "n": n, "k": k, "flop": 2 * m * n * k, "bytes": 2 * (m * k + k * n + m * n)}
    columns = {name: np.array([value]) for name, value in own.items()}
    return Shapes("gemm", "bf16", ("fwd",), variant=np.zeros(1), batch=np.ones(1), **columns)


def predict(fit: Calibration, accelerator: Accelerator, m: float, n: float, k: float) -> float:
    return float(shape_times(product(m, n, k), accelerator, fit)[0][0])


def test_a_known_efficiency_is_found(a100: Accelerator) -> None:
    table = gemm_table("A100-SXM4-80GB", SIZES, 0.7, 4.0)
    fitted = fit_kernels(table, pool=False)
    key = ("gemm", "bf16", "A100-SXM4-80GB")
    assert fitted.heldout[key].mape < 0.03
    model = fitted.models[key]
    assert model.latency == pytest.approx(4e-6, rel=0.15)
    found = predict(Calibration("x", kernels=fitted.models), a100, 3000, 3000, 3000)
    truth = gemm_table("A100-SXM4-80GB", [3000], 0.7, 4.0)["latency_us"].iloc[0] * 1e-6
    assert found == pytest.approx(truth, rel=0.05)


def test_errors_are_those_of_shapes_outside_the_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    from calibration.kernels import fit as fits
    from calibration.kernels import models as kernels

    fitted: list[Points] = []
    tested: list[tuple[Points, Points]] = []
    fit, answer = fits.fit_points, fits.predict_points

    def spy_fit(points: Points, *rest: str) -> object:
        fitted.append(points)
        return fit(points, *rest)

    def spy_answer(model: object, points: Points) -> object:
        tested.append((fitted[-1], points))
        return answer(model, points)  # type: ignore[arg-type]

    monkeypatch.setattr(fits, "fit_points", spy_fit)
    monkeypatch.setattr(fits, "predict_points", spy_answer)
    table = pd.concat([gemm_table("A100-SXM4-80GB", SIZES[2:7], e, 4.0) for e in (0.7, 0.72)])
    kernels.fit_kernels(table.reset_index(drop=True), pool=False)
    assert len(tested) == 5
    for known, unknown in tested:
        assert not set(known.keys) & set(unknown.keys), "no shape is on both sides"
    assert sum(len(unknown.keys) for _, unknown in tested) == len(table)


def test_a_layout_gets_an_offset() -> None:
    plain = gemm_table("A100-SXM4-80GB", FEW, 0.8, 3.0)
    slow = gemm_table("A100-SXM4-80GB", FEW[1:], 0.6, 3.0).assign(layout="wgrad")
    fitted = fit_kernels(pd.concat([plain, slow], ignore_index=True), pool=False)
    offsets = fitted.models[("gemm", "bf16", "A100-SXM4-80GB")].offsets
    assert offsets["fwd"] == 0
    assert offsets["wgrad"] == pytest.approx(np.log(0.8 / 0.6), abs=0.05)


def test_few_points_of_each_layout_are_learned_from_together() -> None:
    """As in a short profile: small products in one layout, large ones in another. The size of the
    large ones is learned although most points are of the first."""
    rng = np.random.default_rng(0)
    small = gemm_table("A100-SXM4-80GB", SIZES[2:5], 0.35, 3.0)
    large = gemm_table("A100-SXM4-80GB", SIZES[7:], 0.7, 3.0).assign(layout="dgrad")
    parts = [t.iloc[rng.permutation(len(t))[:n]] for t, n in ((small, 20), (large, 18))]
    table = pd.concat(parts, ignore_index=True)
    model = fit_kernels(table, pool=False).models["gemm", "bf16", "A100-SXM4-80GB"]
    own = points_of(large, catalog.accelerator("A100-SXM4-80GB"), "gemm", "bf16")
    ratio = predict_points(model, own) / own.time
    assert np.abs(ratio - 1.0).mean() < 0.08
    assert abs(model.offsets["dgrad"]) < 0.1  # it is the size, not the layout


def test_pooling_serves_accelerators_without_data() -> None:
    table = pd.concat(
        [
            gemm_table("A100-SXM4-80GB", FEW, 0.7, 3.0),
            gemm_table("H100-SXM5-80GB", FEW, 0.7, 3.0),
            gemm_table("H200-SXM-141GB", FEW, 0.7, 3.0),
        ],
        ignore_index=True,
    )
    fitted = fit_kernels(table)
    places = {key[2] for key in fitted.models}
    assert {f"{ANY}hopper", f"{ANY}ampere"} <= places
    for found in fitted.transfer.values():
        assert found.mape < 0.15
    assert fitted.transfer_sigma["gemm"] < 0.2


def test_rows_faster_than_the_ceiling_are_left_out() -> None:
    table = gemm_table("A100-SXM4-80GB", FEW, 0.7, 3.0)
    broken = table.assign(latency_us=table["latency_us"].where(table.index % 10 > 0, 1e-3))
    fitted = fit_kernels(broken, pool=False)
    model = fitted.models[("gemm", "bf16", "A100-SXM4-80GB")]
    assert model.points == int((table.index % 10 > 0).sum())


def test_measured_shapes_are_known_as_such(a100: Accelerator) -> None:
    fitted = fit_kernels(gemm_table("A100-SXM4-80GB", FEW, 0.7, 3.0), pool=False)
    known = Calibration("x", kernels=fitted.models)

    def pedigree(m: float) -> str:
        return shape_times(product(m, 512.0, 512.0), a100, known)[3]

    assert pedigree(512.0) == "measured"
    assert pedigree(513.0) == "interpolated"


def test_latency_needs_short_kernels() -> None:
    long = np.full(20, 1e-3)
    assert latency_of(long, 0.9 * long, 3e-6) == 3e-6
    short = np.linspace(5e-6, 6e-6, 20)
    assert latency_of(short, 1e-8 * np.ones(20), 3e-6) == pytest.approx(4.5e-6, rel=0.01)


def test_a_missing_backward_pass_follows_the_forward_pass() -> None:
    rng = np.random.default_rng(0)
    rows = []
    for accelerator in ("A100-SXM4-80GB", "H100-SXM5-80GB"):
        for _ in range(60):
            s, heads = 2.0 ** rng.integers(9, 13), 2.0 ** rng.integers(3, 6)
            flop = 0.5 * 4 * heads * s * s * 128
            rate = 150e12 if accelerator.startswith("A100") else 500e12
            base = {
                "accelerator": accelerator,
                "dtype": "bf16",
                "batch": 1.0,
                "heads": heads,
                "kv_heads": heads,
                "q_len": s,
                "kv_len": s,
                "head_dim": 128.0,
                "causal": 1.0,
            }
            rows.append({**base, "op": "attention_prefill", "latency_us": flop / rate * 1e6 + 5})
            if accelerator.startswith("A100"):
                slow = 2.5 * flop / (0.8 * rate)
                rows.append({**base, "op": "attention_backward", "latency_us": slow * 1e6 + 5})
    from calibration.tables.kernel_table import check_kernels

    fitted = fit_kernels(check_kernels(pd.DataFrame(rows), "t"))
    derived = fitted.models[("attention_backward", "bf16", "H100-SXM5-80GB")]
    assert derived.offsets["flash"] == pytest.approx(np.log(1 / 0.8), abs=0.08)
    devices = {name: catalog.accelerator(name) for name in ("A100-SXM4-80GB", "H100-SXM5-80GB")}
    derive_backward(fitted.models, devices)  # again: nothing measured is overwritten
    own = fitted.models[("attention_backward", "bf16", "A100-SXM4-80GB")]
    assert own.offsets["flash"] == pytest.approx(0.0, abs=1e-12)


def test_a_missing_layout_follows_those_that_were_timed() -> None:
    parts = [
        gemm_table("A100-SXM4-80GB", SIZES[::2], 0.8, 3.0),
        gemm_table("A100-SXM4-80GB", SIZES[3::2], 0.7, 3.0).assign(layout="wgrad"),
        gemm_table("H100-SXM5-80GB", SIZES[::2], 0.6, 3.0),
    ]
    fitted = fit_kernels(pd.concat(parts, ignore_index=True))
    step = np.log(0.8 / 0.7)
    for place in ("A100-SXM4-80GB", "H100-SXM5-80GB", f"{ANY}hopper"):
        offsets = fitted.models[("gemm", "bf16", place)].offsets
        assert offsets["wgrad"] - offsets["fwd"] == pytest.approx(step, abs=0.05)


def test_throttling_is_found() -> None:
    burst = gemm_table("H200-SXM-141GB", [512, 1024, 2048, 4096, 8192], 0.9, 2.0)
    flop = 2 * burst["m"] * burst["n"] * burst["k"]
    time = burst["latency_us"] * 1e-6
    share = flop / time / 989.4e12
    slow = np.exp(0.5 * np.log(np.maximum(share / 0.5, 1.0)) / (1 + time / 2e-3))
    found = fit_throttle(
        burst, burst.assign(latency_us=burst["latency_us"] * slow), "H200-SXM-141GB"
    )
    assert found.gamma == pytest.approx(0.5, abs=0.1)
    assert found.start == pytest.approx(0.5, abs=0.06)


def test_errors_are_relative() -> None:
    found = errors(np.array([1.1, 0.9]), np.array([1.0, 1.0]))
    assert found.mape == pytest.approx(0.1)
    assert isinstance(Points, type)


def test_vendors_do_not_stand_for_each_other() -> None:
    table = pd.concat(
        [
            gemm_table("A100-SXM4-80GB", FEW, 0.8, 3.0),
            gemm_table("H100-SXM5-80GB", FEW, 0.8, 3.0),
            gemm_table("MI300X-192GB", FEW, 0.4, 3.0),
        ],
        ignore_index=True,
    )
    fitted = fit_kernels(table)
    known = Calibration("x", kernels=fitted.models, transfer_sigma=fitted.transfer_sigma)
    volta = known.resolve("gemm", "bf16", catalog.accelerator("V100-SXM2-32GB"))
    assert volta.model is not None
    assert {model.accelerator for model, _ in volta.relatives} == {f"{ANY}ampere", f"{ANY}hopper"}
    assert volta.sigma >= fitted.transfer_sigma["gemm"]
    tpu = known.resolve("gemm", "bf16", catalog.accelerator("TPUv4"))
    assert len(tpu.relatives) == 3  # nobody of its vendor was measured: everybody's
    weights = [weight for _, weight in tpu.relatives]
    assert weights == sorted(weights, reverse=True)
    for name in ("A100-SXM4-80GB", "H100-SXM5-80GB"):
        assert fitted.transfer["gemm", "bf16", name].mape < 0.1
    assert fitted.transfer["gemm", "bf16", "MI300X-192GB"].mape > 0.3


def test_what_is_scored_without_an_accelerator_is_what_would_be_predicted() -> None:
    """Products in blocks of fp8 take 30 times their ideal on the one relative that was timed, those
    in bf16 little more than theirs: nobody is told the former, and nobody is scored by it."""
    table = pd.concat(
        [
            gemm_table("H100-SXM5-80GB", FEW, 0.03, 3.0).assign(dtype="fp8_block"),
            gemm_table("H100-SXM5-80GB", FEW, 0.7, 3.0),
            gemm_table("B200-SXM-180GB", FEW, 0.7, 3.0).assign(dtype="fp8_block"),
        ],
        ignore_index=True,
    )
    fitted, one = fit_kernels(table), catalog.accelerator("B200-SXM-180GB")
    others = {
        k: model for k, model in fitted.models.items() if k[2] not in (one.name, f"{ANY}blackwell")
    }
    own = points_of(table[table["accelerator"] == one.name], one, "gemm", "fp8_block")
    told = predict_unseen(own, one, "gemm", "fp8_block", Calibration("", others))
    found = fitted.transfer["gemm", "fp8_block", one.name]
    assert found.mape == pytest.approx(errors(told, own.time).mape, rel=1e-6)
    assert found.mape < 10.0


def test_accelerators_of_a_pool_count_alike() -> None:
    """A thousand large shapes of a harness that adds 8 us, and a hundred small ones of a lean one:
    what the pool says of small shapes on a third accelerator is what the lean one measured."""
    large = gemm_table("GH200-96GB", [512, 640, 768, 1024, 1280, 1536, 2048, 3072, 4096], 0.4, 8.0)
    small = gemm_table("H100-SXM5-80GB", [32, 64, 128, 256], 0.7, 3.0)
    key = ("gemm", "bf16", f"{ANY}hopper")
    pool = fit_kernels(pd.concat([large, small], ignore_index=True)).models[key]
    assert pool.latency == pytest.approx(3e-6, rel=0.15)
    third = catalog.accelerator("H200-SXM-141GB")
    found = predict(Calibration("x", kernels={key: pool}), third, 128, 128, 128)
    truth = gemm_table("H200-SXM-141GB", [128], 0.7, 3.0)["latency_us"].iloc[0] * 1e-6
    assert found == pytest.approx(truth, rel=0.25)

from __future__ import annotations

import json
import math
import shutil
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from calibration.artifact import write
from calibration.kernels.models import fit_kernels
from calibration.runs.fit import default_run
from predictor.catalog.artifacts import files_read, load
from predictor.errors import InputError
from predictor.hardware.links import LinkCurve, LinkModel
from predictor.timing import Kin
from predictor.timing.calibration import Calibration, Throttle
from tests.calibration.conftest import gemm_table
from tests.predictor.timing.test_likeness import model


@pytest.fixture(scope="module")
def calibration() -> Calibration:
    kernels = fit_kernels(
        gemm_table("A100-SXM4-80GB", [256, 512, 1024, 2048], 0.7, 3.0), pool=False
    )
    return Calibration(
        "mine",
        kernels=kernels.models,
        links={
            ("p2p", "efa"): LinkModel(
                op="p2p",
                link="efa",
                base=1e-5,
                hop=2e-6,
                root=0.01,
                log2_sizes=(1.0, 2.0),
                efficiencies=(0.5, 0.6),
                sigma=0.1,
                points=9,
                clock=1.8e9,
                sharing=0.3,
                latency_sigma=0.2,
                beyond=7e-5,
                curves=(LinkCurve(2.0, (-9.0, -8.0), (0.1, -0.1)),),
            )
        },
        throttles={"hopper": Throttle(0.5, 0.3, 2e-3, 7e-13)},
        run=default_run(),
        transfer_sigma={"gemm": 0.2},
        interval_q=1.5,
        fitted_files=frozenset({"a", "b"}),
        fitted_points=frozenset({"p"}),
        provenance={"fitted_to": "a test"},
    )


def test_what_is_written_is_read_back(calibration: Calibration, tmp_path: Path) -> None:
    write(calibration, tmp_path / "c")
    found = load(tmp_path / "c")
    (link,), (other,) = found.links.values(), calibration.links.values()
    for field in fields(other):
        expected = getattr(other, field.name)
        same = isinstance(expected, str) or field.name == "curves"
        assert getattr(link, field.name) == (expected if same else pytest.approx(expected))
    assert found.throttles["hopper"].fade == pytest.approx(2e-3)
    assert found.run == calibration.run
    assert found.fitted_points == {"p"}
    (key,) = calibration.kernels
    old, new = calibration.kernels[key], found.kernels[key]
    features = old.low + (old.high - old.low) * np.linspace(0, 1, 9)[:, None]
    np.testing.assert_allclose(
        new.inefficiency(features), old.inefficiency(features), rtol=1e-3, atol=1e-3
    )
    for field in fields(old):
        if field.name in ("kind", "dtype", "accelerator", "degree", "points"):
            assert getattr(new, field.name) == getattr(old, field.name)


def test_no_bound_is_read_back_within_what_it_was(calibration: Calibration, tmp_path: Path) -> None:
    """A feature that all points share, log 4096, is not outside of its box for a rounding: neither
    bounds that 32 bits round up nor those that they round down."""
    (key,) = calibration.kernels
    one = calibration.kernels[key]
    every = np.log(np.array([4096.0, 7168.0, 3.0]))[: one.low.size]
    low, high = one.low.copy(), one.high.copy()
    low[: every.size], high[: every.size] = every, every
    shared = replace(one, low=low, high=high)
    write(replace(calibration, kernels={key: shared}), tmp_path / "c")
    found = load(tmp_path / "c").kernels[key]
    assert np.all(found.low <= low)
    assert np.all(found.high >= high)
    np.testing.assert_allclose(found.low, low, rtol=3e-7)
    assert found.distance(low[None]) == 0.0
    again = replace(calibration, kernels={key: found})
    write(again, tmp_path / "d")
    assert np.array_equal(load(tmp_path / "d").kernels[key].low, found.low)


def test_a_folder_is_replaced_whole(calibration: Calibration, tmp_path: Path) -> None:
    write(calibration, tmp_path / "c")
    write(replace(calibration, name="newer"), tmp_path / "c")
    assert load(tmp_path / "c").name == "newer"
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


def test_a_failed_write_leaves_the_old_one(
    calibration: Calibration, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(calibration, tmp_path / "c")

    def fail(*arguments: object, **keywords: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(np, "save", fail)
    with pytest.raises(OSError, match="disk full"):
        write(replace(calibration, name="newer"), tmp_path / "c")
    assert load(tmp_path / "c").name == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


def test_writing_again_keeps_the_engines(tmp_path: Path) -> None:
    """`make runs` writes a calibration anew into the folder that holds fitted engines, too."""
    out = tmp_path / "known"
    write(Calibration("known"), out)
    kept = '{"engines": {"neutral": {"step_us": 3.0}}, "sigma": {}, "points": []}'
    (out / "serving.json").write_text(kept)
    write(Calibration("again"), out)
    assert (out / "serving.json").read_text() == kept
    assert load(out).name == "again"
    (out / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match=r"notes\.txt"):
        write(Calibration("third"), out)


def test_kernels_that_two_have_in_common_are_kept_once(
    calibration: Calibration, tmp_path: Path
) -> None:
    write(calibration, tmp_path / "base")
    base = load(tmp_path / "base")
    write(replace(base, name="other"), tmp_path / "other", kernels="base")
    assert sorted(path.name for path in (tmp_path / "other").iterdir()) == ["calibration.json"]
    found = load(tmp_path / "other")
    assert found.name == "other"
    (key,) = base.kernels
    old, new = base.kernels[key], found.kernels[key]
    assert all(np.array_equal(a, b) for a, b in zip(old.weights, new.weights, strict=True))
    assert np.array_equal(old.keys, new.keys)
    # Written by a user it is whole again, and needs no other folder.
    write(found, tmp_path / "apart" / "mine")
    shutil.rmtree(tmp_path / "base")
    assert load(tmp_path / "apart" / "mine").kernels.keys() == base.kernels.keys()
    with pytest.raises(InputError, match=r"shares the kernels of 'base', and no calibration"):
        load(tmp_path / "other")


def test_only_kernels_that_are_the_same_can_be_shared(
    calibration: Calibration, tmp_path: Path
) -> None:
    write(calibration, tmp_path / "base")
    with pytest.raises(InputError, match="holds other kernels"):
        write(Calibration("none of them"), tmp_path / "other", kernels="base")
    with pytest.raises(InputError, match="holds no kernels to share"):
        write(calibration, tmp_path / "other", kernels="absent")
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("name", ["../base", "/base", "absent", "shared", ""])
def test_a_calibration_that_shares_nobody_s_kernels_is_refused(
    calibration: Calibration, tmp_path: Path, name: str
) -> None:
    write(calibration, tmp_path / "base")
    base = load(tmp_path / "base")
    for own in ("shared", "other"):
        write(replace(base, name=own), tmp_path / own, kernels="base")
    path = tmp_path / "other" / "calibration.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "kernels": name}))
    with pytest.raises(InputError, match="shares the kernels of") as caught:
        load(tmp_path / "other")
    assert "\n" not in str(caught.value)


def test_damage_to_shared_kernels_names_their_folder(
    calibration: Calibration, tmp_path: Path
) -> None:
    write(calibration, tmp_path / "base")
    write(load(tmp_path / "base"), tmp_path / "other", kernels="base")
    path = tmp_path / "base" / "arrays.npy"
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(InputError, match=r"calibration \S*base is damaged") as caught:
        load(tmp_path / "other")
    assert "\n" not in str(caught.value)


def test_the_shipped_calibrations_keep_their_kernels_once() -> None:
    own, base = (
        {path for path in files_read(name) if path.suffix == ".npy"}
        for name in ("default", "kernels-only")
    )
    assert own == base
    assert len(own) == 2
    assert load("default").kernels.keys() == load("kernels-only").kernels.keys()


def test_whose_measurements_and_what_beside_come_back(tmp_path: Path) -> None:
    """Vendor and traits of a pooled model, unknown ones too; what its tables time beside."""
    own = replace(
        model("*hopper", 0.5), kin=Kin("NVIDIA", (1.5, math.nan, 2.5)), casts={"trtllm": 9e-6}
    )
    write(Calibration("x", kernels={("gemm", "bf16", "*hopper"): own}), tmp_path / "c")
    found = load(tmp_path / "c").kernels["gemm", "bf16", "*hopper"]
    assert found.kin is not None
    assert found.kin.vendor == "NVIDIA"
    assert found.kin.traits == pytest.approx((1.5, math.nan, 2.5), nan_ok=True)
    assert found.casts == {"trtllm": pytest.approx(9e-6)}

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from calibration.artifact import write
from calibration.kernels.models import fit_kernels
from calibration.runs.fit import default_run
from predictor.catalog.artifacts import load
from predictor.errors import InputError
from predictor.hardware.links import Curve, LinkModel
from predictor.timing.calibration import Calibration, Throttle
from tests.calibration.conftest import gemm_table


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
                "p2p",
                "efa",
                1e-5,
                2e-6,
                0.01,
                (1.0, 2.0),
                (0.5, 0.6),
                0.1,
                9,
                clock=1.8e9,
                sharing=0.3,
                latency_sigma=0.2,
                curves=(Curve(2.0, (-9.0, -8.0), (0.1, -0.1)),),
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
    (out / "serving.json").write_text("{}")
    write(Calibration("again"), out)
    assert (out / "serving.json").read_text() == "{}"
    assert load(out).name == "again"
    (out / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match=r"notes\.txt"):
        write(Calibration("third"), out)

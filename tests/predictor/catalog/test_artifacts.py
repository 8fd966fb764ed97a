"""Calibrations are read when asked for, once, and anew when their files change."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from calibration.artifact import write
from predictor.catalog import calibration_dir, load
from predictor.errors import InputError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(calibration_dir("kernels-only"), tmp_path / "own"))


def test_the_same_files_are_read_once(folder: Path) -> None:
    assert load(folder) is load(folder)


def test_files_that_change_are_read_anew(folder: Path) -> None:
    before = load(folder)
    write(replace(before, run=replace(before.run, host_per_kernel=1e-3)), folder)
    after = load(folder)
    assert after.run.host_per_kernel == pytest.approx(1e-3)
    # What was read before does not change with the files.
    for key in list(before.kernels)[:5]:
        assert np.array_equal(before.kernels[key].low, after.kernels[key].low)


def test_every_model_is_under_its_own_key(folder: Path) -> None:
    kernels = load(folder).kernels
    listed = json.loads((folder / "calibration.json").read_text())["kernels"]
    assert len(kernels) == len(listed)
    for key, model in kernels.items():
        assert key == (model.kind, model.dtype, model.accelerator)
    assert kernels.get(("gemm", "bf16", "no such device")) is None
    assert ("gemm", "bf16", "no such device") not in kernels


def test_arrays_that_end_too_soon_are_damage(folder: Path) -> None:
    arrays = np.load(folder / "arrays.npy")
    np.save(folder / "arrays.npy", arrays[:-1])
    with pytest.raises(InputError, match="damaged or incomplete"):
        load(folder)


def test_an_entry_without_a_field_is_damage_once_it_is_asked_for(folder: Path) -> None:
    path = folder / "calibration.json"
    content = json.loads(path.read_text())
    entry = content["kernels"][0]
    del entry["sigma"]
    path.write_text(json.dumps(content))
    kernels = load(folder).kernels
    with pytest.raises(InputError, match="damaged or incomplete"):
        kernels.get((entry["kind"], entry["dtype"], entry["accelerator"]))

"""A calibration carries its serving engines, wherever it is used from."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import reckon
from predictor import catalog
from predictor.catalog.artifacts import load
from predictor.errors import InputError
from predictor.serving import InferencePrediction
from predictor.timing.calibration import Calibration
from predictor.timing.engines import ServingParameters

PLAN = {"tp": 8, "batch": 64, "input_len": 1024, "output_len": 256, "framework": "vllm"}


def tpot(calibration: Calibration | str | Path) -> float:
    found = reckon.predict_infer("llama3-70b", "dgx-h200", PLAN, calibration)
    assert not isinstance(found, InferencePrediction)
    return float(found.tpot.value)


def slow(folder: Path) -> Path:
    """A calibration whose engines take 20 ms of host time per pass."""
    shutil.copytree(catalog.calibration_dir("kernels-only"), folder)
    engines = {"engines": {"neutral": {"step_us": 2e4}}, "sigma": {"all": 0.2}, "points": ["p"]}
    (folder / "serving.json").write_text(json.dumps(engines), encoding="utf-8")
    return folder


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    return slow(tmp_path / "mine")


def test_a_loaded_calibration_predicts_alike_in_every_folder(
    mine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever lies beside: also a folder of the calibration's own name."""
    bare = shutil.copytree(catalog.calibration_dir("kernels-only"), tmp_path / "elsewhere" / "it")
    slow(tmp_path / "trap" / "kernels-only")
    own, plain = load(mine), load(bare)
    found = []
    for folder in (mine.parent, tmp_path / "trap", tmp_path / "elsewhere"):
        monkeypatch.chdir(folder)
        found.append((tpot(own), tpot(plain)))
    assert len(set(found)) == 1
    assert found[0][0] > 20e-3 > found[0][1]


def test_a_loaded_calibration_predicts_as_its_folder_does(mine: Path) -> None:
    assert tpot(load(mine)) == tpot(mine) == tpot(str(mine))


def test_without_engines_of_its_own_it_has_the_default_ones_and_says_so(mine: Path) -> None:
    assert load(mine).provenance["engines"] == "fitted into this calibration"
    assert load(mine).serving.points == {"p"}
    (mine / "serving.json").unlink()
    found, default = load(mine), load("default")
    assert found.serving.sigma == default.serving.sigma
    assert found.serving.engines.keys() == default.serving.engines.keys()
    assert found.provenance["engines"] == "those of the calibration 'default'"
    assert tpot(found) == tpot("kernels-only")


def test_uncalibrated_engines_are_the_documented_defaults() -> None:
    assert load("none").serving == ServingParameters()


def test_a_damaged_file_of_engines_ends_in_one_line(mine: Path) -> None:
    (mine / "serving.json").write_text('{"engines": {"vllm": 3}}', encoding="utf-8")
    with pytest.raises(InputError, match=r"serving\.json holds no parameters") as caught:
        load(mine)
    assert "\n" not in str(caught.value)

"""Constants of power from what a profile recorded, on a device that obeys known ones."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from calibration.artifact import write
from calibration.power.profile import activity_of, fit_profile, fit_profiles, powers
from predictor.catalog import accelerator, data_dir, load, power_laws, power_setting, system
from predictor.errors import InputError
from predictor.power import Conditions
from reckon.verbs.calibrating import calibrate

DEVICE = accelerator("H100-SXM5-80GB")
TRUE = {"awake_share": 0.11, "busy_share": 0.1, "byte_pj": 80.0, "flop_scale": 0.5}
"""Far from what ships."""


def rows(name: str = DEVICE.name) -> list[dict]:
    """Idle, products of three sizes and two types, a copy; none of them at the limit."""
    work = [{"op": "idle", "precision": "", "call_s": 0.01}]
    for size, tflops, dtype in ((8192, 600, "bf16"), (2048, 400, "bf16"), (8192, 40, "fp32")):
        sizes = {"m": size, "n": size, "k": size, "batch": 1}
        seconds = 2.0 * size**3 / (tflops * 1e12)
        work.append({"op": "gemm", "precision": dtype, "call_s": seconds, **sizes})
    work.append({"op": "memcpy", "precision": "fp32", "message_bytes": 4e9, "call_s": 4e9 / 2.8e12})
    drawn = powers([activity_of(row) for row in work], DEVICE, TRUE)
    assert drawn.max() < 0.95 * DEVICE.power
    return [
        {**row, "accelerator": name, "avg_power_w": watts}
        for row, watts in zip(work, drawn, strict=True)
    ]


def test_a_device_of_known_constants_gives_them_back() -> None:
    found = fit_profile(rows(), DEVICE)
    shipped = power_laws()
    for name, value in TRUE.items():
        away = abs(np.log(found.constants[name] / value))
        assert away < 0.35 * abs(np.log(shipped[name] / value)), name
    fitted = powers([activity_of(row) for row in rows()], DEVICE, found.constants)
    assert fitted == pytest.approx([row["avg_power_w"] for row in rows()], rel=0.05)


def test_a_row_that_was_left_out_is_predicted_better_than_by_what_ships() -> None:
    measured = np.array([row["avg_power_w"] for row in rows()])
    usual = powers([activity_of(row) for row in rows()], DEVICE, {})
    found = fit_profile(rows(), DEVICE)
    assert found.left_out < 0.6 * np.abs(usual / measured - 1).mean()


def test_what_the_limit_hides_is_left_to_the_prior() -> None:
    """Products at the limit say that they want as much at least: not how much more."""
    hidden = {**rows()[1], "avg_power_w": 0.985 * DEVICE.power, "call_s": rows()[1]["call_s"] / 1.6}
    assert fit_profile([hidden], DEVICE).constants["flop_scale"] > 0.8 * power_laws()["flop_scale"]


def test_devices_without_a_limit_and_empty_rows_are_refused_by_name() -> None:
    with pytest.raises(InputError, match="state tdp_w"):
        fit_profile(rows(), replace(DEVICE, name="mine", power=np.nan))
    with pytest.raises(InputError, match="no row of power"):
        fit_profile([{"op": "gemm", "call_s": 1.0, "avg_power_w": 100.0}], DEVICE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A profile that ships, as if its device had told its power."""
    made = tmp_path_factory.mktemp("profile") / "profile"
    shutil.copytree(data_dir() / "measurements" / "two-cores-1", made)
    path = made / "device.yaml"
    content = yaml.safe_load(path.read_text())
    content["accelerator"] |= {"tdp_w": 700.0, "architecture": "made"}
    path.write_text(yaml.safe_dump(content))
    kernels = pd.read_parquet(made / "kernels.parquet")
    kernels[kernels["op"].isin(["memcpy", "launch", "norm"])].to_parquet(made / "kernels.parquet")
    own = [row for row in rows(content["accelerator"]["name"]) if row["op"] != "gemm"]
    pd.DataFrame(own).to_csv(made / "power.csv", index=False)
    return made


def test_calibrate_keeps_the_constants_and_predictions_use_them(
    folder: Path, tmp_path: Path
) -> None:
    name = system(folder / "device.yaml").accelerator.name
    found = calibrate([folder], tmp_path / "mine")
    assert set(found["power"]) == {name}
    fitted = load(tmp_path / "mine")
    cluster = system(folder / "device.yaml")
    usual, _ = power_setting(cluster, Conditions())
    own, _ = power_setting(cluster, Conditions(), fitted.power)
    assert float(own.awake) == pytest.approx(TRUE["awake_share"] * 700.0, rel=0.05)
    assert float(usual.awake) > 1.2 * float(own.awake)
    assert own.status == "fitted"


def test_a_calibration_is_read_as_it_was_written(tmp_path: Path) -> None:
    mine = replace(load("default"), power={"X": {"awake_share": 0.1}})
    write(mine, tmp_path / "c")
    assert load(tmp_path / "c").power == {"X": {"awake_share": 0.1}}
    assert load("default").power == {}


def test_a_table_of_another_form_is_one_line(folder: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad"
    shutil.copytree(folder, bad)
    (bad / "power.csv").write_text("a,b\n1,2\n")
    with pytest.raises(InputError, match=r"power\.csv lacks accelerator, avg_power_w, call_s, op"):
        fit_profiles([bad])

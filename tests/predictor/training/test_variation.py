"""What a step will take on machines that vary: of whole plans."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import reckon
from predictor.plans import VARIATIONS
from predictor.training import sensitivity, vary
from predictor.variation import SILENT, TERMS, names, profile

Cli = Callable[..., tuple[int, str, str]]

PLAN = {"tp": 8, "pp": 4, "global_batch": 1024, "seq_len": 8192, "micro_batch": 1}
SIZES = (64, 512, 4096, 8192)


def predicted(gpus: int = 1024, **more: Any) -> Any:
    plan = {**PLAN, "gpus": gpus, **more}
    return reckon.predict_train("llama3-70b", "dgx-h100", plan, "none")


def test_the_field_knows_the_profiles_that_ship() -> None:
    assert names() == VARIATIONS


def test_nothing_is_said_unless_asked_and_the_step_stays_bit_equal() -> None:
    plain, silent, asked = predicted(), predicted(variation="none"), predicted(variation="cloud")
    assert "variation" not in plain.to_dict()
    usual, told = plain.to_dict(), asked.to_dict()
    assert {**silent.to_dict(), "stated": usual["stated"]} == usual
    assert told.pop("stated") == {**usual.pop("stated"), "variation": "cloud"}
    assert told.pop("variation")["profile"] == "cloud"
    assert told == usual, "what the run will do is not mixed with what is not known"


def test_on_machines_that_do_not_vary_every_quantile_is_the_step() -> None:
    found = predicted()
    own = vary(found.batch, SILENT)
    assert own.quantile(np.array([0.5, 0.95, 0.99])) == pytest.approx(
        [found.step_time.value] * 3, rel=1e-9
    )
    assert float(own.added) == 0.0


def test_more_accelerators_add_waiting_beyond_what_calibrations_have_seen() -> None:
    added = [float(vary(predicted(n).batch, profile("typical")).added) for n in SIZES]
    assert added[:2] == [0.0, 0.0]
    share = [a / predicted(n).step_time.value for a, n in zip(added, SIZES, strict=True)]
    assert 0.0 < share[2] < share[3] < 0.15


@pytest.mark.parametrize("gpus", SIZES)
def test_tuned_clusters_are_as_steady_as_they_were_measured(gpus: int) -> None:
    """MLPerf's tuned runs from 64 to 10,752 accelerators: P95 within 3 %, P99 within 6 %."""
    own = vary(predicted(gpus).batch, profile("tuned"))
    p50, p95, p99 = (float(own.quantile(p)) for p in (0.5, 0.95, 0.99))
    assert 1.0 < p95 / p50 <= 1.03
    assert p95 / p50 < p99 / p50 <= 1.06


def test_every_term_costs_something_and_none_more_than_all() -> None:
    found = predicted(8192).batch
    less = {name: float(value) for name, value in sensitivity(found, profile("cloud")).items()}
    assert set(less) == set(TERMS) - {"run"}
    assert all(value >= -1e-9 for value in less.values()), less
    own = vary(found, profile("cloud"))
    assert max(less.values()) <= float(own.quantile(0.95)) - float(own.step_time)


def test_a_sweep_is_its_plans_one_by_one(cli: Cli, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    common = (
        "predict", "train", "--model", "llama3-8b", "--system", "dgx-h100", "--global-batch",
        "64", "--seq-len", "8192", "--variation", "typical", "--calibration", "none",
    )  # fmt: skip
    assert cli(*common, "--gpus", "16,32", "--json", str(out))[0] == 0
    both = [one["variation"] for one in json.loads(out.read_text())["predictions"]]
    for gpus, of_sweep in zip(("16", "32"), both, strict=True):
        assert cli(*common, "--gpus", gpus, "--json", str(out))[0] == 0
        alone = json.loads(out.read_text())["variation"]
        assert alone["step_time_s"] == pytest.approx(of_sweep["step_time_s"], rel=1e-12)
        assert alone["waiting_s"] == pytest.approx(of_sweep["waiting_s"], rel=1e-9, abs=1e-12)


def test_a_run_of_more_steps_is_surer_up_to_what_differs_between_runs() -> None:
    own = vary(predicted().batch, replace(profile("typical"), stalls=0.0))
    few, many = (float(own.average(k)[1]) for k in (10.0, 1e6))
    assert few > many > 0.9 * float(own.centre * own.series.run)


def test_the_flag_alone_means_typical_and_lots_check_it(cli: Cli, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    common = (
        "predict", "train", "--model", "llama3-8b", "--system", "dgx-h100", "--gpus", "16",
        "--global-batch", "64", "--seq-len", "8192", "--calibration", "none",
    )  # fmt: skip
    status, text, _ = cli(*common, "--variation", "--monte-carlo", "24", "--json", str(out))
    assert status == 0
    assert "P95" in text
    found = json.loads(out.read_text())
    assert found["variation"]["profile"] == "typical"
    lots = found["monte_carlo"]
    assert lots["waiting_share"] == pytest.approx(lots["waiting_share_drawn"], abs=0.01)
    again = tmp_path / "again.json"
    cli(*common, "--variation", "--monte-carlo", "24", "--json", str(again))
    assert json.loads(again.read_text())["monte_carlo"] == lots, "lots are seeded"


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (("--variation", "wild"), "none, tuned, typical, cloud"),
        (("--monte-carlo", "100"), "--variation"),
        (("--variation", "--monte-carlo", "2"), "at least"),
    ],
)
def test_bad_input_is_one_line(cli: Cli, more: tuple[str, ...], says: str) -> None:
    status, _, error = cli(
        "predict", "train", "--model", "llama3-8b", "--system", "dgx-h100", "--gpus", "16",
        "--global-batch", "64", "--seq-len", "8192", "--calibration", "none", *more,
    )  # fmt: skip
    assert status == 2
    assert says in error
    assert error.strip().count("\n") == 0

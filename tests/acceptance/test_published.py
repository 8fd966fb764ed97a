"""Published tables, predicted with a calibration that was fitted to kernels only."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from calibration.checks.scoreboard import score
from calibration.checks.scored import Scored, summary
from predictor import catalog
from predictor.catalog.artifacts import load

TABLE = catalog.data_dir() / "reference" / "training.csv"
KERNELS = load("kernels-only")
HELD = ("megatron_seqsel_2205", "megatron_sc21", "nemo_docs_perf", "dgxc_benchmarking")
"""Sources of which every row is here, and bounded; `make validate` predicts all of the others."""


@pytest.fixture(scope="module")
def part() -> pd.DataFrame:
    """The sources that are held, and every third row."""
    table = pd.read_csv(TABLE, low_memory=False)
    return table[table["source"].isin(HELD) | (table.index % 3 == 0)]


@pytest.fixture(scope="module")
def everything(part: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> dict:
    path = tmp_path_factory.mktemp("published") / "part.csv"
    part.to_csv(path, index=False)
    return summary(score([path], KERNELS), KERNELS.interval_level)


def rows(prefix: str, tmp_path: Path) -> list[Scored]:
    table = pd.read_csv(TABLE, low_memory=False)
    path = tmp_path / "part.csv"
    table[table["point_id"].str.startswith(prefix)].to_csv(path, index=False)
    return score([path], KERNELS).rows


def test_the_eight_korthikanti_steps(tmp_path: Path) -> None:
    """Korthikanti et al. 2022, table 5: A100, full and selective recomputation, 22B to 1T."""
    found = rows("mlm_seqsel_t5_", tmp_path)
    assert len(found) == 8
    assert not any(row.in_sample for row in found)
    errors = [abs(row.predicted / row.published - 1) for row in found]
    assert np.mean(errors) <= 0.08
    assert max(errors) <= 0.12


def test_the_five_layer_times(tmp_path: Path) -> None:
    """Table 4: forward and backward of one layer of the 22B model."""
    found = rows("mlm_seqsel_t4_", tmp_path)
    assert len(found) == 5
    assert np.mean([abs(row.predicted / row.published - 1) for row in found]) <= 0.08
    slowest = max(found, key=lambda row: row.predicted)
    assert slowest.point_id.endswith("full")


def test_narayanan_table_1(tmp_path: Path) -> None:
    """Ten models from 1.7B on 32 to 1T on 3,072 A100."""
    found = rows("mlm_sc21_t1_", tmp_path)
    assert len(found) == 10
    assert np.mean([abs(row.predicted / row.published - 1) for row in found]) <= 0.10


def test_every_row_is_predicted_or_has_a_reason(everything: dict, part: pd.DataFrame) -> None:
    named = {row["point_id"] for row in everything["points"]}
    named |= {row["point_id"] for row in everything["skipped"]}
    memory_only = set(part["point_id"]) - named
    stated = part.set_index("point_id")["step_time_s"]
    assert stated[list(memory_only)].isna().all()
    assert all(row["reason"] for row in everything["skipped"])


def test_dense_rows_that_state_enough_are_predicted(everything: dict) -> None:
    reasons = [row["reason"] for row in everything["skipped"]]
    allowed = ("not stated", "not predicted", "no network beyond", "--seq-len", "no step time")
    assert all(any(text in reason for text in allowed) for reason in reasons)
    assert everything["n_predicted"] >= 0.98 * everything["n_points"]


def test_nothing_is_far_off(everything: dict) -> None:
    """A floor under regressions, not a target: kernels alone, as bursts under the power cap, take
    less than steps by what frameworks add, a fifth (levels of 1.2 to 1.25); one MFU fitted per
    accelerator errs by 38 % as a mean over sources left out."""
    assert everything["median_ape"] < 0.20
    by = {group["source"]: group["mape"] for group in everything["groups"]}
    for source in HELD:
        assert by[source] < 0.20

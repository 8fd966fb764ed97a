from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from calibration.checks.scoreboard import refold, score
from calibration.runs.apart import Runs, environments, errors, predictions, take_apart
from calibration.runs.descent import LAUNCHES, SHARED, descend
from calibration.runs.fit import (
    default_run,
    fit_run,
    fit_runs,
    left_out,
    read_points,
)
from calibration.runs.levels import (
    anchored_mean,
    families,
    fit_levels,
    own_levels,
    robust_mean,
)
from predictor.catalog.artifacts import load
from predictor.catalog.filling import frameworks, stands_on
from predictor.errors import InputError
from predictor.training.software import YOUNG, environment
from tests.calibration.tables.test_points import ROW

KERNELS = load("kernels-only")
SLOWER = {"one": 1.1, "two": 1.2, "three": 1.3, "four": 1.15}


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of four sources of two frameworks, tensor parallel and overlapped."""
    rows = [
        {
            **ROW,
            "point_id": f"{source}-{tp}-{size}",
            "source": source,
            "framework": "nemo" if source in ("one", "two") else "torchtitan",
            "tp": float(tp),
            "pp": 1.0,
            "num_gpus": 8.0,
            "dp": 8.0 / tp,
            "global_batch": float(size),
        }
        for source in SLOWER
        for tp in (1, 2, 8)
        for size in (16, 64)
    ]
    path = tmp_path_factory.mktemp("runs") / "runs.csv"
    pd.DataFrame(rows).to_csv(path, index=False)
    return path


@pytest.fixture(scope="module")
def runs(table: Path) -> Runs:
    """The same, measured as predicted with other overlaps, every source slower by its factor."""
    found = take_apart(KERNELS, read_points([table], KERNELS.run))
    truth = replace(default_run(), overlap={**default_run().overlap, "tp": 0.4})
    slower = np.log([SLOWER[str(source)] for source in found.source])
    return replace(found, measured=predictions(found, truth)[0] + slower)


def test_what_a_source_has_in_common_does_not_move_shared_parameters(runs: Runs) -> None:
    # All are of one date on one architecture: what is young of them is each source's level.
    vague = tuple(one if one.key == YOUNG else replace(one, spread=20.0) for one in SHARED)
    found = descend(runs, default_run(), vague)
    assert found.overlap["tp"] == pytest.approx(0.4, abs=0.02)
    assert found.overlap["dp"] == pytest.approx(default_run().overlap["dp"], abs=0.1)
    level = errors(runs, found)
    for source, factor in SLOWER.items():
        assert -level[runs.source == source] == pytest.approx(np.log(factor), abs=0.01)
    # What the prior holds back lies between the two.
    assert 0.4 < descend(runs, default_run(), SHARED).overlap["tp"] < 0.8


def test_a_source_that_is_far_off_hardly_moves_what_runs_share(runs: Runs) -> None:
    """Its steps are three times as long as its parts, and the longer the more ranks a product is
    split among: much communication that shows, or what the parts do not have."""
    vague = tuple(replace(one, spread=20.0) for one in SHARED)
    own = runs.source == "four"
    ranks = np.array([float(point.request.plan.tp) for point in runs.points])

    def moved(level: float) -> float:
        odd = replace(runs, measured=runs.measured + own * (level + 0.1 * np.log2(ranks)))
        return abs(descend(odd, default_run(), vague).overlap["tp"] - 0.4)

    assert moved(np.log(3.0)) < 0.5 * moved(0.0)


def test_levels_lie_between_their_sources_and_the_level_above(runs: Runs) -> None:
    """Measured as predicted with factors of their own, which are found again."""
    own = np.array([SLOWER[str(source)] for source in runs.source])
    made = replace(runs, measured=predictions(runs, default_run(), own)[0])
    masks = [made.source == source for source in SLOWER]
    assert np.exp(own_levels(made, default_run(), masks)) == pytest.approx(
        list(SLOWER.values()), rel=1e-4
    )
    factors = fit_levels(made, default_run()).factors
    assert factors["nemo"] < factors["*"] < factors["torchtitan"]
    assert 1.1 < factors["nemo"] < 1.2
    assert 1.15 < factors["torchtitan"] < 1.3
    # A framework without runs has its family's level, and one without a family that of all.
    assert factors["fms-fsdp"] == factors["kempnerforge"]
    assert environment(factors, "unheard of", "2024").factor == factors["*"]


def test_a_left_out_source_is_predicted_without_itself(runs: Runs) -> None:
    moved = replace(
        runs, measured=runs.measured + np.where(runs.source == "four", np.log(1.5), 0.0)
    )
    groups = np.where(runs.source == "four", "four", "others")
    before, after = (left_out(one, default_run(), groups) for one in (runs, moved))
    for one, two, source in zip(before, after, runs.source, strict=True):
        if source == "four":
            assert two.error == pytest.approx(one.error - np.log(1.5), abs=1e-9)


def test_runs_that_no_fit_may_use_are_predicted_and_move_nobody(runs: Runs) -> None:
    odd = runs.source == "four"
    strange = replace(runs, measured=runs.measured + odd * np.linspace(0.0, 1.0, len(odd)))
    found = left_out(strange, default_run(), known=~odd)
    alone = left_out(runs.only(~odd), default_run())
    assert len(found) == len(runs.points)
    assert [one for one, other in zip(found, odd, strict=True) if not other] == alone


def test_few_sources_keep_the_documented_defaults(runs: Runs) -> None:
    assert fit_run(runs.only(runs.source == "one"), default_run()) == default_run()


def test_a_mean_is_not_moved_far_by_one_outlier() -> None:
    values = np.array([0.1, 0.12, 0.08, 0.11, 0.9])
    # The outlier pulls by LEVEL_REACH only: 0.41 - 4 m + 0.05 = 0.
    assert robust_mean(values, np.ones(5)) == pytest.approx(0.115, abs=1e-6)
    assert robust_mean(np.array([0.3]), np.ones(1)) == pytest.approx(0.3)


def test_one_source_far_from_the_level_above_is_believed_little() -> None:
    """Within the reach it is a mean with the level above; beyond, it pulls by the reach only,
    0.3 (m - 0.1) = 0.05; many sources that agree have their way."""
    one = np.ones(1)
    assert anchored_mean(np.array([0.12]), one, 0.1, 0.3) == pytest.approx(0.1 + 0.02 / 1.3)
    for far in (0.6, 0.9):
        assert anchored_mean(np.array([far]), one, 0.1, 0.3) == pytest.approx(0.1 + 0.05 / 0.3)
    assert anchored_mean(np.full(30, 0.9), np.ones(30), 0.1, 0.3) == pytest.approx(0.9, abs=0.01)
    assert anchored_mean(np.empty(0), np.empty(0), 0.1, 0.3) == 0.1


def test_fitted_runs_know_their_points_and_cover_their_level(table: Path) -> None:
    points = read_points([table], KERNELS.run)
    slower = [replace(p, measured=p.measured * SLOWER[p.source]) for p in points]
    found = fit_runs(KERNELS, slower)
    assert found.fitted_points == {point.point_id for point in points}
    assert found.kernels is KERNELS.kernels
    assert found.links is KERNELS.links
    assert "published runs" in found.provenance["fitted_to"]
    scores = score([table], found)
    assert all(row.in_sample for row in scores.rows)
    folded = refold(scores, found, "source")
    assert not any(row.in_sample for row in folded.rows)
    assert [r.point_id for r in folded.rows] == [r.point_id for r in scores.rows]
    # The parameters are fitted to the other sources of this table, not taken from the calibration.
    runs = take_apart(found, read_points([table], found.run))
    own = runs.source == "one"
    value = np.exp(predictions(runs, fit_run(runs.only(~own), default_run()))[0][own])
    assert [r.predicted for r in folded.rows if r.source == "one"] == pytest.approx(value)


def test_environments_follow_framework_and_era(runs: Runs) -> None:
    run = replace(default_run(), factors={"*": 1.5, "nemo": 1.1})
    assert environments(runs, run).factor == pytest.approx(
        np.where(runs.framework == "nemo", 1.1, 1.5)
    )


def test_families_and_launches_name_known_frameworks() -> None:
    known = set(frameworks())
    assert {name.split("/")[0] for name in families()} <= known
    own = {name for name in known if stands_on(name) == name}
    assert own - set(families()) <= {"neutral"}
    assert set(LAUNCHES) <= known


def test_nothing_to_take_apart_is_an_error() -> None:
    with pytest.raises(InputError, match="none of the runs"):
        take_apart(KERNELS, [])


def test_a_framework_of_a_year_may_have_a_family_of_its_own() -> None:
    """Megatron-LM's papers are told from its later releases, and the prediction finds their level
    by the year."""
    family_of = families()
    assert family_of["megatron-lm/2021"] != family_of["megatron-lm"]
    factors = load("default").run.factors
    assert factors["megatron-lm/2021"] != factors["megatron-lm"]
    assert environment(factors, "megatron-lm", "2021-04").factor == factors["megatron-lm/2021"]
    assert environment(factors, "megatron-lm", "2024-04").factor == factors["megatron-lm"]

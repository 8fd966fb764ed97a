from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from calibration.checks.plans import by_rule, choices
from calibration.checks.winners import published, standing
from predictor.catalog.artifacts import load
from predictor.search.comparison import timed
from predictor.search.layouts import search_train
from predictor.search.ranking import Limits

TABLE = Path(__file__).resolve().parents[3] / "data" / "reference" / "training.csv"
KNOWN = load("default")


def test_the_choice_is_judged_by_what_was_measured() -> None:
    table = pd.DataFrame(
        {
            "model": ["a"] * 3 + ["b"] * 2 + ["c"],
            "nodes": 1.0,
            "global_batch": 64.0,
            "seq_len": 2048.0,
            "tp": [1, 2, 4, 1, 2, 1],
            "pp": 1,
            "dp": 8,
            "micro_batch": 1,
            "step_time_s": [1.0, 1.25, 2.0, 1.0, 3.0, 1.0],
            "step_predicted_s": [1.02, 1.0, 3.0, 1.0, 4.0, 1.0],
        }
    )
    found = choices(table, tie=1.03).set_index("model")
    assert list(found.index) == ["a", "b"]  # a group of one plan has nothing to choose
    assert found.loc["a", "share"] == pytest.approx(0.8)
    assert found.loc["a", "rank"] == 2
    assert found.loc["a", "tied"] == 2
    assert found.loc["a", "among"] == 1.0
    assert found.loc["b", "share"] == 1.0
    assert found.loc["a", "middle"] == pytest.approx(0.8)
    assert found.loc["a", "thumb"] == found.loc["b", "thumb"] == 1.0  # tp 1


def test_the_rule_of_thumb_takes_little_model_parallelism_and_large_micro_batches() -> None:
    plans = pd.DataFrame({"tp": [2, 1, 2, 4], "pp": [1, 2, 1, 1], "micro_batch": [1, 8, 4, 16]})
    assert by_rule(plans) == 2
    assert by_rule(plans.iloc[::-1].reset_index(drop=True)) == 1


@pytest.fixture(scope="module")
def points() -> list:
    return published(TABLE, ["megatron_sc21"], KNOWN)


def test_published_plans_are_the_fastest_of_their_configuration(points: list) -> None:
    keys = {(p.request.model.name, float(p.request.plan.gpus)) for p in points}
    assert len(keys) == len(points) >= 9


@pytest.mark.parametrize("row", ["310B", "1T"])
def test_a_published_plan_stands_where_the_search_puts_it(points: list, row: str) -> None:
    point = next(p for p in points if row in p.point_id)
    found = standing(point, KNOWN)
    plan = point.request.plan
    (mine,) = timed(point.request.model, point.request.cluster, plan, KNOWN)
    fields = {
        "gpus": int(plan.gpus), "global_batch": int(plan.global_batch), "seq_len": 2048,
        "recompute": "full", "recompute_share": 1.0, "sharding": "none", "schedule": "1f1b",
        "sequence_parallel": False, "rank_order": plan.rank_order,
        "tp": int(plan.tp), "pp": int(plan.pp), "vpp": int(plan.vpp),
        "micro_batch": int(plan.micro_batch),
    }  # fmt: skip
    alone = search_train(
        point.request.model, point.request.cluster, fields, KNOWN, Limits(memory_fraction=1.0),
        around=plan,
    )  # fmt: skip
    assert len(alone) == 1
    assert float(alone.step_time[0]) == pytest.approx(mine.step_time, rel=1e-9)
    assert found.over.value >= 1.0
    assert (found.rank == 1) == np.isclose(found.over.value, 1.0)
    assert found.rank <= 0.1 * found.of

"""What hiding a field of published rows costs."""

from __future__ import annotations

import csv
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from calibration.checks.hidden import HIDDEN, Cost, Told, cost, costs, errors
from calibration.sources.hiding import hide, sampled
from calibration.sources.reading import read_table
from calibration.sources.told import amended
from calibration.tables.cells import cell, check_runs
from calibration.tables.runs import Point, point_of
from predictor import catalog
from predictor.catalog import load
from predictor.plans import TrainingPlan
from predictor.timing import Calibration
from predictor.training import predict
from predictor.training.doubts import OTHERWISE


@pytest.fixture(scope="module")
def calibration() -> Calibration:
    return load("kernels-only")


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    table = catalog.data_dir() / "reference" / "training.csv"
    wanted = ("llm_foundry_bench", "torchtitan_asynctp_202506")
    with table.open(newline="", encoding="utf-8") as stream:
        found = [row for row in csv.DictReader(stream) if row["source"] in wanted]
    for row in found:  # numbers as a reader of tables has them
        for name, value in row.items():
            try:
                row[name] = float(value) if value else None
            except ValueError:
                continue
    return sampled(found, 3)


@pytest.fixture(scope="module")
def priced(rows: list[dict[str, Any]], calibration: Calibration) -> list[Cost]:
    """What hiding each field of these rows costs."""
    return costs(rows, calibration)


def test_what_is_hidden_is_filled_in(rows: list[dict[str, Any]], calibration: Calibration) -> None:
    row = hide(rows[0], HIDDEN["micro_batch"])
    assert cell(rows[0], "micro_batch") is not None
    assert cell(row, "micro_batch") is None
    found = point_of(row, calibration.run)
    assert isinstance(found, Point)
    assert "micro_batch" in {one.field for one in found.request.assumed}


def test_a_sample_has_so_many_of_each(rows: list[dict[str, Any]]) -> None:
    assert len(rows) == 6
    assert sampled(rows, 2) == sampled(rows, 2)
    assert len({row["source"] for row in rows}) == 2


def test_the_dearest_comes_first(priced: list[Cost]) -> None:
    extra = [one.hidden - one.stated for one in priced]
    assert extra == sorted(extra, reverse=True)
    assert {one.field for one in priced} <= set(HIDDEN)


def test_what_no_row_states_costs_nothing(
    rows: list[dict[str, Any]], calibration: Calibration
) -> None:
    empty = [{**row, "vpp": None} for row in rows]
    stated = {row["point_id"]: Told(0.1, 1.0, True) for row in empty}
    assert cost("vpp", empty, stated, {}, calibration) is None


def test_how_often_rows_state_otherwise(priced: list[Cost]) -> None:
    """Nobody runs the framework that is filled in; fields that are filled in as they were stated
    move nothing."""
    found = {one.field: one for one in priced}
    assert found["framework"].otherwise == 1.0
    for one in found.values():
        assert 0.0 <= one.otherwise <= 1.0
        assert one.otherwise > 0.0 or one.moved == pytest.approx(0.0, abs=1e-9)


def test_hidden_rows_are_held_against_the_interval_that_is_printed(
    rows: list[dict[str, Any]], calibration: Calibration
) -> None:
    """Of each row the one of `predict`, of unnamed frameworks wider; shares are of those rows."""
    points = [point_of(row, calibration.run) for row in rows]
    known = [one for one in points if isinstance(one, Point)]
    told = errors(known, calibration)
    assert {one.inside for one in told.values()} == {True, False}
    for point in known:
        request = point.request
        found = predict(request.model, request.cluster, request.plan, calibration)
        inside = float(found.low) <= point.measured <= float(found.high)
        assert told[point.point_id].inside == inside
    wide = replace(calibration, run=replace(calibration.run, sigma_unnamed=3.0))
    one = cost("framework", rows, errors(known, wide), plans(known), wide)
    assert one is not None
    assert one.unknown == 1.0
    assert 0.0 < one.known < 1.0


def plans(points: list[Point]) -> dict[str, TrainingPlan]:
    return {point.point_id: point.request.plan for point in points}


WIDE = {"fp16": "bf16"}
"""Precisions that are as quick."""


@pytest.fixture(scope="module")
def published() -> list[dict[str, Any]]:
    """Every row of the published table."""
    path = catalog.data_dir() / "reference" / "training.csv"
    return check_runs(read_table(path), str(path)).to_dict("records")


@pytest.mark.parametrize("field", ["recompute", "precision", "micro_batch"])
def test_what_is_worth_stating_is_weighed_by_what_rows_state(
    field: str, calibration: Calibration, published: list[dict[str, Any]]
) -> None:
    """Of three rows of each source, the share that states a field otherwise than it is filled in,
    mean over sources, is the one that doubts are weighed with, within two standard errors of a
    share of so many sources."""
    apart: dict[str, list[bool]] = {}
    for row in sampled([one for one in published if cell(amended(one), field) is not None], 3):
        both = [point_of(one, calibration.run) for one in (row, hide(row, HIDDEN[field]))]
        made = [one.request.plan for one in both if isinstance(one, Point)]
        if len(made) == 2:  # the others cannot be predicted
            stated, filled = (getattr(plan, field) for plan in made)
            differs = WIDE.get(stated, stated) != WIDE.get(filled, filled)
            apart.setdefault(str(row["source"]), []).append(bool(differs))
    share = np.mean([np.mean(own) for own in apart.values()])
    error = np.sqrt(OTHERWISE[field] * (1.0 - OTHERWISE[field]) / len(apart))
    assert share == pytest.approx(OTHERWISE[field], abs=2.0 * float(error))

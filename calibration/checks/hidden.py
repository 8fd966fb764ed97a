"""What a field costs that nobody states: rows that state it, predicted as if they did not.

    python -m calibration.checks.hidden data/reference/training.csv [--only SOURCE ...] [--rows 10]

The rows of a table are predicted as they are and with some columns emptied, which the completion
(`predictor.training.complete_training`) then fills. The difference of the errors is what a row
costs of which the field is unknown, and says which defaults are worth mending first; the shares
inside the 80 % interval say whether it knows. Rows that are in the calibration's fit stay in it.

Rows that say nothing of a field of their own accord do better: sources state what they do
otherwise (docs/accuracy/limits.md).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from calibration.runs.apart import predictions, take_apart
from calibration.sources.hiding import Row, hide, sampled
from calibration.sources.reading import read_table
from calibration.sources.told import amended
from calibration.tables.cells import cell, check_runs
from calibration.tables.runs import Point, point_of
from predictor.arrays import Array
from predictor.catalog import load
from predictor.errors import InputError
from predictor.plans import TrainingPlan
from predictor.timing import Calibration

LAYOUT = ("tp", "pp", "vpp", "cp", "ep", "dp")
RECOMPUTE = ("recompute", "recompute_modules", "recompute_share")

HIDDEN: Mapping[str, tuple[str, ...]] = {
    "micro_batch": ("micro_batch",),
    "layout": LAYOUT,
    "tp": ("tp", "dp"),
    "pp": ("pp", "vpp", "dp"),
    "cp": ("cp", "dp"),
    "ep": ("ep",),
    "precision": ("precision",),
    "vpp": ("vpp",),
    "recompute": RECOMPUTE,
    "sharding": ("dp_sharding",),
    "sequence_parallel": ("sequence_parallel",),
    "framework": ("framework", "framework_version"),
    "era": ("published",),
    "layout and micro_batch": (*LAYOUT, "micro_batch"),
    "all of the plan": (*LAYOUT, "micro_batch", *RECOMPUTE, "dp_sharding", "sequence_parallel"),
}
"""What is hidden -> columns that are emptied together. The first one has to be stated; data
parallelism goes with what it follows from."""

FIELDS = {"dp_sharding": "sharding", "published": "era"}
"""Columns that are called otherwise than the field of a plan that they state."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Errors of rows that state something, as stated and with it hidden: means over sources.

    failed   rows that cannot be predicted without it
    moved    mean absolute log of what the prediction changes by
    otherwise  share of rows that state it otherwise than it is filled in
    known, unknown  share inside the interval, as stated and with it hidden
    """

    field: str
    rows: int
    sources: int
    failed: int
    stated: float
    hidden: float
    moved: float
    otherwise: float
    known: float
    unknown: float


@dataclass(frozen=True, slots=True)
class Told:
    """A row's log error, log of its predicted time, and whether it lies inside its interval."""

    error: float
    time: float
    inside: bool


Plans = Mapping[str, TrainingPlan]


def errors(points: Sequence[Point], calibration: Calibration) -> dict[str, Told]:
    """What is told of every point that can be timed."""
    runs, run = take_apart(calibration, points), calibration.run
    value, own = predictions(runs, run)
    requests = [point.request for point in runs.points]
    spread = [
        run.spread(one.model.is_moe, one.plan.framework, one.plan.named, one.model.untimed)
        for one in requests
    ]
    error = value - runs.measured
    inside = np.abs(error) <= calibration.interval_q * np.hypot(own, spread)
    found = zip(runs.points, error, value, inside, strict=True)
    return {point.point_id: Told(float(e), float(t), bool(i)) for point, e, t, i in found}


def _table(found: Iterable[Told]) -> Array:
    """Their fields, (rows, 3)."""
    return np.array([astuple(one) for one in found], float)


def _points(rows: Sequence[Row], calibration: Calibration) -> list[Point]:
    made = [point_of(row, calibration.run) for row in rows]
    return [one for one in made if isinstance(one, Point) and one.measured > 0]


def cost(
    field: str,
    rows: Sequence[Row],
    stated: Mapping[str, Told],
    plans: Plans,
    calibration: Calibration,
) -> Cost | None:
    """What hiding a field costs; None where no row states it.

    stated, plans   of the rows as they are (`errors`, and as they are completed)
    """
    columns = HIDDEN[field]
    own = [row for row in rows if row["point_id"] in stated]
    own = [row for row in own if cell(amended(row), columns[0]) is not None]
    if not own:
        return None
    points = _points([hide(row, columns) for row in own], calibration)
    found = errors(points, calibration) if points else {}
    both = [row for row in own if f"{row['point_id']}?" in found]
    if not both:
        return None
    source = np.array([str(row["source"]) for row in both])
    before = _table(stated[row["point_id"]] for row in both)
    after = _table(found[f"{row['point_id']}?"] for row in both)

    filled = {point.point_id: point.request.plan for point in points}
    names = [FIELDS.get(name, name) for name in columns]
    differs = np.array(
        [
            any(
                not np.array_equal(getattr(plans[i], name), getattr(filled[f"{i}?"], name))
                for name in names
            )
            for i in (str(row["point_id"]) for row in both)
        ]
    )

    def mean(values: Any) -> float:
        return float(np.mean([values[source == name].mean() for name in np.unique(source)]))

    return Cost(
        field=field,
        rows=len(both),
        sources=len(np.unique(source)),
        failed=len(own) - len(both),
        stated=mean(np.abs(np.expm1(before[:, 0]))),
        hidden=mean(np.abs(np.expm1(after[:, 0]))),
        moved=mean(np.abs(after[:, 1] - before[:, 1])),
        otherwise=mean(differs),
        known=mean(before[:, 2]),
        unknown=mean(after[:, 2]),
    )


def costs(rows: Sequence[Row], calibration: Calibration) -> list[Cost]:
    """What each field costs, the dearest first.

    rows   of tables of training runs
    """
    points = _points(rows, calibration)
    stated = errors(points, calibration)
    plans = {point.point_id: point.request.plan for point in points}
    found = [cost(field, rows, stated, plans, calibration) for field in HIDDEN]
    return sorted((one for one in found if one), key=lambda one: one.stated - one.hidden)


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line: the costs, as a table."""
    parser = argparse.ArgumentParser(description="What does a field cost that nobody states?")
    parser.add_argument("tables", nargs="+", type=Path)
    parser.add_argument("--only", nargs="+", help="sources")
    parser.add_argument("--rows", type=int, default=10, help="of each source at most")
    parser.add_argument("--calibration", default="default")
    given = parser.parse_args(arguments)
    if given.rows < 1:
        parser.error(f"--rows {given.rows}: at least one")
    rows: list[Row] = []
    try:
        for path in given.tables:
            rows += check_runs(read_table(path), str(path)).to_dict("records")
        known = load(given.calibration)
    except InputError as error:
        parser.error(str(error))
    kept = [row for row in rows if not given.only or row["source"] in given.only]
    print(f"{'hidden':24} rows sources failed stated hidden moved otherwise inside hidden")
    for one in costs(sampled(kept, given.rows), known):
        print(
            f"{one.field:24} {one.rows:4} {one.sources:7} {one.failed:6} {one.stated:6.1%} "
            f"{one.hidden:6.1%} {one.moved:5.2f} {one.otherwise:9.0%} {one.known:6.0%} "
            f"{one.unknown:6.0%}"
        )


if __name__ == "__main__":
    main()

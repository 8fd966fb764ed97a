"""The nanotron sweep (Ultra-Scale Playbook): its rows as points, and which of them ran on a sick
machine.

The table states no feed-forward width (it follows from the parameters) and marks rows before and
after a fix of nanotron's pipeline; only the latter are judged for time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from calibration.sources.reading import read_table
from calibration.tables.cells import check_runs
from calibration.tables.runs import Point, Skipped, point_of
from predictor.arrays import Array
from predictor.timing import RunParameters

WIDTH_STEP = 256
"""Feed-forward widths are multiples of this."""

NEIGHBOURS, SICK = 8, 3.0
"""A row is sick whose time exceeds the median of so many neighbours by this factor."""

FAST_BUS = 440e9
"""Bus bandwidth of an all-reduce inside a node above which the environment launches fast [bytes/s]:
the two kinds of job in the table differ by it (METHOD, "Looked at closely")."""


def ffn_width(row: Mapping[Any, Any]) -> int:
    """Feed-forward width of a gated model from its parameters and its other dimensions."""
    hidden, layers = float(row["hidden"]), float(row["layers"])
    tables = 1.0 if row["tied_embeddings"] else 2.0
    attention = hidden * hidden * (2.0 + 2.0 * float(row["kv_heads"]) / float(row["heads"]))
    rest = (float(row["params_b"]) * 1e9 - tables * float(row["vocab"]) * hidden) / layers
    return int(round((rest - attention) / (3.0 * hidden) / WIDTH_STEP) * WIDTH_STEP)


@dataclass(frozen=True, slots=True, eq=False)
class Sweep:
    """Rows of the sweep as points, in the table's order.

    table    their rows
    points   of every row that can be predicted
    skipped  the others, with the reason
    """

    table: pd.DataFrame
    points: list[Point]
    skipped: list[Skipped]

    @property
    def timed(self) -> Array:
        """Rows that ran to the end after the fix of the pipeline."""
        own = self.table
        return np.asarray((own["status"] == "Success") & own["after_pp_fix"].astype(bool))

    @property
    def fast(self) -> Array:
        """Rows of jobs whose environment launches fast."""
        return np.asarray(self.table["measured_allreduce_intra_gbps"].fillna(0) * 1e9 > FAST_BUS)


def read_sweep(path: Path, run: RunParameters) -> Sweep:
    """Read the sweep. Raises InputError where the file is no table of runs."""
    table = check_runs(read_table(path), str(path))
    # Rows that ran out of memory leave out what the others of the same model state.
    for name in ("kv_heads", "tied_embeddings"):
        table[name] = table.groupby("model")[name].transform("first")
    kept, points, skipped = [], [], []
    for number, row in enumerate(table.to_dict("records")):
        found = point_of({**row, "ffn_hidden": ffn_width(row)}, run)
        if isinstance(found, Skipped):
            skipped.append(found)
            continue
        points.append(found)
        kept.append(number)
    return Sweep(table.iloc[kept].reset_index(drop=True), points, skipped)


def layer_times(table: pd.DataFrame) -> Array:
    """Step time per layer and micro-batch [s]: what rows of different plans have in common."""
    m = table["global_batch"] / (table["dp"] * table["micro_batch"])
    layers = np.ceil(table["layers"] / table["pp"])
    return np.asarray(table["step_time_s"] / ((m + table["pp"] - 1.0) * layers), float)


def sick(table: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """Rows that ran on a sick machine: their time per layer and micro-batch is more than `SICK`
    times the median of their nearest neighbours in plan space.

    table   timed rows

    Neighbours have the same tensor-parallel size; among them the distance counts doublings of
    micro-batch, pipeline, data parallelism and hidden size. No prediction is used.
    """
    time = layer_times(table)
    columns = ("micro_batch", "pp", "dp", "hidden")
    place = np.log2(np.stack([table[name].to_numpy(float) for name in columns], axis=1))
    found = np.zeros(len(table), dtype=bool)
    for size in np.unique(table["tp"]):
        own = np.flatnonzero(table["tp"] == size)
        distance = np.abs(place[own][:, None] - place[own][None]).sum(axis=2)
        np.fill_diagonal(distance, np.inf)
        count = min(NEIGHBOURS, len(own) - 1)
        if count < 3:
            continue
        near = np.argsort(distance, axis=1, kind="stable")[:, :count]
        found[own] = time[own] > SICK * np.median(time[own][near], axis=1)
    return found


def healthy_points(path: Path, run: RunParameters) -> list[Point]:
    """Timed points of the sweep without those on sick machines, each in its environment."""
    sweep = read_sweep(path, run)
    timed = np.flatnonzero(sweep.timed)
    ill = sick(sweep.table.iloc[timed])
    return [environment_of(sweep.points[at], bool(sweep.fast[at])) for at in timed[~ill]]


def environment_of(point: Point, fast: bool) -> Point:
    """A point with its environment in the place of its era: that of jobs that launch slowly is
    called 'slow' (runs of nanotron elsewhere are none)."""
    plan = replace(point.request.plan, era="neutral" if fast else "slow")
    return replace(point, request=replace(point.request, plan=plan))

"""`reckon.adapt`: a calibration that knows one's own runs; and which run would teach most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd

from calibration.runs.apart import take_apart
from calibration.runs.own import adapt_runs
from calibration.runs.own import suggest as suggested
from calibration.runs.prior import block
from calibration.serving.fit import usable
from calibration.serving.own import adapt_engines
from calibration.sources.reading import read_table
from calibration.tables.cells import check_runs
from calibration.tables.profiles import device_systems
from calibration.tables.requests import inference_point
from calibration.tables.runs import Point, Skipped, point_of
from predictor.catalog import load, own_prior
from predictor.errors import InputError
from predictor.hardware import Cluster
from predictor.schema import of_inference
from predictor.timing import Calibration, RunParameters, Traits
from reckon.verbs.runs import read_runs

TABLES = (".csv", ".csv.gz", ".parquet")


def rows_of(runs: Any) -> pd.DataFrame:
    """Runs as a table: a table, its file, logs, or rows."""
    if isinstance(runs, pd.DataFrame):
        return runs
    if isinstance(runs, str | Path):
        return _read(Path(runs))
    given = list(runs)
    if given and all(isinstance(one, str | Path) for one in given):
        return pd.concat([_read(Path(one)) for one in given], ignore_index=True)
    return pd.DataFrame([dict(one) for one in given])


def _read(path: Path) -> pd.DataFrame:
    """A table of runs, or what a log says of one."""
    if path.name.endswith(TABLES):
        table = read_table(path)
        if {"metric", "model"} & set(table):
            return table
    return read_runs(path)


def devices_of(runs: Any) -> dict[str, Cluster]:
    """Systems of the profiles that tables of runs lie in, by the name of their accelerator."""
    if isinstance(runs, pd.DataFrame):
        return {}
    given = [runs] if isinstance(runs, str | Path) else list(runs)
    folders = {Path(one).parent for one in given if isinstance(one, str | Path)}
    return {
        name: found for folder in sorted(folders) for name, found in device_systems(folder).items()
    }


def points_of(
    table: pd.DataFrame,
    run: RunParameters,
    timed: bool = True,
    devices: Mapping[str, Cluster] | None = None,
) -> list[Point]:
    """Training runs of a table.

    timed     those alone whose time is stated
    devices   systems by the name of their accelerator, where a profile lies beside the table

    Raises InputError where none is left, with the reason of the first that could not be used.
    """
    rows = check_runs(table, "the runs").to_dict("records")
    made = [point_of(row, run, devices) for row in rows]
    found = [one for one in made if isinstance(one, Point) and (one.measured > 0 or not timed)]
    if not found:
        untimed = "no time of a step follows from their metric and value"
        why = next((one.reason for one in made if isinstance(one, Skipped)), untimed)
        raise InputError(f"none of {len(made)} runs can be used: {why}")
    return found


def adapt(calibration: str | Path | Calibration, runs: Any) -> Calibration:
    """A calibration that knows one's own runs: every prediction with it is corrected by what they
    say of it, and its interval is as wide as they leave it.

    calibration  name, folder or `Calibration`
    runs         what `read_runs` returns, a table of it, paths of logs, or rows as mappings

    Its `provenance["own_words"]` are the lines in which the command says what was learned. Raises
    InputError where no run can be used, and where runs contradict each other, by name.
    """
    known, table = load(calibration), rows_of(runs)
    if of_inference(table.columns):
        rows = check_runs(table, "the benchmarks").to_dict("records")
        points = usable([inference_point(row, known.run) for row in rows])
        return adapt_engines(known, points).calibration
    return adapt_runs(known, points_of(table, known.run, devices=devices_of(runs))).calibration


def suggest(
    calibration: str | Path | Calibration, plans: Any, most: int = 3, among: Any = None
) -> list[dict[str, Any]]:
    """Which plans to measure next, so that those that one cares about are predicted best.

    calibration  name, folder or `Calibration`, with or without own runs
    plans        the plans that one cares about, as `adapt` takes runs; their times may be missing
    most         how many to name
    among        the plans that can be measured, alike (small ones, of large ones); any of `plans`
                 if None

    Returns for each its name and the mean spread of the plans (log) before and after it.
    """
    known = load(calibration)
    cared, names = _compared(known, plans)
    prior = own_prior() if known.own is None else known.own.prior
    if among is None:
        return [asdict(one) for one in suggested(known.own, prior, cared, names, most)]
    able, names = _compared(known, among)
    return [asdict(one) for one in suggested(known.own, prior, able, names, most, cared)]


def _compared(known: Calibration, plans: Any) -> tuple[Traits, list[str]]:
    """What plans are compared by, and their names."""
    points = points_of(rows_of(plans), known.run, False, devices_of(plans))
    runs = take_apart(known, points)
    return block(runs, known.run).traits, [point.point_id for point in runs.points]


__all__: Sequence[str] = ("adapt", "suggest")

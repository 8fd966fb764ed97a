"""Fits the parameters of a run to published runs: few, physical, shared.

    python -m calibration.runs.fit ../shared [--base data/calibrations/kernels-only]
                                   [--out data/calibrations/default]

Kernels and links stay as their own measurements fitted them. Steps are taken apart once
(`predictor.training.parts`), so that a fit takes seconds and can be repeated without every source.

1. Shared parameters (`descent.SHARED`) from contrasts within sources: what one source has in
   common says nothing about them.
2. Launch costs of frameworks that published sweeps of small models (`descent.LAUNCHES`), each with
   a level of its own.
3. Levels: the median log error of a source is one number. Its frameworks in general, the family
   of the framework, the framework: each a robust mean of the sources that share it, shrunk to the
   one above. A framework without another source has the level of its family.
4. The spread of a run, so that the interval covers its share of the points (`spread`).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from calibration.artifact import write
from calibration.runs.allocation import with_allocation
from calibration.runs.apart import Runs, residuals, take_apart
from calibration.runs.descent import fit_parameters
from calibration.runs.levels import fit_levels
from calibration.sources.hiding import hide, sampled
from calibration.sources.reading import read_table
from calibration.spread import Residual, with_plan_spread, with_spread, with_unnamed_spread
from calibration.tables.cells import check_runs
from calibration.tables.profiles import device_systems
from calibration.tables.runs import Point, Skipped, point_of
from calibration.tables.sweep import healthy_points
from predictor import catalog
from predictor.catalog import load, run_parameters
from predictor.errors import InputError
from predictor.hardware import Cluster
from predictor.plans import UNNAMED
from predictor.schema import TRAINING_KEYS, of_training
from predictor.timing import Calibration, RunParameters

LEAST_SOURCES = 3
"""Fewer sources than this keep the documented defaults."""

NAMES = ("framework", "framework_version")
"""Columns that name what a run ran with."""

UNNAMED_ROWS = 10
"""Rows of each source that are read without these too: sources count alike, whatever they have."""


def default_run() -> RunParameters:
    """The run parameters of `data/defaults/run.yaml`."""
    return run_parameters(catalog.read_mapping(catalog.data_dir() / "defaults" / "run.yaml"))


def read_points(
    paths: Sequence[Path], run: RunParameters, devices: Mapping[str, Cluster] | None = None
) -> list[Point]:
    """Training points with a step time from tables of runs.

    devices   systems by the name of their accelerator, beside those of a profile that a table lies
              in

    Raises InputError where a file is no table of training runs or holds no usable row.
    """
    found: list[Point] = []
    why: list[str] = []
    for path in paths:
        table = read_table(path)
        if not of_training(table.columns):
            raise InputError(f"{path} is no table of training runs: no column {TRAINING_KEYS[0]!r}")
        rows = check_runs(table, str(path)).to_dict("records")
        known = {**(devices or {}), **device_systems(path.parent)}
        made = [point_of(row, run, known) for row in rows]
        found += [p for p in made if isinstance(p, Point) and p.told and p.measured > 0]
        why += [p.reason for p in made if isinstance(p, Skipped)]
    if not found:
        reason = f": {why[0]}" if why else ""
        raise InputError(f"no row of {', '.join(map(str, paths))} can be predicted{reason}")
    return found


def fit_run(runs: Runs, run: RunParameters) -> RunParameters:
    """Parameters of a run: launch costs, shared parameters, levels.

    run   the documented defaults, which hold where the runs say nothing
    """
    if len(np.unique(runs.source)) < LEAST_SOURCES:
        return run
    return fit_levels(runs, fit_parameters(runs, run))


def left_out(
    runs: Runs,
    run: RunParameters,
    key: npt.NDArray[np.str_] | None = None,
    known: npt.NDArray[np.bool_] | None = None,
) -> list[Residual]:
    """Errors of every run with the parameters fitted without its group, in the runs' order.

    run    the documented defaults
    key    group of every run; its source if None
    known  runs that parameters may be fitted to; all if None
    """
    groups = runs.source if key is None else key
    fitted = np.ones(len(runs.points), bool) if known is None else known
    found: list[Residual | None] = [None] * len(runs.points)
    for group in np.unique(groups):
        own = groups == group
        rest = fitted & ~own
        made = residuals(runs.only(own), fit_run(runs.only(rest), run) if rest.any() else run)
        for at, residual in zip(np.flatnonzero(own), made, strict=True):
            found[at] = residual
    return [residual for residual in found if residual is not None]


def unnamed_points(paths: Sequence[Path], run: RunParameters) -> list[Point]:
    """Training points of `UNNAMED_ROWS` rows of each source, as if nobody had said with which
    framework they ran; without those that can have run with one alone."""
    found: list[Point] = []
    for path in paths:
        rows = check_runs(read_table(path), str(path)).to_dict("records")
        made = [point_of(hide(row, NAMES), run) for row in sampled(rows, UNNAMED_ROWS)]
        found += [
            one
            for one in made
            if isinstance(one, Point) and one.measured > 0 and not one.doubtful
            if one.request.plan.framework == UNNAMED
        ]
    return found


def fit_runs(
    calibration: Calibration, points: Sequence[Point], unnamed: Sequence[Point] = ()
) -> Calibration:
    """A calibration with its run parameters fitted to points, from the documented defaults.

    unnamed   points of which the framework is hidden (`unnamed_points`), to which nothing but what
              that adds to the spread is fitted

    The spread is that of errors on sources left out of the fit. The points' ids are kept, so that
    `reckon validate` knows them as seen.
    """
    every = take_apart(calibration, [*points, *unnamed])
    hidden = frozenset(point.point_id for point in unnamed)
    named = np.array([point.point_id not in hidden for point in every.points])
    runs = every.only(named)
    defaults = default_run()
    fitted = replace(
        calibration,
        run=fit_run(runs, defaults),
        fitted_points=frozenset(point.point_id for point in runs.points),
        provenance={
            **calibration.provenance,
            "fitted_to": "kernels and collectives; run parameters to published runs",
            "interval": "spreads of runs that were left out with their source, sources alike",
            "runs": {
                str(source): int(count)
                for source, count in zip(*np.unique(runs.source, return_counts=True), strict=True)
            },
        },
    )
    found = left_out(every, defaults, known=named)
    said = [one for one, is_so in zip(found, named, strict=True) if is_so]
    unsaid = [one for one, is_so in zip(found, named, strict=True) if not is_so]
    q, level = fitted.interval_q, fitted.interval_level
    spread = with_plan_spread(with_spread(fitted.run, said, q, level), said)
    return replace(fitted, run=with_unnamed_spread(spread, unsaid, q, level))


def fit_shared(calibration: Calibration, shared: Path) -> Calibration:
    """A calibration with its run parameters fitted to the runs that ship with it, and what
    nanotron's allocation adds to its sweep."""
    points = shared_points(shared, calibration.run)
    reference = catalog.data_dir() / "reference" / "training.csv"
    fitted = fit_runs(calibration, points, unnamed_points([reference], calibration.run))
    sweep = shared / "bulk" / "training" / "nanotron_sweep.csv"
    return replace(fitted, run=with_allocation(sweep, fitted.run))


def shared_points(shared: Path, run: RunParameters) -> list[Point]:
    """All runs that the shipped calibration is fitted to: the reference table without its doubtful
    rows, and the sweeps of small models beside it."""
    training = shared / "bulk" / "training"
    reference = catalog.data_dir() / "reference" / "training.csv"
    return [
        *(one for one in read_points([reference], run) if not one.doubtful),
        *read_points([training / "vtrain_single_node.csv"], run),
        *healthy_points(training / "nanotron_sweep.csv", run),
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line: refit the run level of a calibration."""
    parser = argparse.ArgumentParser(description="Fit run parameters to published runs.")
    parser.add_argument("shared", type=Path)
    parser.add_argument("--base", type=Path, default=Path("data/calibrations/kernels-only"))
    parser.add_argument("--out", type=Path, default=Path("data/calibrations/default"))
    given = parser.parse_args(arguments)
    base = load(given.base)
    start = replace(base, name=given.out.name, run=default_run())
    fitted = fit_shared(start, given.shared)
    manifest: dict[str, Any] = json.loads(
        (given.base / "calibration.json").read_text(encoding="utf-8")
    )
    beside = given.base.resolve().parent == given.out.resolve().parent
    write(fitted, given.out, manifest["heldout"], kernels=given.base.name if beside else None)
    print(f"wrote {given.out}: {len(fitted.fitted_points)} runs")
    print(
        f"spread {fitted.run.sigma:.3f}, of mixtures of experts {fitted.run.sigma_moe:.3f}, "
        f"of frameworks with their own {fitted.run.spreads}, "
        f"between plans {fitted.run.sigma_plan:.3f}, of frameworks that nobody named "
        f"{fitted.run.sigma_unnamed:.3f} more"
    )
    for name, value in {**fitted.run.overlap, **fitted.run.factors}.items():
        print(f"  {name:28} {value:.3f}")


if __name__ == "__main__":
    main()

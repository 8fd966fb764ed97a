"""Parameters of a whole run: the documented defaults, and the interval that fits published runs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from calibration.points import Point, point_of
from calibration.tables import read_table
from predictor import catalog
from predictor.efficiency import Calibration, RunParameters, run_parameters
from predictor.errors import InputError
from predictor.schema import TRAINING_KEY
from predictor.training import predict


def default_run() -> RunParameters:
    """The run parameters of `data/defaults/run.yaml`."""
    return run_parameters(catalog.read_mapping(catalog.data_dir() / "defaults" / "run.yaml"))


def read_points(paths: list[Path], run: RunParameters) -> list[Point]:
    """Training points with a step time from tables of runs.

    Raises InputError where a file is no table of training runs or holds no usable row.
    """
    found: list[Point] = []
    for path in paths:
        table = read_table(path)
        if TRAINING_KEY not in table:
            raise InputError(f"{path} is no table of training runs: no column {TRAINING_KEY!r}")
        made = [point_of(row, run) for row in table.to_dict("records")]
        found += [p for p in made if isinstance(p, Point) and p.measured > 0]
    if not found:
        raise InputError(f"no row of {', '.join(map(str, paths))} can be predicted")
    return found


@dataclass(frozen=True, slots=True)
class Residual:
    """One predicted run: log(predicted / measured), the operators' part of its spread, source."""

    error: float
    sigma: float
    source: str


def residuals(calibration: Calibration, points: list[Point]) -> list[Residual]:
    """Predict every point."""
    found = []
    for point in points:
        request = point.request
        result = predict(request.model, request.cluster, request.plan, calibration)
        value = float(result.layer_time if point.one_layer else result.step_time)
        operators = max(float(result.sigma) ** 2 - calibration.run.sigma**2, 0.0)
        error = float(np.log(value / point.measured))
        found.append(Residual(error, float(np.sqrt(operators)), point.source))
    return found


def run_sigma(found: list[Residual], q: float, level: float) -> float:
    """The run's own log-standard-deviation with which `level` of the points, every source counting
    alike, lie inside exp(+-q sigma)."""
    sources, counts = np.unique([r.source for r in found], return_counts=True)
    share = dict(zip(sources, 1.0 / counts / len(sources), strict=True))
    weight = np.array([share[r.source] for r in found])
    # A point is inside once sigma_run² reaches (error / q)² - sigma_operators².
    needed = np.array([max((r.error / q) ** 2 - r.sigma**2, 0.0) for r in found])
    order = np.argsort(needed)
    covered = np.cumsum(weight[order])
    index = min(int(np.searchsorted(covered, level)), len(order) - 1)
    # A hair more, so that rounding does not leave the deciding point outside.
    return float(np.sqrt(needed[order][index])) * (1.0 + 1e-9)


def fit_interval(calibration: Calibration, points: list[Point]) -> Calibration:
    """Set the spread of a run so that the interval covers the points at its level (conformal,
    every source counting alike). Central values do not change."""
    found = residuals(calibration, points)
    sigma = run_sigma(found, calibration.interval_q, calibration.interval_level)
    provenance = {
        **calibration.provenance,
        "interval": f"run spread fitted on {len(points)} runs of "
        f"{len({r.source for r in found})} sources, each source counting alike",
    }
    run = replace(calibration.run, sigma=max(sigma, 0.01))
    return replace(calibration, run=run, provenance=provenance)

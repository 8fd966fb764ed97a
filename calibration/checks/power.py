"""How well power is predicted where it was not fitted: `python -m calibration.checks.power SHARED`.

Tables of power scored as `reckon validate --folds` does it, by accelerator and by model.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd

from calibration.checks.command import of_shared
from calibration.power.points import PowerPoint, power_points
from calibration.power.stated import power_table
from calibration.sources.reading import read_table
from predictor.timing import Calibration
from predictor.units import Z80


def scored(points: list[PowerPoint]) -> pd.DataFrame:
    """Mean and median error and coverage of the interval, by source, metric and accelerator."""
    table = pd.DataFrame(
        {
            "source": [p.source for p in points],
            "metric": [p.metric for p in points],
            "accelerator": [p.accelerator for p in points],
            "log": [np.log(p.predicted / p.published) for p in points],
            "reach": [Z80 * p.sigma for p in points],
        }
    )
    table["away"] = np.abs(np.expm1(table["log"]))
    table["covered"] = table["log"].abs() <= table["reach"]
    groups = table.groupby(["metric", "source", "accelerator"])
    return groups.agg(
        n=("away", "size"),
        mape=("away", "mean"),
        median=("away", "median"),
        bias=("log", "mean"),
        covered=("covered", "mean"),
    ).round(3)


def report(shared: Path, calibration: Calibration) -> None:
    """Print the scores of every table of power under a shared folder."""
    for path in sorted((shared / "reference" / "power").glob("*.csv")):
        table = read_table(path)
        kind = power_table(table)
        if kind is None:
            continue
        for by in {"served": ("model", "accelerator"), "sweeps": ("accelerator",)}.get(kind, ("",)):
            points, _ = power_points(table, kind, calibration, by or None)
            points = [point for point in points if not point.in_sample]
            if points:
                print(f"\n{path.name}, {f'each {by} left out' if by else 'not fitted'}")
                print(scored(points).to_string())


if __name__ == "__main__":
    sys.exit(of_shared("calibration.checks.power", report, sys.argv[1:]))

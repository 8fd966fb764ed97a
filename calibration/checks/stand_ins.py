"""What is not known of a kernel that is timed by another one in its stead, on machines where only
that other one was measured.

A kernel that takes so many times as long as its stand-in on one architecture
(`predictor.work.primitives.Operator.stretch`) takes other multiples elsewhere: another program,
with other tiles and waits. How far such ratios differ is told by kernels of several libraries that
do the same, timed on accelerators of several architectures.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pandas as pd

from calibration.checks.scans import left_over
from calibration.robust import balanced_quantile
from predictor import catalog
from predictor.schema import KERNEL_NUMBERS
from predictor.timing import STAND_IN, Calibration

LEAST_LATENCY = 50.0
"""Rows below are left out: launches, not kernels, would be compared [us]."""

LEAST_SHAPES, LEAST_ARCHITECTURES = 30, 3
"""Of which two libraries' kernels are compared, and on how many architectures."""

SHAPE = ("kernel", "layout", "kv_dtype", *KERNEL_NUMBERS)


def ratios(table: pd.DataFrame) -> list[pd.Series]:
    """Log of the time of one library's kernels over another's for the same shapes: of each pair of
    libraries, operator and data type the median by architecture.

    table   checked kernel rows
    """
    table = table[(table["latency_us"] >= LEAST_LATENCY) & (table["framework"] != "")]
    places = {
        name: catalog.accelerator(name).architecture for name in table["accelerator"].unique()
    }
    found = []
    for _, own in table.groupby(["op", "dtype"]):
        told = [name for name in SHAPE if own[name].nunique() > 1]
        at = own.groupby([*told, "accelerator", "framework"], dropna=False)["latency_us"].median()
        wide = np.log(at).unstack("framework")
        for one, other in combinations(wide.columns, 2):
            both = (wide[one] - wide[other]).dropna()
            counted = both.groupby(level="accelerator").agg(["median", "size"])
            medians = counted.loc[counted["size"] >= LEAST_SHAPES, "median"]
            by = medians.groupby(medians.index.map(places)).mean()
            if len(by) >= LEAST_ARCHITECTURES:
                found.append(by)
    return found


def between_architectures(table: pd.DataFrame, level: float) -> float:
    """How far apart the ratio of two kernels that do the same is between two architectures, in
    logs, pairs of libraries alike; 0 where none can be compared.

    table   checked kernel rows
    level   share of differences that lie below
    """
    apart = [
        np.abs(np.subtract.outer(by.to_numpy(), by.to_numpy())[~np.eye(len(by), dtype=bool)])
        for by in ratios(table)
    ]
    return balanced_quantile(apart, level) if apart else 0.0


def with_stand_ins(calibration: Calibration, table: pd.DataFrame) -> Calibration:
    """A calibration that knows what stand-ins leave open: where they were compared what one factor
    for all shapes does, elsewhere that and what differs between architectures.

    table   all kernel rows
    """
    near = left_over(calibration)
    reach = between_architectures(table, calibration.interval_level)
    far = float(np.hypot(near, reach / calibration.interval_q))
    found = {STAND_IN: far, f"{STAND_IN}/architecture": near}
    return replace(calibration, transfer_sigma={**calibration.transfer_sigma, **found})

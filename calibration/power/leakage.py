"""What a kelvin costs an accelerator at its limit, and the growth of leakage that explains it.

Products of accelerators at one limit take longer where they are warmer: leakage takes power from
the clock. Rows of one accelerator at several temperatures tell how much; that of others differs by
more than heat.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pandas as pd

from calibration.power.sweeps import device_of
from predictor.catalog import power_constants
from predictor.power import Activity, PowerConstants, demand, operating

HELD = 0.95
"""Share of the limit from which a row is held by it."""

MOST = 0.1
"""Growth of leakage per kelvin that no chip exceeds."""

FULL = 1e9
"""Rows of products that fill the processors."""


def measured_slope(table: pd.DataFrame) -> tuple[str, float, float, int] | None:
    """Accelerator, relative time per kelvin at the limit, its standard error, rows; None where no
    rows tell."""
    told = table[["temp_c", "power_w", "work_time_s", "power_limit_w", "gpu_index"]].notna()
    rows = table[told.all(axis=1)]
    rows = rows[rows["power_w"] > HELD * rows["power_limit_w"]]
    if len(rows) < 10:
        return None
    name = str(rows["accelerator"].iloc[0])
    rows = rows[rows["accelerator"] == name]
    rows = rows.assign(log_time=np.log(rows["work_time_s"].to_numpy(float)))
    same = rows.groupby(["gpu_index", "workload"])
    away, longer = (
        (rows[name] - same[name].transform("mean")).to_numpy(float)
        for name in ("temp_c", "log_time")
    )
    whole = float((away**2).sum())
    slope = float((away * longer).sum()) / whole
    left = float(((longer - slope * away) ** 2).sum()) / max(len(rows) - same.ngroups - 1, 1)
    return name, slope, float(np.sqrt(left / whole)), len(rows)


def slope_of(constants: PowerConstants, low: float = 64.0, high: float = 74.0) -> float:
    """Relative time per kelvin of products that the board's own limit holds.

    low, high   temperatures between which it is taken [°C]
    """
    drawn = demand(Activity(1.0, flop=1e18, rows=FULL, core=1.0), constants)
    times = [
        float(operating(drawn, constants, constants.limit, temperature=warm).slower)
        for warm in (low, high)
    ]
    return float(np.log(times[1] / times[0]) / (high - low))


def fit_leakage(table: pd.DataFrame, laws: Mapping[str, float]) -> float | None:
    """Growth of leakage per kelvin at which products slow as measured; None without rows, or where
    nothing up to `MOST` does."""
    from scipy.optimize import brentq

    told = measured_slope(table)
    if told is None:
        return None
    name, slope, _, _ = told
    constants = power_constants(device_of(name), laws, {})

    def missing(growth: float) -> float:
        return slope_of(replace(constants, leakage=growth)) - slope

    if missing(0.0) > 0 or missing(MOST) < 0:
        return None
    return float(brentq(missing, 0.0, MOST, xtol=1e-6))

"""Checks the constants of the power ceiling (`hardware.ENERGY`, `hardware.NARROWING`).

Every fit shares them, so that leaving an accelerator out of a fit leaves them as they are. Here
they are fitted anew without each accelerator: how far its ceiling then moves is how much its
held-out errors flatter.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from predictor import catalog
from predictor.hardware import ENERGY, NARROWING, Accelerator, matrix_energy
from predictor.timing import CLOCK

LARGE = 4096.0
"""Products with every side at least this long run as fast as an accelerator can."""

ENERGIES = np.geomspace(0.6e-12, 3.0e-12, 61)
NARROWINGS = np.linspace(0.0, 0.8, 41)


@dataclass(frozen=True, slots=True)
class Ceiling:
    """One accelerator: share of the peak that large products reach, and the share that the ceiling
    times what all reach of theirs says, with the constants as they are and as fitted without it."""

    achieved: float
    shipped: float
    left_out: float


def achieved(table: pd.DataFrame) -> dict[str, float]:
    """Upper quartile of the rate of large 16-bit products over the peak, by accelerator.

    table   checked kernel rows
    """
    large = (table[["m", "n", "k"]] >= LARGE).all(axis=1) & ~(table["batch"] > 1)
    rows = table[large & (table["op"] == "gemm") & table["dtype"].isin(["bf16", "fp16"])]
    rate = 2e6 * rows["m"] * rows["n"] * rows["k"] / rows["latency_us"]
    best = rate.groupby(rows["accelerator"]).quantile(0.75)
    found = {}
    for name, value in best.items():
        device = catalog.accelerator(str(name))
        if "bf16" in device.peak and np.isfinite(float(device.power)):
            found[str(name)] = float(value / device.peak["bf16"])
    return found


def _ceiling(device: Accelerator, energy: np.ndarray, narrowing: np.ndarray) -> np.ndarray:
    """Log of the share of the peak under the power cap, as `features.power_limit` has it."""
    half = device.peak["bf16"]
    width = half / (device.sms * device.clock)
    full = matrix_energy(width, energy, narrowing) * half
    return np.asarray(CLOCK * np.log(np.minimum(device.power / full, 1.0)))


def power_left_out(table: pd.DataFrame) -> dict[str, Ceiling]:
    """The ceiling of each accelerator with the constants fitted to the others."""
    reached = achieved(table)
    names = list(reached)
    logs = np.log([reached[name] for name in names])
    energy, narrowing = (grid.ravel() for grid in np.meshgrid(ENERGIES, NARROWINGS))
    grid = np.array([_ceiling(catalog.accelerator(n), energy, narrowing) for n in names])
    shipped = np.array(
        [_ceiling(catalog.accelerator(n), np.array(ENERGY), np.array(NARROWING)) for n in names]
    )
    found = {}
    for index, name in enumerate(names):
        rest = np.arange(len(names)) != index
        common = (logs[rest, None] - grid[rest]).mean(axis=0)
        loss = ((logs[rest, None] - grid[rest] - common) ** 2).sum(axis=0)
        best = int(np.argmin(loss))
        found[name] = Ceiling(
            float(reached[name]),
            float(np.exp(shipped[index] + (logs - shipped)[rest].mean())),
            float(np.exp(grid[index, best] + common[best])),
        )
    return found

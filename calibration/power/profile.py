"""Constants of power from the `power.csv` of a profile: what a device draws awake, copying, and
multiplying, each for some seconds.

Fitted are, around what ships, the constants that such rows tell (`TOLD`), through the demand that
predicts them (`predictor.power`): what a power limit hides of a kernel's demand, the prior decides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from calibration.power.ladder import FULL
from calibration.power.serving import PRIOR
from calibration.power.spreads import spread
from calibration.sources.reading import read_table
from calibration.tables.cells import cell
from calibration.tables.profiles import device_accelerators
from predictor.arrays import Array
from predictor.catalog import byte_law, power_constants, power_laws
from predictor.errors import InputError
from predictor.hardware import Accelerator
from predictor.power import Activity, demand, operating, relative_energy
from predictor.precision import ELEMENT_BYTES

FILE = "power.csv"

TOLD = {"idle": ("awake_share",), "memcpy": ("busy_share",), "gemm": ("busy_share", "flop_scale")}
"""Constants that a kind of row tells; copies tell those of the memory too, by its kind."""

SURE = 0.03
"""Log-standard-deviation of what a sensor reads over seconds."""


@dataclass(frozen=True, slots=True)
class ProfilePower:
    """What the rows of a device say of its power.

    constants   by the names of `data/power/laws.yaml`, with `sigma`
    rows        that were read
    left_out    mean error of a row that constants were fitted without
    """

    constants: dict[str, float]
    rows: int
    left_out: float


def activity_of(row: Mapping[Any, Any]) -> Activity | None:
    """What a row's kernel does in a second; None where that is not known."""
    op, seconds = str(row["op"]), cell(row, "call_s")
    if op == "idle":
        return Activity(1.0)
    if seconds is None or not float(seconds) > 0:
        return None
    if op == "memcpy" and cell(row, "message_bytes") is not None:
        return Activity(1.0, bytes=float(row["message_bytes"]) / float(seconds), rows=FULL)
    dtype = str(row.get("precision"))
    sizes = [cell(row, name) for name in ("m", "n", "k")]
    if op != "gemm" or any(one is None for one in sizes) or dtype not in ELEMENT_BYTES:
        return None
    m, n, k = (float(one) for one in sizes)
    rate = float(cell(row, "batch") or 1.0) / float(seconds)
    moved = rate * ELEMENT_BYTES[dtype] * (m * k + k * n + m * n)
    flop = rate * 2.0 * m * n * k * relative_energy(dtype)
    return Activity(1.0, flop=flop, bytes=moved, rows=FULL, core=1.0)


def powers(found: Sequence[Activity], device: Accelerator, constants: Mapping[str, float]) -> Array:
    """Power of kernels under the device's own limit [W], (N,)."""
    own = power_constants(device, own=constants)
    return np.array([float(operating(demand(one, own), own, own.limit).power) for one in found])


def fit_constants(
    found: Sequence[tuple[str, Activity, float]], device: Accelerator
) -> dict[str, float]:
    """Constants that suit rows, around those that ship.

    found   operator, activity and measured power [W] of each row
    """
    ops, activities, measured = zip(*found, strict=True)
    names = {name for op in ops for name in TOLD[op]}
    if "memcpy" in ops:
        names.add(byte_law(device))
    told = sorted(names)
    laws = power_laws()
    centre = np.log([laws[name] for name in told])

    def errors(logs: Array) -> Array:
        values = dict(zip(told, np.exp(logs).tolist(), strict=True))
        missed = np.log(powers(activities, device, values) / np.array(measured)) / SURE
        return np.concatenate([missed, (logs - centre) / PRIOR])

    fitted = least_squares(errors, centre, diff_step=1e-3, max_nfev=50)
    return dict(zip(told, np.exp(fitted.x).tolist(), strict=True))


def fit_profile(rows: Sequence[Mapping[Any, Any]], device: Accelerator) -> ProfilePower:
    """Constants of a device from its rows, and how well they predict a row that was left out.

    Raises InputError where no limit of the device is known, or no row tells anything.
    """
    found = []
    for row in rows:
        activity, watts = activity_of(row), cell(row, "avg_power_w")
        if activity is not None and watts is not None and float(watts) > 0:
            found.append((str(row["op"]), activity, float(watts)))
    if not found:
        raise InputError(f"no row of power of {device.name} can be used")
    constants = fit_constants(found, device)
    missed = []
    for at, (_, activity, watts) in enumerate(found):
        rest = found[:at] + found[at + 1 :]
        if rest:
            alone = powers([activity], device, fit_constants(rest, device))
            missed.append(float(np.log(alone[0] / watts)))
    errors = np.array(missed)
    sigma = spread(errors) if len(errors) else power_laws()["sigma_relatives"]
    left_out = float(np.abs(np.expm1(errors)).mean()) if len(errors) else float("nan")
    return ProfilePower({**constants, "sigma": sigma}, len(found), left_out)


def fit_profiles(paths: Sequence[Path]) -> tuple[dict[str, ProfilePower], dict[str, str]]:
    """Constants by accelerator from the profiles among some paths, and why others have none.

    Raises InputError for a table of power that cannot be read.
    """
    fits: dict[str, ProfilePower] = {}
    refused: dict[str, str] = {}
    for folder in paths:
        if not (folder / FILE).is_file():
            continue
        table = read_table(folder / FILE)
        lacking = {"accelerator", "op", "avg_power_w", "call_s"} - set(table.columns)
        if lacking:
            raise InputError(f"{folder / FILE} lacks {', '.join(sorted(lacking))}")
        devices = device_accelerators(folder)
        for name, own in table.groupby("accelerator"):
            device = devices.get(str(name))
            try:
                if device is None:
                    raise InputError(f"{folder} has no device file of {name}")
                fits[str(name)] = fit_profile(own.to_dict("records"), device)
            except InputError as error:
                refused[str(name)] = str(error)
    return fits, refused

"""Kernels that load one unit of an accelerator: their rows predicted, and what a ladder of them
says of the accelerator's energies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from calibration.power.sweeps import device_of
from calibration.tables.cells import cell
from predictor.catalog import power_constants
from predictor.hardware import Accelerator
from predictor.power import (
    STREAMING,
    Activity,
    Operating,
    PowerConstants,
    demand,
    operating,
    relative_energy,
)

REACHED = 0.975
"""Share of the peak that large products of a library reach where power does not limit them (B300:
2,195 of 2,250 TFLOP/s)."""

FULL = 1e9
"""Rows that keep every processor busy, however large the accelerator."""

PRODUCTS = ("prec-", "tensor-only-", "locked-clocks", "sgemm", "gemm", "cap-", "limit-")
"""Beginnings of workloads that run large products of one data type back to back."""

RUNGS = ("idle", "unit-dram", "prec-bf16")
"""Rungs of a ladder to which an accelerator's constants are fitted."""

FILLING = ("fma", "int32", "sfu", "four-way")
"""Units whose kernels fill the processors with threads and use no matrix unit."""

FILLED = ("unit-fma", "unit-int32", "unit-sfu")
"""Rungs that tell what full processors draw, where a ladder has them."""

UNLISTED = {"fp64": "fp64 is not predicted", "int8": "int8 products ran outside matrix units"}


def activity_of(row: Mapping[Any, Any], device: Accelerator) -> Activity | str:
    """What a row's kernel does in a second at the reference clock, or why that is not known."""
    name, dtype = str(row["workload"]), str(row["precision"])
    if name == "idle":
        return Activity(1.0)
    kind, _, parts = name.partition("-")
    units = parts.removesuffix("-only").split("+") if kind == "unit" else [name[: -len("-only")]]
    if "dram" in units:
        rate = STREAMING * float(np.asarray(device.bandwidth))
        return Activity(1.0, bytes=rate, rows=FULL)
    if set(units) <= set(FILLING):
        return Activity(1.0, rows=FULL, core=1.0)
    if not name.startswith(PRODUCTS) or "wmma" in name:
        return "a unit that language models load with others only"
    if dtype in UNLISTED:
        return UNLISTED[dtype]
    kind = "tf32" if dtype == "fp32" and name != "sgemm" else dtype
    peak = device.peak.get(kind)
    if peak is None:
        return f"the catalog has no {kind} rate"
    rate = REACHED * float(np.asarray(peak))
    traffic = rate / 8192.0 * 3.0  # three matrices of two bytes, read and written once
    flop = rate * relative_energy(kind)
    return Activity(1.0, flop=flop, bytes=traffic, rows=FULL, core=1.0)


def at_limit(
    row: Mapping[Any, Any], device: Accelerator, constants: PowerConstants
) -> Operating | str:
    """A row's kernel under its enforced limit, or why it is not predicted."""
    activity = activity_of(row, device)
    if isinstance(activity, str):
        return activity
    limit = cell(row, "enforced_limit_w") or float(np.asarray(device.power))
    return operating(demand(activity, constants), constants, float(limit))


def fit_ladder(table: pd.DataFrame, name: str, law: Mapping[str, float]) -> dict[str, float]:
    """Shares and energies of an accelerator from its ladder: awake from the idle rung, full
    processors from those of single units, bytes from the streaming one, FLOPs from 16-bit products;
    nothing where rungs are missing.

    law   what the ladder does not tell

    The rungs are as many equations as numbers; every other row of the table checks them.
    """
    device = device_of(name)
    own = table[table["accelerator"] == name]
    power = {str(row["workload"]): float(row["avg_power_w"]) for _, row in own.iterrows()}
    if not set(RUNGS) <= set(power):
        return {}
    limit = float(np.asarray(device.power))
    filled = [power[name] for name in FILLED if name in power]
    busy = float(np.mean(filled)) - power["idle"] if filled else law["busy_share"] * limit
    rate = REACHED * float(np.asarray(device.peak["bf16"]))
    streamed = STREAMING * float(np.asarray(device.bandwidth))
    byte = max(power["unit-dram"] - power["idle"] - busy, 0.0) / streamed
    products = power["prec-bf16"] - power["idle"] - busy - byte * rate / 8192.0 * 3.0
    usual = float(np.asarray(power_constants(device, law, {}).flop)) / law["flop_scale"]
    return {
        "awake_share": power["idle"] / limit,
        "busy_share": busy / limit,
        "byte_pj": byte * 1e12,
        "flop_scale": products / rate / usual,
    }


def unread_rungs(
    table: pd.DataFrame, name: str, law: Mapping[str, float], own: Mapping[str, float]
) -> list[float]:
    """Errors of an accelerator's rungs that its constants were not read off, in logarithms of
    power; none where it has no ladder.

    own   as `fit_ladder` gives them
    """
    if not own:
        return []
    device = device_of(name)
    constants = power_constants(device, law, own)
    errors = []
    for row in table[table["accelerator"] == name].to_dict("records"):
        if row["workload"] in (*RUNGS, *FILLED):
            continue
        found = at_limit(row, device, constants)
        if not isinstance(found, str):
            errors.append(float(np.log(found.power / row["avg_power_w"])))
    return errors

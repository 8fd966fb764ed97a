"""Sweeps of power limits and locked clocks: rows predicted from the row of their group at the
highest limit or clock, and what is fitted to them.

A run's mean power hides gaps. While it works it draws P_b = P_0 + gaps (limit - P_0), for a share
(P_0 - awake) / (P_b - awake) of the time, and awake power else; a limit meets P_b.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from predictor.arrays import Array, Mask
from predictor.catalog import accelerator, data_dir, memory_kind, power_constants, read_mapping
from predictor.errors import InputError
from predictor.hardware import Accelerator
from predictor.power import VoltageCurve, power_at, settled, stretch

ACCELERATORS = {
    "A40": "A40-48GB",
    "V100": "V100-SXM2-16GB",
    "V100 (variant not stated)": "V100-SXM2-16GB",
    "RTX 3090": "RTX-3090-24GB",
    "B300-SXM6": "B300-SXM-288GB",
    "H100": "H100-SXM5-80GB",
    "A100": "A100-SXM4-80GB",
    "A100-40GB": "A100-SXM4-40GB",
    "B200": "B200-SXM-180GB",
    "H200": "H200-SXM-141GB",
}
"""Accelerators of tables under the catalog's names."""

OUTSIDE = {
    # limit [W], memory [GB], stacked or not, bandwidth [GB/s], base architecture
    "V100-PCIE-32GB (CloudLab/Chameleon, 250 W)": (250.0, 32.0, "volta", 900.0),
    "Quadro RTX 6000": (260.0, 24.0, "turing", 672.0),
    "Quadro RTX 8000": (260.0, 48.0, "turing", 672.0),
    "P100": (250.0, 16.0, "volta", 732.0),
    "P100-PCIE-16GB": (250.0, 16.0, "volta", 732.0),
    "A10G": (300.0, 24.0, "ampere-rtx", 600.0),
}
"""Accelerators of tables that the catalog lacks (datasheets, from memory); a P100 has stacked
memory as a V100."""

CLOCKED = ("locked_clock", "clock", "max_clock")

FITTED = ("slope", "floor", "gddr_w_per_gb", "gaps", "held", "core", "share", "still")
"""gaps: as above; held: mean power over a binding limit; core: share of the time that follows the
clock; share: of memory in what a kernel draws; still: awake without a kernel, over the limit
(boards of 2017 to 2020 draw less than those whose serving tells `awake_share`)."""

START = {
    "slope": 0.8, "floor": 0.78, "gddr_w_per_gb": 0.5, "gaps": 0.35, "held": 0.97, "core": 0.6,
    "share": 0.1, "still": 0.13,
}  # fmt: skip
LOW = (0.2, 0.6, 0.0, 0.0, 0.85, 0.2, 0.0, 0.05)
HIGH = (1.5, 0.95, 1.5, 0.9, 1.0, 1.0, 0.5, 0.25)
WIDTH = (0.3, 0.05, 0.3, 0.2, 0.02, 0.2, 0.1, 0.05)
"""Bounds and priors' standard deviations of those."""

SOFT = 0.05
"""Misses, in logarithms, beyond which a row counts less than squarely: a sensor is right to 5 % of
what is drawn (NVML's reference, nvmlDeviceGetPowerUsage, of Fermi and Kepler; read in November
2026), so that larger ones are the model's or the row's."""

UNLIMITED = 1e6
"""More than any accelerator draws [W]."""


def stated_laws() -> dict[str, float]:
    """Values of `laws.yaml`, before any fit."""
    table = read_mapping(data_dir() / "power" / "laws.yaml")
    return {name: float(entry["value"]) for name, entry in table.items()}


def device_of(name: str) -> Accelerator:
    """The accelerator of a table's name.

    Raises InputError where neither the catalog nor `OUTSIDE` has it.
    """
    if name in OUTSIDE:
        limit, memory, family, bandwidth = OUTSIDE[name]
        like = accelerator("V100-SXM2-16GB" if family == "volta" else "T4-16GB")
        return replace(
            like, name=name, architecture=family, power=limit, memory=memory * 1e9,
            bandwidth=bandwidth * 1e9,
        )  # fmt: skip
    return accelerator(ACCELERATORS.get(name, name))


COLUMNS = (
    "index", "limit", "clock", "before", "rated", "gddr", "memory", "idle", "bound",
    "time", "power",
)  # fmt: skip
"""Arrays of a `Sweep`."""


@dataclass(frozen=True, slots=True, eq=False)
class Sweep:
    """Rows of sweeps as arrays, (N,).

    limit, clock   of the row, and of the row of reference; clocks as a share of it, 1: not set
    before         mean power at the reference [W]
    rated          of the accelerator [W]; `gddr` is its GB of such memory, 0: stacked
    memory         memory's power at the reference [W]; NaN: a share of what is drawn
    bound          share of the time in which the device, not its host, bounds it (`host_free`)
    idle           share of the time in which memory bounds it; NaN: not known
    time, power    measured, over the reference; NaN: not stated
    """

    index: Array
    names: tuple[str, ...]
    sources: tuple[str, ...]
    limit: Array
    clock: Array
    before: Array
    rated: Array
    gddr: Array
    memory: Array
    idle: Array
    bound: Array
    time: Array
    power: Array

    def take(self, chosen: Mask) -> Sweep:
        """Some of the rows."""
        at = np.flatnonzero(chosen)
        values = {name: getattr(self, name)[at] for name in COLUMNS}
        return Sweep(
            names=tuple(self.names[i] for i in at),
            sources=tuple(self.sources[i] for i in at),
            **values,
        )

    @property
    def binding(self) -> Mask:
        """Where the limit lies below what the run drew, or the clock below its own."""
        return np.asarray((self.before > self.limit) | (self.clock < 0.999))


Row = Mapping[Any, Any]


def _reference(own: list[Row]) -> Row | None:
    """The row of a group at the highest limit and clock; None where it states no power."""

    def height(row: Row) -> tuple[float, float]:
        limit, clock = row["power_limit_w"], row["core_clock_mhz"]
        return (limit if limit > 0 else 0.0, clock if clock > 0 else 0.0)

    last = max(own, key=height)
    return last if last["avg_power_w"] > 0 else None


def host_free(groups: Mapping[tuple[str, ...], list[Row]]) -> dict[tuple[str, ...], float]:
    """Share of the time in which the device bounds a group's work: what a sample takes at the batch
    at which it takes least, over what it takes here. Smaller batches wait for the host between
    kernels, which a lower clock costs nothing; larger ones have more work to a sample.

    groups   rows by source, accelerator and group, of which those of a workload state the time of
             the same work (an epoch)
    """
    each: dict[tuple[str, ...], list[tuple[float, float, tuple[str, ...]]]] = {}
    for key, own in groups.items():
        last = _reference(own)
        batch = last.get("batch") if last is not None else None
        if last is None or not batch or not batch > 0 or last.get("time_unit") != "one epoch":
            continue
        same = (*key[:2], str(last["workload"]))
        each.setdefault(same, []).append((float(last["time_s"]), float(batch), key))
    found: dict[tuple[str, ...], float] = {}
    for runs in each.values():
        least, best, _ = min(runs)
        found |= {key: least / time for time, batch, key in runs if batch < best}
    return found


def sweep_of(table: pd.DataFrame) -> tuple[Sweep, list[tuple[int, str]]]:
    """Rows of a table of sweeps beside their reference, and numbers of rows that cannot be with
    the reason."""
    skipped: list[tuple[int, str]] = []
    rows: list[dict[str, float]] = []
    names: list[str] = []
    sources: list[str] = []
    together: dict[tuple[str, ...], list[Row]] = {}
    for number, record in enumerate(table.to_dict("records")):
        key = tuple(str(record[name]) for name in ("source", "accelerator", "group"))
        together.setdefault(key, []).append(record | {"number": number})
    devices: dict[str, tuple[Accelerator, float, float] | None] = {}
    free = host_free(together)
    for (source, name, group), own in together.items():
        if name not in devices:
            devices[name] = _known(name)
        known, reference = devices[name], _reference(own)
        if known is None or reference is None:
            reason = (
                f"the accelerator {name!r} is not known"
                if known is None
                else "no power at the highest limit is stated"
            )
            skipped += [(row["number"], reason) for row in own]
            continue
        device, gddr, byte = known
        for row in own:
            at = row["number"]
            if at == reference["number"]:
                skipped.append((at, "the row of reference of its group"))
                continue
            found = _row(row, reference, device, byte)
            if found is None:
                skipped.append((at, "neither a limit nor a clock is stated"))
                continue
            bound = free.get((source, name, group), 1.0)
            rows.append({"index": at, "gddr": gddr, "bound": bound, **found})
            names.append(name)
            sources.append(source)
    values = {name: np.array([row[name] for row in rows], float) for name in COLUMNS}
    return Sweep(names=tuple(names), sources=tuple(sources), **values), skipped


def _known(name: str) -> tuple[Accelerator, float, float] | None:
    """An accelerator, its GB of GDDR, energy of memory [J/byte]; None where there is none of that
    name."""
    try:
        device = device_of(name)
        # What a byte takes more beside older chips is theirs and follows their clock.
        constants = power_constants(device, {**stated_laws(), "byte_older": 1.0}, {})
    except InputError:
        return None
    stacked = memory_kind(device) == "hbm"
    gddr = 0.0 if stacked else float(np.asarray(device.memory)) / 1e9
    return device, gddr, float(np.asarray(constants.byte))


def _row(row: Row, reference: Row, device: Accelerator, byte: float) -> dict[str, float] | None:
    """A row beside its reference, in SI."""
    rated, before = float(np.asarray(device.power)), float(reference["avg_power_w"])
    clocked = str(row["control"]) in CLOCKED
    limit, clock = rated, 1.0
    if clocked:
        top = reference["core_clock_mhz"]
        if not (row["core_clock_mhz"] > 0 and top > 0):
            return None
        clock = float(row["core_clock_mhz"] / top)
    elif row["power_limit_w"] > 0:
        limit = float(row["power_limit_w"])
    else:
        return None
    active = float(row.get("dram_active", np.nan))
    memory = active * float(np.asarray(device.bandwidth)) * byte
    per_work = "energy per token" in str(row.get("time_unit"))
    rates = (reference.get("throughput_tok_s"), row.get("throughput_tok_s"))
    time = row["time_s"] / reference["time_s"]
    if per_work and rates[0] and rates[1]:
        time = float(rates[0]) / float(rates[1])
    untimed = clocked and str(row["source"]).startswith("nv_dvfs")
    return {
        "limit": limit,
        "clock": clock,
        "before": before,
        "rated": rated,
        "memory": memory,
        "idle": active,
        "time": np.nan if untimed else float(time),
        "power": float(row["avg_power_w"]) / before,
    }


def relative(sweep: Sweep, laws: Mapping[str, float], leaking: float = 0.5) -> tuple[Array, Array]:
    """Time and mean power over those of the reference, (N,) each."""
    standing = laws["still"] * sweep.rated + laws["gddr_w_per_gb"] * sweep.gddr
    awake = np.minimum(standing, 0.85 * sweep.before)
    clocked = np.isfinite(sweep.idle)
    gaps = np.where(clocked, 0.0, laws["gaps"])
    while_busy = sweep.before + gaps * np.maximum(sweep.rated - sweep.before, 0.0)
    duty = (sweep.before - awake) / np.maximum(while_busy - awake, 1e-9)
    fixed = np.where(clocked, leaking * awake, awake)
    drawn = while_busy - fixed
    memory = np.where(clocked, np.minimum(sweep.memory, 0.6 * drawn), laws["share"] * drawn)
    core = np.where(clocked, np.clip(1.0 - sweep.idle, 0.0, 1.0), laws["core"] * sweep.bound)
    curve = VoltageCurve(laws["slope"], laws["floor"])
    parts = (fixed, drawn - memory, memory, core, curve)
    limit = laws["held"] * sweep.limit
    found = np.minimum(settled(np.where(clocked, UNLIMITED, limit), *parts), sweep.clock)
    busy = duty * stretch(found, core)
    time = busy + 1.0 - duty
    power = (busy * power_at(found, *parts) + (1.0 - duty) * awake) / time
    return np.asarray(time), np.asarray(power / sweep.before)


def fit_sweeps(
    sweep: Sweep, start: Mapping[str, float] = START, own: bool = False
) -> dict[str, float]:
    """What suits the rows, around `start` with the priors' widths; `own` fits the voltage curve of
    one accelerator alone."""
    from scipy.optimize import least_squares

    names = FITTED[:2] if own else FITTED
    centre = np.array([start[name] for name in names])
    width = np.array(WIDTH[: len(names)])
    groups = pd.Series(sweep.names)
    weight = np.sqrt(100.0 / groups.map(groups.value_counts()).to_numpy(float))

    def errors(values: Array) -> Array:
        time, power = relative(sweep, {**start, **dict(zip(names, values, strict=True))})
        told = np.isfinite(sweep.time)
        logs = [
            weight[told] * np.log(time[told] / sweep.time[told]),
            weight * np.log(power / sweep.power),
            (values - centre) / width * SOFT,
        ]
        return np.concatenate(logs)

    bounds = (LOW[: len(names)], HIGH[: len(names)])
    first = np.clip(centre, np.array(bounds[0]) + 1e-3, np.array(bounds[1]) - 1e-3)
    found = least_squares(
        errors, first, bounds=bounds, loss="soft_l1", f_scale=SOFT, diff_step=1e-3, max_nfev=15
    )
    return {**start, **dict(zip(names, found.x.tolist(), strict=True))}

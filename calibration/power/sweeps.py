"""Sweeps of power limits and locked clocks: rows predicted from the row of their group at the
highest limit or clock, and what is fitted to them.

A run's mean power hides what it is the mean of: products that draw all that the limit of the
reference leaves beside kernels and waits that draw hardly more than an awake device. A lower limit
meets each by itself. What they draw is taken for a beta distribution between awake and that limit,
whose mean is the run's; a kernel takes its roofline's time, the longer one of its arithmetic and
its traffic.
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
    "V100 (variant not stated)": "V100-PCIe-32GB",  # its highest limit is a card's 250 W
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

FITTED = ("slope", "floor", "gddr_w_per_gb", "held", "still", "spread")
"""held: mean power over a binding limit; still: awake without a kernel, over the limit (boards of
2017 to 2020 draw less than those whose serving tells `awake_share`); spread: the two parameters of
the beta distribution together, over the share of the time in which the device bounds the work: 0
is all or nothing, large ones are the mean alone. Waits for a host are shorter than a controller
looks at, so that work of many is more even."""

START = {
    "slope": 0.8, "floor": 0.78, "gddr_w_per_gb": 0.5, "held": 0.97, "still": 0.13, "spread": 1.0,
}  # fmt: skip
LOW = (0.2, 0.6, 0.0, 0.85, 0.05, 0.05)
HIGH = (1.5, 0.95, 1.5, 1.0, 0.25, 5.0)
WIDTH = (0.3, 0.05, 0.3, 0.02, 0.05, 0.3)
"""Bounds and priors' standard deviations of those."""

KNEE = 0.5
"""Arithmetic's time over the traffic's, at the reference clock, of kernels that draw hardly more
than an awake device; of those that draw most it is 1, between them linear. Half in want of better:
of .3 to .7 none suits accelerators left out better by more than .2 points. Kernels that stream on a
V100 take a quarter longer at .58 of its clock, on an RTX 8000 a fifteenth at .41 (NV-DVFS)."""

LEVELS = (np.arange(6) + 0.5)[:, None] / 6.0
"""Shares of a run's time at which its distribution of power is looked at, (6, 1)."""

SOFT = 0.05
"""Misses, in logarithms, beyond which a row counts less than squarely: a sensor is right to 5 % of
what is drawn (NVML's reference, nvmlDeviceGetPowerUsage, of Fermi and Kepler; read in November
2026), so that larger ones are the model's or the row's."""

LEAKING = 0.5
"""Share of what an awake device draws that no clock lowers, of boards of 12 nm and before."""

UNSET = 0.999
"""Clocks from this share of the reference's on are not set."""


def stated_laws() -> dict[str, float]:
    """Values of `laws.yaml`, before any fit."""
    table = read_mapping(data_dir() / "power" / "laws.yaml")
    return {name: float(entry["value"]) for name, entry in table.items()}


def device_of(name: str) -> Accelerator:
    """The accelerator of a table's name.

    Raises InputError where neither the catalog nor `OUTSIDE` has it.
    """
    if not name:
        raise InputError("the accelerator is not stated")
    if name in OUTSIDE:
        limit, memory, family, bandwidth = OUTSIDE[name]
        like = accelerator("V100-SXM2-16GB" if family == "volta" else "T4-16GB")
        return replace(
            like, name=name, architecture=family, power=limit, memory=memory * 1e9,
            bandwidth=bandwidth * 1e9,
        )  # fmt: skip
    return accelerator(ACCELERATORS.get(name, name))


COLUMNS = (
    "index", "limit", "clock", "before", "highest", "rated", "gddr", "memory", "idle", "bound",
    "time", "power",
)  # fmt: skip
"""Arrays of a `Sweep`."""


@dataclass(frozen=True, slots=True, eq=False)
class Sweep:
    """Rows of sweeps as arrays, (N,).

    limit, clock   of the row, and of the row of reference; clocks as a share of it, 1: not set
    before         mean power at the reference [W], under its limit `highest`
    rated          of the accelerator [W]; `gddr` is its GB of such memory, 0: stacked
    memory         memory's power at the reference [W], of rows at locked clocks; NaN: not known
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
    highest: Array
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
    def clocked(self) -> Mask:
        """Where a clock is set."""
        return np.asarray(self.clock < UNSET)

    @property
    def binding(self) -> Mask:
        """Where the limit lies below what the run drew, or the clock below its own."""
        return np.asarray((self.before > self.limit) | self.clocked)


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


def _clock_is_set(row: Row, reference: Row) -> bool:
    """Whether what a row sets is the clock. Where it does not say: it has no lower limit than the
    reference, and a lower clock."""
    said = str(row["control"]).lower()
    if said:
        return any(word in said for word in CLOCKED)
    return bool(
        not row["power_limit_w"] < reference["power_limit_w"]
        and row["core_clock_mhz"] < reference["core_clock_mhz"]
    )


def _row(row: Row, reference: Row, device: Accelerator, byte: float) -> dict[str, float] | None:
    """A row beside its reference, in SI."""
    rated, before = float(np.asarray(device.power)), float(reference["avg_power_w"])
    highest = float(reference["power_limit_w"])
    clocked = _clock_is_set(row, reference)
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
    time = row["time_s"] / reference["time_s"] if reference["time_s"] > 0 else np.nan
    if (per_work or not time > 0) and rates[0] and rates[1]:
        time = float(rates[0]) / float(rates[1])
    untimed = not time > 0 or (clocked and str(row["source"]).startswith("nv_dvfs"))
    return {
        "limit": limit,
        "clock": clock,
        "before": before,
        "highest": highest if highest > 0 else rated,
        "rated": rated,
        "memory": memory,
        "idle": active,
        "time": np.nan if untimed else float(time),
        "power": float(row["avg_power_w"]) / before if row["avg_power_w"] > 0 else np.nan,
    }


def relative(sweep: Sweep, laws: Mapping[str, float]) -> tuple[Array, Array]:
    """Time and mean power over those of the reference, (N,) each."""
    time, power = np.ones(len(sweep.index)), np.ones(len(sweep.index))
    for inside, law in ((sweep.clocked, _clocked), (~sweep.clocked, _limited)):
        if np.any(inside):
            own = sweep.take(inside)
            standing = laws["still"] * own.rated + laws["gddr_w_per_gb"] * own.gddr
            awake = np.minimum(standing, 0.85 * own.before)
            curve = VoltageCurve(laws["slope"], laws["floor"])
            time[inside], power[inside] = law(own, awake, curve, laws)
    return time, power


def _clocked(
    sweep: Sweep, awake: Array, curve: VoltageCurve, laws: Mapping[str, float]
) -> tuple[Array, Array]:
    """Of rows at locked clocks, kernels that run by themselves."""
    fixed = LEAKING * awake
    drawn = sweep.before - fixed
    memory = np.minimum(np.nan_to_num(sweep.memory), 0.6 * drawn)
    core = np.clip(1.0 - np.nan_to_num(sweep.idle), 0.0, 1.0)
    power = power_at(sweep.clock, fixed, drawn - memory, memory, core, curve)
    return stretch(sweep.clock, core), power / sweep.before


def _limited(
    sweep: Sweep, awake: Array, curve: VoltageCurve, laws: Mapping[str, float]
) -> tuple[Array, Array]:
    """Of runs under limits, mean over what they draw in turn."""
    from scipy.special import betaincinv

    most = np.maximum(laws["held"] * sweep.highest, 1.02 * sweep.before)
    mean = np.clip((sweep.before - awake) / (most - awake), 0.02, 0.98)
    even = laws["spread"] / np.maximum(sweep.bound, 0.05)
    each = betaincinv(mean * even, (1.0 - mean) * even, LEVELS)
    each = np.minimum(each * mean / np.maximum(each.mean(axis=0), 1e-9), 1.0)
    drawn = each * (most - awake)
    clock = settled(laws["held"] * sweep.limit, awake, drawn, 0.0, 1.0, curve)
    longer = np.maximum(1.0, (KNEE + (1.0 - KNEE) * each) / clock)
    time = 1.0 - sweep.bound + sweep.bound * longer
    power = power_at(clock, awake, drawn, 0.0, 1.0, curve)
    usual = (awake + drawn).mean(axis=0)
    return time.mean(axis=0), (time * power).mean(axis=0) / time.mean(axis=0) / usual


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

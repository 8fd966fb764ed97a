"""Rows of tables of power as scored points: what `reckon validate` does with them.

Spreads are those of rows that were left out of the fits, in `data/power/fitted.json`; where each
group is left out, of the other groups' rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from calibration.power.fit import row_marks, sweeps_held_out
from calibration.power.ladder import activity_of, at_limit
from calibration.power.serving import Served, group_of, held_out, powers, served_rows, stacked
from calibration.power.spreads import spread_of_another, spread_of_rows, spreads_apart
from calibration.power.sweeps import (
    FITTED,
    START,
    Sweep,
    device_of,
    relative,
    stated_laws,
    sweep_of,
)
from calibration.power.training import node_row, predicted_power
from calibration.tables.cells import cell
from calibration.tables.energy import accelerators
from calibration.tables.runs import Skipped
from predictor.arrays import Array
from predictor.catalog import power_constants, power_fit, power_laws
from predictor.errors import InputError
from predictor.power import AIR, COOLINGS
from predictor.timing import Calibration

LARGE, TEMPERATURE = 0.12, 0.08
"""Log-standard-deviations of what too few rows were left out to tell: of nodes (of kernels where
no ladder was fitted), and of temperatures in °C."""


@dataclass(frozen=True, slots=True)
class PowerPoint:
    """A scored row: what is published and predicted in the unit of its metric; of a sweep whether
    its limit is 'bound' or 'free', or whether it is of a locked 'clock'."""

    point_id: str
    source: str
    metric: str
    published: float
    predicted: float
    sigma: float
    accelerator: str
    model: str = ""
    in_sample: bool = False
    control: str = ""


COOLED = {("gpu_power_lab", "B300-SXM6"): "liquid"}
"""Cooling of sources that do not state it: 55 C at 1,040 W is beyond air."""

Found = tuple[list[PowerPoint], list[Skipped]]


def _records(table: pd.DataFrame) -> list[dict[str, Any]]:
    return [{str(key): value for key, value in row.items()} for row in table.to_dict("records")]


def _sigma(name: str, default: float = LARGE) -> float:
    value = power_fit().get("sigma", {}).get(name, default)
    return float(value) if np.isfinite(value) else default


def _served(table: pd.DataFrame, calibration: Calibration, by: str | None) -> Found:
    """Power at the measured rate and from the configuration alone, energy per generated token."""
    rows, skipped = served_rows(table, calibration)
    if by:
        return _served_apart(rows, by), skipped
    points: list[PowerPoint] = []
    fitted = power_fit().get("accelerators", {})
    for name in sorted({row.name for row in rows}):
        own = [row for row in rows if row.name == name]
        try:
            alone = powers(stacked(name, [row.own for row in own]))
        except InputError as error:
            skipped += [Skipped(r.point.point_id, r.point.source, str(error)) for r in own]
            continue
        told = [row for row in own if row.measured is not None]
        given: Array = np.zeros(0)
        if told:
            given = powers(stacked(name, [r.measured for r in told if r.measured is not None]))
        sigma = float(fitted.get(name, {}).get("sigma", _sigma("serving_relatives", 0.2)))
        by_id = dict(zip((row.point.point_id for row in told), given.tolist(), strict=True))
        for row, power in zip(own, alone.tolist(), strict=True):
            found = _served_points(row, power, by_id.get(row.point.point_id), sigma)
            if not found:
                skipped.append(Skipped(row.point.point_id, row.point.source, NOTHING_STATED))
            points += found
    return points, skipped


def _served_apart(rows: list[Served], by: str) -> list[PowerPoint]:
    """Rows whose constants were fitted, and whose spread was told, without their group."""
    usual = _sigma("serving_relatives" if by == "accelerator" else "serving", 0.2)
    apart = held_out(rows, by, stated_laws())
    errors = np.array([np.log(given / row.power) for row, given, _ in apart])
    keys = [group_of(row, by) for row, _, _ in apart]
    # Other models of the same accelerator tell how sure a model is.
    own = np.array([row.name if by == "model" else "" for row, _, _ in apart], dtype=str)
    sigma = np.full(len(apart), usual)
    for name in np.unique(own):
        inside = np.flatnonzero(own == name)
        told = spread_of_another if by == "accelerator" else spread_of_rows
        sigma[inside] = spreads_apart(errors[inside], [keys[at] for at in inside], usual, told)
    points: list[PowerPoint] = []
    for (row, given, alone), one in zip(apart, sigma.tolist(), strict=True):
        points += _served_points(row, alone, given, one)
    return points


NOTHING_STATED = "neither a power nor an energy per token beside its rate is stated"

FOLLOWS = 0.5
"""Share of what the rate is missed by that the power is missed by too, in the log: 0.2 to 0.4 of
rows of served energy, and what else is wrong where the rate is."""

CPU_TWICE = 510.0
"""What a scope adds that counts two processors, package and cores of it twice [W]: 300 and 210
under load (from memory)."""


def _served_points(
    row: Served, alone: float, given: float | None, sigma: float
) -> list[PowerPoint]:
    found: list[PowerPoint] = []
    gpus = accelerators(row.row)
    beside = CPU_TWICE / gpus if "CPU counted twice" in str(row.row.get("power_scope")) else 0.0

    def add(metric: str, published: float, predicted: float, spread: float) -> None:
        point = row.point
        found.append(
            PowerPoint(
                point_id=point.point_id,
                source=point.source,
                metric=metric,
                published=published,
                predicted=predicted,
                sigma=spread,
                accelerator=row.name,
                model=point.request.model.name,
            )
        )

    if np.isfinite(row.power):
        add("power_w", row.power, alone + beside, float(np.hypot(sigma, FOLLOWS * row.sigma)))
        if given is not None:
            add("power_w:given_throughput", row.power, given + beside, sigma)
    energy = cell(row.row, "energy_per_out_token_j")
    if energy is not None and cell(row.row, "output_tok_s"):
        predicted = alone * gpus / row.tokens_per_s
        add("energy_per_token_j", float(energy), predicted, float(np.hypot(sigma, row.sigma)))
    return found


def _sweeps(table: pd.DataFrame, calibration: Calibration, by: str | None) -> Found:
    """Time and power over those of the group's row at the highest limit or clock."""
    sweep, refused = sweep_of(table)
    time, power = sweeps_held_out(sweep, by) if by else _shipped(sweep)
    clocked = sweep.clocked
    kinds = np.where(clocked, "clock", np.where(sweep.binding, "bound", "free"))
    groups = None if not by else sweep.names if by == "accelerator" else sweep.sources
    timed = np.where(kinds == "free", "time_free", "time_bound")
    told = np.log(time / sweep.time)
    drawn = np.log(power / sweep.power)
    sigmas = (
        _sweep_sigmas(told, timed, groups, 0.1),
        _sweep_sigmas(drawn, np.char.add("power_", kinds), groups, 0.07),
    )
    points = []
    for at, number in enumerate(sweep.index.astype(int).tolist()):
        kind = str(kinds[at])
        about = (f"{sweep.sources[at]}:{number}", sweep.sources[at])
        if np.isfinite(sweep.time[at]):
            points.append(
                PowerPoint(
                    *about, "rel_time", float(sweep.time[at]), float(time[at]),
                    float(sigmas[0][at]), sweep.names[at], control=kind,
                )
            )  # fmt: skip
        points.append(
            PowerPoint(
                *about, "rel_power", float(sweep.power[at]), float(power[at]),
                float(sigmas[1][at]), sweep.names[at], control=kind,
            )
        )  # fmt: skip
    ids = table["source"].astype(str).tolist()
    return points, [Skipped(f"{ids[at]}:{at}", ids[at], reason) for at, reason in refused]


def _sweep_sigmas(
    errors: Array, kinds: NDArray[np.str_], groups: Sequence[str] | None, default: float
) -> Array:
    """Spreads of rows of sweeps by their kind: what ships, or what rows of other groups tell.

    errors   in logarithms, NaN where nothing is measured, (N,)
    """
    found = np.array([_sigma(str(kind), default) for kind in kinds])
    if groups is None:
        return found
    for kind in np.unique(kinds):
        inside = np.flatnonzero((kinds == kind) & np.isfinite(errors))
        keys = [groups[int(at)] for at in inside]
        found[inside] = spreads_apart(errors[inside], keys, _sigma(str(kind), default))
    return found


def _shipped(sweep: Sweep) -> tuple[Array, Array]:
    """Time and power over the reference's, by what ships."""
    law = power_laws()
    laws = {name: law.get(name, START[name]) for name in FITTED}
    time, power = relative(sweep, laws)
    own = power_fit().get("accelerators", {})
    for name in sorted(set(sweep.names)):
        curve = own.get(device_of(name).name, {})
        if "slope" in curve:
            inside = np.array(sweep.names) == name
            time[inside], power[inside] = relative(sweep.take(inside), {**laws, **curve})
    return time, power


def _of_kernels(name: str) -> float:
    """Log-standard-deviation of the power of a kernel: of an accelerator that has a ladder, of its
    rungs that were not read; of others, of relatives too."""
    fit = power_fit()
    own = _sigma("kernels")
    if "flop_scale" in fit.get("accelerators", {}).get(name, {}):
        return own
    return float(np.hypot(own, _sigma("serving_relatives", 0.2)))


def _kernels(table: pd.DataFrame, calibration: Calibration, by: str | None) -> Found:
    """Power of kernels that load one unit, under the limit that a row enforces; time over that of
    the same kernel at the highest limit, where rows state the rate."""
    points: list[PowerPoint] = []
    skipped: list[Skipped] = []
    timed: dict[tuple[str, str, str], list[tuple[float, str, float, float]]] = {}
    for number, row in enumerate(_records(table)):
        source, name = str(row["source"]), str(row["accelerator"])
        point_id = f"{source}:{number}"
        try:
            device = device_of(name)
            found = at_limit(row, device, power_constants(device))
        except InputError as error:
            found = str(error).splitlines()[0]
        if isinstance(found, str):
            skipped.append(Skipped(point_id, source, found))
            continue
        predicted = float(found.power)
        points.append(
            PowerPoint(
                point_id, source, "power_w", float(row["avg_power_w"]), predicted,
                _of_kernels(device.name), name,
            )
        )  # fmt: skip
        rate, limit = cell(row, "tflops"), cell(row, "enforced_limit_w")
        if rate and limit:
            key = (source, name, str(row["precision"]))
            timed.setdefault(key, []).append(
                (float(limit), point_id, float(rate), float(found.slower))
            )
    for (source, name, _), own in timed.items():
        top = max(own)
        for limit, point_id, rate, slower in own:
            if limit < top[0]:
                ratio = slower / top[3]
                points.append(
                    PowerPoint(point_id, source, "rel_time", top[2] / rate, ratio, LARGE, name)
                )
    return points, skipped


def _heat(table: pd.DataFrame, calibration: Calibration, by: str | None) -> Found:
    """Temperature at the measured power, of the middle of the positions where that is not known."""
    law = power_laws()
    points: list[PowerPoint] = []
    skipped: list[Skipped] = []
    for number, row in enumerate(_records(table)):
        source = str(row["source"])
        point_id = f"{source}:{number}"
        power, temperature = cell(row, "power_w"), cell(row, "temp_c")
        try:
            if power is None or temperature is None:
                raise InputError("no temperature or no power is measured")
            device = device_of(str(row["accelerator"]))
            constants = power_constants(device)
        except InputError as error:
            skipped.append(Skipped(point_id, source, str(error).splitlines()[0]))
            continue
        usual = COOLED.get((source, str(row["accelerator"])), "air")
        cooling = next((c for c in COOLINGS if c in str(row.get("position"))), usual)
        # The middle of the positions: half of what stands before it, at work too, or awake alone.
        several = cell(row, "gpu_index") is not None and "node" in str(row.get("position"))
        ahead = float(power) if several else float(np.asarray(constants.awake))
        flow = law["air_flow"] * float(np.asarray(device.power)) / 700.0
        before = 0.5 * ahead / (AIR * flow) if cooling == "air" else 0.0
        doing = activity_of({"precision": "", **row}, device)
        moved = 0.0 if isinstance(doing, str) else float(np.asarray(doing.bytes))
        memory = min(float(np.asarray(constants.byte)) * moved, float(power))
        warming = float(power) - (1.0 - float(np.asarray(constants.beside))) * memory
        predicted = law[f"inlet_{cooling}_c"] + before + constants.resistance[cooling] * warming
        points.append(
            PowerPoint(
                point_id, source, "temp_c", float(temperature), float(predicted), TEMPERATURE,
                str(row["accelerator"]),
            )
        )  # fmt: skip
    return points, skipped


def _nodes(table: pd.DataFrame, calibration: Calibration, by: str | None) -> Found:
    """Power of nodes and accelerators that train."""
    points: list[PowerPoint] = []
    skipped: list[Skipped] = []
    for number, row in enumerate(_records(table)):
        source = str(row["source"])
        point_id = f"{source}:{number}"
        stated = node_row(row, calibration.run)
        try:
            if isinstance(stated, str):
                raise InputError(stated)
            mean, node = predicted_power(stated, calibration)
        except InputError as error:
            skipped.append(Skipped(point_id, source, str(error).splitlines()[0]))
            continue
        predicted = mean
        if stated.metric == "node_power_w":
            predicted = float(node.direct if stated.direct else node.whole)
        points.append(
            PowerPoint(
                point_id=point_id,
                source=source,
                metric=stated.metric,
                published=stated.value,
                predicted=predicted,
                sigma=LARGE,
                accelerator=stated.accelerator,
                model=stated.model,
            )
        )
    return points, skipped


READERS: Mapping[str, Callable[[pd.DataFrame, Calibration, str | None], Found]] = {
    "served": _served,
    "sweeps": _sweeps,
    "kernels": _kernels,
    "heat": _heat,
    "training": _nodes,
    "systems": _nodes,
}


def power_points(
    table: pd.DataFrame, kind: str, calibration: Calibration, by: str | None = None
) -> Found:
    """Every row of a table of power (`power_table`), predicted or skipped with the reason.

    by   'source', 'model' or 'accelerator': constants are fitted without each group of rows

    Rows that what ships was fitted to are marked, unless they were left out.
    """
    table = table.reset_index(drop=True)
    read, skipped = READERS[kind](table, calibration, by)
    found = [one for one in read if one.published > 0.0]
    skipped += [
        Skipped(one.point_id, one.source, "no value is stated")
        for one in read
        if not one.published > 0.0
    ]
    fitted = set(str(power_fit().get("fitted_rows", "")).split()) if not by else set()
    marks = row_marks(table) if fitted else []
    points = [
        replace(one, in_sample=marks[int(one.point_id.rpartition(":")[2])] in fitted)
        if fitted
        else one
        for one in found
    ]
    return points, skipped


__all__ = ["PowerPoint", "power_points"]

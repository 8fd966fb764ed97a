"""Fits the constants of power and writes `data/power/fitted.json`, with its provenance and the
errors of what was left out: `python -m calibration.power.fit SHARED`."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from calibration.power.ladder import FILLED, RUNGS, fit_ladder, unread_rungs
from calibration.power.leakage import fit_leakage
from calibration.power.serving import Served, fit, held_out, served_rows
from calibration.power.spreads import spread, spread_of_another
from calibration.power.sweeps import (
    ACCELERATORS,
    FITTED,
    Sweep,
    fit_sweeps,
    relative,
    stated_laws,
    sweep_of,
)
from calibration.sources.reading import read_table
from predictor.arrays import Array
from predictor.catalog import data_dir, load
from predictor.errors import InputError
from predictor.files import write_text
from predictor.timing import Calibration

LEAST_OWN = 100
"""Rows at locked clocks from which an accelerator has a voltage curve of its own."""

LOW_RELEVANCE = ("laptop_sgemm",)

MARKED = ("source", "source_path", "accelerator", "workload", "power_limit_w", "core_clock_mhz")
"""Columns that tell rows of tables of power apart."""


def row_marks(table: pd.DataFrame) -> list[str]:
    """What tells each row of a table of power apart: eight digits of a hash of where it is from
    and what it states."""
    columns = [name for name in MARKED if name in table.columns]
    texts = ("|".join(map(str, row)) for row in table[columns].itertuples(index=False))
    return [hashlib.sha256(text.encode()).hexdigest()[:8] for text in texts]


def sweeps_held_out(sweep: Sweep, by: str) -> tuple[Array, Array]:
    """Time and power of every row over its reference's, by what suits the rows of other
    'accelerator's or 'source's."""
    keys = np.array(sweep.names if by == "accelerator" else sweep.sources)
    time, power = np.zeros(len(keys)), np.zeros(len(keys))
    trained = ~np.isin(np.array(sweep.sources), LOW_RELEVANCE)
    for key in np.unique(keys):
        inside = keys == key
        laws = fit_sweeps(sweep.take(trained & ~inside))
        time[inside], power[inside] = relative(sweep.take(inside), laws)
    return time, power


def fit_curves(sweep: Sweep, laws: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """Voltage curves of accelerators with many rows at locked clocks, by the catalog's name."""
    found = {}
    names = np.array(sweep.names)
    for name in sorted(set(sweep.names)):
        own = (names == name) & (sweep.clocked)
        if int(own.sum()) >= LEAST_OWN:
            curve = fit_sweeps(sweep.take(own), laws, own=True)
            found[ACCELERATORS.get(name, name)] = {k: curve[k] for k in FITTED[:2]}
    return found


def _sigmas(
    rows: Sequence[tuple[Served, float, float]], sweep: Sweep, ratios: tuple[Array, Array]
) -> dict[str, float]:
    """Spreads of what is predicted, from rows left out by accelerator or model."""
    time, power = ratios
    bound, clocked = sweep.binding, sweep.clocked
    told = np.isfinite(sweep.time)
    logs = {
        "serving": np.array([np.log(value / row.power) for row, value, _ in rows]),
        "time_bound": np.log(time / sweep.time)[bound & told],
        "time_free": np.log(time / sweep.time)[~bound & told],
        "power_bound": np.log(power / sweep.power)[bound & ~clocked],
        "power_free": np.log(power / sweep.power)[~bound],
        "power_clock": np.log(power / sweep.power)[clocked],
    }
    return {name: spread(values) for name, values in logs.items()}


def fit_power(shared: Path, calibration: Calibration) -> dict[str, Any]:
    """Everything that is fitted, with its provenance; the content of `fitted.json`."""
    place = shared / "reference" / "power"
    start = stated_laws()
    limits = read_table(place / "power_limit_sweeps.csv")
    marks = [
        mark
        for mark, source in zip(row_marks(limits), limits["source"], strict=True)
        if source not in LOW_RELEVANCE
    ]
    kernels = read_table(place / "kernel_power.csv")
    marks += [
        mark
        for mark, workload in zip(row_marks(kernels), kernels["workload"], strict=True)
        if workload in (*RUNGS, *FILLED)
    ]
    sweep, _ = sweep_of(limits)
    trained = ~np.isin(np.array(sweep.sources), LOW_RELEVANCE)
    curve = fit_sweeps(sweep.take(trained))
    served, _ = served_rows(_fitted_rows(place), calibration)
    shared_laws, own = fit(served, {**start, "flop_scale": start["flop_scale"]})
    ladder = fit_ladder(kernels, "B300-SXM6", {**start, **shared_laws})
    own = {**own, **fit_curves(sweep, curve)}
    if ladder:
        own["B300-SXM-288GB"] = ladder
    by_model = held_out(served, "model", start)
    by_accelerator = held_out(served, "accelerator", start)
    ratios = sweeps_held_out(sweep, "accelerator")
    sigmas = _sigmas(by_model, sweep, ratios)
    sigmas["serving_relatives"] = spread_of_another(
        np.array([np.log(value / row.power) for row, value, _ in by_accelerator]),
        [row.name for row, _, _ in by_accelerator],
    )
    laws = {**shared_laws, **curve, "sigma_relatives": sigmas["serving_relatives"]}
    rungs = unread_rungs(kernels, "B300-SXM6", {**start, **laws}, ladder)
    if rungs:
        sigmas["kernels"] = spread(np.array(rungs))
    growth = fit_leakage(read_table(place / "thermal.csv"), {**start, **laws})
    if growth is not None:
        laws["leakage"] = growth
    for name, values in own.items():
        errors = [np.log(value / row.power) for row, value, _ in by_model if row.name == name]
        values["sigma"] = spread(np.array(errors)) if errors else laws["sigma_relatives"]
        own[name] = values
    return {
        "schema_version": 1,
        "made_by": "python -m calibration.power.fit SHARED",
        "fitted_to": {
            "serving": _count(served),
            "limits_and_clocks": int(trained.sum()),
            "ladder": "B300-SXM6, three rungs" if ladder else "",
        },
        "sigma": sigmas,
        "held_out": held_out_figures(by_model, by_accelerator, sweep, ratios),
        "fitted_rows": " ".join(sorted({*marks, *row_marks(_fitted_rows(place))})),
        "laws": laws,
        "accelerators": dict(sorted(own.items())),
    }


def _fitted_rows(place: Path) -> pd.DataFrame:
    """Rows of serving that state a rate and the power of all accelerators of a run."""
    table = read_table(place / "energy_inference.csv")
    return table[table["source"].isin(["mlenergy_v3", "mlenergy_v2"])]


def _count(rows: Sequence[Served]) -> dict[str, int]:
    return {str(k): int(v) for k, v in pd.Series([r.name for r in rows]).value_counts().items()}


def _figures(errors: Array) -> dict[str, float | int]:
    away = np.abs(np.expm1(errors))
    if not len(away):
        return {"n": 0}
    return {
        "n": len(away),
        "mape": round(float(away.mean()), 4),
        "median": round(float(np.median(away)), 4),
        "bias": round(float(errors.mean()), 4),
    }


def held_out_figures(
    by_model: Sequence[tuple[Served, float, float]],
    by_accelerator: Sequence[tuple[Served, float, float]],
    sweep: Sweep,
    ratios: tuple[Array, Array],
) -> dict[str, Any]:
    """Errors of what was left out, by accelerator."""
    found: dict[str, Any] = {}
    for label, rows in (("model", by_model), ("accelerator", by_accelerator)):
        names = sorted({row.name for row, _, _ in rows})
        found[f"serving, each {label} left out"] = {
            name: _figures(
                np.array([np.log(v / row.power) for row, v, _ in rows if row.name == name])
            )
            for name in names
        }
    time, power = ratios
    parts = (("time", time, sweep.time), ("power", power, sweep.power))
    for what, predicted, measured in parts:
        where = sweep.binding & np.isfinite(measured)
        found[f"limits and clocks that bind, {what}, each accelerator left out"] = {
            name: _figures(np.log(predicted / measured)[where & (np.array(sweep.names) == name)])
            for name in sorted(set(sweep.names))
        }
    return found


def rounded(value: Any) -> Any:
    """Numbers of a mapping with five digits."""
    if isinstance(value, dict):
        return {key: rounded(one) for key, one in value.items()}
    return float(f"{value:.5g}") if isinstance(value, float) else value


def main(arguments: list[str]) -> int:
    """Fit and write; returns the exit status."""
    if len(arguments) != 1:
        print("usage: python -m calibration.power.fit SHARED", file=sys.stderr)
        return 2
    try:
        content = fit_power(Path(arguments[0]), load("default"))
        path = data_dir() / "power" / "fitted.json"
        write_text(path, json.dumps(rounded(content), indent=2) + "\n")
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(json.dumps(rounded(content["held_out"]), indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

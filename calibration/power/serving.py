"""Served energy: its rows predicted, and the constants of power fitted to their power.

Fitted are seven numbers that all accelerators share (`LAWS`), as shares of the limit, energies over
the law of matrix units, joules per byte; then, for accelerators of many rows, how far their own lie
from those, held back by a prior of `PRIOR` in the log.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from calibration.tables.cells import cell
from calibration.tables.energy import accelerators, energy_point
from calibration.tables.requests import InferencePoint
from calibration.tables.runs import Skipped
from predictor import arrays
from predictor.arrays import Array
from predictor.catalog import accelerator, is_older, power_constants, power_laws
from predictor.errors import InputError
from predictor.plans import batches
from predictor.power import STREAMING, Activity, demand, operating
from predictor.serving import (
    InferencePrediction,
    ServingActivity,
    predict_inference,
    predict_rate,
    serving_activity,
)
from predictor.timing import NOISE, Calibration

LAWS = (
    "awake_share",
    "busy_share",
    "thin",
    "byte_pj",
    "waiting_share",
    "padding_share",
    "widen_pj",
)
"""What is fitted to serving; energy of products comes from large ones."""

LAW_SOURCES = ("mlenergy_v3",)
"""Sources of the shared constants: steady states by an energy counter. Powers that others derive
from energy and time serve the constants of single accelerators only."""

PRIOR = 0.35
"""Log-standard-deviation of an accelerator's constants around the shared ones."""

WEIGHT = 3.0
"""The prior of each constant counts as the square of this in rows."""

LEAST_OWN = 40
"""Rows from which an accelerator has constants of its own."""

SOFT = NOISE
"""Log-error from which a row counts less: that of a published figure of serving, whose rate it is
divided by."""

BOARD = 8.0
"""What is known of boards (`_beyond`) counts as the square of this in rows: enough that no fitted
one streams at half as much again as its limit, which costs what is left out .1 to .3 points."""


@dataclass(frozen=True, slots=True, eq=False)
class Served:
    """A row with its prediction: activity at the measured rate where there is one (`measured`) and
    as predicted (`own`); tokens per second; power of one accelerator [W], NaN: not stated."""

    point: InferencePoint
    name: str
    row: Mapping[Any, Any]
    measured: ServingActivity | None
    own: ServingActivity
    tokens_per_s: float
    sigma: float
    power: float


def _one(activity: ServingActivity, at: int) -> ServingActivity:
    """One plan of a batch."""
    index, shape = np.array([at]), activity.passes.shape or (1,)

    def pick(values: Array) -> Array:
        return np.asarray(np.broadcast_to(values, shape)[index])

    return ServingActivity(
        {k: pick(v) for k, v in activity.share.items()},
        {k: arrays.take(arrays.widened(v, shape), index) for k, v in activity.activity.items()},
        pick(activity.prompts),
        pick(activity.passes),
        {k: pick(v) for k, v in activity.pieces.items()},
    )


def served_rows(
    table: pd.DataFrame, calibration: Calibration, measured: bool = True
) -> tuple[list[Served], list[Skipped]]:
    """Every row of a table of served energy, predicted, and those that cannot be."""
    points: list[tuple[InferencePoint, Mapping[Any, Any]]] = []
    skipped: list[Skipped] = []
    for number, row in enumerate(table.to_dict("records")):
        found = energy_point(row, number, calibration.run)
        if isinstance(found, Skipped):
            skipped.append(found)
        else:
            points.append((found, row))
    rows: list[Served] = []
    arriving = [(point, row) for point, row in points if point.rate is not None]
    points = [(point, row) for point, row in points if point.rate is None]
    for batch in batches([point.request for point, _ in points]):
        try:
            found_ = predict_inference(batch.model, batch.cluster, batch.plan, calibration)
        except InputError as error:
            refused = (points[at][0] for at in batch.positions)
            skipped += [Skipped(one.point_id, one.source, str(error)) for one in refused]
            continue
        rows += _served(found_, [points[at] for at in batch.positions])
    for point, stated in arriving:
        request = point.request
        try:
            one = predict_rate(
                request.model, request.cluster, request.plan, float(point.rate or 0.0), calibration
            )
        except InputError as error:
            skipped.append(Skipped(point.point_id, point.source, str(error)))
            continue
        rows += _served(one.prediction, [(point, stated)])
    return rows, skipped


def _served(
    found: InferencePrediction, points: list[tuple[InferencePoint, Mapping[Any, Any]]]
) -> list[Served]:
    """Rows of a batch of predictions."""
    own = serving_activity(found)
    stated = np.array([_rate(row) for _, row in points])
    given = serving_activity(found, np.where(np.isfinite(stated), stated, 1.0))
    made, sigma = (
        np.broadcast_to(np.asarray(one, float), stated.shape)
        for one in (found.output_tokens_per_s, found.sigma["throughput"])
    )
    return [
        Served(
            point=point,
            name=point.request.cluster.accelerator.name,
            row=row,
            measured=_one(given, index) if np.isfinite(stated[index]) else None,
            own=_one(own, index),
            tokens_per_s=float(made[index]),
            sigma=float(sigma[index]),
            power=_drawn(row),
        )
        for index, (point, row) in enumerate(points)
    ]


def _drawn(row: Mapping[Any, Any]) -> float:
    """Power of one accelerator [W], NaN where neither it nor that of all of them is stated."""
    whole = cell(row, "avg_power_w")
    each = cell(row, "power_per_gpu_w") or (whole and whole / accelerators(row))
    return float(each or np.nan)


def _rate(row: Mapping[Any, Any]) -> float:
    return float(cell(row, "output_tok_s") or np.nan)


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Rows of one accelerator, stacked: share of the time and activity by phase."""

    name: str
    share: dict[str, Array]
    activity: dict[str, Activity]


def stacked(name: str, found: list[ServingActivity]) -> Batch:
    """Activities of rows of one accelerator as one batch."""
    phases = dict.fromkeys(phase for one in found for phase in one.share)
    nothing = Activity(1e-12)
    wide = {
        phase: arrays.join(
            [arrays.widened(one.activity.get(phase, nothing), (1,)) for one in found]
        )
        for phase in phases
    }
    share = {
        phase: np.concatenate([one.share.get(phase, np.zeros(1)) for one in found])
        for phase in phases
    }
    return Batch(name, share, wide)


def powers(
    batch: Batch,
    own: Mapping[str, float] | None = None,
    laws: Mapping[str, float] | None = None,
) -> Array:
    """Mean power of rows [W].

    own    constants of the accelerator over the laws; None: as shipped
    laws   values of the laws instead of the shipped ones
    """
    known = None if laws is None else {**power_laws(), **laws}
    constants = power_constants(accelerator(batch.name), known, own)
    total: Array = np.zeros(len(batch.share["decode"]))
    for phase, share in batch.share.items():
        drawn = demand(batch.activity[phase], constants)
        total = total + share * operating(drawn, constants, constants.limit).power
    return total


def _beyond(name: str, laws: Mapping[str, float]) -> Array:
    """Log by which an accelerator that streams its memory at its full rate would draw more than
    boards are made for (`stream_most`); 0 where it does not."""
    device = accelerator(name)
    constants = power_constants(device, {**power_laws(), **laws}, {})
    work = Activity(1.0, bytes=STREAMING * np.asarray(device.bandwidth), rows=np.inf)
    most = power_laws()["stream_most"] * np.asarray(constants.limit)
    return np.maximum(np.log(demand(work, constants).whole / most), 0.0).reshape(1)


def _above(laws: Mapping[str, float]) -> Array:
    """Log by which ranks that spin in a collective, in a few processors, would draw more than all
    processors full of threads; 0 where they do not."""
    return np.maximum(np.log([laws["waiting_share"] / laws["busy_share"]]), 0.0)


def fit_laws(
    groups: Mapping[str, tuple[Batch, Array]],
    start: Mapping[str, float],
    around: Mapping[str, float] | None = None,
) -> dict[str, float]:
    """Constants that suit the rows of all groups.

    groups   rows by accelerator, with their measured powers [W]
    start    where to begin
    around   centre of a prior of `PRIOR` in the log; None: no prior
    """
    from scipy.optimize import least_squares

    first = np.log([start[name] for name in LAWS])
    centre = None if around is None else np.log([around[name] for name in LAWS])

    def errors(logs: Array) -> Array:
        told = dict(zip(LAWS, np.exp(logs).tolist(), strict=True))
        values = {**start, **told, "stream_most": np.inf, "byte_older": 1.0}
        parts = []
        for batch, power in groups.values():
            own = powers(batch, {}, values)
            # Each accelerator counts as much as any other.
            weight = 1.0 if len(groups) == 1 else np.sqrt(200.0 / len(power))
            parts.append(weight * np.log(own / power))
            parts.append(BOARD * _beyond(batch.name, values))
        parts.append(BOARD * _above(values))
        if centre is not None:
            parts.append((logs - centre) / PRIOR * SOFT * WEIGHT)
        return np.concatenate(parts)

    found = least_squares(errors, first, loss="soft_l1", f_scale=SOFT, diff_step=1e-3, max_nfev=30)
    return dict(zip(LAWS, np.exp(found.x).tolist(), strict=True))


def grouped(rows: list[Served]) -> dict[str, tuple[Batch, Array]]:
    """Rows with a measured rate and power, by accelerator."""
    found: dict[str, list[Served]] = {}
    for row in rows:
        if row.measured is not None and np.isfinite(row.power):
            found.setdefault(row.name, []).append(row)
    return {
        name: (
            stacked(name, [one.measured for one in own if one.measured is not None]),
            np.array([one.power for one in own]),
        )
        for name, own in found.items()
    }


def fit(
    rows: list[Served], start: Mapping[str, float]
) -> tuple[dict[str, float], dict[str, dict[str, float]]]:
    """Shared constants, how much more a byte takes beside older chips that have their own, and
    constants of accelerators with at least `LEAST_OWN` rows."""
    groups = grouped(rows)
    steady = grouped([row for row in rows if row.point.source in LAW_SOURCES])
    shared = fit_laws(steady, start)
    own = {
        name: fit_laws({name: group}, {**start, **shared}, shared)
        for name, group in groups.items()
        if len(group[1]) >= LEAST_OWN
    }
    older = [one["byte_pj"] for name, one in own.items() if is_older(accelerator(name))]
    ratio = np.exp(np.mean(np.log(older))) / shared["byte_pj"] if older else 1.0
    return {**shared, "byte_older": float(ratio)}, own


def without(rows: list[Served], by: str, key: str) -> list[Served]:
    """Rows of other models, sources or accelerators."""
    return [row for row in rows if group_of(row, by) != key]


def group_of(row: Served, by: str) -> str:
    """What of a row is left out at a time."""
    if by == "model":
        return row.point.request.model.name
    return row.name if by == "accelerator" else row.point.source


def held_out(
    rows: list[Served], by: str, start: Mapping[str, float]
) -> list[tuple[Served, float, float]]:
    """Every row with a measured rate and power, and its power predicted [W] by constants fitted
    without its model, accelerator or source: at the measured rate, and at the predicted one."""
    usable = [row for row in rows if row.measured is not None and np.isfinite(row.power)]
    found = []
    for key in sorted({group_of(row, by) for row in usable}):
        rest = without(usable, by, key)
        # Of one source alone nothing is left to fit: the stated laws then hold.
        shared, own = fit(rest, start) if _told(rest) else (dict(start), {})
        for row in usable:
            if group_of(row, by) != key or row.measured is None:
                continue
            batch = stacked(row.name, [row.measured, row.own])
            power = powers(batch, own.get(row.name, {}), {**start, **shared})
            found.append((row, float(power[0]), float(power[1])))
    return found


def _told(rows: list[Served]) -> bool:
    return any(row.point.source in LAW_SOURCES for row in rows)


__all__ = [
    "LAWS",
    "Served",
    "fit",
    "fit_laws",
    "grouped",
    "held_out",
    "powers",
    "served_rows",
    "stacked",
]

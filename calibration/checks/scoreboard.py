"""Scores predictions against tables of published points: what `reckon validate` writes.

Every row is predicted, or listed with the reason why it is not. Errors of points outside the fit
and inside it are kept apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from calibration.checks import steps
from calibration.checks.kernel_rows import score_kernels
from calibration.checks.powered import POWER, score_power
from calibration.checks.scored import MemoryRow, Scored, Scores
from calibration.kernels.fit import LEAST_POINTS
from calibration.power.stated import check_power, power_table
from calibration.runs.apart import take_apart
from calibration.runs.fit import default_run, left_out
from calibration.serving import open_loops
from calibration.serving.engines import fit_engines, held_out, parameters_of
from calibration.serving.spreads import (
    QUEUED_CLASS,
    class_of,
    fit_spreads,
    loads_of,
    operator_sigma,
)
from calibration.serving.timed import Timed, published, select, timed, values
from calibration.sources.headers import as_headed
from calibration.sources.reading import read_table
from calibration.spread import Residual, with_spread
from calibration.tables.cells import check_runs, filled, numbers
from calibration.tables.documents import COLUMNS, DOCUMENT_KEY, document_attention
from calibration.tables.profiles import device_systems
from calibration.tables.requests import InferencePoint, inference_point
from calibration.tables.runs import Point, Skipped, point_of
from calibration.tables.slow_links import STEP_KEY, TRANSFER_KEY, slow_step, slow_transfer
from calibration.variation.ratios import Configuration, configurations
from predictor.arrays import Array
from predictor.errors import InputError
from predictor.plans import batches
from predictor.schema import (
    INFERENCE_KEYS,
    KERNEL_KEY,
    RATIO_KEY,
    TRAINING_KEYS,
    of_inference,
    of_training,
)
from predictor.timing import (
    Calibration,
    EngineParameters,
    RunParameters,
    ServingParameters,
)
from predictor.training import (
    TrainingPrediction,
    TrainingRequest,
    environment,
    predict_batches,
    youth,
)

FOLDS = ("source", "model", "accelerator")


def kind_of_table(table: pd.DataFrame, where: str) -> str:
    """'power', 'variation', 'kernels', 'inference' or 'training', by columns only one of them has;
    'slow steps', 'slow transfers' or 'documents' of tables of their own."""
    if power_table(table):
        return POWER
    if RATIO_KEY in table and "run" in table:
        return "variation"
    if DOCUMENT_KEY in table:
        return "documents"
    if "delay_ms" in table and STEP_KEY in table:
        return "slow steps"
    if "delay_ms" in table and TRANSFER_KEY in table:
        return "slow transfers"
    if KERNEL_KEY in table:
        return "kernels"
    if of_inference(table.columns):
        return "inference"
    if of_training(table.columns):
        return "training"
    raise InputError(
        f"{where} is no table of points: none of the columns {TRAINING_KEYS[0]}, "
        f"{INFERENCE_KEYS[0]}, {KERNEL_KEY} and {RATIO_KEY} is there"
    )


def score(
    paths: list[Path],
    calibration: Calibration,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Scores:
    """Predict every row of every table.

    Raises InputError for files that are no tables of points.
    """
    tables = [(path, *_as_written(path)) for path in paths]
    rows: list[Scored] = []
    skipped: list[Skipped] = []
    memory: list[MemoryRow] = []
    points: list[Point] = []
    served: list[InferencePoint] = []
    ratios: list[Configuration] = []
    powered: list[pd.DataFrame] = []
    total, done = sum(len(table) for _, table, _ in tables), 0
    for path, table, kind in tables:
        if kind in ("training", "slow steps"):
            runs = _runs(path, table, kind, calibration.run, skipped)
            done += len(table)
            progress(done, total)
            for point, result, at in _predicted(runs, calibration, skipped):
                memory += _memory_rows(point, result, at)
                scored = _run_rows(point, result, at, calibration, skipped)
                rows += scored
                points += [point] * len(scored)
        elif kind == "inference":
            for record in table.to_dict("records"):
                made = inference_point(record, calibration.run)
                if isinstance(made, Skipped):
                    skipped.append(made)
                else:
                    served.append(made)
                done += 1
                progress(done, total)
        elif kind == "variation":
            steady = configurations(table, str(path))
            ratios += steady
            told = steps.scored(steady, calibration.interval_q)
            rows, total = rows + told, total + len(told) - len(table)
        elif kind in LATENCIES:
            rows += _latencies(path, table, kind, calibration)
        elif kind == POWER:
            score_power(table, calibration, rows, skipped)
            powered.append(table)
        else:
            score_kernels(path, table, calibration, rows, skipped)
        progress(done, total)
    inference = _score_served(served, calibration, rows, skipped) if served else None
    kinds = {KINDS.get(kind, kind) for _, _, kind in tables}
    kind = kinds.pop() if len(kinds) == 1 else "mixed"
    return Scores(
        kind, rows, skipped, memory, total,
        points=points, inference=inference, ratios=ratios, power=powered,
        noted=_noted([*points, *served]),
    )  # fmt: skip


def _noted(read: Iterable[Point | InferencePoint]) -> list[Skipped]:
    """What counts of rows that say one thing twice, once of each."""
    found = (Skipped(one.point_id, one.source, one.note) for one in read if one.note)
    return list(dict.fromkeys(found))


def _as_written(path: Path) -> tuple[pd.DataFrame, str]:
    """A table whose columns are called, and whose numbers are such, as its kind has them, without
    lines that say nothing (which count where a line is named); and its kind."""
    table, where = as_headed(read_table(path)), str(path)
    kind, said = kind_of_table(table, where), ~table.isna().all(axis=1)
    if kind in ("training", "inference", "slow steps"):
        table = check_runs(table, where, by_row=kind != "slow steps")
    elif kind in LATENCIES:
        table = filled(numbers(table, ("delay_ms",), where), LATENCIES[kind][1], where)
    elif kind == POWER:
        table = check_power(table, power_table(table) or "", where)
    return table[said], kind


KINDS = {"slow steps": "training", "slow transfers": "kernels", "documents": "kernels"}
"""What tables of their own are tables of."""

PredictRow = Callable[[Any, Calibration], tuple[float, float, bool]]

LATENCIES: dict[str, tuple[PredictRow, tuple[str, ...]]] = {
    "slow transfers": (slow_transfer, ("bandwidth_gbps", "bytes", "ms")),
    "documents": (document_attention, COLUMNS),
}
"""Tables of single latencies: what predicts a row, and the columns of numbers above 0 that it
needs, last that of milliseconds."""


def _latencies(
    path: Path, table: pd.DataFrame, kind: str, calibration: Calibration
) -> list[Scored]:
    """Rows of single latencies with their predictions."""
    predict_row, columns = LATENCIES[kind]
    rows = []
    for line, record in enumerate(table.to_dict("records")):
        value, sigma, fitted = predict_row(record, calibration)
        reach = float(np.exp(calibration.interval_q * sigma))
        rows.append(
            Scored(
                point_id=f"{path.name}:{line + 2}",
                source=str(record.get("source", "")),
                metric="latency_us",
                published=1e3 * float(record[columns[-1]]),
                predicted=1e6 * value,
                low=1e6 * value / reach,
                high=1e6 * value * reach,
                in_sample=fitted,
                sigma_operators=sigma,
            )
        )
    return rows


def _runs(
    path: Path, table: pd.DataFrame, kind: str, run: RunParameters, skipped: list[Skipped]
) -> list[Point]:
    """Rows of steps as points; those that are none are added to `skipped`."""
    devices = device_systems(path.parent)
    points = []
    for line, record in enumerate(table.to_dict("records")):
        if kind == "training":
            found = point_of(record, run, devices)
        else:
            found = slow_step(record, f"{path.name}:{line + 2}", run)
        if isinstance(found, Skipped):
            skipped.append(found)
        else:
            points.append(found)
    return points


def _score_served(
    served: list[InferencePoint],
    calibration: Calibration,
    rows: list[Scored],
    skipped: list[Skipped],
) -> Timed | None:
    """Predict runs of inference: closed loops as one batch, whose work is returned if there is
    any; open ones request by request."""
    inference, parameters = None, calibration.serving
    refused: list[tuple[InferencePoint, str]] = []
    closed = [point for point in served if point.rate is None]
    try:
        inference, refused = timed(closed, calibration) if closed else (None, [])
    except InputError as error:
        refused = [(point, str(error)) for point in closed]
    if inference is not None:
        own = parameters_of(inference, parameters.engines)
        rows += served_rows(inference, values(inference, own)[0], own, parameters, calibration)
    opened, arrived, more = open_loops.predicted(
        [point for point in served if point.rate is not None], calibration
    )
    loads = open_loops.loads_of(opened, calibration)
    rows += [
        _served_row(point, value, np.zeros(2), load, parameters, calibration)
        for point, value, load in zip(opened, arrived, loads.T, strict=True)
    ]
    skipped += [Skipped(one.point_id, one.source, reason) for one, reason in [*refused, *more]]
    return inference


def served_rows(
    found: Timed,
    predicted: np.ndarray,
    own: EngineParameters,
    parameters: ServingParameters,
    calibration: Calibration,
) -> list[Scored]:
    """Runs of inference with their intervals.

    predicted   what each point states, in SI
    own         parameters of the engines, for the operators' part of the spread
    parameters  spreads of runs, and the points that they were fitted on
    """
    operators, loads = operator_sigma(found, own), loads_of(found, own)
    return [
        _served_row(point, value, sigma, load, parameters, calibration)
        for point, value, sigma, load in zip(
            found.points, predicted, operators.T, loads.T, strict=True
        )
    ]


def _served_row(
    point: InferencePoint,
    value: float,
    sigma: Array,
    load: Array,
    parameters: ServingParameters,
    calibration: Calibration,
) -> Scored:
    """A run of inference with its interval.

    sigma   the operators' part of its spread, (2,)
    load    what the spread of a first token grows with
    """
    parameters = parameters.told(point.request.plan.named)
    parameters = parameters.unsaid() if point.request.guessed else parameters
    metric, kind = class_of(point).split(".")
    below = above = parameters.spread(metric, kind)
    if class_of(point) == QUEUED_CLASS:
        below, above = (float(parameters.first_token(load, late)) for late in (False, True))
    kernels = float(parameters.kernels(metric, sigma))
    low, high = (calibration.interval_q * math.hypot(kernels, one) for one in (below, above))
    return Scored(
        point_id=point.point_id,
        source=point.source,
        metric=point.metric,
        published=point.value,
        predicted=float(value),
        low=float(value) * math.exp(-low),
        high=float(value) * math.exp(high),
        in_sample=point.point_id in parameters.points,
        model=point.request.model.name,
        accelerator=point.request.cluster.accelerator.name,
        sigma_operators=float(np.hypot(*sigma)),
        kind=point.kind,
        tp=int(point.request.plan.tp),
        flagged=point.flagged,
    )


def refold_served(found: Timed, calibration: Calibration, by: str) -> list[Scored]:
    """Runs of inference predicted with engines, and intervals, fitted without each group."""
    keys = {
        "source": [point.source for point in found.points],
        "model": [point.request.model.name for point in found.points],
        "accelerator": [point.request.cluster.accelerator.name for point in found.points],
    }[by]
    predicted = held_out(found, keys)
    errors = np.log(predicted / published(found))
    own = parameters_of(found, fit_engines(found))
    operators, loads = operator_sigma(found, own), loads_of(found, own)
    groups = np.array(keys)
    rows = []
    for group in np.unique(groups):
        rest, inside = groups != group, groups == group
        sigma = fit_spreads(
            [point for point, kept in zip(found.points, rest, strict=True) if kept],
            errors[rest],
            operators[:, rest],
            loads[:, rest],
            calibration.interval_q,
            calibration.interval_level,
        )
        part = select(found, inside)
        spread = ServingParameters(sigma=sigma)
        own = parameters_of(part, {})
        rows += served_rows(part, predicted[inside], own, spread, calibration)
    return rows


def _predicted(
    points: list[Point], calibration: Calibration, skipped: list[Skipped]
) -> list[tuple[Point, TrainingPrediction, int]]:
    """Every point with the prediction of the batch that it is in and its position there, in the
    points' order; those that the predictor refuses are added to `skipped` with its reason."""
    found: dict[int, tuple[Point, TrainingPrediction, int]] = {}
    asked = list(batches(_of_one_era(points, calibration.run)))
    for batch, result in zip(asked, predict_batches(asked, calibration), strict=True):
        if isinstance(result, InputError):
            refused = (points[position] for position in batch.positions)
            skipped += [Skipped(one.point_id, one.source, str(result)) for one in refused]
            continue
        for at, position in enumerate(batch.positions):
            found[position] = points[position], result, at
    return [found[position] for position in sorted(found)]


def _of_one_era(points: list[Point], run: RunParameters) -> list[TrainingRequest]:
    """Requests of points; of eras in which a framework adds the same, the one met first, so that
    they are predicted together."""
    met: dict[Hashable, str] = {}
    requests = []
    for request in (point.request for point in points):
        plan = request.plan
        young = youth(run, request.cluster.accelerator.architecture, plan.era)
        own = environment(run.factors, plan.framework, plan.era)
        known = plan.framework, young, astuple(own)
        era = met.setdefault(known, plan.era)
        requests.append(replace(request, plan=replace(plan, era=era)))
    return requests


def _memory_rows(point: Point, result: TrainingPrediction, at: int) -> list[MemoryRow]:
    """What a point says of memory, if anything, beside what is predicted: of who states a peak, no
    more than the device has, since the run went on."""
    if not (np.isfinite(point.memory) or point.status in ("OOM", "Success")):
        return []
    known = result.memory
    held = {"device": known.peak, "allocator": known.reserved, "tensors": known.tensors}
    taken, probability = (float(v[at]) for v in (held[point.memory_of], result.p_oom))
    if np.isfinite(point.memory) and point.status != "OOM":
        taken = min(taken, float(point.request.cluster.accelerator.memory))
    return [MemoryRow(taken, point.memory, probability, point.status, point.source)]


def _run_rows(
    point: Point,
    result: TrainingPrediction,
    at: int,
    calibration: Calibration,
    skipped: list[Skipped],
) -> list[Scored]:
    """A point's time beside what is predicted; nothing where it states none."""
    if point.status == "OOM":
        return []
    if not point.measured > 0:
        if not np.isfinite(point.memory):
            skipped.append(Skipped(point.point_id, point.source, point.why))
        return []
    request = point.request
    value = float((result.layer_time if point.one_layer else result.step_time)[at])
    reach = float(result.high[at] / result.step_time[at])
    model, framework = request.model, request.plan.framework
    run = calibration.run.spread(model.is_moe, framework, untimed=model.untimed)
    row = Scored(
        point_id=point.point_id,
        source=point.source,
        metric="step_time_s",
        published=point.measured,
        predicted=value,
        low=value / reach,
        high=value * reach,
        in_sample=point.point_id in calibration.fitted_points,
        model=request.model.name,
        accelerator=request.cluster.accelerator.name,
        sigma_operators=float(np.sqrt(max(result.sigma[at] ** 2 - run**2, 0.0))),
        flagged=point.doubtful,
        moe=request.model.is_moe,
        untimed=request.model.untimed,
        framework=request.plan.framework,
    )
    return [row]


def refold(scores: Scores, calibration: Calibration, by: str) -> Scores:
    """Score every group of rows with what was fitted to such rows refitted without it.

    by   'source', 'model' or 'accelerator'

    Runs that the calibration was fitted to are predicted anew, with run parameters fitted to the
    other groups; the spread of a run is refitted to their errors in any case. Engines are refitted
    to the other runs of inference. Kernels and links stay: they were not fitted to runs.
    """
    runs = [row for row in scores.rows if not row.kind]
    steady = steps.refolded(scores.ratios, calibration.interval_q, by)
    if any(row.in_sample for row in runs) and scores.points:
        runs = _held_out(replace(scores, rows=runs), calibration, by)
    keys = np.array([getattr(row, by) for row in runs])
    found = [
        Residual(
            r.log_error, r.sigma_operators, r.source, r.moe, framework=r.framework,
            untimed=r.untimed,
        )
        for r in runs
    ]  # fmt: skip
    q, level = calibration.interval_q, calibration.interval_level
    held: dict[str, RunParameters] = {}
    for key in np.unique(keys).tolist():
        rest = [r for r, other in zip(found, keys, strict=True) if other != key]
        enough = len(rest) >= LEAST_POINTS
        held[key] = with_spread(calibration.run, rest, q, level) if enough else calibration.run
    spread = []
    for row, key in zip(runs, keys.tolist(), strict=True):
        own = held[key].spread(row.moe, row.framework, untimed=row.untimed)
        reach = float(np.exp(q * np.hypot(row.sigma_operators, own)))
        spread.append(replace(row, low=row.predicted / reach, high=row.predicted * reach))
    if scores.inference is not None:
        spread += refold_served(scores.inference, calibration, by)
    spread += steady
    spread += [row for row in scores.rows if row.kind == "open"]  # no engine was fitted to them
    for table in scores.power:
        score_power(table, calibration, spread, [], by)
    return replace(scores, rows=spread)


def _held_out(scores: Scores, calibration: Calibration, by: str) -> list[Scored]:
    """Rows whose runs are predicted with run parameters fitted to the other groups' runs of those
    that the calibration was fitted to."""
    runs = take_apart(calibration, scores.points)
    place = {row.point_id: at for at, row in enumerate(scores.rows)}
    at = [place[point.point_id] for point in runs.points]
    key = np.array([getattr(scores.rows[row], by) for row in at])
    rows = list(scores.rows)
    known = np.array([point.point_id in calibration.fitted_points for point in runs.points])
    for row, residual in zip(at, left_out(runs, default_run(), key, known), strict=True):
        old = rows[row]
        rows[row] = replace(
            old,
            predicted=old.published * float(np.exp(residual.error)),
            sigma_operators=residual.sigma,
            in_sample=False,
        )
    return rows

"""Parameters of serving engines, fitted to published runs with shrinkage; refitted by
`python -m calibration.serving TABLE... --out data/calibrations/default`.

The work of every row is timed once; then latencies are arithmetic (`predictor.latency`), and the
logarithms of an engine's parameters are least squares on log errors (Cauchy's loss), each drawn
towards the mean of all engines, and that towards a documented default.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from calibration.runs.spread import Residual, run_sigma
from calibration.tables.kernel_table import read_table
from calibration.tables.requests import InferencePoint, inference_point
from predictor.arrays import Array, join, take, widened
from predictor.catalog import (
    FILE,
    NAMES,
    EngineParameters,
    ServingParameters,
    engines_mapping,
    load,
    period,
)
from predictor.errors import InputError
from predictor.plans import batches
from predictor.schema import INFERENCE_KEY
from predictor.serving import (
    EXACT_STEPS,
    Latencies,
    Work,
    engines,
    latencies,
    predict_inference,
    spread_of,
    spreads,
)
from predictor.timing import Calibration, RunParameters

TOGETHER = 128
"""Points that are timed as one batch."""

METRICS = ("ttft_s", "tpot_s", "e2e_s", "output_tokens_per_s", "requests_per_s")


@dataclass(frozen=True, slots=True, eq=False)
class Timed:
    """Points with the work that they are, as flat arrays of one length.

    engine      of each point, with its period: a name of `ServingParameters.engines`
    spreads     of the passes over prompts and of those that decode (`inference.spread_of`) [s]
    """

    points: list[InferencePoint]
    work: Work
    dp: Array
    batch: Array
    engine: list[str]
    spreads: dict[str, Array]


ALL = ("neutral",)
"""Lineage of what all engines share."""


def lineage(label: str) -> list[str]:
    """What an engine's parameters are made of, each drawn towards the one before: all engines',
    those of the engine that it is built on, its own, those of its period."""
    name = label.partition(" until ")[0]
    path = [*ALL]
    if name not in ALL:
        if parent := engines()[name][-1].get("like"):
            path = lineage(parent)
        path.append(name)
    return path if label == name else [*path, label]


def label_of(framework: str, era: str) -> str:
    """Name of an engine's parameters in an era."""
    return period(engines(), framework, era)[1]


def timed(
    points: Sequence[InferencePoint], calibration: Calibration
) -> tuple[Timed, list[tuple[InferencePoint, str]]]:
    """Time the work of points, those of one model, cluster and category as one batch; points that
    the predictor refuses are returned with its reason."""
    refused: list[tuple[InferencePoint, str]] = []
    kept: list[int] = []
    pieces: list[Work] = []
    columns: dict[str, list[Array]] = {"dp": [], "batch": [], "prompts": [], "decoding": []}
    neutral = ServingParameters()
    for batch in batches([point.request for point in points], most=TOGETHER):
        try:
            found = predict_inference(
                batch.model, batch.cluster, batch.plan, calibration, neutral, EXACT_STEPS
            )
        except InputError as error:
            refused += [(points[i], str(error)) for i in batch.positions]
            continue
        count = len(batch.positions)
        kept += batch.positions
        pieces.append(widened(found.work, (count,)))
        columns["dp"].append(np.asarray(found.plan.dp, float))
        columns["batch"].append(np.asarray(found.plan.batch, float))
        for name in ("prompts", "decoding"):
            columns[name].append(np.broadcast_to(spread_of(getattr(found, name)), count))
    joined = {name: np.concatenate(v) if v else np.empty(0) for name, v in columns.items()}
    own = [points[i] for i in kept]
    labels = [label_of(p.request.plan.framework, p.request.plan.era) for p in own]
    work = join(pieces)
    widths = {name: joined[name] for name in ("prompts", "decoding")}
    return Timed(own, work, joined["dp"], joined["batch"], labels, widths), refused


def select(found: Timed, mask: Array) -> Timed:
    """The points of a mask."""
    index = np.flatnonzero(mask)

    return Timed(
        [found.points[i] for i in index],
        take(found.work, index),
        found.dp[index],
        found.batch[index],
        [found.engine[i] for i in index],
        {name: value[index] for name, value in found.spreads.items()},
    )


def values(found: Timed, own: EngineParameters) -> tuple[Array, Latencies]:
    """What each point states, predicted; fields of `own` have one entry per point."""
    latency = latencies(found.work, own)
    rate = latency.requests_per_s * found.dp
    kinds = np.array([METRICS.index(point.metric) for point in found.points])
    # Most passes are without a prompt where fewer than one request in two passes arrives.
    rare = found.work.running < 0.5 * found.work.output_len
    pure = np.array([point.pure for point in found.points]) & rare
    table = np.stack(
        [
            latency.ttft,
            np.where(pure, latency.step, latency.tpot),
            latency.e2e,
            rate * found.work.output_len,
            rate,
        ]
    )
    return np.take_along_axis(table, kinds[None], axis=0)[0], latency


def published(found: Timed) -> Array:
    """What the points state."""
    return np.array([point.value for point in found.points])


@dataclass(frozen=True, slots=True)
class Prior:
    """Where the logarithm of a parameter is expected, and how far off, in log units: the mean of
    all engines around the documented default, an engine around that, a period around its engine.
    """

    mean: float
    engine: float
    period: float


PRIORS: dict[str, Prior] = {
    "decode": Prior(0.1, 0.1, 0.05),
    "prefill": Prior(0.1, 0.15, 0.1),
    "communication": Prior(0.15, 0.2, 0.1),
    "gap": Prior(0.7, 0.7, 0.5),
    "launch": Prior(0.5, 0.7, 0.7),
    "step": Prior(0.7, 0.7, 0.7),
    "sequence": Prior(0.7, 0.7, 0.7),
    "request": Prior(0.7, 0.7, 0.7),
    "mixing": Prior(0.3, 0.2, 0.1),
    "burst": Prior(1.5, 0.2, 0.1),
}
"""Factors on kernels are narrow, since the kernels were measured; durations on the host are known
to a factor of two, and servers are rewritten from one period to the next; how synchronous clients
stay is hardly known beforehand, but it is the clients' own."""

SCALE, QUEUED, KNEE = 0.2, 0.6, 1.5
"""Log error that is taken as ordinary; that of a first token under load, which clients and queues
decide as much as the engine; and how many of it halve a row's say (Cauchy's loss), so that odd
rows, whose cause no engine's parameter is, do not decide."""

MOST_ROWS = 15.0
"""A source counts in each metric as this many rows at most, since its rows err together."""

DOUBT = 0.1
"""Weight of rows whose notes advise care, or whose source calls them experimental."""

ROUNDS = 25


def weights(found: Timed) -> Array:
    """What each point counts in the fit, 0..1."""
    odd = np.array([point.flagged or point.tentative for point in found.points])
    # Doubtful rows are counted apart: many of them leave a source's other rows their weight.
    keys = [f"{p.source}/{p.metric}/{p.kind}/{o}" for p, o in zip(found.points, odd, strict=True)]
    _, inverse, counts = np.unique(keys, return_inverse=True, return_counts=True)
    return np.asarray(np.minimum(MOST_ROWS / counts[inverse], 1.0) * np.where(odd, DOUBT, 1.0))


def fit_engines(found: Timed) -> dict[str, EngineParameters]:
    """Parameters of every engine and period that there is, and of the neutral one (the mean).

    Gauss-Newton on the logarithms of the parameters: one of the mean, one for each engine, one for
    each period, added up along the `lineage`; each with its prior (`PRIORS`).
    """
    labels = sorted(set(found.engine))
    nodes = list(ALL)
    members = []
    for label in labels:
        names = lineage(label)
        nodes += [name for name in names if name not in nodes]
        members.append([nodes.index(name) for name in names])
    for engine in engines():
        nodes += [name for name in lineage(engine) if name not in nodes]
    own = np.array([labels.index(label) for label in found.engine])
    start = np.log([float(getattr(EngineParameters(), name)) for name in NAMES])
    count = len(NAMES)
    level = [
        "mean" if node in ALL else "period" if " until " in node else "engine" for node in nodes
    ]
    scales = np.array([[getattr(PRIORS[n], one) for n in NAMES] for one in level])
    target, weight = np.log(published(found)), weights(found)
    queued = [p.metric == "ttft_s" and p.kind == "serving" for p in found.points]
    scale = np.where(queued, QUEUED, SCALE)
    state = np.zeros((len(nodes), count))

    def total(path: list[int], at: Array) -> Array:
        return np.asarray(start + at[path].sum(axis=0))

    def predicted(logs: Array) -> Array:
        found_values, _ = values(found, EngineParameters(*np.exp(logs).T))
        return np.log(found_values)

    for _ in range(ROUNDS):
        logs = np.array([total(path, state) for path in members])[own]
        base = predicted(logs)
        error = (base - target) / scale
        slopes = np.empty((len(error), count))
        for column in range(count):
            shifted = logs.copy()
            shifted[:, column] += 1e-3
            slopes[:, column] = (predicted(shifted) - base) / 1e-3 / scale
        loss = weight / (1.0 + (error / KNEE) ** 2)
        left = np.diag(scales.ravel() ** -2.0).reshape(len(nodes), count, len(nodes), count)
        right = -state * scales**-2.0
        for position, path in enumerate(members):
            rows = own == position
            piece = slopes[rows].T @ (loss[rows, None] * slopes[rows])
            pull = slopes[rows].T @ (loss[rows] * error[rows])
            for node in path:
                right[node] -= pull
                for other in path:
                    left[node, :, other] += piece
        size = len(nodes) * count
        move = np.linalg.solve(left.reshape(size, size), right.ravel()).reshape(right.shape)
        move = np.clip(move, -0.5, 0.5)
        state = state + move
        if np.max(np.abs(move)) < 1e-3:
            break
    known = {"neutral": list(ALL), **{name: lineage(name) for name in (*engines(), *labels)}}
    return {
        label: EngineParameters(*np.exp(total([nodes.index(name) for name in names], state)))
        for label, names in known.items()
    }


def parameters_of(found: Timed, fitted: Mapping[str, EngineParameters]) -> EngineParameters:
    """Parameters of every point, one entry each."""
    known = ServingParameters(fitted)
    each = [
        known.of(point.request.plan.framework, point.request.plan.era) for point in found.points
    ]
    return EngineParameters(
        *(np.array([float(getattr(one, name)) for one in each]) for name in NAMES)
    )


def held_out(found: Timed, by: Sequence[str]) -> Array:
    """What each point states, predicted with parameters fitted without its group.

    by   group of each point: its source, model or accelerator
    """
    groups = np.array(by)
    result = np.empty(len(groups))
    for group in np.unique(groups):
        inside = groups == group
        fitted = fit_engines(select(found, ~inside))
        part = select(found, inside)
        result[inside] = values(part, parameters_of(part, fitted))[0]
    return result


CLASSES = {
    "ttft_s": "ttft",
    "tpot_s": "tpot",
    "e2e_s": "e2e",
    "output_tokens_per_s": "throughput",
    "requests_per_s": "throughput",
}
"""Metric of an interval for each metric of a table."""


def class_of(point: InferencePoint) -> str:
    """Name of a point's spread in `ServingParameters.sigma`."""
    return f"{CLASSES[point.metric]}.{point.kind}"


def operator_sigma(found: Timed, own: EngineParameters) -> Array:
    """The operators' part of each point's spread."""
    latency = latencies(found.work, own)
    still = ServingParameters(sigma={"all": 0.0})
    table = {
        metric: spreads(
            found.spreads["prompts"],
            found.spreads["decoding"],
            found.work,
            latency,
            own,
            metric,
            still,
        )
        for metric in ("ttft", "tpot", "e2e", "throughput")
    }
    return np.array([table[CLASSES[point.metric]][i] for i, point in enumerate(found.points)])


QUEUED_CLASS = "ttft.serving"
"""First tokens under load, which queues spread several times as wide as anything else."""

LEAST = 20
"""Points of one class from which its own spread is taken; fewer share that of all."""


FEWEST = 5
"""Points of one source and class below which they say nothing of other sources."""


def fit_spreads(
    points: Sequence[InferencePoint], errors: Array, operators: Array, q: float, level: float
) -> dict[str, float]:
    """Spread of runs by class of metric, by metric and of all, such that intervals cover `level` of
    the held-out points, every source counting alike (`spread.run_sigma`). First tokens under load
    are a class for themselves; doubtful rows say nothing of others.

    errors      log(predicted / published), held out
    operators   the operators' part of each spread
    """
    residuals = [
        Residual(float(e), float(s), point.source)
        for point, e, s in zip(points, errors, operators, strict=True)
    ]
    labels = [class_of(point) for point in points]
    groups: dict[str, list[Residual]] = {}
    counts = Counter(zip(labels, (one.source for one in residuals), strict=True))
    for point, label, one in zip(points, labels, residuals, strict=True):
        if point.flagged or point.tentative:
            continue
        names = [label] if label == QUEUED_CLASS else [label, label.partition(".")[0], "all"]
        for name in names:
            if name == "all" or counts[label, one.source] >= FEWEST:
                groups.setdefault(name, []).append(one)
    return {
        name: round(run_sigma(own, q, level), 4)
        for name, own in sorted(groups.items())
        if len(own) >= LEAST
    }


def fit(points: Sequence[InferencePoint], calibration: Calibration) -> ServingParameters:
    """Parameters of engines and spreads of runs, from all points."""
    found, _ = timed(points, calibration)
    engines_ = fit_engines(found)
    errors = np.log(held_out(found, [p.source for p in found.points]) / published(found))
    sigma = fit_spreads(
        found.points,
        errors,
        operator_sigma(found, parameters_of(found, engines_)),
        calibration.interval_q,
        calibration.interval_level,
    )
    return ServingParameters(engines_, sigma, frozenset(p.point_id for p in found.points))


def read_inference(paths: Sequence[Path], run: RunParameters) -> list[InferencePoint]:
    """Points of inference tables that can be predicted.

    Raises InputError where a file is no such table.
    """
    found: list[InferencePoint] = []
    for path in paths:
        table = read_table(path)
        if INFERENCE_KEY not in table:
            raise InputError(f"{path} is no table of inference runs: no column {INFERENCE_KEY!r}")
        made = [inference_point(row, run) for row in table.to_dict("records")]
        found += [point for point in made if isinstance(point, InferencePoint)]
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Refit the engines of a calibration to tables of inference runs."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("tables", nargs="+", type=Path)
    parser.add_argument("--calibration", default="default")
    parser.add_argument("--out", type=Path, required=True, help="folder of the calibration")
    given = parser.parse_args(arguments)
    calibration = load(given.calibration)
    fitted = fit(read_inference(given.tables, calibration.run), calibration)
    content = engines_mapping(fitted)
    # The ids are many: one line for all of them.
    ids = json.dumps(content.pop("points"))
    text = json.dumps(content, indent=1).removesuffix("\n}")
    (given.out / FILE).write_text(f'{text},\n "points": {ids}\n}}\n', encoding="utf-8")


if __name__ == "__main__":
    main()

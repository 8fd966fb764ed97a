"""Published runs of inference with the work that they are, timed once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from calibration.tables.requests import InferencePoint
from predictor.arrays import Array, Mask, join, take, widened
from predictor.catalog import engine_named
from predictor.errors import InputError
from predictor.plans import Batch, ServingPlan, batches
from predictor.power import Conditions
from predictor.serving import (
    EXACT_STEPS,
    InferencePrediction,
    Latencies,
    Work,
    conserved,
    latencies,
    limited,
    predict_inference,
    serving_power,
    spread_of,
)
from predictor.timing import (
    Calibration,
    EngineParameters,
    ServingParameters,
)

METRICS = ("ttft_s", "tpot_s", "e2e_s", "output_tokens_per_s", "requests_per_s")


TOGETHER = 128
"""Points that are timed as one batch."""


@dataclass(frozen=True, slots=True, eq=False)
class Timed:
    """Points with the work that they are, as flat arrays of one length.

    engine      of each point, with its period: a name of `ServingParameters.engines`
    spreads     of the passes over prompts and of those that decode (`serving.spread_of`) [s], (2,
                points)
    """

    points: list[InferencePoint]
    work: Work
    dp: Array
    batch: Array
    engine: list[str]
    spreads: dict[str, Array]


def label_of(framework: str, era: str) -> str:
    """Name of an engine's parameters in an era."""
    return engine_named(framework).label(era)


def timed(
    points: Sequence[InferencePoint], calibration: Calibration
) -> tuple[Timed, list[tuple[InferencePoint, str]]]:
    """Time the work of points, those of one model, cluster, category and conditions of power as one
    batch; points that the predictor refuses are returned with its reason. Open loops are no work of
    a batch (`open_loops`): they are left out.

    Raises InputError where none is left."""
    refused: list[tuple[InferencePoint, str]] = []
    kept: list[int] = []
    pieces: list[Work] = []
    columns: dict[str, list[Array]] = {"dp": [], "batch": [], "prompts": [], "decoding": []}
    neutral = replace(calibration, serving=ServingParameters())
    given = len(points)
    points = [point for point in points if point.rate is None]
    for batch, conditions, positions in _batched(points):
        count = len(positions)
        try:
            free = predict_inference(batch.model, batch.cluster, batch.plan, neutral, EXACT_STEPS)
            found = held(free, conditions)
        except InputError as error:
            refused += [(points[i], str(error)) for i in positions]
            continue
        kept += positions
        pieces.append(widened(found.work, (count,)))
        columns["dp"].append(np.asarray(found.plan.dp, float))
        columns["batch"].append(np.asarray(found.plan.batch, float))
        for name in ("prompts", "decoding"):
            columns[name].append(np.broadcast_to(spread_of(getattr(found, name)), (2, count)))
    if not pieces:
        why = refused[0][1] if refused else "no closed loop and no static batch among them"
        raise InputError(f"none of {given} benchmarks can be used: {why}")
    joined = {name: np.concatenate(parts, axis=-1) for name, parts in columns.items()}
    own = [points[i] for i in kept]
    labels = [label_of(p.request.plan.framework, p.request.plan.era) for p in own]
    work = join(pieces)
    widths = {name: joined[name] for name in ("prompts", "decoding")}
    return Timed(own, work, joined["dp"], joined["batch"], labels, widths), refused


def _batched(
    points: Sequence[InferencePoint],
) -> Iterator[tuple[Batch[ServingPlan], Conditions, list[int]]]:
    """Batches of points under one limit of power, clock and cooling each, with these and where the
    points are."""
    under: dict[Conditions, list[int]] = {}
    for at, point in enumerate(points):
        under.setdefault(point.request.conditions, []).append(at)
    for conditions, places in under.items():
        for batch in batches([points[at].request for at in places], most=TOGETHER):
            yield batch, conditions, [places[at] for at in batch.positions]


def held(found: InferencePrediction, conditions: Conditions) -> InferencePrediction:
    """A prediction in the time that a limit of power or a clock leaves it; itself where none is
    stated.

    Raises InputError where the power of the accelerator is not known, or the conditions cannot be.
    """
    if not conditions.slows:
        return found
    return limited(found, serving_power(found, conditions), conditions)


def select(found: Timed, mask: Array | Mask) -> Timed:
    """The points of a mask."""
    index = np.flatnonzero(mask)

    return Timed(
        [found.points[i] for i in index],
        take(found.work, index),
        found.dp[index],
        found.batch[index],
        [found.engine[i] for i in index],
        {name: value[:, index] for name, value in found.spreads.items()},
    )


def values(found: Timed, own: EngineParameters) -> tuple[Array, Latencies]:
    """What each point states, predicted; fields of `own` have one entry per point in their last
    dimension, as have the results."""
    latency = conserved(found.work, own, latencies(found.work, own))
    rate = latency.requests_per_s * found.dp
    kinds = np.array([METRICS.index(point.metric) for point in found.points])
    pure = np.array([point.pure for point in found.points]) & unmoved(found.work)
    table = np.stack(
        np.broadcast_arrays(
            latency.ttft,
            np.where(pure, latency.step, latency.tpot),
            latency.e2e,
            rate * found.work.output_len,
            rate,
        )
    )
    stated = np.broadcast_to(kinds, table.shape[1:])
    return np.take_along_axis(table, stated[None], axis=0)[0], latency


def unmoved(work: Work) -> Mask:
    """Whether the median time between tokens is that of a pass without prompts: of passes in which
    m prompts begin on average, at random, exp(-m) have none (`serving.latency`), most of them below
    m = log 2; where replicas make their passes together, m is of all of them."""
    passes = np.maximum(work.output_len - 1.0, 1.0) / work.per_pass
    return np.asarray(work.running * work.meeting < np.log(2.0) * passes)


def published(found: Timed) -> Array:
    """What the points state."""
    return np.array([point.value for point in found.points])

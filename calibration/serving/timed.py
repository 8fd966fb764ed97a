"""Published runs of inference with the work that they are, timed once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from calibration.tables.requests import InferencePoint
from predictor.arrays import Array
from predictor.catalog import (
    period,
)
from predictor.errors import InputError
from predictor.plans import SERVING_CATEGORIES, stack_serving
from predictor.serving import (
    Device,
    Latencies,
    Work,
    engines,
    latencies,
    predict_inference,
    spread_of,
)
from predictor.timing import (
    Calibration,
    EngineParameters,
    ServingParameters,
)

METRICS = ("ttft_s", "tpot_s", "e2e_s", "output_tokens_per_s", "requests_per_s")


@dataclass(frozen=True, slots=True, eq=False)
class Timed:
    """Points with the work that they are, as flat arrays of one length.

    engine      of each point, with its period: a name of `ServingParameters.engines`
    spreads     of the passes over prompts and of those that decode (`serving.spread_of`) [s]
    """

    points: list[InferencePoint]
    work: Work
    dp: Array
    batch: Array
    engine: list[str]
    spreads: dict[str, Array]


def label_of(framework: str, era: str) -> str:
    """Name of an engine's parameters in an era."""
    return period(engines(), framework, era)[1]


def timed(
    points: Sequence[InferencePoint], calibration: Calibration
) -> tuple[Timed, list[tuple[InferencePoint, str]]]:
    """Time the work of points, those of one model, cluster and category as one batch; points that
    the predictor refuses are returned with its reason."""
    groups: dict[tuple[object, ...], list[int]] = {}
    for position, point in enumerate(points):
        plan, cluster = point.request.plan, point.request.cluster
        key = (
            point.request.model,
            cluster.name,
            cluster.accelerator.name,
            tuple((tier.link, tier.size, float(tier.bandwidth)) for tier in cluster.tiers),
            *(getattr(plan, name) for name in SERVING_CATEGORIES),
        )
        groups.setdefault(key, []).append(position)
    refused: list[tuple[InferencePoint, str]] = []
    kept: list[int] = []
    pieces: list[Work] = []
    columns: dict[str, list[Array]] = {"dp": [], "batch": [], "prompts": [], "decoding": []}
    neutral = replace(calibration, serving=ServingParameters())
    for positions in groups.values():
        members = [points[i] for i in positions]
        request = members[0].request
        plan = stack_serving([member.request.plan for member in members])
        try:
            found = predict_inference(request.model, request.cluster, plan, neutral)
        except InputError as error:
            refused += [(member, str(error)) for member in members]
            continue
        kept += positions
        pieces.append(_flat(found.work, len(positions)))
        columns["dp"].append(np.asarray(found.plan.dp, float))
        columns["batch"].append(np.asarray(found.plan.batch, float))
        for name in ("prompts", "decoding"):
            columns[name].append(np.broadcast_to(spread_of(getattr(found, name)), len(positions)))
    joined = {name: np.concatenate(v) if v else np.empty(0) for name, v in columns.items()}
    own = [points[i] for i in kept]
    labels = [label_of(p.request.plan.framework, p.request.plan.era) for p in own]
    work = _join(pieces)
    widths = {name: joined[name] for name in ("prompts", "decoding")}
    return Timed(own, work, joined["dp"], joined["batch"], labels, widths), refused


def _flat(work: Work, length: int) -> Work:
    """Every field as an array of `length`."""

    def widen(value: object) -> Array:
        return np.broadcast_to(np.asarray(value, float), (length,))

    def device(own: Device) -> Device:
        return Device(*(widen(getattr(own, one.name)) for one in fields(Device)))

    named: dict[str, object] = {
        one.name: device(value) if isinstance(value, Device) else widen(value)
        for one in fields(Work)
        for value in (getattr(work, one.name),)
    }
    return Work(**named)  # type: ignore[arg-type]


def _join(pieces: list[Work]) -> Work:
    """One after the other."""

    def device(name: str) -> Device:
        return Device(
            *(
                np.concatenate([getattr(getattr(piece, name), one.name) for piece in pieces])
                for one in fields(Device)
            )
        )

    named = {
        one.name: device(one.name)
        if one.name in ("prompts", "decoding")
        else np.concatenate([getattr(piece, one.name) for piece in pieces])
        for one in fields(Work)
    }
    return Work(**named)  # type: ignore[arg-type]


def select(found: Timed, mask: Array) -> Timed:
    """The points of a mask."""
    index = np.flatnonzero(mask)

    def device(own: Device) -> Device:
        return Device(*(getattr(own, one.name)[index] for one in fields(Device)))

    named: dict[str, object] = {
        one.name: device(value) if isinstance(value, Device) else value[index]
        for one in fields(Work)
        for value in (getattr(found.work, one.name),)
    }
    return Timed(
        [found.points[i] for i in index],
        Work(**named),  # type: ignore[arg-type]
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

"""Open loops of published tables: requests arrive at a rate, whether the engine keeps up or not.

Every point is served one by one (`predictor.serving.one_by_one`): with as many requests as the
source sent, so that a queue that grows has grown as far as theirs. A rate without end is all of
them at once. Engines are fitted to closed loops alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from calibration.serving.timed import held
from calibration.tables.requests import InferencePoint
from predictor.arrays import Array, identity
from predictor.errors import InputError
from predictor.serving import Client, Served, held_engines, one_by_one, predict_inference
from predictor.timing import Calibration


def _served(point: InferencePoint, calibration: Calibration) -> Served:
    """The point's requests, of one replica."""
    request, rate = point.request, point.rate
    plan = replace(request.plan, batch=np.inf, serving=1.0)
    endless = rate is None or np.isinf(rate)
    count = max(round(point.requests / float(plan.dp)), 1)
    if request.conditions.slows:
        free = predict_inference(request.model, request.cluster, plan, calibration)
        calibration = held_engines(free, held(free, request.conditions), calibration)
    return one_by_one(
        model=request.model,
        cluster=request.cluster,
        plan=plan,
        calibration=calibration,
        requests=count,
        client=Client(variation=point.request.variation),
        rate=None if endless else rate,
        clients=count if endless else 0,
    )


def loads_of(points: Sequence[InferencePoint], calibration: Calibration) -> Array:
    """What spreads of first tokens grow with (`serving.load_shares`), at the rates at which points'
    requests come: as if none waited for room, which requests served one by one do not say."""
    known: dict[object, float] = {}
    found = []
    for point in points:
        request, rate = point.request, np.inf if point.rate is None else point.rate
        key = (request.model, identity(request.cluster), identity(request.plan))
        if key not in known:
            full = replace(request.plan, batch=np.inf, serving=1.0, synchrony=0.0)
            one = predict_inference(request.model, request.cluster, full, calibration)
            known[key] = float(one.latencies.prompt) / float(full.dp)
        found.append(min(rate * known[key], 1.0))
    return np.stack([np.array(found), np.zeros(len(found))])


def _value(point: InferencePoint, served: Served) -> float:
    """What the point states, in SI: means over requests, rates of all replicas."""
    replicas = float(point.request.plan.dp)
    rate = served.requests_per_s * replicas
    return {
        "ttft_s": float(served.ttft.mean()),
        "tpot_s": float(served.tpot.mean()),
        "e2e_s": float(served.e2e.mean()),
        "requests_per_s": rate,
        "output_tokens_per_s": rate * float(served.output_len.mean()),
    }[point.metric]


def predicted(
    points: Sequence[InferencePoint], calibration: Calibration
) -> tuple[list[InferencePoint], Array, list[tuple[InferencePoint, str]]]:
    """Points of open loops that can be predicted, what each states as predicted, and the others
    with the reason. Metrics of one run are read from one simulation."""
    known: dict[object, Served | str] = {}
    kept: list[InferencePoint] = []
    values: list[float] = []
    refused: list[tuple[InferencePoint, str]] = []
    for point in points:
        request = point.request
        key = (
            request.model, identity(request.cluster), identity(request.plan), point.rate,
            point.requests, request.conditions,
        )  # fmt: skip
        if key not in known:
            try:
                known[key] = _served(point, calibration)
            except InputError as error:
                known[key] = str(error)
        found = known[key]
        if isinstance(found, str):
            refused.append((point, found))
        else:
            kept.append(point)
            values.append(_value(point, found))
    return kept, np.array(values), refused

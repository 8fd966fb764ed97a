"""What a request does not say of its engine, as a distribution: releases that it may be, each with
its facts, and the mixture of what they predict.

Which releases: of the engine that is named, else of the three that most servers run, those of half
a year until the era (or until today's). The mixture's quantiles are the value and its interval; the
fact that would narrow it most is that which moves the prediction most by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import NormalDist
from typing import Any

import numpy as np

from predictor.arrays import Array
from predictor.catalog import ServingPlanSpec, engine_named, parse, spelled
from predictor.plans import SERVING_CATEGORIES, SERVING_NUMBERS, ServingPlan
from predictor.records import dataclass
from predictor.serving.completion import ServingRequest, complete_serving
from predictor.serving.passes import EXACT_STEPS
from predictor.serving.prediction import InferencePrediction, predict_inference
from predictor.serving.spreads import LATE
from predictor.timing import Calibration

USUAL = ("vllm", "sglang", "tensorrt-llm")
"""Engines that a request which names none may mean."""

MONTHS = 6
"""For which releases stay in use behind the newest."""

METRICS = ("ttft", "tpot", "e2e")

LEAST_TOLD = 0.02
"""Share by which a fact moves a prediction at least to be told."""


@dataclass(frozen=True, slots=True)
class Doubt:
    """What a fact that is not stated moves.

    moves   largest share by which the time per token, or that of a request, changes with it
    """

    field: str
    values: tuple[Any, ...]
    moves: float


@dataclass(frozen=True, slots=True, eq=False)
class Mixture:
    """Predictions of all releases that a request may mean.

    releases   'ENGINE RELEASE', newest first of each engine
    values     median, low and high by metric of `METRICS` [s]
    doubts     facts that would narrow it, those that move most first
    """

    releases: tuple[str, ...]
    values: Mapping[str, tuple[float, float, float]]
    doubts: tuple[Doubt, ...]


def _before(month: str, months: int) -> str:
    """A month so many before another."""
    year, number = int(month[:4]), int(month[5:7] or 6)
    count = year * 12 + number - 1 - months
    return f"{count // 12:04d}-{count % 12 + 1:02d}"


def possible(framework: str | None, era: str | None, version: str | None) -> list[tuple[str, str]]:
    """Engines and releases that a request may mean; an empty release is an engine's only one."""
    named = spelled(framework or "neutral")
    engines = USUAL if named == "neutral" else (named,)
    if version:  # which only an engine that is named can have
        return [(named, version)]
    found: list[tuple[str, str]] = []
    for name in engines:
        known = engine_named(str(name))
        newest = known.version(era)
        if not newest:
            found.append((str(name), ""))
            continue
        last = known.releases[newest]
        recent = [one for one, month in known.releases.items()
                  if _before(last, MONTHS) < month <= last]  # fmt: skip
        found += [(str(name), one) for one in reversed(recent)]
    return found


def mixture(spec: ServingPlanSpec, calibration: Calibration, **loaded: Any) -> Mixture:
    """Predict a request with every release that it may mean.

    loaded   model and cluster where the spec does not name them

    Raises InputError where the request is impossible.
    """
    stated = {name: value for name, value in spec.to_dict().items() if value is not None}
    releases = possible(*(stated.get(name) for name in ("framework", "era", "version")))
    if len({name for name, _ in releases}) > 1:  # what nobody named is none that runs elsewhere
        on = complete_serving(parse(ServingPlanSpec, stated, "plan"), calibration.run, **loaded)
        here = ("", on.cluster.accelerator.vendor)
        releases = [one for one in releases if engine_named(one[0]).only in here]
    requests: list[ServingRequest] = []
    told: list[str] = []
    for name, version in releases:
        own = {**stated, "framework": name, **({"version": version} if version else {})}
        one = complete_serving(parse(ServingPlanSpec, own, "plan"), calibration.run, **loaded)
        requests.append(one)
        told.append(f"{one.plan.framework} {version}".strip())
    found = [_predicted(one, one.plan, calibration) for one in requests]
    level = calibration.interval_level
    values = {}
    for metric in METRICS:
        centre = np.array([float(getattr(one.latencies, metric)) for one in found])
        spread = np.array([_width(one, metric) for one in found])
        low, middle, high = quantiles(
            np.log(centre), spread, (0.5 - level / 2, 0.5, 0.5 + level / 2)
        )
        values[metric] = (middle, low, high)
    return Mixture(tuple(told), values, _doubts(requests, found[0], calibration))


def _width(one: InferencePrediction, metric: str) -> float:
    """Log-standard-deviation of a prediction, the mean of its two sides where these differ."""
    sides = (metric, LATE) if metric == "ttft" else (metric,)
    return float(np.mean([float(one.sigma[side]) for side in sides]))


def _predicted(
    request: ServingRequest, plan: ServingPlan, calibration: Calibration
) -> InferencePrediction:
    known = request.sure(calibration)
    return predict_inference(request.model, request.cluster, plan, known, EXACT_STEPS)


def quantiles(logs: Array, sigma: Array, shares: Sequence[float]) -> list[float]:
    """Quantiles of a mixture of log-normal distributions, all of one weight.

    logs, sigma   logarithms of their medians, and their spreads
    """
    widths = np.maximum(sigma, 1e-9)
    reach = 6.0 * widths
    grid = np.linspace(float((logs - reach).min()), float((logs + reach).max()), 4001)
    normal = np.vectorize(NormalDist().cdf)
    below = np.mean([normal((grid - m) / s) for m, s in zip(logs, widths, strict=True)], axis=0)
    return [float(np.exp(np.interp(share, below, grid))) for share in shares]


def _doubts(
    requests: Sequence[ServingRequest], newest: InferencePrediction, calibration: Calibration
) -> tuple[Doubt, ...]:
    """Facts in which the releases differ, by what each moves alone in the first of them."""
    base = requests[0].plan
    found: list[Doubt] = []
    for name in (*SERVING_CATEGORIES, *SERVING_NUMBERS):
        if name == "era":
            continue
        values = list(dict.fromkeys(_plain(getattr(one.plan, name)) for one in requests))
        moved = 0.0
        for value in values[1:]:
            other = _predicted(requests[0], replace(base, **{name: value}), calibration)
            for metric in ("tpot", "e2e"):
                one, two = (getattr(each.latencies, metric) for each in (newest, other))
                moved = max(moved, abs(float(two) / float(one) - 1.0))
        if moved >= LEAST_TOLD:
            found.append(Doubt(name, tuple(values), moved))
    return tuple(sorted(found, key=lambda one: -one.moves))


def _plain(value: Any) -> Any:
    return value if isinstance(value, str) else float(value)

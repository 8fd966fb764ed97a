"""A handful of one's own serving benchmarks: what they say of the engine, its host and its
collectives.

The engine's parameters (`predictor.timing.EngineParameters`) of all runs move together: least
squares on log errors with a prior around what published runs say, robust to odd rows. What sources
of published benchmarks differ in beside the engine's mean is the prior's width: host time of a
pass 0.83, of a sequence 0.59, of a request 0.49, collectives 0.36 (log-standard-deviations,
METHOD_OWNRUNS of the shared notes); kernels were measured, and stay close.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import least_squares

from calibration.robust import OTHER_UNIT, cauchy, with_priors
from calibration.serving.engines import KNEE, parameters_of, telling
from calibration.serving.process import benchmarks_of, keys_of, signs
from calibration.serving.spreads import QUEUED_CLASS, class_of, loads_of
from calibration.serving.timed import Timed, published, select, timed, values
from calibration.tables.requests import InferencePoint
from predictor.arrays import Array
from predictor.catalog import own_process
from predictor.errors import InputError
from predictor.timing import (
    EARLY_SPREADS,
    ENGINE_FIELDS,
    FIRST,
    LATE_SPREADS,
    NOISE,
    QUEUED,
    UNNAMED_SPREAD,
    Benchmarks,
    Calibration,
    EngineParameters,
    ServingParameters,
)
from predictor.units import Z80

WIDTHS: dict[str, float] = {
    "decode": 0.15, "prefill": 0.2, "communication": 0.36, "gap": 0.3, "launch": 0.5,
    "step": 0.83, "sequence": 0.59, "request": 0.49, "mixing": 0.2, "burst": 0.2,
}  # fmt: skip
"""Log-standard-deviation of an engine's parameter in one's own hands about the published one."""

WITHIN = 0.1
"""The same of what is common to one's runs but no parameter of the engine's."""

CHECKPOINT = NOISE / 2.0
"""The same of a checkpoint's own level: half of a figure's error, so that one figure that is far
off counts as odd by itself, and several of a checkpoint as one odd checkpoint."""

STARTS = (1.0, 3.0, 10.0)
"""Factors on the host's time for a pass from which the search starts: one that hides behind the
device's time has no slope."""

APART = 1.5
"""Benchmarks of one configuration whose figures differ by more contradict each other."""

TOLD = {
    "decode": "passes that decode take {0:.2f} x the device time",
    "prefill": "passes over prompts take {0:.2f} x the device time",
    "communication": "collectives take {0:.2f} x the time",
    "step": "the host takes {0:.2f} x the time for a pass",
    "sequence": "the host takes {0:.2f} x the time for a running sequence",
    "request": "a request waits {0:.2f} x as long in the front end",
}
"""What a parameter is in words, by its factor."""


LEFT = {
    "ttft": "first tokens take",
    "tpot": "a token takes",
    "e2e": "a request takes",
    "throughput": "as many tokens take",
}
"""Metrics in words."""


@dataclass(frozen=True, slots=True, eq=False)
class Served:
    """A calibration that knows one's own benchmarks; what they said, a line each; their ids."""

    calibration: Calibration
    words: tuple[str, ...]
    points: tuple[str, ...]


def adapt_engines(calibration: Calibration, points: Sequence[InferencePoint]) -> Served:
    """Adapt a calibration's engines to one's own benchmarks of serving.

    points   rows of an inference table; open loops are left out

    Raises InputError where none can be used, and, by name, where two contradict each other and
    where one must be in another unit.
    """
    check_agree(points)
    found, _ = timed(points, calibration)
    found = select(found, telling(found))
    if not found.points:
        raise InputError(f"none of {len(points)} benchmarks tells of its engine")
    base = parameters_of(found, calibration.serving.engines)
    check_units(found, base)
    moved = fit_shift(found, base)
    shift = moved.shift
    left = np.log(published(found)) - _predicted(found, base, shift)
    engines = dict(calibration.serving.engines)
    for point in found.points:
        plan = point.request.plan
        name = _label(calibration.serving, plan.framework, plan.era)
        known = calibration.serving.of(plan.framework, plan.era)
        engines[name] = _moved(known, shift)
    own = benchmarks_of(found.points, left, own_process(), moved.levels)
    left = left - moved.level(found)
    sigma = _sigma(calibration.serving, found, left, loads_of(found, base))
    names = tuple(point.point_id for point in found.points)
    words = (*_words(moved), *_unexplained(own), *_earlier(calibration.serving, found))
    serving = replace(
        calibration.serving,
        engines=engines,
        sigma=sigma,
        own=own,
        points=calibration.serving.points | frozenset(names),
        origin=f"adapted to {len(names)} figures of one's own",
    )
    made = replace(
        calibration,
        serving=serving,
        provenance={
            **calibration.provenance,
            "own_benchmarks": list(names),
            "own_words": list(words),
        },
    )
    return Served(made, words, names)


def check_agree(points: Sequence[InferencePoint]) -> None:
    """Raise InputError where two figures of the same configuration differ by more than `APART`."""
    seen: dict[str, InferencePoint] = {}
    for point in points:
        request = point.request
        key = repr((request.model, request.cluster.name, request.cluster.accelerator.name,
                    request.plan, point.metric, point.rate))  # fmt: skip
        other = seen.setdefault(key, point)
        if not 1.0 / APART <= point.value / other.value <= APART:
            raise InputError(
                f"benchmarks {other.point_id} and {point.point_id} are of the same configuration "
                f"and state {other.value:.4g} and {point.value:.4g}; leave out the one that is "
                "wrong, or state what differs between them"
            )


def check_units(found: Timed, base: EngineParameters) -> None:
    """Raise InputError where a figure is so far from what is predicted that it is of another unit.

    base   parameters of every point
    """
    off = np.log(published(found)) - _predicted(found, base, np.zeros(len(ENGINE_FIELDS)))
    for point, log in zip(found.points, off.tolist(), strict=True):
        if abs(log) > math.log(OTHER_UNIT):
            told = f"{math.exp(log):.0f} x" if log > 0 else f"1/{math.exp(-log):.0f} of"
            raise InputError(
                f"benchmark {point.point_id}: its {point.metric} of {point.value:.4g} is {told} "
                "what is predicted; check its unit, its load and its accelerators"
            )


def _label(serving: ServingParameters, framework: str, era: str) -> str:
    """The name under which an engine's parameters are kept that hold in an era."""
    own = serving.of(framework, era)
    return next((k for k, v in serving.engines.items()
                 if v is own and k.partition(" until ")[0] == framework), framework)  # fmt: skip


def _moved(known: EngineParameters, shift: Array) -> EngineParameters:
    """Parameters whose logarithms are moved."""
    return EngineParameters(
        *(
            float(getattr(known, name)) * math.exp(move)
            for name, move in zip(ENGINE_FIELDS, shift.tolist(), strict=True)
        )
    )


def _predicted(found: Timed, base: EngineParameters, shift: Array) -> Array:
    """Logs of what the points state, predicted with moved parameters."""
    moved = EngineParameters(
        *(
            np.asarray(getattr(base, n)) * np.exp(s)
            for n, s in zip(ENGINE_FIELDS, shift, strict=True)
        )
    )
    return np.log(values(found, moved)[0])


@dataclass(frozen=True, slots=True, eq=False)
class Moved:
    """What benchmarks say of an engine.

    shift    by how much the logs of its parameters move, (parameters,)
    spread   standard deviation of that
    levels   by checkpoint (`key_of`), where there are several: log of the factor on its times, but
             for first tokens
    """

    shift: Array
    spread: Array
    levels: dict[str, float]

    def level(self, found: Timed) -> Array:
        """Log of the factor on what points state that their checkpoints are off by."""
        own = np.array([self.levels.get(key, 0.0) for key in keys_of(found.points)])
        return own * slowed(found)


def slowed(found: Timed) -> Array:
    """By how much the logs of what points state grow with that of their checkpoint's times."""
    first = np.array([point.metric == "ttft_s" for point in found.points])
    return np.where(first, 0.0, signs(found.points))


def fit_shift(found: Timed, base: EngineParameters) -> Moved:
    """What benchmarks say of an engine.

    base   parameters of every point

    A checkpoint whose kernels an engine has not made quick is off as one: it counts as one odd row
    where all of its rows are, and the engine's parameters, which all checkpoints have, do not learn
    from it.
    """
    target = np.log(published(found))
    width = np.array([WIDTHS[name] for name in ENGINE_FIELDS])
    queued = [p.metric == "ttft_s" and p.kind == "serving" for p in found.points]
    scale = np.where(queued, QUEUED, NOISE)
    names, place = np.unique(keys_of(found.points), return_inverse=True)
    names = names if len(names) > 1 else names[:0]
    grown, count = slowed(found), len(names)

    def residuals(state: Array) -> Array:
        level = grown * CHECKPOINT * state[:count][place] if count else 0.0
        off = (_predicted(found, base, state[count:] * width) + level - target) / scale
        return np.concatenate([off, state])

    ones = np.ones(len(found.points) + count)
    loss = with_priors(cauchy, ones, KNEE)
    step = np.array([float(name == "step") for name in ENGINE_FIELDS]) / width
    left = grown * (target - _predicted(found, base, np.zeros(len(width)))) / CHECKPOINT
    apart = np.array([np.median(left[place == at]) for at in range(count)])
    # Every checkpoint off by itself, or none.
    levels = [np.zeros(count), apart - np.median(apart)] if count else [np.zeros(0)]
    tried = [
        least_squares(residuals, np.concatenate([level, np.log(start) * step]), loss=loss,
                      ftol=1e-6)
        for start in STARTS for level in levels
    ]  # fmt: skip
    best = min(tried, key=lambda one: float(one.cost))
    slopes = best.jac[: len(target)]
    doubt = np.linalg.inv(slopes.T @ slopes + np.eye(len(best.x)))
    return Moved(
        best.x[count:] * width,
        np.sqrt(np.diag(doubt))[count:] * width,
        dict(zip(names.tolist(), (CHECKPOINT * best.x[:count]).tolist(), strict=True)),
    )


LOADED = (*EARLY_SPREADS, *LATE_SPREADS)
"""Spreads of first tokens under load, in whose place that of one's own figures comes."""


def _sigma(known: ServingParameters, found: Timed, left: Array, loads: Array) -> dict[str, float]:
    """Spreads by class: of those that one's own figures are of, what is left of them and what of
    the old spread they do not settle.

    loads   what spreads of first tokens grow with, of each figure

    Figures of an engine that nobody names say themselves how far it is from all engines' mean.
    """
    sigma = dict(known.sigma)
    if not all(point.request.plan.named for point in found.points):
        known, sigma[UNNAMED_SPREAD] = known.unnamed(), 0.0
    labels = [class_of(point) for point in found.points]
    for label in set(labels):
        own = left[[one == label for one in labels]]
        metric, _, kind = label.partition(".")
        old = known.spread(metric, kind)
        if label == QUEUED_CLASS:
            told = loads[:, [one == label for one in labels]]
            old = float(np.mean([known.first_token(told, late) for late in (False, True)]))
            sigma = {name: s for name, s in sigma.items() if name not in LOADED}
        sure = old**2 / (old**2 + WITHIN**2 + NOISE**2 / len(own))
        rest = max(float(np.sqrt(np.mean(own**2))), NOISE)
        sigma[label] = round(min(math.hypot(rest, old * math.sqrt(1.0 - sure)), old), 4)
    return sigma


def _words(moved: Moved) -> tuple[str, ...]:
    """What moved by more than it is uncertain, a line each with an interval of 80 %; checkpoints
    that are off by themselves."""
    found = []
    rows = zip(ENGINE_FIELDS, moved.shift.tolist(), moved.spread.tolist(), strict=True)
    for name, move, wide in rows:
        if name in TOLD and abs(move) > 0.7 * wide:
            low, high = (math.exp(move + sign * Z80 * wide) for sign in (-1, 1))
            found.append(f"{TOLD[name].format(math.exp(move))} ({low:.2f} to {high:.2f})")
    for key, level in moved.levels.items():
        if abs(level) > 2.0 * WITHIN:
            found.append(f"{key} takes {math.exp(level):.2f} x the time that the others let expect")
    return tuple(found)


def _unexplained(own: Benchmarks) -> Iterator[str]:
    """What no parameter of the engine explains, a line for each checkpoint and metric."""
    keys, metrics = np.array(own.keys), np.array(own.metrics)
    for key in dict.fromkeys(own.keys):
        left = own.residual - own.levels.get(key, 0.0) * (metrics != FIRST)
        for metric in dict.fromkeys(metrics[keys == key].tolist()):
            middle = float(np.median(left[(keys == key) & (metrics == metric)]))
            if abs(middle) > 2.0 * WITHIN:
                yield (
                    f"{key}: {LEFT[metric]} {math.exp(middle):.2f} x the time that the engine "
                    "explains; that is carried to like benchmarks of it, not to others"
                )


def _earlier(known: ServingParameters, found: Timed) -> Iterator[str]:
    """Engines whose benchmarks are of an earlier release than is predicted where none is named."""
    plans = [point.request.plan for point in found.points]
    for label in dict.fromkeys(_label(known, plan.framework, plan.era) for plan in plans):
        if " until " in label:
            yield (
                f"benchmarks are of {label}, of which alone that of host, kernels and collectives "
                "holds: later releases are predicted as before (era, version)"
            )

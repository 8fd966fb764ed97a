"""A handful of one's own training runs: what they say of others, in numbers and in words, and
which run would say most."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from calibration.robust import OTHER_UNIT
from calibration.runs.apart import Runs, take_apart
from calibration.runs.prior import Block, block
from calibration.tables.runs import Point
from predictor.arrays import Array, Mask
from predictor.catalog import own_prior
from predictor.errors import InputError
from predictor.memory import memory
from predictor.plans import TrainingPlan
from predictor.timing import (
    HOSTS,
    Calibration,
    Learned,
    Prior,
    RunParameters,
    Traits,
    alone,
    joined,
    learn,
    shared,
)
from predictor.training import (
    SLOPES,
    TrainingRequest,
    check_prior,
    others,
    otherwise,
    predict,
)
from predictor.units import Z80

UNKNOWN = ("recompute", "vpp", "cuda_graphs")
"""Settings that runs are asked about where they do not state them."""

SHOWN = 0.5
"""Probability from which on another setting is taken: it is likelier than all else together, though
few published runs have it."""

APART = 1.3
"""Runs of one configuration whose times differ by more contradict each other: repeats of one
configuration differ by 1 to 8 %."""


@dataclass(frozen=True, slots=True, eq=False)
class Adapted:
    """A calibration that knows one's own runs, and what they said.

    words     what was learned, a line each
    doubtful  runs that are mostly left aside as outliers, and their probability of being such
    left_out  runs that could not be used, and why
    """

    calibration: Calibration
    words: tuple[str, ...]
    doubtful: Mapping[str, float]
    left_out: Mapping[str, str]


def adapt_runs(calibration: Calibration, points: Sequence[Point]) -> Adapted:
    """Adapt a calibration to one's own runs.

    points   steps measured; those of one layer alone are left out

    Raises InputError where none can be used, and where runs contradict each other or physics, by
    name.
    """
    steps = [point for point in points if not point.one_layer]
    if not steps:
        raise InputError("none of the runs is a training step with its time")
    check_agree(steps)
    check_possible(calibration, steps)
    runs = take_apart(calibration, steps)
    kept = {point.point_id for point in runs.points}
    left_out = {p.point_id: "cannot be predicted" for p in steps if p.point_id not in kept}
    prior = own_prior() if calibration.own is None else calibration.own.prior
    check_prior(prior)
    usual = {name: tuple(dict.fromkeys(_usual(runs, name))) for name in UNKNOWN}
    runs, habits, told = _settings(calibration, runs, prior)
    own = block(runs, calibration.run)
    learned = _with_known(calibration.own, prior, own)
    names = [point.point_id for point in runs.points]
    doubt = learned.doubtful[-len(names) :]
    doubtful = {n: float(p) for n, p in zip(names, doubt, strict=True) if p > 0.5}
    run = replace(
        calibration.run,
        habits={**calibration.run.habits, **habits},
        usual={**calibration.run.usual, **{name: usual[name] for name in habits}},
    )
    made = replace(
        calibration,
        run=run,
        own=learned,
        fitted_points=calibration.fitted_points | kept,
        provenance={
            **calibration.provenance,
            "own_runs": names,
            "own_words": [*words(learned), *told, *aside(doubtful, left_out)],
        },
    )
    return Adapted(made, (*words(learned), *told), doubtful, left_out)


def _with_known(known: Learned | None, prior: Prior, own: Block) -> Learned:
    """What own runs say, together with those that the calibration knows already."""
    if known is None:
        return learn(prior, own.traits, own.residual)
    traits = joined([known.traits, own.traits])
    return learn(prior, traits, np.concatenate([known.residual, own.residual]))


def _configuration(point: Point) -> str:
    """What a run is, in one text: equal for runs of one configuration."""
    request = point.request
    return repr((request.model, request.cluster.name, request.cluster.accelerator.name,
                 request.plan))  # fmt: skip


def contradictions(points: Sequence[Point]) -> Mask:
    """Which runs are the same as another and differ from it by more than `APART`, (N, N)."""
    names = np.array([_configuration(point) for point in points], dtype=object)
    times = np.log([point.measured for point in points])
    apart = np.abs(times[:, None] - times[None, :]) > math.log(APART)
    return np.asarray((names[:, None] == names[None, :]) & apart)


def check_agree(points: Sequence[Point]) -> None:
    """Raise InputError where two runs are the same and their times differ by more than `APART`."""
    for first, second in np.argwhere(contradictions(points)).tolist():
        one, other = points[first], points[second]
        raise InputError(
            f"runs {one.point_id} and {other.point_id} are the same configuration and take "
            f"{one.measured:.4g} s and {other.measured:.4g} s; leave out the one that is "
            "wrong, or state what differs between them"
        )


def check_possible(calibration: Calibration, points: Sequence[Point]) -> None:
    """Raise InputError where a run would do more arithmetic than its accelerators can, or takes so
    long that its time must be in another unit."""
    for point in points:
        request = point.request
        if request.plan.frozen:
            continue  # gradients of few weights: less than conventions count
        try:
            found = predict(request.model, request.cluster, request.plan, calibration)
        except InputError:
            continue
        used = float(found.utilisation("6nd")) * float(found.step_time) / point.measured
        if used > 1.0:
            raise InputError(
                f"run {point.point_id}: a step in {point.measured:.4g} s would use {used:.0%} of "
                f"the peak of {request.cluster.accelerator.name}; check its time, its batch and "
                "its accelerators"
            )
        ratio = point.measured / float(found.step_time)
        if ratio > OTHER_UNIT:
            raise InputError(
                f"run {point.point_id}: a step in {point.measured:.4g} s takes {ratio:.0f} x the "
                "time predicted; check whether its time is in seconds, its batch and its "
                "accelerators"
            )


def _settings(
    calibration: Calibration, runs: Runs, prior: Prior
) -> tuple[Runs, dict[str, Any], list[str]]:
    """Runs with the settings that are likeliest where they are not stated; those settings, and
    what is to be told of them.

    Every setting by itself, with all runs that leave it open alike: by Bayes' rule, other values
    than the default of completion having the probability before that published runs have them.
    """
    habits: dict[str, Any] = {}
    told: list[str] = []
    for field in UNKNOWN:
        choices = _choices(calibration, runs, field)
        if not choices:
            continue
        base = _evidence(calibration, runs, prior)
        rare = otherwise(field)
        scores = {None: base + math.log(1.0 - rare)}
        scores |= {
            value: _evidence(calibration, other, prior) + math.log(rare / len(choices))
            for value, other in choices.items()
        }
        top = max(scores.values())
        total = sum(math.exp(score - top) for score in scores.values())
        value = max(scores, key=lambda key: scores[key])
        chance = math.exp(scores[value] - top) / total
        if value is not None and chance > SHOWN:
            runs, habits[field] = choices[value], value
            told.append(f"your runs are likeliest with {field} {value} ({chance:.0%})")
    return runs, habits, told


def _usual(runs: Runs, field: str) -> Iterator[Any]:
    """What the rules of completion say of a field, of the runs that do not state it."""
    for point in runs.points:
        if any(one.field == field for one in point.request.assumed):
            yield getattr(point.request.plan, field)


def _evidence(calibration: Calibration, runs: Runs, prior: Prior) -> float:
    own = block(runs, calibration.run)
    return learn(prior, own.traits, own.residual).evidence


def _choices(calibration: Calibration, runs: Runs, field: str) -> dict[Any, Runs]:
    """Runs with the other values that a setting may have, where they do not state it."""
    open_ = [
        at
        for at, point in enumerate(runs.points)
        if any(one.field == field for one in point.request.assumed)
    ]
    values: dict[Any, list[Point]] = {}
    for at in open_:
        point = runs.points[at]
        room = float(point.request.cluster.accelerator.memory)
        for value, plan in _with(point.request, field, calibration.run):
            if float(memory(point.request.model, plan, calibration.run).peak) > room:
                continue
            changed = values.setdefault(value, list(runs.points))
            changed[at] = replace(point, request=replace(point.request, plan=plan))
    found: dict[Any, Runs] = {}
    for value, points in values.items():
        try:
            other = take_apart(calibration, points)
        except InputError:
            continue
        if len(other.points) == len(runs.points):
            found[value] = other
    return found


def _with(
    request: TrainingRequest, field: str, run: RunParameters
) -> Iterator[tuple[Any, TrainingPlan]]:
    """A request's plan with the other values of a setting; recomputation of whole layers is of all
    of them."""
    for value, plan in others(request, field, run):
        yield value, replace(plan, recompute_share=1.0) if field == "recompute" else plan
    plan = request.plan
    if field == "recompute" and plan.recompute == "full" and float(plan.recompute_share) < 1.0:
        yield "full", replace(plan, recompute_share=1.0)


TOLD = {
    "contention": "communication that is hidden slows what it hides behind {factor:.2f} x as much",
    "attention": "attention takes {factor:.2f} x the time",
    "between": "your network between nodes gives {inverse:.0%} of the catalog's",
    "recompute": "recomputation takes {factor:.2f} x the time",
    "bubble": "pipeline bubbles take {factor:.2f} x the time",
}
"""What a physical parameter is in words, by its factor."""

SURE = 0.5
"""Runs say something of a parameter where so much of the prior's spread is left at most, or where
its interval is all on one side of what it was."""


LIKELY = 0.5
"""Probability of restless runs from which on that is told."""


def words(learned: Learned) -> list[str]:
    """What runs said, a line each, with intervals of 80 %: of what they say something of."""
    found = []
    prior = learned.prior
    mean, spread = learned.host
    if _says(mean, spread, prior.host):
        found.append(f"host cost {_factor(mean, spread)}")
    means, spreads = learned.slopes()
    for name, mean, spread, before in zip(
        SLOPES, means.tolist(), spreads.tolist(), prior.slopes.values(), strict=True
    ):
        if _says(mean, spread, before):
            text = TOLD[name].format(factor=math.exp(mean), inverse=math.exp(-mean))
            reach = Z80 * spread
            bounds = sorted((math.exp(mean - reach), math.exp(mean + reach)))
            if name == "between":
                bounds = sorted((math.exp(-mean - reach), math.exp(-mean + reach)))
            found.append(f"{text} ({bounds[0]:.2f} to {bounds[1]:.2f})")
    own = np.exp(np.median(learned.residual))
    count = learned.runs
    if waits := int((learned.traits.waited > 0).sum()):
        found.append(
            f"{waits} of your runs waited for processors that others used: that is left out of "
            "their times, and less is learned from them"
        )
    runs = "your run takes" if count == 1 else f"in the middle your {count} runs take"
    if learned.restless > LIKELY:
        found.append(
            "like runs of yours differ by far more than repeats do: what they say of others is "
            "wide, and runs that are alone on the machine would say more"
        )
    return [f"{runs} {own:.2f} x the time predicted without them", *found]


def aside(doubtful: Mapping[str, float], left_out: Mapping[str, str]) -> list[str]:
    """Runs that say little or nothing, a line each, and why (`Adapted`)."""
    return [
        *(
            f"run {run} is mostly left aside: an outlier with a probability of {chance:.0%}"
            for run, chance in doubtful.items()
        ),
        *(f"left out run {run}: {reason}" for run, reason in left_out.items()),
    ]


def _says(mean: float, spread: float, before: float) -> bool:
    """Whether runs say something of a parameter."""
    return spread < SURE * before or abs(mean) > Z80 * spread


def _factor(mean: float, spread: float) -> str:
    low, high = (math.exp(mean + sign * Z80 * spread) for sign in (-1.0, 1.0))
    return f"{math.exp(mean):.1f} x ({low:.1f} to {high:.1f})"


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A run that is worth measuring: its name, and the mean spread (log) of the plans cared about
    before and after."""

    name: str
    before: float
    after: float


def suggest(
    learned: Learned | None,
    prior: Prior,
    traits: Traits,
    names: Sequence[str],
    most: int = 3,
    cared: Traits | None = None,
) -> list[Suggestion]:
    """Which of some plans to measure so that those that one cares about are known best, one after
    the other.

    traits   of the plans that may be measured, with their names
    cared    of the plans cared about; those themselves if None

    Greedy by the mean variance that is left (Krause, Singh and Guestrin 2008).
    """
    count = len(names)
    whole = traits if cared is None else joined([traits, cared])
    of = slice(0 if cared is None else count, None)
    covariance, noise = _open(learned, prior, whole)
    found: list[Suggestion] = []
    taken: list[int] = []
    for _ in range(min(most, count)):
        variance = np.maximum(np.diag(covariance), 1e-12)
        gain = (covariance[of, :count] ** 2).sum(0) / (variance + noise)[:count]
        gain[taken] = -1.0
        best = int(np.argmax(gain))
        before = float(np.sqrt(np.mean(variance[of])))
        column = covariance[:, best]
        covariance = covariance - np.outer(column, column) / (variance[best] + noise[best])
        after = float(np.sqrt(np.mean(np.maximum(np.diag(covariance)[of], 0.0))))
        found.append(Suggestion(names[best], before, after))
        taken.append(best)
    return found


def _open(learned: Learned | None, prior: Prior, traits: Traits) -> tuple[Array, Array]:
    """Covariance of what is open of plans, with the host's cost as a slope, and the variance that
    each has by itself."""
    centre = len(HOSTS) // 2
    width = HOSTS[centre + 1] - HOSTS[centre - 1]

    def slope(known: Traits) -> Array:
        return np.asarray((known.host[:, centre + 1] - known.host[:, centre - 1]) / width)

    def joint(one: Traits, other: Traits) -> Array:
        return shared(one, other, prior) + prior.host**2 * np.outer(slope(one), slope(other))

    covariance, noise = joint(traits, traits), alone(traits, prior)
    if learned is not None:
        known = learned.traits
        own = joint(known, known) + np.diag(alone(known, prior))
        across = joint(traits, known)
        covariance = covariance - across @ np.linalg.solve(own, across.T)
    return covariance, noise

"""Levels: how much slower steps are with a framework than their parts say, by source and family."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from calibration.runs.apart import Mask, Runs, errors
from predictor import catalog
from predictor.arrays import Array
from predictor.plans import LOOPS
from predictor.timing import RunParameters
from predictor.training import ANY

LEVEL_REACH = 0.05
"""Distance of a source from its level beyond which it counts less."""

FAMILY_PRIOR, FRAMEWORK_PRIOR = 0.3, 30.0
"""Sources that the level above counts for. That of frameworks is high:
sources of one framework differ among themselves as much as frameworks of one family do. That of
families was chosen with sources, accelerators and architectures left out in turn (0.3 to 1 differ
by a point of the mean error at most)."""

MOST_LEVEL, TURNS, LEAST_SLOPE, EVEN = 1.2, 5, 0.2, 1e-9
"""Log of a factor beyond which nothing is believed; how often it is sought; share of a step that it
stretches at the least; a step that is none."""

FEW_ROWS = 5.0
"""A source of so many rows counts half."""


def families() -> Mapping[str, str]:
    """Family of each framework, or of one in a year, from `data/defaults/run.yaml`."""
    table = catalog.read_mapping(catalog.data_dir() / "defaults" / "run.yaml")["families"]
    return {name: family for family, found in table.items() for name in found["frameworks"]}


def robust_mean(values: Array, weights: Array) -> float:
    """Mean in which values beyond `LEVEL_REACH` count less (Huber 1964)."""
    return anchored_mean(values, weights, float(np.median(values)), 0.0)


def anchored_mean(values: Array, weights: Array, above: float, prior: float) -> float:
    """Mean in which the level above counts as `prior` sources, and values beyond `LEVEL_REACH` of
    it count less: a family of one source far off, as a disturbed machine is, is believed little."""
    middle = above
    for _ in range(50):
        own = weights / np.maximum(1.0, np.abs(values - middle) / LEVEL_REACH)
        middle = float((own @ values + prior * above) / (own.sum() + prior))
    return middle


def own_levels(runs: Runs, run: RunParameters, masks: Sequence[Mask]) -> Array:
    """Log of the factor at which the median error of some runs is none, for every set of them.

    A factor does not stretch all of a step (`training.software.alone`): the root is sought by
    secants, as far as `MOST_LEVEL`.
    """
    own = np.zeros(len(runs.points))
    value: Array = np.zeros(len(masks))
    slope: Array = np.ones(len(masks))
    middle: Array = np.zeros(len(masks))
    step: Array = np.zeros(len(masks))
    for _ in range(TURNS):
        error, before = errors(runs, run, np.exp(own)), middle
        middle = np.array([np.median(error[mask]) for mask in masks])
        found = np.divide(middle - before, step, out=slope, where=np.abs(step) > EVEN)
        slope = np.clip(found, LEAST_SLOPE, 1.0)
        step = np.clip(value - middle / slope, -MOST_LEVEL, MOST_LEVEL) - value
        value = value + step
        for mask, one in zip(masks, value, strict=True):
            own[mask] = one
    return value


def fit_levels(runs: Runs, run: RunParameters) -> RunParameters:
    """Factors of frameworks in general, of families and of frameworks, from runs of several ranks
    and those of one that have the level of others (`training.environment_of`).

    Every source counts once whatever its rows, those with few less; one that ran several
    frameworks is divided among them by its rows.
    """
    family_of = families()
    names = {*family_of, *runs.framework.tolist(), ANY}
    keep = {k: v for k, v in run.factors.items() if k.split("/")[0] not in names}
    bare = replace(run, factors=keep)
    dated = zip(runs.framework.tolist(), runs.era.tolist(), strict=True)
    named = np.array([own if (own := f"{f}/{era[:4]}") in family_of else f for f, era in dated])
    counted = np.array([f not in LOOPS for f in runs.framework]) | ~runs.lone
    pairs = sorted(set(zip(runs.source[counted].tolist(), named[counted].tolist(), strict=True)))
    masks = [counted & (runs.source == s) & (named == f) for s, f in pairs]
    value = own_levels(runs, bare, masks)
    count = np.array([mask.sum() for mask in masks], float)
    size = np.array([(counted & (runs.source == s)).sum() for s, _ in pairs], float)
    weight = count / (size + FEW_ROWS)
    framework = np.array([f for _, f in pairs])
    family = np.array([family_of.get(f, ANY) for f in framework])
    general = robust_mean(value, weight)

    def shrunk(own: Mask, above: float, prior: float) -> float:
        return anchored_mean(value[own], weight[own], above, prior)

    level = {name: shrunk(family == name, general, FAMILY_PRIOR) for name in family_of.values()}
    factors = {ANY: general}
    for name in sorted({*family_of, *framework.tolist()}):
        above = level.get(family_of.get(name, ANY), general)
        factors[name] = shrunk(framework == name, above, FRAMEWORK_PRIOR)
    return replace(
        run, factors={**keep, **{k: float(f"{np.exp(v):.6g}") for k, v in factors.items()}}
    )

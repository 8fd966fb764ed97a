"""What two of a machine's own training steps add to a profile of it.

    python -m tools.own_steps PROFILE...

Kernels and collectives of a profile (`reckon profile`) are fitted, its training steps are not. Two
of these are then learned from, and the others predicted: the mean over all pairs. Times are less
what threads waited for processors that others used.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from scipy.optimize import minimize_scalar

from calibration.checks.few_shot import Drawn, shot
from calibration.runs.apart import take_apart
from calibration.runs.fit import read_points
from calibration.runs.prior import Block, block
from predictor.catalog import own_prior
from predictor.errors import InputError
from predictor.timing import Calibration, Prior, learn

KNOWN = 2
"""Own steps that are learned from."""


@dataclass(frozen=True, slots=True)
class Added:
    """Mean absolute error of the steps of a profile by the profile alone, and with `KNOWN` of them
    learned from; share of draws in which that is better; how many draws there are."""

    alone: float
    with_own: float
    better: float
    draws: int


def steps_of(profile: Path, calibration: Calibration) -> Block:
    """The training steps of a profile beside what its kernels say of them.

    calibration   fitted to the profile's kernels

    Raises InputError where the profile has fewer than two steps more than are learned from.
    """
    runs = take_apart(calibration, read_points([profile / "steps.csv"], calibration.run))
    count = len(runs.points)
    if count < KNOWN + 2:
        raise InputError(f"{profile}: {count} training steps; profile with a larger --budget")
    return block(runs, calibration.run, profile.name)


def added(steps: Block, prior: Prior | None = None) -> Added:
    """What its own steps add to a profile.

    steps   of the profile (`steps_of`)
    prior   with which they are read; the one that ships if None
    """
    own = Drawn(steps.source, steps, own_prior() if prior is None else prior)
    residual, count = steps.residual, len(steps.residual)
    scores = []
    for pair in itertools.combinations(range(count), KNOWN):
        chosen = np.array(pair, dtype=np.intp)
        alone = float(np.mean(np.abs(np.expm1(-np.delete(residual, chosen)))))
        scores.append((alone, shot(own, KNOWN, 0, chosen).error))
    before, after = np.array(scores).T
    return Added(
        float(before.mean()), float(after.mean()), float(np.mean(after < before)), len(scores)
    )


def likeliest(many: Sequence[Block], prior: Prior) -> Prior:
    """A prior with the spread of disturbed runs (`strayed`) that makes the steps of profiles
    likeliest."""

    def of(logarithm: float) -> Prior:
        return replace(prior, strayed=float(np.exp(logarithm)))

    def cost(logarithm: float) -> float:
        return -sum(learn(of(logarithm), one.traits, one.residual).evidence for one in many)

    return of(minimize_scalar(cost, bounds=(np.log(0.01), 0.0), method="bounded").x)


def line(name: str, found: Added) -> str:
    """The figures in words."""
    return (
        f"{name}: steps by the profile alone {found.alone:.1%}, with {KNOWN} of them known "
        f"{found.with_own:.1%}; better in {found.better:.0%} of {found.draws} draws"
    )

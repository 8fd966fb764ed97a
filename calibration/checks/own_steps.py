"""What two of a machine's own training steps add to a profile of it.

    python -m tools.own_steps PROFILE...

Kernels and collectives of a profile (`reckon profile`) are fitted, its training steps are not. Two
of these are then learned from, and the others predicted: the mean over all pairs.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from calibration.checks.few_shot import Drawn, shot
from calibration.runs.apart import take_apart
from calibration.runs.fit import read_points
from calibration.runs.prior import block
from predictor.catalog import own_prior
from predictor.errors import InputError
from predictor.timing import Calibration

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


def added(profile: Path, calibration: Calibration) -> Added:
    """What its own steps add to a profile.

    calibration   fitted to the profile's kernels

    Raises InputError where the profile has fewer than two steps more than are learned from.
    """
    runs = take_apart(calibration, read_points([profile / "steps.csv"], calibration.run))
    count = len(runs.points)
    if count < KNOWN + 2:
        raise InputError(f"{profile}: {count} training steps; profile with a larger --budget")
    own = Drawn(str(profile), block(runs, calibration.run), own_prior())
    residual = own.block.residual
    scores = []
    for pair in itertools.combinations(range(count), KNOWN):
        chosen = np.array(pair, dtype=np.intp)
        alone = float(np.mean(np.abs(np.expm1(-np.delete(residual, chosen)))))
        scores.append((alone, shot(own, KNOWN, 0, chosen).error))
    before, after = np.array(scores).T
    return Added(
        float(before.mean()), float(after.mean()), float(np.mean(after < before)), len(scores)
    )


def line(name: str, found: Added) -> str:
    """The figures in words."""
    return (
        f"{name}: steps by the profile alone {found.alone:.1%}, with {KNOWN} of them known "
        f"{found.with_own:.1%}; better in {found.better:.0%} of {found.draws} draws"
    )

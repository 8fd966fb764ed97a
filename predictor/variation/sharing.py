"""Jobs that share a network: what a second job's traffic on the same links costs a step.

While both send, each gets its max-min fair share of the links that both cross
(`links.fair_shares`); once one has done, the other has all. Jobs are not in step, so how often they
meet depends on how long each sends of its own step: worst where both begin at once, on average
where their phases are drawn evenly.
"""

from __future__ import annotations

import numpy as np

from predictor.arrays import Array, Numeric
from predictor.errors import InputError
from predictor.records import dataclass
from predictor.variation.links import fair_shares


def kept_of(others: float, oversubscribed: float) -> float:
    """Share of its own rate that a job keeps while it and so many others like it all send over a
    spine that carries their rates together over `oversubscribed`, and one job's at least."""
    jobs = others + 1.0
    spine = max(jobs / oversubscribed, 1.0)
    flows = np.hstack([np.eye(int(jobs)), np.ones((int(jobs), 1))])
    return float(fair_shares(np.concatenate([np.ones(int(jobs)), [spine]]), flows)[0])


@dataclass(frozen=True, slots=True, eq=False)
class Shared:
    """What a phase of traffic waits for another job, per step [s]; arrays of one shape."""

    worst: Array
    average: Array


def shared(
    own: Numeric, other: Numeric, period: Numeric, share: Numeric, left: Numeric = np.nan
) -> Shared:
    """What sending together costs one job.

    own, other   for which the job, and the other one, send in a step, each alone [s]
    period       step of the other job [s]
    share        of its own rate that the job keeps while both send, above 0 to 1
    left         the same of the other job; NaN: as much

    Begun at once, both are served at their shares until one is done: the job's own where
    own / share <= other / left, which then takes own / share, else it has lost (1 - share) of the
    time other / left. Of evenly drawn phases, the other sends for other / left of every period, and
    each second of the job's that meets it is 1 / share long: own (1 / share - 1) other / period,
    never more than the worst.
    """
    kept = np.where(np.isnan(left), share, left)
    if np.any(np.asarray(share) <= 0) or np.any(np.asarray(share) > 1) or np.any(kept <= 0):
        raise InputError("the share of a link that a job keeps is above 0 and at most 1")
    if np.any(np.asarray(other) > np.asarray(period)):
        raise InputError("a job sends no longer than its step lasts")
    together = np.minimum(np.asarray(own) / share, np.asarray(other) / kept)
    worst = (1.0 - np.asarray(share)) * together
    duty = np.asarray(other) / np.asarray(period)
    average = np.minimum(np.asarray(own) * (1.0 / np.asarray(share) - 1.0) * duty, worst)
    return Shared(np.asarray(worst), np.asarray(average))

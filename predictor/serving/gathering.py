"""First tokens where requests arrive at random: the pass that one meets, and those it waits for.

An engine makes passes one after the other. One without a prompt takes `step`, one over n prompts
`first` + (n - 1) `each`: passes that decode with prompts beside, or passes of their own. Prompts
gather while a pass runs and are read in a later one. A request meets a pass as often as this is
long, anywhere in it (arrivals at random see time averages, Wolff 1982), and waits for its rest, for
the next one where that is prepared already, and for its own, with all that came in the one it met.
Of the requests exp(-others) meet an idle engine, the number of those that run being Poisson's.
"""

from __future__ import annotations

import numpy as np

from predictor.arrays import Array
from predictor.records import dataclass
from predictor.serving.latency import looks
from predictor.serving.meeting import with_prompts
from predictor.serving.pass_times import Work, decode_time, prompt_time
from predictor.serving.prompts import beside, full_share, single_passes
from predictor.timing import EngineParameters

MOST = 6
"""Prompts of a pass that are told apart; more are taken together."""

ROUNDS = 12
"""Of the fixed point between how long passes are and how many prompts gather in them, half of the
way each."""

HALVES = 22
"""Bisections of the time that a share of the requests does not exceed: to a millionth."""

FULLEST = 0.98
"""Share of the time at most in which prompts add to passes: beyond it queues grow without end."""


@dataclass(frozen=True, slots=True, eq=False)
class PassLengths:
    """Wall times of passes [s]: without a prompt, with one, what every other one adds; and of one
    over a prompt by itself, through all stages, where nothing else runs."""

    step: Array
    first: Array
    each: Array
    alone: Array


def pass_lengths(work: Work, own: EngineParameters) -> PassLengths:
    """Of an engine that reads its own prompts."""
    step, apart = decode_time(work, own), np.asarray(work.apart) > 0
    alone = prompt_time(work, own, single=True)
    first = np.where(apart, alone, single_passes(work) * step + beside(work, own))
    each = np.where(apart, np.minimum(full_share(work, own), alone), full_share(work, own))
    each = np.where(apart, each, own.mixing * each)
    return PassLengths(*np.broadcast_arrays(step, first, each, alone))


def gathered(rate: Array, of: PassLengths) -> tuple[Array, Array, Array]:
    """Share of the passes that have prompts, prompts of a pass on average, and its mean length [s].

    rate   at which requests arrive [1/s]
    """
    some = -np.expm1(-rate * of.step)
    busy = np.minimum(rate * of.each, FULLEST)
    for _ in range(ROUNDS):
        # All passes' length is that of those without prompts, of first ones, and of the others.
        mean = (of.step + some * (of.first - of.each - of.step)) / (1.0 - busy)
        prompts = np.maximum(rate * mean, 1e-12)
        more = np.maximum(prompts / np.maximum(some, 1e-12) - 1.0, 0.0)
        told = with_prompts(rate, of.step, of.first, of.each, more)
        some = np.clip(0.5 * (some + told), 1e-12, prompts)
    return some, prompts, mean


def numbers(some: Array, prompts: Array) -> tuple[Array, Array]:
    """Prompts of a pass, and the share of the passes that have so many, (..., MOST + 1): none, one,
    two, ...; the last is the mean of all that have as many or more. Geometric, beyond the first.

    some     share of the passes that have prompts
    prompts  of a pass on average
    """
    more = np.clip(1.0 - some / prompts, 0.0, 0.999)[..., None]
    count = np.arange(MOST + 1.0) * np.ones_like(more)
    chance = some[..., None] * (1.0 - more) * more ** np.maximum(count - 1.0, 0.0)
    chance[..., 0] = 1.0 - some
    chance[..., -1] = some * more[..., 0] ** (MOST - 1)
    count[..., -1] = MOST - 1.0 + 1.0 / (1.0 - more[..., 0])
    return count, chance


def first_token_quantile(
    work: Work, own: EngineParameters, rate: Array, others: Array, share: float
) -> Array:
    """Time to first token that a share of the requests does not exceed [s].

    rate     at which they arrive [1/s]
    others   that run when one arrives, on average
    """
    of = pass_lengths(work, own)
    some, prompts, mean = gathered(rate, of)
    count, chance = numbers(some, prompts)
    first, each = of.first[..., None], of.each[..., None]
    length = np.where(count > 0, first + (count - 1.0) * each, of.step[..., None])
    length = np.maximum(length, 1e-12)
    met = chance * length
    met = (met / met.sum(axis=-1, keepdims=True))[..., :, None]
    mine = (first + rate[..., None] * length * each)[..., :, None]
    ahead = np.asarray(np.broadcast_to(work.overlapped, rate.shape))[..., None, None] > 0
    after = mine + np.where(ahead, length[..., None, :], 0.0)
    whole = length[..., :, None]
    weight = met * np.where(ahead, chance[..., None, :], 1.0 / (MOST + 1.0))
    idle = np.exp(-others)
    low, high = np.zeros_like(mean), (after + whole).max(axis=(-2, -1))
    for _ in range(HALVES):
        time = 0.5 * (low + high)
        over = np.clip((time[..., None, None] - after) / whole, 0.0, 1.0)
        reached = idle * (time >= of.alone) + (1.0 - idle) * np.sum(weight * over, axis=(-2, -1))
        low, high = np.where(reached < share, time, low), np.where(reached < share, high, time)
    after_first = np.maximum(np.asarray(work.output_len) - 1.0, 0.0) / work.per_pass
    waits = share * (looks(work, after_first) - 1.0) * mean + work.answered * of.step
    return np.asarray(high + waits + work.launching * np.asarray(own.request))

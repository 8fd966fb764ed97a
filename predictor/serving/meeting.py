"""Which passes have prompts: of one engine at which they arrive at random, and of replicas of the
attention that make their passes together, since they share experts, so that every one waits for the
one that reads most, or computes as much padding."""

from __future__ import annotations

import numpy as np

from predictor.arrays import Array, Mask, Numeric
from predictor.plans import ServingPlan
from predictor.records import dataclass

COUNTED = 24
"""Prompts of a replica in a pass up to which their number's distribution is added up."""


def replicas_met(plan: ServingPlan, mixture: Mask | bool) -> Array:
    """Attention replicas whose passes are as long as the longest of them: those of a mixture, whose
    experts all ranks of a stage divide, each among some of them or whole (`ServingPlan.etp`)."""
    meets = np.asarray(mixture) & (plan.replica_passes != "apart")
    return np.asarray(np.where(meets, np.maximum(plan.dp, 1.0), 1.0))


def met(each: Array, replicas: Array, room: Array) -> tuple[Array, Array]:
    """Share of the passes in which any of the replicas reads a prompt, and the prompts of the one
    that reads most. Their numbers are Poisson's, no more than a pass has room for.

    each      prompts of a replica for every pass
    replicas  that make their passes together
    room      prompts that a pass has room for, 1 or more
    """
    below, term, most = np.zeros_like(each), np.exp(-each), np.zeros_like(each)
    some = 1.0 - term**replicas
    for number in range(COUNTED):
        below = below + term
        most = most + np.where(number < room, 1.0 - np.minimum(below, 1.0) ** replicas, 0.0)
        term = term * each / (number + 1.0)
    return np.asarray(some), np.asarray(np.maximum(most, np.minimum(each, room)))


def under_way(each: Array, replicas: Array) -> Array:
    """Share of the passes in which any of the replicas has a prompt under way that takes several.

    each      prompts that a replica has under way, on average; it reads one at a time
    replicas  that make their passes together
    """
    return np.asarray(1.0 - (1.0 - np.minimum(each, 1.0)) ** replicas)


ROUNDS, PART = 24, 0.5
"""Of the fixed point between how long passes are and how many prompts come meanwhile, and the part
of the way that each goes."""


@dataclass(frozen=True, slots=True, eq=False)
class Together:
    """Passes of replicas that wait for each other, on average.

    length    of a pass [s]; `longer` [s²/s²]: mean square over the square of the mean
    interval  between two tokens of a sequence [s]
    some      share of the passes in which any of them reads
    """

    length: Array
    longer: Array
    interval: Array
    some: Array


def _numbers(each: Array, room: Array, replicas: Array) -> tuple[Array, Array, Array]:
    """Share of the passes in which any replica reads, prompts of the one that reads most, and share
    of the passes in which a replica reads, of Poisson's numbers of a mean `each`."""
    return *met(each, replicas, room), -np.expm1(-each)


def _at_random(
    rate: Array, step: Array, after: Array, room: Array, replicas: Array
) -> tuple[Array, Array, Array]:
    """The same of prompts that arrive at a rate while the pass before lasts, which has some or none
    and so is `after` or `step` long."""
    before, behind = (_numbers(rate * time, room, replicas) for time in (step, after))
    some = before[0] / np.maximum(before[0] + 1.0 - behind[0], 1e-12)
    most, reads = (
        (1.0 - some) * few + some * many for few, many in zip(before[1:], behind[1:], strict=True)
    )
    return some, most, reads


def together(
    each: Array,
    step: Array,
    first: Array,
    share: Array,
    passes: Array,
    room: Array,
    replicas: Array,
    divided: Numeric,
    apart: Mask,
    random: Mask,
) -> Together:
    """Passes of replicas in a steady state, each of which reads `each` prompts for every token of a
    sequence.

    step      a pass that decodes and nothing else [s]
    first     what the first prompt adds to a pass, or a part of one that takes several [s]
    share     what every other prompt of a pass adds [s]
    passes    over a prompt; `room`: prompts that a pass has room for, 1 or more
    divided   share of what prompts add that the replicas do together, each its part of what all
              of them read; the rest is that of the one that reads most
    apart     where a replica that reads does not decode, which the others do meanwhile
    random    where prompts arrive at random, more of them the longer a pass is

    A pass is `step`, what the longest of the rest takes, and the replicas' mean of what is divided.
    Where prompts have passes of their own a sequence gets a token in those passes in which its
    replica does not read: of x prompts for each of these, x (1 - reading) for each pass.
    """
    single = (passes > 1) | (room < 2)
    length, after = np.asarray(step + each * share), np.asarray(step + first)
    reading = np.zeros_like(length)
    for turn in range(ROUNDS):
        part = PART if turn + 1 < ROUNDS else 1.0
        mine = np.where(apart, each * (1.0 - reading), each)
        some, most, reads = _numbers(mine, room, replicas)
        if np.any(random):
            rate = mine / np.maximum(length, 1e-12)
            told = _at_random(rate, step, after, room, replicas)
            some, most, reads = np.where(random, told, (some, most, reads))
        # One part after the other: a replica reads in as many passes as it has parts of prompts.
        busy = np.minimum(mine * passes, 1.0)
        parts = under_way(busy, replicas)
        some, most = np.where(single, parts, some), np.where(single, parts, most)
        reads = np.where(single, busy, np.minimum(reads, mine))
        longest = some * first + np.maximum(most - some, 0.0) * share
        mean = reads * first + np.where(single, 0.0, np.maximum(mine - reads, 0.0) * share)
        beyond = (1.0 - np.asarray(divided)) * longest
        # Those that decode meanwhile take as long in any case.
        beyond = np.where(apart, np.maximum(beyond - some * step, 0.0), beyond)
        added = beyond + np.asarray(divided) * mean
        length = length + part * (step + added - length)
        after = after + part * (step + added / np.maximum(some, 1e-9) - after)
        reading = reading + part * (np.minimum(reads, 1.0 - 1e-6) - reading)
    square = (1.0 - some) * step**2 + some * after**2
    return Together(
        length=np.asarray(length),
        longer=np.asarray(np.maximum(square / np.maximum(length**2, 1e-18), 1.0)),
        interval=np.asarray(length / np.where(apart, 1.0 - reading, 1.0)),
        some=np.asarray(some),
    )


def with_prompts(
    rate: Array, step: Array, one: Array, share: Numeric = 0.0, more: Numeric = 0.0
) -> Array:
    """Share of the passes that have prompts, which arrive at random and gather during the pass
    before: one of s without any is followed by one in a = 1 - exp(-r s), and one with k + 1 of them
    by one without in exp(-r (l + k e)) of all cases. With k geometric of mean m these are c =
    exp(-r l) / (1 + m (1 - exp(-r e))), so that a / (c + a) of the passes have some.

    rate         of arrivals [1/s]
    step, one    passes without prompts, and with one [s]
    share, more  what every other prompt adds [s], and how many others such a pass has on average
    """
    some = -np.expm1(-rate * step)
    none = np.exp(-rate * one) / (1.0 + np.asarray(more) * -np.expm1(-rate * share))
    return np.asarray(some / (none + some))

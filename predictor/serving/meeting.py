"""Which passes have prompts: of one engine at which they arrive at random, and of replicas of the
attention that make their passes together, since they share experts, so that every one waits for the
one that reads most, or computes as much padding."""

from __future__ import annotations

import numpy as np

from predictor.arrays import Array, Numeric

COUNTED = 24
"""Prompts of a replica in a pass up to which their number's distribution is added up."""


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

"""Replicas of the attention that make their passes together, since they share experts: every one
waits for the one that reads most prompts, or computes as much padding."""

from __future__ import annotations

import numpy as np

from predictor.arrays import Array

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

"""First tokens of a static batch whose clients send one after the other.

A bench client that starts a thread for each request does not hand a batch over: the engine begins
with the request that is there, takes up together what came while it read that, and so on.
"""

from __future__ import annotations

import numpy as np

from predictor.arrays import Array, Numeric
from predictor.serving.pass_times import Work


def spaced(work: Work, read: Numeric, step: Numeric) -> Array:
    """Mean time between sending a request and the end of the passes that read it [s], with that of
    making the batch's session.

    read   passes over all `together` prompts of the batch [s], which micro-batches go through one
           after the other
    step   a pass that decodes, which every reading of prompts ends with where it gives the first
           token (`answered`); the last of these is not part of what comes out [s]
    """
    spacing, read = np.asarray(work.spacing, float), np.asarray(read) * (1.0 + work.fill)
    if not np.any(spacing > 0.0):
        return np.asarray(read + work.making)
    many, answer = np.asarray(work.together, float), np.asarray(work.answered) * step
    each, gap = read / many, np.maximum(spacing, 1e-9)
    time, taken, waited = (np.zeros(np.broadcast(many, each, gap).shape) for _ in range(3))
    while np.any(taken < many):
        # Nobody there: the next one's coming is waited for.
        time = np.maximum(time, np.minimum(taken, many - 1.0) * gap)
        there = np.minimum(np.floor(time / gap * (1.0 + 1e-9)) + 1.0, many)
        new = there - taken
        time = time + np.where(new > 0.0, new * each + answer, 0.0)
        sent = gap * (taken + 0.5 * (new - 1.0))
        waited, taken = waited + new * (time - sent), there
    return np.asarray(np.where(spacing > 0.0, waited / many - answer, read) + work.making)

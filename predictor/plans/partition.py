"""Layers dealt to the stages of a pipeline so that the slowest stage is as fast as may be.

The linear partition problem with unlike stages, by dynamic programming over the layers that the
first stages have taken: exact (Pinar and Aykanat 2004, "Fast optimal load balancing algorithms for
1D partitioning", section 2).
"""

from __future__ import annotations

import math
from collections.abc import Callable

from predictor.errors import InputError

Cost = Callable[[int, int, int], float]
"""(stage, first layer, layer after the last) -> time of the stage with these, inf where it does not
hold them; no less with more layers."""


def partition(cost: Cost, layers: int, stages: int) -> list[int]:
    """How many layers each stage takes, at least one, so that the largest cost is the least; of
    deals that are as good, one in which each stage has as little to do as those before it allow.

    Raises InputError where there are fewer layers than stages, or where no stages hold them all.
    """
    if layers < stages:
        raise InputError(f"{layers} layers are fewer than the {stages} stages that share them")
    best = [0.0] + [math.inf] * layers
    begins: list[list[int]] = []
    for stage in range(stages):
        reached, begin = [math.inf] * (layers + 1), [0] * (layers + 1)
        # Stages before and behind have a layer each at least.
        for end in range(stage + 1, layers - (stages - 1 - stage) + 1):
            for start in range(end - 1, stage - 1, -1):
                own = cost(stage, start, end)
                slowest = max(best[start], own)
                if slowest < reached[end]:
                    reached[end], begin[end] = slowest, start
                if own >= reached[end]:  # with more layers it takes no less
                    break
        best = reached
        begins.append(begin)
    if math.isinf(best[layers]):
        raise InputError("the stages do not hold the model however its layers are dealt")
    counts, end = [], layers
    for begin in reversed(begins):
        counts.append(end - begin[end])
        end = begin[end]
    return counts[::-1]

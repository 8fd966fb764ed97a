"""A plan of the user's held against the winner of a search."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from predictor.catalog import TrainingPlanSpec, parse
from predictor.records import dataclass
from predictor.search import (
    OBJECTIVES,
    Ratio,
    SearchResult,
    brief,
    differences,
    mapping,
    ratio,
    timed,
    timed_again,
)
from predictor.training import complete_training, predict, vary
from predictor.variation import LEVELS, NONE

P95 = LEVELS[1]


@dataclass(frozen=True, slots=True)
class Own:
    """A plan of the user's against the winner.

    slower   step time over the winner's
    rank     plans that were timed and are faster, plus one
    spends   (term, seconds more than the winner), largest first
    fits     whether its peak memory is within the limit
    """

    plan: dict[str, Any]
    label: str
    step_time: float
    memory: float
    fits: bool
    slower: Ratio
    rank: int
    spends: list[tuple[str, float]]


def hold_against(
    result: SearchResult, stated: Mapping[str, Any], compare: Mapping[str, Any]
) -> Own:
    """Hold a plan of the user's against the winner; what it leaves open is taken from the request
    where that states one value, else completed as `predict train` does."""
    single = {
        name: value
        for name, value in stated.items()
        if not isinstance(value, list | tuple) and ".." not in str(value) and "," not in str(value)
    }
    spec = parse(TrainingPlanSpec, {**single, **compare}, "--compare")
    request = complete_training(
        spec, result.calibration.run, model=result.model, cluster=result.cluster
    )
    whole = predict(result.model, result.cluster, request.plan, result.calibration)
    (mine,) = timed(result.model, result.cluster, request.plan, result.calibration)
    (best,) = timed_again(result, [0])
    weight = float(np.asarray(request.plan.gpus)) ** OBJECTIVES[result.objective]
    ranked = mine.step_time
    if result.machines.name != NONE:
        ranked = float(vary(whole, result.machines).quantile(P95))
    score = ranked * weight
    limit = result.limits.memory_fraction * float(result.cluster.accelerator.memory)
    return Own(
        plan=mapping(request.plan),
        label=brief(request.plan),
        step_time=mine.step_time,
        memory=float(whole.memory.peak),
        fits=float(whole.memory.peak) <= limit,
        slower=ratio(mine, best, result.calibration, weight / result.weight(0)),
        rank=int(np.sum(result.score < score * (1 - 1e-12))) + 1,
        spends=differences(mine, best),
    )

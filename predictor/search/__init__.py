"""Spaces of plans, what is feasible, ranking with ties, fronts."""

from predictor.search.bounds import Within
from predictor.search.comparison import (
    Alternative,
    Ratio,
    Timed,
    alternatives,
    differences,
    over_best,
    ratio,
    ties,
    timed,
    timed_again,
)
from predictor.search.fleet_space import FIELDS
from predictor.search.fleets import (
    EngineOffer,
    Engines,
    accelerators,
    curve,
    engine_brief,
    interruption,
    replicas,
    search_engines,
)
from predictor.search.layouts import Progress, search_train
from predictor.search.post_training import Iteration, Rollouts, iterations
from predictor.search.ranking import (
    OBJECTIVES,
    Limits,
    SearchResult,
    brief,
    mapping,
    single,
)
from predictor.search.space import space_of

__all__ = [
    "FIELDS",
    "OBJECTIVES",
    "Alternative",
    "EngineOffer",
    "Engines",
    "Iteration",
    "Limits",
    "Progress",
    "Ratio",
    "Rollouts",
    "SearchResult",
    "Timed",
    "Within",
    "accelerators",
    "alternatives",
    "brief",
    "curve",
    "differences",
    "engine_brief",
    "interruption",
    "iterations",
    "mapping",
    "over_best",
    "ratio",
    "replicas",
    "search_engines",
    "search_train",
    "single",
    "space_of",
    "ties",
    "timed",
    "timed_again",
]

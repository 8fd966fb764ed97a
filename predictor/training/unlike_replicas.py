"""Replicas on different accelerators: each is that of its own accelerators, and takes micro-batches
until all end together (Ryabinin et al. 2023, SWARM, section 3.2, and Tang et al. 2023, FusionAI,
deal work to unlike machines by speed).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from predictor.arrays import Array
from predictor.errors import InputError
from predictor.hardware import Cluster
from predictor.models import Model
from predictor.plans import TrainingPlan
from predictor.timing import Calibration
from predictor.training.dealt import Dealt, Share, named, told
from predictor.training.prediction import TrainingPrediction, predict
from predictor.training.unlike import Kinds


def by_replica(
    model: Model,
    kinds: Kinds,
    plan: TrainingPlan,
    calibration: Calibration,
    far: Cluster | None = None,
) -> tuple[TrainingPrediction, Dealt]:
    """Predict a plan whose replicas are on several systems, `plan.dp` in all.

    far   the system over whose links gradients are reduced; None: each system's own

    All reduce their gradients as fast as the slowest network of them does, and end together.
    """
    whole = round(float(plan.global_batch / plan.micro_batch))
    replicas = int(plan.dp)
    if whole < replicas:
        raise InputError(f"{whole} micro-batches are fewer than the {replicas} replicas")
    counts = np.arange(1.0, whole - replicas + 2.0)
    wide = replace(plan, global_batch=counts * plan.dp * plan.micro_batch)
    found = [predict(model, cluster, wide, calibration) for cluster, _ in kinds]
    ends = [f.breakdown["dp_communication"] + f.breakdown["optimizer"] for f in found]
    own = [np.asarray(f.step_time - e) for f, e in zip(found, ends, strict=True)]
    reduced = found if far is None else [predict(model, far, wide, calibration)]
    ends = [f.breakdown["dp_communication"] + f.breakdown["optimizer"] for f in reduced]
    many = [count for _, count in kinds]
    dealt = _dealt(own, many, whole)
    even = np.ceil(whole / replicas)

    def step(each: Sequence[float]) -> float:
        pace = max(float(own[k][int(n) - 1]) for k, n in enumerate(each))
        return pace + max(float(end.max()) for end in ends)

    slowest = max(range(len(kinds)), key=lambda k: float(own[k][dealt[k] - 1]))
    at = int(dealt[slowest]) - 1
    base = predict(model, kinds[slowest][0], plan, calibration)
    terms = {name: float(value[at]) for name, value in found[slowest].breakdown.items()}
    longest = max(range(len(ends)), key=lambda k: float(ends[k].max()))
    for name in ("dp_communication", "optimizer"):
        terms[name] = float(reduced[longest].breakdown[name].max())
    capacity = [float(np.asarray(one.accelerator.memory)) for one, _ in kinds]
    needs = [predict(model, one, plan, calibration).memory for one, _ in kinds]
    tight = max(range(len(kinds)), key=lambda k: float(needs[k].peak) / capacity[k])
    shares = tuple(
        Share(
            system=cluster.name,
            accelerator=cluster.accelerator.name,
            many=count,
            layers=model.layers,
            micro_batches=int(dealt[k]),
            time=float(own[k][dealt[k] - 1]),
            memory=float(needs[k].peak),
            capacity=capacity[k],
            binds=_longest(found[k], dealt[k] - 1),
        )
        for k, (cluster, count) in enumerate(kinds)
    )
    devices = [(one, count * float(plan.tp * plan.cp * plan.pp)) for one, count in kinds]
    cluster = replace(kinds[tight][0], name=named([one for one, _ in kinds]))
    result = told(base, cluster, terms, needs[tight], devices, calibration)
    return result, Dealt("replica", shares, slowest, step([even] * len(kinds)))


def _longest(found: TrainingPrediction, at: int) -> str:
    """The longest term of a replica's own time."""
    terms = {k: float(v[at]) for k, v in found.breakdown.items()}
    for name in ("dp_communication", "optimizer"):
        del terms[name]
    return max(terms, key=lambda name: terms[name])


def _dealt(time: list[Array], many: list[int], whole: int) -> list[int]:
    """Micro-batches of a replica of each kind, so that the last to end ends first: the least of the
    times of 1, 2, ... micro-batches within which the replicas do all; those that are too many are
    left off the slowest."""
    paces = np.unique(np.concatenate(time))
    low, high = 0, len(paces) - 1

    def taken(pace: float) -> list[int]:
        return [max(int(np.searchsorted(own, pace, "right")), 1) for own in time]

    while low < high:
        middle = (low + high) // 2
        done = sum(n * count for n, count in zip(taken(float(paces[middle])), many, strict=True))
        low, high = (low, middle) if done >= whole else (middle + 1, high)
    return taken(float(paces[low]))

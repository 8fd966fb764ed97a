"""A run on a fleet: failures and checkpoints, and beside them spares, preemption, and going on with
fewer replicas.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from predictor.arrays import Array
from predictor.records import dataclass
from predictor.training.prediction import TrainingPrediction, predict
from predictor.training.reliability import Goodput, Reliability, goodput
from predictor.variation.interruptions import (
    down_share,
    elastic,
    enough,
    interrupted,
    needed_spares,
)

SURE = 0.99
"""Chance of enough nodes for which spares are counted."""

FEWER = 24
"""Replicas fewer than the plan's that are timed; beyond, the rate is in proportion."""


@dataclass(frozen=True, slots=True)
class Reserve:
    """What a run has beside its plan.

    spares   nodes
    repair   of a node that has failed [s]
    every    mean time between preemptions of an instance (a node) [s]; inf: none
    returned  until a preempted one is replaced [s]
    group    instances that are preempted together, on average
    elastic  the job goes on with fewer replicas, where nodes are missing
    """

    spares: int = 0
    repair: float = 86400.0
    every: float = np.inf
    returned: float = 3600.0
    group: float = 1.0
    elastic: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class RunOnFleet:
    """A run on a fleet.

    goodput    failures, preemptions and checkpoints, where enough nodes are there
    enough     probability that they are
    available  share of the whole job's rate that the nodes that are there give, on average
    spares     needed for enough nodes with the chance `SURE`
    """

    goodput: Goodput
    enough: float
    available: float
    spares: int

    def to_dict(self) -> dict[str, Any]:
        """As `--json` writes it."""
        found = self.goodput
        shares = {
            name: self.available * float(getattr(found, key))
            for name, key in (("value", "share"), ("low", "low"), ("high", "high"))
        }
        return {
            "effective_share": shares,
            "enough_nodes": self.enough,
            "available_share": self.available,
            "spares_for_99_percent": self.spares,
            "mtbf_hours": float(found.mtbf) / 3600.0,
        }


def rates(found: TrainingPrediction, nodes: int) -> Array:
    """Tokens per second of a single plan on 0, 1, ... nodes, (nodes + 1,): whole replicas, which
    share out the batch of a step."""
    plan = found.plan
    dp = int(plan.dp)
    each = float(plan.gpus) / nodes
    fewest = max(dp - FEWER, 1)
    replicas = np.arange(fewest, dp + 1, dtype=float)
    batches = np.ceil(float(plan.micro_batches) * dp / replicas)
    several = replace(plan, dp=replicas, global_batch=batches * replicas * plan.micro_batch)
    timed = predict(found.model, found.cluster, several, found.calibration).step_time
    tokens = float(found.tokens_per_step) / np.broadcast_to(timed, replicas.shape)
    whole = np.concatenate([tokens[0] * np.arange(fewest) / fewest, tokens])
    there = np.floor(np.arange(nodes + 1) * each / float(plan.tp * plan.pp * plan.cp))
    return np.asarray(whole[np.minimum(there, dp).astype(int)])


def served(found: TrainingPrediction, reliability: Reliability, fleet: Reserve) -> RunOnFleet:
    """What a fleet makes of a run of a single plan: a node is away for its repair after a failure,
    a preempted instance until it is replaced."""
    plan = found.plan
    gpus = float(plan.gpus)
    per = min(float(found.cluster.accelerators_per_node), gpus)
    nodes = max(round(gpus / per), 1)
    gone = fleet.repair * per / float(reliability.mtbf) + fleet.returned / fleet.every
    p = float(down_share(1.0, gone))
    mtbf = interrupted(np.asarray(reliability.mtbf), gpus, fleet.every, nodes, fleet.group)
    own = goodput(
        found.model,
        plan,
        replace(reliability, mtbf=mtbf * gpus),
        found.calibration.interval_q,
    )
    chance = enough(nodes, fleet.spares, p)
    available = chance
    if fleet.elastic:
        rate = rates(found, nodes)
        available = elastic(nodes, fleet.spares, p, rate) / float(rate[-1])
    return RunOnFleet(own, chance, available, needed_spares(nodes, p, SURE))

"""Steps of several systems, regions, or images: who is dealt what, and how long that takes."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from predictor.errors import InputError
from predictor.hardware import Cluster
from predictor.models import Model
from predictor.plans import TrainingPlan
from predictor.timing import Calibration
from predictor.training.completion import TrainingRequest
from predictor.training.dealt import Dealt
from predictor.training.hot_stages import by_heat
from predictor.training.prediction import TrainingPrediction
from predictor.training.regions import Regions
from predictor.training.unlike_replicas import by_replica
from predictor.training.unlike_stages import by_stage


def by_region(
    model: Model, cluster: Cluster, plan: TrainingPlan, calibration: Calibration, regions: Regions
) -> tuple[TrainingPrediction, Dealt]:
    """Predict a plan whose accelerators are in several regions, as many in each.

    Raises InputError where neither stages nor replicas divide among the regions.
    """
    many, found = len(regions.names), []
    size = plan.recipe.activation if np.isnan(plan.handed_bytes) else plan.handed_bytes
    if regions.crossing != "replicas" and int(plan.pp) % many == 0:
        way = regions.order(float(size * plan.tokens * model.hidden / plan.tp))
        kinds = [(regions.linked(cluster, r, r), int(plan.pp) // many) for r in way]
        links = [regions.linked(cluster, a, b) for a, b in pairwise(way)]
        found.append(by_stage(model, kinds, plan, calibration, links=links))
    if regions.crossing != "pipelines" and int(plan.dp) % many == 0:
        # Rings hand on parts of a rank's gradients, one for each region.
        gradients = float(plan.reduce_bytes * model.parameters / (plan.tp * plan.pp))
        far = regions.linked(cluster, *regions.slowest(gradients / many))
        kinds = [(regions.linked(cluster, r, r), int(plan.dp) // many) for r in range(many)]
        found.append(by_replica(model, kinds, plan, calibration, far))
    if not found:
        raise InputError(
            f"{many} regions divide neither pp {int(plan.pp)} nor dp {int(plan.dp)} (crossing "
            f"{regions.crossing})"
        )
    return min(found, key=lambda one: float(one[0].step_time))


def dealt_step(
    request: TrainingRequest, calibration: Calibration
) -> tuple[TrainingPrediction, Dealt]:
    """Predict a request of several systems, or of images."""
    model, plan, seen = request.model, request.plan, request.seen
    if plan.split == "heat":
        if request.kinds or request.regions is not None or request.eased:
            raise InputError(
                "split heat is of one system that computes again alike; leave it or the others out"
            )
        return by_heat(request, calibration)
    if stated := request.conditions.stated:
        raise InputError(f"{stated} is of one system and of text; leave it or the others out")
    if request.regions is not None:
        if request.kinds or seen or request.eased:
            raise InputError("regions are of one system and of text; leave them or the others out")
        return by_region(model, request.cluster, plan, calibration, request.regions)
    if request.by == "replica" and request.eased:
        raise InputError("stage_recompute is of a pipeline's stages; leave replica_systems out")
    if request.by == "replica":
        return by_replica(model, request.kinds, plan, calibration)
    kinds = request.kinds or ((request.cluster, int(plan.pp)),)
    eased = request.eased and plan.recompute == "full"
    return by_stage(model, kinds, plan, calibration, seen, eased=eased)

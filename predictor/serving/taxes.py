"""The three taxes of a pass that decodes."""

from __future__ import annotations

import numpy as np

from predictor.errors import InputError
from predictor.hardware import Cluster
from predictor.models import Model
from predictor.plans import ServingPlan
from predictor.serving.passes import EXACT_STEPS
from predictor.serving.prediction import predict_inference
from predictor.timing import (
    BULK,
    LAUNCH,
    LOCALITY,
    TILES,
    Calibration,
    Taxes,
    cached_share,
    taxes_of,
    tiled,
    without_launches,
)


def decoding_taxes(
    model: Model,
    cluster: Cluster,
    plan: ServingPlan,
    calibration: Calibration,
) -> Taxes:
    """Launching, bulk-synchronous waiting and data locality of one decoding pass [s].

    Collectives of a pass overlap with its kernels in tiles, all of which may hide them: an upper
    bound. Gaps between kernels go with the launches; host work per pass and sequence stays.

    Raises InputError for a batch of plans.
    """
    if plan.shape:
        raise InputError("taxes are of one plan, not of a batch")

    def time(without: frozenset[str]) -> float:
        used = without_launches(calibration) if LAUNCH in without else calibration
        found = predict_inference(model, cluster, plan, used, EXACT_STEPS)
        own, device = found.parameters, found.work.decoding
        left = float(found.latencies.step)
        if LAUNCH in without and plan.execution == "graph":
            left -= float(np.asarray(own.gap * device.kernels))
        if LOCALITY in without:
            streamed = float(np.asarray(own.decode * found.decoding.terms["elementwise"]))
            left -= streamed * cached_share(cluster.accelerator)
        if BULK in without:
            talk = float(np.asarray(own.communication * device.communication))
            work = float(np.asarray(own.decode * device.compute))
            left -= work + talk - float(tiled(work, talk, TILES))
        return left

    return taxes_of(time)

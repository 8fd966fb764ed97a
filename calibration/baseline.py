"""The yardstick: one model FLOPs utilisation per accelerator and precision, of other sources.

What anyone gets without a model of the machine: arithmetic over peak, times a constant.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from calibration.points import Point
from predictor.flops import model_flop_per_token
from predictor.hardware import Array

CONVENTION = "megatron"


def _ideal(point: Point) -> float:
    """Time at the peak rate [s]: of a step, or of one layer's share of it."""
    request = point.request
    plan, model = request.plan, request.model
    peak = request.cluster.accelerator.peak_for(plan.recipe.peak)
    flop = model_flop_per_token(model, plan.seq_len, CONVENTION)
    return float(flop * plan.global_batch * plan.seq_len / (plan.gpus * peak))


def constant_mfu(points: Sequence[Point]) -> Array:
    """Log errors of step times from a constant utilisation, every source left out of its own.

    points   runs that time whole steps

    Sources count alike: the constant of an accelerator and precision is the mean over the other
    sources of the log of their mean utilisation; where no other source has them, that of the
    precision, else of all.
    """
    log = np.array([np.log(_ideal(point) / point.measured) for point in points])
    source = np.array([point.source for point in points])
    precision = np.array([point.request.plan.precision for point in points])
    accelerator = np.array([point.request.cluster.accelerator.name for point in points])
    found = np.zeros(len(points))
    for at in range(len(points)):
        rest = source != source[at]
        alike = rest & (precision == precision[at])
        for pool in (alike & (accelerator == accelerator[at]), alike, rest):
            if pool.any():
                means = [log[pool & (source == name)].mean() for name in np.unique(source[pool])]
                found[at] = log[at] - float(np.mean(means))
                break
    return found


def constant_mfu_by_source(points: Sequence[Point]) -> dict[str, float]:
    """Mean absolute relative error of the constant utilisation, by source left out."""
    steps = [point for point in points if not point.one_layer]
    source = np.array([point.source for point in steps])
    share = np.abs(np.expm1(constant_mfu(steps)))
    return {str(name): float(share[source == name].mean()) for name in np.unique(source)}

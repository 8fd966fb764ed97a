"""The yardstick: one model FLOPs utilisation per accelerator and precision, of other sources.

What anyone gets without a model of the machine: arithmetic over peak, times a constant.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from calibration.tables.runs import Point
from predictor.arrays import Array
from predictor.models import model_flop_per_token

CONVENTION = "megatron"

PRIOR = 2.0
"""Sources that other accelerators count for: where one source only ran an accelerator, its
constant may be that of an unusual model."""


def _ideal(point: Point) -> float:
    """Time at the peak rate [s]: of a step, or of one layer's share of it."""
    request = point.request
    plan, model = request.plan, request.model
    peak = request.cluster.accelerator.peak_for(plan.recipe.peak)
    flop = model_flop_per_token(model, plan.seq_len, CONVENTION)
    return float(flop * plan.global_batch * plan.seq_len / (plan.gpus * peak))


def balanced_median(values: Array, source: npt.NDArray[np.str_]) -> tuple[float, int]:
    """Median of values in which every source counts alike, and the number of sources."""
    names, group, count = np.unique(source, return_inverse=True, return_counts=True)
    order = np.argsort(values)
    reached = np.cumsum(1.0 / count[group[order]]) / len(names)
    first, last = np.searchsorted(reached, [0.5 - 1e-9, 0.5 + 1e-9])
    return float(values[order][[first, last]].mean()), len(names)


def constant_mfu(points: Sequence[Point]) -> Array:
    """Log errors of step times from a constant utilisation, every source left out of its own.

    points   runs that time whole steps

    The constant of an accelerator and precision is the median of the other sources' utilisations,
    sources counting alike, shrunk to that of the precision on any accelerator as if `PRIOR`
    sources said the latter; where no other source has the precision, to that of all.
    """
    log = np.array([np.log(_ideal(point) / point.measured) for point in points])
    source = np.array([point.source for point in points])
    precision = np.array([point.request.plan.precision for point in points])
    accelerator = np.array([point.request.cluster.accelerator.name for point in points])
    kind = list(zip(source.tolist(), accelerator.tolist(), precision.tolist(), strict=True))
    constant: dict[tuple[str, str, str], float] = {}
    for own in set(kind):
        rest = source != own[0]
        if not rest.any():
            constant[own] = float(np.median(log))
            continue
        alike = rest & (precision == own[2])
        general = alike if alike.any() else rest
        value, _ = balanced_median(log[general], source[general])
        near = alike & (accelerator == own[1])
        if near.any():
            found, sources = balanced_median(log[near], source[near])
            value += sources / (sources + PRIOR) * (found - value)
        constant[own] = value
    return log - np.array([constant[own] for own in kind])


def constant_mfu_by_source(points: Sequence[Point]) -> dict[str, float]:
    """Mean absolute relative error of the constant utilisation, by source left out."""
    steps = [point for point in points if not point.one_layer]
    source = np.array([point.source for point in steps])
    share = np.abs(np.expm1(constant_mfu(steps)))
    return {str(name): float(share[source == name].mean()) for name in np.unique(source)}

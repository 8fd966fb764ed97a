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


def constants_left_out(
    log: Array, source: npt.NDArray[np.str_], kind: npt.NDArray[np.str_], own: npt.NDArray[np.str_]
) -> Array:
    """For every one of some logs the constant that the other sources give it.

    kind   what is comparable at all: a precision, a metric
    own    what is alike beyond that: an accelerator, an engine

    The constant is the median of the other sources, which count alike, shrunk to that of the kind
    with anything of its own as if `PRIOR` sources said the latter; where no other source has the
    kind, to that of all.
    """
    keys = list(zip(source.tolist(), kind.tolist(), own.tolist(), strict=True))
    constant: dict[tuple[str, str, str], float] = {}
    for key in set(keys):
        rest = source != key[0]
        if not rest.any():
            constant[key] = float(np.median(log))
            continue
        alike = rest & (kind == key[1])
        general = alike if alike.any() else rest
        value, _ = balanced_median(log[general], source[general])
        near = alike & (own == key[2])
        if near.any():
            found, sources = balanced_median(log[near], source[near])
            value += sources / (sources + PRIOR) * (found - value)
        constant[key] = value
    return np.array([constant[key] for key in keys])


def constant_mfu(points: Sequence[Point]) -> Array:
    """Log errors of step times from a constant utilisation, every source left out of its own.

    points   runs that time whole steps

    The constant is that of an accelerator and precision (`constants_left_out`).
    """
    log = np.array([np.log(_ideal(point) / point.measured) for point in points])
    source = np.array([point.source for point in points])
    precision = np.array([point.request.plan.precision for point in points])
    accelerator = np.array([point.request.cluster.accelerator.name for point in points])
    return log - constants_left_out(log, source, precision, accelerator)


def constant_mfu_by_source(points: Sequence[Point]) -> dict[str, float]:
    """Mean absolute relative error of the constant utilisation, by source left out."""
    steps = [point for point in points if not point.one_layer]
    source = np.array([point.source for point in steps])
    share = np.abs(np.expm1(constant_mfu(steps)))
    return {str(name): float(share[source == name].mean()) for name in np.unique(source)}

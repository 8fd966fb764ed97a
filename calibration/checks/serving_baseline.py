"""The yardstick of serving: one constant per engine and metric over a roofline, of other sources.

What anyone gets without kernels and engines: traffic and arithmetic at the datasheet's rates, no
time on the host, times a constant.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from calibration.checks.baseline import constants_left_out
from calibration.checks.scored import REPORTED_APART, TARGETS
from calibration.serving.fit import read_inference
from calibration.serving.timed import published, timed, values
from calibration.tables.requests import InferencePoint
from predictor.arrays import Array
from predictor.catalog import load
from predictor.timing import EngineParameters

PERFECT = EngineParameters(gap=0.0, launch=0.0, step=0.0, sequence=0.0, request=0.0, burst=1e12)
"""An engine that adds nothing to the device's time."""


def target_of(point: InferencePoint) -> str:
    """What a point is judged as; '' if as nothing."""
    return next((name for name, belongs in TARGETS.items() if belongs(point)), "")


def left_out(
    log: Array, target: Sequence[str], engine: Sequence[str], source: Sequence[str]
) -> Array:
    """Log errors that one constant per engine and target leaves of `log`, every source left out of
    its own.

    log   published over roofline

    The constant is `constants_left_out`.
    """
    return constants_left_out(log, np.array(source), np.array(target), np.array(engine)) - log


def _compared(tables: Sequence[Path]) -> tuple[list[InferencePoint], list[str], Array]:
    """Points of tables, what each is judged as, and log errors of the constants."""
    bare = load("none")
    found, _ = timed(read_inference(tables, bare.run), bare)
    log = np.log(published(found) / values(found, PERFECT)[0])
    target = [target_of(point) for point in found.points]
    source = [point.source for point in found.points]
    return list(found.points), target, left_out(log, target, found.engine, source)


def yardstick(tables: Sequence[Path]) -> dict[str, float]:
    """What the constants say of every point [SI], its own source left out."""
    points, _, error = _compared(tables)
    return {p.point_id: p.value * math.exp(e) for p, e in zip(points, error.tolist(), strict=True)}


def constant_by_source(tables: Sequence[Path]) -> dict[str, dict[str, float]]:
    """Mean absolute relative error of the constants by target and source left out, of the rows
    that `scored.targets` counts; open loops, which no constant serves, are left out."""
    points, target, error = _compared(tables)
    by: dict[str, dict[str, list[float]]] = {}
    for point, told, own in zip(points, target, np.abs(np.expm1(error)).tolist(), strict=True):
        if told and not point.flagged and point.source not in REPORTED_APART:
            by.setdefault(told, {}).setdefault(point.source, []).append(own)
    return {
        told: {name: float(np.mean(own)) for name, own in sorted(each.items())}
        for told, each in by.items()
    }


def beaten(model: dict[str, float], constant: dict[str, float]) -> npt.NDArray[np.bool_]:
    """For which sources the model errs less than the constants, (sources,)."""
    return np.array([model[name] < constant[name] for name in sorted(model) if name in constant])

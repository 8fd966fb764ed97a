"""The process over what is left of one's own benchmarks (`predictor.timing.benchmarks`), learned
from groups of published ones: the parameters with which some of a group predict the others best.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import minimize

from calibration.serving.spreads import CLASSES
from calibration.serving.timed import Timed
from calibration.tables.requests import InferencePoint
from predictor.arrays import Array, Index
from predictor.files import write_text
from predictor.timing import Benchmarks, Process, key_of, sizes_of

START = Process(
    common=0.05,
    metric=0.15,
    near=0.15,
    across=0.05,
    lengths={"batch": 1.5, "input_len": 1.5, "output_len": 1.5, "tp": 1.0},
    noise=0.08,
    most=0.5,
    source="published benchmarks, engines learned from five of a group's figures",
)
"""Where the search starts, and what it is drawn to weakly."""

DRAWN = 0.002
"""Cost of a parameter that is e times that of `START`, in mean errors."""

ROUNDS = 3
"""Rounds of Powell's method, each over every parameter."""


def benchmarks_of(
    points: Sequence[InferencePoint],
    left: Array,
    process: Process,
    levels: Mapping[str, float] | None = None,
) -> Benchmarks:
    """What is left of benchmarks, as a calibration keeps it.

    left     log of what they state over what is predicted
    levels   of checkpoints
    """
    metrics = [CLASSES[point.metric] for point in points]
    plans = [point.request.plan for point in points]
    sizes = [sizes_of(p.batch, p.input_len, p.output_len, p.tp) for p in plans]
    return Benchmarks(
        process, keys_of(points), metrics, np.stack(sizes), signs(points) * left, levels or {}
    )


def keys_of(points: Sequence[InferencePoint]) -> list[str]:
    """What benchmarks share that tell of each other."""
    requests = [point.request for point in points]
    return [
        key_of(one.plan.framework, one.model.name, one.cluster.accelerator.name, one.plan.weights,
               one.plan.narrowed)
        for one in requests
    ]  # fmt: skip


def signs(points: Sequence[InferencePoint]) -> Array:
    """1 of benchmarks that state a time, -1 of those that state a rate."""
    return np.array([-1.0 if CLASSES[p.metric] == "throughput" else 1.0 for p in points])


def corrections(known: Benchmarks, found: Timed) -> Array:
    """Log of the factor on what points state, by what is left of others."""
    own = benchmarks_of(found.points, np.zeros(len(found.points)), known.process)
    told, metrics = np.zeros(len(found.points)), np.array(own.metrics)
    for key in set(own.keys):
        at = np.array([one == key for one in own.keys])
        told[at] = known.correction(key, metrics[at], own.sizes[at])
    return np.where(metrics == "throughput", -told, told)


@dataclass(frozen=True, slots=True, eq=False)
class Draw:
    """A group of published benchmarks of which some are known.

    whole   all of them, with what is left after the engine was learned from those known
    known, rest   positions

    All are of one engine, model and accelerator, and a checkpoint tells of itself alone.
    """

    source: str
    whole: Benchmarks
    known: Index
    rest: Index

    def errors(self, process: Process) -> dict[str, float]:
        """Mean absolute log error of the rest by metric."""
        of = self.whole
        own = Benchmarks(
            process,
            [of.keys[i] for i in self.known],
            [of.metrics[i] for i in self.known],
            of.sizes[self.known],
            of.residual[self.known],
            of.levels,
        )
        metrics, keys = np.array(of.metrics)[self.rest], np.array(of.keys)[self.rest]
        told = np.zeros(len(self.rest))
        for key in set(of.keys):
            at = keys == key
            told[at] = own.correction(key, metrics[at], of.sizes[self.rest][at])
        away = np.tanh(np.abs(told - of.residual[self.rest]))
        return {str(metric): float(away[metrics == metric].mean()) for metric in set(metrics)}


def fit_process(draws: Sequence[Draw]) -> Process:
    """Parameters with which the rest of every group is predicted best: the least mean error over
    groups and metrics (Powell's method)."""
    names = list(START.lengths)
    middle = np.log([START.common, START.metric, START.near, START.across,
                     *START.lengths.values(), START.noise])  # fmt: skip

    def made(vector: Array) -> Process:
        common, metric, near, across, *lengths, noise = np.exp(vector).tolist()
        table = dict(zip(names, lengths, strict=True))
        return replace(START, common=common, metric=metric, near=near, across=across,
                       lengths=table, noise=noise)  # fmt: skip

    def cost(vector: Array) -> float:
        process = made(vector)
        missed = [np.mean(list(draw.errors(process).values())) for draw in draws]
        return float(np.mean(missed) + DRAWN * np.sum((vector - middle) ** 2))

    bounds = [(value - 2.5, value + 2.5) for value in middle]
    found = minimize(cost, middle, method="Powell", bounds=bounds,
                     options={"maxiter": ROUNDS, "maxfev": 400})  # fmt: skip
    return made(found.x)


def write_process(process: Process, left_out: Mapping[str, Any], out: Path) -> None:
    """Keep a process, with what it brought sources that were left out of it."""
    content = asdict(process)
    content["lengths"] = {k: float(f"{v:.4g}") for k, v in content["lengths"].items()}
    rounded = {k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in content.items()}
    write_text(out, json.dumps({**rounded, "left_out": left_out}, indent=1) + "\n")

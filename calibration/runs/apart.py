"""Published runs taken apart once, and what run parameters say of them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from calibration.spread import Residual
from calibration.tables.runs import Point
from predictor.arrays import Array
from predictor.errors import InputError
from predictor.plans import CATEGORY_FIELDS, NUMERIC_FIELDS, batches
from predictor.timing import Calibration, RunParameters
from predictor.training import (
    Environment,
    Parts,
    assemble,
    environment_of,
    interval,
    parts,
    singles,
    stack,
    take,
)

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Runs:
    """Published runs, taken apart; arrays of their number.

    measured   log of the measured time
    one_layer  1 where one layer was timed, not a step
    lone       whether it is of one rank
    """

    points: tuple[Point, ...]
    parts: Parts
    measured: Array
    one_layer: Mask
    lone: Mask
    source: npt.NDArray[np.str_]
    framework: npt.NDArray[np.str_]
    era: npt.NDArray[np.str_]

    def only(self, mask: Mask) -> Runs:
        """Some of the runs."""
        at = np.flatnonzero(mask)
        return Runs(
            tuple(self.points[i] for i in at),
            take(self.parts, at),
            *(
                getattr(self, name)[at]
                for name in ("measured", "one_layer", "lone", "source", "framework", "era")
            ),
        )


def take_apart(calibration: Calibration, points: Sequence[Point]) -> Runs:
    """Time the pieces of every point's step, those of one model, cluster and category as one
    batch; points that cannot be predicted are left out.

    Raises InputError where none can.
    """
    requests = [point.request for point in points]
    pieces: dict[int, Parts] = {}
    for batch in batches(requests):
        try:
            found, _ = parts(batch.model, batch.cluster, batch.plan, calibration)
        except InputError:  # of one of them, maybe not of all
            for at in batch.positions:
                one = requests[at]
                with suppress(InputError):
                    pieces[at] = parts(one.model, one.cluster, one.plan, calibration)[0]
            continue
        pieces |= zip(batch.positions, singles(found), strict=True)
    if not pieces:
        raise InputError("none of the runs can be predicted")
    made = [pieces[at] for at in sorted(pieces)]
    kept = [points[at] for at in sorted(pieces)]
    plans = [point.request.plan for point in kept]
    return Runs(
        points=tuple(kept),
        parts=stack(made),
        measured=np.log([point.measured for point in kept]),
        one_layer=np.array([point.one_layer for point in kept]),
        lone=np.array([bool(plan.lone) for plan in plans]),
        source=np.array([point.source for point in kept]),
        framework=np.array([plan.framework for plan in plans]),
        era=np.array([plan.era for plan in plans]),
    )


def environments(runs: Runs, run: RunParameters) -> Environment:
    """The environment of every run, as arrays."""
    requests = [point.request for point in runs.points]
    hosts = [request.cluster.accelerator.is_host for request in requests]
    made = [request.cluster.accelerator.architecture for request in requests]
    own = (runs.framework.tolist(), runs.era.tolist(), hosts, runs.lone.tolist(), made)
    keys = list(zip(*own, strict=True))
    first = dict(zip(reversed(keys), reversed(requests), strict=True))
    known = {key: environment_of(one.cluster, one.plan, run) for key, one in first.items()}

    def column(name: str) -> Array:
        return np.array([getattr(known[key], name) for key in keys], float)

    told = ("factor", "young", "launch", "routed", "once", "hop", "nodes", "doubt", "routed_doubt")
    return Environment(**{name: column(name) for name in told})


def predictions(runs: Runs, run: RunParameters, factor: Array | None = None) -> tuple[Array, Array]:
    """Log of the predicted time of every run, and the operators' part of its spread.

    factor   of every run's framework, beside its date's; what `run` says of it if None
    """
    using = environments(runs, run)
    using = using if factor is None else replace(using, factor=factor * using.young)
    step = assemble(runs.parts, run, using)
    value = np.where(runs.one_layer, using.factor * step.layer_time, step.step_time)
    return np.log(value), interval(step, using.factor, 0.0)


def errors(runs: Runs, run: RunParameters, factor: Array | None = None) -> Array:
    """log(predicted / measured) of every run, as of `predictions`."""
    return predictions(runs, run, factor)[0] - runs.measured


def residuals(runs: Runs, run: RunParameters) -> list[Residual]:
    """Errors of every run and what of their spread the operators explain."""
    value, sigma = predictions(runs, run)
    rows = zip(value - runs.measured, sigma, runs.points, strict=True)
    return [
        Residual(
            float(error),
            float(spread),
            point.source,
            point.request.model.is_moe,
            *_compared(point),
            framework=point.request.plan.framework,
            untimed=point.request.model.untimed,
        )
        for error, spread, point in rows
    ]


def _compared(point: Point) -> tuple[str, str]:
    """What a run has in common with those that differ from it in the plan alone; the plan."""
    request = point.request
    plan, machine = request.plan, request.cluster.accelerator.name
    same = ("precision", "framework", "era")
    common = [request.model.name, machine, float(plan.gpus), *(getattr(plan, n) for n in same)]
    names = (name for name in (*NUMERIC_FIELDS, *CATEGORY_FIELDS) if name not in same)
    return repr(common), repr([str(getattr(plan, name)) for name in names])

"""Fits what a framework's allocation adds to a step's tensors: the few constants of memory.

The nanotron sweep states the reserved memory of its first rank, and which plans ran out:
activations of a pipeline take more than their bytes there, those of a single micro-batch in flight
too, and the rest a few per cent more. Blocks that a collective still reads or writes are no one
else's until it is through (PyTorch's `record_stream`): where the host runs ahead of the device the
allocator takes new ones for every layer of a pass, and gives them back, waiting for the device,
when there are no more. So they are in what it reserved, and not in what a plan needs: of nine plans
of the sweep that would fit without them alone, eight ended. At the end of every step all its jobs
had allocated the two buffers of inputs that are gathered again: none kept them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import erf
from pathlib import Path

import numpy as np
import numpy.typing as npt

from calibration.tables.runs import Point
from calibration.tables.sweep import Sweep, read_sweep
from predictor.arrays import Array
from predictor.memory import (
    CONTEXT,
    FRAGMENTATION,
    GATHERED,
    HELD,
    SENT,
    beside,
    divided,
    memory,
)
from predictor.timing import RunParameters

LEAST_ROWS = 30
"""Rows with a reserved memory below which a framework keeps the defaults."""

NOISE = 0.1
"""Log error of a row beyond which it counts less (soft absolute value)."""


ACCIDENT = 0.02
"""Share of plans that run out, or do not, for reasons of their own."""

SMALL = 1.1
"""Tensors with all that may wait for collectives over those without up to which it does not matter
whether it does."""


@dataclass(frozen=True, slots=True, eq=False)
class Tensors:
    """What plans take, taken apart; arrays (runs, 3) by kind of stage [bytes].

    fixed     all but activations of the stages of a pipeline, and context
    flying    those activations
    present   whether there is such a stage
    first     index of the stage that the first rank runs
    measured  reserved memory of the first rank, NaN where not stated; (runs,)
    told      whether it is known what of that waits for collectives; (runs,)
    divided   whether the plan has communicators (`memory.beside`); (runs,)
    out       whether the plan ran out of memory; (runs,)
    capacity  of the device; (runs,)
    """

    fixed: Array
    flying: Array
    present: npt.NDArray[np.bool_]
    first: npt.NDArray[np.int_]
    measured: Array
    told: npt.NDArray[np.bool_]
    divided: Array
    out: npt.NDArray[np.bool_]
    capacity: Array

    def reserved(self, held: float, fragmentation: float) -> Array:
        """Reserved memory by stage, (runs, 3)."""
        total = (self.fixed + held * self.flying) * (1.0 + fragmentation)
        return np.where(self.present, total, 0.0)

    def only(self, mask: npt.NDArray[np.bool_]) -> Tensors:
        """Some of the runs."""
        return Tensors(*(getattr(self, name)[mask] for name in self.__slots__))


def take_tensors(points: Sequence[Point], run: RunParameters) -> Tensors:
    """The tensors of every point's plan, with whatever its framework's allocation is taken out."""
    kept = (SENT, GATHERED)
    sent = {key: value for key, value in run.factors.items() if key.startswith(kept)}
    fixed, flying, present = [], [], []
    for point in points:
        model, plan = point.request.model, point.request.plan
        one, two = (
            memory(
                model, plan, replace(run, fragmentation=0.0, context=0.0, factors=sent | factors)
            )
            for factors in ({}, {f"{HELD}/{plan.framework}": 2.0})
        )
        totals = [sum(found.classes.values()).reshape(3) for found in (one, two)]  # type: ignore[union-attr]
        flying.append(totals[1] - totals[0])
        fixed.append(totals[0] - flying[-1])
        present.append(one.present.reshape(3))
    pp = np.array([float(point.request.plan.pp) for point in points])
    return Tensors(
        fixed=np.array(fixed),
        flying=np.array(flying),
        present=np.array(present),
        first=np.where(pp > 1, 0, 2),
        measured=np.array([point.memory for point in points]),
        told=np.ones(len(points), bool),
        divided=np.array([float(divided(point.request.plan)) for point in points]),
        out=np.array([point.status == "OOM" for point in points]),
        capacity=np.array([float(point.request.cluster.accelerator.memory) for point in points]),
    )


def sweep_tensors(sweep: Sweep, run: RunParameters) -> tuple[list[Point], Tensors, Tensors]:
    """Rows of a sweep that ran or ran out; their tensors with what waits for collectives in jobs
    that launch fast, and without it: what they need.

    What waits is as large as all inputs that are gathered: an output of each of those products'
    neighbours. Of several stages, which wait for each other, it is not known; those where it is
    small (`SMALL`) are told all the same.
    """
    rows = np.array([n for n, p in enumerate(sweep.points) if p.status in ("Success", "OOM")])
    points = [sweep.points[at] for at in rows]
    needed = take_tensors(points, run)
    whole = take_tensors([_keeping(point) for point in points], run)
    alone = np.array([float(point.request.plan.pp) == 1 for point in points])
    waits = sweep.fast[rows] & alone
    first = np.arange(len(rows)), needed.first
    small = whole.reserved(1.0, 0.0)[first] <= SMALL * needed.reserved(1.0, 0.0)[first]
    held = replace(
        needed,
        fixed=np.where(waits[:, None], whole.fixed, needed.fixed),
        told=alone | small,
    )
    return points, held, needed


def _keeping(point: Point) -> Point:
    """A point whose products keep what they gather."""
    plan = replace(point.request.plan, tp_regather=False)
    return replace(point, request=replace(point.request, plan=plan))


def fit_allocation(
    tensors: Tensors, run: RunParameters, framework: str, needed: Tensors | None = None
) -> Mapping[str, float]:
    """Factors of a framework's allocation: by least squares of log reserved memory on the first
    rank, soft on outliers; the context by the likelihood of which plans ran out, and no more than
    the fullest plan that ended left free.

    needed  the tensors by which that is judged, if others

    Without `LEAST_ROWS` rows of reserved memory, none: the defaults hold.
    """
    from scipy.optimize import least_squares

    stated = np.isfinite(tensors.measured)
    if (stated & tensors.told).sum() < LEAST_ROWS:
        return {}
    known = tensors.only(stated & tensors.told)
    row = np.arange(len(known.first))

    def error(values: Array) -> Array:
        held, fragmentation = np.exp(values)
        found = known.reserved(float(held), float(fragmentation))[row, known.first]
        return np.asarray(np.log(found / known.measured))

    start = np.log([1.0, run.fragmentation])
    fitted = least_squares(error, start, loss="soft_l1", f_scale=NOISE)
    held, fragmentation = (float(value) for value in np.exp(fitted.x))
    factors = {
        f"{HELD}/{framework}": float(f"{held:.6g}"),
        f"{FRAGMENTATION}/{framework}": float(f"{fragmentation / run.fragmentation:.6g}"),
    }
    judged = (tensors if needed is None else needed).only(stated | tensors.out)
    if judged.out.any() and not judged.out.all():
        peak = judged.reserved(held, fragmentation).max(axis=1)
        context = _context(peak, judged, run)
        factors[f"{CONTEXT}/{framework}"] = float(f"{context / run.context:.6g}")
    return factors


def _context(peak: Array, judged: Tensors, run: RunParameters) -> float:
    """Bytes beside the reserved ones that make the plans that ran out the likeliest; the spread
    about the limit is free. A plan that ended had room for them beside what it had reserved."""
    from scipy.optimize import minimize

    ended = np.isfinite(judged.measured) & (judged.divided > 0)
    left = (judged.capacity - judged.measured)[ended]
    most = float(left.min()) if left.size else np.inf

    def surprise(value: Array) -> float:
        context, spread = np.exp(value)
        taken = peak + beside(judged.divided, min(float(context), most))
        z = np.log(taken / judged.capacity) / spread
        over = np.array([0.5 * (1.0 + erf(x / np.sqrt(2.0))) for x in z])
        # A plan that is far on the wrong side is an accident, not evidence of a context.
        chance = np.clip(np.where(judged.out, over, 1.0 - over), ACCIDENT, 1.0)
        return float(-np.log(chance).sum())

    starts = (np.log([context, run.memory_sigma]) for context in (run.context, 2.0 * run.context))
    found = [minimize(surprise, start, method="Nelder-Mead") for start in starts]
    best = min(found, key=lambda one: float(one.fun))
    return min(float(np.exp(best.x[0])), most)


def with_allocation(path: Path, run: RunParameters) -> RunParameters:
    """Run parameters with what nanotron's allocation adds, from rows that ran or ran out."""
    _, held, needed = sweep_tensors(read_sweep(path, run), run)
    found = fit_allocation(held, run, "nanotron", needed)
    return replace(run, factors={**run.factors, **found})

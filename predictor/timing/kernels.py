"""Time of operators on an accelerator: latency + ideal / efficiency, with what limits each."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from predictor.arrays import Array, Mask, Numeric, is_number, tiled, varying
from predictor.hardware import Accelerator
from predictor.records import dataclass, replace
from predictor.timing.calibration import Calibration
from predictor.timing.features import ideal
from predictor.timing.fitted import Busy, busy_of
from predictor.timing.relatives import compute_bound, machine_of, stand_in
from predictor.timing.roofline import least_time
from predictor.timing.shapes import COLUMNS, Shapes, columns, kind_of, one_after_another
from predictor.timing.sustained import beside_each_other
from predictor.work import Operator

BOUNDS = ("compute", "memory", "launch")
"""What limits an operator, as indices of `Timing.bound`."""

STAND_IN, COMPARED_ON = "stand-in", "hopper"
"""Where a calibration's spreads have what a kernel leaves open that is timed by another one in its
stead (`Operator.stretch`), and the architecture on which those were compared
(`data/measurements/h200-sxm-4`): there, and elsewhere."""


@dataclass(frozen=True, slots=True, eq=False)
class Timing:
    """Times of operators; arrays of shape (operators, *batch).

    time      one execution [s]
    sigma     its log-standard-deviation
    bound     index into `BOUNDS`
    measured  whether that very shape was measured on the accelerator itself
    pedigree  per operator: 'measured' (all its shapes), 'interpolated', 'transferred' or 'roofline'
    family    per operator: name of the fit, within which errors are taken as wholly correlated
    """

    time: Array
    sigma: Array
    bound: Array
    measured: Mask
    pedigree: tuple[str, ...]
    family: tuple[str, ...]

    def known(self, position: int, place: int) -> str:
        """How the time of an operator is known for one plan of a batch, whatever its others are."""
        measured = self.measured[position]
        return _known(self.pedigree[position], measured[place] if measured.ndim else measured)


def _known(pedigree: str, measured: Any) -> str:
    """A pedigree, given which of the shapes were measured."""
    if pedigree not in ("interpolated", "measured"):
        return pedigree
    return "measured" if np.all(measured) else "interpolated"


def shape_times(
    shapes: Shapes,
    accelerator: Accelerator,
    calibration: Calibration,
    sustained: bool = False,
    library: str = "",
) -> tuple[Array, Array, Array, str, str]:
    """Time every row of `shapes`.

    sustained   clocks as in back-to-back work under the power cap, not in a short burst
    library     the kernel library that runs them; '' for the neutral one

    A machine that does not exist takes what its relative takes, times the ratio of their rooflines
    (`roofline.least_time`): the relative's efficiency of the same shape is carried over.

    Returns (time [s], sigma, bound index, pedigree, family), arrays of the rows' length.
    """
    one = _on(shapes, accelerator, calibration, sustained, library)
    bound, pedigree = _bound(one), _known(one.pedigree, one.measured)
    return one.latency + one.busy, one.sigma, bound, pedigree, one.family


FEW = 8
"""Plans of a batch, up to which it is worth asking whether the same kernels were timed before."""


def _met(
    shapes: Shapes,
    accelerator: Accelerator,
    calibration: Calibration,
    library: str,
) -> Busy:
    """Kernels of few plans: those of one shape are timed once, however many plans have them."""
    numbers = b"".join([getattr(shapes, name).tobytes() for name in (*COLUMNS, "variant")])
    what = shapes.op, shapes.dtype, shapes.variants, numbers
    return calibration.once(
        (*what, accelerator, library),
        lambda: _on(shapes, accelerator, calibration, False, library),
    )


def _on(
    shapes: Shapes,
    accelerator: Accelerator,
    calibration: Calibration,
    sustained: bool,
    library: str,
) -> Busy:
    """Kernels on an accelerator, or as its relative's are."""
    relative = stand_in(accelerator, calibration)
    if relative is None:
        return busy_of(shapes, accelerator, calibration, sustained, library)
    one = _on(shapes, relative, calibration, sustained, library)
    usual = np.maximum(least_time(shapes, relative), 1e-30)
    return replace(
        one,
        found=ideal(shapes, accelerator),
        busy=one.busy * least_time(shapes, accelerator, relative) / usual,
        sigma=np.hypot(one.sigma, accelerator.doubt),
        pedigree="transferred",
    )


def _bound(one: Busy) -> Array:
    """Index into `BOUNDS` of what takes longest."""
    return np.where(one.latency > one.busy, 2, np.where(compute_bound(one.found), 0, 1))


@dataclass(frozen=True, slots=True, eq=False)
class Listed:
    """Operators of a plan, or of a batch of plans of `shape`, that are to be timed.

    library   the kernel library that runs them, '' for the neutral one, or `QUICKEST`; or that of
              each `op`, and under '' of all others
    host      what the host adds to each [s]; `Accelerator.host_time` of one rank if None
    """

    operators: Sequence[Operator]
    shape: tuple[int, ...]
    library: str | Mapping[str, str] = ""
    host: Numeric | None = None

    def alike(self) -> dict[tuple[str, str, str], list[int]]:
        """Positions of operators of one kind, data type and library."""
        runs = self.library
        found: dict[tuple[str, str, str], list[int]] = {}
        for index, one in enumerate(self.operators):
            library = runs if isinstance(runs, str) else runs.get(one.op, runs[""])
            key = kind_of(one.op, one.variant), one.dtype, library
            found.setdefault(key, []).append(index)
        return found


def operator_times(
    operators: Sequence[Operator],
    accelerator: Accelerator,
    calibration: Calibration,
    shape: tuple[int, ...],
    sustained: bool = False,
    library: str | Mapping[str, str] = "",
    host: Numeric | None = None,
) -> Timing:
    """Time one execution of each operator, for a batch of plans of `shape`.

    library, host   as of `Listed`
    sustained   clocks as when they take turns for long (`beside_each_other`), not in a short burst

    Operators of one kind and data type are evaluated together. Where the host is the device, what
    it does beside each kernel is part of the operator's time.
    """
    listed = Listed(operators, shape, library, host)
    (found,) = times_together([listed], accelerator, calibration)
    if not sustained:
        return found
    machine = machine_of(accelerator, calibration)
    return replace(found, time=beside_each_other(operators, found.time, machine, calibration))


def times_together(
    lists: Sequence[Listed], accelerator: Accelerator, calibration: Calibration
) -> list[Timing]:
    """Time one execution of each operator of several lists, in short bursts: each as by itself.

    accelerator   one; of a single list, one for each plan, too
    """
    added = [accelerator.host_time(1.0) if one.host is None else one.host for one in lists]
    tables = [_Table(len(one.operators), one.shape) for one in lists]
    together: dict[tuple[str, str, str], list[tuple[int, list[int]]]] = {}
    for number, one in enumerate(lists):
        for key, indices in one.alike().items():
            together.setdefault(key, []).append((number, indices))
    for (_, _, library), places in together.items():
        parts = [
            columns([lists[number].operators[index] for index in indices], lists[number].shape)
            for number, indices in places
        ]
        plans = [(len(indices), *lists[number].shape) for number, indices in places]
        found = _evaluated(parts, plans, accelerator, calibration, library)
        numbers: list[Any] = [found.latency + found.busy, found.sigma, _bound(found)]
        numbers.append(found.measured)
        start = 0
        for (number, indices), part in zip(places, parts, strict=True):
            rows = slice(start, start := start + len(part.m))
            tables[number].fill(indices, [value[rows] for value in numbers], added[number])
            for index in indices:
                measured = tables[number].measured[index]
                tables[number].known[index] = _known(found.pedigree, measured), found.family
    for one, table, host in zip(lists, tables, added, strict=True):
        table.lengthen(one.operators, host, _left_open(accelerator, calibration))
    return [table.timing() for table in tables]


def _evaluated(
    parts: Sequence[Shapes],
    plans: Sequence[tuple[int, ...]],
    accelerator: Accelerator,
    calibration: Calibration,
    library: str,
) -> Busy:
    """Kernels of one kind, data type and library, of several lists, one after another.

    plans   of each list, operators of the kind and its batch's shape
    """
    shapes, (count, *batch) = one_after_another(parts), plans[0]
    if varying(accelerator):
        machine = tiled(accelerator, tuple(batch), count)
        return _on(shapes, machine, calibration, False, library)
    if len(parts) == 1 and math.prod(batch) <= FEW:
        return _met(shapes, accelerator, calibration, library)
    return _on(shapes, accelerator, calibration, False, library)


def _left_open(accelerator: Accelerator, calibration: Calibration) -> float:
    """Log-standard-deviation of what takes longer than its stand-in, beside the stand-in's own."""
    return calibration.transfer(STAND_IN, accelerator.architecture == COMPARED_ON)


class _Table:
    """Times of a list of operators while they are found; arrays as of `Timing`."""

    def __init__(self, count: int, shape: tuple[int, ...]) -> None:
        self.shape = shape
        self.time, self.sigma = np.zeros((count, *shape)), np.zeros((count, *shape))
        self.bound = np.zeros((count, *shape), dtype=int)
        self.measured = np.zeros((count, *shape), dtype=bool)
        self.known = [("", "")] * count

    def fill(self, indices: list[int], values: Sequence[Array], added: Numeric) -> None:
        """Put time, spread, bound and whether it was measured where some operators stand, (rows,)
        each; and add what the host does [s]."""
        rows = (len(indices), *self.shape)
        time, sigma, bound, measured = (value.reshape(rows) for value in values)
        self.time[indices] = time + added
        self.sigma[indices], self.bound[indices], self.measured[indices] = sigma, bound, measured

    def lengthen(self, operators: Sequence[Operator], added: Numeric, spread: float) -> None:
        """What takes longer than the kernel that stands for it (`Operator.stretch`, `chain`), less
        what the host added [s], and how well that is known (`_left_open`)."""
        for index, one in enumerate(operators):
            if is_number(one.stretch, 1.0) and is_number(one.chain, 0.0):
                continue
            own = (self.time[index] - added) * one.stretch
            longer = (np.asarray(one.stretch) != 1.0) | (one.chain > own)
            self.time[index] = np.maximum(own, one.chain) + added
            self.sigma[index] = np.hypot(self.sigma[index], np.where(longer, spread, 0.0))
            self.measured[index] &= ~longer

    def timing(self) -> Timing:
        """All of it."""
        pedigree, family = zip(*self.known, strict=True) if self.known else ((), ())
        return Timing(self.time, self.sigma, self.bound, self.measured, pedigree, family)

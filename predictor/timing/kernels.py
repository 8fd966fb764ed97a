"""Time of operators on an accelerator: latency + ideal / efficiency, with what limits each."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from predictor.arrays import Array, Mask, Numeric, is_number, tiled, varying
from predictor.hardware import Accelerator
from predictor.records import dataclass, replace
from predictor.timing.alternatives import (
    LARGEST_NARROW,
    ODDER,
    SLACK,
    TOGETHER,
    answering,
    apart,
    as_kept,
    narrowed,
    no_quicker,
    other_ways,
    together,
    whole_rows,
    whole_shares,
    whole_widths,
    wider_cache,
)
from predictor.timing.attention import PROMPTS, without_cache
from predictor.timing.calibration import (
    EMPTY_KERNEL,
    Calibration,
    EfficiencyModel,
    shape_keys,
)
from predictor.timing.data_types import of_wide
from predictor.timing.defaults import PLAIN
from predictor.timing.features import ideal
from predictor.timing.relatives import (
    NARROW,
    among,
    beyond,
    by_variant,
    compute_bound,
    eased,
    in_library,
    machine_of,
    partly_timed,
    stand_in,
)
from predictor.timing.roofline import least_time
from predictor.timing.shapes import (
    COLUMNS,
    Ideal,
    Shapes,
    columns,
    kind_of,
    one_after_another,
)
from predictor.timing.sustained import THROTTLED, beside_each_other, sustained_time
from predictor.work import Operator

BOUNDS = ("compute", "memory", "launch")
"""What limits an operator, as indices of `Timing.bound`."""

STAND_IN, COMPARED_ON = "stand-in", "hopper"
"""Where a calibration's spreads have what a kernel leaves open that is timed by another one in its
stead (`Operator.stretch`), and the architecture on which those were compared
(`data/measurements/h200-sxm-4`): there, and elsewhere."""

DISTANCE_SIGMA, FAR = 0.05, 5.0
"""Added log-standard-deviation per training standard deviation outside the fitted box, and how many
count: beyond, the model answers for the edge of the box, wherever the point lies."""


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


@dataclass(frozen=True, slots=True, eq=False)
class _Busy:
    """Kernels without and with their latency [s], log-standard-deviation, how that is known,
    distance from what was measured, whether nothing was in that data type on the architecture, and
    whether libraries were timed as they choose kernels."""

    found: Ideal
    busy: Array
    latency: Numeric
    sigma: Array
    measured: Mask
    pedigree: str
    family: str
    away: Numeric = 0.0
    foreign: bool = False
    chosen: bool = False


def _as_known(shapes: Shapes, model: EfficiencyModel | None) -> Shapes:
    """Shapes of a kernel by name, of which only what is known of any is: as one of these."""
    if (
        model is None
        or model.kind != shapes.op
        or kind_of(shapes.op, shapes.variants[0]) == shapes.op
    ):
        return shapes
    return replace(shapes, variants=("",) * len(shapes.variants))


def _fitted(
    shapes: Shapes, accelerator: Accelerator, calibration: Calibration, library: str
) -> _Busy:
    kind = kind_of(shapes.op, shapes.variants[0])
    if library == PLAIN:
        resolved, library = calibration.plain(kind, shapes.dtype, accelerator), ""
    else:
        resolved = calibration.resolve(kind, shapes.dtype, accelerator)
    shapes = _as_known(shapes, resolved.model)
    found = answering(shapes, accelerator, resolved.quicker)
    pedigree, family = resolved.pedigree, kind
    latency: Numeric
    sigma = np.full(found.time.shape, resolved.sigma)
    measured = np.zeros(found.time.shape, bool)
    away = outside = np.zeros(())
    if (model := resolved.model) is not None:
        names = np.array(shapes.variants)[shapes.variant.astype(int)] if model.near else None

        def answer(features: Array) -> Array:
            own = in_library(model, features, library, names, accelerator, calibration)
            return np.asarray(own + by_variant(model.offsets, shapes))

        y = answer(found.features)
        latency, away = model.latency, model.distance(found.features)
        outside = away
        if resolved.relatives:
            y, latency, away = among(resolved, found, library, shapes, accelerator)
        elif resolved.relative is not None and np.any(away > 0):
            y, latency, sigma, away = beyond(
                resolved=resolved, relative=resolved.relative, features=found.features,
                y=y, away=away, shapes=shapes, library=library,
            )  # fmt: skip
        elif pedigree == "transferred":
            y = eased(y, found, shapes, model, accelerator, resolved.quicker, answer)
        if np.any(resolved.quicker):
            y = of_wide(y, found, resolved.quicker)
        unknown = (pedigree == "transferred") | (np.asarray(away) > 0)
        y = _no_better(y, shapes, unknown)
        if model.lags:
            latency = latency + by_variant(model.lags, shapes)
        busy = np.maximum(found.time * np.exp(np.maximum(y, 0.0)) + found.fetch, found.least)
        if shapes.op in PROMPTS and model.stacks:
            busy = without_cache(busy, found, shapes, accelerator)
        if shapes.op == "gemm":
            other = calibration.sibling(model, accelerator, library)
            casts = {**(other.casts if other is not None else {}), **model.casts}
            casts = {} if np.any(resolved.quicker) else casts
            busy = narrowed(busy, found, latency, shapes, accelerator, casts, library)
            busy = np.maximum(busy, np.where(unknown, found.time * np.exp(NARROW), 0.0))
        sigma = np.hypot(sigma, DISTANCE_SIGMA * np.minimum(away, FAR))
        if pedigree == "interpolated":
            measured = _measured(model, shapes)
        family = f"{model.kind}/{model.dtype}/{model.accelerator}"
    else:
        assert resolved.constant is not None
        busy = np.maximum(found.time / resolved.constant.efficiency, found.least)
        latency = resolved.constant.latency
    return _Busy(found, busy, latency, sigma, measured=measured, pedigree=pedigree, family=family,
                 away=np.maximum(outside, away), foreign=resolved.foreign(shapes.dtype),
                 chosen=resolved.model is not None and bool(resolved.model.stacks))  # fmt: skip


def _busy(
    shapes: Shapes,
    accelerator: Accelerator,
    calibration: Calibration,
    sustained: bool,
    library: str,
) -> _Busy:
    """Kernels as fitted, under the power cap, and where nothing like them was timed no slower than
    what else does the same (`alternatives`)."""
    one = _fitted(shapes, accelerator, calibration, library)
    found, busy = one.found, one.busy
    far = (np.asarray(one.away) > 0) | one.foreign
    # A kernel that walks over the rows of other ranks' experts, too, runs them in one all the same.
    alone = far & (np.asarray(shapes.idle) <= 0)
    if shapes.op == "moe_gemm" and np.any(alone):
        each = [_busy(part, accelerator, calibration, False, library) for part in apart(shapes)]
        most = SLACK * shapes.batch * sum(part.busy + part.latency for part in each) - one.latency
        busy = np.where(alone, np.minimum(busy, np.maximum(most, found.time)), busy)
    if shapes.op == "attention_decode":
        busy = _decoding(one, shapes, accelerator, calibration, library)
    if (narrow := as_kept(shapes, accelerator, library)) is not None:
        other = _fitted(narrow, accelerator, calibration, library)
        most = np.maximum(other.latency + other.busy - one.latency, other.found.time)
        busy = np.where(shapes.k > LARGEST_NARROW, busy, np.minimum(busy, most))
    if sustained and shapes.op in THROTTLED:
        busy = sustained_time(busy, shapes, found, accelerator, calibration)
    if one.foreign and (ways := other_ways(shapes, accelerator)) is not None:
        plain, beside = ways
        wide = _busy(plain, accelerator, calibration, sustained, library)
        least = np.maximum(found.time, EMPTY_KERNEL - one.latency)
        busy = np.minimum(busy, np.maximum(wide.latency + wide.busy + beside - one.latency, least))
        busy = np.maximum(busy, no_quicker(wide.found, wide.busy, plain, shapes, accelerator))
    if shapes.op == "gemm" and (more := whole_rows(shapes, one.chosen)) is not None:
        padded = _busy(more[0], accelerator, calibration, sustained, library)
        most = more[1] * (padded.busy + padded.latency) - one.latency
        busy = np.where(one.measured, busy, np.minimum(busy, np.maximum(most, found.time)))
    if shapes.op == "gemm" and (wider := whole_widths(shapes, accelerator)) is not None:
        padded = _busy(wider[0], accelerator, calibration, sustained, library)
        whole = padded.busy + padded.latency
        between = np.clip(busy + one.latency, ODDER * whole, whole + wider[1]) - one.latency
        busy = np.where(one.measured, busy, np.maximum(between, found.time))
    return replace(one, busy=busy)


def _decoding(
    one: _Busy, shapes: Shapes, accelerator: Accelerator, calibration: Calibration, library: str
) -> Array:
    """Decoding that took as long as `one`, by the rows of matrix instructions: heads of a key head
    beyond a tile are done beside the first (`together`), fewer take no longer than more of them
    (`whole_shares`), but where that very shape was timed. A narrow cache takes no longer than one
    in 16 bits where kernels for it are other libraries' (TensorRT-LLM's for latents in 8 bits on
    RTX PRO 6000, in which one block walks over a cache, was timed alone)."""
    found, busy = one.found, one.busy
    if np.any(shapes.m > TOGETHER):
        few, beside = together(shapes, accelerator)
        one_tile = _fitted(few, accelerator, calibration, library)
        most = one_tile.latency + one_tile.busy + beside - one.latency
        busy = np.where(shapes.m > TOGETHER, np.minimum(busy, np.maximum(most, found.time)), busy)
    if (more := whole_shares(shapes)) is not None:
        filled = _fitted(more, accelerator, calibration, library)
        most = np.maximum(filled.latency + filled.busy - one.latency, found.time)
        busy = np.where(one.measured, busy, np.minimum(busy, most))
    if (wide := wider_cache(shapes)) is not None:
        kinds = kind_of(shapes.op, shapes.variants[0]), kind_of(wide.op, wide.variants[0])
        if partly_timed(kinds, shapes.dtype, accelerator, calibration, library):
            whole = _fitted(wide, accelerator, calibration, library)
            most = np.maximum(whole.latency + whole.busy - one.latency, found.time)
            busy = np.minimum(busy, most)
    return np.asarray(busy)


def _no_better(y: Array, shapes: Shapes, unknown: Mask) -> Array:
    """y of products and attention, of which no unmeasured one is believed to come nearer to its
    roofline than `NARROW` (decoding that was timed reads at 0.90 of the bandwidth at best)."""
    if shapes.op not in (*THROTTLED, "attention_decode") or not np.any(unknown):
        return y
    return np.where(unknown, np.maximum(y, NARROW), y)


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
) -> _Busy:
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
) -> _Busy:
    """Kernels on an accelerator, or as its relative's are."""
    relative = stand_in(accelerator, calibration)
    if relative is None:
        return _busy(shapes, accelerator, calibration, sustained, library)
    one = _on(shapes, relative, calibration, sustained, library)
    usual = np.maximum(least_time(shapes, relative), 1e-30)
    return replace(
        one,
        found=ideal(shapes, accelerator),
        busy=one.busy * least_time(shapes, accelerator, relative) / usual,
        sigma=np.hypot(one.sigma, accelerator.doubt),
        pedigree="transferred",
    )


def _bound(one: _Busy) -> Array:
    """Index into `BOUNDS` of what takes longest."""
    return np.where(one.latency > one.busy, 2, np.where(compute_bound(one.found), 0, 1))


def _measured(model: EfficiencyModel, shapes: Shapes) -> Mask:
    """Whether each row is a shape that was measured on this accelerator itself."""
    if not model.keys.size:
        return np.zeros(np.shape(shapes.flop), bool)
    keys = shape_keys(shapes.m, shapes.n, shapes.k, shapes.batch)
    at = np.minimum(np.searchsorted(model.keys, keys), model.keys.size - 1)
    return np.asarray(model.keys[at] == keys)


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
) -> _Busy:
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

"""Kernels as a calibration knows them: fitted, of relatives, and no slower than what else does the
same (`alternatives`)."""

from __future__ import annotations

import numpy as np

from predictor.arrays import Array, Mask, Numeric, varying
from predictor.hardware import Accelerator
from predictor.records import dataclass, replace
from predictor.timing.alternatives import (
    LARGEST_NARROW,
    ODDER,
    SLACK,
    TOGETHER,
    UNTUNED,
    answering,
    apart,
    as_kept,
    gated,
    narrowed,
    no_quicker,
    other_ways,
    together,
    usually_held,
    whole_keys,
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
    Resolved,
    shape_keys,
)
from predictor.timing.data_types import of_wide
from predictor.timing.defaults import PLAIN
from predictor.timing.prompts import prompt_ways
from predictor.timing.relatives import (
    NARROW,
    NOTHING,
    among,
    beyond,
    by_variant,
    eased,
    in_library,
    partly_timed,
)
from predictor.timing.shapes import Ideal, Shapes, kind_of, picked
from predictor.timing.sustained import THROTTLED, sustained_time

DISTANCE_SIGMA, FAR = 0.05, 5.0
"""Added log-standard-deviation per training standard deviation outside the fitted box, and how many
count: beyond, the model answers for the edge of the box, wherever the point lies."""


@dataclass(frozen=True, slots=True, eq=False)
class Busy:
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
) -> Busy:
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
            y = _no_more(y, resolved, found, library, shapes, accelerator)
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
        measured = _measured(model, shapes) if pedigree == "interpolated" else measured
        family = f"{model.kind}/{model.dtype}/{model.accelerator}"
    else:
        assert resolved.constant is not None
        busy = np.maximum(found.time / resolved.constant.efficiency, found.least)
        latency = resolved.constant.latency
    return Busy(found, busy, latency, sigma, measured=measured, pedigree=pedigree, family=family,
                 away=np.maximum(outside, away), foreign=resolved.foreign(shapes.dtype),
                 chosen=resolved.model is not None and bool(resolved.model.stacks))  # fmt: skip


def _no_more(
    y: Array,
    resolved: Resolved,
    found: Ideal,
    library: str,
    shapes: Shapes,
    accelerator: Accelerator,
) -> Array:
    """y of kernels that stream, by relatives: no more than with a cache that is as long to fill as
    theirs (`usually_held`), but for what makes it as quick as memory."""
    usual = usually_held(shapes, accelerator)
    if usual is None:
        return y
    most = among(resolved, usual, library, shapes, accelerator)[0]
    streams = np.maximum(found.memory, NOTHING) / np.maximum(found.time, NOTHING)
    return np.asarray(np.minimum(y, np.maximum(most, np.log(streams))))


def busy_of(
    shapes: Shapes,
    accelerator: Accelerator,
    calibration: Calibration,
    sustained: bool,
    library: str,
) -> Busy:
    """Kernels as fitted, under the power cap, and where nothing like them was timed no slower than
    what else does the same (`alternatives`)."""
    one = _fitted(shapes, accelerator, calibration, library)
    if shapes.op in PROMPTS:
        one = _reading(one, shapes, accelerator, calibration, library)
    found, busy = one.found, one.busy
    far = (np.asarray(one.away) > 0) | one.foreign
    # A kernel that walks over the rows of other ranks' experts, too, runs them in one all the same.
    alone = far & (np.asarray(shapes.idle) <= 0)
    if shapes.op == "moe_gemm" and np.any(alone):
        each = [busy_of(part, accelerator, calibration, False, library) for part in apart(shapes)]
        most = SLACK * shapes.batch * sum(part.busy + part.latency for part in each) - one.latency
        busy = np.where(alone, np.minimum(busy, np.maximum(most, found.time)), busy)
    if shapes.op == "moe_gemm" and (three := gated(shapes)) is not None:
        other = _fitted(three, accelerator, calibration, library)
        most = np.maximum(UNTUNED * (other.latency + other.busy) - one.latency, found.time)
        busy = np.where(three.flop != shapes.flop, np.minimum(busy, most), busy)
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
        wide = busy_of(plain, accelerator, calibration, sustained, library)
        least = np.maximum(found.time, EMPTY_KERNEL - one.latency)
        busy = np.minimum(busy, np.maximum(wide.latency + wide.busy + beside - one.latency, least))
        busy = np.maximum(busy, no_quicker(wide.found, wide.busy, plain, shapes, accelerator))
    if shapes.op == "gemm" and (more := whole_rows(shapes, one.chosen)) is not None:
        padded = busy_of(more[0], accelerator, calibration, sustained, library)
        most = more[1] * (padded.busy + padded.latency) - one.latency
        busy = np.where(one.measured, busy, np.minimum(busy, np.maximum(most, found.time)))
    if shapes.op == "gemm" and (wider := whole_widths(shapes, accelerator)) is not None:
        padded = busy_of(wider[0], accelerator, calibration, sustained, library)
        whole = padded.busy + padded.latency
        between = np.clip(busy + one.latency, ODDER * whole, whole + wider[1]) - one.latency
        busy = np.where(one.measured, busy, np.maximum(between, found.time))
    return replace(one, busy=busy)


def _reading(
    one: Busy, shapes: Shapes, accelerator: Accelerator, calibration: Calibration, library: str
) -> Busy:
    """Attention over prompts that took as long as `one`: but where that very shape was timed, no
    longer than other ways to do the same take (`prompt_ways`)."""
    busy = one.busy.copy()
    latency = np.broadcast_to(np.asarray(one.latency, float), busy.shape)
    far = np.broadcast_to((np.asarray(one.away) > 0) | one.foreign, busy.shape)
    for other, times, where in prompt_ways(shapes, far):
        asked = where & ~one.measured
        if not np.any(asked):
            continue
        rows = np.flatnonzero(asked | bool(varying(accelerator)))
        way = _fitted(picked(other, rows), accelerator, calibration, library)
        most = times * (way.latency + way.busy) - latency[rows]
        most = np.maximum(most, one.found.time[rows])
        busy[rows] = np.where(asked[rows], np.minimum(busy[rows], most), busy[rows])
    return replace(one, busy=busy)


def _decoding(
    one: Busy, shapes: Shapes, accelerator: Accelerator, calibration: Calibration, library: str
) -> Array:
    """Decoding that took as long as `one`, by the rows of matrix instructions: heads of a key head
    beyond a tile are done beside the first (`together`), fewer take no longer than more of them
    (`whole_shares`), nor do fewer keys than a tile's (`whole_keys`), but where that very shape was
    timed. A narrow cache takes no longer than one in 16 bits where kernels for it are other
    libraries' (TensorRT-LLM's for latents in 8 bits on RTX PRO 6000, in which one block walks over
    a cache, was timed alone)."""
    found, busy = one.found, one.busy
    if np.any(shapes.m > TOGETHER):
        few, beside = together(shapes, accelerator)
        one_tile = _fitted(few, accelerator, calibration, library)
        most = one_tile.latency + one_tile.busy + beside - one.latency
        busy = np.where(shapes.m > TOGETHER, np.minimum(busy, np.maximum(most, found.time)), busy)
    for more in (whole_shares(shapes), whole_keys(shapes)):
        if more is not None:
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


def _measured(model: EfficiencyModel, shapes: Shapes) -> Mask:
    """Whether each row is a shape that was measured on this accelerator itself."""
    if not model.keys.size:
        return np.zeros(np.shape(shapes.flop), bool)
    keys = shape_keys(shapes.m, shapes.n, shapes.k, shapes.batch)
    at = np.minimum(np.searchsorted(model.keys, keys), model.keys.size - 1)
    return np.asarray(model.keys[at] == keys)

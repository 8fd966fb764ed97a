"""What accelerators that are alike say of shapes: of one of which nothing was measured, or of those
beyond what was."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from predictor.arrays import Array, Numeric, in_order
from predictor.hardware import Accelerator
from predictor.timing.alternatives import answering
from predictor.timing.calibration import VENDOR, Calibration, EfficiencyModel, Resolved
from predictor.timing.defaults import ANY
from predictor.timing.likeness import held_back, per_clock
from predictor.timing.shapes import Ideal, Shapes

REACH = 1.0
"""Training standard deviations outside the fitted box over which an accelerator's own measurements
lose their say against those of its relatives by a factor e. One, as the box's own scale; published
decoding on GH200, measured on large products only, errs by 5.6 % with anything from 0.25 to 4."""

NARROW = 0.06
"""log of the roofline over what products reach on a matrix unit so narrow that all else keeps up
with it: DeepGEMM's on H20 take 0.94 of the peak in the middle (InferSim, SANITY of the shared
kernel tables)."""

NOTHING = 1e-15
"""A time so short that kernels of no work take it [s]."""


QUICKEST = "quickest"
"""In place of a kernel library: whichever runs a shape quickest; the neutral one where none of an
accelerator's architecture was timed."""


def in_library(
    model: EfficiencyModel,
    features: Array,
    library: str,
    names: npt.NDArray[np.str_] | None,
    accelerator: Accelerator,
    calibration: Calibration,
) -> Array:
    """y of an accelerator's model in a kernel library, or in the quickest that was timed there. Of
    one that was not timed there but on a relative of its architecture: in the libraries that both
    know, plus what it adds to them there.
    """
    if library == QUICKEST:
        every = [model.inefficiency(features, name, names) for name in sorted(model.stacks) or [""]]
        return np.asarray(np.minimum.reduce(every))
    if library and model.stacks and library not in model.stacks:
        other = calibration.sibling(model, accelerator, library)
        both = sorted(set(model.stacks) & set(other.stacks)) if other is not None else []
        if other is not None and both:
            own = [model.inefficiency(features, name, names) for name in both]
            there = [other.inefficiency(features, name) for name in both]
            step = other.inefficiency(features, library) - in_order(np.stack(there)) / len(both)
            return np.asarray(np.maximum(in_order(np.stack(own)) / len(both) + step, 0.0))
    return model.inefficiency(features, library, names)


def partly_timed(
    kinds: tuple[str, str],
    dtype: str,
    accelerator: Accelerator,
    calibration: Calibration,
    library: str,
) -> bool:
    """Whether the first of two kinds of kernels that do the same was timed in fewer libraries than
    the other, and not in this one."""

    def libraries(kind: str) -> dict[str, frozenset[str]]:
        found = calibration.resolve(kind, dtype, accelerator)
        models = [model for model, _ in found.relatives]
        if not models and found.model is not None:
            models = [found.model]
        return {one.accelerator: frozenset(one.stacks) for one in models}

    few, every = libraries(kinds[0]), libraries(kinds[1])
    return any(library not in own and own < every.get(at, own) for at, own in few.items())


def stand_in(accelerator: Accelerator, calibration: Calibration) -> Accelerator | None:
    """The accelerator whose efficiencies another takes: its relative, unless it was measured
    itself, under a name of its own."""
    other = accelerator.relative
    if other is None or other.name == accelerator.name:
        return other
    kernels = calibration.kernels
    measured = calibration.once(("measured",), lambda: frozenset(name for _, _, name in kernels))
    return None if accelerator.name in measured else other


def machine_of(accelerator: Accelerator, calibration: Calibration) -> Accelerator:
    """The accelerator itself, or at the end of those that stand in for each other."""
    while (other := stand_in(accelerator, calibration)) is not None:
        accelerator = other
    return accelerator


def eased(
    y: Array,
    found: Ideal,
    shapes: Shapes,
    model: EfficiencyModel,
    accelerator: Accelerator,
    quicker: Numeric,
    answer: Callable[[Array], Array],
) -> Array:
    """y of an accelerator whose processors multiply less per clock than those of its architecture
    that were measured (H20 beside H100): what kept their matrix units waiting, memory on the chip,
    exponentials, issue, is as fast here and hides behind the products. A kernel takes the longer of
    what it would with units as quick as theirs and of what its own need for the arithmetic.

    Units may be narrow in one data type only (integers on Blackwell Ultra).

    quicker  as `Resolved` has it
    answer   y of features
    """
    there = np.log(per_clock(accelerator)) if model.kin is None else model.kin.traits[2]
    dtype = accelerator.wide if np.any(quicker) else shapes.dtype  # whose kernels answer
    slower = np.minimum(np.log(per_clock(accelerator, dtype)) - there, 0.0)
    if not np.any(slower < 0.0):
        return y
    quick = {name: rate * np.exp(-slower) for name, rate in accelerator.peak.items()}
    other = answering(shapes, replace(accelerator, peak=quick), quicker)
    ratio = np.maximum(other.time, NOTHING) / np.maximum(found.time, NOTHING)
    beside = np.log(ratio) + answer(other.features)
    least = np.where(compute_bound(found), np.minimum(y, NARROW), 0.0)
    return np.where(np.asarray(slower) < 0.0, np.maximum(beside, least), y)


def among(
    resolved: Resolved,
    found: Ideal,
    library: str,
    shapes: Shapes,
    accelerator: Accelerator,
) -> tuple[Array, Numeric, Array]:
    """Shapes on an accelerator of whose architecture nothing was measured, or hardly: the mean of
    what other architectures' models, and its own, say of them, each counting by its likeness.

    Products that wait for memory do so however wide the matrix unit is: where it is narrower than
    a relative's, they are as with one as wide (left out, vendors' models apart: MI308X in bf16
    33 -> 19 %, fp8 39 -> 24, blocks 27 -> 22, H100 in fp8 27 -> 20, others within a point, but RTX
    PRO 6000 in nvfp4 27 -> 37; experts and decoding gained nothing).

    resolved   with its relatives, models and their likeness; found   `ideal` of the shapes

    Returns (y, latency [s], distance from what they were measured on).
    """
    own, relatives = f"{ANY}{accelerator.architecture}", resolved.relatives
    wide, every = held_back(accelerator), []
    for model, _ in relatives:

        def answer(features: Array, model: EfficiencyModel = model) -> Array:
            return model.inefficiency(features, library) + by_variant(model.offsets, shapes)

        y = answer(found.features)
        whole = model.accelerator == own or wide
        if whole or shapes.op == "gemm":
            hidden = eased(y, found, shapes, model, accelerator, resolved.quicker, answer)
            y = hidden if whole else np.where(compute_bound(found), y, hidden)
        every.append(y)
    return *blend(relatives, every, accelerator), relatives[0][0].distance(found.features)


def blend(
    relatives: Sequence[tuple[EfficiencyModel, float]],
    every: Sequence[Array],
    accelerator: Accelerator,
) -> tuple[Array, Numeric]:
    """Weighted mean of the y that relatives' models answer, (shapes,) each, and of their latencies
    [s]; `relatives` are models and what each counts. The model of a vendor's accelerators together,
    the last if there is one, says nothing beyond what each of its architectures says: it weighs
    between them (a network of all runs away where none is like the accelerator)."""
    weights = np.array([weight for _, weight in relatives])
    weights = np.maximum(weights / weights.max(), 1e-9)
    latency = sum(
        w * model.latency_on(accelerator) for w, (model, _) in zip(weights, relatives, strict=True)
    )
    stacked = np.stack(every)
    if relatives[-1][0].accelerator.startswith(VENDOR):
        least, most = stacked[:-1].min(axis=0), stacked[:-1].max(axis=0)
        stacked[-1] = np.minimum(np.maximum(stacked[-1], least), most)
    return in_order(weights[:, None] * stacked) / weights.sum(), latency / weights.sum()


def beyond(
    resolved: Resolved,
    relative: EfficiencyModel,
    features: Array,
    y: Array,
    away: Array,
    shapes: Shapes,
    library: str,
) -> tuple[Array, Array, Array, Array]:
    """Shapes outside what was measured on an accelerator: its relatives' efficiency there, times
    the ratio of both where its own measurements end, which counts less the farther off that is.

    Returns (y, latency [s], sigma, distance from what either was measured on).
    """
    own = resolved.model
    assert own is not None
    offsets = by_variant(relative.offsets, shapes)
    edge = relative.inefficiency(np.clip(features, own.low, own.high), library) + offsets
    there = relative.inefficiency(features, library) + offsets
    trust = np.exp(-away / REACH)
    y = np.where(away > 0, there + trust * (y - edge), y)
    latency = relative.latency + trust * (own.latency - relative.latency)
    sigma = np.hypot(resolved.sigma, (1.0 - trust) * resolved.relative_sigma)
    return y, latency, sigma, np.minimum(away, relative.distance(features))


def compute_bound(found: Ideal) -> Array:
    """Whether arithmetic takes each shape longer than its traffic, (shapes,)."""
    return np.asarray(found.compute >= found.memory)


def by_variant(values: Mapping[str, float], shapes: Shapes) -> Numeric:
    """The value of each shape's variant, 0 where it has none, (shapes,)."""
    if not values:
        return 0.0
    table = np.array([values.get(name, 0.0) for name in shapes.variants])
    return np.asarray(table[shapes.variant.astype(int)])

"""Kernels under a power cap: what clocks sustain in back-to-back work."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from predictor.arrays import Array, Numeric
from predictor.hardware import Accelerator
from predictor.timing.calibration import Calibration, Throttle
from predictor.timing.shapes import Ideal, Shapes, peak_of
from predictor.work import Operator

THROTTLED = ("gemm", "moe_gemm", "attention_prefill", "attention_backward")
"""Operators that draw enough power for the cap to bind."""


def throttled(
    throttle: Throttle | None, time: Array, flop: Array, peak: Array, watts: Numeric
) -> Array:
    """Slow a kernel down to what the clocks sustain under the power cap [s].

    peak    FLOP/s of each kernel's data type
    watts   power cap per FLOP/s of 16-bit peak; NaN: that of the fit's device
    """
    if throttle is None:
        return time
    share = flop / np.maximum(time, 1e-12) / peak
    excess = np.log(np.maximum(share / _start(throttle, watts), 1.0))
    return np.asarray(time * np.exp(throttle.gamma * excess / (1.0 + time / throttle.fade)))


def _start(throttle: Throttle, watts: Numeric) -> Numeric:
    """Share of the peak from which on the cap binds; watts as in `throttled`."""
    return throttle.start * np.where(np.isnan(watts), 1.0, watts / throttle.watts)


def _cap(accelerator: Accelerator, calibration: Calibration) -> tuple[Throttle, Numeric] | None:
    """The throttle of an accelerator's architecture, or of the one that it revises, and its own
    watts per FLOP/s of 16-bit peak; None where nobody timed it."""
    known, own = calibration.throttles, accelerator.architecture
    throttle = known.get(own, known.get(own.removesuffix("-ultra")))
    if throttle is None:
        return None
    half = accelerator.peak.get("bf16", accelerator.peak.get("fp16", np.nan))
    return throttle, accelerator.power / half


def sustained_time(
    busy: Array, shapes: Shapes, found: Ideal, accelerator: Accelerator, calibration: Calibration
) -> Array:
    """Kernels under the power cap, each in back-to-back work with itself [s]."""
    cap = _cap(accelerator, calibration)
    if cap is None:
        return busy
    throttle, watts = cap
    peak = shapes.flop / np.maximum(found.compute, 1e-30)
    return throttled(throttle, busy, shapes.flop, peak, watts)


def beside_each_other(
    operators: Sequence[Operator], time: Array, accelerator: Accelerator, calibration: Calibration
) -> Array:
    """Times of operators that take turns under the power cap, (operators, *batch) [s].

    The cap holds for the mean over milliseconds, not for each kernel: the clock is the one that
    lets the operators of a module (a layer, the head) stay below it together, forward and backward
    each, and products among kernels that wait for memory run nearly as fast as in bursts. A Llama
    of 1.2 B parameters trains on an H100 at 684 W of 700; its products reach 0.97 to 1.02 of what
    bursts do, one large product over and over 0.85 (`data/measurements/h100-sxm-2`). What waits for
    memory counts as drawing nothing: at its 510 W of 700 the products of that step would be 8 %
    slower than bursts.

    time   of one execution, in a short burst
    """
    cap = _cap(accelerator, calibration)
    if cap is None:
        return time
    throttle, start = cap[0], _start(*cap)
    found = time.copy()
    near: dict[tuple[str, str], list[int]] = {}
    for index, one in enumerate(operators):
        near.setdefault((one.module, one.phase), []).append(index)
    for at in near.values():
        hot = [i for i in at if operators[i].op in THROTTLED]
        if not hot:
            continue
        ideal = {i: operators[i].flop / peak_of(operators[i].dtype, accelerator) for i in hot}
        work = sum(operators[i].count * ideal[i] for i in hot)
        spent = sum(operators[i].count * time[i] for i in at)
        mean = work / np.maximum(spent, 1e-30)
        excess = throttle.gamma * np.log(np.maximum(mean / start, 1.0))
        for i in hot:
            own = np.minimum(ideal[i] / np.maximum(time[i] * mean, 1e-30), 1.0)
            found[i] = time[i] * np.exp(excess * own / (1.0 + time[i] / throttle.fade))
    return found

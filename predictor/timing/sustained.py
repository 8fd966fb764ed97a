"""Kernels under a power cap: what clocks sustain in back-to-back work."""

from __future__ import annotations

import numpy as np

from predictor.arrays import Array, Numeric
from predictor.hardware import Accelerator
from predictor.timing.calibration import Calibration, Throttle
from predictor.timing.shapes import Ideal, Shapes

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
    start = throttle.start * np.where(np.isnan(watts), 1.0, watts / throttle.watts)
    excess = np.log(np.maximum(share / start, 1.0))
    return np.asarray(time * np.exp(throttle.gamma * excess / (1.0 + time / throttle.fade)))


def sustained_time(
    busy: Array, shapes: Shapes, found: Ideal, accelerator: Accelerator, calibration: Calibration
) -> Array:
    """Kernels in back-to-back work under the power cap of the accelerator's architecture, or of the
    one that it revises, over watts of its own [s]."""
    known, own = calibration.throttles, accelerator.architecture
    throttle = known.get(own, known.get(own.removesuffix("-ultra")))
    if throttle is None:
        return busy
    peak = shapes.flop / np.maximum(found.compute, 1e-30)
    half = accelerator.peak.get("bf16", accelerator.peak.get("fp16", np.nan))
    return throttled(throttle, busy, shapes.flop, peak, accelerator.power / half)

"""Ideal times and features of operators: the same functions to fit efficiencies and to predict.

The ideal is a ceiling on speed: arithmetic at the peak rate in whole waves of whole tiles, or least
traffic to memory, whichever is slower. Features say how far a shape is from that ceiling's
assumptions in terms that mean the same on every accelerator.

Hierarchical roofline: Kundu et al. 2024 (arXiv 2407.14645), section 3; tile and wave
quantisation: NVIDIA, "Matrix multiplication background user's guide".
"""

from __future__ import annotations

import numpy as np

from predictor.arrays import Array
from predictor.hardware import Accelerator
from predictor.precision import ELEMENT_BYTES
from predictor.timing.attention import EXPONENTIALS, USUAL_EXPONENTIALS, attention, decode
from predictor.timing.products import experts, product
from predictor.timing.shapes import Ideal, Shapes, log_of, memory_time

ROWWISE = ("norm", "softmax", "loss", "embedding")
"""Memory-bound operators that work row by row."""

JOINED = ("layernorm", "rmsnorm", "rope", "swiglu")
"""Kernels that engines join with others and plain loops run in parts: work lists count their
traffic as either does."""


def _once(shapes: Shapes) -> Array:
    """Traffic of kernels on a host, which runs them in plain PyTorch whatever a work list counts:
    of those that lists differ on, every element read and written once. What the parts move beyond
    that is part of their efficiency [bytes]."""
    joined = np.array([name.removesuffix("_bwd") in JOINED for name in shapes.variants])
    least = 2.0 * ELEMENT_BYTES.get(shapes.dtype, 4.0) * shapes.m * shapes.n
    return np.where(joined[shapes.variant.astype(int)], least, shapes.bytes)


def _worked(shapes: Shapes, accelerator: Accelerator) -> Array:
    """Arithmetic of a kernel that streams [s]: what ordinary units multiply and add in 32 bits, or
    its exponentials, whichever takes longer; 0 of kernels that have none, whose arithmetic is not
    counted."""
    if not np.any(shapes.exponentials):
        return np.zeros_like(shapes.bytes)
    rate = EXPONENTIALS.get(accelerator.architecture, USUAL_EXPONENTIALS)
    special = shapes.exponentials / (rate * accelerator.sms * accelerator.clock)
    ordinary = accelerator.peak.get("fp32", np.inf)
    counted = np.where(np.asarray(shapes.exponentials) > 0, shapes.flop / ordinary, 0.0)
    return np.asarray(np.fmax(counted, special))


def _streaming(shapes: Shapes, accelerator: Accelerator) -> Ideal:
    """Memory-bound kernel: bytes over bandwidth, unless arithmetic that is counted takes longer.

    The features saturate: a kernel much larger than the cache runs at the bandwidth that its kind
    sustains. Caches grow with the number of processors, so the same scale says how well a small
    kernel fills them. Where a row is reduced, its length counts too.
    """
    moved = _once(shapes) if accelerator.is_host else shapes.bytes
    memory, compute = memory_time(moved, accelerator), _worked(shapes, accelerator)
    floor = np.maximum(memory, compute)
    features = np.zeros((len(floor), 3))
    features[:, 0] = 1.0 / (1.0 + moved / accelerator.l2)
    features[:, 1] = 1.0 / (1.0 + 8.0 * moved / accelerator.l2)
    if shapes.op in ROWWISE:
        features[:, 2] = log_of(np.minimum(np.maximum(shapes.n, 128), 65536))
    return Ideal(floor, compute, moved / accelerator.bandwidth, features)


def ideal(shapes: Shapes, accelerator: Accelerator) -> Ideal:
    """Ideal time and features of each shape on an accelerator.

    Raises InputError where the accelerator lacks the data type's rate.
    """
    if shapes.op == "gemm":
        return product(shapes, accelerator)
    if shapes.op == "moe_gemm":
        return experts(shapes, accelerator)
    if shapes.op == "attention_decode":
        return decode(shapes, accelerator)
    if shapes.op.startswith("attention"):
        return attention(shapes, accelerator)
    return _streaming(shapes, accelerator)

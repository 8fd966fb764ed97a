"""Other ways to do what a kernel does, as shapes: what no good kernel takes much longer than."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from predictor.arrays import Array
from predictor.hardware import Accelerator
from predictor.precision import ELEMENT_BYTES, WEIGHT_BYTES
from predictor.timing.shapes import Shapes

SLACK = 1.5
"""Of the time of experts one after the other, as products of dense layers, what their one kernel
takes at most where nothing like it was measured. Kernels that were timed on A100 and H100 keep
within it (ai-dynamo/aiconfigurator, moe_perf: Mixtral's 16-bit experts, 1 to 128 tokens)."""


def widens(dtype: str) -> bool:
    """Whether weights of a data type are widened to that of the activations as they are read."""
    return WEIGHT_BYTES[dtype] < ELEMENT_BYTES[dtype] == ELEMENT_BYTES["bf16"]


def widened(shapes: Shapes, accelerator: Accelerator) -> tuple[Shapes, Array]:
    """Products of 16-bit weights, and the bytes that a kernel moves which widens narrow ones to
    these before, as engines do where that is faster (vLLM's AWQ from 256 tokens on, exllamav2 from
    50)."""
    half = "bf16" if "bf16" in accelerator.peak else "fp16"
    weights = shapes.n * shapes.k * shapes.batch
    size, stored = ELEMENT_BYTES[half], WEIGHT_BYTES[shapes.dtype]
    plain = replace(shapes, dtype=half, bytes=shapes.bytes + (size - stored) * weights)
    return plain, (stored + size) * weights


def apart(shapes: Shapes) -> tuple[Shapes, Shapes]:
    """The two products of one expert of those that a kernel runs together, as of a dense layer."""
    rows, inner, width = shapes.m, shapes.n, shapes.k
    ups = np.round(shapes.flop / (2.0 * rows * inner * width * shapes.batch)) - 1.0
    one = np.ones_like(rows)

    def product(columns: Array, depth: Array) -> Shapes:
        weights = WEIGHT_BYTES[shapes.dtype] * columns * depth
        moved = weights + ELEMENT_BYTES["bf16"] * rows * (columns + depth)
        return replace(
            shapes, op="gemm", n=columns, k=depth, batch=one,
            flop=2.0 * rows * columns * depth, bytes=moved, idle=0.0 * one,
        )  # fmt: skip

    return product(ups * inner, width), product(width, inner)

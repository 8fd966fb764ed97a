"""Hierarchical roofline of matrix products: registers, shared memory, last-level cache, memory.

For each tiling the bytes that every level moves, over that level's bandwidth; a product takes the
longest of the levels and of the arithmetic in whole waves of tiles, and the tiling that makes this
shortest (arXiv 2407.14645, section 3; Ardalani et al. 2022, arXiv 2211.03309, section 4).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from predictor.arrays import Array
from predictor.hardware import Accelerator
from predictor.precision import ELEMENT_BYTES, WEIGHT_BYTES
from predictor.records import dataclass
from predictor.timing.features import ideal
from predictor.timing.products import TILES
from predictor.timing.shapes import Shapes, peak_of, power_limit

LEVELS = ("compute", "registers", "shared memory", "cache", "memory")
"""What can bind a product, as indices of `Hierarchy.bound`."""

WARP = 64.0
"""Rows and columns of the output that a warp keeps in registers where its instruction is smaller
(CUTLASS's 64 x 64 warp tiles)."""

DEPTH, STAGES = 32.0, 2.0
"""Depth of k of a block's operands in shared memory, and how many such pieces it holds."""

ACCUMULATOR = 4.0
"""Bytes of a partial sum."""


@dataclass(frozen=True, slots=True, eq=False)
class Hierarchy:
    """Products on a machine; arrays of the shapes' length.

    times   seconds that each of `LEVELS` takes by itself, (levels, shapes), in the best tiling
    time    the longest of them [s]
    bound   which that is
    tile    rows and columns of the block's tile, (2, shapes)
    """

    times: Array
    time: Array
    bound: npt.NDArray[np.intp]
    tile: Array

    @property
    def names(self) -> list[str]:
        """Level that binds each product."""
        return [LEVELS[at] for at in np.atleast_1d(self.bound)]


def hierarchy(shapes: Shapes, accelerator: Accelerator) -> Hierarchy:
    """Hierarchical roofline of products C[m,n] = A[m,k] B[k,n], `batch` times.

    shapes        of op 'gemm'
    accelerator   floats, or arrays of the shapes' length; registers and shared memory known

    Traffic of a level whose tile is r x c: ceil(n/c) m k + ceil(m/r) k n elements, and the output;
    from memory, each operand once, and again for every square of resident tiles where not even the
    smaller operand stays in the cache.
    """
    m, n, k, batch = shapes.m, shapes.n, shapes.k, shapes.batch
    left, right = ELEMENT_BYTES[shapes.dtype], WEIGHT_BYTES[shapes.dtype]
    out = ACCUMULATOR / 2.0 * m * n * batch
    peak = peak_of(shapes.dtype, accelerator) * power_limit(accelerator, shapes.dtype)
    operands = (left * m * k + right * k * n) * batch
    stays = np.minimum(left * m * k, right * k * n) <= accelerator.l2

    def traffic(rows: Array | float, columns: Array | float) -> Array:
        reads = np.ceil(n / columns) * m * k * left + np.ceil(m / rows) * k * n * right
        return np.asarray(reads * batch)

    one = np.asarray(accelerator.instruction, float)
    best = np.full((len(LEVELS), *np.shape(m)), np.inf)
    chosen = np.zeros((2, *np.shape(m)))
    for rows, columns in TILES:
        fits = (ACCUMULATOR * rows * columns <= accelerator.registers) & (
            STAGES * DEPTH * (left * rows + right * columns) <= accelerator.shared
        )
        warp = np.minimum(np.maximum(one, WARP), (rows, columns))
        unit = np.minimum(one, (rows, columns))
        side = np.sqrt(accelerator.sms)
        again = traffic(rows * side, columns * side)
        rounds = np.ceil(np.ceil(m / rows) * np.ceil(n / columns) * batch / accelerator.sms)
        arithmetic = rounds * accelerator.sms * 2.0 * rows * columns * k / peak
        times = np.stack(
            np.broadcast_arrays(
                arithmetic,
                traffic(*unit) / accelerator.register_bandwidth,
                (traffic(*warp) + out) / accelerator.shared_bandwidth,
                (traffic(rows * accelerator.cluster, columns) + out) / accelerator.l2_bandwidth,
                (np.where(stays, operands, np.maximum(again, operands)) + out)
                / accelerator.bandwidth,
            )
        )
        better = fits & (times.max(axis=0) < best.max(axis=0))
        best = np.where(better, times, best)
        chosen = np.where(better, np.array([rows, columns]).reshape(2, *(1,) * m.ndim), chosen)
    return Hierarchy(best, best.max(axis=0), np.argmax(best, axis=0), chosen)


WEIGHTED = ("gemm", "moe_gemm")
"""Operators that read weights."""


def least_time(shapes: Shapes, accelerator: Accelerator, held: Accelerator | None = None) -> Array:
    """Roofline of any operator [s]: all levels for products where registers and shared memory are
    known, else arithmetic, cache and memory.

    held   the accelerator that was measured, if another: in its cache benchmarks found the weights
           that a pass finds in memory (`shapes.weights_time`)
    """
    if shapes.op == "gemm" and not np.any(np.isnan(accelerator.shared_bandwidth)):
        return hierarchy(shapes, accelerator).time
    if held is not None and shapes.op in WEIGHTED:
        accelerator = replace(accelerator, l2=held.l2)
    passed = shapes.bytes / accelerator.l2_bandwidth  # all of it goes through the cache
    found = ideal(shapes, accelerator)
    return np.asarray(np.maximum(np.maximum(found.time, found.least), passed))

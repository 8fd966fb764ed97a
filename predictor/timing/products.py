"""Ideal times and features of matrix products: one by one, and those of a mixture's experts."""

from __future__ import annotations

import numpy as np

from predictor.arrays import Array, Index, Mask, Numeric
from predictor.hardware import Accelerator
from predictor.precision import ELEMENT_BYTES, WEIGHT_BYTES
from predictor.timing.shapes import (
    LONG_KERNEL,
    Ideal,
    Log,
    Shapes,
    features_of,
    memory_time,
    peak_of,
    power_limit,
    weights_time,
)

TILES = ((256, 256), (256, 128), (128, 256), (128, 128), (128, 64), (64, 64), (32, 64), (16, 64))
"""Rows and columns of the output tile of one thread block, as in cuBLAS and CUTLASS."""

TYPICAL_TILES = ((256, 128), (128, 128), (64, 64), (16, 64))
"""Tiles whose own cost is a feature, since a library does not always take the best."""

WHOLE_TILES = ((256, 128), (128, 128), (64, 128))
"""Tiles whose waves without a split of k are features: libraries that do not split use these."""

SPLITS = (1, 2, 4, 8)
"""Into how many parts the depth k of a product may be divided among blocks (split-K)."""

_ROWS, _COLUMNS = np.array(TILES, float).T[:, :, None, None]
_PARTS = np.array(SPLITS, float)[:, None]
_TYPICAL = [TILES.index(tile) for tile in TYPICAL_TILES]

_AT_ONCE = 1024
"""Products that are tiled at once: what is in hand of them stays in a core's own cache."""

_FEW = 16
"""Products up to which numbers one by one are quicker than arrays of them."""


def _tilings(
    size: float,
    m: Array,
    n: Array,
    k: Array,
    batch: Array,
    floor: Array,
    sms: Array,
    rate: Array,
    peak: Array,
) -> Array:
    """Products in every tiling of `TILES` x `SPLITS`; all arguments but `size` of one length.

    size    bytes of an element
    floor   least time of the traffic to memory [s]
    rate    of the last-level cache [bytes/s]
    peak    [FLOP/s]

    Returns (7 + len(TYPICAL_TILES), products): least time of the arithmetic in whole waves [s];
    then of the tiling that a library would choose its time [s], waves, share of the last wave,
    share of the tiles that is used, elements of a tile and parts of k; then the time in each of
    `TYPICAL_TILES` [s].
    """
    if len(m) > _AT_ONCE:
        columns = (m, n, k, batch, floor, sms, rate, peak)
        pieces = [
            _tilings(size, *(column[start : start + _AT_ONCE] for column in columns))
            for start in range(0, len(m), _AT_ONCE)
        ]
        return np.concatenate(pieces, axis=1)
    tiles = np.ceil(m / _ROWS) * np.ceil(n / _COLUMNS)  # (tiles, 1, products)
    reads = 1 / np.minimum(_ROWS, m) + 1 / np.minimum(_COLUMNS, n)
    reads = size * batch * k * m * n * reads
    blocks = tiles * batch * _PARTS  # (tiles, splits, products)
    rounds = np.ceil(blocks / sms)
    deep = np.maximum(k / _PARTS, 16.0)
    arithmetic = rounds * sms * (2.0 * _ROWS * _COLUMNS) * deep / peak
    partial = np.where(_PARTS > 1, 8.0 * m * n * batch * _PARTS, 0.0)
    price = np.maximum(arithmetic, floor) + (reads + partial) / rate
    cost, chosen = _cheapest(price.reshape(-1, len(m)))
    tile, part = np.divmod(chosen, len(SPLITS))
    every = np.arange(len(m))
    waves = rounds[tile, part, every]
    elements = _ROWS[tile, 0, 0] * _COLUMNS[tile, 0, 0]
    found = [
        arithmetic.min(axis=(0, 1)),
        cost,
        waves,
        blocks[tile, part, every] / (waves * sms),
        m * n / (tiles[tile, 0, every] * _ROWS[tile, 0, 0] * _COLUMNS[tile, 0, 0]),
        elements,
        _PARTS[part, 0],
    ]
    # A product of nothing has no tiling.
    found[2:] = [np.where(np.isfinite(cost), value, 1.0) for value in found[2:]]
    return np.stack([*found, *(price[at].min(axis=0) for at in _TYPICAL)])


def _cheapest(prices: Array) -> tuple[Array, Index]:
    """Of each column the price of the row that is taken and its number: in turn, a row that is
    cheaper by a thousandth than the one before it that was taken."""
    rows, many = prices.shape
    cost, chosen = np.full(many, np.inf), np.zeros(many, dtype=np.intp)
    if many <= _FEW:
        for at, column in enumerate(prices.T.tolist()):
            least = np.inf
            for number, one in enumerate(column):
                if one < 0.999 * least:
                    least, chosen[at] = one, number
            cost[at] = least
        return cost, chosen
    for number in range(rows):
        one = prices[number]
        better = one < 0.999 * cost
        cost, chosen = np.where(better, one, cost), np.where(better, number, chosen)
    return cost, chosen


def _aligned(size: Array) -> Mask:
    """Whether rows of so many elements start on a boundary of 16 bytes in 16 bits; means of several
    sizes (fractions) count as if they did."""
    return np.asarray((size % 8 == 0) | (size % 1 != 0))


def deep(shapes: Shapes) -> Mask:
    """Products whose depth is no row of either operand: gradients of weights add up over tokens,
    whose rows are as wide as the layer."""
    names = np.array([name == "wgrad" for name in shapes.variants])
    return np.asarray(names[shapes.variant.astype(int)])


def product(shapes: Shapes, accelerator: Accelerator) -> Ideal:
    """Product, over `TILES` x `SPLITS`.

    The ceiling takes the tiling with the fewest wasted waves. The features describe the tiling
    that a library would choose: the one that is fastest when cache traffic counts too, which is
    ceil(n/tn) m k + ceil(m/tm) k n elements, and 8 bytes per output element and split where
    partial sums are added up.
    """
    m, n, k, batch = shapes.m, shapes.n, shapes.k, shapes.batch
    size = ELEMENT_BYTES[shapes.dtype]
    nominal, sms = peak_of(shapes.dtype, accelerator), accelerator.sms
    peak = nominal * power_limit(accelerator, shapes.dtype)
    weights = np.where(batch > 1, 0.0, WEIGHT_BYTES[shapes.dtype] * k * n)
    read = weights_time(weights, accelerator, shapes.cold)
    floor = memory_time(shapes.bytes - weights, accelerator) + read.floor
    machine = sms, accelerator.l2_bandwidth, peak
    best = _tilings(size, m, n, k, batch, floor, *(np.broadcast_to(v, m.shape) for v in machine))
    ceiling, cost, waves, tail, fill, tile, split, *prices = best
    time = np.maximum(ceiling, floor)
    compute = shapes.flop / nominal
    whole: list[Numeric | Log] = []
    for rows, cols in WHOLE_TILES:
        filled = np.ceil(m / rows) * np.ceil(n / cols) * batch / sms
        rounds = np.ceil(filled)
        whole += [filled / rounds, Log(rounds, 0, 4)]
    features = features_of(
        [
            Log(compute / floor, -6, 6),
            Log(np.minimum(time, LONG_KERNEL) / 1e-6),
            Log(cost / time, -1, 6),
            Log(waves, 0, 5),
            tail,
            fill,
            Log(tile),
            Log(split),
            Log(np.minimum(m, 4096)),
            Log(np.minimum(n, 4096)),
            Log(m / n, -6, 6),
            Log(k),
            Log(size * k * n * batch / accelerator.l2, -8, 6),
            Log(shapes.bytes / accelerator.l2, -8, 6),
            np.asarray(_aligned(n) & (_aligned(k) | deep(shapes)), float),
            np.asarray(_aligned(m), float),
            *(Log(price / time, -2, 4) for price in prices),
            # Libraries choose among kernels by the power of two that holds the rows.
            np.ceil(np.log2(np.clip(m, 8, 1024))),
            *whole,
        ],
        len(time),
    )
    memory = shapes.bytes / accelerator.bandwidth
    return Ideal(time, compute, memory, features, read.fetch, read.least)


def experts(shapes: Shapes, accelerator: Accelerator) -> Ideal:
    """The products of a mixture's experts (three matrices where gated, else two), over the experts
    that have tokens.

    m    tokens of one expert
    n    inner size of an expert on this device
    k    hidden size
    batch  experts with tokens
    """
    m, n, k, batch = shapes.m, shapes.n, shapes.k, shapes.batch
    size, nominal = ELEMENT_BYTES[shapes.dtype], peak_of(shapes.dtype, accelerator)
    one = 2.0 * m * n * k * batch
    # Whole blocks are counted of it: some ulps more than three would be one more.
    matrices: Array = np.where(one > 0, shapes.flop / np.maximum(one, 1e-30), 3.0)
    matrices = matrices.round(9)
    weights = matrices * WEIGHT_BYTES[shapes.dtype] * n * k * batch
    read = weights_time(weights, accelerator, shapes.cold)
    floor = memory_time(np.maximum(shapes.bytes - weights, 0.0), accelerator) + read.floor
    compute = shapes.flop / nominal
    time = np.maximum(compute / power_limit(accelerator, shapes.dtype), floor)
    features: list[Numeric | Log] = [
        Log(compute / floor, -6, 6),
        Log(np.minimum(time, 4 * LONG_KERNEL) / 1e-6),
        Log(weights / accelerator.l2, -6, 6),
        Log(np.clip(m, 1, 4096)),
        Log(n),
        Log(k),
        Log(batch),
        Log(size * m * batch * k / accelerator.l2, -8, 6),
        # Some libraries walk over the rows of every expert, here or elsewhere.
        np.log1p(shapes.idle),
        Log(np.clip((1.0 + shapes.idle) * m * batch, 1, 131072)),
        matrices,
    ]
    # Experts of a model have as many tokens as fall on them, not those that fill their tiles: rows
    # count as they are beyond a whole tile.
    across = batch * np.ceil((matrices - 1.0) * n / 128.0) / accelerator.sms
    features += [Log(np.maximum(m / rows, 1.0) * across, -4, 4) for rows in (16.0, 64.0, 128.0)]
    memory = shapes.bytes / accelerator.bandwidth
    kept = features_of(features, len(time))
    return Ideal(time, compute, memory, kept, read.fetch, read.least)

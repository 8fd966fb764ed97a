"""Other ways to attend to a prompt, as shapes: what no kernel takes much longer than.

Kernels of engines were timed with heads of 64, 128, 192 and 256 elements, with few windows, and
with prompts of whole tiles. Between and beyond, fits of one accelerator run away: heads of 192 took
seventeen times as long as ones of 256 (vLLM over a cache of 8 bits on B200), a window of 1,024
tokens twelve times as long as all keys (heads of 256 in fp8 on H100).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from predictor.arrays import Array, Mask
from predictor.precision import ELEMENT_BYTES
from predictor.timing.attention import ATTENTION_TILE, LEAST_TILE
from predictor.timing.shapes import ALONE, Shapes

LARGE_HEAD = 256.0
"""Elements of a head from which on it may be two halves of a size that every kernel has."""

TWICE = 1.5
"""Arithmetic of heads in two halves, each of which needs all scores: 2 (d + d / 2) over 2 d."""

WAYS_SLACK = 1.5
"""How much longer than another way to do the same a kernel may take that was not timed. In tables
that have both (ai-dynamo/aiconfigurator, context_attention_perf: 251,000 pairs of 30 us and more)
windows take 0.70 times what all keys do as a median and 1.48 times in one of a hundred; heads of
192 elements 0.81 and 1.55 times what those of 256 do (15,300)."""

FEW_TILES = 4.0
"""Tiles of rows up to which a prompt that fills none is looked at: beyond, a part of a tile is less
than a quarter."""


def prompt_ways(shapes: Shapes, far: Mask) -> Iterator[tuple[Shapes, float, Mask]]:
    """The same attention by other shapes, how many times their time it takes at most, and which
    rows that says something of, (shapes,).

    far   rows of which nothing like it was timed

    Windows are a mask over all keys that any row of the prompt reaches, heads are padded to the
    next power of two, rows to whole tiles. Then heads from `LARGE_HEAD` on are cut in halves, where
    nothing like them was timed: some kernels for large heads are as slow as they were timed (L40S,
    RTX PRO 6000).
    """
    if shapes.variants[0] in ALONE:
        return
    plain = _whole_tiles(_padded_heads(_without_window(shapes)))
    windows = np.broadcast_to(np.asarray(shapes.windowed, float) > 0, shapes.m.shape)
    changed = windows | (plain.k != shapes.k) | (plain.m != shapes.m)
    if np.any(changed):
        yield plain, WAYS_SLACK, changed
    if np.any(large := (plain.k >= LARGE_HEAD) & far):
        half = replace(plain, k=0.5 * plain.k, batch=2.0 * plain.batch)
        yield half, WAYS_SLACK * TWICE, large


def _padded_heads(shapes: Shapes) -> Shapes:
    """Heads with elements of zero up to the next power of two."""
    padded = np.exp2(np.ceil(np.log2(np.maximum(shapes.k, 1.0))))
    more = padded / np.maximum(shapes.k, 1.0)
    return replace(shapes, k=padded, flop=shapes.flop * more, bytes=shapes.bytes * more)


def _without_window(shapes: Shapes) -> Shapes:
    """Every key that is read is met, but for those behind the mask."""
    windowed = np.asarray(shapes.windowed, float) > 0
    if not np.any(windowed):
        return shapes
    reach = shapes.n * (1.0 + np.asarray(shapes.idle, float))
    steps = 2.5 if shapes.op == "attention_backward" else 1.0
    seen = np.maximum(reach - 0.5 * np.minimum(shapes.m, reach), 1.0)
    flop = steps * 4.0 * shapes.k * shapes.m * shapes.batch * seen
    return replace(
        shapes,
        n=np.where(windowed, reach, shapes.n),
        flop=np.where(windowed, np.maximum(flop, shapes.flop), shapes.flop),
        idle=np.where(windowed, 0.0, shapes.idle),
        windowed=np.where(windowed, 0.0, shapes.windowed),
    )


def _whole_tiles(shapes: Shapes) -> Shapes:
    """Rows of zeros up to the least tile, or up to whole ones."""
    tile = np.where(shapes.m <= LEAST_TILE, float(LEAST_TILE), float(ATTENTION_TILE))
    rows = np.ceil(shapes.m / tile) * tile
    rows = np.where((shapes.m > 0) & (rows <= FEW_TILES * ATTENTION_TILE), rows, shapes.m)
    more: Array = rows / np.maximum(shapes.m, 1e-9)
    queries = 4.0 * ELEMENT_BYTES[shapes.dtype] * (rows - shapes.m) * shapes.k * shapes.batch
    return replace(
        shapes,
        m=rows,
        n=np.maximum(shapes.n, rows),
        flop=shapes.flop * more,
        bytes=shapes.bytes + queries,
    )

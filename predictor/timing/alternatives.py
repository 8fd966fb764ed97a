"""Other ways to do what a kernel does, as shapes: what no good kernel takes much longer than."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from predictor.arrays import Array, Numeric
from predictor.hardware import Accelerator
from predictor.precision import ELEMENT_BYTES, PEAK, WEIGHT_BYTES
from predictor.timing.calibration import EMPTY_KERNEL
from predictor.timing.features import ideal
from predictor.timing.products import deep
from predictor.timing.shapes import Ideal, Shapes, peak_of
from predictor.work import Operator

SLACK = 3.0
"""Of the time of experts one after the other, as products of dense layers, what their one kernel
takes at most where nothing like it was measured (accelerators left out of whose architecture
nothing is known, in 16 bits, 8, blocks of 8 and 4: 19, 21, 21 and 25 %; with half as much 21, 20,
22 and 29, without a bound 20, 22, 20 and 24, but 48 instead of 38 % in the worst)."""


CAST_BANDWIDTH = 0.8
"""Share of the memory's bandwidth that a cast of many elements reaches (aiconfigurator's casts to
fp8 of more than 2^24 elements: 0.75 to 0.87 on H100, H200, B200)."""

WIDENING, WIDENED_ROWS = 4.0, 128.0
"""Operations outside the matrix unit that widen a weight (its shift, mask, conversion and scale),
done again for so many rows of the output, those of a tile."""

VECTOR = 16.0
"""Rate of a matrix unit in 16 bits over that of the processor's other units, where that is not
stated: A100's (312 and 19.5 TFLOP/s; 12 on H200, 15 on MI355X)."""

WIDER = {
    "nvfp4": "fp8",
    "mxfp4": "fp8",
    "mxfp8": "bf16",
    "fp8": "bf16",
    "fp8_block": "bf16",
    "int8": "bf16",
    "sq": "bf16",
}
"""The next wider data type, whose products those of a narrower one replace."""


def widens(dtype: str) -> bool:
    """Whether weights of a data type are widened to that of the activations as they are read."""
    return WEIGHT_BYTES[dtype] < ELEMENT_BYTES[dtype] == ELEMENT_BYTES["bf16"]


def _operands(shapes: Shapes) -> tuple[Array, Array]:
    """Elements of a product's weights, or of all matrices of experts, and of what they multiply."""
    rows, columns, depth = shapes.m, shapes.n, shapes.k
    matrices: Numeric = 1.0
    if shapes.op == "moe_gemm":
        matrices = shapes.flop / np.maximum(2.0 * rows * columns * depth * shapes.batch, 1.0)
    inputs = rows * (depth + (matrices - 1.0) * columns) * shapes.batch
    return matrices * columns * depth * shapes.batch, inputs


def in_type(shapes: Shapes, dtype: str) -> Shapes:
    """The same products with operands of another data type."""
    weights, inputs = _operands(shapes)
    more = (WEIGHT_BYTES[dtype] - WEIGHT_BYTES[shapes.dtype]) * weights
    more = more + (ELEMENT_BYTES[dtype] - ELEMENT_BYTES[shapes.dtype]) * inputs
    return replace(shapes, dtype=dtype, bytes=shapes.bytes + more)


def answering(shapes: Shapes, accelerator: Accelerator, quicker: Numeric) -> Ideal:
    """`features.ideal` of shapes; with the features of the same products in 16 bits where those
    stand for a narrower type's, which has `quicker` times their peak (0: its own kernels do)."""
    found = ideal(shapes, accelerator)
    if not np.any(quicker) or shapes.op not in ("gemm", "moe_gemm"):
        return found
    half = in_type(shapes, accelerator.wide)
    return replace(found, features=ideal(half, accelerator).features)


HELD_FOR = 20e-6
"""How long memory takes to fill a cache of most accelerators on which kernels that stream were
timed (A100 20 us, H100 15, B200 16, T4 13, V100 7) [s]."""

MULTIPLYING = ("gemm", "moe_gemm", "attention")
"""Beginnings of the names of operators that do not stream."""


def usually_held(shapes: Shapes, accelerator: Accelerator) -> Ideal | None:
    """`features.ideal` of kernels that stream, as if the cache were no longer to fill than usual;
    None where it is not, or of others. What keeps a small kernel from the memory's rate takes time,
    not a share of what a cache holds: with Ascend 910B's 192 MB a loss over 200 MB took 72 times
    what its bytes do. No kernel is said to be quicker than memory by that."""
    longest = HELD_FOR * np.asarray(accelerator.bandwidth)
    if shapes.op.startswith(MULTIPLYING) or np.all(np.asarray(accelerator.l2) <= longest):
        return None
    return ideal(shapes, replace(accelerator, l2=np.minimum(accelerator.l2, longest)))


def other_ways(shapes: Shapes, accelerator: Accelerator) -> tuple[Shapes, Array] | None:
    """The same products in the next wider data type, and what is to be done beside them [s]; None
    where there is no such, or its peak is higher.

    Narrow weights are widened in registers, or before, by a kernel of its own, as engines do where
    that is faster (vLLM's AWQ from 256 tokens on, exllamav2 from 50). The activations of a narrower
    product are narrowed, unless they come so.
    """
    if shapes.op not in ("gemm", "moe_gemm"):
        return None
    half = accelerator.wide
    wider = half if widens(shapes.dtype) else WIDER.get(shapes.dtype, "").replace("bf16", half)
    narrow = half if widens(shapes.dtype) else PEAK.get(shapes.dtype, shapes.dtype)
    above, own = accelerator.peak.get(PEAK.get(wider, wider)), accelerator.peak.get(narrow)
    if above is None or own is None or np.any(above > own):
        return None
    rows, weights, inputs = shapes.m, *_operands(shapes)
    stored, read = WEIGHT_BYTES[shapes.dtype], ELEMENT_BYTES[shapes.dtype]
    plain = in_type(shapes, wider)
    copying = CAST_BANDWIDTH * accelerator.bandwidth
    if not widens(shapes.dtype):
        cast = EMPTY_KERNEL + (read + ELEMENT_BYTES[wider]) * inputs / copying
        return plain, np.asarray(np.where(ELEMENT_BYTES[wider] == read, 0.0, cast))
    before = EMPTY_KERNEL + (stored + ELEMENT_BYTES[wider]) * weights / copying
    rate = accelerator.peak.get("fp32", accelerator.peak[half] / VECTOR)
    within = WIDENING * weights * np.ceil(rows / WIDENED_ROWS) / rate
    return plain, np.fmin(before, within)


def no_quicker(
    wide: Ideal, busy: Array, plain: Shapes, shapes: Shapes, accelerator: Accelerator
) -> Array:
    """Least time of products that widen their weights as they read them, of which nothing was timed
    [s]: where arithmetic bounds the wider ones, they do that, too, and only fewer bytes come; of
    other products none.

    wide, busy   of the wider products `plain`: `features.ideal`, and their time [s]
    """
    if not widens(shapes.dtype):
        return np.zeros_like(busy)
    saved = (plain.bytes - shapes.bytes) / accelerator.bandwidth
    return np.where(wide.compute >= wide.memory, busy - saved, 0.0)


def _cast_traffic(shapes: Shapes, accelerator: Accelerator) -> Array:
    """Time to narrow a product's input, but for the launch [s]."""
    width = ELEMENT_BYTES["bf16"] + ELEMENT_BYTES[shapes.dtype]
    moved = width * shapes.m * shapes.k * shapes.batch
    return np.asarray(moved / (CAST_BANDWIDTH * accelerator.bandwidth))


def narrowed(
    busy: Array,
    found: Ideal,
    latency: Numeric,
    shapes: Shapes,
    accelerator: Accelerator,
    casts: Mapping[str, float],
    library: str,
) -> Array:
    """Products of a narrow data type with a kernel that narrows their input, or without where
    another does it on the way. Tables of engines' layers time both kernels (`casts`: launch of the
    one by library [s]), others the product alone."""
    if not casts:
        narrow = ELEMENT_BYTES[shapes.dtype] < ELEMENT_BYTES["bf16"]
        if not narrow or shapes.variants[0].startswith("bmm") or accelerator.is_host:
            return busy
        moving = (1.0 - shapes.joined) * _cast_traffic(shapes, accelerator)
        return np.asarray(busy + moving + EMPTY_KERNEL * (shapes.joined <= 0.0))
    if not np.any(np.asarray(shapes.joined) != 0):
        return busy
    launch = casts.get(library, casts.get("", 0.0))
    return without_cast(busy, found, latency, shapes, accelerator, launch)


def without_cast(
    busy: Array,
    found: Ideal,
    latency: Numeric,
    shapes: Shapes,
    accelerator: Accelerator,
    launch: float,
) -> Array:
    """Products whose input another kernel narrows on the way: without the launch [s] and the
    traffic of a cast, but never faster than their ideal [s], nor than their weights come. Where
    `joined` is below zero, the cast moves that share more."""
    cast = launch * (shapes.joined > 0) + _cast_traffic(shapes, accelerator)
    least = np.maximum(found.time + EMPTY_KERNEL - latency, found.least)
    return np.asarray(np.maximum(busy - shapes.joined * cast, np.minimum(busy, least)))


EIGHT, TIMED_ROWS, ODD_ROWS = 8.0, 17.0, 1.07
"""Rows of which a product has whole multiples without a remainder; rows up to which tables of
libraries have every number (aiconfigurator's: 1 to 17); and of the time of the next multiple, what
other rows take at most in libraries that were timed (one row beyond a tile in fp8 by vLLM and
SGLang on H100 and H200: 1.06 of it; in 16 bits, in TensorRT-LLM and on others 0.97 to 1.03)."""


def whole_rows(shapes: Shapes, tabled: bool = False) -> tuple[Shapes, float] | None:
    """Products with rows of zeros up to a multiple of `EIGHT`, which whoever tunes or writes a
    kernel may add, and how much longer at most others take; None where all have such. Of `tabled`
    libraries, those of more than `TIMED_ROWS`. Rows are tokens, which no
    kernel has to find aligned (but in gradients of weights, whose rows are columns of an operand):
    of 1,600 products in blocks of 8 bits on MI355X whose rows are no multiple, half take 0.97 to
    1.02 of those that are the next (AITER's tuning). Tables in which such rows all lie one beyond a
    tile, or are few, do not tell the one from the other. Means of several sizes stay as they are.
    """
    beyond, longer = (TIMED_ROWS, ODD_ROWS) if tabled else (0.0, 1.0)
    odd = (shapes.m > beyond) & (shapes.m % 1.0 == 0.0) & (shapes.m % EIGHT != 0.0)
    odd &= ~deep(shapes)
    if not np.any(odd):
        return None
    rows = np.where(odd, np.ceil(shapes.m / EIGHT) * EIGHT, shapes.m)
    wide = ELEMENT_BYTES[shapes.dtype] * shapes.k + ELEMENT_BYTES["bf16"] * shapes.n
    whole = replace(
        shapes,
        m=rows,
        flop=shapes.flop * rows / np.maximum(shapes.m, 1.0),
        bytes=shapes.bytes + (rows - shapes.m) * wide * shapes.batch,
    )
    return whole, longer


ODDER = 0.85
"""Of the time of a product whose rows start on boundaries of 16 bytes, what one of a few columns
less takes at least where nothing like it was timed: access that is not aligned is no quicker, but
for waves that are fuller (0.87 and more of what tables of several such widths predict)."""


def whole_widths(shapes: Shapes, accelerator: Accelerator) -> tuple[Shapes, Array] | None:
    """Products with columns of zeros up to a multiple of `EIGHT`, and the time to copy operands and
    outcome [s], which nobody need take longer than; None where all have such. A table whose only
    odd width is 100 (MI355X's) knows nothing of a wide layer's: GPT-3 13B's 5,140 took 60 times as
    long as 5,144, or two thirds. Means of several sizes stay as they are, and products in 32 bits,
    whose tables have many such widths; those of tf32 are known by 16 bits'."""
    if shapes.dtype == "fp32":
        return None
    odd = [(size % 1.0 == 0.0) & (size % EIGHT != 0.0) for size in (shapes.n, shapes.k)]
    if not np.any(odd):
        return None
    columns, depth = (
        np.where(one, np.ceil(size / EIGHT) * EIGHT, size)
        for one, size in zip(odd, (shapes.n, shapes.k), strict=True)
    )
    more = columns * depth / np.maximum(shapes.n * shapes.k, 1.0)
    wide = replace(shapes, n=columns, k=depth, flop=shapes.flop * more, bytes=shapes.bytes * more)
    return wide, 2.0 * wide.bytes / (CAST_BANDWIDTH * accelerator.bandwidth)


UNTUNED = 2.0
"""How many times as long as gated experts of the same sizes those without a gate take at most,
which are two thirds of the work. Assumed: of one family of models alone was that timed (Nemotron's,
464 to 2,688 wide), up to about twice where nobody tuned a kernel for it."""


def gated(shapes: Shapes) -> Shapes | None:
    """Experts of two matrices with a third one, which is a gate; None where all have three."""
    one = 2.0 * shapes.m * shapes.n * shapes.k * shapes.batch
    matrices = np.round(shapes.flop / np.maximum(one, 1e-30), 6)
    if not np.any(two := (one > 0) & (matrices <= 2.0)):
        return None
    inner = 2.0 * ELEMENT_BYTES["bf16"] * shapes.m * shapes.n * shapes.batch
    more = WEIGHT_BYTES[shapes.dtype] * shapes.n * shapes.k * shapes.batch + inner
    return replace(
        shapes,
        flop=np.where(two, shapes.flop + one, shapes.flop),
        bytes=np.where(two, shapes.bytes + more, shapes.bytes),
    )


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
            flop=2.0 * rows * columns * depth, bytes=moved, idle=np.zeros_like(rows),
        )  # fmt: skip

    return product(ups * inner, width), product(width, inner)


TOGETHER, PADDED, BUSY = 16.0, 16.0, 0.5
"""Query heads of a key head that decoding was timed with, up to which its time hardly grows
(ai-dynamo/aiconfigurator: 0.8 of the bandwidth with 1 and with 16 on eight accelerators); rows of
a matrix instruction; share of the peak that attention's products reach (`defaults`: 0.45, 0.55)."""


def together(shapes: Shapes, accelerator: Accelerator) -> tuple[Shapes, Array]:
    """Decoding with as many heads of a key head as were timed, and the arithmetic of the others
    [s], over keys and values that are on the chip already."""
    share = np.minimum(TOGETHER / np.maximum(shapes.m, 1.0), 1.0)
    rows = np.ceil(shapes.m / PADDED) * PADDED / np.maximum(shapes.m, 1.0)
    rate = BUSY * peak_of(shapes.dtype, accelerator)
    few = replace(shapes, m=np.minimum(shapes.m, TOGETHER), flop=shapes.flop * share)
    return few, np.asarray(shapes.flop * rows * (1.0 - share) / rate)


def whole_shares(shapes: Shapes) -> Shapes | None:
    """Decoding with heads of a key head up to the next power of two, as a matrix instruction has
    its rows in any case; None where all have such numbers. Numbers beyond `TOGETHER` stay."""
    whole = np.exp2(np.ceil(np.log2(np.maximum(shapes.m, 1.0))))
    rows = np.where(shapes.m <= TOGETHER, whole, shapes.m)
    if not np.any(rows != shapes.m):
        return None
    more = rows / np.maximum(shapes.m, 1e-9)
    queries = 2.0 * ELEMENT_BYTES[shapes.dtype] * (rows - shapes.m) * shapes.k * shapes.batch
    return replace(shapes, m=rows, flop=shapes.flop * more, bytes=shapes.bytes + queries)


FEWEST_KEYS = 128.0
"""Keys up to which decoding takes no longer with fewer of them: those of one tile (16 keys take
0.95 times what 128 do as a median and 1.13 times in one of a hundred of 60,000 pairs of the shared
tables, 64 keys 0.97 and 1.13)."""


def whole_keys(shapes: Shapes) -> Shapes | None:
    """Decoding over the keys of a whole tile; None where every cache has as many."""
    if not np.any(few := (shapes.n > 0) & (shapes.n < FEWEST_KEYS)):
        return None
    more = np.where(few, FEWEST_KEYS / np.maximum(shapes.n, 1e-9), 1.0)
    queries = 2.0 * ELEMENT_BYTES[shapes.dtype] * shapes.m * shapes.k * shapes.batch
    queries = np.minimum(queries, shapes.bytes)
    return replace(
        shapes,
        n=shapes.n * more,
        flop=shapes.flop * more,
        bytes=queries + (shapes.bytes - queries) * more,
        idle=np.where(few, np.maximum((1.0 + shapes.idle) / more - 1.0, 0.0), shapes.idle),
    )


WIDER_CACHE = {"mla_kv8": ("mla", 1.0), "kv8": ("", 2.0)}
"""Decoding over a cache in 16 bits beside that over a narrower one, and how often a key's elements
are in it: latents once, keys and values."""


def wider_cache(shapes: Shapes) -> Shapes | None:
    """Decoding over the same keys in 16 bits, in place of fewer; None where they have as many."""
    if shapes.variants[0] not in WIDER_CACHE:
        return None
    name, parts = WIDER_CACHE[shapes.variants[0]]
    elements = (parts * shapes.n + 2.0 * shapes.m) * shapes.k * shapes.batch
    moved = ELEMENT_BYTES["bf16"] * elements  # queries and what comes of them, too
    return replace(shapes, variants=(name,), bytes=np.maximum(shapes.bytes, moved))


AS_KEPT = {"sglang": ("hopper", "blackwell", "blackwell-ultra")}
"""Libraries whose attention over prompts multiplies in the cache's 8 bits, and where: SGLang's
narrows queries for FA3 and, but for XQA, for TensorRT-LLM's kernels (python/sglang/srt/layers/
attention/flashattention_backend.py, `q.to(self.kv_cache_dtype)`, and trtllm_mha_backend.py)."""

LARGEST_NARROW = 256.0
"""Elements of a head up to which FA3 takes queries in 8 bits (the same file, `layer.head_dim`)."""


def as_kept(shapes: Shapes, accelerator: Accelerator, library: str) -> Shapes | None:
    """Attention over prompts in the data type of its narrow cache, of heads of up to
    `LARGEST_NARROW`; None where that is not so."""
    if shapes.op != "attention_prefill" or shapes.variants[0] != "kv8":
        return None
    there = accelerator.architecture in AS_KEPT.get(library, ())
    if not there or "fp8" not in accelerator.peak or np.all(shapes.k > LARGEST_NARROW):
        return None
    return replace(shapes, dtype="fp8", variants=("flash",))


def padded(operators: Sequence[Operator], accelerator: Accelerator) -> list[Operator]:
    """Operators as an accelerator runs them: one that states no rate in 32 bits has matrix units
    alone, which pad heads that do not fit them (TPUs, Gaudi)."""
    half = next((one for one in ("bf16", "fp16") if one in accelerator.peak), "")
    if "fp32" in accelerator.peak or not half:
        return list(operators)
    heads = [one.core and one.op == "gemm" and one.dtype == "fp32" for one in operators]
    every = zip(operators, heads, strict=True)
    return [replace(one, dtype=half) if apart else one for one, apart in every]

"""Ideal times and features of operators: the same functions to fit efficiencies and to predict.

The ideal is a ceiling on speed: arithmetic at the peak rate in whole waves of whole tiles, or least
traffic to memory, whichever is slower. Features say how far a shape is from that ceiling's
assumptions in terms that mean the same on every accelerator.

Hierarchical roofline: Kundu et al. 2024 (arXiv 2407.14645), section 3; tile and wave
quantisation: NVIDIA, "Matrix multiplication background user's guide".
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from predictor.arrays import Array, Mask, Numeric
from predictor.hardware import Accelerator, matrix_energy
from predictor.precision import ELEMENT_BYTES, PEAK, WEIGHT_BYTES
from predictor.work import Operator

TILES = ((256, 256), (256, 128), (128, 256), (128, 128), (128, 64), (64, 64), (32, 64), (16, 64))
"""Rows and columns of the output tile of one thread block, as in cuBLAS and CUTLASS."""

TYPICAL_TILES = ((256, 128), (128, 128), (64, 64), (16, 64))
"""Tiles whose own cost is a feature, since a library does not always take the best."""

WHOLE_TILES = ((256, 128), (128, 128), (64, 128))
"""Tiles whose waves without a split of k are features: libraries that do not split use these."""

SPLITS = (1, 2, 4, 8)
"""Into how many parts the depth k of a product may be divided among blocks (split-K)."""

ATTENTION_TILE, LEAST_TILE = 128, 64
"""Query rows of one thread block of FlashAttention-2 and -3: usually, and at least (no measured
prompt of the shared tables is faster than whole tiles of the least)."""

COPIES = 5.0
"""Sets of weights between which the kernel benchmarks turn (ai-dynamo/aiconfigurator). In a real
step all weights are cold; the difference there is 0.3 % at most (GPT-2 124M to Llama-3 70B)."""

SPILL = 1.5
"""A cache that is read over and over stays near up to 1 / SPILL of the last-level cache, and not at
all from 2 / SPILL on (aiconfigurator's tables: hits at 0.7, misses at 1.4, L40S and H100)."""

CLOCK = 0.45
"""Exponent of the clock over power: dynamic power is clock x voltage squared, and voltage rises a
little slower than the clock. Of the text-book range 1/3 to 1/2."""

EXPONENTIALS = {"blackwell-ultra": 32.0}
"""Exponentials per clock of a processor's special function units, where not `USUAL_EXPONENTIALS`:
Blackwell Ultra doubles them for attention (NVIDIA, "Inside Blackwell Ultra", 2025)."""

USUAL_EXPONENTIALS = 16.0
"""CUDA programming guide, throughput of native arithmetic instructions: 16 from 5.x to 10.0."""

ROWWISE = ("norm", "softmax", "loss", "embedding")
"""Memory-bound operators that work row by row."""

STEADY = 8192
"""Rows or keys of attention beyond which a longer sequence is more of the same."""

LONG_KERNEL = 5e-3
"""Beyond this ideal time a kernel's start and end no longer show in its efficiency [s]."""


@dataclass(frozen=True, slots=True, eq=False)
class Shapes:
    """Operators of one kind and data type as flat columns of one length."""

    op: str
    dtype: str
    variants: tuple[str, ...]  # names; `variant` indexes them
    variant: Array
    m: Array
    n: Array
    k: Array
    batch: Array
    flop: Array
    bytes: Array
    idle: Numeric = 0.0  # rows of experts elsewhere, per row of its own; keys outside the window
    windowed: Numeric = 0.0  # 1 where a kernel for windows runs, whether the window binds or not
    sharing: Numeric = 1.0  # query heads of a prompt that share a key and value head
    joined: Numeric = 0.0  # 1 where a product's input comes as narrow as it is multiplied
    cold: Numeric = 0.0  # 1 where weights and cached keys come from memory, as in a whole model


@dataclass(frozen=True, slots=True, eq=False)
class Ideal:
    """Per shape: the ideal time [s]; arithmetic at the peak rate and all bytes at the memory's
    bandwidth [s], which decide what bounds a kernel; the features, (shapes, F); and what comes on
    top where operands come from memory that benchmarks find in the cache [s]."""

    time: Array
    compute: Array
    memory: Array
    features: Array
    fetch: Numeric = 0.0


def kind_of(op: str, variant: str) -> str:
    """Name under which efficiencies are kept: batched products apart from others, elementwise
    kernels each for itself, the remaining memory-bound operators by direction."""
    if variant.startswith("bmm"):
        return "bmm"
    if op == "elementwise" or variant in ("flash2", "mla", "kv8", "mla_kv8", "paged"):
        return f"{op}.{variant}"
    if op in ("norm", "softmax", "loss", "embedding"):
        return f"{op}.{'bwd' if variant.endswith('bwd') else 'fwd'}"
    return op


COLUMNS = ("m", "n", "k", "batch", "flop", "bytes", "idle", "windowed", "sharing", "joined")
"""Numbers of an operator that its time depends on."""


def columns(operators: list[Operator], shape: tuple[int, ...]) -> Shapes:
    """Stack operators of one kind and data type; each contributes one row per plan of `shape`."""
    names = tuple(dict.fromkeys(operator.variant for operator in operators))

    def column(values: list[Numeric]) -> Array:
        found = np.empty((len(values), *shape))
        for row, value in enumerate(values):
            found[row] = value
        return found.reshape(-1)

    m, n, k, batch, flop, moved, idle, windowed, sharing, joined = (
        column([getattr(operator, name) for operator in operators]) for name in COLUMNS
    )
    variant = column([float(names.index(operator.variant)) for operator in operators])
    op, dtype = operators[0].op, operators[0].dtype
    return Shapes(
        op=op,
        dtype=dtype,
        variants=names,
        variant=variant,
        m=m,
        n=n,
        k=k,
        batch=batch,
        flop=flop,
        bytes=moved,
        idle=idle,
        windowed=windowed,
        sharing=sharing,
        joined=joined,
        cold=1.0,
    )


def memory_time(moved: Array, accelerator: Accelerator) -> Array:
    """Least time to move bytes: what the last-level cache can hold may come from there [s]."""
    cached = np.minimum(moved, accelerator.l2)
    return np.asarray(cached / accelerator.l2_bandwidth + (moved - cached) / accelerator.bandwidth)


def _cold_time(weights: Array, accelerator: Accelerator, cold: Numeric) -> Array:
    """Least time to read weights, which come from memory: a layer's are not in the cache when its
    turn comes again. Benchmarks turn over a handful of copies, so that there small ones stay [s].
    """
    few = np.clip(2.0 - COPIES * weights / accelerator.l2, 0.0, 1.0)
    stay = (1.0 - np.asarray(cold)) * few
    return np.asarray(
        weights * (stay / accelerator.l2_bandwidth + (1.0 - stay) / accelerator.bandwidth)
    )


def energy_of(accelerator: Accelerator) -> Numeric:
    """Energy per 16-bit FLOP of sustained products [J]; NaN if unknown.

    It falls with the width of a processor's matrix unit in FLOP per clock, since wider ones reuse
    their operands more (`hardware.matrix_energy`).
    """
    half = accelerator.peak.get("bf16", accelerator.peak.get("fp16", np.nan))
    width = half / (accelerator.sms * accelerator.clock)
    return np.where(np.isnan(accelerator.energy), matrix_energy(width), accelerator.energy)


def power_limit(accelerator: Accelerator) -> Numeric:
    """Share of the peak rate that the power cap leaves to matrix products, 0..1; 1 if unknown: the
    clock follows the power of a kernel (`energy_of` times its rate) to `CLOCK`."""
    half = accelerator.peak.get("bf16", accelerator.peak.get("fp16", np.nan))
    share = np.minimum(accelerator.power / (energy_of(accelerator) * half), 1.0) ** CLOCK
    return np.where(np.isnan(share), 1.0, share)


def peak_of(dtype: str, accelerator: Accelerator) -> Numeric:
    """Peak rate of the data type's products [FLOP/s]."""
    return accelerator.peak_for(PEAK.get(dtype, dtype))


def _log(value: Array) -> Array:
    return np.log(np.maximum(value, 1e-30))


_ROWS, _COLUMNS = np.array(TILES, float).T[:, :, None, None]
_PARTS = np.array(SPLITS, float)[:, None]
_TYPICAL = [TILES.index(tile) for tile in TYPICAL_TILES]

_AT_ONCE = 1024
"""Products that are tiled at once: what is in hand of them stays in a core's own cache."""


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
    cost, chosen = np.full(m.shape, np.inf), np.zeros(m.shape, dtype=np.intp)
    for number, one in enumerate(price.reshape(-1, len(m))):
        better = one < 0.999 * cost
        cost, chosen = np.where(better, one, cost), np.where(better, number, chosen)
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


def _aligned(size: Array) -> Mask:
    """Whether rows of so many elements start on a boundary of 16 bytes in 16 bits; means of several
    sizes (fractions) count as if they did."""
    return np.asarray((size % 8 == 0) | (size % 1 != 0))


def _deep(shapes: Shapes) -> Mask:
    """Products whose depth is no row of either operand: gradients of weights add up over tokens,
    whose rows are as wide as the layer."""
    names = np.array([name == "wgrad" for name in shapes.variants])
    return np.asarray(names[shapes.variant.astype(int)])


def _gemm(shapes: Shapes, accelerator: Accelerator) -> Ideal:
    """Product, over `TILES` x `SPLITS`.

    The ceiling takes the tiling with the fewest wasted waves. The features describe the tiling
    that a library would choose: the one that is fastest when cache traffic counts too, which is
    ceil(n/tn) m k + ceil(m/tm) k n elements, and 8 bytes per output element and split where
    partial sums are added up.
    """
    m, n, k, batch = shapes.m, shapes.n, shapes.k, shapes.batch
    size = ELEMENT_BYTES[shapes.dtype]
    nominal, sms = peak_of(shapes.dtype, accelerator), accelerator.sms
    peak = nominal * power_limit(accelerator)
    weights = np.where(batch > 1, 0.0, WEIGHT_BYTES[shapes.dtype] * k * n)
    floor = memory_time(shapes.bytes - weights, accelerator)
    floor = floor + _cold_time(weights, accelerator, shapes.cold)
    machine = sms, accelerator.l2_bandwidth, peak
    best = _tilings(size, m, n, k, batch, floor, *(np.broadcast_to(v, m.shape) for v in machine))
    ceiling, cost, waves, tail, fill, tile, split, *prices = best
    time = np.maximum(ceiling, floor)
    compute = shapes.flop / nominal
    whole = []
    for rows, cols in WHOLE_TILES:
        filled = np.ceil(m / rows) * np.ceil(n / cols) * batch / sms
        rounds = np.ceil(filled)
        whole += [filled / rounds, np.clip(_log(rounds), 0, 4)]
    features = np.stack(
        [
            np.clip(_log(compute / floor), -6, 6),
            _log(np.minimum(time, LONG_KERNEL) / 1e-6),
            np.clip(_log(cost / time), -1, 6),
            np.clip(_log(waves), 0, 5),
            tail,
            fill,
            _log(tile),
            _log(split),
            _log(np.minimum(m, 4096)),
            _log(np.minimum(n, 4096)),
            np.clip(_log(m / n), -6, 6),
            _log(k),
            np.clip(_log(size * k * n * batch / accelerator.l2), -8, 6),
            np.clip(_log(shapes.bytes / accelerator.l2), -8, 6),
            np.asarray(_aligned(n) & (_aligned(k) | _deep(shapes)), float),
            np.asarray(_aligned(m), float),
            *(np.clip(_log(price / time), -2, 4) for price in prices),
            # Libraries choose among kernels by the power of two that holds the rows.
            np.ceil(np.log2(np.clip(m, 8, 1024))),
            *whole,
        ],
        axis=1,
    )
    return Ideal(time, compute, shapes.bytes / accelerator.bandwidth, features)


def _walks(
    shapes: Shapes, seen: Array, sms: Numeric, rate: Numeric
) -> tuple[Array, Array, Array, Array]:
    """Whole waves of blocks of query rows, each of which walks over the keys that it sees.

    seen   keys of a query on average
    rate   of one processor [FLOP/s]

    A block has the rows of one head, or (packed) those of all heads that share keys.

    Returns for blocks of `LEAST_TILE` rows and of `ATTENTION_TILE`, not packed, the time of the
    walks [s], then that of the least tile packed and of the usual tile packed.
    """
    rows, heads = shapes.m * shapes.sharing, shapes.batch / shapes.sharing
    found = []
    for m, batch in ((shapes.m, shapes.batch), (rows, heads)):
        for tile in (LEAST_TILE, ATTENTION_TILE):
            waves = np.ceil(np.ceil(m / tile) * batch / sms)
            found.append(waves * tile * seen * 4.0 * shapes.k / rate)
    return found[0], found[1], found[2], found[3]


def _attention(shapes: Shapes, accelerator: Accelerator) -> Ideal:
    """Fused attention: waves of blocks of query rows, each walking over the keys that they see.

    The features speak of the keys that a query sees and of blocks, not of the length of a prompt,
    so that a prompt behind cached keys looks like one without of as many blocks and keys.
    """
    peak = peak_of(shapes.dtype, accelerator)
    sms = accelerator.sms
    floor = memory_time(shapes.bytes, accelerator)
    compute = shapes.flop / peak
    # A score costs 4 k FLOP, backward 2.5 times that; the softmax takes an exponential per score.
    steps = 2.5 if shapes.op == "attention_backward" else 1.0
    work = shapes.flop / steps
    seen = work / (4.0 * shapes.k * shapes.m * shapes.batch)
    walks = [steps * walk for walk in _walks(shapes, seen, sms, peak / sms)]
    time = np.maximum(np.maximum(compute, floor), np.minimum.reduce(walks))
    rate = EXPONENTIALS.get(accelerator.architecture, USUAL_EXPONENTIALS)
    exponentials = shapes.flop / (4.0 * shapes.k) / (rate * sms * accelerator.clock)
    blocks = np.ceil(shapes.m / ATTENTION_TILE) * shapes.batch
    packed = np.ceil(shapes.m * shapes.sharing / ATTENTION_TILE) * shapes.batch / shapes.sharing
    waves, fewer = np.ceil(blocks / sms), np.ceil(packed / sms)
    heads = shapes.batch / shapes.sharing
    steady = np.minimum(seen, STEADY)  # beyond, longer sequences are more of the same
    features = np.stack(
        [
            np.clip(_log(compute / floor * steady / seen), -6, 6),
            _log(np.minimum(time, LONG_KERNEL) / 1e-6),
            np.clip(_log(exponentials / time), -4, 2),
            np.clip(_log(waves), 0, 4),
            blocks / (waves * sms),
            np.clip(_log(fewer), 0, 4),
            packed / (fewer * sms),
            _log(steady),
            _log(shapes.k / 128.0),
            # Kernels exist for head sizes in steps of 32; others are padded.
            _log(np.ceil(shapes.k / 32.0) * 32.0 / shapes.k),
            np.asarray(shapes.k % 8 == 0, float),
            # Keys outside the window are skipped in whole tiles, which takes time too.
            np.broadcast_to(np.log1p(shapes.idle), shapes.m.shape),
            np.broadcast_to(shapes.windowed, shapes.m.shape),
            # Tiles on the diagonal are half empty.
            np.log1p(0.5 * np.minimum(shapes.m, ATTENTION_TILE) / steady),
            np.clip(_log(shapes.batch / sms), -6, 4),
            np.clip(_log(heads / sms), -6, 4),
            np.broadcast_to(_log(np.asarray(shapes.sharing, float)), shapes.m.shape),
            *(np.clip(_log(walk / time), -2, 4) for walk in walks),
        ],
        axis=1,
    )
    return Ideal(time, compute, shapes.bytes / accelerator.bandwidth, features)


def _decode(shapes: Shapes, accelerator: Accelerator) -> Ideal:
    """Attention of single new tokens: keys and values are read once; benchmarks read the same ones
    again, so that small caches stay near. In a real step other layers come between: what would
    stay is fetched from memory on top.

    m    query rows that share a key and value head
    n    keys
    k    head size
    batch  sequences x key and value heads
    """
    cold = np.asarray(shapes.cold, float)
    floor = memory_time(shapes.bytes, accelerator)
    if accelerator.is_host:  # its own profile measures both
        floor = np.where(cold > 0, shapes.bytes / accelerator.bandwidth, floor)
        cold = 0.0 * cold
    compute = shapes.flop / peak_of(shapes.dtype, accelerator)
    time = np.maximum(compute, floor)
    stay = np.clip(2.0 - SPILL * shapes.bytes / accelerator.l2, 0.0, 1.0)
    apart = np.maximum(1.0 / accelerator.bandwidth - 1.0 / accelerator.l2_bandwidth, 0.0)
    fetch = cold * stay * shapes.bytes * apart
    windowed = np.broadcast_to(np.asarray(shapes.windowed, float), shapes.m.shape)
    length = _log(np.clip(shapes.n * (1.0 + shapes.idle), 16, 131072))
    features = np.stack(
        [
            np.clip(_log(compute / floor), -6, 6),
            _log(np.minimum(time, LONG_KERNEL) / 1e-6),
            np.clip(_log(shapes.batch / accelerator.sms), -6, 4),
            # Long caches are cut into parts to fill the device.
            np.clip(_log(shapes.batch * shapes.n / (256.0 * accelerator.sms)), -6, 6),
            _log(np.clip(shapes.n, 16, 65536)),
            _log(np.minimum(shapes.m, 128)),
            _log(shapes.k / 128.0),
            1.0 / (1.0 + shapes.bytes / accelerator.l2),
            np.broadcast_to(np.log1p(shapes.idle), shapes.m.shape),
            # A kernel for windows is another, and walks over the whole cache where it does not
            # skip what lies outside.
            windowed,
            windowed * length,
            length,
            1.0 / (1.0 + 4.0 * shapes.bytes / accelerator.l2),
            shapes.batch / (np.ceil(shapes.batch / accelerator.sms) * accelerator.sms),
        ],
        axis=1,
    )
    return Ideal(time, compute, shapes.bytes / accelerator.bandwidth, features, fetch)


def _grouped(shapes: Shapes, accelerator: Accelerator) -> Ideal:
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
    matrices = np.where(one > 0, shapes.flop / np.maximum(one, 1e-30), 3.0)
    weights = matrices * WEIGHT_BYTES[shapes.dtype] * n * k * batch
    floor = memory_time(np.maximum(shapes.bytes - weights, 0.0), accelerator)
    floor = floor + _cold_time(weights, accelerator, shapes.cold)
    compute = shapes.flop / nominal
    time = np.maximum(compute / power_limit(accelerator), floor)
    features = [
        np.clip(_log(compute / floor), -6, 6),
        _log(np.minimum(time, 4 * LONG_KERNEL) / 1e-6),
        np.clip(_log(weights / accelerator.l2), -6, 6),
        _log(np.clip(m, 1, 4096)),
        _log(n),
        _log(k),
        _log(batch),
        np.clip(_log(size * m * batch * k / accelerator.l2), -8, 6),
        # Some libraries walk over the rows of every expert, here or elsewhere.
        np.broadcast_to(np.log1p(shapes.idle), m.shape),
        _log(np.clip((1.0 + shapes.idle) * m * batch, 1, 131072)),
        matrices,
    ]
    for rows in (16.0, 64.0, 128.0):
        down = np.ceil(m / rows)
        blocks = batch * down * np.ceil((matrices - 1.0) * n / 128.0)
        features += [m / (down * rows), np.clip(_log(blocks / accelerator.sms), -4, 4)]
    return Ideal(time, compute, shapes.bytes / accelerator.bandwidth, np.stack(features, axis=1))


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


def _streaming(shapes: Shapes, accelerator: Accelerator) -> Ideal:
    """Memory-bound kernel: bytes over bandwidth.

    The features saturate: a kernel much larger than the cache runs at the bandwidth that its kind
    sustains. Caches grow with the number of processors, so the same scale says how well a small
    kernel fills them. Where a row is reduced, its length counts too.
    """
    moved = _once(shapes) if accelerator.is_host else shapes.bytes
    floor = memory_time(moved, accelerator)
    length = _log(np.clip(shapes.n, 128, 65536)) if shapes.op in ROWWISE else np.zeros_like(floor)
    features = np.stack(
        [
            1.0 / (1.0 + moved / accelerator.l2),
            1.0 / (1.0 + 8.0 * moved / accelerator.l2),
            length,
        ],
        axis=1,
    )
    return Ideal(floor, np.zeros_like(floor), moved / accelerator.bandwidth, features)


def ideal(shapes: Shapes, accelerator: Accelerator) -> Ideal:
    """Ideal time and features of each shape on an accelerator.

    Raises InputError where the accelerator lacks the data type's rate.
    """
    if shapes.op == "gemm":
        return _gemm(shapes, accelerator)
    if shapes.op == "moe_gemm":
        return _grouped(shapes, accelerator)
    if shapes.op == "attention_decode":
        return _decode(shapes, accelerator)
    if shapes.op.startswith("attention"):
        return _attention(shapes, accelerator)
    return _streaming(shapes, accelerator)

"""Ideal times and features of attention: prompts and training, and decoding over a cache."""

from __future__ import annotations

import numpy as np

from predictor.arrays import Array, Numeric
from predictor.hardware import Accelerator
from predictor.power import STREAMING
from predictor.precision import ELEMENT_BYTES
from predictor.timing.shapes import (
    ALONE,
    LONG_KERNEL,
    Ideal,
    Log,
    Shapes,
    features_of,
    log_of,
    memory_time,
    peak_of,
)

ATTENTION_TILE, LEAST_TILE = 128, 64
"""Query rows of one thread block of FlashAttention-2 and -3: usually, and at least (no measured
prompt of the shared tables is faster than whole tiles of the least)."""

STEADY = 8192
"""Rows or keys of attention beyond which a longer sequence is more of the same."""

SPILL = 1.5
"""A cache that is read over and over stays near up to 1 / SPILL of the last-level cache, and not at
all from 2 / SPILL on (aiconfigurator's tables: hits at 0.7, misses at 1.4, L40S and H100)."""

READ = 0.9
"""Share of the memory's bandwidth at which decoding reads its cache at best (aiconfigurator's
tables)."""

EXPONENTIALS = {"blackwell-ultra": 32.0}
"""Exponentials per clock of a processor's special function units, where not `USUAL_EXPONENTIALS`:
Blackwell Ultra doubles them for attention (NVIDIA, "Inside Blackwell Ultra", 2025)."""

USUAL_EXPONENTIALS = 16.0
"""CUDA programming guide, throughput of native arithmetic instructions: 16 from 5.x to 10.0."""


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


MASKED = dict(zip(ALONE, (1.0, 3.0), strict=True))
"""What a block of FlashAttention-2 and of cuDNN's costs beyond the keys that its
rows see, in keys of `ATTENTION_TILE`: tiles on the diagonal are half empty and go through the mask
(what Dao 2023, figures 5 and 6, from memory, has behind a mask over without), and cuDNN's has as
much to do again before and after its walk (so chosen that causal prompts of an H100,
`tools/attention_sweep.py`, come as near to its peak at 512 tokens as at 8,192)."""


LATE = 0.6
"""What blocks of unequal walks take beyond their work spread evenly over processors, in walks of
the longest, where heads start one after the other and the blocks of a head in the order of their
rows (flash_fwd_kernel.h of FlashAttention 2: `m_block = blockIdx.x`): behind a causal mask each has
more keys to walk over than the one before, and the longest of all begins last. Counted block by
block it is 0.62 for whole prompts and 0.59 for second halves, whatever the number of heads."""


def _timed_alone(shapes: Shapes, accelerator: Accelerator) -> Ideal:
    """Attention by a kernel of `MASKED`. The features saturate, so that a sequence longer than any
    that was timed is more of the same."""
    name = shapes.variants[0]
    peak, sms = peak_of(shapes.dtype, accelerator), accelerator.sms
    floor, compute = memory_time(shapes.bytes, accelerator), shapes.flop / peak
    steps = 2.5 if shapes.op == "attention_backward" else 1.0
    seen = shapes.flop / (steps * 4.0 * shapes.k * shapes.m * shapes.batch)
    causal = np.clip(shapes.n / seen - 1.0, 0.0, 1.0)
    tile = np.minimum(shapes.m, ATTENTION_TILE)
    longest = shapes.n + MASKED[name] * causal * tile
    mean = np.minimum((seen + MASKED[name] * causal * tile) / longest, 1.0)
    waves = np.ceil(shapes.m / ATTENTION_TILE) * shapes.batch / sms
    ends = np.maximum(mean * waves + (LATE if name == "flash2" else 0.0), 1.0)
    walks = steps * ends * longest * tile * 4.0 * shapes.k / (peak / sms)
    time = np.maximum(np.maximum(compute, floor), walks)
    rate = EXPONENTIALS.get(accelerator.architecture, USUAL_EXPONENTIALS)
    exponentials = shapes.flop / (4.0 * shapes.k) / (rate * sms * accelerator.clock)
    features = features_of(
        [
            np.minimum(ATTENTION_TILE / seen, 4.0),
            1.0 / np.maximum(waves, 1.0),
            np.minimum(waves, 1.0),
            waves / np.ceil(waves),
            1.0 / (1.0 + time / 1e-6),
            1.0 / (1.0 + time / 20e-6),
            1.0 / (1.0 + compute / floor),
            causal,
            causal * np.minimum(ATTENTION_TILE / seen, 4.0),
            1.0 - shapes.m / shapes.n,
            tile / ATTENTION_TILE,
            Log(exponentials / time, -4, 2),
            Log(shapes.k / 128.0),
            Log(np.ceil(shapes.k / 32.0) * 32.0 / shapes.k),
            Log(np.asarray(shapes.sharing, float)),
        ],
        len(time),
    )
    return Ideal(time, compute, shapes.bytes / accelerator.bandwidth, features)


def attention(shapes: Shapes, accelerator: Accelerator) -> Ideal:
    """Fused attention: waves of blocks of query rows, each walking over the keys that they see.

    The features speak of the keys that a query sees and of blocks, not of the length of a prompt,
    so that a prompt behind cached keys looks like one without of as many blocks and keys.
    """
    if shapes.variants[0] in MASKED:
        return _timed_alone(shapes, accelerator)
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
    features = features_of(
        [
            Log(compute / floor * steady / seen, -6, 6),
            Log(np.minimum(time, LONG_KERNEL) / 1e-6),
            Log(exponentials / time, -4, 2),
            Log(waves, 0, 4),
            blocks / (waves * sms),
            Log(fewer, 0, 4),
            packed / (fewer * sms),
            Log(steady),
            Log(shapes.k / 128.0),
            # Kernels exist for head sizes in steps of 32; others are padded.
            Log(np.ceil(shapes.k / 32.0) * 32.0 / shapes.k),
            np.asarray(shapes.k % 8 == 0, float),
            # Keys outside the window are skipped in whole tiles, which takes time too.
            np.log1p(shapes.idle),
            shapes.windowed,
            # Tiles on the diagonal are half empty.
            np.log1p(0.5 * np.minimum(shapes.m, ATTENTION_TILE) / steady),
            Log(shapes.batch / sms, -6, 4),
            Log(heads / sms, -6, 4),
            Log(np.asarray(shapes.sharing, float)),
            *(Log(walk / time, -2, 4) for walk in walks),
        ],
        len(time),
    )
    return Ideal(time, compute, shapes.bytes / accelerator.bandwidth, features)


PROMPTS = ("attention_prefill", "attention_backward")
"""Attention over prompts, in serving and in training."""


def without_cache(busy: Array, found: Ideal, shapes: Shapes, accelerator: Accelerator) -> Array:
    """Attention over prompts that writes no cache (`joined`), by kernels that were timed with it:
    less the time in which keys and values are read once more and written, but no quicker than its
    ideal [s]. Backward passes that are told by forward ones have as many times of it.

    Tables of engines time the attention module of a layer: a window of 128 keys over 16,384 tokens
    takes 266 us with one key head and 485 with 32 (vLLM on H100, ai-dynamo/aiconfigurator), and 8
    x 1024 tokens of 32 heads 274 to 327 us, which take PyTorch's alone 160 (`data/measurements`).
    """
    steps = 2.5 if shapes.op == "attention_backward" else 1.0
    rows = shapes.m * shapes.batch / np.asarray(shapes.sharing, float)
    moved = 2.0 * 2.0 * ELEMENT_BYTES[shapes.dtype] * rows * shapes.k
    written = steps * moved / (STREAMING * accelerator.bandwidth)
    least = np.minimum(busy, found.time)
    return np.asarray(np.maximum(busy - np.asarray(shapes.joined) * written, least))


def decode(shapes: Shapes, accelerator: Accelerator) -> Ideal:
    """Attention of single new tokens: keys and values are read once; benchmarks read the same ones
    again, so that small caches stay near. In a real step other layers come between: what would
    stay is fetched from memory on top, and all of it no faster than memory is read at best.

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
    least = cold * shapes.bytes / (READ * accelerator.bandwidth)
    windowed = np.broadcast_to(np.asarray(shapes.windowed, float), shapes.m.shape)
    length = log_of(np.clip(shapes.n * (1.0 + shapes.idle), 16, 131072))
    features = features_of(
        [
            Log(compute / floor, -6, 6),
            Log(np.minimum(time, LONG_KERNEL) / 1e-6),
            Log(shapes.batch / accelerator.sms, -6, 4),
            # Long caches are cut into parts to fill the device.
            Log(shapes.batch * shapes.n / (256.0 * accelerator.sms), -6, 6),
            Log(np.clip(shapes.n, 16, 65536)),
            Log(np.minimum(shapes.m, 128)),
            Log(shapes.k / 128.0),
            1.0 / (1.0 + shapes.bytes / accelerator.l2),
            np.log1p(shapes.idle),
            # A kernel for windows is another, and walks over the whole cache where it does not
            # skip what lies outside.
            windowed,
            windowed * length,
            length,
            1.0 / (1.0 + 4.0 * shapes.bytes / accelerator.l2),
            shapes.batch / (np.ceil(shapes.batch / accelerator.sms) * accelerator.sms),
        ],
        len(time),
    )
    return Ideal(time, compute, shapes.bytes / accelerator.bandwidth, features, fetch, least)

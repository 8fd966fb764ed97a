"""Shapes of operators as columns; what accelerators can do at best: rates, memory, power."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from predictor.arrays import Array, Index, Numeric
from predictor.hardware import OLDER, Accelerator, matrix_energy
from predictor.precision import PEAK, WIDE
from predictor.records import dataclass, replace
from predictor.work import Operator

COPIES = 5.0
"""Sets of weights between which the kernel benchmarks turn (ai-dynamo/aiconfigurator), so that
small ones stay in a large cache. In a real step all weights are cold."""

DRAWN = 0.8
"""Share of the memory's bandwidth at which kernels read what is cold: STREAM-like ones reach 0.83
to 0.91 (te42kyfo/gpu-benches, `defaults`), casts 0.75 to 0.87, products of few rows 0.76 to 0.83 as
a median on A100, H100, B200, L40S and RTX PRO 6000 (aiconfigurator)."""

CLOCK = 0.45
"""Exponent of the clock over power: dynamic power is clock x voltage squared, and voltage rises a
little slower than the clock. Of the text-book range 1/3 to 1/2."""

HELD, GONE = 0.7, 1.0
"""Size over the last-level cache of what is read in turn: up to the first all of it is still there
when its turn comes again, at the second nothing. Products of 1, 16 and 128 rows in captured graphs
on an H100 and an H200 (`tools/residency.py`): 32 to 36 MB of weights stay in 50 MiB, 48 MB do not,
in however many sets. The second is wider than that, so that no product comes much sooner than a
smaller one by tables of L40S and RTX PRO 6000, whose times rise from 0.7 to 1.0."""

RESTART = 0.6e-6
"""What a product takes longer that finds its weights in memory, beside the time in which they come
[s]: the same products, 0.3 to 1.3 us; chosen by eye."""

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
    joined: Numeric = 0.0  # 1: a product's input comes narrow; < 0: its cast moves more
    exponentials: Numeric = 0.0  # of a kernel that streams and whose arithmetic counts
    cold: Numeric = 0.0  # 1 where weights and cached keys come from memory, as in a whole model


@dataclass(frozen=True, slots=True, eq=False)
class Ideal:
    """Per shape: the ideal time [s]; arithmetic at the peak rate and all bytes at the memory's
    bandwidth [s], which decide what bounds a kernel; the features, (shapes, F); and, where operands
    come from memory that benchmarks find in the cache, what comes on top [s], and what a kernel
    takes at least, launch apart [s]."""

    time: Array
    compute: Array
    memory: Array
    features: Array
    fetch: Numeric = 0.0
    least: Numeric = 0.0


ALONE = ("flash2", "cudnn")
"""Kernels of attention that were timed by themselves, of whose features each saturates."""

NAMED = (*ALONE, "mla", "kv8", "mla_kv8", "paged")
"""Kernels of attention that are known by name."""


def kind_of(op: str, variant: str) -> str:
    """Name under which efficiencies are kept: batched products apart from others, elementwise
    kernels each for itself, the remaining memory-bound operators by direction."""
    if variant.startswith("bmm"):
        return "bmm"
    if op == "elementwise" or variant in NAMED:
        return f"{op}.{variant}"
    if op in ("norm", "softmax", "loss", "embedding"):
        return f"{op}.{'bwd' if variant.endswith('bwd') else 'fwd'}"
    return op


COLUMNS = ("m", "n", "k", "batch", "flop", "bytes", "idle", "windowed", "sharing", "joined",
           "exponentials")  # fmt: skip
"""Numbers of an operator that its time depends on."""


def _filled(table: list[list[Numeric]], shape: tuple[int, ...]) -> list[Array]:
    """Columns of numbers, each of which is of a batch of `shape`, laid out in a row."""
    if not shape:
        return list(np.array(table, dtype=float))
    found = np.empty((len(table), len(table[0]), *shape))
    for rows, column in zip(found, table, strict=True):
        for row, value in enumerate(column):
            rows[row] = value
    return list(found.reshape(len(table), -1))


def columns(operators: list[Operator], shape: tuple[int, ...]) -> Shapes:
    """Stack operators of one kind and data type; each contributes one row per plan of `shape`."""
    names = tuple(dict.fromkeys(operator.variant for operator in operators))
    table: list[list[Numeric]] = [[getattr(one, name) for one in operators] for name in COLUMNS]
    table.append([float(names.index(operator.variant)) for operator in operators])
    m, n, k, batch, flop, moved, *more, variant = _filled(table, shape)
    idle, windowed, sharing, joined, exponentials = more
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
        exponentials=exponentials,
        cold=1.0,
    )


def picked(shapes: Shapes, rows: Index) -> Shapes:
    """Some rows of shapes."""
    every = {name: np.asarray(getattr(shapes, name)) for name in (*COLUMNS, "variant")}
    return replace(shapes, **{n: v[rows] if v.ndim else float(v) for n, v in every.items()})


def one_after_another(parts: Sequence[Shapes]) -> Shapes:
    """Shapes of one kind and data type, as of `columns`, in one table."""
    if len(parts) == 1:
        return parts[0]
    names = tuple(dict.fromkeys(name for one in parts for name in one.variants))
    variant = [
        np.array([float(names.index(name)) for name in one.variants])[one.variant.astype(int)]
        for one in parts
    ]
    numbers = {name: np.concatenate([getattr(one, name) for one in parts]) for name in COLUMNS}
    return replace(parts[0], variants=names, variant=np.concatenate(variant), **numbers)


def memory_time(moved: Array, accelerator: Accelerator) -> Array:
    """Least time to move bytes: what the last-level cache can hold may come from there [s]."""
    cached = np.minimum(moved, accelerator.l2)
    return np.asarray(cached / accelerator.l2_bandwidth + (moved - cached) / accelerator.bandwidth)


@dataclass(frozen=True, slots=True)
class Read:
    """Times of reading weights [s].

    floor  at least, as benchmarks do
    fetch  that is added where they come from memory and benchmarks found them in the cache
    least  that a kernel takes at least where they come from memory: as that gives them at best, or,
           the more of them benchmarks found in the cache, as kernels draw
    """

    floor: Array
    fetch: Numeric = 0.0
    least: Numeric = 0.0


def weights_time(weights: Array, accelerator: Accelerator, cold: Numeric) -> Read:
    """What reading weights takes.

    Benchmarks turn over a handful of copies, so that small ones stay in the cache. A layer's are
    not there when its turn comes again: the kernel then takes longer by what memory is slower. A
    host's own profile measures both.
    """
    cold = np.asarray(cold, float)
    turned = COPIES * weights / accelerator.l2
    stay = np.clip(2.0 - turned, 0.0, 1.0)
    near, far = 1.0 / accelerator.l2_bandwidth, 1.0 / accelerator.bandwidth
    if accelerator.is_host:
        stay = (1.0 - cold) * stay
        return Read(weights * (stay * near + (1.0 - stay) * far))
    found = cold * (weights > 0.0) * np.clip((GONE - turned) / (GONE - HELD), 0.0, 1.0)
    return Read(
        floor=weights * (stay * near + (1.0 - stay) * far),
        fetch=found * (RESTART + weights * np.maximum(far - near, 0.0)),
        least=cold * weights * far * (1.0 + (1.0 / DRAWN - 1.0) * stay),
    )


def energy_of(accelerator: Accelerator, dtype: str = "bf16") -> Numeric:
    """Energy per 16-bit FLOP of sustained products [J]; NaN if unknown.

    It falls with the width of a processor's matrix unit in FLOP per clock, since wider ones reuse
    their operands more (`hardware.matrix_energy`), and with the process that it is made in;
    arithmetic in 32 bits runs beside the matrix unit.
    """
    half = accelerator.peak.get("bf16", accelerator.peak.get("fp16", np.nan))
    width = half / (accelerator.sms * accelerator.clock)
    older = 1.0 if dtype == "fp32" else OLDER.get(accelerator.architecture, 1.0)
    usual = older * matrix_energy(width)
    return np.where(np.isnan(accelerator.energy), usual, accelerator.energy)


VECTOR_ENERGY = 18e-12
"""Energy per FLOP of sustained products in 32 bits beside the matrix unit [J]: of A100's cards of
250 and 300 W, whose large ones reach 0.80 and 0.86 of the peak, where power does not bind 0.93 as
A100's in 16 bits (NeuSight's and aiconfigurator's products; 17.9 and 18.3 pJ). Read off A100 alone,
it leaves 0.40 of the peak to L4, 0.72 to T4, 0.78 to H100, 0.88 to P4 and all to V100 and P100,
which reach 0.29, 0.49, 0.75, 0.79, 0.96 and 0.72 (cards of 75 W spend much beside processors)."""

VECTORS = "NVIDIA"
"""Vendor whose accelerators multiply in 32 bits beside their matrix units."""

SYSTOLIC = "tpu"


def power_limit(accelerator: Accelerator, dtype: str = "bf16") -> Numeric:
    """Share of the peak rate that the power cap leaves to matrix products, 0..1; 1 if unknown: the
    clock follows the power of a kernel (`energy_of` times its rate) to `CLOCK`. That is a law of
    processors with caches; TPUs run at one clock, and what they are said to draw is no cap (whole
    steps of MaxText on v4 do 0.76 of its peak, more than the law leaves to products)."""
    if accelerator.architecture == SYSTOLIC:
        return 1.0
    half = accelerator.peak.get("bf16", accelerator.peak.get("fp16", np.nan))
    full = energy_of(accelerator, dtype) * half
    if dtype == "fp32" and accelerator.vendor == VECTORS:
        full = VECTOR_ENERGY * accelerator.peak.get("fp32", np.nan)
    share = np.minimum(accelerator.power / full, 1.0) ** CLOCK
    return np.where(np.isnan(share), 1.0, share)


def peak_of(dtype: str, accelerator: Accelerator) -> Numeric:
    """Peak rate of the data type's products [FLOP/s]; of weights that are widened as they are read,
    that of what the accelerator multiplies then."""
    name = PEAK.get(dtype, dtype)
    return accelerator.peak_for(accelerator.wide if name != dtype and name in WIDE else name)


def log_of(value: Array) -> Array:
    """Logarithm, of 1e-30 where the value is less."""
    return np.log(np.maximum(value, 1e-30))


class Log(NamedTuple):
    """A feature that is the logarithm of a value, within bounds."""

    value: Numeric
    low: float = -np.inf
    high: float = np.inf


def features_of(rows: Sequence[Numeric | Log], count: int) -> Array:
    """Features of `count` shapes as their columns, (count, features)."""
    found = np.empty((len(rows), count))
    for position, row in enumerate(rows):
        found[position] = row.value if isinstance(row, Log) else row
    at = [position for position, row in enumerate(rows) if isinstance(row, Log)]
    low, high = np.array([row[1:] for row in rows if isinstance(row, Log)]).T[:, :, None]
    found[at] = np.minimum(np.maximum(log_of(found[at]), low), high)
    return np.ascontiguousarray(found.T)

"""Time of a training step's operators: attention takes no longer than in the kernels before, nor
than in the quickest library that was timed, and products with one scale per matrix no longer than
with one per block.

Most attention over prompts was timed inside serving engines, whose kernels read their keys through
tables of pages and put them into the cache: 9 us on H100 for however short a prompt, of which
training has nothing. FlashAttention-2 was timed without (arXiv 2509.22832, and `data/measurements`
behind a causal mask), and the kernels after it are not slower on the same accelerator, so that it
bounds them, as cuDNN's does that PyTorch runs on Hopper (`data/measurements`); they are much faster
from 1,024 tokens on (Shah et al. 2024, figures 5 and 6). Engines differ by what they ask of their
kernels besides (TensorRT-LLM's were a fifth slower in 16 bits on Hopper than FlashAttention-3,
which SGLang and vLLM run, and lead with a cache of 8 bits). Training asks for nothing besides, and
runs what the makers of chip and kernel offer (cuDNN, FlashAttention-3): the quickest of those that
were timed on the accelerator, or on its architecture. FlashAttention-2 gains nothing of what is new
in matrix units after Hopper's (`EARLIER`).

A product of fp8 matrices with a scale each is the same work on the same matrix unit as one with a
scale for every block of them, without the scales (Rouhani et al. 2023; PTX ISA 8.7, `tcgen05.mma`,
kinds f8f6f4 and mxf8f6f4 alike). Those that engines run are slower all the same on B200 and GB200,
by a tenth to a fifth: what training runs is bounded by the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from predictor.arrays import Numeric
from predictor.hardware import Accelerator
from predictor.records import dataclass, replace
from predictor.timing.alternatives import padded
from predictor.timing.calibration import Calibration
from predictor.timing.defaults import PLAIN, PLAIN_OPS
from predictor.timing.kernels import Listed, Timing, times_together
from predictor.timing.relatives import QUICKEST, machine_of
from predictor.timing.shapes import ALONE
from predictor.timing.sustained import beside_each_other
from predictor.work import Operator

NEWEST, BEFORE = "flash", "flash2"
"""Kernels of attention: today's, which those that were timed alone bound, and the one before."""

EARLIER = dict.fromkeys(("blackwell", "blackwell-ultra", "rubin"), "hopper")
"""Architectures whose matrix units work from a memory of their own (`tcgen05`, PTX ISA 8.7, section
9.7.16), and the last one on which FlashAttention-2 was timed: its `mma` (section 9.7.14) does as
much per processor and clock on them as before."""

PER_CLOCK = 4096.0
"""Dense arithmetic in 16 bits of a processor of Hopper [FLOP per clock] (989.4 TFLOP/s, 132
processors, 1.83 GHz: NVIDIA 2022)."""

LIBRARIES = {"attention_prefill": QUICKEST, "attention_backward": QUICKEST, "": ""}
"""Libraries that run a step's operators."""

ODD = 512.0
"""Arithmetic of a processor per clock [FLOP] in products whose rows begin on odd elements: nothing
wider than one element can be read of them, which leaves kernels for Turing's matrix instructions
(`cutlass_75_tensorop_bf16_s1688gemm_bf16_*_align1`). Output projections of 50,257 tokens on an
H100: 92 and 97 TFLOP/s, 137 to 143 backward, where others reach 700
(`data/measurements/h100-sxm-2`)."""

WHOLE, BLOCKS = "fp8", "fp8_block"
"""Data types of products: one scale for a matrix, and one for each of its blocks."""


@dataclass(frozen=True, slots=True, eq=False)
class TrainingList:
    """Operators of a training step of a plan, or of a batch of plans of `shape`.

    host    what the host adds to each [s]; `Accelerator.host_time` of one rank if None
    plain   small kernels are PyTorch's own operators
    """

    operators: Sequence[Operator]
    shape: tuple[int, ...]
    host: Numeric | None = None
    plain: bool = False


def training_times(
    operators: Sequence[Operator],
    accelerator: Accelerator,
    calibration: Calibration,
    shape: tuple[int, ...],
    host: Numeric | None = None,
    plain: bool = False,
) -> Timing:
    """Time one execution of each operator of a training step, as `operator_times` at sustained
    clocks and with the quickest attention, but no slower than another kernel that cannot be quicker
    (`_slower`).

    host, plain   as of `TrainingList`
    """
    listed = TrainingList(operators, shape, host, plain)
    (found,) = training_times_together([listed], accelerator, calibration)
    return found


def training_times_together(
    lists: Sequence[TrainingList], accelerator: Accelerator, calibration: Calibration
) -> list[Timing]:
    """`training_times` of several lists, each as by itself; accelerator as of `times_together`."""
    every = [_as_run(one.operators, accelerator) for one in lists]
    asked = [
        Listed(own, one.shape, _libraries(one.plain), one.host)
        for own, one in zip(every, lists, strict=True)
    ]
    found = times_together(asked, accelerator, calibration)
    for own, timing in zip(every, found, strict=True):
        for i, one in enumerate(own):
            if _in_parts(one) and not accelerator.is_host:
                timing.time[i] *= one.kernels
        _ragged(own, timing, accelerator)
    if accelerator.architecture in EARLIER:
        old = [[(i, one) for i, one in enumerate(own) if one.variant == BEFORE] for own in every]
        for number, at, other in _others(lists, old, _earlier(accelerator), calibration):
            _put(found[number], at, other)
    bounds = [
        [
            (i, other)
            for i, one in enumerate(own)
            for other in _slower(one, accelerator, calibration)
        ]
        for own in every
    ]
    for number, at, other in _others(lists, bounds, accelerator, calibration):
        for place, i in enumerate(at):
            _no_slower(found[number], i, other, place)
    return [
        _lasting(own, timing, accelerator, calibration)
        for own, timing in zip(every, found, strict=True)
    ]


def _libraries(plain: bool) -> dict[str, str]:
    """Libraries that run a step's operators, the small ones maybe PyTorch's own."""
    return LIBRARIES | dict.fromkeys(PLAIN_OPS, PLAIN) if plain else LIBRARIES


def _as_run(operators: Sequence[Operator], accelerator: Accelerator) -> list[Operator]:
    """Operators as an accelerator runs them: in parts where they are several kernels."""
    every = padded(operators, accelerator)
    if accelerator.is_host:
        return every
    return [_part(one) if _in_parts(one) else one for one in every]


def _others(
    lists: Sequence[TrainingList],
    chosen: Sequence[Sequence[tuple[int, Operator]]],
    accelerator: Accelerator,
    calibration: Calibration,
) -> Iterator[tuple[int, list[int], Timing]]:
    """Times of what stands for some operators of each list, of those that have any: the list's
    number, positions in it, their times.

    chosen   of each list, positions and the operators that stand for what is there
    """
    numbers = [number for number, own in enumerate(chosen) if own]
    asked = [
        Listed([one for _, one in chosen[n]], lists[n].shape, host=lists[n].host) for n in numbers
    ]
    times = times_together(asked, accelerator, calibration)
    for number, timing in zip(numbers, times, strict=True):
        yield number, [position for position, _ in chosen[number]], timing


def _in_parts(operator: Operator) -> bool:
    """Whether a norm or an activation is the kernels of its definition, one after the other."""
    return operator.op in ("norm", "elementwise") and bool(np.all(operator.kernels > 1.0))


def _part(operator: Operator) -> Operator:
    """The mean one of those kernels, each of which goes over all elements as a sum does: nothing of
    it is what a kernel for norms takes (an H100's plain one for gradients a third of its memory's
    rate: `data/measurements`). Hosts were timed with norms in parts."""
    return replace(operator, op="elementwise", variant="add",
                   bytes=operator.bytes / operator.kernels)  # fmt: skip


def _ragged(operators: Sequence[Operator], found: Timing, accelerator: Accelerator) -> None:
    """Products of NVIDIA in 16 bits no quicker than `ODD` where rows of an operand are odd."""
    if accelerator.vendor != "NVIDIA" or accelerator.is_host:
        return
    rate = ODD * accelerator.sms * accelerator.clock
    for i, one in enumerate(operators):
        if one.op == "gemm" and one.dtype in ("bf16", "fp16"):
            rows = (one.m if one.variant == "wgrad" else one.k), one.n
            odd = np.logical_or(*(np.asarray(size) % 2 == 1 for size in rows))
            if np.any(odd):
                least = np.where(odd, one.flop / rate, 0.0)
                found.time[i] = np.maximum(found.time[i], least)


def _lasting(
    operators: Sequence[Operator], found: Timing, accelerator: Accelerator, calibration: Calibration
) -> Timing:
    """Times of a step, which lasts, from those of bursts."""
    machine = machine_of(accelerator, calibration)
    return replace(found, time=beside_each_other(operators, found.time, machine, calibration))


def _no_slower(found: Timing, at: int, other: Timing, place: int) -> None:
    """The time of an operator, no longer than another's."""
    sooner = other.time[place] < found.time[at]
    sigma = np.maximum(other.sigma[place], found.sigma[at])
    for own, theirs in (
        (found.sigma, sigma),
        (found.bound, other.bound[place]),
        (found.measured, other.measured[place]),
        (found.time, other.time[place]),
    ):
        own[at] = np.where(sooner, theirs, own[at])


def _put(found: Timing, places: Sequence[int], other: Timing) -> None:
    """Times of some operators, in place of those that stand there."""
    for table, own in (
        (found.time, other.time),
        (found.sigma, other.sigma),
        (found.bound, other.bound),
        (found.measured, other.measured),
    ):
        table[places] = own


def _earlier(accelerator: Accelerator) -> Accelerator:
    """What kernels written for an older architecture find of one: as many processors of the older
    kind, at this clock, before this memory."""
    most = PER_CLOCK * accelerator.sms * accelerator.clock
    peak = {
        name: np.minimum(value, most) if name in ("bf16", "fp16") else value
        for name, value in accelerator.peak.items()
    }
    return replace(accelerator, architecture=EARLIER[accelerator.architecture], peak=peak)


def _slower(
    operator: Operator, accelerator: Accelerator, calibration: Calibration
) -> list[Operator]:
    """The same work by kernels that take no less time, of those that were measured: attention by
    kernels timed alone on the accelerator's architecture, block-scaled products on the accelerator
    itself."""
    if operator.op == "gemm" and operator.dtype == WHOLE:
        known = calibration.resolve(operator.op, BLOCKS, accelerator)
        one = known.model
        own = one is not None and (one.accelerator, one.dtype) == (accelerator.name, BLOCKS)
        return [replace(operator, dtype=BLOCKS)] if own else []
    if operator.variant != NEWEST or not operator.op.startswith("attention"):
        return []
    found = []
    for named in ALONE:
        kind = f"{operator.op}.{named}"
        known = calibration.resolve(kind, operator.dtype, accelerator)
        if known.model is not None and known.model.kind == kind and not known.relatives:
            found.append(replace(operator, variant=named))
    return found

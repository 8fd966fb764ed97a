"""Operators that take no longer than others which do their work: a product of one row than one of
two, attention over shared keys than over keys of its own, experts in fp8 than in 16 bits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from predictor.plans import ServingPlan
from predictor.precision import ELEMENT_BYTES
from predictor.timing import Timing
from predictor.work import Operator

Clock = Callable[[list[Operator]], Timing]


def no_slower_than_others(operators: list[Operator], plan: ServingPlan, timed: Clock) -> Timing:
    """Times of a plan's operators, as `timed` has them but for those that other operators bound."""
    timing = _no_slower_alone(operators, timed)
    if plan.library not in FALLS_BACK:
        timing = _no_slower_in_groups(operators, timing, timed)
    if plan.narrow_experts == "triton":
        timing = _as_wide(operators, timing, timed)
    return timing


def whole_experts(
    operators: list[Operator], timing: Timing, timed: Clock, plan: ServingPlan
) -> Timing:
    """Times of operators, with those of experts that no ranks split as `timed` has them: DeepGEMM's
    products were timed with whole experts (`wideep_*` tables of ai-dynamo/aiconfigurator)."""
    found = [i for i, one in enumerate(operators) if one.op == "moe_gemm"]
    if not found:
        return timing
    time = timing.time.copy()
    others = timed([operators[i] for i in found]).time
    time[found] = np.where(np.asarray(plan.etp) <= 1.0, others, time[found])
    return replace(timing, time=time)


def _no_slower_alone(operators: list[Operator], timed: Clock) -> Timing:
    """Times of operators, of which no product of one row takes longer than of two.

    Tables have such products (fp8 with vLLM 0.24 on B200, B300 and GB200: 15 us more, whatever the
    matrix; not with 0.22, nor with any other library on them); a row more of zeros avoids them.
    """
    timing = timed(operators)
    lone = [
        i for i, one in enumerate(operators) if one.op == "gemm" and np.any(np.asarray(one.m) < 2.0)
    ]
    if not lone:
        return timing
    pairs = timed([_of_two(operators[i]) for i in lone])
    time = timing.time.copy()
    time[lone] = np.minimum(time[lone], pairs.time)
    return replace(timing, time=time)


SHARING = 32.0
"""Query heads to a key head up to which every library's kernels share its keys. Beyond, tables are
of two kinds: FlashAttention 3 and FlashInfer stay at the memory's rate to 64 (H100: 2.2 TB/s),
TensorRT-LLM 1.3 falls to a twentieth of it from 48 on (0.1), on B200 from 64 on, and is most of
what is known of 96 and 128 (aiconfigurator, generation_attention); what is fitted lies between."""


FALLS_BACK = ("trtllm",)
"""Libraries whose kernels for more heads than that are no better ones."""


def _no_slower_in_groups(operators: list[Operator], timing: Timing, timed: Clock) -> Timing:
    """Times of operators, of which no decoding attention with more than `SHARING` heads to a key
    head takes longer than one that works through them in two groups, or four, and reads the keys
    once for each, as other key heads."""
    many = [
        at
        for at, one in enumerate(operators)
        if one.op == "attention_decode"
        and not one.variant.startswith("mla")
        and np.any(np.asarray(one.m) > SHARING)
    ]
    if not many:
        return timing
    time = timing.time.copy()
    for groups in (2.0, 4.0):
        found = timed([_in_groups(operators[at], groups) for at in many])
        time[many] = np.minimum(time[many], found.time)
    return replace(timing, time=time)


def _in_groups(core: Operator, groups: float) -> Operator:
    """Decoding attention whose heads are worked through in groups of more than half of `SHARING`;
    where they would be smaller, as it is."""
    parts = np.where(np.asarray(core.m) > 0.5 * groups * SHARING, groups, 1.0)
    rows, batch = np.asarray(core.m) / parts, np.asarray(core.batch) * parts
    ends = 2.0 * ELEMENT_BYTES[core.dtype] * rows * batch * core.k  # queries, and what they become
    return replace(core, m=rows, batch=batch, bytes=ends + parts * (core.bytes - ends))


def _as_wide(operators: list[Operator], timing: Timing, timed: Clock) -> Timing:
    """Times of operators, with experts in fp8 as efficient as in 16 bits: half the bytes, twice the
    rate."""
    narrow = [i for i, one in enumerate(operators) if (one.op, one.dtype) == ("moe_gemm", "fp8")]
    if not narrow:
        return timing
    wide = timed([replace(one, dtype="bf16", bytes=2.0 * one.bytes)
                  for one in (operators[i] for i in narrow)])  # fmt: skip
    time = timing.time.copy()
    time[narrow] = np.minimum(time[narrow], 0.5 * wide.time)
    return replace(timing, time=time)


def _of_two(product: Operator) -> Operator:
    """A product of two rows at least."""
    rows = np.maximum(product.m, 2.0)
    return replace(product, m=rows, flop=product.flop * rows / product.m)

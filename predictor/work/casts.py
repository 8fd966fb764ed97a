"""Casts to fp8 beside those that kernel tables time with a product, which are of one operand along
its rows: of the weights, and of what the gradient of the weights reads.

Transformer Engine keeps what it has cast for the backward pass, in both orders, which one kernel
writes. torchao keeps nothing narrow: each product casts its operands again, by kernels that
torch.compile writes (torchao 0.13 to 0.18, float8/float8_linear.py,
`matmul_with_hp_or_float8_args`; prototype/mx_formats/mx_linear.py). What they move was read off
traces of steps on an H200 (PyTorch 2.11, torchao 0.18): a scale for a whole matrix takes one more
pass over it, and scales along columns one more and a transposition, whose narrow elements are
written one by one.
"""

from __future__ import annotations

import numpy as np

from predictor.arrays import Numeric
from predictor.precision import ELEMENT_BYTES
from predictor.work.primitives import Small
from predictor.work.setting import Learning, Portion

WHOLE = "fp8"
"""Data type with one scale for a whole matrix."""

TURNED, TURNED_WEIGHTS = 2.6, 3.6
"""Time in which an activation, and a weight, is read for its columns' scales and written in the
other order over that of what this moves: of weights 264 us for 16,384 x 3,072, 134 for 3,072 x
8,192, 84 for 5,120 x 3,072, 52 for 3,072 x 3,072 (activations share the pass with what makes
them)."""


def beside(
    dtype: str,
    wide: float,
    by_row: bool,
    learning: Learning | None,
    m: Numeric,
    n: Numeric,
    k: Numeric,
) -> list[Small]:
    """Casts around y[m, n] = x[m, k] W[k, n] and its gradients, where operands have scales by row
    and column or nothing narrow is kept; of weights none that are gathered narrow, with one scale
    (torchtitan, docs/float8.md: enable_fsdp_float8_all_gather).

    dtype   of the product
    wide    bytes of an activation element
    """
    narrow = ELEMENT_BYTES[dtype]
    if narrow >= wide or not (by_row or (learning and not learning.narrow)):
        return []
    along = wide + narrow
    found = wide if by_row or dtype == WHOLE else 0.0  # a pass that looks for the largest values
    slow, slowest = (TURNED, TURNED_WEIGHTS) if by_row else (1.0, 1.0)
    whole = 1.0 - learning.sent_narrow * (not by_row) if learning else 1.0
    parts = [Small("cast", "copy", "forward", n, k, along + found, times=whole)]
    if learning and not learning.frozen:
        again = along + found * by_row  # one scale for a whole matrix is kept
        parts.append(
            Small("cast.bwd", "copy", "backward", n, k, again, times=whole, stretch=slowest)
        )
        parts.append(Small("turn", "copy", "backward", m, k, along + found, stretch=slow))
        if by_row:  # of gradients along columns; along rows is in the product
            parts.append(Small("turn.bwd", "copy", "backward", m, n, along + found, stretch=slow))
    return parts


FROM_OTHERS = (
    "attention.qkv", "attention.down", "mlp.up", "shared.up", "mamba.in", "delta.in", "conv.in",
    "attention.out.dgrad", "mlp.down.dgrad", "shared.down.dgrad", "mamba.out.dgrad",
    "delta.out.dgrad", "conv.out.dgrad",
)  # fmt: skip
"""Products whose first operand tensor-parallel ranks gather of each other, forward and backward."""


def come(name: str, by_row: bool, portion: Portion) -> Numeric:
    """Share of the first operand of a narrow product of training that comes narrow: of what
    tensor-parallel ranks gather, each has narrowed its own part (`communication._gathered`)."""
    if by_row or name not in FROM_OTHERS:
        return 0.0
    return 1.0 - np.asarray(portion.rows) / portion.tokens


UNPACKED = 3.3
"""Exponentials that take as long as a weight in four bits is looked up, scaled and widened: 66 to
70 us for 4,096 x 14,336 in NF4 whose constants are quantised again (`dequantize_4bit`), 1.8 times
what this moves."""

SCALED_APART = 3.9
"""The same of weights in 8 bits: 159 us for the cast of as many, and 253 for their scales in a pass
of its own (`MatMul8bitLt.backward`)."""

IN_EIGHT_INPUT, IN_EIGHT_OUTPUT = (7.0, 2.4), (10.0, 1.7)
"""Bytes of an element that LLM.int8 moves of what it reads, which is cast to fp16 and narrowed, and
of what it writes, whose 32-bit sums are scaled and cast again; and the time of that over these
bytes' (94 us for 4,096 x 4,096, 266 for 4,096 x 14,336). Its products take 0.9 of what bf16's do;
what leaves 8 bits because it is large is left out (a thousandth of trained models' columns:
Dettmers et al. 2022, arXiv 2208.07339)."""


def widened(
    learning: Learning, dtype: str, sides: float, m: Numeric, n: Numeric, k: Numeric
) -> list[Small]:
    """What frozen weights add that are stored narrower than they are multiplied. They are widened
    in memory before the product, and again before that of the backward pass (Dettmers et al. 2023);
    those in 8 bits before the latter alone, whose forward product narrows what it reads instead,
    once for each of `sides` matrices. Times were read off traces of steps on an H200 (PyTorch 2.11,
    bitsandbytes 0.50).
    """
    moved = learning.stored + ELEMENT_BYTES[dtype]
    if learning.in_eight:
        (read, slow), (written, slower) = IN_EIGHT_INPUT, IN_EIGHT_OUTPUT
        again = moved + 2.0 * ELEMENT_BYTES[dtype]
        return [
            Small("narrow", "copy", "forward", m, k, read, times=sides, stretch=slow),
            Small("scale", "copy", "forward", m, n, written, stretch=slower),
            Small("widen.bwd", "copy", "backward", k, n, again, stretch=SCALED_APART),
        ]
    return [
        Small(label, "copy", phase, k, n, moved, worked=UNPACKED)
        for label, phase in (("widen", "forward"), ("widen.bwd", "backward"))
    ]

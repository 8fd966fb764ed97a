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

from predictor.arrays import Numeric
from predictor.precision import ELEMENT_BYTES
from predictor.work.primitives import Small
from predictor.work.setting import Learning

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


def widened_twice(dtype: str, stored: float, columns: Numeric, depth: Numeric) -> list[Small]:
    """Frozen weights that are stored narrower than they are multiplied are widened in memory before
    the product, and again before that of the backward pass (Dettmers et al. 2023).

    stored   bytes of a weight
    """
    moved = stored + ELEMENT_BYTES[dtype]
    return [
        Small(label, "copy", phase, depth, columns, moved)
        for label, phase in (("widen", "forward"), ("widen.bwd", "backward"))
    ]

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

from typing import TYPE_CHECKING

from predictor.arrays import Numeric
from predictor.precision import ELEMENT_BYTES

if TYPE_CHECKING:
    from predictor.work.worklist import WorkList

WHOLE = "fp8"
"""Data type with one scale for a whole matrix."""

TURNED, TURNED_WEIGHTS = 2.6, 3.6
"""Time in which an activation, and a weight, is read for its columns' scales and written in the
other order over that of what this moves: of weights 264 us for 16,384 x 3,072, 134 for 3,072 x
8,192, 84 for 5,120 x 3,072, 52 for 3,072 x 3,072 (activations share the pass with what makes
them)."""


def beside(at: WorkList, name: str, dtype: str, m: Numeric, n: Numeric, k: Numeric) -> None:
    """Casts around y[m, n] = x[m, k] W[k, n] and its gradients, where `at` says that operands have
    scales by row and column, or that nothing narrow is kept."""
    learning = at.learning
    narrow, wide = ELEMENT_BYTES[dtype], at.size
    by_row = at.software.by_row
    if narrow >= wide or not (by_row or (learning and not learning.narrow)):
        return
    along = wide + narrow
    found = wide if by_row or dtype == WHOLE else 0.0  # a pass that looks for the largest values
    slow, slowest = (TURNED, TURNED_WEIGHTS) if by_row else (1.0, 1.0)
    parts = [("cast", "forward", n, k, along + found, 1.0)]
    if learning and not learning.frozen:
        again = along + found * by_row  # one scale for a whole matrix is kept
        parts.append(("cast.bwd", "backward", n, k, again, slowest))
        parts.append(("turn", "backward", m, k, along + found, slow))
        if by_row:  # of gradients along columns; along rows is in the product
            parts.append(("turn.bwd", "backward", m, n, along + found, slow))
    for label, phase, rows, columns, moved, longer in parts:
        at.stream(
            f"{name}.{label}", "elementwise", "copy", rows, columns, moved, phase=phase, alone=True,
            stretch=(longer, longer),
        )  # fmt: skip

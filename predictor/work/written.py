"""Small kernels of a layer, in bytes per element: as one kernel each; as the kernels that a model's
own code writes them out in, one after the other; and under autocast, which keeps weights and the
residual stream in fp32 and narrows what products read.

What each kernel of HuggingFace's modules reads and writes was read off traces of steps on an H100
(`data/measurements/h100-sxm-3/operators.csv`: operators by shape, as PyTorch's profiler has them).
"""

from __future__ import annotations

import numpy as np

from predictor.arrays import Mask, Numeric
from predictor.records import dataclass
from predictor.work.setting import Software

FULL = 4.0
"""Bytes of an element in fp32."""

RMS_PARTS = (8.0, 15.0)
"""Kernels of an RMS norm that nothing fuses, forward and backward: cast, square, mean, sum, root,
product, cast and weight (Transformers 4.57, models/llama/modeling_llama.py: LlamaRMSNorm), and what
autograd runs for these."""

GELU_PARTS = (8.0, 11.0)
"""Kernels of GPT-2's GELU in its own code: cube, factor, sum, factor, tanh, sum, half and product
(Transformers 5.17, activations.py: NewGELUActivation), and what autograd runs for these."""

SQUARED_PARTS = (2.0, 4.0)
"""Kernels of a squared ReLU in the words of its definition: ReLU and square
(`torch.pow(relu(x), 2)`: NeMo, collections/llm/fn/activation.py @ v2.3.0), and what autograd runs
for these: a copy, its factor, the product with the gradient, and the ReLU's own."""

SQUARED_RELU = "squared_relu"
"""Its name in catalogs."""

NEW_GELU = "gelu_new"
"""Name of that GELU; whoever fuses small kernels computes it as any other, in one."""


@dataclass(frozen=True, slots=True, eq=False)
class Small:
    """Bytes per element that a small kernel moves, forward and backward, how many kernels each is,
    and what is kept between them."""

    forward: Numeric
    backward: Numeric
    kernels: tuple[float, float] = (1.0, 1.0)
    kept: Numeric = 0.0


def norm(kind: str, software: Software, residual: bool) -> Small:
    """A norm; with the sum that goes into it where `software` adds it there.

    An RMS norm that nothing fuses is the kernels of its definition in fp32 (Touvron et al. 2023,
    their code): casts both ways (2 + 4 each), square (8), mean (4), product (8), weight (2 + 2).
    Backward the weight's gradient (2 + 2 + 2, and its sum 2), the weight's product (4), casts, the
    products of the norm (8 + 12), sum over a row (4) and what it is spread over (4), the square's
    power, factor and product (8 + 8 + 12), and an addition (12).

    residual   of the residual stream, which autocast leaves in fp32: what is written there is in
               fp32, too, and narrowed for the product that reads it
    """
    size, wide = software.size, _wide(software, residual)
    narrowed = FULL + size
    if kind == "rmsnorm" and not software.rms:
        casts = 2.0 * narrowed if size < FULL else 0.0
        found = Small(
            forward=casts + 5.0 * FULL + 2.0 * size,
            backward=casts + 17.0 * FULL + 6.0 * size,
            kernels=RMS_PARTS,
            kept=FULL + size,  # what is squared, and what the weight scales
        )
        cast = Small(7.0 * FULL + narrowed, 23.0 * FULL + narrowed, RMS_PARTS, 2.0 * FULL + size)
    else:
        found = Small((4.0 if software.sums else 2.0) * size, 3.0 * size, kept=size)
        cast = Small(2.0 * FULL + narrowed, 3.0 * FULL + narrowed, kept=FULL + size)
    return _either(np.asarray(wide) > size, cast, found)


def gelu(software: Software) -> Small:
    """GPT-2's GELU in the kernels of its own code: in 16 bits cube and factor (4 each), sum (6),
    factor, tanh, one more and half (4 each), product (6); backward four factors and a power (4
    each), three products, two additions and tanh's (6 each). Kept are the input, its half, the tanh
    and that and one.

    Autocast computes the cube in fp32, and with it all but the half of the input: its cast (6),
    cube, factor, factor, tanh and one more (8 each), the sum (2 + 4 + 4), half (4), product (2 + 4
    + 4), and the cast for the product that reads it (6). Backward casts of the gradient and of what
    goes on to the input and its half (6 + 6 + 6 + 6), products (12 + 10 + 12), tanh's (12), three
    factors and the power (8 each), the half (4), and two additions in 16 bits (6 each). Kept is the
    input twice (2 + 4), its half (2), the tanh and that and one (4 + 4).
    """
    size = software.size
    plain = Small(18.0 * size, 28.0 * size, GELU_PARTS, 4.0 * size)
    cast = Small(76.0, 118.0, GELU_PARTS, 16.0)
    return _either(np.asarray(_wide(software, True)) > size, cast, plain)


def squared_relu(size: float) -> Small:
    """A squared ReLU in the kernels of its definition: forward two that read and write, backward
    the input to the power of one (PyTorch 2.x, FunctionsManual.cpp: `pow_backward`) and its factor,
    which read and write, and two products with a gradient. Kept is what the ReLU put out.

    size   bytes of an element
    """
    return Small(4.0 * size, 10.0 * size, SQUARED_PARTS, size)


def addition(software: Software) -> tuple[Numeric, Numeric]:
    """What a block adds to the residual stream, forward and backward: under autocast a narrow one
    to a wide one, whose gradient is narrowed for the block and added in fp32."""
    size, wide = software.size, _wide(software, True)
    cast = np.asarray(wide) > size
    return (
        np.where(cast, 2.0 * FULL + size, 3.0 * size),
        np.where(cast, 4.0 * FULL + size, 3.0 * size),
    )


def _wide(software: Software, residual: bool) -> Numeric:
    """Bytes of an element of the residual stream, or of what moves between kernels."""
    return np.maximum(software.stream, software.size) if residual else software.size


def _either(cast: Mask, wide: Small, narrow: Small) -> Small:
    """One of two, whose kernels are as many."""

    def chosen(a: Numeric, b: Numeric) -> Numeric:
        return np.where(cast, a, b)

    return Small(
        forward=chosen(wide.forward, narrow.forward),
        backward=chosen(wide.backward, narrow.backward),
        kernels=narrow.kernels,
        kept=chosen(wide.kept, narrow.kept),
    )

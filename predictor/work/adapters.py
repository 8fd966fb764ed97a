"""Low-rank adapters beside frozen linear layers: y += (x A) B, with A[k, r] and B[r, n] (Hu et al.
2021, eq. 3), as the software that is used composes them.

Megatron Core and NeMo have one A beside queries, keys and values, which they project together, and
one beside a gate and what it multiplies. PyTorch modules have these apart, scale what comes out by
a kernel of its own and add gradients of the input one by one (torchtune, modules/peft/lora.py;
huggingface/peft, tuners/lora/layer.py). peft keeps A and B in fp32 where weights have 16 bits
(`autocast_adapter_dtype`), and casts the input for them: under autocast it is narrowed again for
the products; without, they run in fp32, and all that is added to what the layer puts out.
What each kernel moves was read off traces of steps on an H200 (PyTorch 2.11, peft 0.21).
"""

from __future__ import annotations

from predictor.arrays import Numeric
from predictor.plans import ADAPTER_STYLES
from predictor.records import dataclass, replace
from predictor.work.primitives import Small
from predictor.work.setting import Learning

WIDE = 4.0
"""Bytes of an element in fp32."""

JOINED, APART, _, IN_FULL = ADAPTER_STYLES


@dataclass(frozen=True, slots=True, eq=False)
class Multiplied:
    """A product with A or B for each of `times` matrices; names and sizes as of an operator."""

    label: str
    layout: str
    m: Numeric
    n: Numeric
    k: Numeric
    dtype: str
    out_bytes: float
    saved: Numeric
    times: float


def matrices(name: str, gated: bool) -> float:
    """Matrices that a model's own code has where a work list has one product."""
    if name == "attention.qkv":
        return 3.0
    return 2.0 if gated and name.endswith(".up") else 1.0


def products(
    learning: Learning, size: float, sides: float, n: Numeric, k: Numeric, m: Numeric
) -> list[Multiplied]:
    """Products with A and B beside a linear layer of n columns and depth k over m rows, of `sides`
    matrices (`matrices`), and their gradients, which are added up in fp32.

    size   bytes of an activation element
    """
    wide, rank = learning.style == IN_FULL, learning.rank
    many = 1.0 if learning.style == JOINED else sides
    dtype, out = ("fp32", WIDE) if wide else ("", 0.0)
    found = []
    for part, columns, depth in (("a", rank, k), ("b", n / many, rank)):
        kept = max(size, out) * m * rank if part == "b" else 0.0
        for label, layout, shape, written, saved in (
            ("", "fwd", (m, columns, depth), out, kept),
            (".dgrad", "dgrad", (m, depth, columns), out, 0.0),
            (".wgrad", "wgrad", (columns, depth, m), WIDE, 0.0),
        ):
            name = f"lora_{part}{label}"
            found.append(Multiplied(name, layout, *shape, dtype, written, saved, many))
    return found


def beside(
    learning: Learning, size: float, sides: float, n: Numeric, k: Numeric, m: Numeric
) -> list[Small]:
    """What goes with these products; arguments as of `products`."""
    style, wide = learning.style, learning.style == IN_FULL
    many = 1.0 if style == JOINED else sides

    def both(label: str, variant: str, columns: Numeric, streams: float) -> list[Small]:
        return [
            Small(f"lora_{label}{end}", variant, phase, m, columns, streams, times=many)
            for end, phase in (("", "forward"), (".bwd", "backward"))
        ]

    out, cast, restored = n / many, size + WIDE, wide or learning.restores
    added = size + 2.0 * WIDE if restored else 3.0 * size  # fp32 beside 16 bits becomes fp32
    found = [
        Small("lora_add", "add", "forward", m, out, added, times=many),
        Small("lora_add.bwd", "add", "backward", m, k, 3.0 * size, times=many),
    ]
    if style == JOINED:
        return found
    found += both("scale", "other", out, 2.0 * (WIDE if wide else size))
    if style == APART:
        return found
    # Of the input, both ways under autocast; of what the layer puts out, else.
    forward, backward = both("cast", "copy", k, cast if wide else 2.0 * cast)
    kept = (WIDE if wide else size) * m * k
    found += [replace(forward, saved=kept), backward]
    return found + both("out", "copy", out, cast) if restored else found

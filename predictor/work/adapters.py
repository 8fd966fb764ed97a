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

from functools import partial
from typing import TYPE_CHECKING

from predictor.arrays import Numeric
from predictor.plans import ADAPTER_STYLES

if TYPE_CHECKING:
    from predictor.work.worklist import WorkList

WIDE = 4.0
"""Bytes of an element in fp32."""

JOINED, APART, _, IN_FULL = ADAPTER_STYLES


def adapter(at: WorkList, name: str, n: Numeric, k: Numeric, m: Numeric) -> None:
    """Products with A and B and what goes with them, beside a linear layer of n columns and depth k
    over m rows, and their gradients; nothing where `name` has no adapter."""
    learning = at.learning
    if not learning:
        return
    style, size, rank = learning.style, at.size, learning.rank
    sides = 1.0 if style == JOINED else at.matrices(name)
    wide = style == IN_FULL
    multiply = partial(at.product, dtype="fp32" if wide else "", times=sides)
    back = partial(multiply, phase="backward")
    out = WIDE if wide else 0.0
    for part, columns, depth in (("a", rank, k), ("b", n / sides, rank)):
        label = f"{name}.lora_{part}"
        saved = (WIDE if wide else size) * m * rank if part == "b" else 0.0
        multiply(label, "fwd", m, columns, depth, saved=saved, out_bytes=out)
        back(f"{label}.dgrad", "dgrad", m, depth, columns, out_bytes=out)
        back(f"{label}.wgrad", "wgrad", columns, depth, m, out_bytes=WIDE)
    added = size + 2.0 * WIDE if wide else 3.0 * size  # fp32 beside 16 bits becomes fp32
    stream = partial(_stream, at, m, sides)
    stream(f"{name}.lora_add", "add", n, added)
    stream(f"{name}.lora_add.bwd", "add", k * sides, 3.0 * size, back=True)
    if style == JOINED:
        return
    scaled = 2.0 * (WIDE if wide else size)
    stream(f"{name}.lora_scale", "other", n, scaled)
    stream(f"{name}.lora_scale.bwd", "other", n, scaled, back=True)
    if style == APART:
        return
    cast = size + WIDE
    # Of the input, both ways under autocast; of what the layer puts out, else.
    input_casts, output_casts = (1.0, 1.0) if wide else (2.0, 0.0)
    kept = (WIDE if wide else size) * m * k * sides
    stream(f"{name}.lora_cast", "copy", k * sides, input_casts * cast, saved=kept)
    stream(f"{name}.lora_cast.bwd", "copy", k * sides, input_casts * cast, back=True)
    if output_casts:
        stream(f"{name}.lora_out", "copy", n, cast)
        stream(f"{name}.lora_out.bwd", "copy", n, cast, back=True)


def _stream(
    at: WorkList,
    rows: Numeric,
    times: float,
    name: str,
    variant: str,
    columns: Numeric,
    moved: Numeric,
    back: bool = False,
    saved: Numeric = 0.0,
) -> None:
    """A kernel for each of `times` matrices, of `columns` together, `moved` bytes an element."""
    at.stream(
        name, "elementwise", variant, rows, columns / times, moved,
        phase="backward" if back else "forward", saved=saved / times, times=times,
    )  # fmt: skip

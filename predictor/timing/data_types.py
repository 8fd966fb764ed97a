"""Which data types' kernels stand for another's that nobody timed."""

from __future__ import annotations

import numpy as np

from predictor.arrays import Array, Numeric
from predictor.hardware import Accelerator
from predictor.precision import ELEMENT_BYTES, PACKED, PEAK, WEIGHT_BYTES
from predictor.timing.defaults import ANY, PLAIN
from predictor.timing.shapes import Ideal

RELATED_DTYPES: dict[str, tuple[str, ...]] = {
    "bf16": ("fp16",),
    "fp16": ("bf16",),
    "fp16_acc": ("fp16", "bf16"),
    "tf32": ("bf16", "fp16"),
    "fp8_block": ("fp8",),
    "mxfp8": ("fp8_block", "fp8"),
    "nvfp4": ("mxfp4", "fp8", "mxfp8", "fp8_block"),
    "mxfp4": ("nvfp4", "fp8", "fp8_block"),
    "int8": ("sq", "fp8"),
    "sq": ("int8", "fp8"),
    "w4a16_mxfp4": ("int4_wo",),
    **dict.fromkeys(PACKED, ("int4_wo",)),
}
"""Data types whose efficiency may stand in for another's, nearest first: those whose times on one
accelerator foretell the other's best (products of int8 by fp8 on three AMD parts 16 to 29 %, by
int8 of other architectures 27 to 48 %; of nvfp4 by fp8 on five NVIDIA parts 18 to 27 %, by fp8 with
scales of blocks 26 to 70 %; of mxfp4 by fp8 on MI355X 16 %)."""

STOOD_IN, STAND_IN = ("int8", "sq", "nvfp4", "mxfp4", "fp8_block"), 0.22
"""Data types that another's kernels stand for with an error of their own, and its
log-standard-deviation (the same comparisons)."""

HELD_UP = 0.3
"""By what power of its peak's rise a narrow product's least arithmetic falls short of 16 bits': the
rest waits for operands and issue, which the type quickens less. Products above 50 us that
arithmetic binds, of an accelerator's own model in 16 bits and this, mean log errors with 0, 0.15,
0.3 and 0.5: fp8 on MI308X and MI355X 0.21, 0.18, 0.21, 0.28, int8 on three AMD parts 0.27, 0.20,
0.17, 0.19, fp8 on seven NVIDIA parts, whose tables narrow the input too, 0.44, 0.35, 0.28, 0.25;
of the other vendor's models in the narrow type 0.22, 0.35 and 0.21 (ai-dynamo/aiconfigurator;
aiter), with blocks' scales 0.19 to 1.1."""


def quicker(dtype: str, accelerator: Accelerator) -> Numeric | None:
    """Peak of a type narrower than 16 bits over that of 16 bits; None where it has no rate of its
    own, that is lower, or weights are narrower than what they multiply (kernels of their own)."""
    half = accelerator.peak.get("bf16", accelerator.peak.get("fp16"))
    rate = accelerator.peak.get(PEAK.get(dtype, dtype))
    width = ELEMENT_BYTES.get(dtype, ELEMENT_BYTES["bf16"])
    narrow = width < ELEMENT_BYTES["bf16"] and WEIGHT_BYTES[dtype] == width
    if not narrow or half is None or rate is None or np.any(rate < half):
        return None
    return rate / half


def of_wide(y: Array, found: Ideal, times: Numeric) -> Array:
    """y of kernels of a narrow type from that of 16 bits: of the peak's rise, arithmetic loses what
    `HELD_UP` says.

    times   the peak over that of 16 bits
    """
    held = np.maximum(found.compute * times**HELD_UP, found.memory)
    return np.asarray(y + np.log(held / np.maximum(found.compute, found.memory)))


LIKE = {"elementwise.scan": "elementwise.add"}
"""Kinds that no table has and that do what another does: states of a scan are read, added to and
written in one pass, as a sum is (0.9 of GH200's bandwidth), while most of what is known of other
elementwise kernels is GELU, which waits for its arithmetic (0.6; arXiv 2509.22832)."""


def standing_in(kind: str, dtype: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Kinds and data types whose efficiency may stand for one's, its own first."""
    if kind.endswith(f"@{PLAIN}"):
        return (kind,), (dtype, ANY)
    named = (kind, LIKE[kind]) if kind in LIKE else (kind,)
    kinds = (*named, kind.split(".")[0]) if "." in kind else named
    return kinds, (dtype, *RELATED_DTYPES.get(dtype, ()), ANY)

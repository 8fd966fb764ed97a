"""Precision recipes: which products run in what, and how many bytes everything takes."""

from __future__ import annotations

from predictor.records import dataclass


@dataclass(frozen=True, slots=True)
class Precision:
    """One mixed-precision recipe.

    linear     data type of the products in the layers' linear projections, all three directions
    core       data type of attention, of the output projection and of what moves between kernels
    activation bytes of one activation element
    weight     bytes of one weight as the forward pass holds it
    optimizer  bytes of optimizer state per parameter: fp32 copy (if any) and two Adam moments
    peak       key of the accelerator's peak rate that `linear` uses
    by_row     a narrow operand has a scale for each row or column along which it is added up, found
               anew for either direction once it lies whole on the rank: what travels is wide
    """

    name: str
    linear: str
    core: str
    activation: float
    weight: float
    optimizer: float
    peak: str
    by_row: bool = False


PRECISIONS: dict[str, Precision] = {
    recipe.name: recipe
    for recipe in (
        Precision("fp32", "fp32", "fp32", 4, 4, 8, "fp32"),
        Precision("tf32", "tf32", "tf32", 4, 4, 8, "tf32"),
        Precision("fp16", "fp16", "fp16", 2, 2, 12, "fp16"),
        Precision("bf16", "bf16", "bf16", 2, 2, 12, "bf16"),
        Precision("fp8", "fp8", "bf16", 2, 2, 12, "fp8"),
        Precision("fp8_rowwise", "fp8", "bf16", 2, 2, 12, "fp8", by_row=True),
        Precision("fp8_block", "fp8_block", "bf16", 2, 2, 12, "fp8"),
        Precision("mxfp8", "mxfp8", "bf16", 2, 2, 12, "fp8"),
        Precision("int8", "int8", "bf16", 2, 2, 12, "int8"),
        Precision("nvfp4", "nvfp4", "bf16", 2, 2, 12, "fp4"),
    )
}

PACKED: dict[str, float] = {
    "q3_k": 0.49,
    "q4_k": 0.606,
    "q5_k": 0.71,
    "q6_k": 0.82,
    "q8_0": 1.0625,
    **{f"exl2_{bits:g}": bits / 8 for bits in (2.5, 3.0, 3.5, 4.0, 4.65, 5.0, 6.0, 8.0)},
}
"""Bytes per weight of formats that are packed by ggml (its _K_M mixtures: some matrices have more
bits, scales by 32) and by exllamav2 (bits per weight with everything)."""

PACKED_HEADS: dict[str, str] = {
    name: "exl2_6" if name.startswith("exl2") else "q8_0" if name == "q8_0" else "q6_k"
    for name in PACKED
}
"""Format of the output projection beside packed layers: six bits unless all have eight (ggml's
_K_M mixtures; exllamav2's head_bits)."""

WIDE = ("bf16", "fp16", "fp32")
"""Data types of what is not narrow, the usual one first."""

PEAK: dict[str, str] = {
    "fp8_block": "fp8",
    "mxfp8": "fp8",
    "nvfp4": "fp4",
    "mxfp4": "fp4",
    "sq": "int8",
    "int8_wo": "bf16",
    "int4_wo": "bf16",
    **dict.fromkeys(PACKED, "bf16"),
    "w4a16_mxfp4": "bf16",
    "w4a8_mxfp4_mxfp8": "fp8",
}
"""Peak rate used by a data type, where the two names differ."""

ELEMENT_BYTES: dict[str, float] = {
    "fp32": 4,
    "tf32": 4,
    "bf16": 2,
    "fp16": 2,
    "fp16_acc": 2,  # added up in 16 bits too
    "int8": 1,
    "fp8": 1,
    "fp8_block": 1,
    "mxfp8": 1.03125,  # one 8-bit scale per 32 elements
    "nvfp4": 0.5625,  # one 8-bit scale per 16 elements
    "sq": 1,
    "int8_wo": 2,
    "int4_wo": 2,
    **dict.fromkeys(PACKED, 2),
    "w4a16_mxfp4": 2,
    "w4a8_mxfp4_mxfp8": 1.03125,
    "mxfp4": 0.53125,  # one 8-bit scale per 32 elements
}
"""Bytes of one operand element of a product in this data type; of the activations, where weights
have their own (`WEIGHT_BYTES`)."""

WEIGHT_BYTES: dict[str, float] = {
    **ELEMENT_BYTES,
    "int8_wo": 1,
    "int4_wo": 0.5156,  # one 16-bit scale per 128 elements
    **PACKED,
    "w4a16_mxfp4": 0.53125,  # one 8-bit scale per 32 elements
    "w4a8_mxfp4_mxfp8": 0.53125,
}
"""Bytes of one weight element of a product in this data type."""

SPELLINGS: dict[str, str] = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "float32": "fp32",
    "float": "fp32",
    "fp8-blockscale": "fp8_block",
    "bfloat16/bfloat16": "bf16",
    "float8_e4m3fn": "fp8",
    "float8_e4m3fn/float8_e4m3fn": "fp8",
    "float8_e4m3fnuz/float8_e4m3fnuz": "fp8",
    "float4_e2m1fn_x2/float4_e2m1fn_x2": "mxfp4",
    "bfloat16/float4_e2m1fn_x2": "w4a16_mxfp4",
    "float8_e4m3fn/float4_e2m1fn_x2": "w4a8_mxfp4_mxfp8",
    "bfloat16/int4": "int4_wo",
    "int8/int8": "int8",
}
"""Names of PyTorch and of other tables (of activations/weights) for the data types of reckon."""

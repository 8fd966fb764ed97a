"""How weights are stored by tools whose `quantization_config` has words of its own: AMD's Quark,
torchao, HQQ and EETQ."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

Scheme = tuple[str, str]
"""A data type of the plan, empty where none stands for it; and a remark."""

Paired = Callable[[Mapping[str, Any], Any, str], Scheme]
"""A data type by what is said of weights and of activations, in compressed-tensors' words."""

QUARK = re.compile(r"(?P<kind>u?int|fp|mx)(?P<bits>\d+)")
"""`dtype` of Quark: fp8_e4m3, fp4, int8, uint4."""

TORCHAO: tuple[tuple[str, str, str], ...] = (
    (r"^int8dynamicactivationint4|^int4(?!weight)", "", "4-bit weights with 8-bit activations"),
    (r"^int4weightonly", "int4_wo", ""),
    (r"^int8weightonly", "int8_wo", ""),
    (r"^int8dynamicactivationint8", "sq", ""),
    (r"^float8dynamicactivationfloat8", "fp8", ""),
    (r"^float8weightonly", "int8_wo", "8-bit floats, taken as 8-bit integers"),
    (r"^nvfp4", "nvfp4", ""),
)
"""`quant_type` of torchao without dashes and in small letters: a word (`int4_weight_only`), or the
name of a class (`Int4WeightOnlyConfig`; transformers 5.24, TorchAoConfig; quant_api.py)."""


def quark(own: Mapping[str, Any], paired: Paired, place: str) -> Scheme:
    """Of `global_quant_config` (vLLM, quantization/quark/quark.py). Layers that have weights of
    their own beside it are no single type."""
    whole = own.get("global_quant_config")
    weights = whole.get("weight") if isinstance(whole, Mapping) else None
    if not isinstance(whole, Mapping) or not isinstance(weights, Mapping):
        return "", "no single weight in global_quant_config"
    others = own.get("layer_quant_config")
    for name, one in others.items() if isinstance(others, Mapping) else ():
        beside = one.get("weight") if isinstance(one, Mapping) else None
        if isinstance(beside, Mapping) and beside.get("dtype") != weights.get("dtype"):
            return "", f"{weights.get('dtype')} weights, and {beside.get('dtype')} of {name}"
    inputs = whole.get("input_tensors")
    return paired(_said(weights), _said(inputs) if isinstance(inputs, Mapping) else None, place)


def _said(tensor: Mapping[str, Any]) -> dict[str, Any]:
    """A tensor of Quark in compressed-tensors' words."""
    found = QUARK.match(str(tensor.get("dtype", "")).lower())
    if not found:
        return {"num_bits": 16, "type": "float"}
    kind = "int" if found["kind"].endswith("int") else "float"
    return {
        "num_bits": int(found["bits"]), "type": kind, "group_size": tensor.get("group_size"),
        "strategy": str(tensor.get("qscheme", "")).removeprefix("per_"),
    }  # fmt: skip


def torchao(own: Mapping[str, Any]) -> Scheme:
    """Of `quant_type`: a word, or a class under 'default'."""
    said = own.get("quant_type")
    inner = said.get("default") if isinstance(said, Mapping) else said
    name = str(inner.get("_type", "") if isinstance(inner, Mapping) else inner)
    word = re.sub(r"[^a-z0-9]", "", name.lower())
    for sign, precision, remark in TORCHAO:
        if re.search(sign, word):
            return precision, remark
    return "", f"quant_type {name}"


def hqq(own: Mapping[str, Any]) -> Scheme:
    """Of `quant_config.weight_quant_params` (transformers 5.24, HqqConfig)."""
    parts = own.get("quant_config")
    weights = parts.get("weight_quant_params") if isinstance(parts, Mapping) else None
    bits = weights.get("nbits") if isinstance(weights, Mapping) else own.get("nbits", 4)
    return (f"int{bits}_wo", "") if bits in (4, 8) else ("", f"{bits}-bit integer weights")

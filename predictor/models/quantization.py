"""Reads how a checkpoint's weights are stored from the `quantization_config` of its `config.json`.

What is found is a data type of the serving plan, which stands for weights and activations together,
and the modules that are exempt. Formats that no data type stands for keep an empty one, so that
nobody takes them for 16 bits without a word.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from predictor.errors import InputError
from predictor.models.quantizers import Scheme, hqq, quark, torchao
from predictor.precision import PACKED
from predictor.records import dataclass


@dataclass(frozen=True, slots=True)
class Quantization:
    """How the weights of a checkpoint are stored.

    method     the file's `quant_method`, or what of the model's name says it
    precision  data type of weights and activations, as a serving plan names it; empty where none
               stands for it
    cache      data type of cached keys and values; empty where the file leaves it open
    exempt     modules that stay in 16 bits: names, globs, or regular expressions behind 're:'
    targets    modules that alone are narrow, in the same forms; empty: all linear projections
    others     data type of the other projections where `precision` is that of the experts alone,
               and they are not in 16 bits (DeepSeek-V4)
    remark     what the file says beyond `precision`; where that is empty, what it says instead
    """

    method: str
    precision: str = ""
    cache: str = ""
    exempt: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    others: str = ""
    remark: str = ""


KEYS = ("quantization_config", "compression_config")
"""Where a configuration states it; compressed-tensors had a key of its own at first."""

EXEMPT = ("modules_to_not_convert", "ignored_layers", "ignore", "exclude_modules", "exclude",
          "llm_int8_skip_modules")  # fmt: skip
"""Keys that list modules which stay as they are."""

ALGORITHMS: dict[str, str] = {
    "FP8": "fp8", "FP8_PER_CHANNEL_PER_TOKEN": "fp8", "FP8_PB_WO": "fp8_block",
    "FP8_BLOCK_SCALES": "fp8_block", "MXFP8": "mxfp8", "NVFP4": "nvfp4", "NVFP4_AWQ": "nvfp4",
    "W4A16_AWQ": "int4_wo", "W4A16_GPTQ": "int4_wo", "INT4_AWQ": "int4_wo", "W4A16": "int4_wo",
    "W8A16": "int8_wo", "W8A16_GPTQ": "int8_wo", "INT8_WO": "int8_wo",
    "W8A8_SQ_PER_CHANNEL": "sq", "W8A8_SQ_PER_TENSOR_PLUGIN": "sq", "INT8_SQ": "sq",
    "W8A8_SQ_PER_CHANNEL_PER_TOKEN_PLUGIN": "sq", "W4A16_MXFP4": "w4a16_mxfp4",
    "W4A8_MXFP4_MXFP8": "w4a8_mxfp4_mxfp8", "MXFP4": "mxfp4",
}  # fmt: skip
"""`quant_algo` of ModelOpt and TensorRT-LLM."""

PAIRS: dict[tuple[int, str, int, str], dict[int, str]] = {
    (8, "int", 8, "int"): {0: "sq"},
    (8, "int", 16, ""): {0: "int8_wo"},
    (8, "float", 16, ""): {0: "int8_wo"},
    (4, "int", 16, ""): {0: "int4_wo"},
    (8, "float", 8, "float"): {32: "mxfp8", 0: "fp8"},
    (4, "float", 4, "float"): {16: "nvfp4", 32: "mxfp4"},
    (4, "float", 8, "float"): {32: "w4a8_mxfp4_mxfp8"},
    (4, "float", 16, ""): {16: "int4_wo", 32: "w4a16_mxfp4"},
}
"""Bits and kind of weights, bits and kind of activations -> data type by the elements of a scale;
0: any other number."""


def read_quantization(content: Mapping[str, Any], where: str) -> Quantization | None:
    """The quantization that a configuration states; None where it states none.

    Raises InputError for a `quantization_config` of an unknown method, and where values in it are
    not what the method writes.
    """
    stated = next((content[key] for key in KEYS if content.get(key)), None)
    if stated is None:
        return None
    place = f"{where}: quantization_config"
    if not isinstance(stated, Mapping):
        raise InputError(f"{place} must hold keys and values, got {type(stated).__name__}")
    method = str(stated.get("quant_method", "")).lower().replace("_", "-")
    if not method and isinstance(stated.get("quantization"), Mapping):
        method = "modelopt"  # whose own file has its keys one level deeper
    if not method and ("load_in_4bit" in stated or "load_in_8bit" in stated):
        method = "bitsandbytes"
    if not method and isinstance(stated.get("producer"), Mapping):  # as ModelOpt before 0.33 wrote
        method = str(stated["producer"].get("name", "")).lower()
    if method not in METHODS:
        known = ", ".join(METHODS)
        raise InputError(f"{place}: quant_method {method!r} is not read; known are {known}")
    inner = stated.get("quantization")
    own = {**stated, **(inner if isinstance(inner, Mapping) else {})}
    precision, remark = METHODS[method](own, place)
    cache, further = _cache(own, place)
    others = ""
    experts = own.get("expert_dtype", content.get("expert_dtype"))  # DeepSeek-V4.1, V4
    if precision == "fp8_block" and experts == "fp4":
        by_experts = ALGORITHMS.get(str(own.get("moe_quant_algo")), "w4a8_mxfp4_mxfp8")
        precision, others = by_experts, precision
    return Quantization(
        method=method,
        precision=precision,
        cache=cache,
        exempt=_exempt(own, place),
        targets=_targets(own, place),
        others=others,
        remark="; ".join(part for part in (remark, further) if part),
    )


def _number(own: Mapping[str, Any], key: str, absent: int, place: str) -> int:
    value = own.get(key)
    if value is None:
        return absent
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"{place}: {key} must be a number, got {value!r}")
    return int(value)


def _names(value: Any, key: str, place: str) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise InputError(f"{place}: {key} must be a list of names, got {value!r:.60}")
    return tuple(value)


def _exempt(own: Mapping[str, Any], place: str) -> tuple[str, ...]:
    listed = [name for key in EXEMPT for name in _names(own.get(key), key, place)]
    dynamic = own.get("dynamic")
    if isinstance(dynamic, Mapping):  # GPTQModel: '-:' and a regular expression leaves modules out
        listed += [f"re:{key[2:]}" for key in map(str, dynamic) if key.startswith("-:")]
    return tuple(dict.fromkeys(listed))


def _groups(own: Mapping[str, Any], place: str) -> list[Mapping[str, Any]]:
    groups = own.get("config_groups")
    if groups is None:
        return []
    found = list(groups.values()) if isinstance(groups, Mapping) else []
    if not found or not all(isinstance(group, Mapping) for group in found):
        raise InputError(f"{place}: config_groups must hold groups of keys and values")
    return found


def _targets(own: Mapping[str, Any], place: str) -> tuple[str, ...]:
    """Modules that groups name; a class of modules ('Linear') names all."""
    named = [
        target
        for group in _groups(own, place)
        for target in _names(group.get("targets"), "targets", place)
    ]
    return () if any("." not in target for target in named) else tuple(dict.fromkeys(named))


def _cache(own: Mapping[str, Any], place: str) -> Scheme:
    """Data type of the cache, and a remark on one that the plan does not have."""
    said = own.get("kv_cache_quant_algo")
    scheme = own.get("kv_cache_scheme")
    if said is None and isinstance(scheme, Mapping):
        bits, kind = _number(scheme, "num_bits", 16, place), str(scheme.get("type", "float"))
        said = {(8, "float"): "FP8", (8, "int"): "INT8"}.get((bits, kind), f"{bits}-bit {kind}")
    if said is None or str(said).lower() in ("none", "auto"):
        return "", ""
    name = str(said).lower()
    if name in ("fp8", "int8", "nvfp4"):
        return name, ""
    return "", f"a {said} cache is not predicted and taken as if nothing were said of it"


def _fp8(own: Mapping[str, Any], place: str) -> Scheme:
    return ("fp8_block" if own.get("weight_block_size") else "fp8"), ""


def _integers(own: Mapping[str, Any], place: str) -> Scheme:
    """Weights alone, of a number of bits: AWQ, GPTQ, AutoRound."""
    bits = _number(own, "bits", _number(own, "w_bit", 4, place), place)
    head = "its output projection is narrow too, here in 16 bits" if own.get("lm_head") else ""
    if _number(own, "act_bits", 16, place) < 16:
        return "", f"{bits}-bit weights with {own['act_bits']}-bit activations"
    if bits in (4, 8):
        return f"int{bits}_wo", head
    return "", f"{bits}-bit integer weights"


def _modelopt(own: Mapping[str, Any], place: str) -> Scheme:
    algorithm = str(own.get("quant_algo") or "").upper()
    if not algorithm:
        return _compressed(own, place)
    if algorithm not in ALGORITHMS:
        return "", f"quant_algo {algorithm}"
    return ALGORITHMS[algorithm], ""


def _pair(weights: Mapping[str, Any], inputs: Any, place: str) -> Scheme:
    """One group of compressed-tensors."""
    bits, kind = _number(weights, "num_bits", 8, place), str(weights.get("type", "int"))
    own = inputs if isinstance(inputs, Mapping) else {}
    wide = _number(own, "num_bits", 16, place)
    beside = str(own.get("type", "int")) if wide < 16 else ""
    size = _number(weights, "group_size", 0, place)
    by_size = PAIRS.get((bits, kind, min(wide, 16), beside), {})
    if beside and str(weights.get("strategy")) == "block" and (bits, kind) == (8, "float"):
        return "fp8_block", ""
    found = by_size.get(size, by_size.get(0, ""))
    if not found:
        scale = f" in groups of {size}" if size > 0 else ""
        return "", f"{bits}-bit {kind} weights{scale} with {wide}-bit activations"
    floats = (kind, beside) == ("float", "") and found in ("int8_wo", "int4_wo")
    return found, f"{bits}-bit floats, taken as {bits}-bit integers" if floats else ""


def _compressed(own: Mapping[str, Any], place: str) -> Scheme:
    found = []
    for group in _groups(own, place):
        if not isinstance(weights := group.get("weights"), Mapping):
            raise InputError(f"{place}: config_groups: a group has no weights")
        found.append(_pair(weights, group.get("input_activations"), place))
    if not found:
        raise InputError(f"{place}: neither config_groups nor quant_algo says how weights are kept")
    kinds = list(dict.fromkeys(found))
    if len({precision for precision, _ in kinds}) > 1:
        told = " and ".join(precision or remark for precision, remark in kinds)
        return "", f"{told} in one model"
    return kinds[0]


def _bitsandbytes(own: Mapping[str, Any], place: str) -> Scheme:
    if own.get("load_in_4bit") or own.get("_load_in_4bit"):
        kind = own.get("bnb_4bit_quant_type", "fp4")
        return "int4_wo", f"4-bit {kind}, taken as 4-bit integers"
    if own.get("load_in_8bit") or own.get("_load_in_8bit"):
        return "sq", "the outliers that LLM.int8() multiplies in 16 bits are left out"
    return "", "neither load_in_4bit nor load_in_8bit"


def _exl2(own: Mapping[str, Any], place: str) -> Scheme:
    bits = own.get("bits")
    name = f"exl2_{bits:g}" if isinstance(bits, int | float) else ""
    return (name, "") if name in PACKED else ("", f"exl2 of {bits} bits")


METHODS: dict[str, Callable[[Mapping[str, Any], str], Scheme]] = {
    "fp8": _fp8,
    "fbgemm-fp8": _fp8,
    "modelopt": _modelopt,
    "modelopt-fp4": _modelopt,
    "modelopt-fp8": _modelopt,
    "mxfp4": lambda own, place: ("w4a16_mxfp4", ""),
    "awq": _integers,
    "gptq": _integers,
    "auto-round": _integers,
    "compressed-tensors": _compressed,
    "bitsandbytes": _bitsandbytes,
    "exl2": _exl2,
    "quark": lambda own, place: quark(own, _pair, place),
    "torchao": lambda own, place: torchao(own),
    "hqq": lambda own, place: hqq(own),
    "eetq": lambda own, place: ("int8_wo", ""),
}
"""By `quant_method`."""

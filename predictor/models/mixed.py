"""Configurations of models whose layers attend in two ways: with heads of two shapes, those that
see a window and those that see everything (Gemma 4, MiMo-V2, Step 3.5), or by delta rules and
latents (Kimi Linear).

Read off the configuration classes and modelling code of transformers 5.23.0 (2026-11) and the
published `config.json`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from predictor.errors import InputError

Found = dict[str, Any]


def listed_windows(kinds: Any) -> str:
    """Pattern of a list of layers, by the share of those that see a window; empty without a list
    that has both."""
    if not isinstance(kinds, list):
        return ""
    local, whole = kinds.count("sliding_attention"), kinds.count("full_attention")
    if not local or not whole or local + whole != len(kinds):
        return ""
    shared = math.gcd(local, whole)
    return f"{local // shared} local : {whole // shared} global"


def marked(marks: Any, layers: int, key: str, where: str) -> list[int]:
    """A list of 0 and 1 for each layer; further marks, of extra predictions, are left out."""
    if not isinstance(marks, list) or len(marks) < layers or set(marks) - {0, 1}:
        raise InputError(f"{where}: key {key!r} must list 0 or 1 for each of the {layers} layers")
    return marks[:layers]


def leading(
    sparse: list[int], key: str, where: str, wrong: str = "dense layers behind mixtures"
) -> int:
    """Layers before the first that is marked, behind which all are."""
    first = sparse.index(1) if 1 in sparse else len(sparse)
    if 0 in sparse[first:]:
        raise InputError(f"{where}: key {key!r} has {wrong}: not predicted")
    return first


def _kinds(content: Mapping[str, Any], found: Found, where: str) -> list[str]:
    """Kinds of the layers, as far as there are layers."""
    kinds, layers = content.get("layer_types"), found["layers"]
    if not isinstance(kinds, list) or len(kinds) < layers:
        raise InputError(f"{where}: key 'layer_types' must say the kind of each of {layers} layers")
    kinds = kinds[:layers]
    if set(kinds) - {"sliding_attention", "full_attention"}:
        raise InputError(
            f"{where}: key 'layer_types' must consist of sliding_attention and full_attention"
        )
    return kinds


def _windows(kinds: list[str], found: Found, own: Found) -> Found:
    """Pattern and shape of windowed layers; nothing where no layer has one, and their shape as that
    of all where every layer has."""
    if "sliding_attention" not in kinds or not found.get("sliding_window"):
        return {"sliding_window": 0}
    if "full_attention" not in kinds:
        return {name.removeprefix("window_"): value for name, value in own.items()}
    return {"sliding_pattern": listed_windows(kinds), **own}


def overridden(content: Mapping[str, Any], numbers: list[int], where: str) -> Found:
    """What a file states for those layers apart from the others (transformers 5.24.0,
    `per_layer_config`); empty where it has no such part.

    Raises InputError where it has other layers, or they differ.
    """
    stated = content.get("per_layer_config")
    if not stated:
        return {}
    own = {int(key): one for key, one in dict(stated).items()}
    if sorted(own) != numbers or any(one != own[numbers[0]] for one in own.values()):
        raise InputError(f"{where}: key 'per_layer_config' is not of the layers of one kind")
    return dict(own[numbers[0]])


def gemma4(content: Mapping[str, Any], found: Found, where: str) -> None:
    """Gemma 4: full layers have larger heads, fewer key heads and perhaps no values of their own;
    the last layers may borrow keys and values, and each may have an embedding of its own. A
    mixture stands beside a dense block, which is a shared expert."""
    layers = found["layers"]
    every = ["sliding_attention"] * 5 + ["full_attention"]
    plain = [every[at % 6] for at in range(layers)]
    kinds = _kinds({"layer_types": content.get("layer_types") or plain}, found, where)
    kinds[-1:] = ["full_attention"]  # whatever a file says (transformers, Gemma4TextConfig)
    own = {"window_head_dim": found.get("head_dim", 256), "window_kv_heads": found["kv_heads"]}
    found["sliding_window"] = content.get("sliding_window", 512)
    alike = bool(content.get("attention_k_eq_v"))
    whole = [at for at, kind in enumerate(kinds) if kind == "full_attention"]
    apart = overridden(content, whole, where)
    found["head_dim"] = content.get("global_head_dim") or apart.get("head_dim", 512)
    if alike and content.get("num_global_key_value_heads"):
        found["kv_heads"] = content["num_global_key_value_heads"]
    found["kv_heads"] = apart.get("num_key_value_heads", found["kv_heads"])
    found |= _windows(kinds, found, own)
    found["values_are_keys"] = alike
    found["layer_inputs"] = content.get("hidden_size_per_layer_input", 256) or 0
    found["borrowing_layers"] = content.get("num_kv_shared_layers") or 0
    if found["borrowing_layers"] and content.get("use_double_wide_mlp"):
        found["borrowing_ffn_hidden"] = 2 * found["ffn_hidden"]
    if content.get("enable_moe_block"):
        found |= {"shared_experts": 1, "shared_expert_ffn_hidden": found["ffn_hidden"]}
    else:
        for name in ("num_experts", "expert_ffn_hidden", "top_k"):
            found.pop(name, None)


GEMMA3N = {
    "layers": 35, "hidden": 2048, "heads": 8, "kv_heads": 2, "head_dim": 256, "sliding_window": 512,
    "layer_inputs": 256, "laurel_rank": 64, "alternating_streams": 4, "ffn_hidden": 16384,
    "borrowing_layers": 15,
}  # fmt: skip
"""What Gemma 3n's configuration class takes where a file says nothing (transformers 5.24,
configuration_gemma3n.py)."""


def gemma3n(content: Mapping[str, Any], found: Found, where: str) -> None:
    """Gemma 3n: copies of the residual stream, embeddings of every layer, last layers that borrow
    keys and values, windows in four of five layers. That some layers set most of what they activate
    to zero spares no product.

    Raises InputError where feed-forward widths differ.
    """
    inner = found.get("ffn_hidden", GEMMA3N["ffn_hidden"])
    if isinstance(inner, list):
        if not inner or any(one != inner[0] for one in inner):
            raise InputError(f"{where}: key 'intermediate_size' differs among layers")
        found["ffn_hidden"] = inner[0]
    for name, key in (
        ("layer_inputs", "hidden_size_per_layer_input"),
        ("borrowing_layers", "num_kv_shared_layers"),
    ):
        found[name] = content.get(key, GEMMA3N[name])
    for name, usual in GEMMA3N.items():
        found.setdefault(name, usual)
    every = ["sliding_attention"] * 4 + ["full_attention"]
    plain = [every[at % 5] for at in range(found["layers"])]
    kinds = _kinds({"layer_types": content.get("layer_types") or plain}, found, where)
    found |= _windows(kinds, found, {})


def gemma4_unified(content: Mapping[str, Any], found: Found, where: str) -> None:
    """Gemma 4 of one stack for text, images and sound: no layer has an embedding of its own."""
    gemma4({**content, "hidden_size_per_layer_input": 0, "enable_moe_block": False}, found, where)


def mimo_v2(content: Mapping[str, Any], found: Found, where: str) -> None:
    """MiMo-V2: windowed layers have more key heads; the first layer is dense."""
    layers = found["layers"]
    if "hybrid_layer_pattern" in content:
        marks = marked(content["hybrid_layer_pattern"], layers, "hybrid_layer_pattern", where)
        kinds = ["sliding_attention" if mark else "full_attention" for mark in marks]
    else:
        kinds = _kinds(content, found, where)
    if content.get("swa_v_head_dim", found.get("v_head_dim")) != found.get("v_head_dim"):
        raise InputError(f"{where}: windows with values of another size are not predicted")
    found |= _windows(
        kinds,
        found,
        {
            "window_heads": content.get("swa_num_attention_heads") or found["heads"],
            "window_kv_heads": content.get("swa_num_key_value_heads") or found["kv_heads"],
            "window_head_dim": content.get("swa_head_dim") or found["head_dim"],
        },
    )
    if "moe_layer_freq" in content:
        marks = marked(content["moe_layer_freq"], layers, "moe_layer_freq", where)
        found["dense_layers"] = leading(marks, "moe_layer_freq", where)
    else:
        found["dense_layers"] = _sparse_kinds(content, layers, 1, where)


def _sparse_kinds(content: Mapping[str, Any], layers: int, usual: int, where: str) -> int:
    """Leading dense layers by a list of dense and sparse ones; else as usual."""
    kinds = content.get("mlp_layer_types")
    if not isinstance(kinds, list):
        return usual
    marks = [int(kind == "sparse") for kind in kinds[:layers]]
    return leading(marks, "mlp_layer_types", where)


def step(content: Mapping[str, Any], found: Found, where: str) -> None:
    """Step 3.5: windowed layers have more query heads, every head a gate; the first layers are
    dense."""
    for name, keys in {
        "kv_heads": ("num_attention_groups",),
        "top_k": ("moe_top_k",),
        "shared_expert_ffn_hidden": ("share_expert_dim", "share_expert_dims"),
    }.items():
        stated = next((content[key] for key in keys if content.get(key)), None)
        if stated is not None:
            found[name] = stated
    found |= {"shared_experts": 1, "head_gate": bool(content.get("gating", True))}
    kinds = _kinds(content, found, where) if content.get("layer_types") else []
    other = content.get("attention_other_setting")
    other = other if isinstance(other, Mapping) else {}
    own = {
        "window_heads": content.get("num_sliding_attention_heads")
        or other.get("num_attention_heads")
        or found["heads"],
        "window_kv_heads": other.get("num_attention_groups") or found["kv_heads"],
        "window_head_dim": other.get("head_dim") or found["head_dim"],
    }
    found |= _windows(kinds, found, own)
    if "dense_layers" in found:
        return
    listed = content.get("moe_layers_enum")
    if listed is None:
        found["dense_layers"] = _sparse_kinds(content, found["layers"], 3, where)
        return
    items = listed.split(",") if isinstance(listed, str) else listed
    try:
        chosen = {int(item) for item in items}
    except (TypeError, ValueError):
        raise InputError(f"{where}: key 'moe_layers_enum' must list numbers of layers") from None
    marks = [int(at in chosen) for at in range(found["layers"])]
    found["dense_layers"] = leading(marks, "moe_layers_enum", where)


def laguna(content: Mapping[str, Any], found: Found, where: str) -> None:
    """Laguna: windowed layers have more query heads, every head or every channel a gate; the first
    layers are dense (transformers, configuration_laguna.py @ 08911d5)."""
    layers, gating = found["layers"], content.get("gating", True)
    found |= {
        "head_gate": gating in (True, "per-head"),
        "output_gate": gating == "per-element",
        "shared_experts": 1,
    }
    kinds = _kinds(content, found, where) if content.get("layer_types") else []
    own: Found = {}
    heads = content.get("num_attention_heads_per_layer")
    if isinstance(heads, list) and len(heads) >= layers == len(kinds):
        pairs = set(zip(kinds, heads, strict=False))
        if len(pairs) > len(set(kinds)):
            raise InputError(
                f"{where}: key 'num_attention_heads_per_layer' differs among layers of one kind: "
                "not predicted"
            )
        by_kind = dict(pairs)
        found["heads"] = by_kind.get("full_attention", found["heads"])
        own["window_heads"] = by_kind.get("sliding_attention", found["heads"])
    found |= _windows(kinds, found, own)
    found["dense_layers"] = _sparse_kinds(content, layers, 1, where)


def _numbered(own: Mapping[str, Any], key: str, layers: int, where: str) -> set[int]:
    """Layers that a list names, the first of all as 1."""
    listed = own.get(key, [])
    if not isinstance(listed, list) or not all(isinstance(one, int) for one in listed):
        raise InputError(f"{where}: key '{key}' must list numbers of layers from 1 to {layers}")
    return set(listed)


def kimi_linear(content: Mapping[str, Any], found: Found, where: str) -> None:
    """Kimi Linear and Kimi K3: delta rules that decay by channel beside latent attention, both
    perhaps without positions (moonshotai, configuration_kimi.py and `config.json`)."""
    own, layers = content.get("linear_attn_config"), found["layers"]
    kinds = content.get("layer_types")
    if own is None and isinstance(kinds, list):  # as transformers' class writes it back
        own = {
            "kda_layers": [at + 1 for at, one in enumerate(kinds) if one == "linear_attention"],
            "full_attn_layers": [at + 1 for at, one in enumerate(kinds) if one == "full_attention"],
            "num_heads": content.get("linear_num_heads", 32),
            "head_dim": content.get("linear_head_dim", 128),
            "short_conv_kernel_size": content.get("linear_conv_kernel_dim", 4),
        }
        found["dense_layers"] = _sparse_kinds(content, layers, 1, where)
    if not isinstance(own, Mapping):
        raise InputError(f"{where}: key 'linear_attn_config' is missing")
    rules = _numbered(own, "kda_layers", layers, where)
    full = _numbered(own, "full_attn_layers", layers, where)
    if rules & full or rules | full != set(range(1, layers + 1)):
        raise InputError(
            f"{where}: keys 'kda_layers' and 'full_attn_layers' must name each of the {layers} "
            "layers once"
        )
    if content.get("moe_layer_freq", 1) != 1:
        raise InputError(f"{where}: key 'moe_layer_freq' other than 1 is not predicted")
    heads, width = own.get("num_heads", found["heads"]), own.get("head_dim", 128)
    found |= {
        "delta_layers": len(rules),
        "delta_key_heads": heads,
        "delta_value_heads": heads,
        "delta_key_dim": width,
        "delta_value_dim": width,
        "delta_conv": own.get("short_conv_kernel_size", 4),
        "delta_gate_rank": width,
        "delta_whole_gate": bool(own.get("use_full_rank_gate")),
        "output_gate": bool(content.get("mla_use_output_gate")),
        "positions": "none" if content.get("mla_use_nope") else "rope",
        "head_dim": found.get("qk_nope_head_dim", 0) + found.get("qk_rope_head_dim", 0),
    }


READERS = {
    "kimi_linear": kimi_linear,
    "gemma3n_text": gemma3n,
    "gemma4_text": gemma4,
    "gemma4_unified_text": gemma4_unified,
    "mimo_v2_flash": mimo_v2,
    "mimo_v2": mimo_v2,
    "step3p5": step,
    "step3p7": step,
    "laguna": laguna,
}
"""By `model_type`: completes what was found."""

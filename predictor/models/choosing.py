"""Configurations of models whose layers differ in how they compress or choose keys: DeepSeek-V4,
MiniMax-M3.

Read off the configuration classes of transformers (2026): deepseek_v4 @ 015c078, minimax_m3_vl @
01a05aa, which fill in what published files leave out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from predictor.errors import InputError
from predictor.models.mixed import leading, marked

Found = dict[str, Any]

WINDOW, CHOOSING, POOLING = (
    "sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention",
)  # fmt: skip
RATIOS = {0: WINDOW, 4: CHOOSING, 128: POOLING}
"""Kind of a layer by the ratio that published files list."""

V4 = {
    "head_dim": 512, "kv_heads": 1, "q_lora_rank": 1024, "qk_rope_head_dim": 64, "out_groups": 8,
    "out_rank": 1024, "streams": 4, "index_heads": 64, "index_head_dim": 128, "index_topk": 512,
    "sliding_window": 128, "shared_experts": 1,
}  # fmt: skip
"""What DeepSeek-V4's configuration class takes where a file says nothing."""


def _listed(kinds: Any, layers: int, known: tuple[str, ...], where: str) -> list[str]:
    if not isinstance(kinds, list) or len(kinds) < layers or set(kinds[:layers]) - set(known):
        raise InputError(
            f"{where}: key 'layer_types' must list {', '.join(known)} for each of the {layers} "
            "layers"
        )
    return kinds[:layers]


def _ratios(content: Mapping[str, Any], layers: int, where: str) -> list[str]:
    """Kinds of the layers by their ratios; further ones are those of extra predictions."""
    listed = content["compress_ratios"]
    if not isinstance(listed, list) or len(listed) < layers or set(listed[:layers]) - set(RATIOS):
        raise InputError(
            f"{where}: key 'compress_ratios' must list 0, 4 or 128 for each of the {layers} layers"
        )
    return [RATIOS[ratio] for ratio in listed[:layers]]


def _unshared(content: Mapping[str, Any], where: str) -> None:
    """Raise InputError where a file is told to share choices among layers."""
    if (content.get("index_topk_freq") or 1) > 1 or content.get("use_index_cache"):
        raise InputError(
            f"{where}: choices that layers share (index_topk_freq) are not predicted beside "
            "compressed or blocked keys"
        )


def deepseek_v4(content: Mapping[str, Any], found: Found, where: str) -> None:
    """DeepSeek-V4: which layers compress keys, and how; every layer is a mixture."""
    layers = found["layers"]
    _unshared(content, where)
    for name, usual in V4.items():
        found.setdefault(name, usual)
    if content.get("layer_types") is not None:
        kinds = _listed(content["layer_types"], layers, (WINDOW, CHOOSING, POOLING), where)
    elif content.get("compress_ratios") is not None:
        kinds = _ratios(content, layers, where)
    else:
        kinds = [POOLING, POOLING, *(POOLING, CHOOSING) * layers][:layers]
    rates = content.get("compress_rates")
    rates = rates if isinstance(rates, Mapping) else {}
    for name, kind, usual in (("choosing", CHOOSING, 4), ("pooling", POOLING, 128)):
        found[f"{name}_layers"] = kinds.count(kind)
        found[f"{name}_ratio"] = rates.get(kind, usual)


def minimax_m3(content: Mapping[str, Any], found: Found, where: str) -> None:
    """MiniMax-M3: leading layers are dense and see all keys; the others choose blocks of them."""
    layers, own = found["layers"], content.get("sparse_attention_config")
    _unshared(content, where)
    marks = content.get("moe_layer_freq")
    if marks is not None:
        found["dense_layers"] = leading(
            marked(marks, layers, "moe_layer_freq", where), "moe_layer_freq", where
        )
    if not isinstance(own, Mapping) or own.get("use_sparse_attention") is False:
        return
    kinds = content.get("layer_types")
    if kinds is not None:
        listed = _listed(kinds, layers, ("full_attention", "minimax_m3_sparse"), where)
        chosen = [int(kind != "full_attention") for kind in listed]
    else:
        chosen = own.get("sparse_attention_freq", [])
    key, wrong = "sparse_attention_freq", "full attention behind chosen blocks"
    whole = leading(marked(chosen, layers, key, where), key, where, wrong)
    if whole == layers:
        return
    block = own.get("sparse_block_size", 128)
    found |= {
        "whole_layers": whole,
        "index_block": block,
        "index_topk": block * own.get("sparse_topk_blocks", 16),
        "index_heads": own.get("sparse_num_index_heads", 4),
        "index_head_dim": own.get("sparse_index_dim", 128),
    }


READERS = {
    "deepseek_v4": deepseek_v4,
    "deepseek_ref": deepseek_v4,
    "minimax_m3_vl_text": minimax_m3,
}
"""By `model_type`: completes what was found."""

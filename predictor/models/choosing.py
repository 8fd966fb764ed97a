"""Configurations of models whose layers differ in how they compress or choose keys: DeepSeek-V4 and
V4.1, MiniMax-M3.

Read off the configuration classes of transformers (2026): deepseek_v4 @ 015c078, deepseek_v41 @
0a2080b, minimax_m3_vl @ 01a05aa, which fill in what published files leave out.
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


V41 = {"q_lora_rank": 1280, "index_heads": 32}
"""What that of DeepSeek-V4.1 takes instead."""


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


def _layers_named(
    content: Mapping[str, Any], key: str, usual: list[int], layers: int, where: str
) -> set[int]:
    """Layers that a list names, the first of all as 0; as usual without it."""
    listed = usual if content.get(key) is None else content[key]
    if not isinstance(listed, list) or set(listed) - set(range(layers)):
        raise InputError(f"{where}: key '{key}' must list numbers of layers from 0 to {layers - 1}")
    return set(listed)


def _sections(content: Mapping[str, Any], layers: int, where: str) -> tuple[int, int, int, int]:
    """Layers with a window alone, with keys of several tokens, how many tokens those are, and
    layers with keys of one token each, which come in this order."""
    usual = [0, 0, *[2] * (layers // 2 - 2), *[1] * (layers - layers // 2)]
    listed = content.get("compress_ratios") or usual
    key = f"{where}: key 'compress_ratios'"
    if not isinstance(listed, list) or len(listed) < layers:
        raise InputError(f"{key} must list a number for each of the {layers} layers")
    own = listed[:layers]
    windows, last = own.count(0), own.count(1)
    several = sorted(set(own) - {0, 1})
    ratio = several[0] if several else 0
    if (
        len(several) > 1
        or own != [0] * windows + [ratio] * own.count(ratio) * bool(ratio) + [1] * last
    ):
        raise InputError(
            f"{key} must list zeros, then one number above 1, then ones; other orders are not "
            "predicted"
        )
    return windows, layers - windows - last, ratio, last


def deepseek_v41(content: Mapping[str, Any], found: Found, where: str) -> None:
    """DeepSeek-V4.1: which layers make keys, choose among them, or see what others made and chose;
    tables of n-grams."""
    layers = found["layers"]
    for name, usual in {**V4, **V41}.items():
        found.setdefault(name, usual)
    windows, several, ratio, last = _sections(content, layers, where)
    first = layers - last
    makes = _layers_named(content, "kv_source_layer_ids", [2, 8, 14, 20], layers, where)
    also = sorted(makes | set(range(first + 4, layers, 4)))
    chooses = _layers_named(content, "index_source_layer_ids", also, layers, where)
    starts = ({windows} if several else set()) | ({first} if last else set())
    late = {layer for layer in makes if layer >= first}
    if not starts <= makes <= chooses or late > {first} or min(chooses, default=0) < windows:
        raise InputError(
            f"{where}: keys 'kv_source_layer_ids' and 'index_source_layer_ids' must name the first "
            "layer of each ratio, of the last ratio no other, and each that makes keys must choose"
        )
    again = {layer for layer in chooses if layer >= first}
    pool = content.get("candidate_source_layer_id", first)
    if pool is not None and pool >= 0 and pool != first:
        raise InputError(
            f"{where}: key 'candidate_source_layer_id' other than {first} is not predicted"
        )
    blocks, size = (
        content.get("candidate_topk_blocks", 2048),
        content.get("candidate_block_size", 8),
    )
    found |= {
        "choosing_layers": several,
        "choosing_ratio": ratio,
        "reading_layers": several - len(makes - late),
        "sharing_layers": several - len(chooses - again),
        "decoder_layers": last,
        "decoder_choosers": len(again),
        "candidates": blocks * size if pool is None or pool >= 0 else 0,
        "index_from_keys": True,
        "mtp_layers": 0,  # draft layers have experts of their own
        **_tables(content, first, where),
    }


def _tables(content: Mapping[str, Any], first: int, where: str) -> Found:
    """Tables of n-grams of DeepSeek-V4.1; `first` is the decoder's first layer."""
    named = _layers_named(content, "engram_layer_ids", [], first or 1, where)
    if not named:
        return {}
    rows, grams = content.get("engram_num_embeddings"), content.get("engram_max_ngram_size", 4)
    if not isinstance(rows, list) or len(rows) != len(named):
        raise InputError(f"{where}: key 'engram_num_embeddings' must list rows for each layer")
    return {
        "ngram_layers": len(named),
        "ngram_rows": sum(rows),
        "ngram_lookups": (grams - 1) * content.get("engram_n_heads", 8),
        "ngram_width": content.get("engram_head_dim", 256),
    }


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
    "deepseek_v41_text": deepseek_v41,
    "minimax_m3_vl_text": minimax_m3,
}
"""By `model_type`: completes what was found."""

"""Configurations of 2025 and 2026 whose layers share what an indexer chose, or have delta rules
beside latents: GLM-5.2, GLM-5.3-Flash, Hy4, Ling 3.0; short convolutions: LFM2, LFM3; and others
that state dimensions in their own way: LongCat-Flash, Hunyuan-A13B, Grok 2, Qwen4-Exp.

Read off transformers 5.24.0 (2026-11) and SGLang 0.5.23 (2026-10), as each reader says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from predictor.errors import InputError
from predictor.models.listed import RENAMED, sharing
from predictor.models.mixed import Found, listed_windows


def _own(_: int) -> bool:
    return True


def _first_of_four(at: int) -> bool:
    return at == 0 or (at - 1) % 4 == 0


def dsa(content: Mapping[str, Any], found: Found, where: str) -> None:
    """GLM-5 and what follows it: layers may see the keys that an earlier one chose (transformers,
    configuration_glm_moe_dsa.py: `indexer_types`, `index_topk_freq`)."""
    if found.get("index_topk"):
        found |= sharing(content, list(range(found["layers"])), _own)


def mistral_large4(content: Mapping[str, Any], found: Found, where: str) -> None:
    """Mistral Large 4: as GLM-5, with queries and an indexer that see the residual stream
    (transformers 5.24, configuration_mistral_large4.py).

    Raises InputError where layers see the latents of earlier ones.
    """
    sources = content.get("kv_source_layers")
    if sources is not None and sources != list(range(found["layers"])):
        raise InputError(
            f"{where}: layers that share latents (kv_source_layers) are not predicted beside keys "
            "that layers choose"
        )
    dsa(content, found, where)


def lara_mini(content: Mapping[str, Any], found: Found, where: str) -> None:
    """Lara 4 Mini: delta rules, windows and full attention in turn, whose attention has no gate
    (transformers 5.24, modeling_lara_mini.py)."""
    found["output_gate"] = False
    kinds = content.get("layer_types")
    kinds = [] if not isinstance(kinds, list) else kinds
    attending = [kind for kind in kinds if kind != "linear_attention"]
    if WINDOW not in attending:
        found["sliding_window"] = 0
    else:
        found["sliding_pattern"] = listed_windows(attending) or "all layers"


def hy_v4(content: Mapping[str, Any], found: Found, where: str) -> None:
    """Hy4: gated latents, keys that every fourth layer chooses, residual streams whose mixes are
    fewer than those that are counted (transformers, configuration_hy_v4.py, modeling_hy_v4.py)."""
    found |= sharing(content, list(range(found["layers"])), _first_of_four)
    found |= {
        "output_gate": bool(content.get("gated_mla", True)),
        "streams": found.get("streams", 4) if content.get("enable_ihc", True) else 0,
    }


def qwen4_exp(content: Mapping[str, Any], found: Found, where: str) -> None:
    """Qwen4-Exp (Qwen3.8-Flash-Next): delta rules beside keys that are chosen by means of several,
    residual streams whose sums are told through a few channels, a table of n-grams (transformers,
    configuration_qwen4_exp.py and modular_qwen4_exp.py @ 01377e7)."""
    found.setdefault("streams", 4)
    found.setdefault("stream_rank", 320)
    found["index_means"] = bool(found.get("index_topk"))
    named = content.get("ple_layer_ids") or []
    if not named:
        return
    heads = (content.get("ngram_size", 3) - 1) * content.get("heads_per_ngram", 8)
    width = content.get("ple_embed_dim") or found["hidden"]
    if width % heads:
        raise InputError(f"{where}: key 'ple_embed_dim' {width} is not a multiple of {heads} heads")
    base = content.get("ngram_vocab_size_base", 20_000_000)
    found |= {
        "ngram_layers": len(set(named)),
        "ngram_rows": len(set(named)) * heads * base,  # and a hundred-thousandth: the next primes
        "ngram_lookups": heads,
        "ngram_width": width // heads,
        "ngram_taps": content.get("ple_conv_kernel_size", 4),
    }


def _rules(content: Mapping[str, Any], found: Found, period: int, where: str) -> list[int]:
    """Numbers of the layers without a delta rule: listed, or the last of every period."""
    layers, kinds = found["layers"], content.get("layer_types")
    if kinds is None:
        return [at for at in range(layers) if (at + 1) % period == 0]
    known = {"linear_attention", "full_attention", "indexed_attention"}
    if isinstance(kinds, list):
        kinds = [RENAMED.get(str(kind), kind) for kind in kinds]
    if not isinstance(kinds, list) or len(kinds) < layers or set(kinds[:layers]) - known:
        raise InputError(f"{where}: key 'layer_types' must consist of {', '.join(sorted(known))}")
    return [at for at, kind in enumerate(kinds[:layers]) if kind != "linear_attention"]


def _kda(found: Found, attending: list[int], heads: int, width: int, conv: int) -> Found:
    return {
        "delta_layers": found["layers"] - len(attending),
        "delta_key_heads": heads,
        "delta_value_heads": heads,
        "delta_key_dim": width,
        "delta_value_dim": width,
        "delta_conv": conv,
        "delta_gate_rank": width,
        "head_dim": found["qk_nope_head_dim"] + found.get("qk_rope_head_dim", 0),
    }


def _lightning(found: Found, attending: list[int], width: int) -> Found:
    """Every head forgets at a rate of its own; there are as many of keys as of queries."""
    return {
        "delta_layers": found["layers"] - len(attending),
        "delta_key_heads": found["heads"],
        "delta_value_heads": found["heads"],
        "delta_key_dim": width,
        "delta_value_dim": width,
        "delta_fixed": True,
    }


def minimax(content: Mapping[str, Any], found: Found, where: str) -> None:
    """MiniMax-Text-01 and M1: lightning attention in most layers, 1 in `attn_type_list` where a
    layer is not (vllm-project/vllm, models/minimax_text_01.py)."""
    kinds = content.get("attn_type_list")
    if kinds is None:
        attending = _rules(content, found, found["layers"] + 1, where)
    elif isinstance(kinds, list) and len(kinds) == found["layers"] and not set(kinds) - {0, 1}:
        attending = [at for at, kind in enumerate(kinds) if kind]
    else:
        raise InputError(
            f"{where}: key 'attn_type_list' must be 0 or 1 for each of the {found['layers']} layers"
        )
    if len(attending) in (0, found["layers"]):
        raise InputError(f"{where}: state attn_type_list or layer_types, with layers of both kinds")
    width = content.get("head_dim") or found["hidden"] // found["heads"]
    found |= {**_lightning(found, attending, width), "family": "minimax_text_01"}


def glm5_next(content: Mapping[str, Any], found: Found, where: str) -> None:
    """GLM-5.3-Flash: delta rules that decay by channel; latents without positions, of which each
    index key stands for several; residual streams (transformers, configuration_glm5_next.py)."""
    attending = _rules(content, found, 4, where)
    own = content.get("linear_attn_config")
    own = own if isinstance(own, Mapping) else {}
    heads = own.get("num_heads") or content.get("linear_num_heads", 64)
    width = own.get("head_dim") or content.get("linear_head_dim", 128)
    conv = own.get("short_conv_kernel_size") or content.get("linear_conv_kernel_dim", 4)
    found |= _kda(found, attending, heads, width, conv)
    found |= sharing(content, attending, _own)
    found |= {
        "index_pool": content.get("index_kpool", 16),
        "positions": "rope" if found.get("qk_rope_head_dim") else "none",
        "streams": found.get("streams", 4),
    }


def bailing_hybrid(content: Mapping[str, Any], found: Found, where: str) -> None:
    """Ling 3.0: delta rules that decay by channel, projected at once, and latents with a gate for
    each head (transformers, configuration_bailing_hybrid.py, modeling_bailing_hybrid.py). Files of
    Ling 2.5 and 2.6 have no convolution (sgl-project/sglang, configs/bailing_hybrid.py): theirs is
    lightning attention, and the latents have no gate (vllm-project/vllm,
    models/bailing_moe_linear.py)."""
    period = content.get("layer_group_size", 6)
    if not isinstance(period, int) or period < 1:
        raise InputError(f"{where}: key 'layer_group_size' must be a whole number of at least 1")
    width = content.get("linear_head_dim") or content.get("head_dim") or 128
    if width == found.get("qk_rope_head_dim"):  # as the class writes it back
        width = 128
    attending = _rules(content, found, period, where)
    if content.get("short_conv_kernel_size") is None:
        found |= _lightning(found, attending, width)
        found["head_dim"] = found["qk_nope_head_dim"] + found.get("qk_rope_head_dim", 0)
        return
    heads = content.get("linear_num_heads") or found["heads"]
    found |= _kda(found, attending, heads, width, content["short_conv_kernel_size"])
    whole = bool(content.get("no_kda_lora", True))
    found |= {"delta_whole_gate": whole, "delta_whole_decay": whole, "head_gate": True}


def _embedded(content: Mapping[str, Any], found: Found, where: str) -> Found:
    """LongCat-Flash-Lite: words of 2 to `emb_neighbor_num` tokens, each in `emb_split_num` tables
    of so many vocabularies, which share out the model's width (Meituan 2026, arXiv 2601.21204)."""
    words, splits = content.get("emb_neighbor_num", 4), content.get("emb_split_num", 4)
    lookups = (words - 1) * splits if isinstance(words, int) and isinstance(splits, int) else 0
    if lookups < 1 or found["hidden"] % lookups:
        raise InputError(
            f"{where}: hidden_size {found['hidden']} is not a multiple of "
            f"(emb_neighbor_num {words} - 1) x emb_split_num {splits}"
        )
    return {
        "ngram_layers": 1,
        "ngram_embedding": True,
        "ngram_rows": lookups * int(content["ngram_vocab_size_ratio"] * content["vocab_size"]),
        "ngram_lookups": lookups,
        "ngram_width": found["hidden"] // lookups,
    }


def longcat(content: Mapping[str, Any], found: Found, where: str) -> None:
    """LongCat-Flash: a layer is two of attention and a dense block each, with one mixture between
    them; some experts do nothing, and as many of those that a token chooses on average (Meituan
    2025, arXiv 2509.01322, section 2: 8 of 12). Counted as twice as many layers, of which every
    other is a mixture whose shared expert is the dense block."""
    if content.get("oe_vocab_size_ratio"):
        raise InputError(f"{where}: embeddings of several tokens (n-grams) are not predicted")
    if content.get("ngram_vocab_size_ratio"):
        found |= _embedded(content, found, where)
    found["layers"] = 2 * found["layers"]
    real, none = content.get("n_routed_experts") or 0, content.get("zero_expert_num") or 0
    if real + none and "top_k" in found:
        found["top_k"] = max(round(found["top_k"] * real / (real + none)), 1)


def _alike(value: Any, key: str, where: str) -> Any:
    """What a list says of all layers alike."""
    if not isinstance(value, list):
        return value
    if not value or any(one != value[0] for one in value):
        raise InputError(f"{where}: key {key!r} differs among layers: not predicted")
    return value[0]


def hunyuan(content: Mapping[str, Any], found: Found, where: str) -> None:
    """Hunyuan-A13B and its like, whose file states some dimensions for each layer (tencent,
    configuration_hunyuan.py)."""
    for name, key in (
        ("top_k", "moe_topk"),
        ("shared_experts", "num_shared_expert"),
        ("expert_ffn_hidden", "moe_intermediate_size"),
    ):
        if name in found:
            found[name] = _alike(found[name], key, where)
    found.setdefault("shared_experts", 1)  # as transformers' class always has


def grok(content: Mapping[str, Any], found: Found, where: str) -> None:
    """Grok 2: a dense block beside each mixture, as a shared expert (sgl-project/sglang,
    models/grok.py: `residual_moe`)."""
    if content.get("residual_moe"):
        found |= {"shared_experts": 1, "shared_expert_ffn_hidden": found["ffn_hidden"]}


def _deci_width(multiple: float, hidden: int) -> int:
    """Inner width of a block by what its file states of it (vLLM 0.33, nemotron_nas.py:
    `_ffn_mult_to_intermediate_size`)."""
    return -(-int(2 * multiple * hidden / 3) // 256) * 256


def nemotron_nas(content: Mapping[str, Any], found: Found, where: str) -> None:
    """Nemotron Super and Ultra, whose search left layers without attention and feed-forward blocks
    of several widths (Bercovich et al. 2025, arXiv 2411.19146, 2505.00949; `block_configs`).

    Raises InputError where a block is of another kind, or numbers of key heads differ.
    """
    blocks = content.get("block_configs")
    if not isinstance(blocks, list) or len(blocks) != found["layers"]:
        raise InputError(f"{where}: key 'block_configs' must state each of the layers")
    mixers, inner = ([dict(one[key]) for one in blocks] for key in ("attention", "ffn"))
    if any(one.get("replace_with_linear") or one.get("sparsify") for one in (*mixers, *inner)):
        raise InputError(f"{where}: blocks that are one matrix or sparse are not predicted")
    if any(one.get("window_length") or one.get("num_sink_tokens") for one in mixers):
        raise InputError(f"{where}: blocks with windows in 'block_configs' are not predicted")
    groups = {one["n_heads_in_group"] for one in mixers if not one.get("no_op")}
    if len(groups) != 1:
        raise InputError(f"{where}: key 'n_heads_in_group' must be the same in all layers")
    own = [_deci_width(one["ffn_mult"], found["hidden"]) for one in inner if not one.get("no_op")]
    counts = sorted(Counter(own).items(), reverse=True)
    found |= {
        "kv_heads": found["heads"] // groups.pop(),
        "bare_layers": sum(bool(one.get("no_op")) for one in mixers),
        "ffn_hidden": max(own),
        "ffn_widths": ", ".join(f"{count} x {width}" for width, count in counts),
    }


def aria(content: Mapping[str, Any], found: Found, where: str) -> None:
    """Aria: every layer a mixture, whose first files state an expert's width apart from that of a
    dense block, which no layer has (rhymes-ai, configuration_aria.py)."""
    if width := content.get("moe_intermediate_size"):
        found |= {"expert_ffn_hidden": width, "ffn_hidden": width}


def spark(content: Mapping[str, Any], found: Found, where: str) -> None:
    """Spark 2.5: a gate for each head unless the file says otherwise (sgl-project/sglang,
    configs/spark2_5.py)."""
    found["head_gate"] = bool(content.get("headwise_attn_output_gate", True))


def olmo_hybrid(content: Mapping[str, Any], found: Found, where: str) -> None:
    """OLMo Hybrid: delta rules of as many heads as attention, which has no gate, unless its file
    says otherwise (transformers, configuration_olmo_hybrid.py)."""
    found["output_gate"] = False
    for name in ("delta_key_heads", "delta_value_heads"):
        found.setdefault(name, found["heads"])
    key = int(0.75 * found["hidden"] / found["delta_key_heads"])
    found.setdefault("delta_key_dim", key)
    found.setdefault("delta_value_dim", 2 * found["delta_key_dim"])


CONV, WHOLE, WINDOW = "conv", "full_attention", "sliding_attention"


def _lfm_kinds(content: Mapping[str, Any], layers: int, where: str) -> list[str]:
    """Kinds of the layers: listed, or full attention by number."""
    kinds, full = content.get("layer_types"), content.get("full_attn_idxs")
    if kinds is None and isinstance(full, list):
        kinds = [WHOLE if at in full else CONV for at in range(layers)]
    known = {CONV, WHOLE, WINDOW}
    if not isinstance(kinds, list) or len(kinds) < layers or set(kinds[:layers]) - known:
        raise InputError(
            f"{where}: key 'layer_types' must list {CONV}, {WHOLE} or {WINDOW} for each of the "
            f"{layers} layers"
        )
    return kinds[:layers]


def lfm(content: Mapping[str, Any], found: Found, where: str) -> None:
    """LFM2 and LFM3: gated short convolutions in place of most layers' attention; in LFM3 windows
    and a gate for each head (transformers, configuration_lfm2.py, modeling_lfm2.py,
    configuration_lfm3.py)."""
    kinds = _lfm_kinds(content, found["layers"], where)
    found |= {"conv_layers": kinds.count(CONV), "conv_taps": found.get("conv_taps", 3)}
    if WINDOW in kinds:
        attending = [kind for kind in kinds if kind != CONV]
        found["sliding_pattern"] = listed_windows(attending) or "all layers"
    else:
        found["sliding_window"] = 0
    kind = content.get("model_type")
    if kind == "lfm3":
        found["head_gate"] = bool(content.get("use_attention_gate", True))
    if kind == "lfm2":
        width = content.get("block_ff_dim") or found["ffn_hidden"]
        if content.get("block_auto_adjust_ff_dim", True):  # as Llama: two thirds, rounded up
            width = int(int(2 * width / 3) * content.get("block_ffn_dim_multiplier", 1.0))
            step = int(content.get("block_multiple_of") or 256)
            width = -(-width // step) * step
        found["ffn_hidden"] = width


READERS = {
    "lara_mini": lara_mini,
    "mistral_large4_text": mistral_large4,
    **dict.fromkeys(("nemotron-nas", "deci"), nemotron_nas),
    **dict.fromkeys(("aria_text", "aria_moe_lm"), aria),
    "lfm2": lfm,
    "lfm2_moe": lfm,
    "lfm3": lfm,
    "bailing_hybrid": bailing_hybrid,
    "glm5_next_text": glm5_next,
    "glm_moe_dsa": dsa,
    "grok1": grok,
    "hunyuan": hunyuan,
    "hunyuan_v1_moe": hunyuan,
    "qwen4_exp_text": qwen4_exp,
    "hy_v4": hy_v4,
    "hy_v4_vl_text": hy_v4,
    "longcat_flash": longcat,
    "longcat_flash_ngram": longcat,
    **dict.fromkeys(("minimax", "minimax_text_01", "minimax_m1"), minimax),
    "olmo_hybrid": olmo_hybrid,
    "spark2_5": spark,
}
"""By `model_type`: completes what was found."""

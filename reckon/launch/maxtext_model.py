"""Models of MaxText: names of its files, and dimensions beside them (src/maxtext/configs: types.py,
`get_individual_scales`; models/*.yml, @ e591f30c)."""

from __future__ import annotations

import math
from typing import Any

from predictor import catalog
from predictor.errors import InputError
from reckon.launch.dimensions import PLAIN, PREFIX, dimensions
from reckon.launch.table import Derived, Entry, Facts, Flags, truth, whole_number

SPELLED = {
    "deepseek3-671b": "deepseek-v3", "deepseek3-671b-2dfsdp": "deepseek-v3",
    "deepseek3-671b-batchsplit": "deepseek-v3", "deepseek3.2-671b": "deepseek-v3.2",
    "deepseek2-16b": "deepseek-v2-lite", "deepseek2-236b": "deepseek-v2",
    "kimi-k2-1t": "kimi-k2", "llama4-17b-16e": "llama4-scout-17b-16e",
    "llama4-17b-128e": "llama4-maverick-17b-128e", "gemma4-26b": "gemma-4-26b-a4b",
    "gemma4-31b": "gemma-4-31b", "gemma4-e2b": "gemma-4-e2b", "gemma4-e4b": "gemma-4-e4b",
    "deepseek4-284b": "deepseek-v4-flash",
}  # fmt: skip
"""Names of its model files that no one else uses, by the catalog's."""

WIDTHS: dict[str, tuple[str, int]] = {
    "base_emb_dim": ("hidden", 2048), "base_num_query_heads": ("heads", 16),
    "base_num_kv_heads": ("kv_heads", 16), "base_mlp_dim": ("ffn_hidden", 7168),
    "base_num_decoder_layers": ("layers", 16), "head_dim": ("head_dim", 128),
    "vocab_size": ("vocab", 32000),
}  # fmt: skip
"""Keys of a model, today's dimensions, and what base.yml has."""

FURTHER: dict[str, str] = {
    "num_experts": "num_experts", "num_experts_per_tok": "top_k",
    "base_moe_mlp_dim": "expert_ffn_hidden", "first_num_dense_layers": "dense_layers",
    "q_lora_rank": "q_lora_rank", "kv_lora_rank": "kv_lora_rank",
    "qk_nope_head_dim": "qk_nope_head_dim", "qk_rope_head_dim": "qk_rope_head_dim",
    "v_head_dim": "v_head_dim", "mtp_num_layers": "mtp_layers",
    "interleave_moe_layer_step": "moe_every_n",
}  # fmt: skip
"""Keys that count where they are stated."""

SWITCHES = ("mlp_activations", "logits_via_embedding", "shared_experts", "attention_type",
            "sliding_window_size", "decoder_block", "global_parameter_scale",
            "attention_bias")  # fmt: skip

LATENT = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
"""What base.yml has of latent attention, which counts where `attention_type` says mla."""

FULL_EVERY = {"gemma2": 2, "gemma3": 6, "gpt_oss": 2, "olmo3": 4}
"""Decoders with windows of attention, and how often one of their layers has none."""

PAIRED = ("gemma2",)
"""Decoders whose number of layers counts pairs (`inhomogeneous_layer_cycle_interval`)."""

OTHERS = ("envy", "qwen3_next", "qwen3_5", "gemma4", "deepseek4", "qwen3_custom", "simple_mlp")
"""Decoders whose layers follow from no key here; their catalog names are read."""


def is_mixture(flags: Flags) -> bool:
    """Whether the layers are mixtures of experts, of what is stated or of the catalog's model."""
    if "num_experts" in flags:
        return whole_number("num_experts", flags["num_experts"]) > 1
    known = catalog.read_model_name(str(flags.get("model_name") or "default"))
    return known is not None and bool(catalog.model(known.row).num_experts)


def _scales(flags: Flags) -> dict[str, int]:
    """By how much `global_parameter_scale` widens each dimension; raises InputError."""
    scale = whole_number("global_parameter_scale", flags.get("global_parameter_scale", 1))
    if scale < 1 or scale & (scale - 1):
        raise InputError(f"global_parameter_scale {scale}: a power of two")
    third, rest = divmod(int(math.log2(scale)), 3)
    heads = third + (rest > 0)
    return {"hidden": 2 ** (third + (rest > 1)), "heads": 2**heads, "kv_heads": 2**heads,
            "ffn_hidden": 2**heads, "expert_ffn_hidden": 2**heads, "layers": 2**third}  # fmt: skip


def _model_means(flags: Flags, facts: Facts) -> Facts:
    """The model by its name; its dimensions where some stand beside, or where it has none."""
    name = str(flags.get("model_name") or "default")
    stated = [key for key in (*WIDTHS, *FURTHER, "mlp_activations", "global_parameter_scale")
              if key in flags and key not in ("vocab_size", "mtp_num_layers")]  # fmt: skip
    if name != "default" and not stated:
        known = catalog.read_model_name(name) is not None
        return {"model.name" if known else "model.unknown": name}
    if name == "default" and not stated and "decoder_block" not in flags:
        return {} if "model_name" not in flags and "vocab_size" not in flags else _own(flags, {})
    return _own(flags, _beneath(name))


def _beneath(name: str) -> Facts:
    """Dimensions of the model upon which others are set; none for `default`."""
    known = catalog.read_model_name(name) if name != "default" else None
    if known is None:
        if name != "default":
            raise InputError(f"model_name {name}: its dimensions are not known; give --model")
        return {}
    model = catalog.model(known.row)
    own = dimensions(model)
    apart = ("mamba_layers", "delta_layers", "conv_layers", "mixed_heads", "layer_inputs")
    if any(own[key] for key in apart):
        raise InputError(f"sizes beside model_name {name}, whose layers differ; give --model")
    keep = (*PLAIN, "activation", "shared_width", "windowed_share")
    return {PREFIX + key: own[key] for key in keep}


def _own(flags: Flags, found: Facts) -> Facts:
    """Dimensions as they stand, upon those of a named model or of base.yml."""
    said = str(flags.get("decoder_block", "llama2")).lower()
    if said.startswith(OTHERS):
        raise InputError(f"decoder_block {said}: its layers do not follow from these keys; "
                         "give --model")  # fmt: skip
    found = dict(found)
    for key, (own, absent) in WIDTHS.items():
        if key in flags or PREFIX + own not in found:
            found[PREFIX + own] = whole_number(key, flags.get(key, absent))
    for key, own in FURTHER.items():
        if key in flags:
            found[PREFIX + own] = max(whole_number(key, flags[key]), 0)
    for own, factor in _scales(flags).items():
        if found.get(PREFIX + own):
            found[PREFIX + own] *= factor
    if said in PAIRED and "base_num_decoder_layers" in flags:
        found["model.layers"] *= 2
    return _rest(flags, found, said)


def _rest(flags: Flags, found: Facts, decoder: str) -> Facts:
    """Gates, norms, positions, biases, and what depends on the kind of attention."""
    if "mlp_activations" in flags or "model.gated" not in found:
        acts = _words(flags.get("mlp_activations", ["silu", "linear"]))
        found["model.gated"] = len(acts) > 1
        found["model.activation"] = "silu" if len(acts) > 1 else (acts[0] if acts else "gelu")
    old = decoder == "gpt3"
    found.setdefault("model.norm", "layernorm" if old else "rmsnorm")
    found.setdefault("model.positions", "learned" if old else "rope")
    found.setdefault("model.bias", old)
    for key, own in (("logits_via_embedding", "tied_embeddings"), ("attention_bias", "qkv_bias")):
        if key in flags or PREFIX + own not in found:
            found[PREFIX + own] = truth(key, flags.get(key, False))
    if truth("use_indexer", flags.get("use_indexer", False)):
        raise InputError("use_indexer: attention over chosen keys is not predicted in training")
    _experts(flags, found)
    _attention(flags, found, decoder)
    return found


def _experts(flags: Flags, found: Facts) -> None:
    """Experts, where there are several."""
    if found.get("model.num_experts", 0) < 2:
        for own in ("num_experts", "top_k", "expert_ffn_hidden", "dense_layers", "moe_every_n"):
            found.pop(PREFIX + own, None)
        return
    found["model.expert_ffn_hidden"] = (
        found.get("model.expert_ffn_hidden") or found["model.ffn_hidden"]
    )
    found.setdefault("model.top_k", 1)
    shared = whole_number("shared_experts", flags.get("shared_experts", 0))
    if shared:
        found["model.shared_width"] = shared * found["model.expert_ffn_hidden"]


def _attention(flags: Flags, found: Facts, decoder: str) -> None:
    """Latents, and windows."""
    kind = str(flags.get("attention_type", "global")).lower()
    if kind == "mla":
        found |= {PREFIX + own: found.get(PREFIX + own) or size for own, size in LATENT.items()}
        found["model.head_dim"] = found["model.qk_nope_head_dim"]
        found["model.kv_heads"] = found["model.heads"]
    elif not found.get("model.kv_lora_rank") or "attention_type" in flags:
        for own in (*LATENT, "q_lora_rank"):
            found.pop(PREFIX + own, None)
    window = whole_number("sliding_window_size", flags.get("sliding_window_size", 0))
    every = FULL_EVERY.get(decoder, 0)
    if window and (every or kind == "local_sliding"):
        layers = found["model.layers"]
        share = 1.0 - layers // every / layers if every else 1.0
        found |= {"model.sliding_window": window, "model.windowed_share": share}
        found |= {"model.full_every": every} if every else {}


def _words(value: Any) -> list[str]:
    """A list, of YAML or as a command line writes it."""
    if isinstance(value, list):
        return [str(one) for one in value]
    return [word.strip(" '\"") for word in str(value).strip("[]() ").split(",") if word.strip()]


MODEL: tuple[Entry, ...] = (
    Derived(
        ("model_name", *WIDTHS, *FURTHER, *SWITCHES),
        lambda facts: {},
        _model_means,
    ),
)
"""The model."""

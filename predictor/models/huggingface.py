"""Reads the dimensions of a model from a HuggingFace `config.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from predictor.errors import InputError, unknown
from predictor.models.mixed import READERS, listed_windows
from predictor.models.quantization import KEYS, read_quantization
from predictor.models.tower import tower_of

GPT2 = {
    "layers": "n_layer",
    "hidden": "n_embd",
    "heads": "n_head",
    "ffn_hidden": "n_inner",
    "max_context": "n_positions",
}
STANDARD = {
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "ffn_hidden": "intermediate_size",
    "max_context": "max_position_embeddings",
    "top_k": "num_experts_per_tok",
    "q_lora_rank": "q_lora_rank",
    "kv_lora_rank": "kv_lora_rank",
    "qk_rope_head_dim": "qk_rope_head_dim",
    "qk_nope_head_dim": "qk_nope_head_dim",
    "v_head_dim": "v_head_dim",
    "dense_layers": "first_k_dense_replace",
    "expert_ffn_hidden": "moe_intermediate_size",
    "shared_experts": "n_shared_experts",
    "mtp_layers": "num_nextn_predict_layers",
    "sliding_window": "sliding_window",
    "shared_expert_ffn_hidden": "shared_expert_intermediate_size",
    "index_heads": "index_n_heads",
    "index_head_dim": "index_head_dim",
    "index_topk": "index_topk",
}
DELTA = {
    **STANDARD,
    "delta_key_heads": "linear_num_key_heads",
    "delta_value_heads": "linear_num_value_heads",
    "delta_key_dim": "linear_key_head_dim",
    "delta_value_dim": "linear_value_head_dim",
    "delta_conv": "linear_conv_kernel_dim",
    "mtp_layers": "mtp_num_hidden_layers",
}
LLAMA4 = {
    **STANDARD,
    "ffn_hidden": "intermediate_size_mlp",
    "expert_ffn_hidden": "intermediate_size",
    "moe_every_n": "interleave_moe_layer_step",
    "sliding_window": "attention_chunk_size",
}
NEMOTRON_H = {
    **STANDARD,
    "shared_expert_ffn_hidden": "moe_shared_expert_intermediate_size",
    "expert_hidden": "moe_latent_size",
    "mamba_heads": "mamba_num_heads",
    "mamba_head_dim": "mamba_head_dim",
    "mamba_state": "ssm_state_size",
    "mamba_groups": "n_groups",
}
GRANITE_HYBRID = {
    **STANDARD,
    "expert_ffn_hidden": "intermediate_size",
    "shared_expert_ffn_hidden": "shared_intermediate_size",
    "mamba_heads": "mamba_n_heads",
    "mamba_head_dim": "mamba_d_head",
    "mamba_state": "mamba_d_state",
    "mamba_groups": "mamba_n_groups",
}
EXPERTS_ONLY = {**STANDARD, "expert_ffn_hidden": "intermediate_size"}
"""Where every layer is a mixture, and the only width is that of an expert."""

EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")

_GPT = {"gated": False, "norm": "layernorm", "bias": True, "activation": "gelu"}
_LLAMA: dict[str, Any] = {}
_COHERE = {"norm": "layernorm", "parallel": "shared_norm"}

TYPES: dict[str, tuple[dict[str, str], dict[str, Any]]] = {
    "gpt2": (GPT2, {**_GPT, "positions": "learned"}),
    "gpt_neox": (STANDARD, {**_GPT}),
    "gptj": (GPT2, {**_GPT, "parallel": "shared_norm"}),
    "opt": ({**STANDARD, "ffn_hidden": "ffn_dim"}, {**_GPT, "positions": "learned"}),
    "bloom": ({**GPT2, "hidden": "hidden_size"}, {**_GPT, "positions": "alibi"}),
    "falcon": (STANDARD, {**_GPT, "bias": False}),
    "mpt": (
        {
            "layers": "n_layers",
            "hidden": "d_model",
            "heads": "n_heads",
            "max_context": "max_seq_len",
        },
        {**_GPT, "bias": False, "positions": "alibi"},
    ),
    "nemotron": (STANDARD, {**_GPT, "bias": False, "activation": "squared_relu"}),
    "phi": (STANDARD, {**_GPT, "parallel": "shared_norm"}),
    "cohere": (STANDARD, _COHERE),
    "cohere2": (STANDARD, _COHERE),
    "starcoder2": (STANDARD, {**_GPT}),
    "llama": (STANDARD, _LLAMA),
    "mistral": (STANDARD, _LLAMA),
    "mixtral": (STANDARD, _LLAMA),
    "qwen2": (STANDARD, {"qkv_bias": True}),
    "qwen2_moe": (STANDARD, {"qkv_bias": True}),
    "qwen3": (STANDARD, _LLAMA),
    "qwen3_moe": (STANDARD, _LLAMA),
    "qwen3_next": (DELTA, _LLAMA),
    "qwen3_5_text": (DELTA, _LLAMA),
    "qwen3_5_moe_text": (DELTA, _LLAMA),
    "gemma": (STANDARD, {"activation": "geglu"}),
    "gemma2": (STANDARD, {"activation": "geglu"}),
    "gemma3_text": (STANDARD, {"activation": "geglu"}),
    "gemma4_text": ({**STANDARD, "top_k": "top_k_experts"}, {"activation": "geglu"}),
    "gemma4_unified_text": (STANDARD, {"activation": "geglu"}),
    "mimo_v2_flash": (STANDARD, _LLAMA),
    "mimo_v2": (STANDARD, _LLAMA),
    "step3p5": (STANDARD, _LLAMA),
    "step3p7": (STANDARD, _LLAMA),
    "phi3": (STANDARD, _LLAMA),
    "olmo": (STANDARD, _LLAMA),
    "olmo2": (STANDARD, _LLAMA),
    "deepseek_v2": (STANDARD, _LLAMA),
    "deepseek_v3": (STANDARD, _LLAMA),
    "deepseek_v32": (STANDARD, _LLAMA),
    "kimi_k2": (STANDARD, _LLAMA),
    "glm4_moe": (STANDARD, _LLAMA),
    "glm_moe_dsa": (STANDARD, _LLAMA),
    "gpt_oss": (STANDARD, {**_LLAMA, "expert_bias": True}),
    "qwen2_vl_text": (STANDARD, {"qkv_bias": True}),
    "qwen2_5_vl_text": (STANDARD, {"qkv_bias": True}),
    "qwen3_vl_text": (STANDARD, _LLAMA),
    "qwen3_vl_moe_text": (STANDARD, _LLAMA),
    "minimax_m2": (EXPERTS_ONLY, _LLAMA),
    "mimo": (STANDARD, {"qkv_bias": True}),
    "ministral3": (STANDARD, _LLAMA),
    "glm4": (STANDARD, {"qkv_bias": True}),
    "glm4_moe_lite": (STANDARD, _LLAMA),
    "seed_oss": (STANDARD, {"qkv_bias": True}),
    "smollm3": (STANDARD, _LLAMA),
    "granite": (STANDARD, _LLAMA),
    "granitemoe": (EXPERTS_ONLY, _LLAMA),
    "exaone4": (STANDARD, _LLAMA),
    "olmo3": (STANDARD, _LLAMA),
    "olmoe": (EXPERTS_ONLY, _LLAMA),
    "hunyuan_v1_dense": (STANDARD, _LLAMA),
    "ernie4_5": (STANDARD, _LLAMA),
    "ernie4_5_moe": (
        {
            **STANDARD,
            "top_k": "moe_k",
            "dense_layers": "moe_layer_start_index",
            "shared_experts": "moe_num_shared_experts",
        },
        _LLAMA,
    ),
    "dots1": (STANDARD, _LLAMA),
    "bailing_moe_v2": ({**STANDARD, "shared_experts": "num_shared_experts"}, _LLAMA),
    "exaone_moe": ({**STANDARD, "shared_experts": "num_shared_experts"}, _LLAMA),
    "glm": (STANDARD, {"qkv_bias": True}),
    "phimoe": (EXPERTS_ONLY, {"norm": "layernorm"}),
    "stablelm": (STANDARD, {"norm": "layernorm"}),
    "granitemoeshared": (
        {**EXPERTS_ONLY, "shared_expert_ffn_hidden": "shared_intermediate_size"},
        _LLAMA,
    ),
    "flex_olmo": (EXPERTS_ONLY, _LLAMA),
    "vaultgemma": (STANDARD, {"activation": "geglu"}),
    **dict.fromkeys(
        (
            "ministral",
            "internlm3",
            "cwm",
            "helium",
            "solar_open",
            "hyperclovax",
            "youtu",
            "minicpm3",
        ),
        (STANDARD, _LLAMA),
    ),
    **dict.fromkeys(
        ("arcee", "nanochat"), (STANDARD, {"gated": False, "activation": "squared_relu"})
    ),
    "persimmon": (STANDARD, {**_GPT, "activation": "squared_relu"}),
    "gpt_bigcode": (GPT2, {**_GPT, "positions": "learned"}),
    "gpt_neo": (
        {**STANDARD, "layers": "num_layers", "heads": "num_heads"},
        {**_GPT, "positions": "learned"},
    ),
    "codegen": (GPT2, {**_GPT, "parallel": "shared_norm"}),
    "dbrx": (
        {
            "layers": "n_layers",
            "hidden": "d_model",
            "heads": "n_heads",
            "kv_heads": "kv_n_heads",
            "max_context": "max_seq_len",
            "top_k": "moe_top_k",
            "expert_ffn_hidden": "ffn_hidden_size",
            "ffn_hidden": "ffn_hidden_size",
        },
        {"norm": "layernorm"},
    ),
    "llama4_text": (LLAMA4, {"shared_experts": 1}),
    "apertus": (STANDARD, {"gated": False, "activation": "gelu"}),  # xIELU: a pointwise function
    "granitemoehybrid": (GRANITE_HYBRID, {"positions": "none"}),
    "nemotron_h": (
        NEMOTRON_H,
        {"gated": False, "activation": "squared_relu", "positions": "none"},
    ),
}
"""By `model_type`: which keys hold the dimensions, and what the architecture implies."""

ENCODERS = (
    "big_bird", "camembert", "data2vec-text", "electra", "ernie", "megatron-bert", "rembert",
    "roformer", "xlm", "xlm-roberta", "xlm-roberta-xl", "xmod", "bert-generation",
    "roberta-prelayernorm", "bert", "roberta", "deberta", "deberta-v2", "modernbert", "distilbert",
    "albert", "longformer", "nomic_bert",
)  # fmt: skip
BOTH = (
    "t5", "mt5", "bart", "whisper", "blenderbot", "blenderbot-small", "bigbird_pegasus", "marian",
    "mbart", "pegasus", "plbart", "prophetnet", "mvp", "m2m_100", "umt5", "led", "nllb-moe",
    "switch_transformers", "t5gemma", "t5gemma2",
)  # fmt: skip

NOT_READ = {
    **dict.fromkeys(ENCODERS, "an encoder only"),
    **dict.fromkeys(BOTH, "an encoder and a decoder"),
    **dict.fromkeys(("falcon_mamba", "xlstm"), "no attention at all"),
    **dict.fromkeys(("zamba", "zamba2"), "blocks that layers share"),
    **dict.fromkeys(("diffllama",), "differential attention"),
    "bailing_hybrid": "lightning attention",
    "recurrent_gemma": "recurrent blocks",
    "olmo_hybrid": "delta rules that its configuration states in its own way",
    "bamba": "state-space layers that its configuration states in its own way",
    "longcat_flash": "two attention blocks in a layer, and experts that do nothing",
    "mllama_text_model": "layers that attend to images",
    "jetmoe": "mixtures of attention heads",
    "bitnet": "weights of three values",
    "blt": "bytes in patches",
    "deepseek_ref": "compressed attention and hyper-connections",
    "kimi_k3": "linear attention of Kimi's kind",
    "minimax_m3_vl_text": "attention over chosen blocks of keys",
    "gemma3n_text": "layers that share their keys and values, and embeddings for each layer",
    "minimax": "lightning attention",
    "minimax_text_01": "lightning attention",
    "kimi_linear": "linear attention of Kimi's kind",
    "deepseek_v4": "compressed attention and hyper-connections",
    "minimax_m3": "attention over chosen blocks of keys",
    "minimax_m3_vl": "attention over chosen blocks of keys",
    "nemotron-nas": "blocks of a width of their own in each layer",
    "lfm2": "short convolutions",
    "lfm2_moe": "short convolutions",
    "mamba": "no attention at all",
    "mamba2": "no attention at all",
    "jamba": "state-space layers of Mamba 1",
    "rwkv": "no attention at all",
    "falcon_h1": "attention and state space side by side in a layer",
}
"""Types that are refused by the name of what is missing."""

TIED_BY_DEFAULT = (
    "gpt2", "opt", "bloom", "falcon", "mpt", "gemma", "gemma2", "gemma3_text", "cohere", "cohere2",
    "gemma4_text", "gemma4_unified_text",
)  # fmt: skip
"""Types whose configuration class ties input and output embeddings unless the file says no."""


SHARED = ("tie_word_embeddings", "_name_or_path", *KEYS)
"""What a model that sees images too states beside its `text_config`."""


def is_config(content: Mapping[str, Any]) -> bool:
    """Whether a mapping is a HuggingFace model configuration."""
    return "model_type" in content or "architectures" in content


def _windows(kind: str, content: Mapping[str, Any]) -> dict[str, Any]:
    """Which layers see a window only, in the words of a catalog's `sliding_pattern`."""
    if content.get("use_sliding_window") is False:
        return {"sliding_window": 0}
    every = content.get("sliding_window_pattern", {"gemma3_text": 6}.get(kind))
    if isinstance(every, str):  # 'LLLG': three windows, and a layer that sees all
        every = len(every)
    if kind == "llama4_text":
        return {"sliding_pattern": "chunked; every 4th layer full"}
    if every:
        return {"sliding_pattern": f"{int(every) - 1} local : 1 global"}
    if listed := listed_windows(content.get("layer_types")):
        return {"sliding_pattern": listed}
    if kind in ("gemma2", "gpt_oss"):
        return {"sliding_pattern": "alternating sliding/full"}
    return {"sliding_pattern": "all layers"}


BLOCKS = {"mamba": "M", "attention": "*", "mlp": "-", "moe": "E"}
"""Kinds of blocks as lists of them name them, and as patterns do."""


def _hybrid(content: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Kinds of blocks: a list of their names, or a pattern of M (state space), * (attention), - and
    E (feed-forward)."""
    listed = content.get("layers_block_type")
    if isinstance(listed, list):
        pattern = "".join(BLOCKS.get(str(kind), "?") for kind in listed)
        key, known = "layers_block_type", "a list of " + ", ".join(BLOCKS)
    else:
        pattern = str(content.get("hybrid_override_pattern", ""))
        key, known = "hybrid_override_pattern", "M, *, - and E"
    if not pattern or set(pattern) - set(BLOCKS.values()):
        raise InputError(f"{where}: key {key!r} must consist of {known}")
    counts = {"attention_layers": pattern.count("*"), "mamba_layers": pattern.count("M")}
    return {"layers": len(pattern), **counts}


def _granite(content: Mapping[str, Any], found: dict[str, Any], where: str) -> None:
    """Layers of a mixer and a feed-forward block each, as twice as many single blocks; without
    experts the shared one is the feed-forward block. All attention: layers as any others."""
    kinds = content.get("layer_types")
    if not isinstance(kinds, list) or set(kinds) - {"mamba", "attention"}:
        raise InputError(f"{where}: key 'layer_types' must be a list of mamba and attention")
    if not content.get("num_local_experts"):
        found["ffn_hidden"] = found.pop("shared_expert_ffn_hidden", found.get("ffn_hidden", 0))
    if mamba := kinds.count("mamba"):
        attention = kinds.count("attention")
        found |= {"layers": 2 * len(kinds), "attention_layers": attention, "mamba_layers": mamba}
    else:
        for name in ("mamba_heads", "mamba_head_dim", "mamba_state", "mamba_groups"):
            found.pop(name, None)
        found["positions"] = "rope"


def _delta(content: Mapping[str, Any], layers: int, where: str) -> dict[str, Any]:
    """How many layers have a delta rule: listed, or all but every so manieth."""
    kinds = content.get("layer_types")
    if kinds is None:
        every = content.get("full_attention_interval", 4)
        if not isinstance(every, int) or every < 1:
            raise InputError(
                f"{where}: key 'full_attention_interval' must be a whole number of at least 1, "
                f"got {every!r}"
            )
        return {"delta_layers": layers - layers // every}
    if (
        not isinstance(kinds, list)
        or len(kinds) != layers
        or set(kinds) - {"linear_attention", "full_attention"}
    ):
        raise InputError(
            f"{where}: key 'layer_types' must list linear_attention or full_attention for each of "
            f"the {layers} layers"
        )
    return {"delta_layers": kinds.count("linear_attention")}


def _experts(content: Mapping[str, Any], found: dict[str, Any]) -> None:
    """Complete what was found by the experts of a mixture."""
    experts = next((content[key] for key in EXPERTS if content.get(key)), 0)
    if experts:
        found["num_experts"] = experts
        found.setdefault("expert_ffn_hidden", found.get("ffn_hidden", 0))
        found.setdefault("ffn_hidden", found["expert_ffn_hidden"])
        if found.get("shared_expert_ffn_hidden"):
            found.setdefault("shared_experts", 1)
    else:
        found.pop("expert_ffn_hidden", None)


def _falcon(content: Mapping[str, Any], found: dict[str, Any]) -> None:
    """How Falcon shares its keys, its feed-forward width, and its norms."""
    multi = content.get("multi_query", True) and not content.get("new_decoder_architecture", False)
    found["kv_heads"] = 1 if multi else content.get("num_kv_heads", found["heads"])
    found.setdefault("ffn_hidden", 4 * found["hidden"])
    newer = content.get("new_decoder_architecture", False)
    norms = content.get("num_ln_in_parallel_attn") or (2 if newer else 1)
    if newer or content.get("parallel_attn", True):
        found["parallel"] = "own_norms" if norms > 1 else "shared_norm"


def _language(kind: str, content: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """What a model that sees images too states of its language model: a part of its own, or, as the
    first of Qwen's, everything that is not of the images."""
    for key in ("text_config", "llm_config"):
        if isinstance(inner := content.get(key), Mapping):
            return inner
    inside = f"{kind}_text"
    return {**content, "model_type": inside} if inside in TYPES else None


def _dimensions(kind: str, content: Mapping[str, Any], where: str) -> dict[str, Any]:
    """What the keys of a type state, with what the type implies.

    Raises InputError where a dimension is missing that nothing implies.
    """
    keys, implied = TYPES[kind]
    if kind == "bloom":  # whose published files use either spelling
        for old, new in (("n_embed", "hidden_size"), ("num_attention_heads", "n_head")):
            if old in content:
                content = {new: content[old], **content}
    found: dict[str, Any] = {
        name: content[key] for name, key in keys.items() if content.get(key) is not None
    }
    found |= implied
    if kind == "nemotron_h":
        found |= _hybrid(content, where)
    missing = [keys[name] for name in ("layers", "hidden", "heads") if name not in found]
    missing += ["vocab_size"] if "vocab_size" not in content else []
    if missing:
        raise InputError(f"{where}: key {missing[0]!r} is missing")
    return found


def _blocks(kind: str, content: Mapping[str, Any], found: dict[str, Any], where: str) -> None:
    """Complete what was found by what the blocks of a type do in their own way."""
    if kind == "granitemoehybrid":
        _granite(content, found, where)
    _experts(content, found)
    if TYPES[kind][0] is DELTA:
        found |= _delta(content, found["layers"], where)
        found["output_gate"] = content.get("attn_output_gate", True)
        found.setdefault("ffn_hidden", found.get("expert_ffn_hidden", 0))
    if kind in READERS:
        READERS[kind](content, found, where)
    elif "sliding_window" in found:
        found |= _windows(kind, content)
    if kind == "gpt_neox" and content.get("use_parallel_residual", True):
        found["parallel"] = "own_norms"
    if kind == "gpt_bigcode" and content.get("multi_query", True):
        found["kv_heads"] = 1
    if kind == "falcon":
        _falcon(content, found)
    if content.get("attention_bias") and kind == "llama":
        found["qkv_bias"] = True


def from_config(content: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Translate a HuggingFace configuration into the keys of `specs.ModelSpec`.

    Raises InputError for an unknown `model_type` or a missing dimension.
    """
    kind = str(content.get("model_type", ""))
    if kind not in TYPES and (inner := _language(kind, content)):
        # A model that sees images too: its language model, and what sees them.
        outer = {key: content[key] for key in SHARED if key in content}
        tower = tower_of(content)
        return {**from_config({**outer, **inner}, where), **({"tower": tower} if tower else {})}
    if kind in NOT_READ:
        raise InputError(f"{where}: model_type {kind!r} is not predicted: it has {NOT_READ[kind]}")
    if kind not in TYPES:
        raise InputError(f"{where}: {unknown('model_type', kind, TYPES)}")
    if kind == "dbrx":  # whose dimensions lie in parts
        parts = [content.get(name) for name in ("attn_config", "ffn_config")]
        content = {
            k: v for part in (*parts, content) if isinstance(part, Mapping) for k, v in part.items()
        }
    found = _dimensions(kind, content, where)
    _blocks(kind, content, found, where)
    tied = content.get("tie_word_embeddings", kind in TIED_BY_DEFAULT)
    name = str(content.get("_name_or_path") or "") or where
    if quantization := read_quantization(content, where):
        found["quantization"] = asdict(quantization)
    return {
        "name": name,
        "family": kind,
        "vocab": content["vocab_size"],
        "tied_embeddings": bool(tied),
        **found,
    }

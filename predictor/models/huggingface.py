"""Reads the dimensions of a model from a HuggingFace `config.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from predictor.errors import InputError, unknown
from predictor.models import choosing, listed, mixed, newer, originals, spaces
from predictor.models.families import (
    ARCHITECTURES,
    INSIDE,
    MINICPM,
    NOT_READ,
    RENAMED,
    SHARED,
    TIED_BY_DEFAULT,
    TYPES,
    UNSAID,
)
from predictor.models.keys import DELTA, EXPERTS, OTHER_NAMES, QWEN4
from predictor.models.quantization import read_quantization
from predictor.models.tower import Classes, tower_of


def is_config(content: Mapping[str, Any]) -> bool:
    """Whether a mapping is a HuggingFace model configuration."""
    told = "model_type" in content or "architectures" in content or spaces.OWN in content
    return told or originals.is_original(content)


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
    if kind in ("gemma2", "gpt_oss"):
        return {"sliding_pattern": "alternating sliding/full"}
    return {"sliding_pattern": "all layers"}


ALL = {**mixed.READERS, **choosing.READERS}
"""By `model_type`: completes what was found, of windows and mixtures too."""

READERS = {**newer.READERS, **spaces.READERS}
"""By `model_type`: completes what was found."""

BLOCKS = {"mamba": "M", "attention": "*", "mlp": "-", "moe": "E", "linear_attention": "M",
          "full_attention": "*"}  # fmt: skip
"""Kinds of blocks as lists of them name them, and as patterns do (transformers 5.24 has renamed
state spaces and attention)."""


MOST_LAYERS = 10_000
"""Above those that there are, and few enough to go through one by one."""


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
    if "E" in pattern:
        counts["dense_layers"] = pattern.count("-")
    return {"layers": len(pattern), **counts}


def _granite(content: Mapping[str, Any], found: dict[str, Any], where: str) -> None:
    """Layers of a mixer and a feed-forward block each, as twice as many single blocks; without
    experts the shared one is the feed-forward block. All attention: layers as any others."""
    kinds, at = content.get("layer_types"), content.get("attn_layer_indices")
    if kinds is None and isinstance(at, list):  # Bamba
        kinds = ["attention" if one in at else "mamba" for one in range(found["layers"])]
    if isinstance(kinds, list):
        renamed = {"linear_attention": "mamba", "full_attention": "attention"}
        kinds = [renamed.get(str(kind), kind) for kind in kinds]
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


INDEXED = ("hybrid_indexed", "deepseek_sparse_attention", "indexed_attention",
           "qwen_sparse_attention")  # fmt: skip
"""Kinds of layers that choose keys (transformers, configuration_qwen4_exp.py)."""


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
    known = {"linear_attention", "full_attention", *INDEXED}
    if content.get("model_type") == "lara_mini":  # whose reader says what windows those are
        known.add("sliding_attention")
    if not isinstance(kinds, list) or len(kinds) != layers or set(kinds) - known:
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
        if content.get("model_type") == "llama4_text":  # Llama Guard 4: all of its layers are dense
            for name in ("moe_every_n", "top_k", "shared_experts"):
                found.pop(name, None)


def _falcon(content: Mapping[str, Any], found: dict[str, Any]) -> None:
    """How Falcon shares its keys, its feed-forward width, and its norms."""
    multi = content.get("multi_query", True) and not content.get("new_decoder_architecture", False)
    found["kv_heads"] = 1 if multi else content.get("num_kv_heads", found["heads"])
    found.setdefault("ffn_hidden", 4 * found["hidden"])
    newer = content.get("new_decoder_architecture", False)
    norms = content.get("num_ln_in_parallel_attn") or (2 if newer else 1)
    if newer or content.get("parallel_attn", True):
        found["parallel"] = "own_norms" if norms > 1 else "shared_norm"


def _kind(content: Mapping[str, Any]) -> str:
    """Type of a file, by its architecture where the type is another's."""
    names = content.get("architectures")
    first = str(names[0]) if isinstance(names, list) and names else ""
    return ARCHITECTURES.get(first) or str(content.get("model_type") or UNSAID.get(first, ""))


def _renamed(content: Mapping[str, Any]) -> Mapping[str, Any]:
    """A file of a type's earlier name in today's words."""
    old = str(content.get("model_type") or "")
    if old not in RENAMED:
        return content
    words, own = RENAMED[old]
    return {**{words.get(key, key): value for key, value in content.items()}, **own}


def _language(kind: str, content: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """What a model that sees images too states of its language model: a part of its own, or, as the
    first of Qwen's, everything that is not of the images."""
    for key in ("text_config", "llm_config", "language_config", "thinker_config"):
        if isinstance(inner := content.get(key), Mapping):
            own = {"model_type": INSIDE[kind]} if kind in INSIDE else {}
            return {**inner, **own}
    inside = INSIDE.get(kind, f"{kind}_text")
    if kind in ("minicpmv", "minicpmo"):
        first = "2.0" if content.get("hidden_size") == 2304 else "2.5"  # which state no version
        inside = MINICPM.get(str(content.get("version") or first), "")
    return {**content, "model_type": inside} if inside in TYPES else None


LATER = ("num_key_value_heads", "head_dim", "sliding_window", "use_sliding_window")
"""Keys that files of their own leave out, having been written before there were any; what lacks
another is no file."""

GROUPS = (EXPERTS, *OTHER_NAMES.values())


def _completed(content: Mapping[str, Any], own: Mapping[str, Any], within: bool) -> dict[str, Any]:
    """A file with what its class takes for the keys that it lacks.

    own     the class's
    within  whether it is within another file, from which `save_pretrained` leaves out whatever is
            the class's own
    """
    found = dict(content)
    for key, value in own.items():
        others = next((group for group in GROUPS if key in group), (key,))
        if (within or key in LATER) and not any(other in content for other in others):
            found[key] = value
    heads, shared = found.get("num_attention_heads"), own.get("num_key_value_heads")
    stated = "num_key_value_heads" in content or not isinstance(heads, int)
    if not stated and shared and heads % shared:  # a class's, of other heads than the file's
        del found["num_key_value_heads"]
    return found


def _within(kind: str, content: Mapping[str, Any]) -> bool:
    """Whether a file of a known type states its language model in a part of its own."""
    return kind not in TYPES or (
        isinstance(content.get("text_config"), Mapping) and TYPES[kind][0]["layers"] not in content
    )


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
    for name, others in OTHER_NAMES.items():
        if name not in found and keys.get(name) in others:
            stated = [content[key] for key in others if content.get(key) is not None]
            found |= {name: stated[0]} if stated else {}
    found |= implied
    if kind in spaces.ALONE:
        found |= spaces.ALONE[kind](content, found, where)
    if kind == "nemotron_h":
        found |= _hybrid(content, where)
    missing = [keys[name] for name in ("layers", "hidden", "heads") if name not in found]
    missing += ["vocab_size"] if "vocab_size" not in content else []
    if missing:
        raise InputError(f"{where}: key {missing[0]!r} is missing")
    layers = found["layers"]
    if not isinstance(layers, int) or not 1 <= layers <= MOST_LAYERS:
        raise InputError(
            f"{where}: key {keys['layers']!r} must be a whole number from 1 to {MOST_LAYERS}, "
            f"got {layers!r:.40}"
        )
    return found


def _alike(kind: str, content: Mapping[str, Any], found: dict[str, Any], where: str) -> None:
    """Complete what was found by which layers have windows, of a type that has no other way to
    differ.

    Raises InputError where layers differ in a way that would be passed over.
    """
    if content.get("per_layer_config"):
        raise InputError(f"{where}: key 'per_layer_config' is not predicted for {kind}")
    if content.get("use_cla") and content.get("cla_share_factor", 2) > 1:
        raise InputError(f"{where}: layers that share their keys (use_cla) are not predicted")
    apart = ("delta_layers", "mamba_layers", "conv_layers")
    if any(name in found for name in apart) or kind in ("granitemoehybrid", "bamba"):
        return
    own = listed.windows(kind, content, found, where)
    if "sliding_window" in found:
        found |= own or _windows(kind, content)


def _blocks(kind: str, content: Mapping[str, Any], found: dict[str, Any], where: str) -> None:
    """Complete what was found by what the blocks of a type do in their own way."""
    if kind in ("granitemoehybrid", "bamba"):
        _granite(content, found, where)
    _experts(content, found)
    if TYPES[kind][0] in (DELTA, QWEN4):
        found |= _delta(content, found["layers"], where)
        found["output_gate"] = content.get("attn_output_gate", True)
        found.setdefault("ffn_hidden", found.get("expert_ffn_hidden", 0))
    if kind in ALL:
        ALL[kind](content, found, where)
    else:
        if kind in READERS:
            READERS[kind](content, found, where)
        found |= listed.mixtures(kind, content, found, where)
        _alike(kind, content, found, where)
    if kind == "gpt_neox" and content.get("use_parallel_residual", True):
        found["parallel"] = "own_norms"
    if kind == "gpt_bigcode" and content.get("multi_query", True):
        found["kv_heads"] = 1
    if kind in ("qwen", "molmo"):  # whose file states the two halves of the gated block as one
        found["ffn_hidden"] //= 2
    if kind == "minicpm3":
        found.setdefault("v_head_dim", found["hidden"] // found["heads"])
    if kind == "falcon":
        _falcon(content, found)
    if found.get("activation") == "gelu":
        usual = "gelu_new" if kind in WRITTEN_OUT else "gelu"
        named = content.get("activation_function", content.get("hidden_act", usual))
        found["activation"] = "gelu_new" if named == "gelu_new" else "gelu"
    if kind in BIASED:
        found["qkv_bias"] = any(content.get(key) for key in BIASED[kind])


WRITTEN_OUT = ("gpt2", "gpt_neo", "gptj", "codegen", "phi")
"""Types whose activation is `gelu_new` where a file names none (their configuration classes)."""


BIASED = {
    "llama": ("attention_bias",), "internlm": ("bias",), "molmo": ("qkv_bias",),
    "PanguEmbedded": ("qkv_bias", "attention_bias", "bias"),
}  # fmt: skip
"""Types whose projections to queries, keys and values have biases where a key says so."""


def from_config(
    content: Mapping[str, Any],
    where: str,
    classes: Classes | None = None,
    within: bool = False,
) -> dict[str, Any]:
    """Translate a HuggingFace configuration into the keys of `specs.ModelSpec`.

    classes  what configuration classes take for keys that are left out
    within   whether this is a part of another file

    Raises InputError for an unknown `model_type` or a missing dimension.
    """
    if spaces.is_own(content):
        return from_config(spaces.own_config(content, where), where, classes)
    if originals.is_original(content):
        return from_config(originals.original_config(content, where), where, classes)
    content = _renamed(content)
    kind = _kind(content)
    if kind in NOT_READ:
        raise InputError(f"{where}: model_type {kind!r} is not predicted: it has {NOT_READ[kind]}")
    if _within(kind, content) and (inner := _language(kind, content)):
        # A model that sees images too: its language model, and what sees them.
        outer = {key: content[key] for key in SHARED if key in content}
        tower = tower_of(content, classes)
        language = from_config({**outer, **inner}, where, classes, within=True)
        return {**language, **({"tower": tower} if tower else {})}
    if kind not in TYPES:
        raise InputError(f"{where}: {unknown('model_type', kind, TYPES)}")
    if kind == "dbrx":  # whose dimensions lie in parts
        parts = [content.get(name) for name in ("attn_config", "ffn_config")]
        content = {
            k: v for part in (*parts, content) if isinstance(part, Mapping) for k, v in part.items()
        }
    if "padded_vocab_size" in content:  # as ChatGLM calls it
        content = {"vocab_size": content["padded_vocab_size"], **content}
    content = _completed(content, (classes or {}).get(kind, {}), within)
    found = _dimensions(kind, content, where)
    try:
        _blocks(kind, content, found, where)
    except InputError:
        raise
    except (TypeError, ValueError, KeyError, ArithmeticError, AttributeError) as error:
        raise InputError(
            f"{where}: a key of model_type {kind!r} is missing or not of the kind that it has to "
            f"be ({type(error).__name__}: {error!s:.80})"
        ) from None
    tied = content.get("tie_word_embeddings", content.get("tie_embedding"))
    tied = kind in TIED_BY_DEFAULT if tied is None else tied
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

"""Models in the words of their makers' own code: `params.json` of Meta's Llama and of Mistral,
which lies beside (or instead of) a `config.json`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from predictor.errors import InputError

NEEDED = ("dim", "n_layers", "n_heads")

WORDS = {
    "dim": "hidden_size", "n_layers": "num_hidden_layers", "n_heads": "num_attention_heads",
    "n_kv_heads": "num_key_value_heads", "head_dim": "head_dim", "hidden_dim": "intermediate_size",
    "vocab_size": "vocab_size", "tied_embeddings": "tie_word_embeddings",
    "sliding_window": "sliding_window",
}  # fmt: skip

WITHOUT = ("norm_eps", "rope_theta", "rope_scaling", "use_scaled_rope", "rope_scaling_factor",
           "high_freq_factor", "low_freq_factor", "max_seq_len", "max_position_embeddings",
           "max_batch_size", "multiple_of", "ffn_dim_multiplier", "model_type", "causal", "yarn",
           "use_biases", "llama_4_scaling")  # fmt: skip
"""Keys that change no size, or are read apart."""

LLAMA = 32000
"""Words of Llama 1 and 2, whose files state -1 (meta-llama/llama, llama/generation.py)."""


def is_original(content: Mapping[str, Any]) -> bool:
    """Whether a mapping is such a file."""
    return "model_type" not in content and all(key in content for key in NEEDED)


def _width(content: Mapping[str, Any]) -> int:
    """Width of a feed-forward block: two thirds of four times the model's, so much more, rounded up
    (meta-llama/llama, llama/model.py, FeedForward)."""
    width = int(2 * 4 * content["dim"] / 3)
    width = int(float(content.get("ffn_dim_multiplier") or 1.0) * width)
    multiple = int(content.get("multiple_of") or 256)
    return multiple * -(-width // multiple)


def original_config(content: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The same in the words of a `config.json`.

    Raises InputError for what such files say of other models (images, latents).
    """
    moe = content.get("moe")
    others = [key for key in content if key not in (*WORDS, *WITHOUT, "moe") and content[key]]
    inner = set(moe) - {"num_experts", "num_experts_per_tok"} if isinstance(moe, Mapping) else ()
    if others or inner:
        raise InputError(
            f"{where}: key {next(iter([*others, *inner]))!r} of a params.json is not read; give "
            "the model's config.json"
        )
    found = {new: content[old] for old, new in WORDS.items() if content.get(old) is not None}
    found.setdefault("sliding_window", None)
    found.setdefault("num_key_value_heads", content["n_heads"])
    try:
        found.setdefault("intermediate_size", _width(content))
    except (TypeError, ValueError) as error:
        raise InputError(f"{where}: sizes of a params.json must be numbers ({error})") from None
    if found.get("vocab_size", -1) == -1:
        found["vocab_size"] = LLAMA
    if not isinstance(moe, Mapping):
        return {"model_type": "mistral" if "hidden_dim" in content else "llama", **found}
    counts = {"num_local_experts": moe.get("num_experts"),
              "num_experts_per_tok": moe.get("num_experts_per_tok")}  # fmt: skip
    return {"model_type": "mixtral", **found, **counts}

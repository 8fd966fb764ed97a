"""A second tower beside a language model: an encoder of images or sound, and the projector through
which the language model sees what it makes.

An image is cut into tiles and a tile into patches; every patch of a tile attends to every other
(Dosovitskiy et al. 2021). What comes out is merged, a square of patches into one, and projected to
the width of the language model, whose prompt grows by as many tokens (Chen et al. 2024, InternVL
1.5, section 3.2: 448 px, 1,024 patches, 256 tokens; Bai et al. 2025, Qwen2.5-VL, section 2.1).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from predictor.records import dataclass

TILE = 448
"""Pixels of a tile's side where the file leaves the size of images open (Qwen-VL): InternVL's."""

LISTENED = 1500
"""Frames of 30 s of sound in the tower (Radford et al. 2022, Whisper, section 2.2)."""


@dataclass(frozen=True, slots=True)
class Tower:
    """Dimensions of the encoder and of what it makes of a tile, or of 30 s of sound.

    kind         'vision' or 'audio'
    patches      tokens of a tile in the tower, a class token among them
    tokens       of a tile in the language model
    patch_width  values of a patch that are projected to `hidden`
    merged       patches that make one token
    """

    kind: str
    layers: int
    hidden: int
    heads: int
    ffn_hidden: int
    patches: int
    tokens: int
    patch_width: int
    merged: int = 1
    gated: bool = False


SIZES = {
    "layers": ("num_hidden_layers", "depth", "encoder_layers"),
    "hidden": ("embed_dim", "hidden_size", "d_model"),
    "heads": ("num_attention_heads", "num_heads", "encoder_attention_heads"),
    "ffn_hidden": ("intermediate_size", "encoder_ffn_dim"),
}
"""Keys of `vision_config` and `audio_config` for each dimension, those that mean it first: Qwen2-VL
has its own width as `embed_dim` and the language model's as `hidden_size`."""


GATED = ("qwen2_5_vl", "deepseek_v41", "dots_vit")
"""How types of towers begin whose feed-forward blocks are gated."""


def tower_of(content: Mapping[str, Any]) -> dict[str, Any] | None:
    """The tower that a configuration of HuggingFace states beside its language model, in the keys
    of `Tower`; None where it has none, or says too little of it."""
    for key, kind in (("vision_config", "vision"), ("audio_config", "audio")):
        own = content.get(key)
        if isinstance(own, Mapping):
            return _read(own, content, kind)
    return None


def _read(own: Mapping[str, Any], outer: Mapping[str, Any], kind: str) -> dict[str, Any] | None:
    found: dict[str, Any] = {"kind": kind}
    for name, keys in SIZES.items():
        value = next((own[key] for key in keys if isinstance(own.get(key), int)), None)
        if value is None and name == "ffn_hidden" and "hidden" in found:
            value = round(float(own.get("mlp_ratio", 4.0)) * found["hidden"])
        if value is None:
            return None
        found[name] = value
    found["gated"] = str(own.get("model_type", "")).startswith(GATED)
    return found | (_heard(own) if kind == "audio" else _seen(own, outer))


def _heard(own: Mapping[str, Any]) -> dict[str, Any]:
    """Of 30 s: a convolution of three frames of so many bands; pairs are averaged (Chu et al. 2024,
    Qwen2-Audio, section 2)."""
    patches = int(own.get("max_source_positions", LISTENED))
    width = 3 * int(own.get("num_mel_bins", 128))
    return {"patches": patches, "tokens": patches // 2, "patch_width": width, "merged": 1}


def _seen(own: Mapping[str, Any], outer: Mapping[str, Any]) -> dict[str, Any]:
    asked = outer if "query_num" in outer else own  # MiniCPM-V cuts slices of less than its tower's
    patch, size = _side(own.get("patch_size", 14)), _side(asked.get("image_size", TILE))
    inside = (size // patch) ** 2
    if fixed := outer.get("mm_tokens_per_image") or outer.get("query_num"):  # whatever the size
        tokens = int(fixed)  # Gemma, MiniCPM-V
        merged = max(inside // tokens, 1)
    else:
        ratio = outer.get("downsample_ratio") or own.get("pixel_shuffle_ratio")  # InternVL, Llama 4
        merge = own.get("spatial_merge_size") or own.get("downsample_ratio")  # DeepSeek-V4.1
        side = int(merge or (round(1.0 / ratio) if ratio else 1))
        merged = side**2
        tokens = inside // merged
    joined = int(own.get("temporal_patch_size", 1))  # Qwen-VL: an image counts as two frames
    one = not str(own.get("model_type", "")).startswith(("qwen", "siglip"))
    return {
        "patches": inside + (1 if one else 0),  # a class token, but in these
        "tokens": tokens,
        "patch_width": 3 * joined * patch**2,
        "merged": merged,
    }


def _side(value: Any) -> int:
    """A side of a patch or an image; some files state both sides."""
    return int(value[0] if isinstance(value, list | tuple) else value)

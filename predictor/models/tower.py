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

import numpy as np

from predictor.arrays import Numeric
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
    window       patches of a window, inside which layers attend; 0: over all of a tile
    whole        layers that see all of a tile nevertheless
    several      how code without a kernel for sequences of several lengths attends to several
                 images: of one size, at once ('batch'); one after the other, window by window
                 ('loop'); or as one sequence behind a mask ('mask')
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
    window: int = 0
    whole: int = 0
    several: str = "batch"

    def sequences(
        self, tiles: Numeric, several: str = "batch"
    ) -> list[tuple[float, Numeric, Numeric]]:
        """What attends by itself in each kind of layers, of so many tiles: the kind's share of the
        layers, patches of a sequence, sequences.

        several  how they attend: behind a 'mask' all tiles are one sequence
        """
        if several == "mask":
            together = np.maximum(tiles, 1.0)
            return [(1.0, self.patches * together, tiles / together)]
        if not self.window or self.window >= self.patches:
            return [(1.0, float(self.patches), tiles)]
        whole = self.whole / self.layers
        small = (1.0 - whole, float(self.window), tiles * (self.patches / self.window))
        return [small, (whole, float(self.patches), tiles)] if whole else [small]


SIZES = {
    "layers": ("num_hidden_layers", "depth", "encoder_layers", "vt_num_hidden_layers"),
    "hidden": ("embed_dim", "hidden_size", "d_model", "vt_hidden_size"),
    "heads": ("num_attention_heads", "num_heads", "encoder_attention_heads",
              "vt_num_attention_heads"),
    "ffn_hidden": ("intermediate_size", "encoder_ffn_dim", "vt_intermediate_size"),
}  # fmt: skip
"""Keys of `vision_config` and `audio_config` for each dimension, those that mean it first: Qwen2-VL
has its own width as `embed_dim` and the language model's as `hidden_size`; Kimi K2.5 says `vt_`."""


GATED = ("qwen2_5_vl", "qwen2_5_omni_vision", "deepseek_v41", "dots_vit", "pixtral", "glm4v",
         "glm_ocr", "glm5_next", "exaone4_5", "ovis2", "aimv2", "gemma4_vision")  # fmt: skip
"""How types of towers begin whose feed-forward blocks are gated (transformers 5.24, modeling_*.py,
vLLM 0.33, models/)."""

WIDE = ("glm4v",)
"""How types begin whose `intermediate_size` is the projector's, and the language model's width that
of their own blocks (transformers 5.24, modeling_glm4v.py, Glm4vVisionBlock)."""

SIDES = {"step3p5_vision": 4}
"""Patches along a side that make one token, of types whose files state no such number: two
convolutions of stride 2 (transformers 5.24, modeling_step3p7.py)."""

LOOPED = ("qwen2_vl", "qwen2_5_vl", "qwen2_5_omni", "qwen3_vl", "qwen3_omni", "qwen3_5",
          "qwen3_asr", "qwen4_exp", "glm4v", "glm5_next", "glm_ocr", "glm_image",
          "ernie4_5_vl", "exaone4_5",
          "kimi_k25", "minicpmv4_6", "muse_glimmer", "paddleocr_vl", "hunyuan_vl",
          "video_llama_3", "cohere_compass", "cosmos3_edge")  # fmt: skip
"""How types begin whose towers have images of any size as one sequence with marks between them: by
FlashAttention one call; by scaled_dot_product_attention, or eagerly, one for each image and window,
between a split and a concatenation (transformers 4.57 to 5.17, models/*/modeling_*.py:
`torch.split(tensor, lengths.tolist(), dim=2)`)."""

MASKED = ("pixtral",)
"""Types whose images are one sequence behind a mask of blocks (transformers 5.17,
modeling_pixtral.py: `generate_block_attention_mask`)."""

ASKED = ("query_num", "downsample_mode")
"""Keys of files whose slices are of `image_size` there, not of their tower's (MiniCPM-V)."""


Classes = Mapping[str, Mapping[str, Any]]
"""By `model_type`, or that of the whole and the key of a part ('qwen2_vl.vision_config'): keys and
what their configuration class takes where a file leaves them out."""

SHAPES = (*SIZES.values(), ("intermediate_size", "encoder_ffn_dim", "vt_intermediate_size",
                            "mlp_ratio"))  # fmt: skip
"""Keys of which a file states one."""


def tower_of(content: Mapping[str, Any], classes: Classes | None = None) -> dict[str, Any] | None:
    """The tower that a configuration of HuggingFace states beside its language model, in the keys
    of `Tower`; None where it has none, or says too little of it."""
    for key, kind in (("vision_config", "vision"), ("audio_config", "audio")):
        own = content.get(key)
        if isinstance(own, Mapping):
            named = f"{content.get('model_type')}.{key}"
            known = classes or {}
            usual = known.get(str(own.get("model_type")), known.get(named, {}))
            return _read(_completed(own, usual), content, kind)
    return None


def _completed(own: Mapping[str, Any], usual: Mapping[str, Any]) -> dict[str, Any]:
    """A part with what its class takes for the keys that it lacks, unless it says the same by
    another one; two that the class has are two things (Qwen2-VL's `embed_dim`, `hidden_size`)."""
    found = dict(own)
    for key, value in usual.items():
        others = {other for group in SHAPES if key in group for other in group} - set(usual)
        if not (others | {key}) & set(own):
            found[key] = value
    return found


def _type(own: Mapping[str, Any], outer: Mapping[str, Any]) -> str:
    """Type of a tower; where its part states none (Qwen2.5-VL's published files), the whole's."""
    return str(own.get("model_type") or outer.get("model_type") or "")


def _read(own: Mapping[str, Any], content: Mapping[str, Any], kind: str) -> dict[str, Any] | None:
    found: dict[str, Any] = {"kind": kind}
    for name, keys in SIZES.items():
        value = next((own[key] for key in keys if isinstance(own.get(key), int)), None)
        if value is None and name == "ffn_hidden" and "hidden" in found:
            value = round(float(own.get("mlp_ratio", 4.0)) * found["hidden"])
        if value is None:
            return None
        found[name] = value
    if _type(own, content).startswith(WIDE):
        found["ffn_hidden"] = own.get("out_hidden_size", found["ffn_hidden"])
    found["gated"] = _type(own, content).startswith(GATED)
    return found | (_heard(own) if kind == "audio" else _seen(own, content))


def _heard(own: Mapping[str, Any]) -> dict[str, Any]:
    """Of 30 s: a convolution of three frames of so many bands; pairs are averaged (Chu et al. 2024,
    Qwen2-Audio, section 2)."""
    patches = int(own.get("max_source_positions", LISTENED))
    width = 3 * int(own.get("num_mel_bins", 128))
    return {"patches": patches, "tokens": patches // 2, "patch_width": width, "merged": 1}


def _merged_side(own: Mapping[str, Any], outer: Mapping[str, Any]) -> int:
    """Patches along a side that make one token, in the words of different files (transformers 5.24,
    configuration_*.py): Qwen-VL's, Kimi's, Muse's, DeepSeek-V4.1's, Ovis2's beside the tower's own
    sizes; Mistral's, Idefics' and SmolVLM's, LFM2-VL's and Command A Vision's, MiniCPM-V 4.6's,
    InternVL's beside them."""
    inner = own.get("img_token_compression_config")  # MiniMax-M3's published file
    stated = (
        inner.get("spatial_merge_size") if isinstance(inner, Mapping) else None,
        own.get("spatial_merge_size"),
        own.get("merge_kernel_size"),
        own.get("merge_size"),
        own.get("hidden_stride"),
        own.get("downsample_ratio"),
        outer.get("spatial_merge_size"),
        outer.get("scale_factor"),
        outer.get("downsample_factor"),
    )
    for one in stated:
        if one:
            return _side(one)
    if mode := str(outer.get("downsample_mode") or ""):  # '16x': so many patches
        return int(int(mode.rstrip("x")) ** 0.5)
    ratio = outer.get("downsample_ratio") or own.get("pixel_shuffle_ratio")  # InternVL, Llama 4
    return round(1.0 / ratio) if ratio else SIDES.get(str(own.get("model_type")), 1)


def _seen(own: Mapping[str, Any], outer: Mapping[str, Any]) -> dict[str, Any]:
    asked = outer if "image_size" in outer and any(key in outer for key in ASKED) else own
    patch, size = _side(own.get("patch_size", 14)), _side(asked.get("image_size", TILE))
    inside = (size // patch) ** 2
    if pooled := own.get("default_output_length"):  # Gemma 4: images are made to fit so many
        merged, tokens = int(own.get("pooling_kernel_size", 3)) ** 2, int(pooled)
        inside = tokens * merged
    elif fixed := outer.get("mm_tokens_per_image") or outer.get("query_num"):  # whatever the size
        tokens = int(fixed)  # Gemma, MiniCPM-V
        merged = max(inside // tokens, 1)
    else:
        merged = _merged_side(own, outer) ** 2
        tokens = inside // merged
    joined = int(own.get("temporal_patch_size", 1))  # Qwen-VL: an image counts as two frames
    kinds = [str(one.get("model_type", "")) for one in (own, outer)]
    layers = own.get("fullatt_block_indexes")
    one = not _type(own, outer).startswith(("qwen", "siglip"))
    return {
        "patches": inside + (1 if one else 0),  # a class token, but in these
        "tokens": tokens,
        "patch_width": 3 * joined * patch**2,
        "merged": merged,
        "window": (int(own["window_size"]) // patch) ** 2 if isinstance(layers, list) else 0,
        "whole": len(layers) if isinstance(layers, list) else 0,
        "several": "mask" if kinds[0] in MASKED else _looped(kinds),
    }


def _looped(kinds: list[str]) -> str:
    """How a tower of types attends that sees no mask (`Tower.several`)."""
    return "loop" if any(kind.startswith(LOOPED) for kind in kinds) else "batch"


def _side(value: Any) -> int:
    """A side of a patch, of several or of an image; some files state both sides."""
    return int(value[0] if isinstance(value, list | tuple) else value)

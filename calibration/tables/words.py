"""What tables call things, as plans call them: precisions ('FP8 (E4M3)', 'int4 (AWQ)', '4.65bpw'),
what is sharded, what is recomputed, yes and no."""

from __future__ import annotations

import re
from collections.abc import Mapping

from predictor.plans import RECOMPUTE_WORDS, SHARDING_WORDS, folded
from predictor.precision import PACKED, PRECISIONS

BITS = sorted(float(name.removeprefix("exl2_")) for name in PACKED if name.startswith("exl2_"))

STORED = (
    (r"q([368])_", "q{}"),
    (r"i?q([45])_[k1x]|iq([45])", "q{}"),
    (r"mxfp4", "w4a16_mxfp4"),
    (r"mxfp8", "mxfp8"),
    (r"nvfp4|fp4|w4a4", "nvfp4"),
    (r"w8a8|smooth", "sq"),
    (r"(awq|gptq).*(int8|8.?bit)|w8a16|int8|8.?bit", "int8_wo"),
    (r"awq|gptq|marlin|int[234]|[234].?bit|w4a|nf4|^q[0-9]", "int4_wo"),
    (r"fp8.*block", "fp8_block"),
    (r"fp8|float8|e4m3", "fp8"),
    (r"bf16|bfloat16", "bf16"),
    (r"fp16|float16|half", "fp16"),
    (r"fp32|float32", "fp32"),
)
"""Words of a table and the data type of the weights, the first that is found: ggml's formats by
their bits; AWQ, GPTQ and every other int4 have weights alone in 4 bits; so has mxfp4, whose weights
are widened as they are read; int8 without a word on activations has weights alone."""

TRAINED = (
    (r"nvfp4|fp4", "nvfp4"),
    (r"mxfp8", "mxfp8"),
    (r"(fp8|float8).*block", "fp8_block"),
    (r"fp8|float8", "fp8"),
    (r"bf16|bfloat16", "bf16"),
    (r"fp16|float16|half", "fp16"),
    (r"tf32", "tf32"),
    (r"fp32|float32", "fp32"),
)
"""Words of a table and the recipe of training, the first that is found."""


def stored(said: str) -> str | None:
    """Data type of weights as a table says it; None where its words mean none."""
    text = said.strip().lower().replace("-", "_").replace("quant", "")
    if bits := re.search(r"(\d+(?:\.\d+)?)\s*_?bpw", text):
        near = min(BITS, key=lambda one: abs(one - float(bits[1])))
        return f"exl2_{near:g}"
    for words, name in STORED:
        if found := re.search(words, text):
            digit = next((group for group in found.groups() if group), "")
            return {"q8": "q8_0"}.get(f"q{digit}", f"q{digit}_k") if name == "q{}" else name
    return None


def cached(said: str) -> str | None:
    """Data type of keys and values as a table says it; None where its words mean none."""
    name = stored(said)
    return {"int8_wo": "int8", "sq": "int8", "int4_wo": "int4"}.get(str(name), name)


def trained(said: str) -> str | None:
    """Recipe of training as a table says it; None where its words mean none."""
    text = said.strip().lower().replace("-", "_")
    if text in PRECISIONS:
        return text
    return next((name for words, name in TRAINED if re.search(words, text)), None)


PLAIN = ("none", "zero1", "zero2", "zero3", "fsdp", "hsdp", "full", "selective", "fit")


def _word(said: object, table: Mapping[str, str]) -> str | None:
    if said is None:
        return None
    word = folded(said)
    return table.get(word, word if word in PLAIN else str(said).strip().lower())


def sharded(said: object) -> str | None:
    """What data-parallel ranks share out, as a table says it ('ZeRO-1', 'FSDP2', 'DDP'); words that
    are not known stay as they are, and the plan refuses them."""
    return _word(said, SHARDING_WORDS)


def recomputed(said: object) -> str | None:
    """What is computed again, as a table says it ('Full', 'block', 'off'); words that are not known
    stay as they are, and the plan refuses them."""
    return _word(said, RECOMPUTE_WORDS)


def yes(said: object) -> bool | None:
    """A truth as a table says it; None where it says none."""
    if said is None:
        return None
    text = str(said).strip().lower()
    return text in ("true", "yes", "on") or text.replace(".", "").strip("0") == "1"

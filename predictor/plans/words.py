"""What people call the words of a plan: 'AWQ' for `int4_wo`, 'FSDP2' for `fsdp`, 'all' for `full`.

Case does not count, nor do blanks, dashes and underscores.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from predictor.plans.training import FIT

_HALVES = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "float32": "fp32",
    "float": "fp32",
}
_EIGHTHS = dict.fromkeys(("float8", "e4m3", "fp8e4m3", "float8e4m3fn", "fp8e5m2"), "fp8")
_BLOCKS = dict.fromkeys(("fp8blockwise", "blockwisefp8", "blockfp8", "fp8blockscale"), "fp8_block")

WEIGHT_WORDS = {
    **_HALVES,
    **_EIGHTHS,
    **_BLOCKS,
    **dict.fromkeys(("w8a8fp8", "fp8w8a8"), "fp8"),
    **dict.fromkeys(("awq", "gptq", "awqmarlin", "gptqmarlin", "marlin", "int4", "4bit", "w4a16",
                     "nf4", "bnb4bit"), "int4_wo"),
    **dict.fromkeys(("int8", "8bit", "w8a16"), "int8_wo"),
    **dict.fromkeys(("w8a8", "smoothquant", "w8a8int8", "int8w8a8"), "sq"),
    **dict.fromkeys(("fp4", "w4a4"), "nvfp4"),
    **{f"q{bits}k{mix}": f"q{bits}_k" for bits in "3456" for mix in "sml"},
}  # fmt: skip
"""How weights of a served model are stored: without a word on activations, 4 and 8 bits of integers
are the weights' alone."""

CACHE_WORDS = {
    **_HALVES,
    **_EIGHTHS,
    **dict.fromkeys(("q80", "8bit", "kv8"), "int8"),
    **dict.fromkeys(("q40", "4bit", "kv4"), "int4"),
    **dict.fromkeys(("fp4", "fp4e2m1", "float4e2m1fnx2"), "nvfp4"),
}
"""How keys and values are stored; llama.cpp's are called as its weights."""

RECIPE_WORDS = {
    **_HALVES,
    **_EIGHTHS,
    **_BLOCKS,
    **dict.fromkeys(("fp8cs", "fp8ds", "fp8hybrid", "fp8tensorwise", "fp8delayed"), "fp8"),
    **dict.fromkeys(("fp8sc", "fp8subchannel"), "fp8_block"),
    "fp8mx": "mxfp8",
    "fp4": "nvfp4",
    "aqt": "int8",
}
"""Recipes of training; NeMo's and Megatron-Bridge's of current and delayed scaling, of sub-channels
and of microscaling (fp8_cs, _ds, _sc, _mx)."""

SHARDING_WORDS = {
    **dict.fromkeys(("ddp", "dp", "dataparallel", "zero0", "noshard", "replicated"), "none"),
    **dict.fromkeys(("distributedoptimizer", "distoptimizer", "distopt"), "zero1"),
    "shardgradop": "zero2",
    "fsdp1": "fsdp",
    "fsdp2": "fsdp",
    **dict.fromkeys(
        ("fullshard", "fullyshard", "fullysharded", "megatronfsdp", "fullyshardeddataparallel"),
        "fsdp",
    ),
    **dict.fromkeys(("zero++", "zeroinfinity"), "zero3"),
    **dict.fromkeys(("hybridshard", "hybridsharded"), "hsdp"),
}
"""What data-parallel ranks share out."""

RECOMPUTE_WORDS = {
    **dict.fromkeys(("true", "yes", "on", "1", "block", "uniform", "all", "checkpointing",
                     "activationcheckpointing", "gradientcheckpointing",
                     "nothingsaveable"), "full"),
    **dict.fromkeys(("false", "no", "off", "0", "without"), "none"),
    **dict.fromkeys(("attention", "attn", "coreattention", "sac"), "selective"),
    "perop": "per_op",
    "partial": FIT,  # of some layers, how many is not said: as few as fit
}  # fmt: skip
"""What is computed again."""


def folded(said: object) -> str:
    """A word without case, blanks, dashes and underscores."""
    return re.sub(r"[\s_-]", "", str(said).lower())


def meant(said: object, choices: Collection[str], words: Mapping[str, str]) -> str | None:
    """The one of `choices` that a word is or means; None where it means none."""
    text = str(said).strip().lower()
    if text in choices:
        return text
    by_fold = {**words, **{folded(choice): choice for choice in choices}}
    found = by_fold.get(folded(said))
    return found if found in choices else None

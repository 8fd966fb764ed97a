"""What tables call things, as plans call them: precisions ('FP8 (E4M3)', 'int4 (AWQ)', '4.65bpw'),
what is sharded, what is recomputed, yes and no."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from predictor.hardware import Accelerator
from predictor.plans import (
    CACHE_WORDS,
    KV_BYTES,
    RECOMPUTE_MODULES,
    RECOMPUTE_WORDS,
    SHARDING_WORDS,
    folded,
    meant,
)
from predictor.precision import PACKED, PRECISIONS

BITS = sorted(float(name.removeprefix("exl2_")) for name in PACKED if name.startswith("exl2_"))

STORED = (
    (r"q0(bf16|f16|f32)", "{}"),
    (r"q([368])_", "q{}"),
    (r"i?q([45])_[k1x]|q(5)_0|iq([45])", "q{}"),
    (r"mxfp4", "w4a16_mxfp4"),
    (r"mxfp8", "mxfp8"),
    (r"nvfp4|fp4|w4a4", "nvfp4"),
    (r"(fp8|float8).*(block|128)|block.*(fp8|float8)", "fp8_block"),
    (r"w8a8.*(fp8|float8)|(fp8|float8).*w8a8", "fp8"),
    (r"w8a8|smooth|(?<![a-z])sq(?![a-z])", "sq"),
    (r"(awq|gptq).*(int8|8.?bit)|w8a16|int8|(?<![\d.])8.?bit", "int8_wo"),
    (r"int2|(?<![\d.])2.?bit|w2a|(?<![a-z])[it]?q[12]_", "exl2_2.5"),
    (r"int3|(?<![\d.])3.?bit|w3a|q3f", "exl2_3"),
    (r"int6|fp6|(?<![\d.])6.?bit|w6a", "q6_k"),
    (r"awq|gptq|marlin|int4|(?<![\d.])4.?bit|w4a|nf4|(?<![a-z])q[0-9]", "int4_wo"),
    (r"fp8|float8|e4m3", "fp8"),
    (r"bf16|bfloat16", "bf16"),
    (r"fp16|float16|half|(?<![\d.])16.?bit", "fp16"),
    (r"fp32|float32|tf32", "fp32"),
)
"""Words of a table and the data type of the weights, the first that is found: ggml's formats by
their bits; AWQ, GPTQ and every other int4 have weights alone in 4 bits; so has mxfp4, whose weights
are widened as they are read; int8 without a word on activations has weights alone. Of 2, 3 and 6
bits by whatever format, the one of as many that is known; MLC's q0f16 is not narrow."""

HALVES = {"f16": "fp16", "f32": "fp32", "q8": "q8_0"}
"""What such a format's letters and digits are called here, where it is not by their bits."""

TRAINED = (
    (r"nvfp4|fp4", "nvfp4"),
    (r"mxfp8|fp8[_ ]?mx", "mxfp8"),
    (r"(fp8|float8).*(block|sub.?channel)|block.*(fp8|float8)|fp8[_ ]?sc", "fp8_block"),
    (r"(fp8|float8).*row.?wise|row.?wise.*(fp8|float8)", "fp8_rowwise"),
    (r"fp8|float8", "fp8"),
    (r"^int8|^aqt", "int8"),
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
            said = next((group for group in found.groups() if group), "")
            if name == "{}":
                return HALVES.get(said, said)
            return HALVES.get(f"q{said}", f"q{said}_k") if name == "q{}" else name
    return None


METRICS: dict[str, tuple[str, float]] = {
    "itl_ms": ("tpot_ms", 1.0),
    "tpot_s": ("tpot_ms", 1e3),
    "itl_s": ("tpot_ms", 1e3),
    "ttft_s": ("ttft_ms", 1e3),
    "e2e_latency_ms": ("e2e_latency_s", 1e-3),
    "requests_per_min": ("requests_per_s", 1.0 / 60.0),
}
"""What tables measure by other names or in other units, and by how much its numbers are more."""

PER_USER = ("output_tokens_per_s_per_user", "tokens_per_s_per_user")
"""Generated tokens per second of one user, whose inverse is the time per token."""


def measured(metric: str, value: float) -> tuple[str, float]:
    """A metric and its value under the name that is read here."""
    name = metric.strip().lower().replace("-", "_").replace("/", "_per_")
    if name in PER_USER:
        return "tpot_ms", 1e3 / value
    told, factor = METRICS.get(name, (name, 1.0))
    return told, value * factor


UNSAID = ("auto", "none", "nan", "default", "model")
"""What engines and tables write where the cache is as the rest of attention."""


def cached(said: str) -> str | None:
    """Data type of keys and values as a table says it, None where it leaves it to the engine; words
    that are not known stay as they are, and the plan refuses them."""
    text = said.strip().lower()
    if text in UNSAID:
        return None
    name = meant(text, tuple(KV_BYTES), CACHE_WORDS) or stored(text) or text
    return {"int8_wo": "int8", "sq": "int8", "q8_0": "int8", "int4_wo": "int4", "q4_k": "int4",
            "fp8_block": "fp8"}.get(str(name), name)  # fmt: skip


def trained(said: str) -> str | None:
    """Recipe of training as a table says it; None where its words mean none."""
    text = said.strip().lower().replace("-", "_")
    if text in PRECISIONS:
        return text
    return next((name for words, name in TRAINED if re.search(words, text)), None)


def of_its_halves(accelerator: Accelerator) -> str:
    """What fp16 of an accelerator is: bf16 of one that multiplies in no other 16 bits, as TPUs do,
    where who writes fp16 means its 16 bits."""
    peak = accelerator.peak
    return "bf16" if "fp16" not in peak and "bf16" in peak else "fp16"


PLAIN = ("none", "zero1", "zero2", "zero3", "hsdp", "fsdp", "full", "selective", "fit")


def _word(said: object, table: Mapping[str, str]) -> str | None:
    """What a table says: a word of a plan, what people call one, or the first that it begins with
    ('full (block)', 'FSDP, 64 ranks'); else as it is written."""
    if said is None:
        return None
    text = str(said).strip().lower()
    phrase, word = (re.split(marks, text, maxsplit=1)[0] for marks in (r"[(,;:/+]", r"[\s(,;:/+]"))
    known = (*(folded(one) for one in (text, phrase, word)), re.split("[-_]", word, maxsplit=1)[0])
    found = (table.get(one, one if one in PLAIN else None) for one in known)
    return next((one for one in found if one is not None), text)


STAGE = re.compile(r"(?:zero|optimi[sz]ation|stage|[\W_])*([0-3])")
"""A stage of ZeRO by its number: 'ZeRO stage 3', 'stage-1', '2'."""

MAKERS = re.compile(r"^(deepspeed|py ?torch('s)?|torch|megatron(-lm)?|fairscale|native)\s+")
"""Whose sharding it is, which is said before what it is."""


def sharded(said: object) -> str | None:
    """What data-parallel ranks share out, as a table says it ('ZeRO-1', 'FSDP2', 'DDP', 'DeepSpeed
    stage 2'); words that are not known stay as they are, and the plan refuses them."""
    if said is None:
        return None
    text = MAKERS.sub("", re.sub(r"\.0$", "", str(said).strip().lower()))
    found = _word(text, SHARDING_WORDS)
    stage = STAGE.fullmatch(text) or (BESIDE.search(text) if found == "none" else None)
    return f"zero{stage[1]}".replace("zero0", "none") if stage else found


BESIDE = re.compile(r"zero[\W_]*([1-3])")
"""A stage that is said behind what replicates ('DDP + ZeRO-1')."""

CALLED = re.compile(
    r"\b(activations?|gradients?|re-?comput\w+|checkpoint\w*|ckpt|remat\w*|ac|granularity|policy)\b"
    r"|[:=]"
)
"""How people call computing again, which alone says that it is done."""


def recomputed(said: object) -> str | None:
    """What is computed again, as a table says it ('Full', 'block', 'off', 'AC: selective'); words
    that are not known stay as they are, and the plan refuses them."""
    text = str(said or "").strip().lower()
    rest = CALLED.sub(" ", text).strip(" ()[],;")
    return _word(rest or "full" if rest != text and text else said, RECOMPUTE_WORDS)


MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")


PAPER = re.compile(r"arxiv\D*(\d\d)(0[1-9]|1[0-2])\.\d{4,5}(?!\d)")
DATE = re.compile(
    r"(?<![\d.])((?:19|20)\d\d)(?:[-/.](1[0-2]|0?[1-9])(?!\d)|(0[1-9]|1[0-2])(?:[0-3]\d)?(?!\d)|(?!\d))"
)
NAMED = re.compile(rf"\b({'|'.join(MONTHS)})[a-z]*[ ,.-]+((?:19|20)\d\d)(?!\d)")


def told_month(said: object) -> str | None:
    """When a table says that something was ('2024-06-15', '2024/6', 'June 2024', '2024/2025',
    'Q3 2024', 'arXiv 2204.02311'), as YYYY-MM, or YYYY where it names no month; else as it is
    written, None where it is empty."""
    text = str(said or "").strip().lower()
    if found := PAPER.search(text):
        return f"20{found[1]}-{found[2]}"
    if found := NAMED.search(text):
        return f"{found[2]}-{MONTHS.index(found[1]) + 1:02}"
    if found := DATE.search(text):
        month = found[2] or found[3]
        return f"{found[1]}-{int(month):02}" if month else found[1]
    return text or None


POLICIES = {
    **dict.fromkeys(("minimal", "save_dot", "minimal_with_quantization"),
                    "core_attn,layernorm,mlp_act"),
    **dict.fromkeys(("minimal_flash", "minimal_with_context"), "layernorm,mlp_act"),
    **dict.fromkeys(("save_qkv_proj", "save_dot_except_mlp"), "core_attn,layernorm,mlp,mlp_act"),
}  # fmt: skip
"""Modules that run again under MaxText's policies, which name the products that are kept
(utils/maxtext_utils.py, `get_save_and_offload_names`, @ e591f30c)."""


def status_of(said: object) -> str:
    """How a run ended, as a table says it: 'Success', 'OOM', '' where nothing is said; else as it
    is written."""
    text = str(said or "").strip()
    if re.search(r"\boom\b|out[ _-]?of[ _-]?memory", text, re.IGNORECASE):
        return "OOM"
    good = ("success", "ok", "succeeded", "pass", "passed", "done", "fits")
    return "Success" if text.lower() in good else text


def frozen(said: object, known: Collection[str]) -> str:
    """How weights beside adapters are kept, as a table says it ('4bit', 'bnb-nf4', 'int8'), in
    `known` words; '' where its words mean none."""
    text = str(said or "").strip().lower()
    if text in known:
        return text
    bits = re.search(r"(?<![\d.])([48])(?![\d.])", text)
    if bits is None:
        return ""
    return "nf4" if bits[1] == "4" else "fp8" if "fp8" in text else "int8"


def modules_of(said: object) -> str | None:
    """Modules that are computed again, where a table lists nothing else ('mlp, core_attn'), or
    names a policy of MaxText's that keeps the others."""
    text = str(said or "").strip().lower()
    words = re.split(r"[\s,;+]+", text)
    return POLICIES.get(text) or (",".join(words) if set(words) <= set(RECOMPUTE_MODULES) else None)


YES, NO = (
    ("true", "yes", "y", "on", "enabled", "\u2713", "\u2714"),
    ("false", "no", "n", "off", "none", "disabled", "\u2717", "\u2718"),
)
"""Truths as tables write them; of a number, whether it is one at all."""


def yes(said: object) -> bool | None:
    """A truth as a table says it; None where it says none."""
    if said is None:
        return None
    text = str(said).strip().lower()
    if re.fullmatch(r"\d+(\.\d*)?", text):
        return float(text) > 0
    return True if text in YES else False if text in NO else None

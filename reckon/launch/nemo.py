"""NeMo and Megatron-Bridge: overrides of a recipe, by the names of Megatron Core's configurations.

The table is Megatron-LM's; here are the names that differ. Overrides say nothing by what they leave
out, so every field is written.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from reckon.launch.dialect import Dialect, Source
from reckon.launch.launcher import NODES, PER_NODE, choose, quoted
from reckon.launch.megatron_core import from_core, to_core
from reckon.launch.megatron_model import MODEL
from reckon.launch.megatron_plan import PLAN
from reckon.launch.shell import read_script
from reckon.launch.structured import flatten, read_mapping_text, scalar
from reckon.launch.table import Cases, Entry, Facts, Flags

NULLS = ("recompute_granularity",)
"""Keys whose null says something."""

IGNORED_KEYS = ("optimizer.", "scheduler.", "checkpoint.", "logger.", "tokenizer.", "dataset.",
                "rng.", "profiling.", "exp_manager.", "data.", "validation.")  # fmt: skip

PRECISION = Cases(
    ("precision",),
    (
        (("bf16",), {"mixed_precision": ("bf16_mixed", "bf16-mixed", "bf16")}),
        (("fp16",), {"mixed_precision": ("16-mixed", "fp16_mixed", "16", "fp16-mixed")}),
        (("fp8",), {"mixed_precision": ("bf16_with_fp8_current_scaling_mixed",
                                        "bf16_with_fp8_delayed_scaling_mixed",
                                        "bf16_with_fp8_mixed", "bf16_fp8_mixed")}),
        (("fp8_block",), {"mixed_precision": "bf16_with_fp8_subchannel_scaling_mixed"}),
        (("mxfp8",), {"mixed_precision": "bf16_with_mxfp8_mixed"}),
        (("nvfp4",), {"mixed_precision": "bf16_with_nvfp4_mixed"}),
        (("fp32",), {"mixed_precision": ("32", "fp32")}),
    ),
)  # fmt: skip

ENTRIES: tuple[Entry, ...] = tuple(
    PRECISION if getattr(entry, "fields", ()) == ("precision",) else entry for entry in PLAN
)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def _render(flags: Flags, facts: Facts) -> str:
    lines = [f"torchrun --nproc-per-node {flags[PER_NODE]} --nnodes {flags[NODES]} pretrain.py"]
    for key, value in to_core(flags).items():
        text = _value(value)
        if key.endswith("recompute_modules"):
            text = f"[{','.join(text.split())}]"
        lines.append(quoted(f"{key}={text}"))
    return " \\\n    ".join(lines) + "\n"


def _null(key: str) -> bool:
    return key.rsplit(".", 1)[-1] in NULLS


def _parse(text: str, folder: Path) -> Source:
    mapping = read_mapping_text(text)
    if mapping is not None:
        return from_core(flatten(mapping))
    script = read_script(text)
    launcher, _, notes = choose(script, ())
    words = [word for command in script.commands for word in command]
    pairs = (word.lstrip("+").partition("=") for word in words if "=" in word and word[0] != "-")
    flat = {key: scalar(value) for key, _, value in pairs}
    found = from_core(
        {k: "none" if v is None else v for k, v in flat.items() if v is not None or _null(k)}
    )
    return Source({**launcher, **found.flags}, notes)


NEMO = Dialect(
    name="nemo",
    framework="megatron-bridge",
    serving=False,
    model=MODEL,
    entries=ENTRIES,
    ignored=IGNORED_KEYS,
    whole=False,
    render=_render,
    parse=_parse,
)

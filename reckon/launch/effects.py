"""What flags that are not read may change, most first: so that the few that matter are seen among
those that hardly do.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

EFFECTS: tuple[tuple[str, int, str], ...] = (
    (r"^--config(-file)?$", 9, "settings of a file that was not found"),
    (r"lora|adapter|peft", 9, "each adapter's weights are read and multiplied too"),
    (r"spec(ulative|ulator)|draft|eagle|mtp|medusa", 8, "guessed tokens change the passes"),
    (r"quantiz|fp8|fp4|int8|dtype|precision", 8, "data types"),
    (r"cpu.?offload|offload", 7, "weights or states that the host keeps"),
    (r"recompute|checkpoint-activ|activations?[-_]checkpoint", 7, "what runs twice"),
    (r"(tensor|pipeline|context|expert|data|sequence).*parallel|ulysses|dcp|[-_.]pp[-_]|layout", 7,
     "the layout"),
    (r"sparse|window|attention.?backend|attn", 6, "attention"),
    (r"fsdp|zero|shard", 6, "what replicas divide among them"),
    (r"batch|max.?num|seq.?len", 5, "how much runs at once"),
    (r"moe|expert|router|dispatcher|eplb", 5, "experts"),
    (r"prefix|radix|kv.?cache|kv.?transfer|block.?size|lmcache", 5, "the cache"),
    (r"graph|compil|inductor|eager|torch.?compile|cc\.", 4, "launches"),
    (r"overlap|async|bucket|nccl|comm", 4, "communication hidden behind work"),
    (r"fusion|fused|grouped.?(gemm|mm)|flash|kernel|transformer.?engine", 3, "which kernels run"),
    (r"(^|[-_])mm[-_]|image|video|vision|media|audio", 3,
     "inputs other than text, which `images` states"),
    (r"deterministic", 3, "slower kernels that repeat exactly"),
)  # fmt: skip
"""Patterns of a flag's name, how much it may change, and what."""


def effect(name: str) -> tuple[int, str]:
    """How much a flag may change, 0 to 9, and what; 0 where nothing is known of it."""
    for pattern, weight, what in EFFECTS:
        if re.search(pattern, name.lower()):
            return weight, what
    return 0, ""


def by_effect(names: Iterable[str]) -> list[str]:
    """Flags, those that may change most first."""
    return sorted(names, key=lambda name: -effect(name)[0])


def told(names: Iterable[str], most: int) -> str:
    """The flags that may change most, with what; and how many there are beyond."""
    ordered = by_effect(names)
    shown = [f"{name} ({what})" if (what := effect(name)[1]) else name for name in ordered[:most]]
    more = len(ordered) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")

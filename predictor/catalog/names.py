"""One spelling for each framework and engine: `data/defaults/aliases.yaml`."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from functools import lru_cache

from predictor.catalog import tables


@lru_cache(maxsize=1)
def aliases() -> Mapping[str, str]:
    """What frameworks and engines are called, and the spelling of each."""
    table = tables.read_mapping(tables.data_dir() / "defaults" / "aliases.yaml")
    return {alias: name for name, others in table.items() for alias in (name, *others)}


def _folded(name: str) -> str:
    return "-".join(str(name).lower().replace("_", " ").split())


def recognised(name: str, known: Collection[str]) -> str | None:
    """The one of `known` that a table's words mean, None where none does: as `spelled` has it, or
    else the longest name or alias that they begin with, before a release, a platform or a remark
    ('vLLM 0.4.3+rocm614, PyTorch 2.3.0', 'sglang-v0.5.9', 'tensorrt-llm (triton backend)'), or
    else the longest that is a word of them ('NVIDIA Dynamo (TRT-LLM)', 'Ray Serve with vLLM').
    """
    whole = spelled(name)
    return whole if whole in known else _within(_folded(name), frozenset(known))


@lru_cache(maxsize=1024)
def _within(folded: str, known: frozenset[str]) -> str | None:
    """The one of `known` that words of a folded text mean."""
    table = {**aliases(), **{one: one for one in known}}
    ours = [one for one in table if table[one] in known]
    begun = [one for one in ours if _word(one, folded) == 0]
    within = begun or [one for one in ours if _word(one, folded) >= 0]
    return table[max(within, key=len)] if within else None


def _word(one: str, folded: str) -> int:
    """Where a name first is a word of a folded text, -1: nowhere."""
    found = re.search(rf"(?<![a-z0-9]){re.escape(one)}(?![a-z])", folded)
    return found.start() if found else -1


def spelled(name: str) -> str:
    """The one spelling of a framework or an engine; a name that has no alias is only brought to
    lower case and dashes, and whoever needs it known says so where it is not."""
    folded = _folded(name)
    return aliases().get(folded, folded)

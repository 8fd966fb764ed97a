"""An engine that adds nothing to what its device does."""

from __future__ import annotations

from dataclasses import replace

from predictor.timing.engines import EngineParameters

BARE = EngineParameters(
    decode=1, prefill=1, communication=1, gap=0, launch=0, step=0, sequence=0, request=0, mixing=1,
    burst=1e5,
)  # fmt: skip


def bare(**changes: float) -> EngineParameters:
    """The same but for some of it."""
    return replace(BARE, **changes)

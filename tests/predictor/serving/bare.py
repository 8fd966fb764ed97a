"""An engine that adds nothing to what its device does, and its work."""

from __future__ import annotations

from dataclasses import replace

from predictor.serving.pass_times import DeviceTime, Work
from predictor.timing.engines import EngineParameters

BARE = EngineParameters(
    decode=1, prefill=1, communication=1, gap=0, launch=0, step=0, sequence=0, request=0, mixing=1,
    burst=1e5,
)  # fmt: skip


def bare(**changes: float) -> EngineParameters:
    """The same but for some of it."""
    return replace(BARE, **changes)


def work(**fields: object) -> Work:
    """Prompts of 2 s and passes of 0.1 s, of which ten follow the first; `fields` change it."""
    base: dict[str, object] = {
        "prompts": DeviceTime(2.0, 0.0, 10.0), "together": 1.0,
        "decoding": DeviceTime(0.1, 0.0, 10.0), "captured": 1.0, "sequences": 1.0, "fill": 0.0,
        "running": 1.0, "clients": 1.0, "static": 0.0, "new_tokens": 1000.0, "output_len": 11.0,
        "chunk": 8192.0, "synchrony": 0.0,
    }  # fmt: skip
    return Work(**{**base, **fields})  # type: ignore[arg-type]

"""An engine, its work and a plan whose latencies can be counted by hand."""

from __future__ import annotations

from predictor.plans.serving import ServingPlan
from predictor.serving.pass_times import DeviceTime, Work
from predictor.timing.engines import EngineParameters

OWN = EngineParameters(
    decode=1.1, prefill=1.2, communication=1.3, gap=1e-3, launch=2e-3, step=0.05, sequence=0.01,
    request=0.5, mixing=0.4, burst=1e12,
)  # fmt: skip


def work(**fields: object) -> Work:
    """Two prompts in 2.0 s of kernels and 0.5 s of collectives; a pass of 0.1 s and 0.02 s."""
    base: dict[str, object] = {
        "prompts": DeviceTime(2.0, 0.5, 100.0, 3.0), "together": 2.0,
        "decoding": DeviceTime(0.1, 0.02, 40.0), "captured": 1.0, "sequences": 6.0, "fill": 0.0,
        "running": 6.0, "clients": 6.0, "static": 0.0, "new_tokens": 1000.0, "output_len": 11.0,
        "chunk": 8192.0, "synchrony": 0.0, "single": DeviceTime(1.1, 0.3, 50.0),
    }  # fmt: skip
    return Work(**{**base, **fields})  # type: ignore[arg-type]


def plan(**fields: object) -> ServingPlan:
    given = {"batch": 8.0, "input_len": 1000.0, "output_len": 100.0, "serving": 1.0, **fields}
    return ServingPlan(**given)  # type: ignore[arg-type]

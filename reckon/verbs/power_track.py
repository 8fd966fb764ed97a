"""Watts over the timeline of a step: a counter for each pipeline stage, as Perfetto draws it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from predictor.training import COMPUTE_TERMS, EXCHANGE_TERMS
from reckon.verbs.powering import PowerResult

Event = dict[str, Any]
Span = tuple[float, float, str]
"""Start and end [s], and the phase of power that it is."""

COUNTER = "power of a GPU, W"


def pass_power(power: PowerResult, breakdown: Mapping[str, float]) -> dict[str, float]:
    """Watts of what the timeline shows: passes draw what their kernels and the exposed
    communication within them draw, by their time; recomputation is part of the backward pass."""
    watts = {name: drawn for name, (drawn, _) in power.phases.items()}
    time = {name: breakdown.get(name, 0.0) for name in COMPUTE_TERMS}
    whole = sum(time.values())
    near = sum(breakdown.get(name, 0.0) for name in EXCHANGE_TERMS)
    share = near / max(near + whole, 1e-15)
    again = time["recompute"] / max(time["backward"] + time["recompute"], 1e-15)
    backward = (1 - again) * watts["backward"] + again * watts["recompute"]

    def mixed(own: float) -> float:
        return (1 - share) * own + share * watts["communication"]

    return {
        "forward": mixed(watts["forward"]),
        "backward": mixed(backward),
        "weights": mixed(watts["backward"]),
        "data-parallel communication": watts["communication"],
        "optimizer": watts["optimizer"],
        "waiting": watts["bubble"],
    }


def power_events(
    process: int, spans: Sequence[Span], end: float, watts: Mapping[str, float]
) -> list[Event]:
    """The counter of one stage: a value where each span begins, that of waiting between them and
    until `end` [s]."""
    found: list[tuple[float, float]] = []
    at = 0.0
    for start, until, kind in sorted(spans):
        if start - at > 1e-9:
            found.append((at, watts["waiting"]))
        found.append((start, watts[kind]))
        at = max(at, until)
    found.append((at, watts["waiting"] if end - at > 1e-9 else 0.0))
    if end - at > 1e-9:
        found.append((end, 0.0))
    common = {"ph": "C", "pid": process, "name": COUNTER}
    return [{**common, "ts": time * 1e6, "args": {"W": round(value, 1)}} for time, value in found]

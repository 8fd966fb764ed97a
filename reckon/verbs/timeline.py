"""Schedules and traces in Chrome's trace format, which Perfetto and chrome://tracing open.

https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from predictor.errors import InputError
from predictor.files import write_text
from reckon.verbs.power_track import Span, pass_power, power_events
from reckon.verbs.results import Prediction

if TYPE_CHECKING:
    from calibration.sources.kineto_steps import Anatomy

MICRO = 1e-6

COLOURS = {
    "forward": "thread_state_running",
    "backward": "thread_state_iowait",
    "weights": "thread_state_runnable",
    "data-parallel communication": "terrible",
    "optimizer": "good",
}
"""Colours of the viewer by what a stage does."""

Event = dict[str, Any]


def _named(process: int, name: str, threads: dict[int, str]) -> list[Event]:
    """What a process and its threads are called."""
    found = [{"ph": "M", "pid": process, "name": "process_name", "args": {"name": name}}]
    found += [
        {"ph": "M", "pid": process, "tid": t, "name": "thread_name", "args": {"name": text}}
        for t, text in threads.items()
    ]
    return [*found, {"ph": "M", "pid": process, "name": "process_sort_index",
                     "args": {"sort_index": process}}]  # fmt: skip


def _slice(
    name: str, process: int, start: float, end: float, colour: str = "", **args: Any
) -> Event:
    """Something that lasts; seconds in, microseconds out."""
    found = {"ph": "X", "cat": "predicted", "name": name, "pid": process, "tid": 0,
             "ts": start / MICRO, "dur": (end - start) / MICRO, "args": args}  # fmt: skip
    return found | ({"cname": colour} if colour else {})


def schedule_events(prediction: Prediction, first: int = 0) -> list[Event]:
    """One predicted step: a process for each pipeline stage with its passes in their order, the
    exposed data-parallel communication and the optimizer behind them, and counters of the
    micro-batches whose activations it holds and of what one of its accelerators draws. The last
    event ends at the predicted step time, less what it waits for data.

    first   number of the first process

    Raises InputError where the schedule cannot be played.
    """
    breakdown = prediction.breakdown
    total = prediction.step_time.value - breakdown["data_loading"]
    scale = total / (total - breakdown["framework"])
    plan = prediction.request.plan
    events = prediction.timeline()
    # The closed form of a plan with unequal stages may differ from the schedule played by 2 %.
    end = total - scale * (breakdown["dp_communication"] + breakdown["optimizer"])
    stretch = end / max(event.end for event in events)
    found: list[Event] = []
    held: dict[int, list[tuple[float, int]]] = {}
    spans: dict[int, list[Span]] = {}
    freeing = "weights" if any(event.direction == "weights" for event in events) else "backward"
    for event in events:
        chunk = f".{event.chunk}" if plan.vpp > 1 else ""
        found.append(
            _slice(
                f"{event.direction} {event.micro_batch}{chunk}",
                first + event.stage,
                event.start * stretch,
                event.end * stretch,
                COLOURS[event.direction],
                micro_batch=event.micro_batch,
                chunk=event.chunk,
                stage=event.stage,
            )
        )
        spans.setdefault(event.stage, []).append(
            (event.start * stretch, event.end * stretch, event.direction)
        )
        if event.direction == "forward":
            held.setdefault(event.stage, []).append((event.start * stretch, 1))
        elif event.direction == freeing:
            held.setdefault(event.stage, []).append((event.end * stretch, -1))
    ranks = prediction.gpus // len(held)
    for stage, changes in sorted(held.items()):
        process, at = first + stage, end
        for name in ("dp_communication", "optimizer"):
            word = "data-parallel communication" if name.startswith("dp") else name
            if breakdown[name] > 0:
                until = at + breakdown[name] * scale
                found.append(_slice(word, process, at, until, COLOURS[word], stage=stage))
                spans[stage].append((at, until, word))
                at = until
        found += _held_events(process, changes)
        if prediction.power is not None:
            watts = pass_power(prediction.power, breakdown)
            found += power_events(process, spans[stage], total, watts)
        found += _named(process, f"predicted, stage {stage} ({ranks} ranks)", {0: "passes"})
    return found


def _held_events(process: int, changes: list[tuple[float, int]]) -> list[Event]:
    """A counter of the passes that a stage holds: each change at its time [s]."""
    found, count = [], 0
    for time, change in sorted(changes):
        count += change
        found.append(
            {"ph": "C", "pid": process, "name": "passes held", "ts": time / MICRO,
             "args": {"chunks": count}}
        )  # fmt: skip
    return found


def measured_events(steps: Anatomy, process: int) -> list[Event]:
    """The kernels of the last recorded step, a thread for each stream; the step starts at 0."""
    begin, until = steps.marks[-1]
    chosen = [span for span in steps.spans if begin <= span.start < until]
    streams = {name: number for number, name in enumerate(sorted({s.stream for s in chosen}))}
    found = [
        {"ph": "X", "cat": span.label, "name": span.name, "pid": process,
         "tid": streams[span.stream], "ts": span.start - begin, "dur": span.lasts}
        for span in chosen
    ]  # fmt: skip
    return found + _named(process, "measured", {number: name for name, number in streams.items()})


def write_timeline(path: str | Path, events: list[Event], **about: Any) -> None:
    """Write events as a trace; `about` goes beside them."""
    if not str(path).endswith(".json"):
        raise InputError(f"--timeline {path}: expected a .json file")
    content = {"displayTimeUnit": "ms", **about, "traceEvents": events}
    write_text(Path(path), json.dumps(content, ensure_ascii=False) + "\n")

"""Which operator calls stand around each event of a trace, and how long a call is busy itself."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from calibration.sources.kineto_file import RUNTIME_EVENTS, Event

ROUNDING = 1.0
"""Older traces round times to whole microseconds, so that a call may seem to outlast the one
around it by this much."""

EXCHANGES = ("nccl:", "gloo:", "ucc:", "mpi:")
"""How annotations of collectives begin; those of libraries on the host are the work itself."""

SCOPES = (*EXCHANGES, "Optimizer.step#")
"""Annotations that count as calls, by how they begin."""


def is_call(event: Event) -> bool:
    """Whether other events may lie within this one as parts of it."""
    scope = event["cat"] == "user_annotation" and event["name"].startswith(SCOPES)
    return event["cat"] == "cpu_op" or scope


class Calls:
    """The calls around each runtime call and around each other."""

    def __init__(self, events: list[Event]) -> None:
        self.launch: dict[Any, Event] = {}
        self.by_external: dict[Any, Event] = {}
        self.parent: dict[int, Event | None] = {}
        threads: dict[tuple[Any, Any], list[Event]] = defaultdict(list)
        for event in events:
            if event["cat"] in RUNTIME_EVENTS:
                self.launch[event["args"].get("correlation")] = event
            elif is_call(event):
                if event["cat"] == "cpu_op":
                    self.by_external[event["args"].get("External id")] = event
            else:
                continue
            threads[event.get("pid"), event.get("tid")].append(event)
        for thread in threads.values():
            self._nest(thread)

    def _nest(self, thread: list[Event]) -> None:
        """Note for each event of one thread the innermost call that holds it."""
        open_calls: list[Event] = []
        for event in sorted(thread, key=lambda e: (e["ts"], -e["dur"])):
            calling = event["cat"] not in RUNTIME_EVENTS
            end = event["ts"] + (event["dur"] if calling else 0.0)
            while open_calls:
                until = open_calls[-1]["ts"] + open_calls[-1]["dur"]
                if event["ts"] <= until and end <= until + ROUNDING:
                    break
                open_calls.pop()
            self.parent[id(event)] = open_calls[-1] if open_calls else None
            if calling:
                open_calls.append(event)

    def up(self, call: Event | None) -> Iterator[Event]:
        """A call and those around it, from the inside out."""
        while call is not None:
            yield call
            call = self.parent[id(call)]

    def around(self, event: Event) -> list[Event]:
        """The calls that launched a device event, from the inside out."""
        launch = self.launch.get(event["args"].get("correlation"))
        if launch is not None:
            return list(self.up(self.parent[id(launch)]))
        return list(self.up(self.by_external.get(event["args"].get("External id"))))

    def own_time(self, events: list[Event]) -> dict[int, float]:
        """Microseconds of each call outside the calls within it, by the event's id."""
        own = {id(event): float(event["dur"]) for event in events if is_call(event)}
        for event in events:
            parent = self.parent.get(id(event))
            if parent is not None and is_call(event):
                own[id(parent)] -= float(event["dur"])
        return {key: max(time, 0.0) for key, time in own.items()}

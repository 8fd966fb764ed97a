"""Reads a trace file event by event: JSON or gzipped JSON, never held in memory as a whole.

Of each event only what the readers use is kept; what merely draws arrows and names threads is
dropped while reading.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from predictor.errors import InputError

Event = dict[str, Any]

DEVICE_EVENTS = ("kernel", "gpu_memcpy", "gpu_memset")
RUNTIME_EVENTS = ("cuda_runtime", "cuda_driver", "hip_runtime", "hip_driver")
CALLS = ("cpu_op", "user_annotation")
KEPT = frozenset((*DEVICE_EVENTS, *RUNTIME_EVENTS, *CALLS))
"""Categories of events that are kept."""

KEPT_ARGS = (
    "correlation", "External id", "device", "stream", "bytes", "Input Dims", "Input type",
    "Input Strides", "Concrete Inputs", "Collective name", "dtype", "In msg nelems",
    "Out msg nelems", "Group size", "Process Group Ranks",
    "Process Group Name",
)  # fmt: skip
"""What is kept of their arguments."""

TELLING = ("correlation", "External id", "device", "stream")
"""Arguments by which events are told apart."""

MOST_BLANKS = 2**24
"""Blanks in a row that are read over: a file that is packed may hold any number."""

READ_AT_ONCE = 1 << 20
LONGEST_VALUE = 1 << 26
"""Characters read at a time; a value that does not end within the second number never will."""

BLANKS = " \t\r\n"
BLANK = re.compile(f"[{BLANKS}]*")


@dataclass(frozen=True, slots=True, eq=False)
class TraceFile:
    """A trace: what stands beside its events (`deviceProperties`, `distributedInfo`, ...), and the
    timed events of the categories `KEPT`, in the order of the file."""

    header: dict[str, Any]
    events: list[Event]

    @property
    def devices(self) -> dict[Any, dict[str, Any]]:
        """Properties of the devices of the host, by number."""
        found = self.header.get("deviceProperties")
        own = found if isinstance(found, list) else []
        return {p.get("id"): p for p in own if isinstance(p, dict)}

    @property
    def only_group(self) -> int | None:
        """Ranks of every group of the job, which all its ranks form; None where there are several
        groups or the trace does not say."""
        stated = self.header.get("distributedInfo")
        if not isinstance(stated, dict):
            return None
        world = stated.get("world_size")
        groups = stated.get("pg_config") or [{"pg_size": world}]
        sizes = {group.get("pg_size") for group in groups if isinstance(group, dict)}
        return world if isinstance(world, int) and sizes == {world} else None


def load(path: Path) -> TraceFile:
    """Read a trace.

    Raises InputError, one line, for a file that is missing, damaged or cut off, and for one that
    is no trace of PyTorch's profiler.
    """
    header: dict[str, Any] = {}
    events: list[Event] | None = None
    try:
        with _open(path) as stream:
            text = _Text(stream)
            if text.peek() == "[":
                raise InputError(f"{path} is no trace of PyTorch's profiler: it has no traceEvents")
            text.expect("{")
            while text.peek() != "}":
                name = text.value()
                text.expect(":")
                if name == "traceEvents" and text.peek() == "[":
                    events = _events(text, path)
                else:
                    header[str(name)] = text.value()
                if text.peek() != "}":
                    text.expect(",")
            text.expect("}")
            if text.peek():
                raise ValueError("more follows behind its end")
    except FileNotFoundError:
        raise InputError(f"no such file: {path}") from None
    except InputError:
        raise
    except (OSError, EOFError, ValueError, RecursionError, zlib.error) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"{path} is no whole JSON file: {reason}") from None
    if events is None:
        raise InputError(f"{path} is no trace of PyTorch's profiler: it has no traceEvents")
    return TraceFile(header, events)


def _open(path: Path) -> TextIO:
    with path.open("rb") as probe:
        zipped = probe.read(2) == b"\x1f\x8b"
    if zipped:
        return gzip.open(path, "rt", encoding="utf-8", errors="replace")
    return path.open(encoding="utf-8", errors="replace")


def _events(text: _Text, path: Path) -> list[Event]:
    """The kept events of the list that begins here."""
    found: list[Event] = []
    number = 0
    text.expect("[")
    while text.peek() != "]":
        event = text.value()
        if not isinstance(event, dict) or (event.get("ph") == "X" and not is_timed(event)):
            raise InputError(f"{path}: event {number} of traceEvents has no name, ts, dur or args")
        complete = event.get("ph") == "X"
        if complete and (several := _several(event)):
            raise InputError(
                f"{path}: event {number} of traceEvents: its {several} is a list or a mapping, "
                "where PyTorch's profiler writes one text or number"
            )
        if complete and event.get("cat") in KEPT:
            args = event.get("args", {})
            event["args"] = {key: args[key] for key in KEPT_ARGS if key in args}
            found.append(event)
        number += 1
        if text.peek() != "]":
            text.expect(",")
    text.expect("]")
    return found


def is_timed(event: Event) -> bool:
    """Whether an event is complete: a name, a start, a duration, arguments."""
    if event.get("ph") != "X" or not isinstance(event.get("name"), str):
        return False
    for key in ("ts", "dur"):
        time = event.get(key)
        if not isinstance(time, (int, float)) or time != time:
            return False
    return isinstance(event.get("args", {}), dict)


def _several(event: Event) -> str | None:
    """The first key of a complete event that holds several values where events are told apart by
    one."""
    for keys, holder in ((("cat", "pid", "tid"), event), (TELLING, event.get("args", {}))):
        for key in keys:
            if isinstance(holder.get(key), (list, dict)):
                return key
    return None


class _Text:
    """JSON values of a stream, one after another."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.decode = json.JSONDecoder(strict=False).raw_decode
        self.text, self.at, self.passed, self.ended = "", 0, 0, False

    def _more(self) -> None:
        """Read on; what was used is dropped."""
        self.passed += self.at
        wanted = max(READ_AT_ONCE, len(self.text) - self.at)
        read = self.stream.read(wanted)
        self.ended = not read
        self.text, self.at = self.text[self.at :] + read, 0

    def peek(self) -> str:
        """The next character that is no blank; '' at the end.

        Raises ValueError for more blanks than any file has.
        """
        if self.at < len(self.text) and (here := self.text[self.at]) not in BLANKS:
            return here
        start = self.passed + self.at
        while True:
            self.at = BLANK.match(self.text, self.at).end()  # type: ignore[union-attr]
            if self.passed + self.at - start > MOST_BLANKS:
                raise ValueError(f"more than {MOST_BLANKS} blanks after character {start}")
            if self.at < len(self.text):
                return self.text[self.at]
            if self.ended:
                return ""
            self._more()

    def expect(self, character: str) -> None:
        """Step over a character; ValueError if there is another."""
        if self.peek() != character:
            where = self.passed + self.at
            found = f"not {self.text[self.at]!r}" if self.peek() else "but it ends"
            raise ValueError(f"expected {character!r} at character {where}, {found}")
        self.at += 1

    def value(self) -> Any:
        """The next value, whole."""
        if not self.peek():
            raise ValueError(f"it ends after {self.passed + self.at} characters, within a list")
        while True:
            try:
                found, end = self.decode(self.text, self.at)
                # A number may go on in what is not yet read.
                if end < len(self.text) or self.ended or isinstance(found, dict | list | str):
                    self.at = end
                    return found
            except json.JSONDecodeError as error:
                if self.ended or len(self.text) - self.at > LONGEST_VALUE:
                    where = self.passed + error.pos
                    raise ValueError(f"{error.msg} at character {where}") from None
            self._more()

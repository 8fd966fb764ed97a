"""Traces of requests: when each came, how long its prompt and its answer were, what it shares with
others. Read from the files that are published, by their columns.

| file | by |
|---|---|
| Azure LLM inference traces, 2023 and 2024 (.csv) | TIMESTAMP, ContextTokens, GeneratedTokens |
| BurstGPT (.csv) | Timestamp, Request tokens, Response tokens |
| Mooncake (.jsonl) | timestamp [ms], input_length, output_length, hash_ids |
| results of vLLM's and SGLang's bench clients (.json, .jsonl) | input_lens, output_lens |
| any other (.csv, .jsonl) | arrival_s, input_len, output_len, session |
"""

from __future__ import annotations

import csv
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from predictor.arrays import Array
from predictor.errors import InputError
from predictor.files import unpacked
from predictor.records import dataclass

BLOCK = 512.0
"""Tokens that one of Mooncake's hashes stands for (Qin et al. 2024, trace of FAST '25)."""

Piece = tuple[Any, float]


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """Requests as they came; arrays over requests.

    arrival     since the first [s], rising; None where the file does not say
    input_len, output_len   tokens
    pieces      what each prompt begins with: names of parts that others may have too, and their
                tokens; empty where the file does not say
    """

    arrival: Array | None
    input_len: Array
    output_len: Array
    pieces: tuple[tuple[Piece, ...], ...] = ()

    @property
    def rate(self) -> float | None:
        """Mean arrivals per second; None where they are not said, or all at once."""
        if self.arrival is None or len(self.arrival) < 2 or not self.arrival[-1] > 0:
            return None
        return float((len(self.arrival) - 1) / self.arrival[-1])


ARRIVALS = ("arrival_s", "timestamp_s", "Timestamp", "TIMESTAMP", "timestamp")
PROMPTS = ("input_len", "input_length", "ContextTokens", "Request tokens", "prompt_len")
ANSWERS = ("output_len", "output_length", "GeneratedTokens", "Response tokens", "output_tokens")
MILLISECONDS = "input_length"
"""The column of files (Mooncake's) whose timestamps are milliseconds."""


def read_trace(path: Path) -> Trace:
    """Read a trace.

    Raises InputError where the file cannot be read or is no trace.
    """
    rows = _rows(path)
    if not rows:
        raise InputError(f"{path} has no requests")
    if not all(isinstance(row, dict) for row in rows):
        raise InputError(f"{path} is no trace of requests: its records are no mappings")
    first = rows[0]
    if isinstance(first.get("input_lens"), Sequence):
        return _results(rows, path)
    prompt, answer = _named(first, PROMPTS), _named(first, ANSWERS)
    if prompt is None or answer is None:
        raise InputError(
            f"{path} is no trace of requests: no column of {', '.join(PROMPTS)}, or none of "
            f"{', '.join(ANSWERS)}"
        )
    came = _named(first, ARRIVALS)
    order = np.arange(len(rows))
    arrival = None
    if came is not None:
        unit = 1e-3 if prompt == MILLISECONDS and came == "timestamp" else 1.0
        arrival = unit * np.array([_time(row[came], path) for row in rows])
        order = np.argsort(arrival, kind="stable")
        arrival = arrival[order] - arrival[order[0]]
    given, made = (_numbers((row[name] for row in rows), name, path) for name in (prompt, answer))
    pieces: tuple[tuple[Piece, ...], ...] = ()
    if "hash_ids" in first:
        pieces = tuple(tuple((one, BLOCK) for one in rows[at]["hash_ids"]) for at in order)
    return _checked(Trace(arrival, given[order], np.maximum(made[order], 1.0), pieces), path)


def _checked(found: Trace, path: Path) -> Trace:
    # A request without prompt or answer (BurstGPT has failures with no answer) asks for nothing.
    if not np.all(np.isfinite(found.input_len)) or np.any(found.input_len < 1):
        raise InputError(f"{path}: every prompt must have at least one token")
    return found


def _named(row: Mapping[str, Any], names: Iterable[str]) -> str | None:
    return next((name for name in names if name in row), None)


def _rows(path: Path) -> list[dict[str, Any]]:
    """Records of a CSV or JSON-lines file, or of one JSON text; packed with gzip or not."""
    try:
        text = unpacked(path).getvalue().decode("utf-8")
        name = path.name.removesuffix(".gz")
        if name.endswith(".csv"):
            return list(csv.DictReader(text.splitlines()))
        if name.endswith(".jsonl"):
            return [json.loads(line) for line in text.splitlines() if line.strip()]
        content = json.loads(text)
        return list(content) if isinstance(content, list) else [content]
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"cannot read {path}: {reason}") from None
    except ValueError as error:
        raise InputError(f"cannot read {path}: it is neither CSV nor JSON ({error})") from None


def _numbers(values: Iterable[Any], name: str, path: Path) -> Array:
    try:
        return np.array([float(value) for value in values])
    except (TypeError, ValueError) as error:
        raise InputError(f"{path}, column {name}: {error}") from None


def _time(value: Any, path: Path) -> float:
    """Seconds, from a number or a date."""
    try:
        return float(value)
    except (TypeError, ValueError):
        pass
    text = str(value).strip().replace(" ", "T", 1)
    whole, point, part = text.partition(".")
    digits = "".join(c for c in part if c.isdigit())
    try:
        base = datetime.fromisoformat(whole).timestamp()
    except ValueError:
        raise InputError(f"{path}: {value!r} is neither seconds nor a date") from None
    return base + (float(f"0.{digits}") if point and digits else 0.0)


def _results(rows: list[dict[str, Any]], path: Path) -> Trace:
    """The last run of a bench client's result file: its requests that were answered."""
    run = rows[-1]
    given = _numbers(run["input_lens"], "input_lens", path)
    made = _numbers(run.get("output_lens", ()), "output_lens", path)
    if len(made) != len(given):
        raise InputError(f"{path}: as many output_lens as input_lens are needed")
    kept = (given >= 1) & (made >= 1)
    started = run.get("start_times")
    if isinstance(started, Sequence) and len(started) == len(given):
        times = _numbers(started, "start_times", path)[kept]
        order = np.argsort(times, kind="stable")
        return Trace(times[order] - times[order[0]], given[kept][order], made[kept][order])
    return Trace(None, given[kept], made[kept])

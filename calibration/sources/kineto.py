"""Traces of PyTorch's profiler (Kineto, JSON or gzipped JSON), read without PyTorch.

A kernel belongs to the call of an operator around the runtime call that launched it: same thread,
within its time, found by `correlation`; where the trace holds no such runtime call, to the
operator of its `External id`. (In older traces the two ids of a kernel are the same number, and
only time and thread tell.) An operator's time is the sum over its kernels, copies and clears.

`dur` is in microseconds in all versions, whatever `displayTimeUnit` says: bytes over `dur` of a
copy is the bandwidth that the trace states beside it.

Equal calls become one row: their median, 10th and 90th percentile, and how many they were.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from calibration.sources.devices import accelerator_of
from calibration.sources.found import Found, Stated, kernel_rows, link_columns
from calibration.sources.kineto_ops import OPERATORS, Call, LeftOut, collective
from predictor.errors import InputError

Event = dict[str, Any]

DEVICE_EVENTS = ("kernel", "gpu_memcpy", "gpu_memset")
RUNTIME_EVENTS = ("cuda_runtime", "cuda_driver", "hip_runtime", "hip_driver")

ROUNDING = 1.0
"""Older traces round times to whole microseconds, so that a call may seem to outlast the one
around it by this much."""


def read(path: Path, stated: Stated) -> Found:
    """The operators and collectives of a trace as kernel rows.

    Raises InputError for a file that is no such trace, and for a device of unknown name.
    """
    trace = _load(path)
    events = [event for event in trace["traceEvents"] if _is_timed(event)]
    launched = [event for event in events if event.get("cat") in DEVICE_EVENTS]
    if not launched:
        raise InputError(f"{path} holds no kernels of a GPU")
    names = {p.get("id"): str(p.get("name")) for p in trace.get("deviceProperties") or []}
    left_out: Counter[str] = Counter()
    work: list[tuple[list[Event], Callable[[], dict[str, Any]]]] = []
    launched_by: dict[int, list[Event]] = defaultdict(list)
    calls = _Calls(events)
    for event in launched:
        chain = calls.around(event)
        known = [position for position, call in enumerate(chain) if call["name"] in OPERATORS]
        if event["name"].startswith("nccl"):
            work.append(([event], partial(_collective, event, chain, stated)))
        elif event["name"].startswith("Memcpy") and "DtoD" not in event["name"]:
            left_out["copies between host and device"] += 1
        elif known:
            outermost = chain[known[-1] :]
            kernels = launched_by[id(outermost[0])]
            if not kernels:
                work.append((kernels, partial(_operator, outermost, kernels)))
            kernels.append(event)
        elif chain:
            left_out[f"operator {chain[0]['name']}: no row for it"] += 1
        else:
            left_out["launched by no recorded operator"] += 1
    rows = []
    for kernels, make in work:
        try:
            row = make() | _timed(kernels)
        except LeftOut as reason:
            left_out[str(reason)] += len(kernels)
            continue
        device = names.get(row["accelerator"], f"number {row['accelerator']}")
        rows.append(row | {"accelerator": accelerator_of(device, stated, str(path))})
    return Found(_merged(rows), left_out)


def _load(path: Path) -> dict[str, Any]:
    """The whole trace."""
    try:
        content = path.read_bytes()
        if content[:2] == b"\x1f\x8b":
            content = gzip.decompress(content)
        trace = json.loads(content.decode("utf-8", "replace"), strict=False)
    except FileNotFoundError:
        raise InputError(f"no such file: {path}") from None
    except (OSError, EOFError, ValueError, RecursionError, zlib.error) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"{path} is no whole JSON file: {reason}") from None
    if not isinstance(trace, dict) or not isinstance(trace.get("traceEvents"), list):
        raise InputError(f"{path} is no trace of PyTorch's profiler: it has no traceEvents")
    for number, event in enumerate(trace["traceEvents"]):
        if not isinstance(event, dict) or (event.get("ph") == "X" and not _is_timed(event)):
            raise InputError(f"{path}: event {number} of traceEvents has no name, ts, dur or args")
    return trace


def _is_timed(event: Event) -> bool:
    times = [event.get(key) for key in ("ts", "dur")]
    numeric = all(isinstance(time, int | float) for time in times)
    named = isinstance(event.get("name"), str) and isinstance(event.get("args", {}), dict)
    return event.get("ph") == "X" and numeric and named


def _args(event: Event) -> dict[str, Any]:
    return event.get("args", {})


class _Calls:
    """Which operator calls stand around each runtime call and each other."""

    def __init__(self, events: list[Event]) -> None:
        self.launch: dict[Any, Event] = {}
        self.by_external: dict[Any, Event] = {}
        self.parent: dict[int, Event | None] = {}
        threads: dict[tuple[Any, Any], list[Event]] = defaultdict(list)
        for event in events:
            category = event.get("cat")
            if category in RUNTIME_EVENTS:
                self.launch[_args(event).get("correlation")] = event
            elif category == "cpu_op":
                self.by_external[_args(event).get("External id")] = event
            else:
                continue
            threads[event.get("pid"), event.get("tid")].append(event)
        for thread in threads.values():
            self._nest(thread)

    def _nest(self, thread: list[Event]) -> None:
        """Note for each event of one thread the innermost operator call that holds it."""
        open_calls: list[Event] = []
        for event in sorted(thread, key=lambda e: (e["ts"], -e["dur"])):
            end = event["ts"] + (event["dur"] if event["cat"] == "cpu_op" else 0.0)
            while open_calls:
                until = open_calls[-1]["ts"] + open_calls[-1]["dur"]
                if event["ts"] <= until and end <= until + ROUNDING:
                    break
                open_calls.pop()
            self.parent[id(event)] = open_calls[-1] if open_calls else None
            if event["cat"] == "cpu_op":
                open_calls.append(event)

    def around(self, event: Event) -> list[Event]:
        """The operator calls that launched a device event, from the inside out."""
        launch = self.launch.get(_args(event).get("correlation"))
        if launch is not None:
            call = self.parent[id(launch)]
        else:
            call = self.by_external.get(_args(event).get("External id"))
        chain = []
        while call is not None:
            chain.append(call)
            call = self.parent[id(call)]
        return chain


def _timed(kernels: list[Event]) -> dict[str, Any]:
    """What all rows have: the time of their kernels, and the number of the device."""
    time = sum(float(kernel["dur"]) for kernel in kernels)
    if not time > 0:
        raise LeftOut("took no time")
    device = _args(kernels[0]).get("device")
    return {"source": "kineto", "accelerator": device, "latency_us": time}


def _operator(chain: list[Event], kernels: list[Event]) -> dict[str, Any]:
    """The row of an operator call; `chain` begins with it."""
    args = _args(chain[0])
    if "Input Dims" not in args:
        raise LeftOut("shapes were not recorded (record_shapes=True)")
    call = Call(
        name=chain[0]["name"],
        dims=args["Input Dims"],
        types=args.get("Input type", []),
        strides=args.get("Input Strides"),
        values=args.get("Concrete Inputs", []),
        kernels=tuple(kernel["name"] for kernel in kernels),
        backward=any(call["name"].startswith("autograd::engine") for call in chain),
    )
    try:
        row = OPERATORS[call.name](call)
    except (IndexError, TypeError, ValueError, AttributeError):
        raise LeftOut(f"operator {call.name}: its inputs are not as expected") from None
    return row | {"mode": "eager", "framework": "pytorch"}


def _collective(event: Event, chain: list[Event], stated: Stated) -> dict[str, Any]:
    """The row of a collective; what it moved is stated by its kernel, or by the call around it."""
    described = {**(_args(chain[0]) if chain else {}), **_args(event)}
    row, ranks = collective(described)
    hosts = len({rank // stated.per_node for rank in ranks}) if stated.per_node and ranks else None
    if hosts:
        row["num_nodes"] = float(hosts)
    if stated.tiers and (hosts or not stated.system):
        row |= link_columns(stated, row["num_gpus"], hosts or 1)
    return row | {"framework": "nccl", "notes": "in a training step: waits for the other ranks too"}


def _merged(rows: list[dict[str, Any]]) -> pd.DataFrame:
    """Equal calls as one row each."""
    table = kernel_rows(rows).dropna(axis=1, how="all")
    if table.empty:
        return kernel_rows(rows)
    keys = [column for column in table if column != "latency_us"]
    times = table.groupby(keys, dropna=False, sort=False)["latency_us"]
    merged = times.median().reset_index()
    spread = {
        "latency_p10_us": times.quantile(0.1).to_numpy(),
        "latency_p90_us": times.quantile(0.9).to_numpy(),
        "samples": times.size().to_numpy(),
    }
    return kernel_rows(merged.assign(**spread))

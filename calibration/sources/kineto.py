"""Traces of PyTorch's profiler (Kineto), read without PyTorch: their kernels as rows of a table.

A kernel belongs to the call of an operator around the runtime call that launched it: same thread,
within its time, found by `correlation`; where the trace holds no such runtime call, to the
operator of its `External id`. (In older traces the two ids of a kernel are the same number, and
only time and thread tell.) An operator's time is the sum over its kernels, copies and clears.
On a host without an accelerator the calls are the kernels.

`dur` is in microseconds in all versions, whatever `displayTimeUnit` says: bytes over `dur` of a
copy is the bandwidth that the trace states beside it.

Equal calls become one row: their median, 10th and 90th percentile, and how many they were.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from calibration.sources.devices import HOST, NUMBERED, accelerator_of
from calibration.sources.found import Found, Stated, kernel_rows, link_columns
from calibration.sources.kineto_calls import EXCHANGES, Calls
from calibration.sources.kineto_file import DEVICE_EVENTS, Event, TraceFile, load
from calibration.sources.kineto_ops import OPERATORS, Call, LeftOut, collective, communicated
from calibration.sources.kineto_steps import Anatomy, anatomy
from predictor.errors import InputError

Work = list[tuple[list[Event], Callable[[], dict[str, Any]]]]
"""Events whose times add up to one row, and what makes the row."""


def read(path: Path, stated: Stated) -> Found:
    """The operators and collectives of a trace as kernel rows, and what it says of its steps.

    Raises InputError for a file that is no such trace, and for a device of unknown name.
    """
    found, steps = read_steps(path, stated)
    return Found(found.rows, found.left_out, steps.to_dict())


def read_steps(path: Path, stated: Stated) -> tuple[Found, Anatomy]:
    """`read`, with the steps as they are."""
    trace = load(path)
    calls = Calls(trace.events)
    left_out: Counter[str] = Counter()
    on_device = [event for event in trace.events if event["cat"] in DEVICE_EVENTS]
    if on_device:
        work = _launched(on_device, calls, trace, stated, left_out)
    else:
        work = _on_host(trace, calls, stated, left_out)
    if not work and not left_out:
        raise InputError(f"{path} holds neither kernels nor operator calls")
    rows = []
    for events, make in work:
        try:
            row = make() | _timed(events)
        except LeftOut as reason:
            left_out[str(reason)] += len(events)
            continue
        rows.append(row | {"accelerator": _device(row["accelerator"], trace, stated, path)})
    return Found(_merged(rows), left_out), anatomy(trace, calls, str(path))


def _launched(
    on_device: list[Event], calls: Calls, trace: TraceFile, stated: Stated, left_out: Counter[str]
) -> Work:
    """What ran on an accelerator, by the calls that launched it."""
    work: Work = []
    launched_by: dict[int, list[Event]] = defaultdict(list)
    for event in on_device:
        chain = calls.around(event)
        known = [position for position, call in enumerate(chain) if call["name"] in OPERATORS]
        if event["name"].startswith("nccl"):
            work.append(([event], partial(_collective, event, chain, trace, stated, "nccl")))
        elif event["name"].startswith("Memcpy") and "DtoD" not in event["name"]:
            left_out["copies between host and device"] += 1
        elif _is_plain_copy(event, chain, known):
            work.append(([event], partial(_copy, event)))
        elif known:
            outermost = chain[_own(chain, known) :]
            kernels = launched_by[id(outermost[0])]
            if not kernels:
                work.append((kernels, partial(_operator, outermost, kernels)))
            kernels.append(event)
        elif chain:
            left_out[f"operator {chain[0]['name']}: no row for it"] += 1
        else:
            left_out["launched by no recorded operator"] += 1
    return work


def _on_host(trace: TraceFile, calls: Calls, stated: Stated, left_out: Counter[str]) -> Work:
    """What ran on the host: the outermost calls that are known, and collectives."""
    work: Work = []
    # What holds two calls of one name within each other states the shapes of all ranks together.
    holding: set[int] = set()
    for event in trace.events:
        if event["name"] in OPERATORS and id(event) in calls.parent:
            around = list(calls.up(event))[1:]
            if any(call["name"] == event["name"] for call in around):
                holding.update(id(call) for call in around)
    inner = {id(parent) for parent in calls.parent.values() if parent is not None}
    for event in trace.events:
        if id(event) not in calls.parent:
            continue
        chain = list(calls.up(event))
        if event["name"].startswith(EXCHANGES):
            library = event["name"].partition(":")[0]
            work.append(([event], partial(_collective, event, chain, trace, stated, library)))
        elif event["name"] in OPERATORS:
            around = [c for c in chain[1:] if c["name"] in OPERATORS and id(c) not in holding]
            if not around and id(event) not in holding:
                work.append(([event], partial(_operator, chain, [])))
        elif id(event) not in inner and not any(call["name"] in OPERATORS for call in chain):
            left_out[f"operator {event['name']}: no row for it"] += 1
    return work


def _own(chain: list[Event], known: list[int]) -> int:
    """Position of the call that describes a kernel: the outermost that is known, so that its parts
    are not counted beside it; where calls of one name lie within each other (DTensor's state the
    shapes of all ranks together) the innermost of them."""
    names = [chain[position]["name"] for position in known]
    twice = [p for p, name in zip(known, names, strict=True) if names.count(name) > 1]
    return twice[0] if twice else known[-1]


def _device(number: Any, trace: TraceFile, stated: Stated, path: Path) -> str:
    """Catalog name of what the events of a device number ran on."""
    if number is None and not stated.accelerator and not stated.system:
        raise InputError(
            f"{path} is of a host, which it does not name; give --system, e.g. the "
            "device.yaml of reckon profile"
        )
    known = trace.devices.get(number, {})
    device = str(known.get("name", HOST if number is None else f"{NUMBERED}{number}"))
    return accelerator_of(device, stated, str(path), known)


def _is_plain_copy(event: Event, chain: list[Event], known: list[int]) -> bool:
    """Whether a copy within the device states its own bytes where its call states no shapes."""
    if event["cat"] != "gpu_memcpy" or not isinstance(event["args"].get("bytes"), int | float):
        return False
    return not known or "Input Dims" not in chain[known[-1]]["args"]


def _copy(event: Event) -> dict[str, Any]:
    """The row of a copy within the device, which reads and writes what it states."""
    if not event["args"]["bytes"] > 0:
        raise LeftOut("copies of no bytes")
    moved = 2.0 * float(event["args"]["bytes"])
    return {"op": "memcpy", "dtype": "uint8", "message_bytes": moved, "mode": "eager"}


def _timed(events: list[Event]) -> dict[str, Any]:
    """What all rows have: the time of their events, and the number of the device."""
    time = sum(float(event["dur"]) for event in events)
    if not time > 0:
        raise LeftOut("took no time")
    device = events[0]["args"].get("device")
    return {"source": "kineto", "accelerator": device, "latency_us": time}


def _operator(chain: list[Event], kernels: list[Event]) -> dict[str, Any]:
    """The row of an operator call; `chain` begins with it."""
    args = chain[0]["args"]
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


def _collective(
    event: Event, chain: list[Event], trace: TraceFile, stated: Stated, library: str
) -> dict[str, Any]:
    """The row of a collective; what it moved is stated by its kernel, by the call around it, or by
    the annotation of its library, of which the group is the whole job."""
    stating = [call["args"] for call in chain if "Collective name" in call["args"]]
    described = {**(stating[0] if stating else {}), **event["args"]}
    try:
        row, ranks = collective(described)
    except LeftOut:
        named = [call for call in chain if call["name"].startswith(EXCHANGES)]
        group = trace.only_group
        if not named or group is None:
            raise
        row, ranks = communicated(named[0]["name"], named[0]["args"], group), list(range(group))
    hosts = len({rank // stated.per_node for rank in ranks}) if stated.per_node and ranks else None
    if hosts:
        row["num_nodes"] = float(hosts)
    if stated.tiers and (hosts or not stated.system):
        row |= link_columns(stated, row["num_gpus"], hosts or 1)
    notes = "in a training step: waits for the other ranks too"
    return row | {"framework": library, "notes": notes}


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

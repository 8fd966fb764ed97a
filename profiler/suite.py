"""What to measure within a time budget.

The candidates are kernels of transformers (`profiler.cases`), among which `profiler.design`
chooses. The models of the check steps (`profiler.step`) are not on the ladder.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch

from predictor import catalog
from predictor.hardware import Accelerator
from predictor.models import Model
from predictor.schema import KERNEL_COLUMNS, KERNEL_SCHEMA_VERSION
from predictor.work import (
    streaming,
)
from profiler.cases import ALWAYS, Case, cases
from profiler.design import Design, design
from profiler.device import Device
from profiler.operators import (
    MOST_CALLS,
    MOST_SETS,
    NARROW,
    attention_heads,
    builds,
)
from profiler.order import Order
from profiler.output import accelerator_mapping, rate_key
from profiler.timing import Measured, measure

COPY_BYTES = tuple(2.0**power for power in range(12, 30))
"""Sizes of the memory-copy sweep, which finds the bandwidths of memory and cache."""

HOST_FLOP = 1e10
"""Largest product that a host's power is read by: a tenth of a second on two cores."""

COPY_TILE = 2**18
"""Numbers that a large copy repeats."""

LONGEST_CALL = 0.15
"""Kernels that would take longer than this are skipped [s]."""


@dataclass(slots=True)
class Allowance:
    """Seconds to spend; `left` counts down on the wall clock."""

    seconds: float
    begin: float = field(default_factory=time.perf_counter)

    @property
    def left(self) -> float:
        """Seconds that remain."""
        return self.begin + self.seconds - time.perf_counter()


def row(
    case: Case,
    timing: Measured,
    device: Device,
    cache: str,
    conditions: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """A measured case as a row of the kernel table; `conditions` as `Device.conditions` says."""
    o = case.operator
    read = conditions or {}
    load = f"load {read['load_average']:g}" if "load_average" in read else ""
    common: dict[str, Any] = {
        "source": "profile",
        "accelerator": device.name,
        "op": o.op,
        "dtype": o.dtype,
        "latency_us": timing.median * 1e6,
        "latency_p10_us": timing.p10 * 1e6,
        "latency_p90_us": timing.p90 * 1e6,
        "samples": timing.samples,
        "waited": timing.waited,
        "cache": cache,
        "mode": case.mode,
        "ranks_per_host": device.ranks,
        "clock_mhz": read.get("clock_mhz"),
        "power_w": read.get("power_w"),
        "framework": "pytorch",
        "framework_version": str(torch.__version__),
        "schema_version": KERNEL_SCHEMA_VERSION,
        "notes": load,
    }
    return common | _sizes(case)


def _sizes(case: Case) -> dict[str, Any]:
    """A case's own columns of the kernel table."""
    o = case.operator
    if o.op == "attention_decode":
        kv_heads = case.heads / float(o.m)
        return {
            "batch": float(o.batch) / kv_heads,
            "heads": float(case.heads),
            "kv_heads": kv_heads,
            "q_len": 1.0,
            "kv_len": float(o.n),
            "head_dim": float(o.k),
            "kv_dtype": o.dtype,
        }
    if o.op == "moe_gemm":
        return {
            "m": float(o.m) * float(o.batch),
            "n": float(o.n),
            "k": float(o.k),
            "experts": float(o.batch),
            "topk": 1.0,
            "moe_tp": 1.0,
            "moe_ep": 1.0,
        }
    if o.op.startswith("attention"):
        sequences, heads = attention_heads(o, case.heads)
        return {
            "batch": float(sequences),
            "heads": float(heads),
            "kv_heads": float(heads),
            "q_len": float(o.m),
            "kv_len": float(o.n),
            "head_dim": float(o.k),
            "causal": 1.0,
        }
    found: dict[str, Any] = {"m": float(o.m), "n": float(o.n), "k": float(o.k)}
    found["batch"] = float(o.batch)
    if o.op == "gemm":
        return found | {"layout": o.variant}
    return found | {"kernel": o.variant, "message_bytes": float(o.bytes)}


def _calls(case: Case, device: Device) -> tuple[list[Callable[[], object]], str]:
    """Calls on data that a pass would find as cold, and whether it is. What must be compiled or
    captured first is so for a few only."""
    most = MOST_CALLS if case.mode == "eager" else MOST_SETS
    made, cold = builds(case.operator, device.torch, case.heads, device.cache_bytes, most)
    return made, "cold" if cold else "warm"


IDENTITY = (
    "op", "dtype", "m", "n", "k", "batch", "q_len", "kv_len", "heads", "kv_heads", "head_dim",
    "layout", "kernel", "mode", "message_bytes", "num_gpus",
)  # fmt: skip
"""Columns that tell one measurement from another."""


def identity(measured: Mapping[str, Any]) -> tuple[object, ...]:
    """What a row measured, equal for rows that measured the same."""
    values = (measured.get(column) for column in IDENTITY)
    return tuple(None if value is None or value != value else value for value in values)


Choice = Callable[[int | None], int | None]
"""What every rank does with the number that rank 0 chose."""


def _launched(case: Case, device: Device) -> tuple[Any, str] | None:
    """Calls of a case in its mode, and the state of the cache; None where this device or this
    PyTorch cannot."""
    try:
        made, cache = _calls(case, device)
        return MODES[case.mode](made, device), cache
    except (KeyError, RuntimeError, NotImplementedError):
        return None


def _timed(
    case: Case, calls: tuple[Any, str], device: Device, budget: Allowance
) -> tuple[dict[str, Any], float]:
    made, cache = calls
    timing = measure(made, device, min(0.05, max(budget.left, 0.0)))
    return row(case, timing, device, cache, device.conditions()), timing.median


def run(
    device: Device,
    budget: Allowance,
    known: Sequence[Mapping[str, Any]],
    progress: Callable[[str], None] = lambda text: None,
    barrier: Callable[[], None] = lambda: None,
    agree: Choice = lambda chosen: chosen,
    models: Sequence[Model] = (),
    modes: Sequence[str] = ("eager",),
    dtypes: Sequence[str] = (),
) -> Iterator[dict[str, Any]]:
    """Time cases until the budget is spent, a row of the kernel table for each; the first
    `ALWAYS` and a product of each data type in any case, without which a device has neither peaks
    nor a bandwidth.

    known     rows that were measured before: not measured again, and learned from
    barrier   called before each case, where several ranks measure at the same time
    agree     makes all ranks choose as rank 0 does
    modes     how kernels are launched (`MODES`)
    models, dtypes   as `cases` takes them
    """
    candidates = cases(device, models, dtypes)
    before = {identity(one): float(one["latency_us"]) * 1e-6 for one in known}
    rows = list(known)
    blank = Measured(1.0, 1.0, 1.0, 1)
    names = [identity(row(case, blank, device, "")) for case in candidates]

    def timed(number: int) -> Iterator[tuple[dict[str, Any], float]]:
        for mode in modes:
            case = replace(candidates[number], mode=mode)
            o, calls = case.operator, _launched(case, device)
            if calls is None:
                continue
            barrier()
            progress(f"{o.op} {o.dtype}" + ("" if mode == "eager" else f" {mode}"))
            yield _timed(case, calls, device, budget)

    for number in _always(candidates):
        if names[number] not in before:
            for one, seconds in timed(number):
                rows.append(one)
                before.setdefault(names[number], seconds)
                yield one
    plan = _planned(candidates, names, before, provisional(rows, device))
    order = Order(plan)
    while True:
        chosen = agree(order.next(budget.left) if budget.left > 0 else None)
        if chosen is None:
            yield from order.left()
            return
        plan.drop(chosen)
        found = list(timed(chosen))
        if order.postponed(chosen, [one for one, _ in found]):
            continue
        for one, seconds in found:
            if one["mode"] == modes[0]:
                plan.learn(chosen, seconds)
            yield one


def _planned(
    candidates: Sequence[Case],
    names: Sequence[tuple[object, ...]],
    before: Mapping[tuple[object, ...], float],
    known: Accelerator,
) -> Design:
    """What is worth measuring, after what was measured before: seconds by `identity`."""
    plan = design([case.operator for case in candidates], known, LONGEST_CALL)
    room = MOST_MEMORY * float(known.memory)
    for number, name in enumerate(names):
        if name in before:
            plan.learn(number, before[name])
        elif 4.0 * float(np.asarray(candidates[number].operator.bytes)) > room:
            plan.drop(number)
    return plan


def heavy(device: Device) -> Iterator[tuple[dict[str, Any], Callable[[], object]]]:
    """Work to read power by: none, the largest product of the first data type, the largest copy,
    then products of the others, narrow ones first, for which the time may not last."""
    yield {"op": "idle", "precision": ""}, partial(time.sleep, 0.01)
    products: dict[str, Case] = {}
    for case in cases(device):
        o = case.operator
        if o.op != "gemm" or not (device.on_gpu or float(o.flop) <= HOST_FLOP):
            continue
        before = products.get(o.dtype)
        if before is None or float(o.flop) > float(before.operator.flop):
            products[o.dtype] = case
    first, *others = products.values()
    yield from _heavy_product(first, device)
    yield _heavy_copy(device)
    for case in sorted(others, key=lambda case: case.operator.dtype not in NARROW):
        yield from _heavy_product(case, device)


def _heavy_product(
    case: Case, device: Device
) -> Iterator[tuple[dict[str, Any], Callable[[], object]]]:
    """A product, nothing where this PyTorch cannot."""
    if (found := _launched(case, device)) is not None:
        about = {"op": "gemm", "precision": case.operator.dtype, **_sizes(case)}
        yield about, found[0][0]


def _heavy_copy(device: Device) -> tuple[dict[str, Any], Callable[[], object]]:
    """The largest copy."""
    room = 0.05 * float(device.facts["memory_gb"]) * 1e9
    source = _numbers(max(s for s in COPY_BYTES if s <= max(room, COPY_BYTES[0])), device)
    target = torch.empty_like(source)
    moved = 2.0 * source.numel() * source.element_size()
    about = {"op": "memcpy", "precision": "fp32", "message_bytes": moved}
    return about, partial(target.copy_, source)


def _always(candidates: Sequence[Case]) -> list[int]:
    """Candidates that no budget leaves out."""
    products: dict[str, int] = {}
    for number, case in enumerate(candidates):
        if case.operator.op == "gemm":
            products.setdefault(case.operator.dtype, number)
    return sorted({*range(min(ALWAYS, len(candidates))), *products.values()})


MOST_MEMORY = 0.5
"""Share of the memory that the copies of one case may take."""


def provisional(rows: Sequence[Mapping[str, Any]], device: Device) -> Accelerator:
    """The device as far as the rows show it: a data type not yet timed is as fast as the fastest
    that was."""
    table = pd.DataFrame(list(rows)).reindex(columns=list(KERNEL_COLUMNS))
    mapping = accelerator_mapping(table, device)
    rates = [value for key, value in mapping.items() if key.endswith(("_tflops", "_tops"))]
    for dtype in (*device.dtypes, "fp32"):
        mapping.setdefault(rate_key(dtype), max(rates, default=1.0))
    return catalog.accelerator(mapping)


def _eager(calls: list[Callable[[], object]], device: Device) -> list[Callable[[], object]]:
    return calls


def _compiled(calls: list[Callable[[], object]], device: Device) -> list[Callable[[], object]]:
    made: list[Callable[[], object]] = [torch.compile(call, dynamic=False) for call in calls]
    made[0]()  # what cannot be compiled says so now
    return made


def _captured(calls: list[Callable[[], object]], device: Device) -> list[Callable[[], object]]:
    """Each call as a replay of a captured graph."""
    if device.kind != "cuda":
        raise NotImplementedError("graphs are captured on CUDA and ROCm only")
    made: list[Callable[[], object]] = []
    for call in calls:
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            call()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with warnings.catch_warnings():  # a backward pass runs where its forward pass did
            warnings.filterwarnings("error", message="The CUDA Graph is empty")
            try:
                with torch.cuda.graph(graph):
                    call()
            except UserWarning as empty:
                raise NotImplementedError("nothing was captured") from empty
        made.append(partial(_replayed, graph, call))
    return made


def _replayed(graph: torch.cuda.CUDAGraph, call: Callable[[], object]) -> None:
    """Replay a graph of a call, whose tensors must live as long: the graph knows them by address
    only."""
    graph.replay()


MODES = {"eager": _eager, "compiled": _compiled, "graph": _captured}
"""How kernels are launched: call by call, through torch.compile, in a captured graph."""


def _numbers(size: float, device: Device) -> torch.Tensor:
    """Random numbers to copy of so many bytes; `COPY_TILE` of them over and over, which are as
    random as others, and sooner made."""
    count = int(size // 4)
    tile = torch.randn(min(count, COPY_TILE), device=device.torch)
    return tile.repeat(-(-count // COPY_TILE))


def copies(device: Device, budget: Allowance) -> Iterator[dict[str, Any]]:
    """Memory copies over a range of sizes, and the time of an empty kernel."""
    one = torch.zeros(1, device=device.torch)
    for name, size in [("launch", 0.0), *(("memcpy", size) for size in COPY_BYTES)]:
        if budget.left <= 0 or size > 0.1 * float(device.facts["memory_gb"]) * 1e9:
            break
        if name == "launch":
            timing = measure([lambda: one.add_(1.0)], device, 0.05, launched=True)
        else:
            source = _numbers(size, device)
            target = torch.empty_like(source)
            timing = measure([partial(target.copy_, source)], device, 0.05)
        operator = streaming(
            name=name,
            op="memcpy",
            variant="",
            phase="forward",
            module="layer",
            dtype="fp32",
            rows=size / 4,
            columns=1.0,
            bytes_per_element=8.0,
        )
        case = Case(replace(operator, op=name), 1, 0.0)
        yield row(case, timing, device, "warm", device.conditions())

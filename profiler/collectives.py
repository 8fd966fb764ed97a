"""Collectives between processes of this host over gloo, and what processes cost one another.

Each rank is a process with its share of the cores. All ranks time the same kernels at the same
time (they share memory and caches), then collectives over a sweep of sizes, then a data-parallel
training step. gloo lacks some collectives in some PyTorch versions; those are built from
point-to-point sends, and the table's `kernel` column says so.
"""

from __future__ import annotations

import itertools
import os
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from predictor.errors import InputError
from predictor.schema import KERNEL_SCHEMA_VERSION
from profiler import suite
from profiler.device import Device, cores, keep_memory
from profiler.step import LEAST_STEPS, MOST_STEPS, WARM_UP_STEPS, checks, row, step_of, time_step

SIZES = tuple(4.0 * 4**power for power in range(3, 13))
"""Message sizes [bytes] of the sweep, 256 B to 64 MiB."""

OPS = ("allreduce", "allgather", "reducescatter", "alltoall", "broadcast", "p2p")

TIMEOUT = timedelta(seconds=300)


@dataclass(frozen=True, slots=True)
class RankResults:
    """What the ranks measured together: kernel and collective rows, step rows."""

    kernels: list[dict[str, Any]]
    steps: list[dict[str, Any]]


def _exchange(outputs: list[torch.Tensor], inputs: list[torch.Tensor], rank: int) -> None:
    """All-to-all out of point-to-point messages: a copy to oneself, a message to each other."""
    outputs[rank].copy_(inputs[rank])
    pending = []
    for other, (target, source) in enumerate(zip(outputs, inputs, strict=True)):
        if other != rank:
            pending += [
                dist.P2POp(dist.isend, source, other),
                dist.P2POp(dist.irecv, target, other),
            ]
    for request in dist.batch_isend_irecv(pending):
        request.wait()


def collective_call(
    op: str, size: float, rank: int, ranks: int
) -> tuple[Callable[[], object], str]:
    """A call of a collective with `size` bytes in nccl-tests' convention, and how it is made."""
    elements = max(int(size // 4) // ranks * ranks, ranks)
    part = elements // ranks
    whole = torch.randn(elements)
    own = torch.randn(part)
    pieces = list(torch.empty(elements).split(part))
    if op == "allreduce":
        return lambda: dist.all_reduce(whole), "gloo"
    if op == "broadcast":
        return lambda: dist.broadcast(whole, 0), "gloo"
    if op == "allgather":
        return lambda: dist.all_gather(pieces, own), "gloo"
    if op == "p2p":
        if rank == 0:
            return lambda: dist.send(whole, 1), "gloo"
        return (lambda: dist.recv(whole, 0)) if rank == 1 else (lambda: None), "gloo"
    sources = list(whole.split(part))
    if op == "alltoall":
        return lambda: _exchange(pieces, sources, rank), "gloo p2p"

    def reduce_scatter() -> None:
        _exchange(pieces, sources, rank)
        torch.stack(pieces).sum(0)

    return reduce_scatter, "gloo p2p + sum"


def _time_collective(op: str, size: float, rank: int, ranks: int) -> tuple[list[float], str]:
    """Seconds of calls; all ranks make the same number of them."""
    call, kernel = collective_call(op, size, rank, ranks)
    samples: list[float] = []
    count = int(np.clip(2e7 / size, 5, 40))
    for turn in range(2 + count):
        dist.barrier()
        start = time.perf_counter()
        call()
        if op == "p2p" and rank > 0:
            continue
        if turn >= 2:
            samples.append(time.perf_counter() - start)
    return samples, kernel


def _sweep(device: Device, rank: int, budget: suite.Budget) -> list[dict[str, Any]]:
    """Time every collective over the sizes, small ones first, until the budget is spent; the
    smallest in any case."""
    ranks = device.ranks
    rows = []
    for size, op in itertools.product(SIZES, OPS):
        # Rank 0 decides for all whether to go on.
        go = torch.tensor([1.0 if budget.left > 0 or size == SIZES[0] else 0.0])
        dist.broadcast(go, 0)
        if not go.item():
            break
        samples, kernel = _time_collective(op, size, rank, ranks)
        if rank == 0:
            p10, median, p90 = np.quantile(samples, [0.1, 0.5, 0.9])
            rows.append(
                {
                    "source": "profile",
                    "accelerator": device.name,
                    "op": op,
                    "dtype": "fp32",
                    "num_gpus": float(ranks),
                    "num_nodes": 1.0,
                    "message_bytes": size,
                    "latency_us": median * 1e6,
                    "latency_p10_us": p10 * 1e6,
                    "latency_p90_us": p90 * 1e6,
                    "samples": len(samples),
                    "kernel": kernel,
                    "mode": "eager",
                    "link": "gloo",
                    "in_switch": 0.0,
                    "ranks_per_host": ranks,
                    "framework": "pytorch",
                    "framework_version": str(torch.__version__),
                    "schema_version": KERNEL_SCHEMA_VERSION,
                }
            )
    return rows


def _steps(device: Device, rank: int, budget: suite.Budget) -> list[dict[str, Any]]:
    """Data-parallel steps: every rank computes its own sequences, gradients are all-reduced."""
    from torch.nn.parallel import DistributedDataParallel

    rows = []
    chosen = [check for check in checks(device) if check.precision == device.dtypes[0]][:2]
    for position, check in enumerate(chosen):
        step = step_of(check, device, DistributedDataParallel)
        start = time.perf_counter()
        step()
        share = budget.left / (len(chosen) - position)
        # Every rank must make the same number of steps, if any: rank 0 decides.
        fit = torch.tensor([share / (time.perf_counter() - start) - WARM_UP_STEPS])
        dist.broadcast(fit, 0)
        if position and fit.item() < LEAST_STEPS:
            break
        count = int(np.clip(fit.item(), LEAST_STEPS, MOST_STEPS))
        samples = time_step(step, device, 0.0, count)
        if rank == 0:
            rows.append(row(check, samples, device, device.ranks))
    return rows


def _rank(rank: int, device: Device, port: int, end: float, results: Any) -> None:
    """Body of one rank's process; `end` is the wall-clock time at which to be done."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends the ranks
    torch.set_num_threads(device.threads)
    keep_memory()
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=device.ranks, timeout=TIMEOUT)
    try:
        rows = _kernels(device, rank, suite.Budget(0.5 * (end - time.time())))
        rows += _sweep(device, rank, suite.Budget(0.4 * (end - time.time())))
        steps = _steps(device, rank, suite.Budget(end - time.time()))
        if rank == 0:
            results.put(RankResults(rows, steps))
        dist.barrier()
    finally:
        dist.destroy_process_group()


def _kernels(device: Device, rank: int, budget: suite.Budget) -> list[dict[str, Any]]:
    """The kernel suite on all ranks at once; rank 0's clock decides when it ends."""

    def agreed() -> Any:
        for position, case in enumerate(suite.cases(device)):
            go = torch.tensor([1.0 if budget.left > 0 or position < suite.ALWAYS else 0.0])
            dist.broadcast(go, 0)
            if not go.item():
                return
            yield case

    endless = suite.Budget(3600.0)
    rows = list(suite.run(device, endless, barrier=dist.barrier, order=agreed()))
    return rows if rank == 0 else []


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run(device: Device, seconds: float) -> RankResults:
    """Start the ranks, measure for about `seconds`, return what rank 0 saw.

    Raises InputError for fewer than two ranks or more ranks than cores, ChildProcessError where a
    rank fails.
    """
    if not 2 <= device.ranks <= cores():
        raise InputError(f"--ranks {device.ranks}: needs 2 to {cores()}, the cores of this machine")
    context = mp.get_context("spawn")
    results = context.SimpleQueue()
    port, end = _free_port(), time.time() + seconds
    processes = [
        context.Process(target=_rank, args=(rank, device, port, end, results), daemon=True)
        for rank in range(device.ranks)
    ]
    for process in processes:
        process.start()
    try:
        while results.empty():
            if any(process.exitcode not in (None, 0) for process in processes):
                raise ChildProcessError("a rank failed (its message is above)")
            time.sleep(0.05)
        found: RankResults = results.get()
        for process in processes:
            process.join(timeout=60)
        return found
    finally:
        for process in processes:
            if process.is_alive():
                process.terminate()

"""Several ranks at once: processes that this program starts on this host, or those that torchrun
started on one or many.

All ranks time the same kernels at the same time (they share memory and caches), then collectives,
then steps of parallel training.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch.distributed as dist
import torch.multiprocessing as mp

from predictor.errors import InputError
from profiler import collectives, dispatch, parallel, suite
from profiler.collectives import Member
from profiler.device import Device, keep_memory

HOST_SHARE = 0.1
"""Part of the time for kernels in which the host time of operators is measured."""

TIMEOUT = timedelta(seconds=300)

SHARED = ("torch.distributed.fsdp", "torch.distributed.tensor.parallel", "torch._dynamo")
"""What each rank would take a second or more to import, when it first needs it."""

BACKENDS = ("gloo", "nccl")
"""Libraries that may communicate; a ROCm build of PyTorch calls RCCL 'nccl' too."""


@dataclass(frozen=True, slots=True)
class RankResults:
    """What the ranks measured together: kernel and collective rows, step rows."""

    kernels: list[dict[str, Any]]
    steps: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Launched:
    """What torchrun tells a process of its job."""

    rank: int
    ranks: int
    local_rank: int
    local_ranks: int


def torchrun() -> Launched | None:
    """The job that torchrun started this process in, None if none did."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    values = [os.environ.get(name, "") for name in names]
    if not all(value.isdigit() for value in values):
        return None
    return Launched(*(int(value) for value in values))


def check_backend(backend: str, device: Device) -> None:
    """Raise InputError for a library that is unknown or cannot be used here."""
    if backend not in BACKENDS:
        raise InputError(f"unknown backend {backend!r}; use gloo or nccl")
    if backend == "nccl" and not (dist.is_nccl_available() and device.kind == "cuda"):
        raise InputError("--backend nccl needs GPUs and a PyTorch that has NCCL; use gloo")


def check_ranks(device: Device, ranks: int, least: int = 1) -> None:
    """Raise InputError for a number of ranks that the host has no room for."""
    most, what = device.most_ranks, "GPUs" if device.kind == "cuda" else "cores"
    if not least <= ranks <= most:
        raise InputError(f"--ranks {ranks}: needs {least} to {most}, the {what} of this machine")


def _measure(member: Member, end: float, trace: str | None) -> RankResults:
    """All that the ranks measure, until about the wall-clock time `end`."""

    def share(part: float) -> suite.Allowance:
        return suite.Allowance(part * (member.agree(end - time.time())))

    # PyTorch's own sharding calls what PyTorch has since named otherwise.
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.")
    rows = _kernels(member, share(0.4))
    rows += collectives.sweep(member, share(0.35))
    rows += collectives.overlap(member, share(0.1))
    rows += collectives.waiting(member, share(0.1))
    steps = parallel.steps(member, share(1.0), trace)
    dist.barrier()
    return RankResults(rows, steps)


def _kernels(member: Member, budget: suite.Allowance) -> list[dict[str, Any]]:
    """The kernel suite on all ranks at once; rank 0's clock and choice decide."""

    def agree(chosen: int | None) -> int | None:
        told = member.agree(-1.0 if chosen is None else float(chosen))
        return None if told < 0 else int(told)

    own = budget if member.rank == 0 else suite.Allowance(3600.0)
    # The steps that ranks take together are in this type.
    first = member.device.dtypes[:1]
    rows: list[dict[str, Any]] = []
    if not member.device.on_gpu:
        share = suite.Allowance(HOST_SHARE * own.seconds)

        def both(more: bool) -> bool:
            return member.agree(float(more)) > 0

        rows += dispatch.host_times(member.device, share, dispatch.TOGETHER, dist.barrier, both)
    rows += suite.run(member.device, own, [], barrier=dist.barrier, agree=agree, dtypes=first)
    return rows if member.rank == 0 else []


def _rank(
    rank: int, device: Device, backend: str, port: int, end: float, trace: str | None, results: Any
) -> None:
    """Body of one rank's process; `end` is the wall-clock time at which to be done."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends the ranks
    own = device.of_rank(rank)
    own.activate()
    keep_memory()
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group(backend, rank=rank, world_size=device.ranks, timeout=TIMEOUT)
    try:
        found = _measure(Member(own, rank, own.ranks, 1, backend), end, trace)
        if rank == 0:
            results.put(found)
        dist.barrier()
    finally:
        dist.destroy_process_group()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _context() -> Any:
    """How processes start: on Linux from one that has imported PyTorch once for all of them."""
    if sys.platform != "linux":
        return mp.get_context("spawn")
    context = mp.get_context("forkserver")
    context.set_forkserver_preload([__name__, *SHARED])
    return context


def spawn(body: Callable[..., None], ranks: int, *arguments: Any) -> Any:
    """Run `body(rank, *arguments, results)` in processes of this host; returns what rank 0 puts.

    Raises ChildProcessError where a rank fails.
    """
    context = _context()
    results = context.SimpleQueue()
    processes = [
        context.Process(target=body, args=(rank, *arguments, results), daemon=True)
        for rank in range(ranks)
    ]
    for process in processes:
        process.start()
    try:
        while results.empty():
            if any(process.exitcode not in (None, 0) for process in processes):
                raise ChildProcessError("a rank failed (its message is above)")
            if not any(process.is_alive() for process in processes) and results.empty():
                raise ChildProcessError("the ranks ended without a result")
            time.sleep(0.05)
        found = results.get()
        for process in processes:
            process.join(timeout=60)
        return found
    finally:
        for process in processes:
            if process.is_alive():
                process.terminate()


def run(device: Device, seconds: float, backend: str = "gloo", trace: str | None = None) -> Any:
    """Start the ranks on this host, measure for about `seconds`, return what rank 0 saw.

    trace   where to write a trace of a data-parallel step

    Raises InputError for fewer than two ranks or more than there is room for, ChildProcessError
    where a rank fails.
    """
    check_ranks(device, device.ranks, least=2)
    check_backend(backend, device)
    port, end = _free_port(), time.time() + seconds
    return spawn(_rank, device.ranks, device, backend, port, end, trace)


def join(device: Device, seconds: float, job: Launched, backend: str) -> RankResults:
    """Measure as one rank of torchrun's job; only rank 0 gets rows."""
    check_backend(backend, device)
    device.activate()
    keep_memory()
    dist.init_process_group(backend, timeout=TIMEOUT)
    try:
        hosts = -(-job.ranks // job.local_ranks)
        member = Member(device, job.rank, job.ranks, hosts, backend)
        return _measure(member, time.time() + seconds, None)
    finally:
        dist.destroy_process_group()

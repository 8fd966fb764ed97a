"""Collectives between ranks: a sweep of sizes, over groups of several sizes, alone and several at a
time, and beside a product of matrices.

Sizes and bandwidths follow nccl-tests. gloo lacks some collectives in some PyTorch versions; those
are built from point-to-point sends, and the table's `kernel` column says so.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from predictor.schema import COLLECTIVE_OPS, KERNEL_SCHEMA_VERSION
from profiler.device import Device
from profiler.suite import Allowance
from profiler.timing import LEAST_SAMPLES, Sample, timed

SIZES = tuple(4.0 * 4**power for power in range(3, 13))
"""Message sizes [bytes] of the sweep, 256 B to 64 MiB."""

TELLING = 2.0**20
"""Size [bytes] of a message that is carried at about the link's rate."""

OVERLAP_SIZES = (2.0**20, 2.0**24)
OVERLAP_WIDTH = 512
"""Messages [bytes] that are reduced beside products of square matrices this wide."""

WARM_UP = 2
"""Calls that are not timed: the first opens connections."""

STRETCHES = (16e-3, 2e-3, 64e-3)
"""Seconds of work between two meetings of the ranks, of which `NEEDED` are timed in any case."""

NEEDED, TIMES = 2, 24
WORK_WIDTH = 256
"""Meetings that are timed at least and at most; width of the products between them."""


@dataclass(frozen=True, slots=True, eq=False)
class Member:
    """One rank of the job: its device, its number, how many there are and on how many hosts, and
    the library that communicates."""

    device: Device
    rank: int
    ranks: int
    hosts: int
    backend: str

    def agree(self, number: float) -> float:
        """Rank 0's number, on all ranks."""
        told = torch.tensor([number], dtype=torch.float64, device=self.place)
        dist.broadcast(told, 0)
        return float(told.item())

    @property
    def place(self) -> str:
        """Where tensors of collectives lie."""
        return "cpu" if self.backend == "gloo" else self.device.torch


@dataclass(frozen=True, slots=True, eq=False)
class Ring:
    """Ranks that communicate: their group, this rank's position (-1: not one of them), how many
    they are, the first of them, and how many such groups communicate at the same time."""

    group: Any
    position: int
    size: int
    first: int
    crowd: int = 1


def _exchange(
    outputs: list[torch.Tensor], inputs: list[torch.Tensor], ring: Ring, others: list[int]
) -> None:
    """All-to-all out of point-to-point messages: a copy to oneself, a message to each other."""
    outputs[ring.position].copy_(inputs[ring.position])
    pending = []
    for other, (target, source) in enumerate(zip(outputs, inputs, strict=True)):
        if other != ring.position:
            pending += [
                dist.P2POp(dist.isend, source, others[other], ring.group),
                dist.P2POp(dist.irecv, target, others[other], ring.group),
            ]
    for request in dist.batch_isend_irecv(pending):
        request.wait()


def collective_call(
    op: str, size: float, ring: Ring, member: Member
) -> tuple[Callable[[], object], str]:
    """A call of a collective with `size` bytes in nccl-tests' convention, and how it is made."""
    ranks, place = ring.size, member.place
    elements = max(int(size // 4) // ranks * ranks, ranks)
    whole = torch.randn(elements, device=place)
    other = torch.empty(elements, device=place)
    part = torch.randn(elements // ranks, device=place)
    group, first, library = ring.group, ring.first, member.backend
    if op == "allreduce":
        return lambda: dist.all_reduce(whole, group=group), library
    if op == "broadcast":
        return lambda: dist.broadcast(whole, first, group=group), library
    if op == "allgather":
        return lambda: dist.all_gather_into_tensor(other, part, group=group), library
    if op == "p2p":
        if ring.position == 0:
            return lambda: dist.send(whole, first + 1, group=group), library
        receives = ring.position == 1
        return (
            (lambda: dist.recv(whole, first, group=group)) if receives else lambda: None
        ), library
    pieces, sources = list(other.chunk(ranks)), list(whole.chunk(ranks))
    others = list(range(first, first + ranks))

    def scattered() -> None:
        _exchange(pieces, sources, ring, others)
        torch.stack(pieces).sum(0)

    ways: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
        "alltoall": (
            partial(dist.all_to_all_single, other, whole, group=group),
            partial(_exchange, pieces, sources, ring, others),
        ),
        "reducescatter": (
            partial(dist.reduce_scatter_tensor, part, whole, group=group),
            scattered,
        ),
    }
    native, instead = ways[op]
    try:
        native()
    except (RuntimeError, NotImplementedError):
        return instead, f"{library} p2p" + (" + sum" if op == "reducescatter" else "")
    return native, library


def _time(op: str, size: float, ring: Ring, member: Member) -> tuple[list[float], str]:
    """Seconds of calls; all ranks of all groups make the same number of them."""
    call, kernel = collective_call(op, size, ring, member)
    samples: list[float] = []
    count = int(np.clip(2e7 / size, 5, 40))
    for turn in range(WARM_UP + count):
        dist.barrier()
        start = time.perf_counter()
        call()
        member.device.synchronize()
        if turn >= WARM_UP and not (op == "p2p" and ring.position > 0):
            samples.append(time.perf_counter() - start)
    return samples, kernel


def _row(member: Member, op: str, size: float, seconds: list[float], **more: Any) -> dict[str, Any]:
    """A measured collective as a row of the kernel table."""
    p10, median, p90 = np.quantile(seconds, [0.1, 0.5, 0.9])
    return {
        "source": "profile",
        "accelerator": member.device.name,
        "op": op,
        "dtype": "fp32",
        "message_bytes": size,
        "latency_us": median * 1e6,
        "latency_p10_us": p10 * 1e6,
        "latency_p90_us": p90 * 1e6,
        "samples": len(seconds),
        "mode": "eager",
        "link": member.backend,
        "in_switch": 0.0,
        "ranks_per_host": member.device.ranks,
        "framework": "pytorch",
        "framework_version": str(torch.__version__),
        "schema_version": KERNEL_SCHEMA_VERSION,
        **more,
    }


def rings(member: Member) -> list[Ring]:
    """Groups to measure: all ranks, and every halving of them down to pairs, of which first one
    communicates alone, then all together. Every rank must call this, since groups are made."""
    found = [Ring(None, member.rank, member.ranks, 0)]
    size = member.ranks // 2
    while size >= 2:
        starts = range(0, member.ranks - size + 1, size)
        groups = [dist.new_group(list(range(start, start + size))) for start in starts]
        own = min(member.rank // size, len(groups) - 1)
        inside = member.rank - own * size
        position = inside if inside < size else -1
        alone = position if own == 0 else -1
        found.append(Ring(groups[0], alone, size, 0))
        found.append(Ring(groups[own], position, size, own * size, len(groups)))
        size //= 2
    return found


def sizes_in_turn() -> list[float]:
    """The smallest message, which tells latencies, and one that tells the link's rate; then the
    others, small ones first."""
    needed = [SIZES[0], max(size for size in SIZES if size <= TELLING)]
    return [*needed, *(size for size in SIZES if size not in needed)]


def sweep(member: Member, budget: Allowance) -> list[dict[str, Any]]:
    """Time every collective over the sizes until the budget is spent; the first two of them
    (`sizes_in_turn`) among all ranks in any case."""
    rows = []
    groups, sizes = rings(member), sizes_in_turn()
    for size, op, ring in itertools.product(sizes, COLLECTIVE_OPS, groups):
        needed = size in sizes[:2] and ring.group is None
        if not member.agree(float(budget.left > 0 or needed)):
            continue
        samples: list[float] = []
        if ring.position >= 0:
            samples, kernel = _time(op, size, ring, member)
        else:
            for _ in range(WARM_UP + int(np.clip(2e7 / size, 5, 40))):
                dist.barrier()
        if member.rank == 0:
            crowd = f"{ring.crowd} groups at once" if ring.crowd > 1 else ""
            more = {
                "num_gpus": float(ring.size),
                "num_nodes": float(member.hosts if ring.size > member.device.ranks else 1),
                "kernel": kernel,
                "mode": "crowded" if ring.crowd > 1 else "eager",
                "notes": crowd,
            }
            rows.append(_row(member, op, size, samples, **more))
    return rows


def waiting(member: Member, budget: Allowance) -> Iterator[dict[str, Any]]:
    """Stretches of products between two meetings of all ranks: two rows for each length, of what a
    rank takes (`own`) and of what the slowest takes (`slowest`), means of calm stretches.

    Stretches in which the threads of any rank waited for a processor count only where there are
    too few others.
    """
    place = member.device.torch
    a, b = (torch.randn(WORK_WIDTH, WORK_WIDTH, device=place) for _ in range(2))

    def stretch(count: int) -> Sample:
        def work() -> None:
            for _ in range(count):
                torch.mm(a, b)

        return timed(work, member.device)

    stretch(20)
    each = min(stretch(10).seconds / 10 for _ in range(5))
    for number, length in enumerate(STRETCHES):
        if not member.agree(float(budget.left > 0 or number < NEEDED)):
            return
        count = max(int(member.agree(length / each)), 1)
        found = []
        for _ in range(TIMES):
            dist.barrier()
            own = stretch(count)
            told = torch.tensor([own.seconds, own.waited], dtype=torch.float64, device=member.place)
            every = [torch.empty_like(told) for _ in range(member.ranks)]
            dist.all_gather(every, told)
            found.append(torch.stack(every).cpu().numpy())
        if member.rank == 0:
            seconds, waited = np.moveaxis(np.array(found), -1, 0)
            samples = [Sample(*pair) for pair in zip(seconds.max(1), waited.max(1), strict=True)]
            calm = np.array([sample.calm for sample in samples])
            chosen = calm if calm.sum() >= LEAST_SAMPLES else np.ones_like(calm)
            sizes = {"m": WORK_WIDTH, "n": WORK_WIDTH, "k": WORK_WIDTH, "batch": count}
            shape = {key: float(value) for key, value in sizes.items()}
            for kernel, times in (("own", seconds.mean(1)), ("slowest", seconds.max(1))):
                more = {"num_gpus": float(member.ranks), "num_nodes": float(member.hosts)}
                row = _row(member, "waiting", np.nan, list(times[chosen]), kernel=kernel, **more)
                yield {**row, **shape, "latency_us": float(times[chosen].mean()) * 1e6}


def overlap(member: Member, budget: Allowance) -> Iterator[dict[str, Any]]:
    """A product of matrices and an all-reduce at the same time: how much each slows the other.

    The row's `latency_us` is the all-reduce beside products; its notes give both ratios.
    """
    place = member.device.torch
    a, b = (torch.randn(OVERLAP_WIDTH, OVERLAP_WIDTH, device=place) for _ in range(2))

    def products(count: int) -> float:
        start = time.perf_counter()
        for _ in range(count):
            torch.mm(a, b)
        member.device.synchronize()
        return time.perf_counter() - start

    products(3)
    each = float(np.median([products(3) / 3 for _ in range(5)]))
    for size in OVERLAP_SIZES:
        if not member.agree(float(budget.left > 0)):
            return
        data = torch.randn(int(size // 4), device=member.place)
        alone, beside, slowed = [], [], []
        for _ in range(5):
            dist.barrier()
            start = time.perf_counter()
            dist.all_reduce(data)
            member.device.synchronize()
            alone.append(time.perf_counter() - start)
        count = max(int(member.agree(float(np.median(alone)) / each)), 1)
        for _ in range(5):
            dist.barrier()
            start = time.perf_counter()
            pending = dist.all_reduce(data, async_op=True)
            slowed.append(products(count) / count / each)
            pending.wait()
            member.device.synchronize()
            beside.append(time.perf_counter() - start)
        if member.rank == 0:
            longer = float(np.median(beside)) / float(np.median(alone))
            yield _row(
                member,
                "overlap",
                size,
                beside,
                num_gpus=float(member.ranks),
                num_nodes=float(member.hosts),
                m=float(OVERLAP_WIDTH),
                n=float(OVERLAP_WIDTH),
                k=float(OVERLAP_WIDTH),
                batch=float(count),
                kernel="allreduce beside products",
                notes=f"products take {np.median(slowed):.2f} times as long, both together "
                f"{longer:.2f} times the all-reduce alone ({np.median(alone) * 1e6:.0f} us)",
            )

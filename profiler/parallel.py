"""Training steps over several ranks: data parallel (DDP), sharded (FSDP2) and tensor parallel."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from profiler.collectives import Member
from profiler.device import Device
from profiler.models import Attention, FeedForward, Transformer
from profiler.step import (
    LEAST_STEPS,
    MOST_STEPS,
    WARM_UP_STEPS,
    Check,
    Layout,
    OneStep,
    checks,
    module_of,
    row,
    step_of,
    time_step,
)
from profiler.suite import Allowance
from profiler.timing import Sample
from profiler.trace import RECORDED, record

Around = Callable[[], AbstractContextManager[None]]
"""What a step runs under."""


def _replicated(model: Transformer, mesh: DeviceMesh) -> tuple[nn.Module, Around]:
    from torch.nn.parallel import DistributedDataParallel

    return DistributedDataParallel(model), nullcontext


def _sharded(model: Transformer, mesh: DeviceMesh) -> tuple[nn.Module, Around]:
    """FSDP2: each block by itself, what is around them together."""
    from torch.distributed.fsdp import fully_shard

    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model, nullcontext


@torch.no_grad()
def _dealt(linear: nn.Linear, widths: tuple[int, ...], ranks: int) -> None:
    """Reorder a projection whose rows are parts one behind the other, so that each rank's share of
    all rows holds its share of each part."""
    for tensor in (linear.weight, linear.bias):
        if tensor is not None:
            parts = [part.chunk(ranks) for part in tensor.split(list(widths))]
            tensor.copy_(torch.cat([part[rank] for rank in range(ranks) for part in parts]))


def _split(model: Transformer, mesh: DeviceMesh) -> tuple[nn.Module, Around]:
    """Tensor parallel as Megatron lays it out: columns, then rows; the embedding, the output
    projection and the loss over parts of the vocabulary."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        loss_parallel,
        parallelize_module,
    )

    for block in model.blocks:
        attention = block.attention
        assert isinstance(attention, Attention)
        attention.share = ranks = mesh.size()
        own = attention.model
        _dealt(attention.qkv, (own.attention_width, own.kv_width, own.kv_width), ranks)
        if own.gated:
            assert isinstance(block.mlp, FeedForward)
            _dealt(block.mlp.up, (own.ffn_hidden, own.ffn_hidden), ranks)
        layout = {
            "attention.qkv": ColwiseParallel(),
            "attention.out": RowwiseParallel(),
            "mlp.up": ColwiseParallel(),
            "mlp.down": RowwiseParallel(),
        }
        parallelize_module(block, mesh, layout)
    ends = {
        "embedding": RowwiseParallel(input_layouts=Replicate()),
        "head": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False),
    }
    parallelize_module(model, mesh, ends)
    return model, loss_parallel


WRAPPERS: dict[str, Callable[[Transformer, DeviceMesh], tuple[nn.Module, Around]]] = {
    "dp": _replicated,
    "fsdp": _sharded,
    "tp": _split,
}


def layouts(ranks: int) -> list[Layout]:
    """The ways to share a step among ranks."""
    return [
        Layout("dp", dp=ranks),
        Layout("fsdp", dp=ranks, sharding="fsdp"),
        Layout("tp", tp=ranks),
    ]


def _possible(check: Check, layout: Layout) -> bool:
    """Whether a model can be divided so: heads and widths evenly, weights of its own for the
    output projection, no experts (whose loop is not laid out)."""
    model = check.model
    if layout.tp == 1:
        return True
    even = not any(n % layout.tp for n in (model.heads, model.kv_heads, model.ffn_hidden))
    return even and not model.num_experts and not model.tied_embeddings


def even_checks(device: Device) -> list[Check]:
    """The checks in the device's first data type, and one that small numbers of ranks divide."""
    found = [c for c in checks(device) if c.precision == device.dtypes[0]]
    scale = found[0].model.hidden // 640
    even = replace(
        found[1].model, name="check-even", layers=3, hidden=896 * scale, heads=14 * scale,
        kv_heads=14 * scale, ffn_hidden=2432 * scale, vocab=6144,
    )  # fmt: skip
    return [found[0], Check(even, 160 * scale, 2, found[0].precision), *found[1:3]]


def parallel_step(check: Check, layout: Layout, member: Member) -> OneStep:
    """A step of this rank in a layout."""
    mesh = init_device_mesh(member.device.kind, (member.ranks,))
    return laid_out(check, member.device, layout.kind, mesh)


def laid_out(check: Check, device: Device, kind: str, mesh: DeviceMesh) -> OneStep:
    """A step in one of the `WRAPPERS` over the ranks of a mesh."""
    module, around = WRAPPERS[kind](module_of(check, device), mesh)
    step = step_of(check, device, module)

    def divided() -> None:
        with around():
            step()

    return divided


def _slowest(samples: list[Sample], member: Member) -> list[Sample]:
    """The same steps, with what the rank waited that waited most: all wait for it."""
    own = [sample.waited for sample in samples]
    waited = torch.tensor(own, dtype=torch.float64, device=member.place)
    dist.all_reduce(waited, dist.ReduceOp.MAX)
    both = zip(samples, waited.tolist(), strict=True)
    return [Sample(sample.seconds, longest) for sample, longest in both]


def steps(member: Member, budget: Allowance, trace: str | None = None) -> list[dict[str, Any]]:
    """Time steps in every layout until the budget is spent; the first of each in any
    case, in its shortest form where nothing is left.

    trace   file to write a trace of the first data-parallel step of rank 0 to
    """
    chosen = [
        (number, check, layout)
        for number, check in enumerate(even_checks(member.device))
        for layout in layouts(member.ranks)
        if _possible(check, layout)
    ]
    seen: set[str] = set()
    rows = []
    for position, (_, check, layout) in enumerate(chosen):
        # Every rank must take the same steps, if any: rank 0 decides.
        left = member.agree(budget.left)
        if layout.kind in seen and left <= 0:
            continue
        check = check.within(left)
        begin = time.perf_counter()
        step = parallel_step(check, layout, member)
        step()
        share = budget.left / (len(chosen) - position)
        fit = member.agree(share / (time.perf_counter() - begin) - WARM_UP_STEPS)
        if layout.kind in seen and fit < LEAST_STEPS:
            continue
        seen.add(layout.kind)
        count = int(np.clip(fit, LEAST_STEPS, MOST_STEPS))
        samples = _slowest(time_step(step, member.device, 0.0, count), member)
        if member.rank == 0:
            rows.append(row(check, samples, member.device, layout))
        if trace and position == 0:
            if member.rank == 0:
                record(step, member.device, Path(trace))
            else:
                for _ in range(RECORDED):
                    step()
        dist.barrier()
    return rows

"""Profiles in little, and what processes of several ranks run in tests.

The code is that of any profile; messages, models and passes are as short as the laws that tests
look at allow. Ranks know nothing of what was patched where they were started, and import this file
alone.
"""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist

from predictor.models.model import Model
from profiler import collectives, device, dispatch, parallel, ranks, serving, step, suite
from profiler.collectives import Member
from reckon.console.cli import main
from reckon.verbs import profiling

TOLD = suite.Measured(2e-3, 1.9e-3, 2.1e-3, 5)
"""What a kernel takes where no test looks at it."""

CACHE = 8e6
"""Bytes, as where a host does not tell: data twice as large is made of each type, and some hosts
tell hundreds of megabytes."""

WITHIN = step.Check.within


def within(check: step.Check, seconds: float) -> step.Check:
    """A step in its shortest form, over few words."""
    least = WITHIN(check, 0.0)
    return replace(least, model=replace(least.model, vocab=512))


SHORT: tuple[tuple[Any, str, Any], ...] = (
    (device, "_last_level_cache", lambda: CACHE),
    (suite, "COPY_BYTES", suite.COPY_BYTES[:-6]),
    (dispatch, "PASSES", 1),
    (dispatch, "LAYERS", 2),
    (dispatch, "DECODED", 4),
    (serving, "SHAPES", ((1, 48), (2, 24))),
    (serving, "DECODED", 4),
    (collectives, "SIZES", collectives.SIZES[:4]),
    (collectives, "OVERLAP_SIZES", (2.0**20,)),
    (collectives, "STRETCHES", (4e-3, 2e-3)),
    (collectives, "TIMES", 8),
    (step.Check, "within", within),
)
"""Module, name and value of what is less than outside tests."""


def shorten() -> None:
    """For good, in a process that does nothing else."""
    for module, name, value in SHORT:
        setattr(module, name, value)


def rank(*arguments: Any) -> None:
    """In place of the body of a rank's process, which knows nothing of what its parent patched."""
    shorten()
    WHOLE_RANK(*arguments)


WHOLE_RANK = ranks._rank


def commanded(arguments: list[str]) -> int:
    """The command line, for a second at least instead of five."""
    shorten()
    profiling.LEAST_BUDGET = 1.0
    return main(arguments)


def killed(out: str, after: int) -> None:
    """A profile whose process is killed when it is to time one kernel more than so many."""
    calls = []

    def timed(*arguments: object, **more: object) -> suite.Measured:
        calls.append(1)
        if len(calls) > after:
            os.kill(os.getpid(), signal.SIGKILL)
        return TOLD

    shorten()
    suite.measure, profiling.HOST_SHARE = timed, 1e-3  # type: ignore[assignment]
    profiling.profile(out, "cpu", 600.0, threads=1, quiet=True)


LLAMA = Model(
    name="llama", layers=2, hidden=128, heads=4, kv_heads=2, head_dim=32, ffn_hidden=192, vocab=512
)


def joined(rank: int, port: int, ranks: int) -> Member:
    """This process as one of several that communicate by gloo."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    return Member(device.find("cpu", 1, ranks), rank, ranks, ranks // 2, "gloo")


def left(rank: int, found: object, results: Any) -> None:
    """The first tells what was found; all end together."""
    if rank == 0:
        results.put(found)
    dist.barrier()
    dist.destroy_process_group()


def losses(rank: int, port: int, results: Any) -> None:
    """The loss after three steps in every layout, and of one process alone."""
    member = joined(rank, port, 2)
    check = step.Check(LLAMA, 16, 2, "fp32")
    found = {}
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (2,))
    torch.manual_seed(1)
    tokens, target = torch.randint(LLAMA.vocab, (2, 2, 16))
    for layout in [step.ALONE, *parallel.layouts(2)]:
        module, around = step.module_of(check, member.device), parallel.nullcontext
        if layout.kind != "single":
            module, around = parallel.WRAPPERS[layout.kind](module, mesh)
        with around():
            loss = module(tokens, target)
            loss.backward()
            found[layout.kind] = float(loss.item())
        parallel.parallel_step(check, layout, member)() if layout.kind != "single" else None
    left(rank, found, results)


def groups(rank: int, port: int, results: Any) -> None:
    """Collectives of four ranks of two hosts, of which only the smallest are within the budget."""
    member = joined(rank, port, 4)
    left(rank, collectives.sweep(member, suite.Allowance(-1.0)), results)


def exchange(rank: int, port: int, results: Any) -> None:
    """What each of two ranks gets of known numbers."""
    joined(rank, port, 2)
    sent = [torch.arange(2) + 2 * other + 10 * rank for other in range(2)]
    got = [torch.empty(2, dtype=torch.int64) for _ in range(2)]
    collectives._exchange(got, sent, collectives.Ring(None, rank, 2, 0), [0, 1])
    every: list[object] = [None, None]
    dist.all_gather_object(every, [x.tolist() for x in got])
    left(rank, every, results)


def nothing(rank: int, results: object) -> None:
    """A rank that ends without a result."""

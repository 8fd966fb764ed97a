"""`reckon profile`: measure this machine within a time budget and write what was found."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from predictor.errors import InputError
from predictor.files import prepare_folder

if TYPE_CHECKING:
    import pandas as pd

STEP_SHARE = 0.25
RANK_SHARE = 0.4
"""Parts of the budget for training steps and for what several ranks measure together."""

LEAST_BUDGET = 5.0
LEAST_RANK_BUDGET = 25.0
"""Seconds below which a profile, one with several ranks, has no time to measure anything."""


@dataclass(frozen=True, slots=True)
class Profile:
    """What a profile wrote: its folder, the kernel and step tables, seconds spent, and what kept
    it from measuring everything."""

    out: Path
    kernels: pd.DataFrame
    steps: list[dict[str, Any]]
    seconds: float
    problems: tuple[str, ...]


def seconds_of(text: str) -> float:
    """'120s', '2m', '90' -> seconds.

    Raises InputError for anything else and for less than `LEAST_BUDGET`.
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(s|sec|m|min)?\s*", text)
    if not found:
        raise InputError(f"--budget {text!r}: write seconds or minutes, e.g. 120s or 2m")
    seconds = float(found.group(1)) * (60.0 if (found.group(2) or "s").startswith("m") else 1.0)
    if seconds < LEAST_BUDGET:
        raise InputError(f"--budget {text}: at least {LEAST_BUDGET:g}s are needed")
    return seconds


def _torch() -> None:
    try:
        import torch  # noqa: F401
    except ImportError:
        raise InputError("profiling needs PyTorch: pip install 'reckon[profile]'") from None


def profile(
    out: str | Path,
    device: str = "auto",
    budget: str | float = "120s",
    ranks: int = 1,
    threads: int | None = None,
    quiet: bool = False,
) -> Profile:
    """Measure kernels, memory, training steps and, with several ranks, collectives.

    out      folder for kernels.parquet, steps.csv and device.yaml
    device   'auto', 'cpu', 'cuda' or 'cuda:N'
    budget   seconds, or text such as '120s'
    ranks    processes that measure together over gloo; 1 for none

    Raises InputError for a missing PyTorch, an unknown device or an impossible number of ranks.
    """
    _torch()
    import time

    import torch

    from profiler import collectives, output, step, suite
    from profiler.device import cores, find

    seconds = budget if isinstance(budget, float) else seconds_of(str(budget))
    if ranks < 1 or ranks > max(cores(), 1):
        raise InputError(f"--ranks {ranks}: needs 1 to {cores()}, the cores of this machine")
    if ranks > 1 and seconds < LEAST_RANK_BUDGET:
        raise InputError(f"--ranks {ranks} needs a --budget of at least {LEAST_RANK_BUDGET:g}s")
    found = find(device, threads)
    prepare_folder(Path(out))
    torch.set_num_threads(found.threads)
    begin = time.perf_counter()
    alone = (1.0 - RANK_SHARE) * seconds if ranks > 1 else seconds
    kernels: list[dict[str, Any]] = []
    steps: list[dict[str, Any]] = []
    devices = [found]
    problems: list[str] = []
    with _progress(seconds, quiet) as tell:
        try:
            tell("memory")
            for row in suite.copies(found, suite.Budget(0.1 * alone)):
                kernels.append(row)  # one by one: an interrupt keeps those measured before it
            work = (1.0 - STEP_SHARE) * alone - (time.perf_counter() - begin)
            for row in suite.run(found, suite.Budget(work), tell):
                kernels.append(row)
            chosen = step.checks(found)
            left = suite.Budget(begin + alone - time.perf_counter())
            for position, check in enumerate(chosen):
                if steps and left.left <= 0:
                    break
                tell(f"step of {check.model.name}")
                call = step.step_of(check, found, lambda module: module)
                samples = step.time_step(call, found, left.left / (len(chosen) - position))
                steps.append(step.row(check, samples, found, 1))
            if ranks > 1:
                tell(f"{ranks} ranks")
                shared = find("cpu", threads, ranks)
                results = collectives.run(shared, begin + seconds - time.perf_counter())
                kernels += results.kernels
                steps += results.steps
                devices.append(shared)
        except KeyboardInterrupt:
            problems.append("interrupted; wrote what had been measured")
        except ChildProcessError as error:
            problems.append(f"{error}; wrote what had been measured without it")
    if not kernels:
        raise InputError("nothing was measured; give a larger --budget")
    measured = {row["accelerator"] for row in kernels}
    table = output.write(Path(out), kernels, steps, [d for d in devices if d.name in measured])
    return Profile(Path(out), table, steps, time.perf_counter() - begin, tuple(problems))


class _progress:
    """A bar over the time budget on stderr; `with` gives a function that takes what is going on."""

    def __init__(self, seconds: float, quiet: bool) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        console = Console(stderr=True)
        self.bar = Progress(
            TextColumn("profiling"),
            BarColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.description}"),
            console=console,
            transient=True,
            disable=quiet or not console.is_terminal,
        )
        self.seconds = seconds

    def __enter__(self) -> Callable[[str], None]:
        import time

        self.bar.start()
        task = self.bar.add_task("", total=self.seconds)
        begin = time.perf_counter()

        def tell(text: str) -> None:
            self.bar.update(task, completed=time.perf_counter() - begin, description=text)

        return tell

    def __exit__(self, *error: object) -> None:
        self.bar.stop()


def report(found: Profile) -> None:
    """Print what was measured."""
    from reckon.terminal import grid

    counts = found.kernels.groupby(["accelerator", "op"], observed=True).size()
    rows = [[str(part) for part in row] for row in counts.reset_index().to_numpy()]
    print(grid(["device", "operator", "rows"], rows, left=2))
    if found.steps:
        print()
        rows = [
            [str(s["point_id"]), f"{s['step_time_s'] * 1e3:.1f} ms", str(s["steps"])]
            for s in found.steps
        ]
        print(grid(["training step (a check, never fitted)", "median", "steps"], rows))
    for problem in found.problems:
        print(f"reckon: {problem}", file=sys.stderr)
    print(f"\nwrote {found.out}/ in {found.seconds:.0f} s")

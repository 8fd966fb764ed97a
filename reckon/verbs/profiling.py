"""`reckon profile`: measure this machine within a time budget and write what was found."""

from __future__ import annotations

import re
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from predictor.errors import InputError, unknown
from predictor.files import prepare_folder
from predictor.records import dataclass

if TYPE_CHECKING:
    import pandas as pd

    from predictor.models import Model
    from profiler.device import Device
    from profiler.journal import Tables

STEP_SHARE = 0.25
SERVING_SHARE = 0.08
HOST_SHARE = 0.03
RANK_SHARE = 0.4
POWER_SHARE = 0.1
"""Parts of the budget for training steps, for passes of serving, for the host time of operators,
for what several ranks measure together, and (beyond the others) for power."""

MOST_NOISY = 0.2
"""Share of disturbed measurements from which a profile says so."""

LEAST_BUDGET = 5.0
LEAST_RANK_BUDGET = 25.0
"""Seconds below which a profile, one with several ranks, has no time to measure anything."""


@dataclass(frozen=True, slots=True)
class Profile:
    """What a profile wrote: its folder, the tables of kernels (None on ranks that wrote nothing),
    steps and serving passes, seconds spent, what kept it from measuring everything, power of
    kernels that ran for seconds, and what tells it, or why nothing does."""

    out: Path
    kernels: pd.DataFrame | None
    steps: list[dict[str, Any]]
    passes: list[dict[str, Any]]
    seconds: float
    problems: tuple[str, ...]
    power: tuple[dict[str, Any], ...] = ()
    sensor: str = ""


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
    *,
    threads: int | None = None,
    quiet: bool = False,
    models: Sequence[str] = (),
    modes: Sequence[str] = ("eager",),
    backend: str = "gloo",
    resume: bool = False,
    trace: str | Path | None = None,
) -> Profile:
    """Measure kernels, memory, training steps and, with several ranks, collectives.

    out      folder for kernels.parquet, steps.csv and device.yaml
    device   'auto', 'cpu', 'cuda', 'cuda:N', 'rocm' or 'mps'
    budget   seconds, or text such as '120s'
    ranks    processes that measure together; 1 for none. Under torchrun its ranks do, on all hosts
    models   whose kernels to time; a ladder of widths unless named
    modes    how kernels are launched: 'eager', 'compiled', 'graph'
    backend  of the collectives: 'gloo' or 'nccl'
    resume   keep what the folder holds of this device, and measure what is not there
    trace    file to write a trace of PyTorch's profiler of the first step to

    Raises InputError for a missing PyTorch, an unknown device or an impossible number of ranks.
    """
    _torch()
    from profiler import ranks as together
    from profiler.cases import named_models
    from profiler.device import find

    seconds = budget if isinstance(budget, float) else seconds_of(str(budget))
    chosen = named_models(models)
    if (job := together.torchrun()) is not None and job.ranks > 1:
        return _joined(Path(out), device, seconds, threads, backend, job)
    found = find(device, threads)
    _check(found, seconds, ranks, backend, modes, trace)
    prepare_folder(Path(out))
    begin = time.perf_counter()
    devices = [found] if ranks == 1 else [found, find(device, threads, ranks)]
    tables = _before(Path(out), resume, {one.name for one in devices[1:]})
    problems: list[str] = []
    with _progress(seconds, quiet) as tell, _termination(), _journal(tables, Path(out)):
        with _ended(problems):
            alone = (1.0 - RANK_SHARE) * seconds if ranks > 1 else seconds
            _measure(found, alone, tables, chosen, modes, trace, tell)
            if ranks > 1:
                tell(f"{ranks} ranks")
                results = together.run(devices[1], begin + seconds - time.perf_counter(), backend)
                tables.keep("kernels", results.kernels)
                tables.keep("steps", results.steps)
        table = _written(Path(out), tables, devices)
    problems += _disturbed(table, [*tables.steps, *tables.passes])
    return Profile(
        out=Path(out), kernels=table, steps=tables.steps, passes=tables.passes,
        seconds=time.perf_counter() - begin, problems=tuple(problems), power=tuple(tables.power),
        sensor=str(found.facts.get("power", "")),
    )  # fmt: skip


def _check(
    device: Device,
    seconds: float,
    ranks: int,
    backend: str,
    modes: Sequence[str],
    trace: str | Path | None,
) -> None:
    """Raise InputError for what this device cannot do, or not in so few seconds."""
    from profiler import ranks as together
    from profiler import suite

    if odd := next((mode for mode in modes if mode not in suite.MODES), None):
        raise unknown("mode", odd, suite.MODES)
    together.check_ranks(device, ranks)
    if ranks > 1 and seconds < LEAST_RANK_BUDGET:
        raise InputError(f"--ranks {ranks} needs a --budget of at least {LEAST_RANK_BUDGET:g}s")
    if trace is not None and not str(trace).endswith((".json", ".json.gz")):
        raise InputError(f"--trace {trace}: expected a .json or .json.gz file")
    together.check_backend(backend, device)


@contextmanager
def _ended(problems: list[str]) -> Iterator[None]:
    """What ends the measuring early is a problem of what is written, no more."""
    try:
        yield
    except KeyboardInterrupt:
        problems.append("interrupted; wrote what had been measured")
    except ChildProcessError as error:
        problems.append(f"{error}; wrote what had been measured without it")


def _written(out: Path, tables: Tables, devices: Sequence[Device]) -> pd.DataFrame:
    """Write what was measured of the devices that were; the table of kernels."""
    from profiler import output

    if not tables.kernels:
        raise InputError("nothing was measured; give a larger --budget")
    measured = {row["accelerator"] for row in tables.kernels}
    own = [one for one in devices if one.name in measured]
    tables.steps, tables.passes = _latest(tables.steps), _latest(tables.passes)
    return output.write(out, tables.kernels, tables.steps, own, tables.passes, tables.power)


@contextmanager
def _termination() -> Iterator[None]:
    """A request to end (SIGTERM, of a scheduler or `timeout`) interrupts as the keyboard does."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _disturbed(table: pd.DataFrame, checks: list[dict[str, Any]]) -> list[str]:
    """What to say of measurements, steps and passes that something else disturbed."""
    from profiler.timing import noisy

    problems = []
    watched = table[table["waited"].notna()]
    spread = watched["latency_p90_us"] / watched["latency_p10_us"]
    disturbed = int(noisy(spread.to_numpy(), watched["waited"].to_numpy()).sum())
    if disturbed > MOST_NOISY * len(table):
        problems.append(
            f"{disturbed} of {len(table)} measurements were disturbed (p90 over p10 beyond 1.25): "
            "something else runs here; profile again on a quiet machine"
        )
    waited = sum(row["waited"] > 0 for row in checks)
    if waited:
        problems.append(
            f"{waited} of {len(checks)} steps and passes were disturbed: their threads waited for "
            "processors that others used; that is taken out of their times, as far as it is known"
        )
    return problems


@contextmanager
def _journal(tables: Tables, out: Path) -> Iterator[None]:
    """Rows are written down as they are measured, until the tables have been written."""
    tables.open(out)
    written = False
    try:
        yield
        written = True
    finally:
        tables.close(out, written)


def _latest(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each point once, as it was measured last."""
    return list({row["point_id"]: row for row in rows}.values())


def _before(out: Path, resume: bool, again: Collection[str]) -> Tables:
    """What a profile starts from: nothing, or what the folder and its journal hold of the devices
    that are not measured `again` as a whole.

    Raises InputError where a killed profile left rows that a new one would lose.
    """
    from profiler import journal, suite

    found = journal.left(out)
    count = len(found.kernels) + len(found.steps) + len(found.passes)
    if not resume:
        if count:
            raise InputError(
                f"{out} holds {count} measurements of a profile that was killed: --resume goes on "
                f"from them; remove {out / journal.NAME} to begin anew"
            )
        return journal.Tables()
    rows = {(row["accelerator"], *suite.identity(row)): row for row in found.kernels}
    written = {(row["accelerator"], *suite.identity(row)): row for row in _measured(out)}
    kernels = [row for row in {**rows, **written}.values() if row["accelerator"] not in again]
    steps = [row for row in found.steps if row["accelerator"] not in again]
    power = [row for row in found.power if row["accelerator"] not in again]
    return journal.Tables(kernels, steps, found.passes, power)


def _measure(
    device: Device,
    seconds: float,
    tables: Tables,
    models: Sequence[Model],
    modes: Sequence[str],
    trace: str | Path | None,
    tell: Callable[[str], None],
) -> None:
    """What one process measures in `seconds`; rows are added one by one, so that an interrupt
    keeps those before it."""
    from profiler import dispatch, serving, step, suite
    from profiler.trace import record

    device.activate()
    whole = suite.Allowance(seconds)
    device.facts["conditions_before"] = device.conditions()
    tell("memory")
    if not any(row["op"] == "memcpy" for row in _of(tables.kernels, device)):
        tables.keep("kernels", suite.copies(device, suite.Allowance(0.1 * seconds)))
    tell("host")
    if not any(row["op"] == "dispatch" for row in _of(tables.kernels, device)):
        host = suite.Allowance(HOST_SHARE * seconds)
        tables.keep("kernels", dispatch.host_times(device, host))
    kernels = suite.Allowance(whole.left - (STEP_SHARE + SERVING_SHARE) * seconds)
    known = _of(tables.kernels, device)
    timed = suite.run(device, kernels, known, tell, models=models, modes=modes)
    tables.keep("kernels", timed)
    tell("serving")
    tables.keep("passes", serving.passes(device, SERVING_SHARE * seconds))
    chosen = step.kinds(device)
    for position, (check, layout, make) in enumerate(chosen):
        if tables.steps and whole.left <= 0:
            break
        tell(f"step of {check.model.name}")
        check = check.within(whole.left)
        call = step.step_of(check, device, make(check, device))
        samples = step.time_step(call, device, whole.left / (len(chosen) - position))
        tables.keep("steps", [step.row(check, samples, device, layout)])
        if trace is not None and position == 0:
            record(call, device, Path(trace))
    _power(device, tables, max(whole.left, POWER_SHARE * seconds), seconds, tell)
    device.facts["conditions_after"] = device.conditions()


def _power(
    device: Device, tables: Tables, left: float, budget: float, tell: Callable[[str], None]
) -> None:
    """Power of kernels that run for seconds, where the device tells it and the budget has room."""
    from profiler import sensors, suite

    told = sensors.sensor(device)
    if told is None:
        device.facts["power"] = "not told: no NVML, ROCm SMI or RAPL that may be read"
        return
    device.facts["power"] = told.source
    if told.limit is not None:
        device.facts["power_limit_w"] = told.limit
    if _of(tables.power, device):
        return  # by the profile that goes on
    if POWER_SHARE * budget < sensors.LEAST:
        device.facts["power"] += f": needs a budget of {sensors.LEAST / POWER_SHARE:.0f} s"
        return
    tell("power")
    tables.keep("power", sensors.points(device, told, suite.heavy(device), left))


def _of(rows: list[dict[str, Any]], device: Device) -> list[dict[str, Any]]:
    """Rows of one device."""
    return [row for row in rows if row["accelerator"] == device.name]


def _measured(out: Path) -> list[dict[str, Any]]:
    """Rows of a profile that was interrupted, or whose budget was short; none if there is none."""
    from calibration.sources.reading import read_table
    from calibration.tables.kernel_table import check_kernels

    path = out / "kernels.parquet"
    if not path.is_file():
        return []
    table = read_table(path)
    check_kernels(table, str(path))
    return [{str(k): v for k, v in row.items()} for row in table.to_dict("records")]


def _joined(
    out: Path, device: str, seconds: float, threads: int | None, backend: str, job: Any
) -> Profile:
    """What one rank of a job that torchrun started measures; the first one writes it."""
    from profiler import output, ranks
    from profiler.device import find

    begin = time.perf_counter()
    found = find(device, threads, job.local_ranks, job.local_rank)
    if job.rank == 0:
        prepare_folder(out)
    results = ranks.join(found, seconds, job, backend)
    if job.rank:
        return Profile(out, None, [], [], time.perf_counter() - begin, ())
    table = output.write(out, results.kernels, results.steps, [found], [])
    return Profile(out, table, results.steps, [], time.perf_counter() - begin, ())


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
        self.bar.start()
        task = self.bar.add_task("", total=self.seconds)
        begin = time.perf_counter()

        def tell(text: str) -> None:
            self.bar.update(task, completed=time.perf_counter() - begin, description=text)

        return tell

    def __exit__(self, *error: object) -> None:
        self.bar.stop()

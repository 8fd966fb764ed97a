"""What a device draws while a kernel runs for seconds: NVML, ROCm SMI, or RAPL of a host.

Sensors average over up to a second (NVML from Ampere on, but for GA100) and sample a part of the
time only (arXiv 2312.02741): a point lasts `LEAST` at least. Where a counter of energy is told, its
difference over the time is the mean; else readings are averaged.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from profiler.device import Device

LEAST = 2.0
"""Seconds of a point."""

READ_EVERY = 0.05
"""Seconds between readings, as the host waits for the device."""

RAPL = Path("/sys/class/powercap")
"""Where the kernel shows the energy of packages (a right to read it is needed)."""


@dataclass(frozen=True, slots=True)
class Sensor:
    """What tells the power of a device.

    source  what it is, for the table
    joules  energy since some moment [J]; None where there is no counter
    watts   power now [W]; None where there is none
    limit   that the device holds itself to [W]; None where it does not say
    """

    source: str
    joules: Callable[[], float] | None = None
    watts: Callable[[], float] | None = None
    limit: float | None = None


def _rapl() -> Sensor | None:
    """Energy of all packages of this host."""
    zones = sorted(RAPL.glob("*-rapl:?")) + sorted(RAPL.glob("*-rapl:??"))
    counters = []
    for zone in zones:
        with suppress(OSError, ValueError):
            span = float((zone / "max_energy_range_uj").read_text(encoding="ascii"))
            float((zone / "energy_uj").read_text(encoding="ascii"))
            counters.append((zone / "energy_uj", span))
    if not counters:
        return None
    last = [float(path.read_text(encoding="ascii")) for path, _ in counters]
    total = 0.0

    def joules() -> float:
        nonlocal total
        for number, (path, span) in enumerate(counters):
            now = float(path.read_text(encoding="ascii"))
            total += ((now - last[number]) % (span + 1.0)) * 1e-6  # counters begin anew
            last[number] = now
        return total

    return Sensor("rapl", joules=joules)


def _nvml(device: Device) -> Sensor | None:
    """The energy counter of an NVIDIA GPU, by `nvidia-ml-py` where that is installed."""
    try:
        import pynvml

        pynvml.nvmlInit()
        index = int(device.torch.partition(":")[2] or 0)
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    except Exception:  # no library, no driver, no counter (before Volta)
        return None

    limit = None
    with suppress(Exception):  # boards whose driver does not say
        limit = float(pynvml.nvmlDeviceGetEnforcedPowerLimit(handle)) * 1e-3

    def joules() -> float:
        return float(pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)) * 1e-3

    return Sensor("nvml", joules=joules, limit=limit)


def sensor(device: Device) -> Sensor | None:
    """What tells the power of a device; None where nothing does."""
    if not device.on_gpu:
        return _rapl()
    if found := _nvml(device):
        return found
    if "power_w" in device.conditions():  # NVML or ROCm SMI through PyTorch
        return Sensor("smi", watts=lambda: device.conditions()["power_w"])
    return None


def sustained(
    call: Callable[[], object], device: Device, told: Sensor, seconds: float = LEAST
) -> dict[str, float]:
    """Run a call over and over for some seconds: mean power [W], time of a call [s], temperature
    and clock at the end where they are told, seconds that it took."""
    call()
    device.synchronize()
    begin = time.perf_counter()
    call()
    device.synchronize()
    # As many as last a reading: the host must not run ahead of what is measured.
    together = max(round(READ_EVERY / max(time.perf_counter() - begin, 1e-6)), 1)
    readings = []
    begin = time.perf_counter()
    before = told.joules() if told.joules else 0.0
    calls = 0
    while time.perf_counter() - begin < seconds:
        for _ in range(together):
            call()
        calls += together
        device.synchronize()
        if told.watts:
            readings.append(told.watts())
    spent = time.perf_counter() - begin
    watts = (
        (told.joules() - before) / spent if told.joules else sum(readings) / max(len(readings), 1)
    )
    state = device.conditions()
    wanted = ("temperature_c", "clock_mhz")
    kept: dict[str, float] = {name: state[name] for name in wanted if name in state}
    return {"avg_power_w": watts, "call_s": spent / calls, "steady_s": spent, **kept}


def points(
    device: Device,
    told: Sensor,
    work: Iterable[tuple[dict[str, Any], Callable[[], object]]],
    seconds: float,
) -> Iterator[dict[str, Any]]:
    """A row of power for each piece of work, the first in any case, the others while the time
    lasts.

    work   what it is (columns of the row), and a call of it
    """
    until = time.perf_counter() + seconds
    for about, call in work:
        found = sustained(call, device, told)
        yield {"source": "profile", "accelerator": device.name, "sensor": told.source, **about,
               **found}  # fmt: skip
        if time.perf_counter() + LEAST > until:
            return

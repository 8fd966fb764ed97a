"""Sensors: counters are differenced over what ran, and begin anew; nothing told is nothing said."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest

torch = pytest.importorskip("torch")

from profiler import output, sensors, suite  # noqa: E402
from profiler.device import Device, find  # noqa: E402
from profiler.journal import Tables  # noqa: E402
from profiler.operators import NARROW  # noqa: E402
from reckon.verbs import profiling  # noqa: E402


def host(folder: Path, start: float, span: float) -> Path:
    zone = folder / "intel-rapl:0"
    zone.mkdir()
    (zone / "max_energy_range_uj").write_text(f"{span:.0f}\n")
    (zone / "energy_uj").write_text(f"{start:.0f}\n")
    return zone / "energy_uj"


def test_a_host_tells_the_energy_of_its_packages_across_the_end_of_the_counter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call takes 10 ms and adds a joule: 100 W, though the counter ends on the way."""
    monkeypatch.setattr(sensors, "RAPL", tmp_path)
    monkeypatch.setattr(sensors.sustained, "__defaults__", (sensors.LEAST / 4,))
    device = find("cpu")
    assert sensors.sensor(device) is None
    span = 1e9
    counter = host(tmp_path, span - 5e6, span)
    told = sensors.sensor(device)
    assert told is not None
    assert told.source == "rapl"
    spent = 0.0

    def call() -> None:
        nonlocal spent
        begin = time.perf_counter()
        now = (float(counter.read_text()) + 1e6) % (span + 1)
        counter.write_text(f"{now:.0f}\n")
        time.sleep(0.01)
        spent += time.perf_counter() - begin

    rows = list(sensors.points(device, told, [({"op": "gemm"}, call)] * 3, 0.0))
    assert len(rows) == 1  # the first in any case
    row = rows[0]
    assert row["steady_s"] >= sensors.LEAST / 4
    assert row["avg_power_w"] == pytest.approx(1.0 / row["call_s"], rel=0.02)
    assert row["op"] == "gemm"


def test_nvml_counts_millijoules_and_its_absence_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Device("g", "cuda:1", 1, 1, {})
    counts = iter((0.0, 1000.0, 3500.0))
    nvml = SimpleNamespace(
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByIndex=lambda index: {1: "handle"}[index],
        nvmlDeviceGetTotalEnergyConsumption=lambda handle: next(counts),
        nvmlDeviceGetEnforcedPowerLimit=lambda handle: 650000,
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    told = sensors._nvml(gpu)
    assert told is not None
    assert told.joules is not None
    assert [told.joules(), told.joules()] == [1.0, 3.5]
    assert told.limit == 650.0
    del nvml.nvmlDeviceGetEnforcedPowerLimit
    counts = iter((0.0,))
    unlimited = sensors._nvml(gpu)
    assert unlimited is not None
    assert unlimited.limit is None

    def refused(handle: str) -> float:
        raise RuntimeError("not supported")

    nvml.nvmlDeviceGetTotalEnergyConsumption = refused
    assert sensors._nvml(gpu) is None
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert sensors._nvml(gpu) is None


def test_power_of_the_heaviest_work_is_written_beside_what_else_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device that draws 50 W whatever it does: at rest, in a product of its first data type, in a
    copy, and in a product of each other type, narrow ones first."""
    monkeypatch.setattr("profiler.device._last_level_cache", lambda: 8e6)
    device = find("cpu")
    device.facts["memory_gb"] = 2.0
    monkeypatch.setattr(suite, "HOST_FLOP", 1e9)  # the largest take seconds a call on a core
    steady = sensors.Sensor("fake", joules=lambda: 50.0 * time.perf_counter())
    monkeypatch.setattr(sensors, "sensor", lambda _: steady)
    monkeypatch.setattr(sensors, "LEAST", 0.1)
    monkeypatch.setattr(sensors.sustained, "__defaults__", (0.1,))
    tables, told = Tables(), []
    profiling._power(device, tables, 60.0, 60.0, told.append)
    assert told == ["power"]
    assert device.facts["power"] == "fake"
    assert [row["op"] for row in tables.power[:3]] == ["idle", "gemm", "memcpy"]
    products = [row["precision"] for row in tables.power if row["op"] == "gemm"]
    assert products[0] == device.dtypes[0]
    assert sorted(products) == sorted(device.dtypes)
    narrow = [dtype in NARROW for dtype in products[1:]]
    assert narrow == sorted(narrow, reverse=True)
    for row in tables.power:
        # The clock runs on between two readings, where others compute.
        assert row["avg_power_w"] == pytest.approx(50.0, rel=0.2)
        assert row["call_s"] <= row["steady_s"]
    copied = tables.power[2]["message_bytes"]
    assert copied <= 2 * 0.05 * float(device.facts["memory_gb"]) * 1e9
    output.write(tmp_path, [], [], [device], [], tables.power)
    written = pd.read_csv(tmp_path / "power.csv")
    assert list(written["op"]) == [row["op"] for row in tables.power]


def test_where_nothing_tells_power_one_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    device = find("cpu")
    monkeypatch.setattr(sensors, "sensor", lambda _: None)
    profiling._power(device, Tables(), 60.0, 60.0, lambda _: None)
    assert str(device.facts["power"]).startswith("not told")
    monkeypatch.setattr(sensors, "sensor", lambda _: sensors.Sensor("fake"))
    tables = Tables()
    profiling._power(device, tables, 5.0, 15.0, lambda _: None)
    assert tables.power == []
    assert "needs a budget of 20 s" in str(device.facts["power"])


def test_rocm_and_nvidia_without_a_library_are_read_through_pytorch() -> None:
    """Device.conditions tells watts: readings are averaged."""
    watts = iter([100.0, 200.0, 300.0, *[200.0] * 1000])
    gpu = SimpleNamespace(
        on_gpu=True, torch="cuda:0", synchronize=lambda: None,
        conditions=lambda: {"power_w": next(watts), "temperature_c": 61.0},
    )  # fmt: skip
    told = sensors.sensor(gpu)  # type: ignore[arg-type]
    assert told is not None
    assert told.source == "smi"
    found = sensors.sustained(lambda: time.sleep(0.01), gpu, told, 0.3)  # type: ignore[arg-type]
    assert found["avg_power_w"] == pytest.approx(200.0, rel=0.2)
    assert found["temperature_c"] == 61.0


def test_a_host_does_not_run_ahead_of_what_is_watched() -> None:
    """Calls that a queue takes at once and works off in 4 ms each: no more wait in it than last a
    reading, or a point of two seconds would take as long as its queue."""
    queue, longest = 0.0, 0.0

    def call() -> None:
        nonlocal queue, longest
        queue += 0.004
        longest = max(longest, queue)

    def synchronize() -> None:
        nonlocal queue
        time.sleep(queue)
        queue = 0.0

    gpu = SimpleNamespace(synchronize=synchronize, conditions=dict)
    told = sensors.Sensor("fake", joules=time.perf_counter)
    found = sensors.sustained(call, gpu, told, 0.2)  # type: ignore[arg-type]
    assert longest <= 2 * sensors.READ_EVERY
    assert found["steady_s"] <= 0.2 + 4 * sensors.READ_EVERY
    assert found["call_s"] == pytest.approx(0.004, rel=0.5)

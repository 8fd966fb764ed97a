"""How long a call takes: warm-up, synchronisation, medians and spread."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from profiler.device import Device

WARM_UP = 2
LEAST_SAMPLES = 5
MOST_SAMPLES = 60
SAMPLE_SECONDS = 200e-6
"""A sample repeats the call until it lasts this long, so that the clock's grain does not show."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of one call: median, tenth and ninetieth percentile, and the number of samples."""

    median: float
    p10: float
    p90: float
    samples: int


def _now(device: Device) -> float:
    if device.is_cuda:
        torch.cuda.synchronize(device.torch)
    return time.perf_counter()


def measure(calls: Sequence[Callable[[], object]], device: Device, budget: float) -> Timing:
    """Time calls that do the same work on different data, in turn.

    calls    one call keeps its data warm in the caches; several, larger than the cache together,
             find it cold
    budget   seconds to spend, roughly; at least `LEAST_SAMPLES` samples are taken
    """
    for call in (*calls, *calls)[: max(WARM_UP, len(calls))]:
        call()
    begin = _now(device)
    calls[0]()
    first = max(_now(device) - begin, 1e-7)
    repeats = max(1, round(SAMPLE_SECONDS / first))
    if device.is_cuda:
        return _measure_cuda(calls, device, budget, max(repeats, 3))
    samples: list[float] = []
    turn, end = 0, begin + budget
    while len(samples) < LEAST_SAMPLES or (
        time.perf_counter() < end and len(samples) < MOST_SAMPLES
    ):
        start = time.perf_counter()
        for _ in range(repeats):
            calls[turn % len(calls)]()
            turn += 1
        samples.append((time.perf_counter() - start) / repeats)
    return _summary(samples)


def _measure_cuda(
    calls: Sequence[Callable[[], object]], device: Device, budget: float, repeats: int
) -> Timing:
    """Time on the device's own clock, with events around groups of calls."""
    samples: list[float] = []
    turn, end = 0, time.perf_counter() + budget
    stream = torch.cuda.current_stream(device.torch)
    while len(samples) < LEAST_SAMPLES or (
        time.perf_counter() < end and len(samples) < MOST_SAMPLES
    ):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record(stream)
        for _ in range(repeats):
            calls[turn % len(calls)]()
            turn += 1
        stop.record(stream)
        stop.synchronize()
        samples.append(start.elapsed_time(stop) * 1e-3 / repeats)
    return _summary(samples)


def _summary(samples: list[float]) -> Timing:
    p10, median, p90 = np.quantile(samples, [0.1, 0.5, 0.9])
    return Timing(float(median), float(p10), float(p90), len(samples))

"""How long a call takes: warm-up, synchronisation, medians and spread."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from predictor.arrays import Mask, Numeric
from profiler.device import Device

WARM_UP = 2
LEAST_SAMPLES = 5
MOST_SAMPLES = 60
"""Calls that are not timed; samples at least, and at most."""
LEAST_REPEATS = 3
"""Calls of a sample on a GPU, whose events are not free."""

NOISY = 1.25
"""Spread from which a measurement counts as disturbed."""

CALM = 0.05
"""Share of a sample's time that its threads may wait for a processor which others use."""

PATIENCE = 2.0
"""Budgets, or times of the fewest samples, after which one takes what there is, calm or not."""

WARMED = 4
"""Calls with data of their own that are run before any is timed."""

SAMPLE_SECONDS = 200e-6
MOST_REPEATS = 64
"""A sample repeats the call until it lasts this long, so that the clock's grain does not show; on a
GPU so many times at most."""

AHEAD = 1.5
MOST_AHEAD = 5e-3
"""How long a GPU is kept busy before a sample, over what the host takes to launch it, and at most
[s]: calls then wait in the queue, and the device's clock shows kernels and no launches."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Seconds of one call: median, tenth and ninetieth percentile, and the number of samples;
    share of their time that threads waited for a processor."""

    median: float
    p10: float
    p90: float
    samples: int
    waited: float = 0.0

    @property
    def spread(self) -> float:
        """Ninetieth percentile over the tenth."""
        return self.p90 / self.p10

    @property
    def noisy(self) -> bool:
        """Whether something else disturbed it."""
        return bool(noisy(self.spread, self.waited))


def noisy(spread: Numeric, waited: Numeric) -> Mask:
    """Whether something else disturbed measurements of such spread, whose threads waited so much of
    their time."""
    return (np.asarray(spread) > NOISY) | (np.asarray(waited) > CALM)


class _WallClock:
    """Seconds between two points on the host, which runs the calls itself."""

    def start(self) -> None:
        self.begin = time.perf_counter()

    def stop(self) -> float:
        return time.perf_counter() - self.begin


class _EventClock:
    """Seconds between two events on the device's own clock, before which it is kept busy for
    `ahead` seconds."""

    def __init__(self, device: Device, ahead: float) -> None:
        self.device, self.ahead = device, ahead

    def start(self) -> None:
        self.begin, self.end = self.device.event(), self.device.event()
        if self.ahead:
            self.device.keep_busy(self.ahead)
        self.begin.record()

    def stop(self) -> float:
        self.end.record()
        self.end.synchronize()
        return float(self.begin.elapsed_time(self.end)) * 1e-3


@dataclass(frozen=True, slots=True)
class Sample:
    """Seconds that something took, and seconds that threads waited for a processor meanwhile."""

    seconds: float
    waited: float

    @property
    def calm(self) -> bool:
        """Whether nothing else kept it from running."""
        return self.waited <= CALM * self.seconds


def calmest(samples: Sequence[Sample], least: int) -> list[Sample]:
    """The calm ones, or the `least` calmest where there are fewer."""
    calm = [sample for sample in samples if sample.calm]
    if len(calm) >= least:
        return calm
    return sorted(samples, key=lambda sample: sample.waited / sample.seconds)[:least]


def waited_share(samples: Sequence[Sample]) -> float:
    """Share of the time of samples that their threads waited; 0 where all are calm."""
    if all(sample.calm for sample in samples):
        return 0.0
    return sum(sample.waited for sample in samples) / sum(sample.seconds for sample in samples)


def timed(call: Callable[[], object], device: Device) -> Sample:
    """Run a call once, from one idle moment of the device to the next."""
    device.synchronize()
    before, start = device.waited(), time.perf_counter()
    call()
    device.synchronize()
    spent = time.perf_counter() - start
    return Sample(spent, device.waited() - before)


def measure(
    calls: Sequence[Callable[[], object]], device: Device, budget: float, launched: bool = False
) -> Measured:
    """Time calls that do the same work on different data, in turn.

    calls    one call keeps its data warm in the caches; several, larger than the cache together,
             find it cold
    budget   seconds to spend, roughly; at least `LEAST_SAMPLES` samples are taken
    launched  with what a GPU waits for its host, which else launches ahead

    Samples in which threads waited for a processor (`Device.waited`) count only where there are too
    few others. What spreads more than `NOISY` by itself is measured a second time; the calmer
    result counts.
    """
    found = _measure(calls, device, budget, launched)
    if found.noisy and not found.waited:
        again = _measure(calls, device, budget, launched)
        found = min(found, again, key=lambda timing: (timing.waited > CALM, timing.spread))
    return found


def _measure(
    calls: Sequence[Callable[[], object]], device: Device, budget: float, launched: bool
) -> Measured:
    turn = max(WARM_UP, min(len(calls), WARMED))
    for number in range(turn):
        calls[number % len(calls)]()
    device.synchronize()
    begin = time.perf_counter()
    calls[turn % len(calls)]()
    device.synchronize()
    first = max(time.perf_counter() - begin, 1e-7)
    turn += 1
    clock: _WallClock | _EventClock = _WallClock()
    repeats = max(1, round(SAMPLE_SECONDS / first))
    if device.on_gpu:
        clock, repeats = _queued(calls, device, launched)
    samples: list[Sample] = []
    end, last = begin + budget, begin + PATIENCE * max(budget, LEAST_SAMPLES * first)

    def another() -> bool:
        now, calm = time.perf_counter(), sum(sample.calm for sample in samples)
        if calm < LEAST_SAMPLES:
            return len(samples) < LEAST_SAMPLES or now < last
        return now < end and calm < MOST_SAMPLES

    while another():
        before = device.waited()
        clock.start()
        for _ in range(repeats):
            calls[turn % len(calls)]()
            turn += 1
        spent = clock.stop()
        samples.append(Sample(spent, device.waited() - before))
    chosen = calmest(samples, LEAST_SAMPLES)
    return summary([sample.seconds / repeats for sample in chosen], waited_share(chosen))


def _queued(
    calls: Sequence[Callable[[], object]], device: Device, launched: bool
) -> tuple[_EventClock, int]:
    """The clock of a GPU for these calls, and how many of them make a sample: first of the fewest,
    then, as the device's own time of one is known, of as many as last long enough."""
    clock, repeats = _EventClock(device, 0.0), LEAST_REPEATS
    for _ in range(2):
        device.synchronize()
        clock.start()
        begin = time.perf_counter()
        for number in range(repeats):
            calls[number % len(calls)]()
        host = (time.perf_counter() - begin) / repeats
        each = max(clock.stop() / repeats, 1e-7)
        repeats = min(max(LEAST_REPEATS, round(SAMPLE_SECONDS / each)), MOST_REPEATS)
        ahead = 0.0 if launched else min(AHEAD * host * repeats, MOST_AHEAD)
        clock = _EventClock(device, ahead)
    return clock, repeats


def summary(samples: Sequence[float], waited: float) -> Measured:
    """Samples as a timing; `waited` is the share of their time that threads waited."""
    p10, median, p90 = np.quantile(samples, [0.1, 0.5, 0.9])
    return Measured(float(median), float(p10), float(p90), len(samples), waited)

"""A log that is being written: its new lines, whatever becomes of the file; and what its steps say
beside a prediction."""

from __future__ import annotations

import math
import os
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterator
from dataclasses import field
from pathlib import Path
from typing import IO, Any

import numpy as np

from predictor.records import dataclass
from reckon.logs.steps import LoggedStep, warm

RECENT = 10
"""Steps of which the median is what the job does now."""

DRIFT = 0.05
"""Change of that over the first steps that counts."""

SLOW = 1.2
"""Recent steps over all from which on a phase is slow."""

PATIENCE = 5.0
"""Predicted (or usual) steps without a new one from which on a job stalls; a minute at least."""

LEAST_WAIT = 60.0
"""That minute [s]."""

LATE = 2.0
"""Where a log tells every tenth or hundredth step, a job stalls after so many of its lines."""

FIRST_GAP, MOST_GAP = 10, 100
"""Steps to the second line that a log tells, while it has told one: as many as to the first, but
within these (torchtitan tells the first step and every tenth)."""


class Tail:
    """New lines of a file that grows, is not there yet, is cut off and written anew, or moves away
    and is made anew."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stream: IO[bytes] | None = None
        self._node: tuple[int, int] | None = None
        self._rest = b""

    def read(self) -> Iterator[tuple[str, str]]:
        """What is new: ('line', text), or ('truncated' | 'rotated', '') before the lines that
        follow it."""
        if self._stream is None and not self._open():
            return
        yield from self._lines()
        assert self._stream is not None
        try:
            there = self.path.stat()
        except OSError:
            return  # moved away; what comes in its place is read when it is there
        if (there.st_dev, there.st_ino) != self._node:
            self._stream.close()
            self._rest = b""
            if self._open():
                yield "rotated", ""
                yield from self._lines()
        elif there.st_size < self._stream.tell():
            self._stream.seek(0)
            self._rest = b""
            yield "truncated", ""
            yield from self._lines()

    def _open(self) -> bool:
        try:
            self._stream = self.path.open("rb")
        except OSError:
            self._stream = None
            return False
        found = os.fstat(self._stream.fileno())
        self._node = found.st_dev, found.st_ino
        return True

    def _lines(self) -> Iterator[tuple[str, str]]:
        assert self._stream is not None
        while piece := self._stream.read(1 << 16):
            text = (self._rest + piece).replace(b"\r\n", b"\n").replace(b"\r", b"\n")
            parts = text.split(b"\n")
            self._rest = parts.pop()[-(1 << 20) :]
            for part in parts:
                yield "line", part.decode("utf-8", "replace")

    def close(self) -> Iterator[tuple[str, str]]:
        """The last line, which nothing ends, and no more."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None
        if self._rest:
            yield "line", self._rest.decode("utf-8", "replace")
            self._rest = b""


@dataclass(frozen=True, slots=True)
class Expected:
    """What is expected of a job.

    step, low, high   time of a step [s]; NaN where nothing is predicted
    steps             that it takes in all; 0: not known
    price             of an hour of all accelerators; NaN: not known
    tokens, gpus      of a step, and accelerators, by which rates are times
    batch             sequences of a step
    """

    step: float = math.nan
    low: float = math.nan
    high: float = math.nan
    steps: int = 0
    price: float = math.nan
    tokens: float = math.nan
    gpus: float = math.nan
    batch: float = math.nan

    def seconds(self, step: LoggedStep) -> float:
        """Time of a step that a log tells, NaN where it tells none."""
        told = step.get("seconds")
        if told > 0:
            return told
        rates = (
            (self.tokens, step.get("tokens_per_s")),
            (self.tokens / self.gpus, step.get("tokens_per_s_per_gpu")),
            (self.batch, step.get("samples_per_s")),
            (1.0, step.get("batches_per_s")),
        )
        found = [work / rate for work, rate in rates if rate > 0 and math.isfinite(work)]
        return found[0] if found else math.nan


@dataclass(slots=True)
class Times:
    """Times of steps by their numbers; the median of those behind warming up is at hand however
    many they are.

    numbers, seconds   of the steps, in order of their numbers
    """

    numbers: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    _ranked: list[float] = field(default_factory=list)
    _warm: int = 0

    def add(self, number: int, seconds: float) -> None:
        """One more step, or one that is done again."""
        at = bisect_left(self.numbers, number)
        if at < len(self.numbers) and self.numbers[at] == number:
            before, self.seconds[at] = self.seconds[at], seconds
            if at >= self._warm:
                del self._ranked[bisect_left(self._ranked, before)]
                insort(self._ranked, seconds)
            return
        last = at == len(self.numbers)
        self.numbers.insert(at, number)
        self.seconds.insert(at, seconds)
        if last:
            insort(self._ranked, seconds)
        else:
            self._ranked = sorted(self.seconds[self._warm :])
        while self._warm < warm(len(self.numbers)):
            del self._ranked[bisect_left(self._ranked, self.seconds[self._warm])]
            self._warm += 1

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def last(self) -> int:
        """The highest number of a step; 0 where there is none."""
        return self.numbers[-1] if self.numbers else 0

    @property
    def counted(self) -> int:
        """How many steps stand behind those of warming up."""
        return len(self._ranked)

    @property
    def median(self) -> float:
        """What those take [s]; NaN while there is none."""
        ranked, half = self._ranked, len(self._ranked) // 2
        if not ranked:
            return math.nan
        return ranked[half] if len(ranked) % 2 else (ranked[half - 1] + ranked[half]) / 2.0

    @property
    def first(self) -> float:
        """What the first `RECENT` of those take [s]; NaN while there is none."""
        told = self.seconds[self._warm : self._warm + RECENT]
        return float(np.median(told)) if told else math.nan

    @property
    def gap(self) -> float:
        """Steps from one that the log tells to the next."""
        if len(self.numbers) < 2:
            return float(np.clip(self.last, FIRST_GAP, MOST_GAP)) if self.numbers else 1.0
        return float(np.median(np.diff(self.numbers[-2 * RECENT :])))

    @property
    def spent(self) -> float:
        """What all steps took [s]: each that is told stands for those before it that are not."""
        if not self.numbers:
            return 0.0
        first = min(max(self.numbers[0], 1), self.gap if len(self.numbers) > 1 else 1.0)
        stands = np.diff(self.numbers, prepend=self.numbers[0] - first)
        return float(stands @ np.array(self.seconds))


@dataclass(slots=True)
class Watched:
    """What a job does, beside what is expected of it.

    seconds   times of steps, those of warming up among them
    said      what was said last of each concern, so that only changes are told
    last      when the last step was seen [s]; number is its own
    reached   the highest number that was seen, of steps that tell no time, too
    begun     when one was first waited for [s]
    pauses    seconds between the last steps, as they were seen
    recent    times of the last steps, as they came
    before    the last step whose line tells no time
    """

    expected: Expected
    seconds: Times = field(default_factory=Times)
    said: dict[str, Any] = field(default_factory=dict)
    last: float = math.nan
    number: int = 0
    reached: int = 0
    begun: float = math.nan
    pauses: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))
    before: LoggedStep | None = None

    def waiting(self) -> dict[str, Any]:
        """There is no log yet."""
        return self._event("waiting", "")

    def restart(self, why: str) -> list[dict[str, Any]]:
        """The file was cut off or made anew: what was seen stays."""
        return [self._event(why, f"the log was {why}; read on from its beginning")]

    def another(self) -> list[dict[str, Any]]:
        """The log goes on with a job of another configuration: what was seen is not of it."""
        self.seconds, self.said, self.number, self.reached = Times(), {}, 0, 0
        self.recent.clear()
        return [self._event("another job", "another configuration is told; what was seen is left")]

    def feed(self, step: LoggedStep, now: float) -> list[dict[str, Any]]:
        """What a step changes.

        now   when it was seen [s]
        """
        seconds = self.expected.seconds(step)
        if now > self.last:
            self.pauses.append(now - self.last)
        self.last = now
        self.reached = max(self.reached, step.number)
        found = []
        if self.said.pop("stalled", None):
            found.append(self._event("resumed", f"step {step.number}: steps go on"))
        if not seconds > 0:
            return found
        if step.number != self.number:
            self.recent.append(seconds)
        self.number = step.number
        self.seconds.add(step.number, seconds)
        return found + self._judge(step.number)

    def wait(self, now: float) -> list[dict[str, Any]]:
        """What it changes that no step came until now.

        Before the first step nothing stalls: how long a start takes is not predicted. Where neither
        a prediction nor the log says what a step takes, the pauses between those seen do.
        """
        if not math.isfinite(self.last):
            return self._start(now)
        usual = self.median if self.seconds.counted else self.expected.step
        limit = max(PATIENCE, LATE * self.seconds.gap) * usual
        if not usual > 0:
            limit = PATIENCE * float(np.median(self.pauses)) if self.pauses else math.inf
        gone = now - self.last
        if gone <= max(limit, LEAST_WAIT) or self.said.get("stalled"):
            return []
        self.said["stalled"] = True
        return [self._event("stalled", f"no step for {gone:.0f} s")]

    def _start(self, now: float) -> list[dict[str, Any]]:
        """What it changes that no step was seen at all until now."""
        if not math.isfinite(self.begun):
            self.begun = now
        gone = now - self.begun
        if gone <= LEAST_WAIT or self.said.get("waiting"):
            return []
        self.said["waiting"] = True
        return [
            self._event("waiting", f"no step yet after {gone:.0f} s; its start is not predicted")
        ]

    @property
    def median(self) -> float:
        """What a step takes [s]; NaN while none counts."""
        return self.seconds.median

    @property
    def now(self) -> float:
        """What a step takes now [s]."""
        return float(np.median(self.recent)) if self.recent else math.nan

    @property
    def inside(self) -> bool | None:
        """Whether steps take what was predicted; None where nothing was, or too few are known."""
        known = self.expected
        if not known.step > 0 or self.seconds.counted < 3:
            return None
        return bool(known.low <= self.median <= known.high)

    def _judge(self, number: int) -> list[dict[str, Any]]:
        found = []
        known = self.expected
        inside = self.inside
        if inside is not None and self.said.get("inside") != inside:
            self.said["inside"] = inside
            ratio = self.median / known.step
            where = "inside" if inside else "outside"
            found.append(self._event(
                where, f"step {number}: {self.median:.4g} s is {ratio:.2f} x the predicted "
                f"{known.step:.4g} s, {where} its interval ({known.low:.4g} to {known.high:.4g})"
            ))  # fmt: skip
        if self.seconds.counted < 3 * RECENT:
            return found
        drift = self.now / self.seconds.first - 1.0
        drifts = "slower" if drift > DRIFT else "faster" if drift < -DRIFT else ""
        if self.said.get("drift", "") != drifts:
            self.said["drift"] = drifts
            told = "as the first were again"
            if drifts:
                told = f"{abs(drift):.1%} {'longer' if drift > 0 else 'shorter'} than the first"
            found.append(self._event("drift", f"step {number}: steps are {told}"))
        slow = self.now > SLOW * self.median
        if self.said.get("slow", False) != slow:
            self.said["slow"] = slow
            told = f"now {self.now / self.median:.2f} x the median" if slow else "over"
            found.append(self._event("slow phase", f"step {number}: slow phase, {told}"))
        return found

    def _event(self, name: str, text: str) -> dict[str, Any]:
        return {"event": name, "text": text, **self.summary()}

    def summary(self) -> dict[str, Any]:
        """Figures so far, as JSON lines have them: None where not known."""
        known, at = self.expected, self.seconds.last
        pace = self.median
        left = (known.steps - at) * pace if known.steps and math.isfinite(pace) else math.nan
        cost = (self.seconds.spent + left) / 3600.0 * known.price
        figures = {
            "step": float(at),
            "steps": float(known.steps),
            "median_s": pace,
            "recent_s": self.now,
            "predicted_s": known.step,
            "low_s": known.low,
            "high_s": known.high,
            "ratio": pace / known.step,
            "left_s": max(left, 0.0) if math.isfinite(left) else math.nan,
            "cost": cost,
        }
        plain = {name: value if math.isfinite(value) else None for name, value in figures.items()}
        return {**plain, "inside": self.inside}

    @property
    def status(self) -> int:
        """0 as predicted, or nothing is; 1 outside, drifting, slow or stalled."""
        troubled = (self.said.get(name) for name in ("stalled", "slow", "drift"))
        return 1 if self.inside is False or any(troubled) else 0

    @property
    def done(self) -> bool:
        """Whether the last step that the job takes was seen."""
        return bool(self.expected.steps and self.reached >= self.expected.steps)

"""Steps of a run as a log tells them, and what they come to."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from predictor.records import dataclass

QUANTITIES = (
    "seconds", "tokens_per_s", "tokens_per_s_per_gpu", "samples_per_s", "batches_per_s",
    "global_batch", "batch_tokens", "samples", "tokens", "micro_batch", "memory_gib",
    "reserved_gib", "loss", "stamp",
)  # fmt: skip
"""What a log may say of a step: its time [s], rates [1/s], the sequences of a step, its tokens;
sequences and tokens trained on so far; memory allocated and reserved [GiB]; the loss; when it was
written [s]."""

WARM_STEPS, WARM_SHARE = 3, 0.1
"""First steps of a log that do not count: so many, or such a share of all, whichever is more."""

SAME = 0.02
"""Sequences of steps that follow from rounded rates differ by so much at most if they are the
same."""

STALL = 1.5
"""A step of so many medians is a stall."""


@dataclass(frozen=True, slots=True)
class LoggedStep:
    """A step of a log: its number, and of `QUANTITIES` those that are told."""

    number: int
    values: Mapping[str, float]

    def get(self, name: str) -> float:
        """A quantity, NaN where it is not told."""
        return self.values.get(name, math.nan)


@dataclass(frozen=True, slots=True, eq=False)
class Log:
    """A log that was read.

    form       whose it is
    framework  that wrote it
    steps      those told, in the order of their numbers; a step told again counts as told last
    stated     keys of a plan that the log itself says
    launch     dialect and text of the arguments that it prints; both empty where it prints none
    broken     lines that begin as a step does and cannot be read
    notes      what was found out, or could not be followed
    planned    steps that the run is to take; 0 where the log does not say
    earlier    logs of jobs of other configurations that the same file tells before
    """

    form: str
    framework: str
    steps: tuple[LoggedStep, ...]
    stated: Mapping[str, Any]
    launch: tuple[str, str] = ("", "")
    broken: int = 0
    notes: tuple[str, ...] = ()
    planned: int = 0
    earlier: tuple[Log, ...] = ()


@dataclass(frozen=True, slots=True)
class Figures:
    """What the steps of a log come to, those of warming up aside.

    median    of the quantity asked for
    spread    log-standard-deviation of it, robust
    slowest   the step that 95 % stay below, over the median
    stalls    steps beyond `STALL` medians
    steps     that count
    """

    median: float
    spread: float
    slowest: float
    stalls: int
    steps: int


def warm(count: int) -> int:
    """How many of so many first steps are of warming up; the last is never."""
    return min(max(WARM_STEPS, int(WARM_SHARE * count)), max(count - 2, 0))


def series(steps: Sequence[LoggedStep], name: str) -> np.ndarray:
    """A quantity of the steps that tell it and count, (n,)."""
    told = [value for step in steps if math.isfinite(value := step.get(name)) and value > 0]
    return np.array(told[warm(len(told)) :], float)


def figures(values: Sequence[float] | np.ndarray, inverse: bool = False) -> Figures:
    """What times of steps come to; of rates with `inverse`.

    values   of the steps that count, at least one
    """
    found = np.asarray(values, float)
    median = float(np.median(found))
    away = np.log(found / median) * (-1.0 if inverse else 1.0)
    return Figures(
        median=median,
        spread=float(1.4826 * np.median(np.abs(away))),
        slowest=float(np.exp(np.quantile(away, 0.95))),
        stalls=int(np.sum(away > math.log(STALL))),
        steps=len(found),
    )


def usual(batches: np.ndarray) -> int:
    """What most of some batches are, the later of two that are as frequent; (n,), n > 0."""
    sizes, back, count = np.unique(np.round(batches[::-1]), return_index=True, return_counts=True)
    alike = np.abs(np.log(sizes[:, None] / sizes[None, :])) < SAME
    many = alike @ count
    return int(sizes[min(np.flatnonzero(many == many.max()), key=lambda at: back[at])])


@dataclass(slots=True)
class Collected:
    """Steps as they come: a step that is told again is told last."""

    steps: dict[int, LoggedStep] = field(default_factory=dict)

    def add(self, step: LoggedStep) -> None:
        """One more."""
        known = self.steps.get(step.number)
        values = {**known.values, **step.values} if known else step.values
        self.steps[step.number] = LoggedStep(step.number, values)

    def ordered(self) -> tuple[LoggedStep, ...]:
        """All, by their numbers."""
        return tuple(self.steps[number] for number in sorted(self.steps))

"""The progress bar of HuggingFace's trainer, and LLaMA-Factory's log: what a run tells that has
not ended.

The trainer times no step by itself. Its bar (tqdm's, of no name) tells steps and whole seconds
gone; bars of evaluation look alike, and the one that has run for longest is the training's.
`trainer_log.jsonl` tells the same two in JSON.

Sources of the forms (read November 2026): huggingface/transformers `trainer_callback.py`
(`ProgressCallback`), tqdm's `format_meter` and `format_interval` (a bar without room has no bar),
hiyouga/LLaMA-Factory `train/callbacks.py` (`LogCallback`) @ 0583d066.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import field
from typing import Any

from predictor.records import dataclass
from reckon.logs.steps import LoggedStep

BAR = re.compile(r"^\s*\d+%(?:\|[^|]*\|)?\s*(\d+)/(\d+) \[(?:(\d+):)?(\d+):(\d\d)<")
"""Steps done, of all, and the time gone: '10/264 [01:00<25:16, 5.97s/it]'."""

LEAST = 20.0
"""Seconds between two looks at a bar, which tells whole ones, so that a step is known to 5 %."""


GONE = re.compile(r"(?:(\d+) days?, )?(\d+):(\d\d):(\d\d)(\.\d+)?$")
"""Time gone as Python prints a `timedelta`."""


def gone_of(text: str) -> float | None:
    """Seconds of a `timedelta` that was printed: '1 day, 0:09:01'; None for anything else."""
    found = GONE.match(text.strip())
    if found is None:
        return None
    days, hours, minutes, seconds = (float(part or 0) for part in found.groups()[:4])
    rest = float(found[5] or 0)
    return ((days * 24.0 + hours) * 60.0 + minutes) * 60.0 + seconds + rest


def trainer_line(line: str) -> tuple[int, int, float, Mapping[str, Any]] | None:
    """Steps done, of all, the time gone [s] and the whole of a line of LLaMA-Factory's log; None
    for a line that is broken, and for one of a prediction, which has no epoch."""
    try:
        told = json.loads(line[line.index("{") :])
        done, total = int(told["current_steps"]), int(told["total_steps"])
        gone = gone_of(str(told["elapsed_time"]))
    except (ValueError, KeyError, TypeError):
        return None
    return None if gone is None or "epoch" not in told else (done, total, gone, told)


@dataclass(slots=True)
class Bars:
    """Reads bars as they come.

    gone    seconds that each bar has run for, by how many steps it has
    """

    gone: dict[int, float] = field(default_factory=dict)
    _marks: dict[int, tuple[int, float]] = field(default_factory=dict)

    def feed(self, line: str) -> tuple[int, LoggedStep] | None:
        """How many steps a bar has, and the step that a line tells: the mean of those since the
        look before. None for what is no bar, and where too little time went by.

        The first step is never among them, and what a bar jumps over when a run is resumed.
        """
        found = BAR.match(line)
        if found is None:
            return None
        done, total = int(found[1]), int(found[2])
        now = 3600.0 * int(found[3] or 0) + 60.0 * int(found[4]) + float(found[5])
        return self.look(done, total, now)

    def look(
        self, done: int, total: int, now: float, again: bool = False
    ) -> tuple[int, LoggedStep] | None:
        """The same of a look that is read already: steps done, of all, seconds gone.

        again   a step that is told twice was followed by something else (an evaluation), which is
                of no step
        """
        before, since = self._marks.get(total, (0, 0.0))
        self.gone[total] = max(now, self.gone.get(total, 0.0))
        if not before or now < since or done < before:
            self._marks[total] = done, now
            return None
        if again and done == before:
            self._marks[total] = done, now
        if done == before or now - since < LEAST:
            return None
        self._marks[total] = done, now
        return total, LoggedStep(done, {"seconds": (now - since) / (done - before)})

    @property
    def total(self) -> int:
        """Steps of the bar that has run for longest; 0 where there is none."""
        return max(self.gone, key=lambda total: self.gone[total], default=0)

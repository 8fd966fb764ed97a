"""The progress bar of HuggingFace's trainer: what a run tells that has not ended.

The trainer times no step by itself. Its bar (tqdm's, of no name) tells steps and whole seconds
gone; bars of evaluation look alike, and the one that has run for longest is the training's.

Sources of the forms (read November 2026): huggingface/transformers `trainer_callback.py`
(`ProgressCallback`), tqdm's `format_meter` and `format_interval`.
"""

from __future__ import annotations

import re
from dataclasses import field

from predictor.records import dataclass
from reckon.logs.steps import LoggedStep

BAR = re.compile(r"^\s*\d+%\|[^|]*\|\s*(\d+)/(\d+) \[(?:(\d+):)?(\d+):(\d\d)<")
"""Steps done, of all, and the time gone: '10/264 [01:00<25:16, 5.97s/it]'."""

LEAST = 20.0
"""Seconds between two looks at a bar, which tells whole ones, so that a step is known to 5 %."""


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
        before, since = self._marks.get(total, (0, 0.0))
        self.gone[total] = max(now, self.gone.get(total, 0.0))
        if not before or now < since or done < before:
            self._marks[total] = done, now
            return None
        if done == before or now - since < LEAST:
            return None
        self._marks[total] = done, now
        return total, LoggedStep(done, {"seconds": (now - since) / (done - before)})

    @property
    def total(self) -> int:
        """Steps of the bar that has run for longest; 0 where there is none."""
        return max(self.gone, key=lambda total: self.gone[total], default=0)

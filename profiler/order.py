"""Which case comes next: what teaches most, and once more what others disturbed."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from predictor.schema import DISTURBED
from profiler.design import Design

OTHERS = 20
"""Cases that are timed before one that was disturbed is timed again: what ran beside it may be gone
by then."""


@dataclass(slots=True)
class Order:
    """The cases of a design, one after the other; those that were disturbed a second time.

    later   when which case comes again, in turns
    tried   what has had its second chance, or waits for it
    """

    plan: Design
    turn: int = 0
    later: deque[tuple[int, int]] = field(default_factory=deque)
    tried: set[int] = field(default_factory=set)

    def next(self, left: float) -> int | None:
        """Number of the case to measure in the seconds `left`, None where none is worth them."""
        self.turn += 1
        due = bool(self.later) and self.later[0][0] <= self.turn
        best = None if due else self.plan.next(left)
        return self.later.popleft()[1] if best is None and self.later else best

    def postponed(self, case: int, rows: Iterable[Mapping[str, Any]]) -> bool:
        """Whether the case's rows were disturbed and it is measured again, so that they are not
        kept."""
        if case in self.tried or not any(DISTURBED in str(row["notes"]) for row in rows):
            return False
        self.tried.add(case)
        self.later.append((self.turn + OTHERS, case))
        return True

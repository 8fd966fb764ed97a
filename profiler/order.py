"""Which case comes next: what teaches most, and once more what others disturbed."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from profiler.design import Design

Row = dict[str, Any]

OTHERS = 20
"""Cases that are timed before one that was disturbed is timed again: what ran beside it may be gone
by then."""

RARE = 0.25
"""Share of the cases that have a second chance: where more are disturbed, others run all the time.
"""


@dataclass(slots=True)
class Order:
    """The cases of a design, one after the other; those that were disturbed a second time.

    later   when which case comes again, in turns
    kept    rows of the cases that wait for their second chance: all there is if it never comes
    again   how many cases had or have one
    """

    plan: Design
    turn: int = 0
    later: deque[tuple[int, int]] = field(default_factory=deque)
    kept: dict[int, list[Row]] = field(default_factory=dict)
    again: int = 0

    def next(self, left: float) -> int | None:
        """Number of the case to measure in the seconds `left`, None where none is worth them."""
        self.turn += 1
        due = bool(self.later) and self.later[0][0] <= self.turn
        best = None if due else self.plan.next(left)
        return self.later.popleft()[1] if best is None and self.later else best

    def postponed(self, case: int, rows: list[Row]) -> bool:
        """Whether the case's rows were disturbed and it is measured again instead."""
        if self.kept.pop(case, None) is not None or self.again >= RARE * (self.turn + OTHERS):
            return False
        if not any(row["waited"] > 0 for row in rows):
            return False
        self.again += 1
        self.kept[case] = rows
        self.later.append((self.turn + OTHERS, case))
        return True

    def left(self) -> list[Row]:
        """Rows of the cases whose second chance did not come."""
        return [row for rows in self.kept.values() for row in rows]

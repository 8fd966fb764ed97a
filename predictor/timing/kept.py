"""Answers that are kept for when the same is asked again."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

T = TypeVar("T")

KEPT = 4_000
"""Answers that a calibration keeps: those of single kernels and exchanges, of which a plan has some
twenty groups, among others."""

KEPT_NUMBERS = 2_000_000
"""Numbers in all of the large answers that it keeps, such as the layers of a plan (0.1 MB): 16 MB.
"""


class Kept:
    """What was asked, and the answers. A copy, also one in another process, begins with none."""

    __slots__ = ("held", "known", "large")

    def __init__(self) -> None:
        self.known: dict[tuple[Hashable, ...], Any] = {}
        self.large: dict[tuple[Hashable, ...], Any] = {}
        self.held = 0

    def __reduce__(self) -> tuple[type[Kept], tuple[()]]:
        return Kept, ()

    def once(self, key: tuple[Hashable, ...], make: Callable[[], T], numbers: int) -> T:
        """What `make` answers, kept for when the key is met again.

        numbers   in a large answer and its key; 0 for a small one
        """
        table = self.large if numbers else self.known
        # Another thread may empty the table at any time: what was made is answered, not read again.
        found: T = table.get(key, self)
        if found is self:
            found = make()
            if numbers and self.held + numbers > KEPT_NUMBERS:
                table.clear()
                self.held = 0
            elif not numbers and len(table) >= KEPT:
                table.clear()
            self.held += numbers
            table[key] = found
        return found

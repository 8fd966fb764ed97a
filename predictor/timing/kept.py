"""Answers that are kept for when the same is asked again."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

T = TypeVar("T")

KEPT = 4_000
"""Answers that a calibration keeps: those of single kernels and exchanges, of which a plan has some
twenty groups, among others."""

KEPT_WHOLE = 64
"""Answers that are as large as the layers of a plan: some 0.1 MB each."""


class Kept:
    """What was asked, and the answers. A copy, also one in another process, begins with none."""

    __slots__ = ("known", "whole")

    def __init__(self) -> None:
        self.known: dict[tuple[Hashable, ...], Any] = {}
        self.whole: dict[tuple[Hashable, ...], Any] = {}

    def __reduce__(self) -> tuple[type[Kept], tuple[()]]:
        return Kept, ()

    def once(self, key: tuple[Hashable, ...], make: Callable[[], T], whole: bool) -> T:
        """What `make` answers, kept for when the key is met again; of large answers (`whole`) but
        few."""
        table, most = (self.whole, KEPT_WHOLE) if whole else (self.known, KEPT)
        # Another thread may empty the table at any time: what was made is answered, not read again.
        found: T = table.get(key, self)
        if found is self:
            found = make()
            if len(table) >= most:
                table.clear()
            table[key] = found
        return found

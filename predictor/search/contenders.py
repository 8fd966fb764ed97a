"""What a further plan has to beat: the best so far, the best with each value, the Pareto front."""

from __future__ import annotations

from typing import Any

import numpy as np

from predictor.arrays import Array, Index
from predictor.plans import CATEGORY_FIELDS, NUMERIC_FIELDS
from predictor.search.axes import AXES
from predictor.search.documents import PACKED
from predictor.search.space import Block
from predictor.variation import PACKED_FIELDS

NUMBERS = (*NUMERIC_FIELDS, PACKED)
"""Fields whose values lie in columns of a block."""


class Contenders:
    """Plans timed so far, and what a further one has to beat.

    keep     how many of the best are certain to be timed
    power    of the accelerators' number in the score
    each     whether the best plan with each value of a field is, too
    """

    def __init__(self, keep: int, power: float, blocks: list[Block], each: bool = True) -> None:
        self.keep, self.power = keep, power
        self.values = Values(blocks, varied(blocks) if each else [])
        self.pieces: list[tuple[Any, ...]] = []
        self.best = np.empty(0)
        self.front: tuple[Array, Array, Array] = (np.empty(0), np.empty(0), np.empty(0))
        self.settled = 0
        self.worst = np.inf
        self.stairs: list[tuple[float, Array, Array]] = []

    def add(self, numbers: Index, rows: Index, *columns: Array) -> None:
        """Take in rows of blocks: step time, sigma, peak memory, the time by which plans are
        ranked over the step time, accelerators; all of one length."""
        self.pieces.append((numbers, rows, *columns))

    def columns(self) -> tuple[Any, ...]:
        """Blocks, rows and columns of all, as arrays."""
        return tuple(np.concatenate(column) for column in zip(*self.pieces, strict=True))

    def settle(self) -> None:
        """Take in what was added since: the best scores, and the Pareto front as stairs."""
        new = self.pieces[self.settled :]
        if not new:
            return
        self.settled = len(self.pieces)
        numbers, rows, step, _, peak, by, gpus = (
            np.concatenate(column) for column in zip(*new, strict=True)
        )
        time = step * by
        score = time * gpus**self.power
        self.values.note(numbers, rows, score)
        self.best = np.sort(np.concatenate([self.best, score]))[: self.keep]
        self.worst = float(self.best[-1]) if len(self.best) >= self.keep else np.inf
        columns = [
            np.concatenate(pair) for pair in zip(self.front, (time, peak, gpus), strict=True)
        ]
        chosen = frontier(*columns)
        self.front = (columns[0][chosen], columns[1][chosen], columns[2][chosen])
        self.stairs = []
        for count in np.unique(self.front[2]):
            own = self.front[2] <= count
            order = np.argsort(self.front[0][own], kind="stable")
            held = np.minimum.accumulate(self.front[1][own][order])
            self.stairs.append((float(count), self.front[0][own][order], held))

    def matters(self, number: int, rows: Index, bound: Array, peak: Array, gpus: Array) -> Any:
        """Mask of plans of a block that may be among the best, the best with one of their values,
        or on the front."""
        score = bound * gpus**self.power
        among = score <= np.maximum(self.worst, self.values.best_with(number, rows))
        beaten = np.zeros(len(bound), dtype=bool)
        for count, times, held in self.stairs:
            at = np.searchsorted(times, bound, side="left") - 1
            beaten |= (at >= 0) & (held[np.maximum(at, 0)] <= peak) & (gpus >= count)
        return among | ~beaten


class Values:
    """The best score of a plan with each value of the fields that plans differ in."""

    def __init__(self, blocks: list[Block], fields: list[str]) -> None:
        self.blocks, self.fields = blocks, fields
        self.known: list[Any] = [self._of(name) for name in fields]
        self.best = [np.full(len(known), np.inf) for known in self.known]

    def _of(self, name: str) -> Any:
        """All values of a field, in order."""
        if name not in NUMBERS:
            return list(dict.fromkeys(getattr(block.fixed, name) for block in self.blocks))
        pieces = {
            id(block.grid): block.grid[name] if name in block.grid else getattr(block.fixed, name)
            for block in self.blocks
        }
        values = np.concatenate([np.unique(piece) for piece in pieces.values()])
        return np.unique(values.astype(float))

    def _at(self, field: int, number: int, rows: Index) -> Any:
        """Which of its values the plans of a block have; one for all where they do not differ."""
        block, name, known = self.blocks[number], self.fields[field], self.known[field]
        if name in NUMBERS:
            return np.searchsorted(known, block.column(name, rows))
        return known.index(getattr(block.fixed, name))

    def note(self, numbers: Index, rows: Index, score: Array) -> None:
        """Take in scores of plans: rows of blocks."""
        starts = np.flatnonzero(np.diff(numbers, prepend=-1))
        for start, end in zip(starts, [*starts[1:], len(numbers)], strict=True):
            own, number = slice(start, end), int(numbers[start])
            for field, best in enumerate(self.best):
                at = self._at(field, number, rows[own])
                if np.ndim(at):
                    np.minimum.at(best, at, score[own])
                else:
                    best[at] = min(best[at], score[own].min())

    def best_with(self, number: int, rows: Index) -> Any:
        """The worst of the best scores that plans of a block would have to beat to be the best with
        one of their values; inf where there is none yet."""
        found: Any = -np.inf
        for field, best in enumerate(self.best):
            found = np.maximum(found, best[self._at(field, number, rows)])
        return found


def varied(blocks: list[Block]) -> list[str]:
    """Fields of a plan that the plans of some blocks differ in, or may; how documents are packed,
    instead of what follows from that."""
    searched = {axis.field for axis in AXES if axis.field != "gpus"}
    numbers = [n for n in NUMBERS if n in searched or any(n in b.grid for b in blocks)]
    apart = ("global_batch", "seq_len", *PACKED_FIELDS)
    numbers = [name for name in numbers if name not in apart]
    categories = [
        name
        for name in CATEGORY_FIELDS
        if len({getattr(block.fixed, name) for block in blocks}) > 1
    ]
    return [*numbers, *categories]


def frontier(time: Array, peak: Array, gpus: Array) -> Index:
    """Positions of plans that no other equals or beats in all of step time, memory and
    accelerators, in order of accelerators and time. Of equal plans, the first."""
    order = np.lexsort((peak, time, gpus))
    found: list[Index] = []
    times, peaks = np.empty(0), np.empty(0)
    for count in np.unique(gpus):
        own = order[gpus[order] == count]
        # Those of fewer accelerators come first, so that equals of theirs are not taken again.
        joined_time = np.concatenate([times, time[own]])
        joined_peak = np.concatenate([peaks, peak[own]])
        late = np.concatenate([np.zeros(len(times)), np.ones(len(own))])
        sort = np.lexsort((late, joined_peak, joined_time))
        held = joined_peak[sort]
        before = np.concatenate([[np.inf], np.minimum.accumulate(held)[:-1]])
        kept = sort[held < before]
        found.append(own[kept[kept >= len(times)] - len(times)])
        times, peaks = joined_time[kept], joined_peak[kept]
    return np.concatenate([np.empty(0, np.intp), *found])

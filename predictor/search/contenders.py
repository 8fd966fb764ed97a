"""What a further plan has to beat: the best so far, the best with each value, the Pareto front."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from predictor.arrays import Array, Index
from predictor.plans import CATEGORY_FIELDS, NUMERIC_FIELDS
from predictor.search.axes import AXES
from predictor.search.space import Block


class Contenders:
    """Plans timed so far, and what a further one has to beat.

    keep     how many of the best are certain to be timed
    power    of the accelerators' number in the score
    each     whether the best plan with each value of a field is, too
    """

    def __init__(self, keep: int, power: float, blocks: list[Block], each: bool = True) -> None:
        self.keep, self.power, self.blocks = keep, power, blocks
        self.varied = varied(blocks) if each else []
        self.with_value: dict[tuple[str, Any], float] = {}
        self.distinct: dict[tuple[int, str], list[float]] = {}
        self.pieces: list[tuple[Any, ...]] = []
        self.best = np.empty(0)
        self.front: tuple[Array, Array, Array] = (np.empty(0), np.empty(0), np.empty(0))
        self.settled = 0
        self.worst = np.inf
        self.stairs: list[tuple[float, Array, Array]] = []

    def add(self, number: int, rows: Index, *columns: Array) -> None:
        """Take in rows of a block: step time, sigma, peak memory, the time by which plans are
        ranked over the step time, accelerators."""
        self.pieces.append((np.full(len(rows), number, dtype=np.intp), rows, *columns))

    def columns(self) -> tuple[Any, ...]:
        """Blocks, rows and columns of all, as arrays."""
        return tuple(np.concatenate(column) for column in zip(*self.pieces, strict=True))

    def settle(self) -> None:
        """Take in what was added since: the best scores, and the Pareto front as stairs."""
        new = self.pieces[self.settled :]
        if not new:
            return
        self.settled = len(self.pieces)
        step, peak, by, gpus = (np.concatenate([piece[at] for piece in new]) for at in (2, 4, 5, 6))
        time = step * by
        for number, rows, own_step, *_, own_by, count in new:
            score = own_step * own_by * count**self.power
            for key, own in self._values(int(number[0]), rows):
                if own.any():
                    low = float(score[own].min())
                    self.with_value[key] = min(low, self.with_value.get(key, np.inf))
        self.best = np.sort(np.concatenate([self.best, time * gpus**self.power]))[: self.keep]
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

    def _values(self, number: int, rows: Index) -> Iterator[tuple[tuple[str, Any], Any]]:
        """Every value of a field that plans of a block have, and the mask of those of some rows
        that have it."""
        block = self.blocks[number]
        for name in self.varied:
            column = block.rows.get(name)
            if column is None:
                yield (name, getattr(block.fixed, name)), np.ones(len(rows), dtype=bool)
                continue
            own = column[rows]
            for value in self._distinct(number, name):
                yield (name, value), own == value

    def _distinct(self, number: int, name: str) -> list[float]:
        """Values of a field that plans of a block have."""
        if (number, name) not in self.distinct:
            self.distinct[number, name] = np.unique(self.blocks[number].rows[name]).tolist()
        return self.distinct[number, name]

    def matters(self, number: int, rows: Index, bound: Array, peak: Array, gpus: Array) -> Any:
        """Mask of plans of a block that may be among the best, the best with one of their values,
        or on the front."""
        score = bound * gpus**self.power
        among = score <= self.worst
        for key, own in self._values(number, rows):
            among |= own & (score <= self.with_value.get(key, np.inf))
        beaten = np.zeros(len(bound), dtype=bool)
        for count, times, held in self.stairs:
            at = np.searchsorted(times, bound, side="left") - 1
            beaten |= (at >= 0) & (held[np.maximum(at, 0)] <= peak) & (gpus >= count)
        return among | ~beaten


def varied(blocks: list[Block]) -> list[str]:
    """Fields of a plan that the plans of some blocks differ in, or may."""
    searched = {axis.field for axis in AXES if axis.field != "gpus"}
    numbers = [n for n in NUMERIC_FIELDS if n in searched or any(n in b.rows for b in blocks)]
    numbers = [name for name in numbers if name not in ("global_batch", "seq_len")]
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

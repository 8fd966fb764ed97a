"""The longest path through 1F1B with stages of three kinds and links between them.

Work is a graph: a pass waits for the one before it on its stage and for what it is sent. A run
takes as long as the longest path from the first forward pass to the last backward pass of the
first stage. With n stages behind it a stage runs n forward passes before it takes one backward and
one forward pass in turn, and ends with n backward passes (Narayanan et al. 2019). So a path

- goes down through p passes of the filling pipeline, and stays where the forward pass is longest;
- may go on to the last stage and come back before it dwells on a stage, taking its work in turn;
- or, where the hops of a way there and back over d links last longer than the work that a stage has
  meanwhile, makes that way again and again, which d + 1 micro-batches share;
- and empties the pipeline as it was filled, the other way round.

Paths that dwell on the first stage, on both ends of the inner ones, on the last and where all
micro-batches just have entered hold the longest: without links always, with them nearly.
"""

from __future__ import annotations

import numpy as np

from predictor.arrays import Array, Numeric
from predictor.records import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class _Line:
    """Stages in a line, and places on it that can decide.

    count   stages of each kind, (3, *batch)
    at      positions of the places, rising, (6, *batch)
    """

    count: Array
    at: Array

    @classmethod
    def of(cls, count: Array, m: Numeric) -> _Line:
        """Places on a pipeline that runs m micro-batches."""
        p = count.sum(axis=0)
        fills = p - np.asarray(m, float)
        places = np.empty((6, *fills.shape))
        # What lies beyond the last stage is the last.
        for position, place in enumerate((0.0, 1.0, p - 2.0, p, fills, fills + 1.0)):
            places[position] = place
        return cls(count, np.sort(np.minimum(np.maximum(places, 0.0), p - 1.0), axis=0))

    def among(self, many: Array) -> list[Array]:
        """Stages of each kind among the first `many`."""
        first, inner, last = self.count
        rest = many - first
        return [
            np.minimum(np.maximum(many, 0.0), first),
            np.minimum(np.maximum(rest, 0.0), inner),
            np.minimum(np.maximum(rest - inner, 0.0), last),
        ]


def _total(value: Array, stages: list[Array]) -> Array:
    """Sum of a pass over so many stages of each kind."""
    first, inner, last = stages
    return np.asarray(first * value[0] + inner * value[1] + last * value[2])


def _longest(value: Array, stages: list[Array]) -> Array:
    """The largest pass of so many stages of each kind."""
    there = [np.where(n > 0, v, 0.0) for n, v in zip(stages, value, strict=True)]
    return np.asarray(np.maximum(np.maximum(there[0], there[1]), there[2]))


def _in_turn(
    line: _Line, t: Array, sums: tuple[Array, Array], left: Array, hop: Numeric, transfer: Numeric
) -> Array:
    """Longest path from a stage's backward pass to that of `left` micro-batches later, in which
    it takes work in turn: on the stage itself, or on ways there and back from it.

    sums   of t before each of the line's places, and with it

    Micro-batches that share a way follow one another as fast as the stage, and its link, let them.
    """
    at, p = line.at, line.count.sum(axis=0)
    below, own = sums[0], sums[1] - sums[0]
    best = left * own
    if not np.any(hop):
        return best
    behind = p - 1.0 - at
    for side, many in ((1.0, behind), (-1.0, at)):
        for links in (np.minimum(many, 1.0), np.maximum(many - 1.0, 0.0), many):
            loops = np.floor(left / (links + 1.0))
            rest = left - loops * (links + 1.0)

            def way(stages: Array, side: float = side) -> Array:
                if side > 0:
                    return _total(t, line.among(at + stages)) - below
                return below + own - _total(t, line.among(at + 1.0 - stages))

            last = np.where(rest > 0, way(rest) + 2.0 * (rest - 1.0) * hop, 0.0)
            round_trip = way(links + 1.0) + 2.0 * links * hop
            pace = np.where(many > 0, np.maximum(own, transfer), own)
            best = np.maximum(best, loops * round_trip + np.maximum(last, rest * pace))
    return best


def critical_path(
    f: Array, b: Array, count: Array, m: Numeric, transfer: Numeric = 0.0, latency: Numeric = 0.0
) -> Array:
    """Time of m micro-batches through 1F1B [s], shape of the batch.

    f, b       forward and backward pass of a stage of each kind [s], (3, *batch); 0 on kinds that
               the pipeline lacks
    count      stages of each kind
    transfer   for which what a pass hands on keeps its link, one way, to itself [s]
    latency    after which the last byte of it is there [s]

    Without links the event timeline's; with them never longer than it, and at most 7 % shorter (of
    15,000 pipelines drawn at random one in a hundred is shorter by more than 2.5 %).
    With p equal stages and m >= p: (m + p - 1) t, as in Narayanan et al. 2021; links that are never
    full add 2 (p - 1) / p hops for each of the m + p - 1, since of p micro-batches in flight each
    makes the whole way.
    """
    hop = np.asarray(transfer) + latency
    line = _Line.of(count, m)
    at, p = line.at, count.sum(axis=0)
    moved = np.where(at > 0, transfer, 0.0)
    n = np.minimum(p - 1.0 - at, m - 1.0)
    upto, through = line.among(at), line.among(at + 1.0)
    before = [_total(value, upto) + at * hop for value in (f, b)]
    lead = [_total(value, through) + at * hop for value in (f, b)]
    peak = [np.maximum(_longest(value, through), moved) for value in (f, b)]

    # From the first pass to a stage's first backward pass, by way of a stage behind it or not;
    # and from its last forward pass to the last of all.
    ways = [lead[0] + n * peak[0] + lead[1], lead[1] + n * peak[1] + lead[0]]
    deepest = [np.maximum.accumulate(way[::-1], axis=0)[::-1] for way in ways]
    enter, leave = deepest[0] - before[1], deepest[1] - before[0]

    left = m - 2.0 - n
    t = f + b
    sums = _total(t, upto), _total(t, through)
    turns = enter + leave + _in_turn(line, t, sums, np.maximum(left, 0.0), hop, transfer)
    drain, fill = (
        enter + before[1] + (m - 1.0) * peak[1],
        leave + before[0] + (m - 1.0) * peak[0],
    )
    found = np.where(left >= 0, turns, np.maximum(drain, fill)).max(axis=0)
    linked = [np.where(at > 0, way, 0.0).max(axis=0) for way in ways]
    full = np.maximum(*linked) + (m - 1.0) * np.asarray(transfer)
    return np.asarray(np.where(p > 1, np.maximum(found, full), found))

"""Requests one by one on replicas of the attention that make their passes together, as they share
the experts of a mixture: each pass of theirs is as long as the longest of them.

Every replica is an `events.EngineRun`. All of them leap over passes that only decode, up to the
next event of any.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from predictor.arrays import Array
from predictor.serving.events import EngineRun, Served, enforce_load
from predictor.serving.tables import PassTable


def serve_together(
    table: PassTable,
    input_len: Array,
    output_len: Array,
    arrivals: Array | None = None,
    clients: int = 0,
    seed: int = 0,
) -> Served:
    """Serve requests on all replicas of a plan (`PassTable.meeting`).

    input_len, output_len   tokens of each request, of all replicas
    arrivals                when each arrives [s], rising, at a replica drawn at random; None:
                            `clients` of every replica send the next request when they have the
                            answer to the last

    Returns the requests of all, by arrival. Raises InputError where a request is longer than the
    cache, or neither load is stated.
    """
    enforce_load(table, input_len, output_len, arrivals, clients)
    count, replicas = len(input_len), table.meeting
    if arrivals is None:
        turns = np.arange(count) % replicas
    else:
        turns = np.random.default_rng(seed).integers(replicas, size=count)
    runs = []
    for turn in range(replicas):
        own = turns == turn
        came = None if arrivals is None else arrivals[own].tolist()
        runs.append(EngineRun(table, input_len[own].tolist(), output_len[own].tolist(), came,
                              clients))  # fmt: skip
    _Together(runs, table.divided).run()
    return _pooled([one.served(1) for one in runs])


def _pooled(each: Sequence[Served]) -> Served:
    """What became of the requests of several replicas, by arrival."""
    start, head, tail, tokens = (
        np.concatenate([getattr(one, name) for one in each])
        for name in ("arrival", "first", "last", "output_len")
    )
    order = np.argsort(start, kind="stable")
    return Served(
        arrival=start[order],
        first=head[order],
        last=tail[order],
        output_len=tokens[order],
        preempted=sum(one.preempted for one in each),
        gaps=np.concatenate([one.gaps for one in each], axis=1),
        replicas=len(each),
    )


class _Together:
    """Replicas at the same time, all of which wait for the longest pass.

    divided   share of what prompts take that the replicas do together, each its part of what all
              of them read
    """

    __slots__ = ("divided", "now", "runs")

    def __init__(self, runs: list[EngineRun], divided: float) -> None:
        self.runs, self.divided, self.now = runs, divided, 0.0

    def run(self) -> None:
        """Serve all requests."""
        while any(one.finished < one.count for one in self.runs):
            self._advance()

    def _advance(self) -> None:
        """Up to the end of the next pass, or of those before the next event."""
        now = self.now
        for one in self.runs:
            one.now = now
            if one.until <= now:
                one.arrive()
            if one.waiting:
                one.admit()
        if any(one.reading for one in self.runs):
            self._read()
        else:
            self._leap()
        for one in self.runs:
            if one.ending and one.ending[0][0] <= one.step:
                one.now = self.now
                one.finish()

    def _read(self) -> None:
        """One pass in which some read parts of prompts, and the others decode or wait."""
        decoding, taken = [], []
        longest = added = 0.0
        for one in self.runs:
            if one.reading:
                part = one.take_up()
                taken.append((one, part))
                added += part[2]
                longest = max(longest, part[1] + (1.0 - self.divided) * part[2])
            elif one.live and one.passes():
                decoding.append(one)
                many = len(one.live)
                longest = max(longest, one.decode.at(many, one.cached / many + 0.5))
        spent = longest + self.divided * added / len(self.runs)
        for one, part in taken:
            one.make(part, spent)
        for one in decoding:
            one.leapt(1, spent)
        self.now += spent

    def _leap(self) -> None:
        """Passes that only decode, up to the next event of any replica."""
        live = [one for one in self.runs if one.live]
        if not live:
            self.now = max(self.now, min(one.until for one in self.runs))
            return
        paces = [one.decode.at(many := len(one.live), one.cached / many) for one in live]
        leaps = [one.passes(max(paces)) for one in live]
        if not all(leaps):
            return  # one had to give way
        leap = min(leaps)
        coming = min((one.until for one in self.runs if not one.live), default=math.inf)
        if leap > 1 and coming < math.inf:
            leap = max(min(leap, int((coming - self.now) / max(paces)) + 1), 1)
        each = max(
            one.decode.at(many := len(one.live), one.cached / many + 0.5 * leap) for one in live
        )
        for one in live:
            one.leapt(leap, each)
        self.now += leap * each

"""Requests one by one against an engine that never leaps: pass after pass, in plain numbers."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from predictor.errors import InputError
from predictor.plans.serving import ServingPlan
from predictor.serving.events import QUANTILES, Served, _weighted, serve
from predictor.serving.latency import WAITING_SHARE
from predictor.serving.tables import PassTable
from tests.predictor.serving.bare import BARE

PLAN = ServingPlan(batch=8.0, input_len=100.0, output_len=10.0)


def table(
    most: float = 4.0, pool: float = 1e9, mixing: float = 1.0, request: float = 0.0, **plan: Any
) -> PassTable:
    """A pass of n takes 1 + 0.1 n s; a prompt 0.01 s a token and of the square of its length a
    millionth for its attention; alone no less than half a second."""
    rows = [[1.0 + 0.1 * many] * 2 for many in (1.0, most)]
    lengths = np.arange(1.0, 601.0)
    core = 1e-6 * lengths**2
    own = replace(PLAN, **{"batching": "mixed", "admission": "mean", "chunk": 200.0, **plan})
    added = (0.01 * lengths).tolist()
    return PassTable(
        running=[1.0, most], contexts=[0.0, 1e6], decode=rows, lengths=lengths.tolist(),
        prompt=(0.01 * lengths + core).tolist(),
        alone=np.maximum(0.01 * lengths + core, 0.5).tolist(), core=core.tolist(),
        tokens=lengths.tolist(), beside=[added, added], pool=pool, plan=own,
        own=replace(BARE, mixing=mixing, request=request),
    )  # fmt: skip


class Engine:
    """The same engine, one pass at a time."""

    def __init__(
        self,
        own: PassTable,
        given: list[float],
        wanted: list[int],
        came: list[float] | None,
        clients: int,
    ) -> None:
        self.t, self.given, self.wanted = own, given, wanted
        self.closed, self.turn = came is None, own.plan.launching * own.own.request
        count, self.most = len(given), int(own.running[-1])
        self.came = list(came) if came else [0.0 if k < clients else math.inf for k in range(count)]
        self.first, self.last = [math.nan] * count, [math.nan] * count
        self.waiting, self.reading = [], []  # type: ignore[var-annotated]
        self.live: list[int] = []  # oldest first
        self.have, self.cached = [0] * count, [0.0] * count
        self.now, self.seen, self.step, self.looked = 0.0, 0.0, 0, 0
        self.crowded, self.preempted, self.joined = False, 0, set()  # type: ignore[var-annotated]

    def fits(self, one: int) -> bool:
        """Of those let in whole requests count, or what is cached of them now."""
        inside = [*self.live, *(r[0] for r in self.reading)]
        if self.t.plan.admission == "whole":
            return sum(self.given[k] + self.wanted[k] for k in (*inside, one)) <= self.t.pool
        held = sum(self.given[k] + self.have[k] for k in inside)
        return held + self.given[one] + self.have[one] <= self.t.pool

    def looks(self) -> bool:
        plan = self.t.plan
        enough = len(self.waiting) >= WAITING_SHARE * len(self.live)
        if plan.polling <= 1 or not self.live or self.reading:
            return True
        return (plan.batching == "waiting" and enough) or self.step - self.looked >= plan.polling

    def admit(self) -> None:
        if self.crowded or not self.waiting or not self.looks():
            return
        if not self.live and not self.reading:
            self.seen = self.now
        ahead = self.t.plan.scheduling == "overlapped"
        while self.waiting and len(self.reading) + len(self.live) < self.most:
            one = self.waiting[0]
            if (ahead and self.came[one] > self.seen) or not self.fits(one):
                return
            self.waiting.pop(0)
            fresh = max(self.given[one] * (1.0 - self.t.plan.cached), 1.0)
            self.reading.append([one, fresh + self.have[one], self.given[one] - fresh])

    def read(self) -> None:
        """Parts of prompts up to a chunk, beside those that decode or apart."""
        beside, left, cores, alone = self.t.plan.batching == "mixed", self.t.plan.chunk, 0.0, 0.0
        many, done = len(self.live) if beside else 0, []
        self.seen = self.now
        while self.reading and left > 0:
            one, rest, begin = self.reading[0]
            piece = min(rest, left)
            cores += 1e-6 * ((begin + piece) ** 2 - begin**2)
            spent = 0.01 * piece + 1e-6 * ((begin + piece) ** 2 - begin**2)
            alone += spent
            if not done:
                alone = max(alone, 0.01 * piece + 1e-6 * piece**2, 0.5)
            left -= piece
            self.reading[0] = [one, rest - piece, begin + piece]
            if rest <= piece:
                self.reading.pop(0)
                done.append(one)
        if many:
            more = 0.01 * (self.t.plan.chunk - left) + cores
            self.now += 1.0 + 0.1 * many + self.t.own.mixing * more
            self.decode()
        else:
            self.now += alone
            self.step += beside
        self.looked, self.crowded = self.step, False
        for one in done:
            if not self.have[one]:
                self.first[one] = self.now
            self.have[one] += 1
            self.live.append(one)

    def decode(self) -> None:
        self.step += 1
        for one in self.live:
            self.have[one] += 1

    def passes(self) -> None:
        """One pass that decodes, or the youngest gives way."""
        held = sum(self.given[k] + self.have[k] for k in self.live)
        if self.t.plan.admission != "whole" and held + len(self.live) > self.t.pool:
            one = self.live.pop()
            self.waiting.insert(0, one)
            self.preempted, self.crowded = self.preempted + 1, True
            return
        self.seen = self.now
        self.now += 1.0 + 0.1 * len(self.live)
        self.decode()
        self.crowded = False
        # A look that found nobody lay before this pass.
        missed = self.step - 1 - self.looked >= self.t.plan.polling
        if missed and not self.waiting and self.t.plan.batching != "waiting":
            self.looked = self.step - 1

    def run(self) -> None:
        count, ended = len(self.given), 0
        sent = sum(math.isfinite(one) for one in self.came)
        while ended < count:
            for one in range(count):
                if one not in self.joined and self.came[one] <= self.now:
                    self.joined.add(one)
                    self.waiting.append(one)
            self.admit()
            if self.reading:
                self.read()
            elif self.live:
                self.passes()
            else:
                ahead = [self.came[k] for k in range(count) if k not in self.joined]
                self.now = max(self.now, min(ahead, default=self.now))
            for one in [k for k in self.live if self.have[k] >= self.wanted[k]]:
                self.live.remove(one)
                self.last[one] = self.now
                ended += 1
                if self.closed and sent < count:
                    self.came[sent] = self.now + self.turn
                    sent += 1


KINDS = [
    {},
    {"batching": "apart"},
    {"batching": "waiting", "polling": 6.0},
    {"batching": "apart", "polling": 5.0},
    {"polling": 2.0},
    {"polling": 3.0},
    {"scheduling": "overlapped"},
    {"scheduling": "overlapped", "batching": "apart"},
    {"admission": "whole"},
    {"cached": 0.4, "chunk": 64.0},
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("open_", [True, False])
def test_leaps_are_the_passes_that_they_leap_over(kind: dict[str, Any], open_: bool) -> None:
    """Of caches that hold all and of ones so small that the youngest give way."""
    lots = np.random.default_rng(len(kind) + 7 * open_)
    for number in range(12):
        count, small = int(lots.integers(3, 14)), bool(lots.random() < 0.5)
        given = 5.0 * lots.integers(2, 52, count)
        wanted = lots.integers(1, 30, count)
        came = np.sort(np.round(lots.uniform(0.0, 60.0, count), 2)) if open_ else None
        most = float(lots.integers(2, 6))
        pool = float(given.max() + wanted.max() + lots.integers(0, 200)) if small else 1e9
        own = table(most, pool, float(lots.choice([1.0, 0.5])), 0.25 * (not open_), **kind)
        clients = int(lots.integers(1, 6))
        found = serve(own, given, wanted.astype(float), came, 0 if open_ else clients)
        times = None if came is None else came.tolist()
        played = Engine(own, given.tolist(), wanted.tolist(), times, clients)
        played.run()
        label = (number, kind, most, pool, clients)
        assert found.preempted == played.preempted, label
        assert found.first == pytest.approx(np.array(played.first) + played.turn), label
        assert found.last == pytest.approx(np.array(played.last) + played.turn), label
        if not open_:
            assert found.arrival == pytest.approx(np.array(played.came)), label
        if not found.preempted:
            # Times between tokens are all of the time between first and last ones.
            times, many = found.gaps
            assert many.sum() == (wanted - 1).sum(), label
            assert (times * many).sum() == pytest.approx((found.last - found.first).sum()), label


SOME = Served(
    np.array([0.0, 1.0, 2.0, 3.0]), np.array([1.0, 4.0, 3.0, 7.0]), np.array([5.0, 4.0, 9.0, 13.0]),
    np.array([5.0, 1.0, 4.0, 3.0]), 0, np.array([[2.0, 1.0], [1.0, 3.0]]),
)  # fmt: skip


def test_what_became_of_requests_by_hand() -> None:
    assert SOME.ttft.tolist() == [1.0, 3.0, 1.0, 4.0]
    assert SOME.tpot.tolist() == [1.0, 0.0, 2.0, 3.0]
    assert SOME.e2e.tolist() == [5.0, 3.0, 7.0, 10.0]
    assert SOME.requests_per_s == pytest.approx(4 / 13)
    assert SOME.attained(ttft=3.0) == 0.75
    assert SOME.attained(tpot=1.0) == 0.5
    assert SOME.attained() == 1.0
    later = SOME.after(2)
    assert (later.arrival.tolist(), later.last.tolist()) == ([2.0, 3.0], [9.0, 13.0])
    assert later.gaps is SOME.gaps
    told = SOME.summary()
    for name in ("ttft", "tpot", "e2e"):
        values = getattr(SOME, name)
        assert told[name]["mean"] == values.mean()
        assert [told[name][f"p{q}"] for q in QUANTILES] == np.percentile(values, QUANTILES).tolist()
    assert told["itl"]["mean"] == 1.25
    assert "itl" not in replace(SOME, gaps=np.empty((2, 0))).summary()


def test_percentiles_of_what_occurs_often_are_those_of_all_of_them() -> None:
    values, counts = np.array([5.0, 1.0, 3.0]), np.array([2.0, 60.0, 38.0])
    every = np.sort(np.repeat(values, counts.astype(int)))
    found = _weighted(values, counts)
    assert found["mean"] == pytest.approx(every.mean())
    for q in QUANTILES:
        assert found[f"p{q}"] == np.percentile(every, q, method="inverted_cdf")
    assert QUANTILES == (50, 90, 95, 99)


def test_loads_that_cannot_be_are_refused() -> None:
    ones = np.ones(2)
    with pytest.raises(InputError, match="state arrivals, or at least one client"):
        serve(table(), ones, ones)
    with pytest.raises(InputError, match="longer than the cache of 150 tokens"):
        serve(table(pool=150.0), np.array([10.0, 100.0]), np.array([1.0, 51.0]), clients=1)
    assert serve(table(pool=150.0), np.full(1, 100.0), np.full(1, 50.0), clients=1).preempted == 0


def test_passes_grow_with_what_is_cached() -> None:
    """A second and a thousandth for each cached token: the k-th of ten passes takes it of 100
    tokens and k - 1/2 more, so that a leap over them takes their sum."""
    own = replace(table(), contexts=[0.0, 1e6], decode=[[1.0, 1001.0]] * 2)
    found = serve(own, np.array([100.0]), np.array([11.0]), clients=1)
    spent = sum(1.0 + 1e-3 * (101.0 + k + 0.5) for k in range(10))
    assert float(found.last[0] - found.first[0]) == pytest.approx(spent)

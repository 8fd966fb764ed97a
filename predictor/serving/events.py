"""Requests one by one: a discrete-event engine with continuous batching, chunked prompts, a paged
cache and preemption.

Passes that only decode are all alike until a request ends, arrives or needs room, so that time
leaps from one such event to the next. Pass times are looked up in tables that the analytical model
fills once per plan.

Scheduling: Yu et al. 2022 (Orca); Agrawal et al. 2024 (Sarathi-Serve: passes that mix decoding with
parts of prompts); Kwon et al. 2023 (vLLM: preemption by recomputation).
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import replace
from heapq import heapify, heappop, heappush

import numpy as np

from predictor.arrays import Array
from predictor.errors import InputError
from predictor.records import dataclass
from predictor.serving.latency import WAITING_SHARE
from predictor.serving.tables import PassTable


@dataclass(frozen=True, slots=True, eq=False)
class Served:
    """What became of each request; arrays over requests.

    arrival, first, last   times of its arrival, first and last token [s]
    output_len             tokens
    preempted              how often requests lost their cache and were read again
    gaps                   times between tokens [s] and how many there were of each, (2, gaps);
                           pooled over all requests, as benchmark clients of vLLM and SGLang do
    replicas               whose requests these are
    """

    arrival: Array
    first: Array
    last: Array
    output_len: Array
    preempted: int
    gaps: Array
    replicas: int = 1

    @property
    def ttft(self) -> Array:
        """Time to first token [s]."""
        return np.asarray(self.first - self.arrival)

    @property
    def tpot(self) -> Array:
        """Mean time per token after the first [s]."""
        return np.asarray((self.last - self.first) / np.maximum(self.output_len - 1.0, 1.0))

    @property
    def e2e(self) -> Array:
        """Time to last token [s]."""
        return np.asarray(self.last - self.arrival)

    @property
    def requests_per_s(self) -> float:
        """Rate at which requests of a replica ended, over the whole run."""
        each = len(self.last) / self.replicas
        return float(each / (self.last.max() - self.arrival.min()))

    def after(self, warmup: int, ending: int = 0) -> Served:
        """The same without the first requests of each replica, and the last ones, whose company
        leaves before them; gaps stay those of all."""
        names = ("arrival", "first", "last", "output_len")
        own = slice(warmup * self.replicas, len(self.arrival) - ending * self.replicas)
        return replace(self, **{name: getattr(self, name)[own] for name in names})

    def attained(self, ttft: float = math.inf, tpot: float = math.inf) -> float:
        """Share of the requests that meet both latencies [s] (goodput of Zhong et al. 2024,
        DistServe, is that share of their rate)."""
        return float(np.mean((self.ttft <= ttft) & (self.tpot <= tpot)))

    def summary(self) -> dict[str, dict[str, float]]:
        """Mean and percentiles of each latency, and of the times between tokens [s]."""
        found = {
            name: {
                "mean": float(values.mean()),
                **{f"p{q}": float(np.percentile(values, q)) for q in QUANTILES},
            }
            for name, values in (("ttft", self.ttft), ("tpot", self.tpot), ("e2e", self.e2e))
        }
        if self.gaps.size:
            found["itl"] = _weighted(*self.gaps)
        return found


QUANTILES = (50, 90, 95, 99)
"""Percentiles that are told."""


def _weighted(values: Array, counts: Array) -> dict[str, float]:
    """Mean and percentiles of values that occur so many times each."""
    order = np.argsort(values)
    below = np.cumsum(counts[order])
    at = np.searchsorted(below, np.array(QUANTILES) / 100.0 * below[-1])
    found = {"mean": float(np.average(values, weights=counts))}
    return found | {
        f"p{q}": float(values[order][i]) for q, i in zip(QUANTILES, at.tolist(), strict=True)
    }


def enforce_load(
    table: PassTable, input_len: Array, output_len: Array, arrivals: Array | None, clients: int
) -> None:
    """Raise InputError where a request is longer than the cache, or neither load is stated."""
    if arrivals is None and clients < 1:
        raise InputError("state arrivals, or at least one client")
    if float(np.max(input_len + output_len)) > table.pool:
        raise InputError(f"a request is longer than the cache of {table.pool:.0f} tokens")


def serve(
    table: PassTable,
    input_len: Array,
    output_len: Array,
    arrivals: Array | None = None,
    clients: int = 0,
) -> Served:
    """Serve requests on one attention replica.

    input_len, output_len   tokens of each request
    arrivals                when each arrives [s], rising; None: `clients` send the next request
                            when they have the answer to the last

    Raises InputError where a request is longer than the cache, or neither load is stated.
    """
    enforce_load(table, input_len, output_len, arrivals, clients)
    came = None if arrivals is None else arrivals.tolist()
    engine = EngineRun(table, input_len.tolist(), output_len.tolist(), came, clients)
    engine.run()
    return engine.served(1)


Part = tuple[int, float, float, list[int]]
"""What a pass over prompts does: sequences that decode in it, its time without prompts and what
these add [s], requests whose prompts it ends."""


class EngineRun:
    """One engine that reads and decodes, and its requests, by position.

    came, first, last   times of arrival, first and last token [s]
    sent       requests whose arrival is known; `turn`: time from a client's answer to the arrival
               of its next request, that of the host before a first token [s]
    waiting    requests without room yet
    reading    those whose prompts are being read: request, tokens that are left, and those that
               its next part attends to beside itself
    live       those that decode; `order` has them oldest first, with some that are gone
    ending     heap: pass in which a running request ends, request
    done       tokens that a request has; `started`: pass in which its running began
    cached     tokens in the cache; `reserved`: of requests of full length
    until      when the next one arrives [s]; inf: none, as far as is known
    apart      whether prompts have passes of their own; `holds`: not before enough of them wait
    polling    passes between two looks for requests; `looked`: pass of the last one
    gaps       times between tokens, and how many of each, in turn; `stalls`: passes over prompts
               since the last one that decodes, and how many requests were running before each
    ahead      whether passes are prepared while those before them run: a pass takes up none that
               came after the start of the one before it, `seen` (nan before the first)
    decode, beside   times of passes that decode, and what prompts add to them (`tables.Lookup`);
               `hiding`: in what their attention hides
    within     time of the attention within prompts of so many tokens, of those that were read
    watched    whether somebody looks at it when the next request comes, room or not
    crowded    whether a request had to give way, and no pass has been made since: none is let in
               (Kwon et al. 2023; vLLM's scheduler takes up no waiting request in such a pass)
    """

    __slots__ = (
        "ahead", "apart", "arrived", "beside", "cached", "came", "chunk", "clients", "count",
        "crowded", "decode", "done", "ending", "finished", "first", "fresh", "gaps", "given",
        "hiding", "holds", "last", "live", "looked", "mixing", "most", "now", "open", "order",
        "polling", "pool", "preempted", "reading", "reserved", "seen", "sent", "stalls",
        "started", "step", "table", "turn", "until", "waiting", "wanted", "watched", "whole",
        "within",
    )  # fmt: skip

    def __init__(
        self,
        table: PassTable,
        given: list[float],
        wanted: list[float],
        arrivals: list[float] | None,
        clients: int,
    ) -> None:
        plan = table.plan
        self.table, self.pool, self.most = table, table.pool, int(table.running[-1])
        (self.decode, self.beside), self.hiding = table.lookups(), table.hiding()
        self.mixing, self.within = float(table.own.mixing), {0.0: 0.0}
        self.chunk, self.fresh = float(plan.chunk), 1.0 - float(plan.cached)
        self.whole = plan.admission == "whole"
        self.apart, self.holds = plan.batching != "mixed", plan.batching == "waiting"
        self.polling, self.looked, self.crowded = int(plan.polling), 0, False
        self.ahead, self.seen = plan.scheduling == "overlapped", math.nan
        self.given, self.wanted, self.count = given, wanted, len(given)
        self.open = arrivals is not None
        self.turn = float(plan.launching * table.own.request)
        self.came = arrivals or [0.0] * self.count
        self.first, self.last = [0.0] * self.count, [0.0] * self.count
        self.done, self.started = [0] * self.count, [0] * self.count
        self.arrived = 0 if self.open else min(clients, self.count)
        self.sent = self.count if self.open else self.arrived
        self.waiting: deque[int] = deque(range(self.arrived))
        self.reading: deque[tuple[int, float, float]] = deque()
        self.ending: list[tuple[int, int]] = []
        self.order: list[int] = []
        self.live: set[int] = set()
        self.now, self.cached, self.reserved = 0.0, 0.0, 0.0
        self.until = self.came[0] if self.open and self.count else math.inf
        self.step = self.finished = self.preempted = 0
        self.gaps: list[float] = []
        self.stalls: list[tuple[float, int]] = []
        self.watched = False

    def run(self) -> None:
        """Serve all requests."""
        while self.finished < self.count:
            self.advance()

    def advance(self) -> None:
        """Up to the end of the next pass, or the next event."""
        if self.until <= self.now or self.watched:
            self.arrive()
        if self.waiting:
            self.admit()
        if self.reading:
            self.read()
        elif self.live:
            if not self.leap():
                return
        else:
            self.now = max(self.now, self.until)
        if self.ending and self.ending[0][0] <= self.step:
            self.finish()

    def arrive(self) -> None:
        """Requests that have come by now wait."""
        came, now, arrived = self.came, self.now, self.arrived
        while arrived < self.sent and came[arrived] <= now:
            self.waiting.append(arrived)
            arrived += 1
        self.arrived = arrived
        self.until = came[arrived] if arrived < self.sent else math.inf

    def admit(self) -> None:
        """Let requests in, in their order, as long as there is room."""
        waiting, reading, room = self.waiting, self.reading, self.most - len(self.live)
        if self.crowded or (self.polling > 1 and not self._looks()):
            return
        if not self.live and not reading:
            self.seen = self.now
        while waiting and len(reading) < room:
            one = waiting[0]
            if self.ahead and self.came[one] > self.seen:
                return
            length, done = self.given[one], self.done[one]
            whole, tokens = length + self.wanted[one], length + done
            full = self.reserved + whole if self.whole else self.cached + tokens
            if full > self.pool or (self.watched and self.blocked(one)):
                return
            waiting.popleft()
            fresh = self.new_tokens(one)
            reading.append((one, fresh + done, length - fresh))
            self.reserved += whole
            self.cached += tokens

    def new_tokens(self, one: int) -> float:
        """Tokens of a prompt that are to be read."""
        return max(self.given[one] * self.fresh, 1.0)

    def blocked(self, one: int) -> bool:
        """Whether something else than room keeps a request out."""
        return False

    def read_out(self, one: int) -> None:
        """A prompt has been read."""

    def _looks(self) -> bool:
        """Whether the engine looks for requests before the next pass: always where nothing runs or
        prompts have been read, else every so many passes, or once enough wait."""
        if not self.live or self.reading:
            return True
        if self.holds and len(self.waiting) >= WAITING_SHARE * len(self.live):
            return True
        return self.step - self.looked >= self.polling

    def read(self) -> None:
        """One pass over parts of prompts, with one token of every request that decodes unless
        prompts have passes of their own."""
        part = self.take_up()
        self.make(part, part[1] + part[2])

    def take_up(self) -> Part:
        """The prompts of the next pass, which is about to be made."""
        reading, self.seen = self.reading, self.now
        many = 0 if self.apart else len(self.live)
        budget, cores, work = self.chunk, 0.0, 0.0
        read: list[int] = []
        while reading and budget > 0:
            one, left, begin = reading[0]
            piece = left if left <= budget else budget
            end = begin + piece
            if not many:
                work += self._spent(begin, end)
                if not read:
                    work = max(work, self.table.prompts(piece, True))
            elif begin:
                cores += self._core(end) - self._core(begin)
            else:
                cores += self._core(end)
            budget -= piece
            if left <= piece:
                reading.popleft()
                read.append(one)
            else:
                reading[0] = one, left - piece, end
        if not many:
            return 0, 0.0, work if self.live else max(work, self.table.stream), read
        fresh = self.chunk - budget
        shown = cores - self.hiding.at(many, fresh)
        added = self.beside.at(many, fresh) + (shown if shown > 0.0 else 0.0)
        usual = self.decode.at(many, self.cached / many)
        return many, usual, self.mixing * added if added > 0.0 else 0.0, read

    def make(self, part: Part, spent: float) -> None:
        """The pass over what was taken up, in the time that it takes [s]."""
        many, _, _, read = part
        self.now += spent
        if many:
            self.step += 1
            self.cached += many
            self.gaps += (spent, many)
        else:
            self.step += not self.apart
            self.stalls.append((spent, len(self.live)))
        self.looked, self.crowded = self.step, False
        if read:
            self._start(read)

    def _core(self, length: float) -> float:
        """Time of the attention within a prompt of so many tokens [s]."""
        found = self.within.get(length)
        if found is None:
            found = self.within[length] = self.table.cores(length)
        return found

    def _spent(self, begin: float, end: float) -> float:
        """What a part of a prompt costs [s]."""
        prompts = self.table.prompts
        return prompts(end, False) - (prompts(begin, False) if begin else 0.0)

    def _start(self, read: list[int]) -> None:
        """Requests whose prompts have been read have a token, and decode."""
        done, started, wanted, step = self.done, self.started, self.wanted, self.step
        for one in read:
            tokens = done[one]
            if not tokens:
                self.first[one] = self.now
            done[one] = tokens + 1
            started[one] = begun = step - tokens - 1
            self.cached += 1
            heappush(self.ending, (begun + int(wanted[one]), one))
            if self.watched:
                self.read_out(one)
        self.live.update(read)
        self.order += read

    def leap(self) -> bool:
        """Passes that only decode, up to the next event; False where one request had to give way
        instead."""
        if not (leap := self.passes()):
            return False
        many = len(self.live)
        self.leapt(leap, self.decode.at(many, self.cached / many + 0.5 * leap))
        return True

    def passes(self, pace: float = 0.0) -> int:
        """Passes that only decode, up to the next event; 0: one request had to give way.

        pace   time that each of them takes at least [s]
        """
        many, until = len(self.live), self.until
        leap = self.ending[0][0] - self.step
        if not self.whole:
            leap = min(leap, int((self.pool - self.cached) // many))
        if leap < 1:
            self._preempt()
            return 0
        if self.waiting and (self.crowded or self.polling > 1):
            leap = 1 if self.crowded else self._until_look(leap)
        elif self.waiting and self.ahead and self.came[self.waiting[0]] > self.seen:
            leap = 1
        seeks = self.watched or self.polling > 1 or many + len(self.waiting) < self.most
        if leap > 1 and until < math.inf and seeks:
            leap = self._before(until, leap, pace)
        return leap

    def _before(self, until: float, most: int, least: float) -> int:
        """Passes that begin before a time, at most so many, each of which takes so long at least:
        as they get longer, fewer do."""
        many, left, leap = len(self.live), until - self.now, 0
        for _ in range(2):  # at the first one's pace, then at that of the middle one
            pace = max(self.decode.at(many, self.cached / many + 0.5 * leap), least)
            leap = max(min(int(left / pace) + 1, most), 1)
        return leap

    def leapt(self, leap: int, each: float) -> None:
        """So many passes that only decode, of so long each [s]."""
        many = len(self.live)
        self.seen = self.now + (leap - 1) * each
        self.now += leap * each
        resumed = self._resume(each) if self.stalls else 0
        self.gaps += (each, many * leap - resumed)
        self.step += leap
        self.cached += many * leap
        self.crowded = False
        if not self.waiting and not self.holds:
            # Looks that found nobody; that at the end of this pass is yet to come.
            self.looked += (self.step - 1 - self.looked) // self.polling * self.polling

    def _resume(self, each: float) -> int:
        """Those that have waited for passes over prompts get their next token; returns how many."""
        waited, back = 0.0, 0
        for at in range(len(self.stalls) - 1, -1, -1):
            spent, running = self.stalls[at]
            waited += spent
            since = running - (self.stalls[at - 1][1] if at else 0)
            if since > 0:
                self.gaps += (waited + each, since)
                back += since
        self.stalls.clear()
        return back

    def _until_look(self, leap: int) -> int:
        """Passes until the engine looks for requests again, at most so many."""
        return min(leap, max(self.looked + self.polling - self.step, 1))

    def _preempt(self) -> None:
        """No room for another token of everyone: the youngest gives way and is read again."""
        order = self.order
        while order[-1] not in self.live:
            order.pop()
        one = order.pop()
        self.live.discard(one)
        self.done[one] = self.step - self.started[one]
        self.cached -= self.given[one] + self.done[one]
        self.reserved -= self.given[one] + self.wanted[one]
        self.ending.remove((self.started[one] + int(self.wanted[one]), one))
        heapify(self.ending)
        self.waiting.appendleft(one)
        self.preempted += 1
        self.crowded = True

    def finish(self) -> None:
        """Requests that have their last token go; a client then sends the next one."""
        ending, step = self.ending, self.step
        while ending and ending[0][0] <= step:
            one = heappop(ending)[1]
            self.live.discard(one)
            self.last[one] = self.now
            length = self.given[one] + self.wanted[one]
            self.cached -= length
            self.reserved -= length
            self.finished += 1
            self.ended(one)
        if len(self.order) > 4 * self.most:
            self.order = [one for one in self.order if one in self.live]

    def ended(self, one: int) -> None:
        """A request has its last token: its client sends the next one."""
        sent = self.sent
        if not self.open and sent < self.count:
            self.came[sent] = came = self.now + self.turn
            if sent == self.arrived:
                self.until = came
            self.send(sent)
            self.sent = sent + 1

    def send(self, one: int) -> None:
        """A client's request is on its way."""

    def served(self, every: int) -> Served:
        """What became of every so many-th request."""
        start, head, tail, tokens = (
            np.array(values, float)[::every]
            for values in (self.came, self.first, self.last, self.wanted)
        )
        head, tail = head + self.turn, tail + self.turn
        return Served(start, head, tail, tokens, self.preempted, self.pooled())

    def pooled(self) -> Array:
        """Times between tokens, and how many there were of each, (2, gaps)."""
        return np.array((self.gaps[::2], self.gaps[1::2]), float)

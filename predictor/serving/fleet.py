"""Several engines behind a router, requests one by one: sessions, cached prefixes, adapters,
replicas that are started and stopped as the load asks.

Every replica is an `events.EngineRun`; the one that is furthest behind makes the next step, so that
what one does is known to the router when it sends the next request.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, OrderedDict
from collections.abc import Callable

import numpy as np

from predictor.errors import InputError
from predictor.records import dataclass
from predictor.serving.events import EngineRun, Served, enforce_load
from predictor.serving.prefixes import CacheTier, Prefixes
from predictor.serving.tables import PassTable
from predictor.serving.workload import Workload


@dataclass(frozen=True, slots=True)
class FleetSettings:
    """What is around the engines.

    replicas   engines at the start; `most`: that there may be
    target     requests in flight for each, above which another is started; inf: none is
    cold       time from that to its first request [s]
    router     of `CHOICES`
    think      time between an answer and the next turn, or a client's next request [s]
    prefixes   whether prompts find the cache of earlier ones; `tiers` beside the device's
    slots      adapters that may be used in one batch; 0: no limit
    adapter    time of loading one that is not on the device [s]
    """

    replicas: int = 1
    most: int = 1
    target: float = math.inf
    cold: float = 0.0
    router: str = "round-robin"
    think: float = 0.0
    prefixes: bool = False
    tiers: tuple[CacheTier, ...] = ()
    slots: int = 0
    adapter: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class FleetServed:
    """What became of the requests, and of the fleet.

    cached    share of the prompts' tokens that were not read again
    replicas  most that there were at a time
    seconds   replica-seconds, their starts with them
    """

    served: Served
    cached: float
    replicas: int
    seconds: float


class Replica(EngineRun):
    """One engine of a fleet.

    due      heap of requests whose prefix or adapter is being loaded: time, request
    horizon  when the router sends the next request [s]
    soon     no request of it ends before [s]; inf: it has none
    ready    when it takes the first one [s]; `stopped`: when it took the last; inf: not yet
    """

    __slots__ = ("due", "fleet", "horizon", "live_adapters", "ready", "resident", "soon",
                 "stopped", "store", "work")  # fmt: skip

    def __init__(self, table: PassTable, fleet: _Running, ready: float) -> None:
        work = fleet.work
        super().__init__(table, fleet.given, fleet.wanted, fleet.came, 0)
        self.came, self.first, self.last = fleet.came, fleet.first, fleet.last
        self.fleet, self.work, self.ready, self.stopped = fleet, work, ready, math.inf
        self.due: list[tuple[float, int]] = []
        self.horizon, self.soon, self.now, self.watched = math.inf, math.inf, ready, True
        self.store = Prefixes(fleet.around.tiers)
        self.resident: OrderedDict[int, float] = OrderedDict()
        self.live_adapters: Counter[int] = Counter()

    @property
    def inside(self) -> int:
        """Requests that it has."""
        return len(self.live) + len(self.reading) + len(self.waiting) + len(self.due)

    def _earliest(self) -> float:
        """No request of it ends before [s]: those that decode need so many passes, those that are
        to be read all of theirs, and no pass takes less than the next one would by itself."""
        many = len(self.live)
        if not many:
            if self.reading or self.waiting:
                return self.now
            return self.due[0][0] if self.due else math.inf
        left = self.ending[0][0] - self.step
        later = (*(one for one, _, _ in self.reading), *self.waiting, *(one for _, one in self.due))
        for one in later:
            left = min(left, int(self.wanted[one]) - self.done[one])
        return self.now + left * self.decode.at(many, self.cached / many)

    def advance(self) -> None:
        """Up to the end of the next pass, or the next event."""
        super().advance()
        if self.fleet.follows:
            self.soon = self._earliest()

    def receive(self, time: float, one: int) -> None:
        """A request comes: what it needs beside its own tokens is loaded, if it is not here."""
        if not self.inside:
            self.now = max(self.now, time)
        load = self._prefix(one) + self._adapter(one, max(time, self.ready))
        if load > 0:
            heapq.heappush(self.due, (max(time, self.ready) + load, one))
        else:
            self.waiting.append(one)
        if self.fleet.follows:
            self.soon = self._earliest()

    def _prefix(self, one: int) -> float:
        if not self.fleet.around.prefixes:
            return 0.0
        have, load = self.store.take(self.work.pieces[one], self.given[one])
        self.fleet.have[one] = have
        return load

    def _adapter(self, one: int, time: float) -> float:
        """Adapters stay on the device until others take their place; `resident` has when each is
        there."""
        if not self.work.adapter:
            return 0.0
        name, around = self.work.adapter[one], self.fleet.around
        there = self.resident.setdefault(name, time + around.adapter)
        self.resident.move_to_end(name)
        while around.slots and len(self.resident) > around.slots:
            self.resident.popitem(last=False)
        return max(there - time, 0.0)

    def arrive(self) -> None:
        """Requests whose prefix has been loaded wait."""
        while self.due and self.due[0][0] <= self.now:
            self.waiting.append(heapq.heappop(self.due)[1])
        self.until = min(self.horizon, self.due[0][0] if self.due else math.inf)

    def new_tokens(self, one: int) -> float:
        """Tokens of a prompt that are to be read."""
        if self.work.adapter:
            self.live_adapters[self.work.adapter[one]] += 1
        return max(self.given[one] * self.fresh - self.fleet.have[one], 1.0)

    def blocked(self, one: int) -> bool:
        """Whether a batch has no room for one more adapter."""
        slots = self.fleet.around.slots
        if not slots or not self.work.adapter or self.work.adapter[one] in self.live_adapters:
            return False
        return len(self.live_adapters) >= slots

    def _preempt(self) -> None:
        super()._preempt()
        self._leave(self.waiting[0])

    def _leave(self, one: int) -> None:
        """A request no longer runs, nor does its adapter for it."""
        if self.work.adapter:
            name = self.work.adapter[one]
            self.live_adapters[name] -= 1
            if not self.live_adapters[name]:
                del self.live_adapters[name]

    def read_out(self, one: int) -> None:
        """A prompt has been read: others may begin with it."""
        if self.fleet.around.prefixes:
            self.store.put(self.work.pieces[one])
            self.store.settle(max(self.pool - self.cached, 0.0))

    def ended(self, one: int) -> None:
        """A request has its last token."""
        self._leave(one)
        following = self.work.next[one]
        if self.fleet.around.prefixes and following >= 0:
            self.store.put(self.work.pieces[following][:-1])
        self.fleet.ended(self.now, following)


def _round_robin(ready: list[Replica], turn: int, one: int) -> Replica:
    return ready[turn % len(ready)]


def _least_loaded(ready: list[Replica], turn: int, one: int) -> Replica:
    return min(ready, key=lambda replica: replica.inside)


def _by_prefix(ready: list[Replica], turn: int, one: int) -> Replica:
    """The one that has most of the prompt, unless it has twice the load of another."""
    least = min(replica.inside for replica in ready)
    fair = [replica for replica in ready if replica.inside <= 2 * least + 1]
    pieces = ready[0].work.pieces[one]
    return min(fair, key=lambda replica: (-replica.store.known(pieces), replica.inside))


CHOICES: dict[str, Callable[[list[Replica], int, int], Replica]] = {
    "round-robin": _round_robin,
    "least-loaded": _least_loaded,
    "prefix": _by_prefix,
}
"""Which of the replicas that are ready gets a request."""


NEXT = -1
"""Instead of a request: the first one of the next session."""


class _Running:
    """A fleet at work: requests that are to come, some of which follow an answer, and its
    replicas."""

    def __init__(
        self, table: PassTable, work: Workload, around: FleetSettings, clients: int
    ) -> None:
        self.table, self.work, self.around = table, work, around
        self.given, self.wanted = work.input_len.tolist(), work.output_len.tolist()
        self.came, self.first, self.last = ([0.0] * work.count for _ in range(3))
        self.have = [0.0] * work.count
        self.coming: list[tuple[float, int]] = []
        self.closed, self.begun = work.arrival is None, 0
        self.sessions = iter(work.begins)
        if work.arrival is not None:
            self.coming = list(zip(work.arrival.tolist(), work.begins, strict=True))
            self.begun = len(work.begins)
        for _ in range(clients if self.closed else 0):
            self.begin(0.0)
        heapq.heapify(self.coming)
        self.left, self.turn = work.count, 0
        self.follows = self.closed or any(one >= 0 for one in work.next)
        self.replicas = [Replica(table, self, 0.0) for _ in range(around.replicas)]
        self.stopped: list[Replica] = []
        self.most = around.replicas

    def begin(self, time: float) -> None:
        """A client starts the next session: of those that start later, who does so first."""
        if self.begun < len(self.work.begins):
            heapq.heappush(self.coming, (time, NEXT))
            self.begun += 1

    def ended(self, time: float, following: int) -> None:
        """A request has ended: its session goes on, or its client begins another."""
        self.left -= 1
        if following >= 0:
            heapq.heappush(self.coming, (time + self.around.think, following))
        elif self.closed:
            self.begin(time + self.around.think)

    def run(self) -> None:
        """Until all requests have ended."""
        while self.left:
            horizon = self.coming[0][0] if self.coming else math.inf
            busy = [one for one in (*self.replicas, *self.stopped)
                    if one.inside and one.now < horizon]  # fmt: skip
            if busy:
                behind = min(busy, key=lambda one: one.now)
                behind.horizon = min(horizon, self.answered(behind))
                behind.advance()
            else:
                self.send(*heapq.heappop(self.coming))

    def answered(self, apart: Replica) -> float:
        """Before when no request comes that waits for an answer of another replica [s]."""
        if not self.follows:
            return math.inf
        others = [one.soon for one in (*self.replicas, *self.stopped) if one is not apart]
        return min(others, default=math.inf) + self.around.think

    def send(self, time: float, one: int) -> None:
        """Route a request; start or stop replicas."""
        one = next(self.sessions) if one == NEXT else one
        self.came[one] = time
        self._scale(time)
        ready = [replica for replica in self.replicas if replica.ready <= time]
        ready = ready or [min(self.replicas, key=lambda replica: replica.ready)]
        CHOICES[self.around.router](ready, self.turn, one).receive(time, one)
        self.turn += 1

    def _scale(self, time: float) -> None:
        around = self.around
        if not math.isfinite(around.target):
            return
        inside = sum(replica.inside for replica in self.replicas)
        wanted = math.ceil((inside + 1) / around.target)
        wanted = min(max(wanted, around.replicas), around.most)
        while len(self.replicas) < wanted:
            self.replicas.append(Replica(self.table, self, time + around.cold))
        while len(self.replicas) > wanted and not self.replicas[-1].inside:
            last = self.replicas.pop()
            last.stopped = time
            self.stopped.append(last)
        self.most = max(self.most, len(self.replicas))


def serve_fleet(
    table: PassTable, work: Workload, around: FleetSettings, clients: int = 0
) -> FleetServed:
    """Serve requests one by one with a fleet.

    table    of the passes of every replica
    clients  that send the sessions of a workload without arrivals, one after the other

    Raises InputError where a request is longer than the cache, or neither load is stated.
    """
    enforce_load(table, work.input_len, work.output_len, work.arrival, clients)
    if around.router not in CHOICES:
        raise InputError(f"router {around.router!r} is none of {', '.join(CHOICES)}")
    fleet = _Running(table, work, around, clients)
    fleet.run()
    every = [*fleet.replicas, *fleet.stopped]
    one = every[0].served(1)
    end = float(one.last.max())
    asked = sum(replica.store.asked for replica in every)
    gaps = np.concatenate([replica.pooled() for replica in every], axis=1)
    return FleetServed(
        served=Served(one.arrival, one.first, one.last, one.output_len,
                      sum(replica.preempted for replica in every), gaps),
        cached=sum(replica.store.held for replica in every) / asked if asked else 0.0,
        replicas=fleet.most,
        seconds=sum(min(replica.stopped, end) - max(replica.ready - around.cold, 0.0)
                    for replica in every),
    )  # fmt: skip

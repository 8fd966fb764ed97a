"""Requests one by one where prompts are read on accelerators of their own.

Workers take prompts in the order of their arrival, as many to a pass as it has room for; a cache
travels to the engine that decodes, which leaps from one event to the next as `events.serve` does.
Of several replicas that decode, one is followed: with random arrivals the workers read the prompts
of all, in turn, and clients have as many workers as are each replica's.
"""

from __future__ import annotations

import heapq
import math

from predictor.arrays import Array
from predictor.errors import InputError
from predictor.serving.events import EngineRun, Served, enforce_load
from predictor.serving.reading import ReadTable
from predictor.serving.tables import PassTable


class _Workers:
    """Workers that read prompts, and what they have in hand.

    sent    heap of prompts yet to be read: (arrival, request)
    ready   heap of caches on their way: (arrival at the engine that decodes, request)
    first   end of the pass that read each request's prompt [s]
    """

    __slots__ = ("_each", "_free", "_given", "_table", "first", "ready", "replicas", "sent")

    def __init__(self, table: ReadTable, given: list[float], workers: int, replicas: int) -> None:
        self._table, self._given, self.replicas = table, given, replicas
        # Of each worker: when it may start, when its link has sent all that was read.
        self._free = [(0.0, 0.0)] * workers
        self._each = table.sending / float(table.plan.input_len)
        self.sent: list[tuple[float, int]] = []
        self.ready: list[tuple[float, int]] = []
        self.first = [0.0] * len(given)

    def send(self, time: float, request: int) -> None:
        heapq.heappush(self.sent, (time, request))

    def starts(self) -> float:
        """When the next pass starts; of prompts that have been sent."""
        return max(self._free[0][0], self.sent[0][0])

    def read_until(self, time: float) -> None:
        """Start every pass that can start by then."""
        while self.sent:
            start = self.starts()
            if start > time:
                return
            self._pass(start)

    def _pass(self, start: float) -> None:
        """One pass: as many of the prompts that have come as it has room for.

        Its caches are sent layer by layer, behind those of the worker's pass before it; a worker
        that still sends those when it has read the next ones waits until they are gone.
        """
        table, given, layers = self._table, self._given, self._table.layers
        _, link = heapq.heappop(self._free)
        copies = float(table.plan.prefill_dp)
        chunk, fresh = float(table.plan.chunk) * copies, 1.0 - float(table.plan.cached)
        batch: list[int] = []
        tokens = length = 0.0
        while self.sent and self.sent[0][0] <= start and len(batch) < table.most:
            own = given[self.sent[0][1]]
            new = max(own * fresh, 1.0)
            if batch and tokens + new > chunk:
                break
            tokens, length = tokens + new, length + own
            batch.append(heapq.heappop(self.sent)[1])
        spent = table.reading(len(batch), length / len(batch))
        end, moving = start + spent, self._each * length / min(copies, len(batch))
        gone = max(end + moving / layers, max(start + spent / layers, link) + moving)
        heapq.heappush(self._free, (max(end, link), gone))
        for one in batch:
            self.first[one] = end
            if one % self.replicas == 0:
                heapq.heappush(self.ready, (gone, one))


def _shared(plan_dp: float, plan_workers: float, clients: bool) -> tuple[int, int]:
    """Replicas whose prompts are followed, and the workers that they share."""
    replicas, workers = round(plan_dp), round(plan_workers)
    if not clients:
        return replicas, workers
    if workers % replicas:
        raise InputError(
            f"clients' requests one by one need as many prefill workers for each of {replicas} "
            f"replicas, which {workers} cannot be; state a rate"
        )
    return 1, workers // replicas


def serve_apart(
    reading: ReadTable,
    decoding: PassTable,
    input_len: Array,
    output_len: Array,
    arrivals: Array | None = None,
    clients: int = 0,
) -> Served:
    """Serve requests one by one on workers that read prompts and one engine that decodes.

    reading, decoding       tables of the workers and of the engine; as many as the plan has
    input_len, output_len   tokens of each request, with `arrivals` of all replicas
    arrivals                when each arrives [s], rising; None: `clients` send the next request
                            when they have the answer to the last

    Returns the requests of one replica. Raises InputError where a request is longer than the
    cache, neither load is stated, or clients' replicas share a worker.
    """
    enforce_load(decoding, input_len, output_len, arrivals, clients)
    plan, given = decoding.plan, input_len.tolist()
    replicas, own = _shared(float(plan.dp), float(plan.prefill_workers), arrivals is None)
    workers = _Workers(reading, given, own, replicas)
    came = None if arrivals is None else arrivals.tolist()
    engine = _Decoder(decoding, given, output_len.tolist(), came, clients, workers)
    expected = len(range(0, engine.count, replicas))
    while engine.finished < expected:
        engine.arrive()
        engine.admit()
        if engine.live:
            engine.leap()
            engine.finish()
        else:
            # Nothing decodes: on to the next cache, or the next prompt.
            engine.now = max(engine.now, engine.until)
    return engine.served(replicas)


class _Decoder(EngineRun):
    """An engine that decodes what workers have read; it lets requests in at their full length."""

    __slots__ = ("workers",)

    def __init__(
        self,
        table: PassTable,
        given: list[float],
        wanted: list[float],
        arrivals: list[float] | None,
        clients: int,
        workers: _Workers,
    ) -> None:
        super().__init__(table, given, wanted, arrivals, clients)
        self.workers, self.first, self.whole = workers, workers.first, True
        self.waiting.clear()
        self.ahead = False
        for one in range(self.count if self.open else self.arrived):
            workers.send(self.came[one], one)

    def send(self, one: int) -> None:
        """A client's request goes to the workers."""
        self.workers.send(self.came[one], one)

    def arrive(self) -> None:
        """Prompts that can be read by now are; caches that have come by now wait."""
        workers = self.workers
        workers.read_until(self.now)
        while workers.ready and workers.ready[0][0] <= self.now:
            self.waiting.append(heapq.heappop(workers.ready)[1])
        # No pass over prompts that starts now or later ends sooner than it takes.
        self.until = min(
            workers.ready[0][0] if workers.ready else math.inf,
            workers.starts() if workers.sent else math.inf,
        )

    def admit(self) -> None:
        """Let requests in that have their first token, in their order, as long as there is room."""
        waiting = self.waiting
        while waiting and len(self.live) < self.most:
            one = waiting[0]
            given, wanted = self.given[one], self.wanted[one]
            if self.reserved + given + wanted > self.pool:
                return
            waiting.popleft()
            left = max(int(wanted) - 1, 1)
            self.reserved += given + wanted
            self.cached += given + wanted - left
            self.live.add(one)
            heapq.heappush(self.ending, (self.step + left, one))

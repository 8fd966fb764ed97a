"""Requests one by one where prompts are read on accelerators of their own.

Workers take prompts in the order of their arrival, as many to a pass as it has room for; a cache
travels to the engine that decodes, which leaps from one event to the next as `events.serve` does.
Of several replicas that decode, one is followed: with random arrivals the workers read the prompts
of all, in turn, and clients have as many workers as are each replica's.
"""

from __future__ import annotations

import heapq
from collections import deque

import numpy as np

from predictor.arrays import Array
from predictor.errors import InputError
from predictor.plans import NATIVE
from predictor.serving.events import PassTable, Served, enforce_load


def serve_apart(
    reading: PassTable,
    decoding: PassTable,
    input_len: Array,
    output_len: Array,
    transfer: float,
    arrivals: Array | None = None,
    clients: int = 0,
) -> Served:
    """Serve requests one by one on workers that read prompts and one engine that decodes.

    reading, decoding       tables of a worker and of the engine; as many workers as its plan has
    input_len, output_len   tokens of each request, with `arrivals` of all replicas
    transfer                time that a cache of the plan's prompt travels, in proportion [s]
    arrivals                when each arrives [s], rising; None: `clients` send the next request
                            when they have the answer to the last

    Returns the requests of one replica. Raises InputError where a request is longer than the
    cache, neither load is stated, or clients' replicas share a worker.
    """
    enforce_load(decoding, input_len, output_len, arrivals, clients)
    count = len(input_len)
    plan, own = decoding.plan, decoding.own
    native = NATIVE if plan.execution == "native" else 1.0
    overhead, fresh = native * float(own.request), 1.0 - float(plan.cached)
    chunk, most = float(plan.chunk), int(decoding.running[-1])
    given, wanted = input_len.tolist(), output_len.tolist()
    scale = transfer / float(plan.input_len)
    came = [0.0] * count if arrivals is None else arrivals.tolist()
    first, last = [0.0] * count, [0.0] * count
    replicas, workers = round(float(plan.dp)), round(float(plan.prefill_workers))
    if arrivals is None:
        if workers % replicas:
            raise InputError(
                f"clients' requests one by one need as many prefill workers for each of {replicas} "
                f"replicas, which {workers} cannot be; state a rate"
            )
        replicas, workers = 1, workers // replicas
    free = [0.0] * workers
    heapq.heapify(free)
    sent: list[tuple[float, int]] = []  # requests yet to be read, by arrival
    for one in range(min(clients, count) if arrivals is None else count):
        heapq.heappush(sent, (came[one], one))
    started = len(sent)
    ready: list[tuple[float, int]] = []  # caches on their way, by arrival
    waiting: deque[int] = deque()
    ending: list[tuple[int, int]] = []  # pass in which a running request ends, request
    held, now, step, finished = 0.0, 0.0, 0, 0

    def read_until(time: float) -> None:
        """Start every pass over prompts that can start by then: as many prompts as it has room
        for, of those that have come."""
        while sent:
            start = max(free[0], sent[0][0])
            if start > time:
                return
            heapq.heappop(free)
            batch: list[int] = []
            tokens = 0.0
            while sent and sent[0][0] <= start:
                new = max(given[sent[0][1]] * fresh, 1.0)
                if batch and tokens + new > chunk:
                    break
                tokens += new
                batch.append(heapq.heappop(sent)[1])
            each = [max(given[one] * fresh, 1.0) for one in batch]
            spent = max(
                sum(reading.prompts(n, False) for n in each), reading.prompts(each[0], True)
            )
            heapq.heappush(free, start + spent)
            for one in batch:
                first[one] = start + spent
                if one % replicas == 0:
                    heapq.heappush(ready, (start + spent + scale * given[one], one))

    own_requests = range(0, count, replicas)
    while finished < len(own_requests):
        read_until(now)
        while ready and ready[0][0] <= now:
            waiting.append(heapq.heappop(ready)[1])
        while waiting and len(ending) < most:
            one = waiting[0]
            if held + given[one] + wanted[one] > decoding.pool:
                break
            waiting.popleft()
            held += given[one] + wanted[one]
            heapq.heappush(ending, (step + max(int(wanted[one]) - 1, 1), one))
        if not ending:
            # Nothing decodes: on to the next cache, or the next prompt.
            times = [queue[0][0] for queue in (ready,) if queue]
            if sent:
                times.append(max(free[0], sent[0][0]))
            now = max(now, min(times))
            continue
        many = len(ending)
        each = decoding.decoding(many, held / many)
        leap = ending[0][0] - step
        soon = [ready[0][0]] if ready else []
        if sent:
            # No pass over prompts that starts now or later ends sooner than it takes.
            soon.append(max(free[0], sent[0][0]))
        if soon and many < most:
            leap = max(min(leap, int((min(soon) - now) / each) + 1), 1)
        now += leap * each
        step += leap
        while ending and ending[0][0] <= step:
            _, one = heapq.heappop(ending)
            last[one] = now
            held -= given[one] + wanted[one]
            finished += 1
            if arrivals is None and started < count:
                came[started] = now
                heapq.heappush(sent, (now, started))
                started += 1
    start, head, tail, tokens = (
        np.asarray(values, float)[::replicas] for values in (came, first, last, output_len)
    )
    return Served(start, head + overhead, tail + overhead, tokens, 0)

"""Requests one by one: a discrete-event engine with continuous batching, chunked prompts, a paged
cache and preemption.

Passes that only decode are all alike until a request ends, arrives or needs room, so that time
leaps from one such event to the next. Pass times are looked up in tables that the analytical model
fills once per plan.

Scheduling: Yu et al. 2022 (Orca); Agrawal et al. 2024 (Sarathi-Serve: passes that mix decoding with
parts of prompts); Kwon et al. 2023 (vLLM: preemption by recomputation).
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass

import numpy as np

from predictor.arrays import Array
from predictor.errors import InputError
from predictor.plans import NATIVE
from predictor.serving.tables import PassTable


@dataclass(frozen=True, slots=True, eq=False)
class Served:
    """What became of each request; arrays over requests.

    arrival, first, last   times of its arrival, first and last token [s]
    output_len             tokens
    preempted              how often requests lost their cache and were read again
    """

    arrival: Array
    first: Array
    last: Array
    output_len: Array
    preempted: int

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
        """Rate at which requests ended, over the whole run."""
        return float(len(self.last) / (self.last.max() - self.arrival.min()))

    def summary(self) -> dict[str, dict[str, float]]:
        """Mean, P50, P90 and P99 of each latency [s]."""
        return {
            name: {
                "mean": float(values.mean()),
                **{f"p{q}": float(np.percentile(values, q)) for q in (50, 90, 99)},
            }
            for name, values in (("ttft", self.ttft), ("tpot", self.tpot), ("e2e", self.e2e))
        }


def poisson(rate: float, count: int, seed: int = 0) -> Array:
    """Arrival times of `count` requests at a mean `rate` per second [s]."""
    gaps = np.random.default_rng(seed).exponential(1.0 / rate, count)
    return np.asarray(np.cumsum(gaps))


def spread_lengths(mean: float, count: int, variation: float, seed: int = 0) -> Array:
    """Whole lengths of the given mean, uniform within +- `variation` of it; 0: all alike."""
    draws = np.random.default_rng(seed).uniform(1.0 - variation, 1.0 + variation, count)
    return np.maximum(np.round(mean * draws), 1.0)


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
    count = len(input_len)
    plan, own = table.plan, table.own
    chunk, most = float(plan.chunk), int(table.running[-1])
    whole, mixing = plan.admission == "whole", float(own.mixing)
    native = NATIVE if plan.execution == "native" else 1.0
    fresh, overhead = 1.0 - float(plan.cached), native * float(own.request)
    given, wanted = input_len.tolist(), output_len.tolist()
    came = [0.0] * count if arrivals is None else arrivals.tolist()
    first, last = [0.0] * count, [0.0] * count
    waiting: deque[int] = deque()
    reading: deque[list[float]] = deque()  # request, tokens of its prompt that are left
    ending: list[tuple[int, int]] = []  # pass in which a running request ends, request
    done = [0] * count  # tokens that a request has
    started = [0] * count  # pass in which its running began
    order: list[int] = []  # running requests, oldest first, some of them gone
    live: set[int] = set()
    now, step, cached, reserved = 0.0, 0, 0.0, 0.0
    arrived = min(clients, count) if arrivals is None else 0
    waiting.extend(range(arrived))
    finished = preempted = 0
    while finished < count:
        if arrivals is not None:
            while arrived < count and came[arrived] <= now:
                waiting.append(arrived)
                arrived += 1
        while waiting and len(live) + len(reading) < most:
            one = waiting[0]
            need = given[one] + (wanted[one] if whole else done[one])
            if (reserved if whole else cached) + need > table.pool:
                break
            waiting.popleft()
            tokens = max(given[one] * fresh, 1.0) + done[one]
            reading.append([one, tokens])
            reserved += given[one] + wanted[one]
            cached += given[one] + done[one]
        if reading:
            budget, work, alone = chunk, 0.0, not live
            read: list[int] = []
            while reading and budget > 0:
                piece = min(reading[0][1], budget)
                work += table.prompts(piece, False)
                if alone and not read:
                    work = max(work, table.prompts(piece, True))
                budget -= piece
                reading[0][1] -= piece
                if reading[0][1] <= 0:
                    read.append(int(reading.popleft()[0]))
                elif piece == 0:
                    break
            decoding = table.decoding(len(live), cached / len(live)) if live else 0.0
            now += decoding + (work if alone else mixing * work)
            step += 1
            cached += len(live)
            for one in read:
                if done[one] == 0:
                    first[one] = now
                done[one] += 1
                started[one] = step - done[one]
                cached += 1
                live.add(one)
                order.append(one)
                heapq.heappush(ending, (started[one] + int(wanted[one]), one))
        elif live:
            many = len(live)
            leap = ending[0][0] - step
            if not whole:
                leap = min(leap, int((table.pool - cached) // many))
            if leap < 1:
                # No room for another token of everyone: the youngest gives way and is read again.
                while order[-1] not in live:
                    order.pop()
                one = order.pop()
                live.discard(one)
                done[one] = step - started[one]
                cached -= given[one] + done[one]
                reserved -= given[one] + wanted[one]
                ending.remove((started[one] + int(wanted[one]), one))
                heapq.heapify(ending)
                waiting.appendleft(one)
                preempted += 1
                continue
            if arrivals is not None and arrived < count and many + len(waiting) < most:
                each = table.decoding(many, cached / many)
                leap = max(min(leap, int((came[arrived] - now) / each) + 1), 1)
            now += leap * table.decoding(many, cached / many + 0.5 * leap)
            step += leap
            cached += many * leap
        elif arrivals is not None and arrived < count:
            now = came[arrived]
        while ending and ending[0][0] <= step:
            _, one = heapq.heappop(ending)
            live.discard(one)
            last[one] = now
            cached -= given[one] + wanted[one]
            reserved -= given[one] + wanted[one]
            finished += 1
            if arrivals is None and arrived < count:
                came[arrived] = now
                waiting.append(arrived)
                arrived += 1
        if len(order) > 4 * most:
            order = [one for one in order if one in live]
    start, head, tail = (np.array(values) for values in (came, first, last))
    return Served(start, head + overhead, tail + overhead, np.asarray(output_len, float), preempted)

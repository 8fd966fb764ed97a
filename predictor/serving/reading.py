"""Workers that read prompts and nothing else: how long their passes take, and how long a prompt
waits for one.

A worker that is free takes up every prompt that waits, as many as a pass has room for; none is
passed on before the pass has ended. Prompts come at random. What waits when a pass ends is a Markov
chain, whose steady state gives the mean of everything else (Bailey 1954; Neuts 1967, queues with
service in bulk; Inoue 2021, eq. 4-9, for inference servers). With room for one prompt it is the
wait of Pollaczek 1930.

W workers behind one queue are a single one of W times the pace, whose prompts wait as often as all
W are busy: C(W, u) / u of its waits (Erlang 1917). That is exact for random service (M/M/W) and
within 2% for constant (Lee and Longton 1959); where passes take up many short prompts, several
workers are up to a fifth off (one: 1%).
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np

from predictor.arrays import Array, Index, Numeric
from predictor.hardware import Cluster
from predictor.models import Model
from predictor.plans import ServingPlan
from predictor.records import dataclass
from predictor.serving.apart import (
    held_by_worker,
    most_together,
    readers,
    sending_time,
    sent_layers,
    worker,
)
from predictor.serving.clients import VARIATION
from predictor.serving.parts import Pass
from predictor.serving.pass_times import DeviceTime, prompt_time
from predictor.serving.passes import adapted
from predictor.serving.tables import between, pass_work
from predictor.serving.whole_passes import prompt_pass
from predictor.timing import Calibration

LENGTHS = 33
"""Mean lengths of prompts at which the times of passes are evaluated."""

USED = np.array([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95])
"""Shares of a worker's capacity at which the queue is solved; beyond the last, waits grow as
1 / (1 - share) (Kingman 1961)."""

TAIL = 8.0
"""Over 1 - share: prompts beyond a full pass that may wait, in the chain. Of constant service more
wait once in exp(2 x 8) times (Kingman 1961)."""


@dataclass(frozen=True, slots=True, eq=False)
class ReadTable:
    """Times of a worker's passes over whole prompts [s].

    sizes     nodes: prompts in a pass, from 1 to the most that all its replicas have room for
    lengths   nodes: their mean tokens, cached ones with them
    times     (sizes, lengths)
    sending   time for which the cache of the plan's prompt occupies the worker's link [s]
    layers    in which it is sent
    plan      of the engine and its workers
    request   host time of a request before its first token [s]
    variation  of the prompts' lengths: uniform within so much of their mean
    """

    sizes: list[float]
    lengths: list[float]
    times: list[list[float]]
    sending: float
    layers: float
    plan: ServingPlan
    request: float
    variation: float

    @property
    def most(self) -> int:
        """Prompts that a pass has room for."""
        return int(self.sizes[-1])

    def reading(self, prompts: int, length: float) -> float:
        """Time of one pass over prompts of a mean length, between the nodes linear [s]."""
        row, down = between(self.sizes, float(prompts))
        column, right = between(self.lengths, length)
        last = min(column + 1, len(self.lengths) - 1)
        low, high = self.times[row], self.times[min(row + 1, len(self.times) - 1)]
        above = low[column] + right * (low[last] - low[column])
        below = high[column] + right * (high[last] - high[column])
        return above + down * (below - above)

    def queue(self) -> Queue:
        """Queue before one worker of prompts that come at random."""
        return queue(self._means(), self.sending / float(self.plan.prefill_dp))

    def together(self, rate: Array, busy: Array) -> Array:
        """Prompts of a pass on average, of a worker that reads so many a second [1/s] for such a
        share of the time."""
        many = np.arange(1.0, self.most + 1.0)
        each = np.minimum.accumulate(self._means() / many)
        own = np.asarray(busy) / np.maximum(rate, 1e-300)
        return np.asarray(np.interp(-own, -each, many))

    def _means(self) -> Array:
        """Mean time of passes over 1, 2, ... prompts, whose lengths even out in a pass of b by the
        root of b [s]."""
        mean = float(self.plan.input_len)
        steps = (np.arange(LENGTHS) + 0.5) / LENGTHS * 2.0 - 1.0
        spread = self.variation / np.sqrt(np.asarray(self.sizes))
        rows = [
            np.interp(mean * (1.0 + width * steps), self.lengths, row).mean()
            for width, row in zip(spread, self.times, strict=True)
        ]
        return np.asarray(np.interp(np.arange(1.0, self.most + 1.0), self.sizes, rows))


@dataclass(frozen=True, slots=True, eq=False)
class ReadPasses:
    """Passes of workers over whole prompts, as kernels take them by themselves; arrays of (sizes x
    lengths,).

    of        model, machines of both kinds, and the calibration
    reader    plan of a worker at every number and length
    sizes, lengths   nodes, as of `ReadTable`
    each      prompts that a replica reads
    whole     passes, and `count` of them
    variation  of the prompts' lengths
    """

    of: tuple[Model, Cluster, Calibration]
    reader: ServingPlan
    sizes: Array
    lengths: Array
    each: Array
    whole: Pass
    count: Array
    variation: float

    def table(self, plan: ServingPlan, slower: tuple[Array, Array] | None = None) -> ReadTable:
        """Their times beside the engine of a plan; `slower` as of `read_table`."""
        model, cluster, calibration = self.of
        plan = adapted(plan, cluster.accelerator)
        own = calibration.serving.of(plan.framework, plan.era)
        found, longer = self.whole, 1.0 if slower is None else np.interp(self.each, *slower)
        device = DeviceTime(found.compute * longer, found.communication, found.kernels, self.count)
        work = replace(pass_work(found, self.each, self.reader), prompts=device)
        shape = (len(self.sizes), len(self.lengths))
        return ReadTable(
            sizes=self.sizes.tolist(),
            lengths=self.lengths.tolist(),
            times=prompt_time(work, own).reshape(shape).tolist(),
            sending=float(sending_time(model, plan, cluster)),
            layers=sent_layers(model),
            plan=plan,
            request=float(work.launching * own.request),
            variation=self.variation,
        )


def read_passes(
    model: Model,
    cluster: Cluster,
    plan: ServingPlan,
    calibration: Calibration,
    variation: float = VARIATION,
) -> ReadPasses:
    """Passes of one plan's workers, over prompts within `variation` of its mean."""
    own = adapted(plan, cluster.accelerator)
    machines, reads = readers(own, cluster)
    replicas = float(own.prefill_dp)
    most = int(most_together(own, held_by_worker(model, cluster, own, calibration.run)) * replicas)
    doubling = 2.0 ** np.arange(np.log2(most))
    nodes = np.unique(np.append(np.concatenate([doubling, 1.5 * doubling[1:]]), most))
    sizes = nodes[nodes <= most]
    mean = float(own.input_len)
    lengths = np.unique(mean * (1.0 + variation * np.linspace(-1.0, 1.0, LENGTHS)))
    many, each = (axis.ravel() for axis in np.meshgrid(sizes, lengths, indexing="ij"))
    # Fewer prompts than replicas leave some without, and the experts less to do.
    one = np.ceil(many / replicas)
    load = own.expert_load * np.minimum(many / (one * replicas), 1.0)
    reader = replace(worker(reads), input_len=each, batch=one * replicas, expert_load=load,
                     tiles=own.tiles * each / mean)  # fmt: skip
    found, count = prompt_pass(model, machines, reader, one, calibration)
    return ReadPasses(
        of=(model, cluster, calibration),
        reader=reader,
        sizes=sizes,
        lengths=lengths,
        each=one,
        whole=found,
        count=count,
        variation=variation,
    )


def read_table(
    model: Model,
    cluster: Cluster,
    plan: ServingPlan,
    calibration: Calibration,
    variation: float = VARIATION,
    slower: tuple[Array, Array] | None = None,
) -> ReadTable:
    """Times of the passes of one plan's workers, over prompts within `variation` of its mean.

    slower   numbers of prompts that a replica reads in a pass, rising, and how many times as long
             its kernels take under limits of power; None: there are none
    """
    return read_passes(model, cluster, plan, calibration, variation).table(plan, slower)


@dataclass(frozen=True, slots=True, eq=False)
class Queue:
    """Prompts before one worker, by the share of its capacity that is asked for (0 and `USED`).

    most      prompts per second of one worker that is never idle
    alone     time of reading a prompt that finds the worker idle [s]
    slack     mean wait until a pass takes a prompt up, times (1 - share) / share [s]
    behind    time of the pass that reads a prompt which had to wait [s]
    busy      share of the time in which the worker reads
    """

    most: float
    alone: float
    slack: Array
    behind: Array
    busy: Array

    def at(self, rate: Numeric, workers: Numeric) -> PromptWaits:
        """What prompts at a rate [1/s] meet before so many workers, in all."""
        count = np.asarray(workers, float)
        share = np.clip(np.asarray(rate) / (count * self.most), 1e-9, 1.0 - 1e-3)
        nodes = np.concatenate([[0.0], USED])
        slack, behind = (np.interp(share, nodes, values) for values in (self.slack, self.behind))
        busy = np.interp(share, np.append(nodes, 1.0), np.append(self.busy, 1.0))
        waits = erlang(count, busy)
        wait = slack * share / (1.0 - share) / count * waits / np.maximum(busy, 1e-12)
        return PromptWaits(wait, waits, np.broadcast_to(self.alone, wait.shape), behind, busy)


@dataclass(frozen=True, slots=True, eq=False)
class PromptWaits:
    """What prompts meet: mean wait [s], share that waits, time of the pass that reads one which has
    not waited and one which has [s], share of the time in which workers read."""

    wait: Array
    waits: Array
    alone: Array
    behind: Array
    busy: Array

    @property
    def read(self) -> Array:
        """Mean time of the pass that reads a prompt [s]."""
        return np.asarray(self.alone + self.waits * (self.behind - self.alone))

    def quantile(self, share: float) -> Array:
        """Time to the end of its pass that a share of the prompts does not exceed [s]: that of a
        prompt read alone with probability 1 - `waits`, else exponentially more (Kingman 1961)."""
        waits = np.maximum(self.waits, 1e-12)
        more = self.wait / waits + self.behind - self.alone
        return np.asarray(self.alone + more * np.maximum(np.log(waits / (1.0 - share)), 0.0))


def erlang(workers: Array, busy: Array) -> Array:
    """Probability that all workers are busy, each for a share of the time (Erlang 1917, formula C,
    by the recursion of formula B)."""
    count, share = np.broadcast_arrays(workers, busy)
    offered, blocked = count * share, np.ones(count.shape)
    for number in range(1, int(count.max(initial=1.0)) + 1):
        less = offered * blocked / (number + offered * blocked)
        blocked = np.where(number <= count, less, blocked)
    return np.asarray(blocked / (1.0 - share * (1.0 - blocked)))


def queue(times: Array, sending: float = 0.0) -> Queue:
    """Queue before a worker whose passes over 1, 2, ... prompts take `times` [s].

    sending   time for which a prompt's cache occupies the link [s]; a worker that holds two passes,
              one that is read and one that is sent, does not start before the link is free

    The chain: what waits when a pass ends. From q waiting the next pass takes b, of max(q, 1) as
    many as it has room for, and Poisson(rate x time(b)) come meanwhile; from none it begins with
    the next arrival. It is solved once for the same passes, which are those of every load.
    """
    return _queue(tuple(np.asarray(times, float).tolist()), float(sending))


@lru_cache(maxsize=256)
def _queue(passes: tuple[float, ...], sending: float) -> Queue:
    room, times = len(passes), np.array(passes)
    period = np.maximum(times, np.arange(1.0, room + 1.0) * sending)
    most = float(room / period[-1])
    found = np.array([_solved(times, period, used * most, TAIL / (1.0 - used)) for used in USED])
    wait, own, busy = found.T
    # Of all prompts, those that come while nobody reads are read alone, at once.
    behind = (own - (1.0 - busy) * times[0]) / busy
    return Queue(
        most,
        float(times[0]),
        np.append(0.5 * most * period[0] ** 2, wait * (1.0 - USED) / USED),
        np.append(times[0], behind),
        np.append(0.0, busy),
    )


def _solved(times: Array, period: Array, rate: float, tail: float) -> tuple[float, float, float]:
    """Mean wait until a pass takes a prompt up, time of that pass, share of the time in which the
    worker is busy; at a rate [1/s].

    period   time from one pass to the next [s]
    """
    room = len(times)
    states = np.arange(room + int(tail))
    taken = np.clip(states, 1, room)
    left = np.maximum(states - taken, 0)
    steady = _steady(rate * period, taken, left)
    spent = period[taken - 1]
    cycle = steady @ spent + steady[0] / rate
    # What is left stands through the whole pass; what comes during it, through half of it.
    standing = steady @ (left * spent + 0.5 * rate * spent**2) / cycle
    own = steady @ (taken * times[taken - 1]) / (steady @ taken)
    return float(standing / rate), float(own), float(steady @ spent / cycle)


def _steady(come: Array, taken: Index, left: Index) -> Array:
    """Steady state of the chain: `come` prompts on average during passes over 1, 2, ... of them."""
    count = len(taken)
    number = np.arange(count)
    factorials = np.cumsum(np.log(np.maximum(number, 1.0)))
    chance = np.exp(number * np.log(come)[:, None] - come[:, None] - factorials)
    arrived = number - left[:, None]
    moves = np.where(arrived >= 0, chance[taken[:, None] - 1, np.maximum(arrived, 0)], 0.0)
    # What lies beyond the last state stays in it.
    moves[:, -1] += np.maximum(1.0 - moves.sum(axis=1), 0.0)
    balance = moves.T - np.eye(count)
    balance[-1] = 1.0
    return np.asarray(np.linalg.solve(balance, np.eye(count)[-1]))

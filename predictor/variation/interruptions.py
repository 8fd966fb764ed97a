"""Interruptions beyond failure and restart: spares, preemption, shrinking, checkpoints in tiers.

Failures and checkpoints by themselves are Daly's (`predictor.training.reliability`). Here: how
often enough nodes are there, how often a fleet on spot instances is interrupted, what is left where
a job goes on with fewer, and what several places for checkpoints cost together.
"""

from __future__ import annotations

import numpy as np

from predictor.arrays import Array, Numeric
from predictor.errors import InputError
from predictor.records import dataclass


def down_share(mtbf: Numeric, repair: Numeric) -> Array:
    """Share of the time in which a node is away: repair / (mtbf + repair); both [s]."""
    return np.asarray(repair / (np.asarray(mtbf, float) + repair))


def away(nodes: int, p: float) -> Array:
    """Probability that 0, 1, ... of so many nodes are away, (nodes + 1,): binomial."""
    k = np.arange(nodes + 1)
    if p <= 0.0:
        return np.where(k == 0, 1.0, 0.0)
    steps = np.log((nodes - k[:-1]) / (k[:-1] + 1.0)) + np.log(p) - np.log1p(-p)
    logs = nodes * np.log1p(-p) + np.concatenate([[0.0], np.cumsum(steps)])
    return np.asarray(np.exp(logs))


def enough(nodes: int, spares: int, p: float) -> float:
    """Probability that a job of so many nodes has all that it needs: at most `spares` of nodes and
    spares are away."""
    return min(float(away(nodes + spares, p)[: spares + 1].sum()), 1.0)


def needed_spares(nodes: int, p: float, chance: float) -> int:
    """Fewest spares with which enough nodes are there with that chance.

    Raises InputError for a chance that none reach.
    """
    if not 0 < chance < 1:
        raise InputError(f"a chance is between 0 and 1, not {chance:g}")
    spares = 0
    while enough(nodes, spares, p) < chance:
        spares += 1
        if spares > 10 * nodes + 100:
            raise InputError(f"nodes are away {p:.0%} of the time; no spares are enough")
    return spares


def elastic(nodes: int, spares: int, p: float, rate: Array) -> float:
    """Mean rate of a job that goes on with the nodes that are there.

    rate   of 0, 1, ... nodes, all of them, (nodes + 1,) in any unit
    """
    gone = away(nodes + spares, p)
    there = np.minimum(nodes + spares - np.arange(len(gone)), nodes)
    return float((gone * rate[there]).sum())


def interrupted(
    mtbf: Numeric, accelerators: Numeric, every: Numeric, instances: Numeric, group: Numeric = 1.0
) -> Array:
    """Mean time between interruptions of a job [s]: failures of accelerators, and preemptions that
    take `group` instances at a time (a compound Poisson process: the job counts events, its
    capacity counts instances).

    mtbf    of one accelerator [s]
    every   mean time between preemptions of an instance [s]; inf: none
    """
    rate = accelerators / np.asarray(mtbf, float) + instances / (np.asarray(every) * group)
    return np.asarray(1.0 / rate)


@dataclass(frozen=True, slots=True)
class Standby:
    """Neighbours that repeat each other's work in every step, so that one takes over at once when
    the other is gone (Thorpe et al. 2023, "Bamboo").

    repeated   share of a step that is spent on others' work
    slowdown   of the steps in which one does the work of two, at least 1
    gone       from an interruption until another takes the place [s]
    pause      to deal the stages out anew, with it [s]
    """

    repeated: float
    slowdown: float
    gone: float
    pause: float

    def share(self, every: Numeric) -> Array:
        """Share of the time that makes progress; shape of `every`, the mean time between
        interruptions [s].

        Nothing is lost but what is repeated all the time, the pause, and, while one is gone, what
        steps are slower. Raises InputError for numbers that cannot be.
        """
        if not (0.0 <= self.repeated < 1.0 and self.slowdown >= 1.0):
            raise InputError("repeated is a share below 1, and a slowdown at least 1")
        lost = self.pause + self.gone * (1.0 - 1.0 / self.slowdown)
        return np.asarray((1.0 - self.repeated) * np.exp(-lost / np.asarray(every, float)))


@dataclass(frozen=True, slots=True)
class CheckpointTier:
    """A place for checkpoints.

    write     for which training waits [s]
    restore   from an interruption until steps run again [s]
    covers    share of interruptions after which what it holds is still there (memory of a peer: not
              where both are gone); that of the last place is 1
    """

    name: str
    write: float
    restore: float
    covers: float


@dataclass(frozen=True, slots=True)
class Tiers:
    """Several places together: share of the time that makes progress, and how often to write to
    each [s]."""

    share: float
    intervals: tuple[float, ...]


def tiers(places: tuple[CheckpointTier, ...], mtbf: float) -> Tiers:
    """Write to each place as often as is best.

    places   nearest first, each covering at least what those before it do
    mtbf     of the job [s]

    An interruption goes back to the nearest place that still holds something: place i serves the
    share covers_i - covers_(i-1) of them. To first order each loses write / interval + rate
    (interval / 2 + restore), least at interval sqrt(2 write / rate) (Young 1974; for several levels
    Moody et al. 2010, "Design, modeling, and evaluation of a scalable multi-level checkpointing
    system"). Raises InputError for places in another order.
    """
    covers = [0.0, *(one.covers for one in places)]
    if not places or covers[-1] != 1.0 or any(np.diff(covers) < 0):
        raise InputError("places for checkpoints go from the nearest to one that covers everything")
    lost, intervals = 0.0, []
    for one, before in zip(places, covers[:-1], strict=True):
        rate = (one.covers - before) / mtbf
        if rate <= 0:
            intervals.append(np.inf)
            continue
        interval = np.sqrt(2.0 * max(one.write, 1e-9) / rate)
        intervals.append(float(interval))
        lost += one.write / interval + rate * (interval / 2.0 + one.restore)
    return Tiers(float(1.0 / (1.0 + lost)), tuple(intervals))


@dataclass(frozen=True, slots=True, eq=False)
class Replay:
    """A trace of instances, and what a job makes of it.

    hours          of the trace
    mean           instances
    events         times at which instances went
    lost           instances that went
    rate_per_hour  of an instance, to be preempted
    group          instances per event
    share          of what the job would do with the most instances of the trace at all times
    """

    hours: float
    mean: float
    events: int
    lost: float
    rate_per_hour: float
    group: float
    share: float


def replay(time: Array, instances: Array, pause: float, least: int = 1) -> Replay:
    """Play a trace: a job that runs on what is there, in proportion, and pauses after each change.

    time, instances   when the number changes [s], and to what; in order of time
    pause             after each loss, until steps run again [s]
    least             instances below which it cannot run
    """
    if len(time) < 2 or np.any(np.diff(time) < 0):
        raise InputError("a trace of instances needs two or more times in order")
    time, instances = np.asarray(time, float), np.asarray(instances, float)
    lasting, there = np.diff(time), instances[:-1]
    change = np.diff(instances)
    # What changes at one moment is one event.
    moments, at = np.unique(time[1:], return_inverse=True)
    net = np.bincount(at, weights=change, minlength=len(moments))
    gone = np.maximum(-net, 0.0)
    served = float((lasting * there).sum())
    running = np.where(there >= least, there, 0.0)
    after = np.concatenate([[0.0], np.where(change[:-1] < 0, pause, 0.0)])
    useful = float((np.maximum(lasting - np.minimum(after, lasting), 0.0) * running).sum())
    whole = float(lasting.sum())
    events = int((gone > 0).sum())
    return Replay(
        hours=whole / 3600.0,
        mean=served / max(whole, 1e-12),
        events=events,
        lost=float(gone.sum()),
        rate_per_hour=float(gone.sum()) / max(served / 3600.0, 1e-12),
        group=float(gone.sum()) / max(events, 1),
        share=useful / max(whole * float(there.max()), 1e-12),
    )

"""Collectives of a step on the network, timed one by one: each group is placed once, each call of
one size is timed once.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import field

import numpy as np

from predictor.arrays import Array, Numeric, filled
from predictor.hardware import Cluster, adapters_of, link_class
from predictor.plans import TrainingPlan
from predictor.records import dataclass, replace
from predictor.timing import Calibration, Span, collective_time, hop_time, span
from predictor.work import Collective, Group, groups

KIND = {"etp": "ep", "tables": "ep", "edp": "dp", "eshard": "dp", "ereplicate": "dp", "shard": "dp"}
"""Kind of communication of a group that does not name its own."""

EVERYONE = "everyone"
"""The group of all ranks."""


@dataclass(frozen=True, slots=True)
class Slot:
    """What tells apart the collectives of one step: kind of group, operation, where it runs, what
    it may hide behind ('' for nothing: a class of kernels, or a phase of the step)."""

    kind: str
    op: str
    place: str
    behind: str


@dataclass(frozen=True, slots=True, eq=False)
class Exchange:
    """Collectives of one step, alike arrays for each slot.

    time     of one execution, by itself [s]
    window   what it may hide behind, by itself [s]
    count    executions
    domains  nodes whose traffic it shares the network between nodes with; 1 inside a node
    sigma    log-standard-deviation of `time`
    flight   of `time`, between the last byte's departure and its arrival [s], in which the link is
             free again: of a transfer from one rank to the next, else 0
    copied   for which a transfer keeps either rank from its passes [s], else 0
    """

    time: Array
    window: Array
    count: Array
    domains: Array
    sigma: Array
    flight: Array
    copied: Array


@dataclass(frozen=True, slots=True, eq=False)
class Network:
    """The network under the ranks of a plan, or of every plan of a batch.

    ranks    by group
    adapters that carry traffic between nodes, of each node; NaN: one for each accelerator
    places   of groups met before
    calls    times, spreads and hops of calls met before
    """

    cluster: Cluster
    calibration: Calibration
    ranks: dict[str, Group]
    adapters: Numeric = np.nan
    places: dict[str, Span] = field(default_factory=dict)
    calls: dict[Hashable, tuple[Array, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, plan: TrainingPlan, cluster: Cluster, calibration: Calibration) -> Network:
        """That of a plan, or of a batch of plans."""
        ranks = {**groups(plan), EVERYONE: Group(plan.gpus, 1.0)}
        return cls(cluster, calibration, ranks, plan.adapters)

    def place(self, group: str) -> Span:
        """Where a group lies."""
        if group not in self.places:
            place = span(self.ranks[group], self.cluster)
            self.places[group] = through(place, self.cluster, self.adapters)
        return self.places[group]

    def exchange(
        self,
        collective: Collective,
        window: Numeric,
        shape: tuple[int, ...],
        crowd: str = "",
    ) -> Exchange:
        """One collective with the time that its call and its group take.

        crowd   group that communicates at the same time; its own if ''
        """
        place, alike = self.place(collective.group), collective.call
        if alike not in self.calls:
            self.calls[alike] = self._timed(collective, place)
        time, sigma, hop = self.calls[alike]
        domains = self._domains(place, self.place(crowd) if crowd else place)
        values = time * collective.calls, window, collective.count, domains, sigma, hop, 0.0
        return Exchange(*(filled(value, shape) for value in values))

    def _timed(self, collective: Collective, place: Span) -> tuple[Array, ...]:
        """Time, spread and hop of one call."""
        time, sigma = collective_time(
            op=collective.op,
            message=collective.bytes,
            group=self.ranks[collective.group],
            cluster=self.cluster,
            calibration=self.calibration,
            copies=collective.copies,
            reach=collective.reach,
            turn=collective.turn,
            place=place,
        )
        time = np.maximum(time, collective.least)
        if collective.op != "p2p":
            return time, sigma, np.zeros(())
        return time, sigma, hop_time("p2p", place, self.cluster, self.calibration)

    def _domains(self, place: Span, crowd: Span) -> Array:
        """Domains of the network's outermost tier that a crowd of ranks crosses where a group of
        it does, else 1."""
        tiers = self.cluster.tiers
        outer = (place.tier == len(tiers) - 1) & (len(tiers) > 1)
        return np.where(outer, crowd.size / crowd.below, 1.0)


def through(place: Span, cluster: Cluster, adapters: Numeric) -> Span:
    """A place whose traffic between nodes goes through the adapters that carry any, of those that
    a node has (`adapters_of`; NaN: all)."""
    if np.all(np.isnan(adapters)):
        return place
    node = cluster.accelerators_per_node
    share = [
        np.fmin(
            adapters / adapters_of(level.link, float(np.max(level.bandwidth)) * node, node), 1.0
        )
        if link_class(level.link) == "scale-out"
        else np.ones_like(adapters)
        for level in cluster.tiers
    ]
    chosen = np.choose(place.tier.astype(int), share)
    rates = {name: getattr(place, name) * chosen for name in ("ring", "own", "pair")}
    return replace(place, **rates)

"""Time of a collective on a network given as a list of tiers.

A group of n ranks spaced `stride` apart has, inside one domain of tier i, g_i of its members. What
crosses tier i leaves each inner domain over the links of all g of its members there, so the rate
of a group is the least of g_(i-1) * rate_i over the tiers that it crosses (g_(-1) = 1). All-to-all
and point-to-point traffic goes through the sender's own link. The traffic inside the domains runs
at the same time, in a pipeline with it: the slower of the two decides. Where accelerators are wired
to one another without a switch (four on an HGX board, eight MI300X), a group has the links among
its members alone, and a transfer those of one pair.

Rings run through all n ranks whatever the tiers, so that (n-1)/n of the message crosses each link
per all-gather or reduce-scatter, twice that per all-reduce. Trees between d domains take the
message once for two of them and twice for more; NCCL's double binary tree pays 2 log2 n hops
instead of 2 (n-1) (Sanders et al. 2009). On a torus a group has a ring along each axis
(`torus_hops`). Ranks that let their switch reduce send the message once and the n-th part of the
result (Klenk et al. 2020; NVLink SHARP). Message sizes follow nccl-tests.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from predictor.arrays import Array, Numeric, varying
from predictor.hardware import (
    PCIE,
    USUAL_HOP,
    Cluster,
    LinkModel,
    Tier,
    link_class,
    link_family,
)
from predictor.plans import distinct_share
from predictor.records import dataclass
from predictor.timing.calibration import Calibration
from predictor.work import Group


@dataclass(frozen=True, slots=True, eq=False)
class Span:
    """Which part of the network a group covers; all fields of the group's shape.

    size    ranks of the group
    tier    index of the outermost tier that the group crosses
    below   its ranks inside one domain of the next tier further in
    ring    rate at which the group's domains exchange data [bytes/s]
    own     rate of one rank's own links in that tier, to the rest of the group [bytes/s]
    pair    of those to one other rank [bytes/s]
    """

    size: Array
    tier: Array
    below: Array
    ring: Array
    own: Array
    pair: Array


def span(group: Group, cluster: Cluster) -> Span:
    """Place a group on the network; arrays in, arrays out."""
    size, stride = np.broadcast_arrays(
        np.asarray(group.size, float), np.asarray(group.stride, float)
    )
    tier = np.zeros(size.shape)
    ring, own, pair = (np.full(size.shape, np.inf) for _ in range(3))
    below, members = np.ones(size.shape), np.ones(size.shape)
    start = members
    for index, level in enumerate(cluster.tiers):
        outermost = index == len(cluster.tiers) - 1
        wider = size if outermost else np.clip(np.floor(level.size / stride), members, size)
        if index == 0 or not level.continues(cluster.tiers[index - 1]):
            start = members
        crosses = wider > members
        if not crosses.any():
            continue
        rate = level.rate * level.reached(wider - start)
        ring = np.where(crosses, np.minimum(ring, start * rate), ring)
        own = np.where(crosses, rate, own)
        pair = np.where(crosses, level.rate * level.reached(1.0), pair)
        tier = np.where(crosses, index, tier)
        below = np.where(crosses, start, below)
        members = wider
    return Span(size, tier, below, ring, own, pair)


def bus_factor(op: str, size: Numeric) -> Numeric:
    """Bus bandwidth over algorithm bandwidth, in nccl-tests' conventions."""
    share = (size - 1.0) / size
    if op == "allreduce":
        return 2.0 * share
    return share if op in ("allgather", "reducescatter", "alltoall") else 1.0


def volume(
    op: str,
    message: Numeric,
    size: Numeric,
    domains: Numeric,
    in_switch: bool | npt.NDArray[np.bool_],
) -> Array:
    """Bytes through the bottleneck link [bytes]; 0 for a group of one.

    size     ranks of the group
    domains  of the outermost tier that it crosses, as many as ranks where each has its own
    """
    factor = np.asarray(bus_factor(op, domains if op == "alltoall" else size), float)
    if op == "allreduce":
        tree = np.where(np.asarray(domains) > 2, 2.0, 1.0)
        switch = np.where(in_switch, 1.0 + 1.0 / np.asarray(size), np.inf)
        factor = np.minimum(factor, np.minimum(tree, switch))
    return np.asarray(np.where(np.asarray(domains) > 1, message * factor, 0.0))


def hops(op: str, size: Numeric) -> Array:
    """Hops on the critical path of a group of `size`. Kernels made for the exchange of a mixture's
    tokens write to all peers at once, so that their latency hardly grows: a hop per doubling."""
    ring, doublings = np.maximum(size - 1.0, 0.0), np.log2(np.maximum(size, 1.0))
    kind, _, kernel = op.partition(".")
    if kind == "allreduce":
        return np.asarray(np.minimum(2.0 * ring, 2.0 * doublings))
    if kind == "alltoall" and kernel:
        return np.asarray(doublings)
    if kind in ("p2p", "broadcast"):
        return np.asarray(np.minimum(ring, 1.0))
    return np.asarray(ring)


def torus_hops(op: str, size: Numeric, axes: Numeric) -> Array:
    """The same on a torus, whose groups are taken to be as long along each of its axes.

    Each axis is a ring, around which data goes both ways, so that the last of it comes from half
    way round: axes size^(1/axes) / 2 hops (Austin et al. 2025, How to Scale Your Model, "Sharded
    matrices": T = max(T_min sum |X_i| / 2, V / (W axes))), and never more than without axes.
    """
    usual = hops(op, size)
    if op.partition(".")[0] not in ("allgather", "reducescatter", "alltoall"):
        return usual
    return np.minimum(usual, np.maximum(_around(size, axes) / 2.0, 1.0))


def detour(size: Numeric, axes: Numeric) -> Array:
    """Links that a byte crosses on its way from one rank of a torus to another, on average: a
    quarter of the way around the ring of each axis, at the least one (same reference: an all-to-all
    takes a quarter of what an all-gather of the array around one ring does)."""
    return np.maximum(_around(size, axes) / 4.0, 1.0)


def _around(size: Numeric, axes: Numeric) -> Array:
    """Ranks of the rings along all axes."""
    return np.asarray(axes * np.power(np.maximum(size, 1.0), 1.0 / axes))


RINGS = "allgather", "reducescatter"
"""Collectives that NCCL has no trees for: they go round rings however many ranks there are (its
one other algorithm, PAT, takes groups of one rank a node: NVIDIA/nccl src/graph/tuning.cc,
ncclPatEnable, v2.23 to v2.30)."""

FLAGGED = 20e9
"""Rate of NCCL's protocol of small messages between three and more nodes, of all the links of one
[bytes/s] (19.0 to 20.4: `llMaxBws`, the same file, v2.8 of 2021 to v2.30 of 2026)."""

RING_HOP = 1.9e-6
"""Hop of a ring over NVLink by the protocol of larger messages, LL128 [s] (`hwLat`, the same
versions; that of small ones takes .6, or what posting to the network does, 1 to 2)."""


def ring_hop(op: str, link: str, hop: Numeric, part: Numeric) -> Numeric:
    """Hop inside a node of a ring through several [s]. A ring of n ranks waits n - 1 times,
    whatever it carries: of 2,048 ranks some milliseconds, as long as a layer of 7 billion weights
    takes. Parts beyond some tens of KB go by a protocol with more of a hop than small messages have
    alone, from which `hop` was read.

    link   inside the node; others than NVLink have no such protocol
    hop    of small messages [s]
    part   of the message, that each rank passes on [bytes]
    """
    if op not in RINGS or link_family(link) != "nvlink":
        return hop
    return np.maximum(hop, np.minimum(hop + np.asarray(part) / FLAGGED, RING_HOP))


def latency(model: LinkModel, steps: Numeric, hop: Numeric, pace: Numeric = 1.0) -> Array:
    """pace * base + hop * steps [s]."""
    return np.asarray(pace * model.base + hop * steps)


def traffic(
    model: LinkModel, ideal: Numeric, members: Numeric, below: Numeric, pace: Numeric = 1.0
) -> Array:
    """Time of what is moved, latencies aside [s]; never falls as `ideal` grows.

    ideal    time of the volume at the link's rate [s]
    members  that exchange data: ranks, or domains of a scale-out link
    below    ranks of a domain, whose links work together
    """
    ideal = ideal * np.power(below, model.sharing)
    efficiency = np.interp(np.log2(np.maximum(members, 1.0)), model.log2_sizes, model.efficiencies)
    plain = pace * model.root * np.sqrt(ideal) + ideal / efficiency
    return np.asarray(plain * model.factor(members, ideal))


CHUNK = 2.0**23
"""Bytes of a message that are on their way at once, which no stage passes on before it has them:
a step of NCCL's buffers (4 MiB in 8, src/init.cc and src/include/device.h) on each of the sixteen
channels that eight adapters of two take."""


def chained(outer: Numeric, inner: Numeric, message: Numeric) -> Array:
    """Time of a message that passes between nodes and through their own links chunk by chunk: the
    slower of them all the way, and of the other one chunk [s]. With one adapter fewer is sent at
    once; the slower stage decides so much more there."""
    chunk = CHUNK / np.maximum(message, CHUNK)
    return np.asarray(np.maximum(outer, inner) + chunk * np.minimum(outer, inner))


def _between_nodes(place: Span, cluster: Cluster) -> npt.NDArray[np.bool_]:
    """Whether a group crosses links between nodes."""
    between = np.array([link_class(level.link) == "scale-out" for level in cluster.tiers])
    return np.asarray(between[place.tier.astype(int)])


def _outward(place: Span) -> Array:
    """Share of the time of a group's domains that their own links would take, were those inside
    them no slower."""
    rate = place.own * place.below
    share = np.ones(rate.shape)
    return np.divide(place.ring, rate, out=share, where=np.isfinite(rate) & (place.ring < rate))


def _inner_share(op: str, place: Span) -> Array:
    """Share of a message that the ranks of one domain exchange among themselves."""
    if op == "alltoall":
        return place.below / place.size
    return np.asarray(0.0 if op in ("p2p", "broadcast") else 1.0)


def _traffic(
    op: str,
    message: Array,
    place: Span,
    group: Group,
    cluster: Cluster,
    calibration: Calibration,
    copies: Numeric = 1.0,
    reach: Numeric = np.nan,
    turn: Numeric = np.nan,
) -> Array:
    """Time of the slowest tier's traffic [s]; `place` is the group's."""
    shape = np.broadcast_shapes(place.size.shape, message.shape)
    time = np.zeros(shape)
    for index, level in enumerate(cluster.tiers):
        here = (place.tier == index) & (place.size > 1)
        if not here.any():
            continue
        kind = op.partition(".")[0]
        model = _passed_on(calibration.link(op, level.link), level, kind)
        domains, members = place.size / place.below, _exchanging(place, level)
        in_switch = level.in_switch and op == kind  # custom kernels do not use it
        crossing = domains if kind == "alltoall" else members
        moved = volume(kind, message, place.size, crossing, in_switch)
        moved = moved * distinct_share(domains, copies, reach, turn)
        if kind == "alltoall" and level.axes:
            moved = moved * detour(place.size, level.axes)
        rate, below = {
            "alltoall": (place.own, 1.0), "p2p": (place.pair, 1.0)
        }.get(kind, (place.ring, place.below))  # fmt: skip
        pace = model.pace(cluster.accelerator.clock)
        found = traffic(model, moved / rate, members, below, pace)
        time = np.where(here, found, time)
    if (place.below > 1).any():
        kind = op.partition(".")[0]
        share = _inner_share(kind, place)
        # What came to a domain once is passed on inside it to every rank that needs it.
        once = distinct_share(place.size, copies, turn=turn)
        share = np.where(np.asarray(copies) > 1, once, share)
        inside = Group(place.below, group.stride)
        within = span(inside, cluster)
        less = _traffic(op, message * share, within, inside, cluster, calibration)
        # Parts of an exchange of all with all go one way or the other; inside a host, cards write
        # to one another as they read.
        staged = _between_nodes(place, cluster) & (kind != "alltoall")
        both = chained(time * _outward(place), less, np.where(staged, message, np.inf))
        time = np.maximum(time, both)
    return time


def _passed_on(model: LinkModel, level: Tier, kind: str) -> LinkModel:
    """A link's model at the latency that its tier states, where that is longer: the chunks of a
    message that is passed on from rank to rank wait for it (`LinkModel.waiting_beyond`). What goes
    straight to its receiver is not passed on."""
    if kind in ("p2p", "alltoall", "broadcast"):
        return model
    return model.waiting_beyond(np.fmax(np.asarray(level.latency) - USUAL_HOP, model.beyond))


def _exchanging(place: Span, level: Tier) -> Array:
    """Members of a tier that exchange data: domains; of a host's own links every card, since rings
    go through all cards of a host and all of them load it."""
    return place.size if link_family(level.link) == PCIE else place.size / place.below


def hop_time(op: str, place: Span, cluster: Cluster, calibration: Calibration) -> Array:
    """Latency of one hop of the outermost tier that a group crosses [s], as stated of the tier,
    else the calibration's; 0 for groups of one."""
    time = np.zeros(place.size.shape)
    for index, level in enumerate(cluster.tiers):
        model = calibration.link(op, level.link)
        here = (place.tier == index) & (place.size > 1)
        time = np.where(here, _hop(level, model, model.pace(cluster.accelerator.clock)), time)
    return time


def _hop(level: Tier, model: LinkModel, pace: Numeric) -> Array:
    return np.where(np.isnan(level.latency), model.hop * pace, level.latency)


def collective_time(
    op: str,
    message: Numeric,
    group: Group,
    cluster: Cluster,
    calibration: Calibration,
    copies: Numeric = 1.0,
    reach: Numeric = np.nan,
    turn: Numeric = np.nan,
    place: Span | None = None,
) -> tuple[Array, Array]:
    """Time of one call [s] and its log-standard-deviation; (0, 0) for groups of one.

    op       of `COLLECTIVE_OPS`; after a dot whose kernel, if not NCCL's: 'allreduce.custom' and
             'allreduce.custom.vllm' for the small all-reduce of inference engines (of one),
             'alltoall.deepep_dispatch' and its like for the exchange of a mixture's tokens
    message  bytes in nccl-tests' convention, float or array
    group    size and stride in rank order
    copies   of each element of an all-to-all, at random ranks, of which those to one domain share
             the way (DeepEP, HybridEP); 1: none does
    reach    domains of the outermost tier among which the copies of an element are; NaN: all
    turn     targets that are dealt in turn, of which each rank has as many; NaN: random ones
    place    of the group on the network, where it is known (`span`)
    """
    # A place that is stated may have other rates than the cluster's own (fewer adapters).
    rates = () if place is None else (place.ring, place.own, place.pair)
    numbers = message, group.size, group.stride, copies, reach, turn, *rates

    def timed() -> tuple[Array, Array]:
        return _collective_time(
            op=op,
            message=np.asarray(message, float),
            group=group,
            cluster=cluster,
            calibration=calibration,
            copies=copies,
            reach=reach,
            turn=turn,
            place=span(group, cluster) if place is None else place,
        )

    if any(map(np.ndim, numbers)) or varying(cluster):
        return timed()
    # A single call is timed once, however many plans make it.
    known = (None if one != one else float(one) for one in numbers)
    return calibration.once((op, *known, cluster), timed)


def _collective_time(
    op: str,
    message: Array,
    group: Group,
    cluster: Cluster,
    calibration: Calibration,
    copies: Numeric,
    reach: Numeric,
    turn: Numeric,
    place: Span,
) -> tuple[Array, Array]:
    """The same of a group whose place is known."""
    time = _traffic(
        op=op,
        message=message,
        place=place,
        group=group,
        cluster=cluster,
        calibration=calibration,
        copies=copies,
        reach=reach,
        turn=turn,
    )
    sigma = np.zeros_like(time)
    clock = cluster.accelerator.clock
    inner = _inner_waiting(op, message, place, group, cluster, calibration)
    first = calibration.link(op, cluster.tiers[0].link)
    for index, level in enumerate(cluster.tiers):
        here = (place.tier == index) & (place.size > 1)
        if not here.any():
            continue
        model = calibration.link(op, level.link)
        pace = model.pace(clock)
        hop = _hop(level, model, pace)
        steps = (
            torus_hops(op, place.size, level.axes)
            if level.axes
            else hops(op, place.size / place.below)
        )
        waiting = latency(model, steps, hop, pace) + inner
        if "." in op:  # a kernel takes as long to start, however far its ranks are apart
            waiting = np.maximum(waiting, first.pace(clock) * first.base + inner)
        total = time + waiting
        share = waiting / np.where(total > 0, total, 1.0)
        sigma = np.where(here, model.spread(share), sigma)
        time = np.where(here, total, time)
    return time, sigma


def _inner_waiting(
    op: str,
    message: Array,
    place: Span,
    group: Group,
    cluster: Cluster,
    calibration: Calibration,
) -> Array:
    """Latency of the hops of a group inside the domains of the outermost tier that it crosses [s]:
    of each tier further in, those that cross it and none beyond. A torus is one for all tiers that
    it has."""
    clock, below = cluster.accelerator.clock, place.below
    shape = np.broadcast_shapes(place.size.shape, message.shape)
    total, counted = np.zeros(shape), hops(op, place.size / place.below)
    outer = np.array([float(level.axes) for level in cluster.tiers])[place.tier.astype(int)]
    part = np.where(_between_nodes(place, cluster), message / place.size, 0.0)
    left = (below > 1) & (outer == 0)
    while left.any():
        within = span(Group(np.where(left, below, 1.0), group.stride), cluster)
        so_far, below = counted, np.where(left, within.below, below)
        counted = np.where(left, hops(op, place.size / below), counted)
        for index, level in enumerate(cluster.tiers):
            here = left & (within.tier == index)
            if not here.any():
                continue
            model = calibration.link(op, level.link)
            steps = torus_hops(op, within.size, level.axes) if level.axes else counted - so_far
            hop = ring_hop(op, level.link, _hop(level, model, model.pace(clock)), part)
            total = total + np.where(here, steps * hop, 0.0)
            left = left & ~(here & (level.axes > 0))
        left = left & (below > 1)
    return total

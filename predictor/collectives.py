"""Time of a collective on a network given as a list of tiers.

A group of n ranks spaced `stride` apart has, inside one domain of tier i, g_i of its members. What
crosses tier i leaves each inner domain over the links of all g of its members there, so the rate
of a group is the least of g_(i-1) * rate_i over the tiers that it crosses (g_(-1) = 1). All-to-all
and point-to-point traffic goes through the sender's own link.

With d = n / g_(i-1) domains in the outermost tier, (d-1)/d of the message crosses it per
all-gather, reduce-scatter or all-to-all, twice that per all-reduce; a switch that reduces takes the
message once (Klenk et al. 2020). NCCL's double binary tree pays 2 log2 n hops instead of 2 (n-1)
(Sanders et al. 2009). Message sizes follow nccl-tests.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from predictor.communication import Group
from predictor.efficiency import Calibration, LinkModel
from predictor.hardware import Array, Cluster, Numeric

OPS = ("allreduce", "allgather", "reducescatter", "alltoall", "broadcast", "p2p")


@dataclass(frozen=True, slots=True, eq=False)
class Span:
    """Which part of the network a group covers; all fields of the group's shape.

    size    ranks of the group
    tier    index of the outermost tier that the group crosses
    below   its ranks inside one domain of the next tier further in
    ring    rate at which the group's domains exchange data [bytes/s]
    own     rate of one rank's own link in that tier [bytes/s]
    """

    size: Array
    tier: Array
    below: Array
    ring: Array
    own: Array


def span(group: Group, cluster: Cluster) -> Span:
    """Place a group on the network; arrays in, arrays out."""
    size, stride = np.broadcast_arrays(
        np.asarray(group.size, float), np.asarray(group.stride, float)
    )
    tier = np.zeros(size.shape)
    ring, own = np.full(size.shape, np.inf), np.full(size.shape, np.inf)
    below, members = np.ones(size.shape), np.ones(size.shape)
    for index, level in enumerate(cluster.tiers):
        outermost = index == len(cluster.tiers) - 1
        wider = size if outermost else np.clip(np.floor(level.size / stride), members, size)
        crosses = wider > members
        ring = np.where(crosses, np.minimum(ring, members * level.rate), ring)
        own = np.where(crosses, level.rate, own)
        tier = np.where(crosses, index, tier)
        below = np.where(crosses, members, below)
        members = wider
    return Span(size, tier, below, ring, own)


def bus_factor(op: str, size: Numeric) -> Numeric:
    """Bus bandwidth over algorithm bandwidth, in nccl-tests' conventions."""
    share = (size - 1.0) / np.maximum(size, 1.0)
    if op == "allreduce":
        return 2.0 * share
    return share if op in ("allgather", "reducescatter", "alltoall") else 1.0


def volume(op: str, message: Numeric, domains: Numeric, in_switch: bool) -> Array:
    """Bytes through the bottleneck link [bytes]; 0 for a group of one."""
    factor = 1.0 if op == "allreduce" and in_switch else bus_factor(op, domains)
    return np.asarray(np.where(np.asarray(domains) > 1, message * factor, 0.0))


def hops(op: str, size: Numeric) -> Array:
    """Hops on the critical path of a group of `size`."""
    ring = np.maximum(size - 1.0, 0.0)
    if op == "allreduce":
        return np.asarray(np.minimum(2.0 * ring, 2.0 * np.log2(np.maximum(size, 1.0))))
    if op in ("p2p", "broadcast"):
        return np.asarray(np.minimum(ring, 1.0))
    return np.asarray(ring)


def link_time(
    model: LinkModel, moved: Numeric, rate: Numeric, steps: Numeric, size: Numeric, hop: Numeric
) -> Array:
    """base + hop steps + root sqrt(moved / rate) + moved / (efficiency(size) rate) [s]."""
    ideal = moved / rate
    efficiency = np.interp(np.log2(np.maximum(size, 1.0)), model.log2_sizes, model.efficiencies)
    return np.asarray(model.base + hop * steps + model.root * np.sqrt(ideal) + ideal / efficiency)


def collective_time(
    op: str, message: Numeric, group: Group, cluster: Cluster, calibration: Calibration
) -> tuple[Array, Array]:
    """Time of one call [s] and its log-standard-deviation; (0, 0) for groups of one.

    op       one of `OPS`
    message  bytes in nccl-tests' convention, float or array
    group    size and stride in rank order
    """
    place = span(group, cluster)
    message = np.asarray(message, float)
    shape = np.broadcast_shapes(place.size.shape, message.shape)
    time, sigma = np.zeros(shape), np.zeros(shape)
    near = calibration.link(op, cluster.tiers[0].link)
    for index, level in enumerate(cluster.tiers):
        here = (place.tier == index) & (place.size > 1)
        if not here.any():
            continue
        model = calibration.link(op, level.link)
        domains = place.size / place.below
        moved = volume(op, message, domains, level.in_switch)
        rate = place.own if op in ("alltoall", "p2p") else place.ring
        # Across tiers, the outer hops are those between domains, the rest are hops within them.
        outer = hops(op, domains)
        hop = np.where(np.isnan(level.latency), model.hop, level.latency)
        inner = (hops(op, place.size) - outer) * near.hop
        found = link_time(model, moved, rate, outer, domains, hop) + inner
        time = np.where(here, found, time)
        sigma = np.where(here, model.sigma, sigma)
    return time, sigma

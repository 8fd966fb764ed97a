"""Collectives on networks of three tiers, drawn at random, against one rank after the other."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from predictor.hardware import Cluster, LinkModel, Tier
from predictor.plans import distinct_share
from predictor.schema import COLLECTIVE_OPS
from predictor.timing.calibration import Calibration
from predictor.timing.collectives import CHUNK, collective_time, hop_time, hops, span
from predictor.work.primitives import Group
from tests.predictor.timing.test_laws_timing import DEVICE

CLOCK = 1.5e9
LINKS = ("nvlink4", "pcie4", "xgmi3", "infiniband-ndr", "ethernet")


def model(op: str, link: str, at: int) -> LinkModel:
    """No two links alike in any number; latencies of the last two are told apart."""
    return LinkModel(
        op=op, link=link, base=(3 + at) * 1e-6, hop=(2 + at) * 1e-7, root=(1 + at) * 1e-5,
        log2_sizes=(1.0, 4.0), efficiencies=(0.6 + 0.05 * at, 0.8 + 0.02 * at),
        sigma=0.1 + 0.01 * at,
        points=1, clock=2e9 if at % 2 else math.nan, sharing=0.1 * at,
        latency_sigma=0.4 if at > 2 else math.nan, beyond=0.0 if at > 2 else math.nan,
    )  # fmt: skip


KNOWN = Calibration(
    "links",
    links={
        (op, link): model(op, link, at) for op in COLLECTIVE_OPS for at, link in enumerate(LINKS)
    },
)


def drawn(seed: int) -> tuple[Cluster, Group, float]:
    """A cluster of two or three tiers, of switches and wires, and a group of it."""
    rng = np.random.default_rng(seed)
    inner = Tier(str(rng.choice(["nvlink4", "xgmi3", "pcie4"])), float(rng.choice([2, 4, 8])), 4e11,
                 direct=bool(rng.random() < 0.4), in_switch=bool(rng.random() < 0.3))  # fmt: skip
    middle = Tier(str(rng.choice(["pcie4", "nvlink4", "infiniband-ndr"])), 16.0, 6e10)
    outer = Tier(
        str(rng.choice(["infiniband-ndr", "ethernet"])), math.inf, float(rng.choice([2e10, 6e9])),
        latency=float(rng.choice([math.nan, 3e-6, 5e-5])), in_switch=bool(rng.random() < 0.3),
        oversubscription=float(rng.choice([1.0, 2.0])),
    )  # fmt: skip
    tiers = (inner, middle, outer) if rng.random() < 0.6 else (inner, outer)
    device = replace(DEVICE, clock=CLOCK)
    group = Group(float(rng.choice([1, 2, 4, 8, 16, 32, 64])), float(rng.choice([1, 1, 2, 4, 8])))
    return (
        Cluster("drawn", device, int(inner.size), tiers),
        group,
        float(rng.choice([1e4, 1e7, 3e8])),
    )


def placed(group: Group, cluster: Cluster) -> tuple[int, float, float, float, float]:
    """Outermost tier that is crossed, ranks in a domain below it, rates of a ring, of one rank's
    links and of those to one other."""
    size, stride = float(np.asarray(group.size)), float(np.asarray(group.stride))
    found, below, members, ring, own, pair = 0, 1.0, 1.0, math.inf, math.inf, math.inf
    for at, tier in enumerate(cluster.tiers):
        last = at == len(cluster.tiers) - 1
        wider = size if last else min(max(math.floor(tier.size / stride), members), size)
        if wider <= members:
            continue
        rate = tier.bandwidth / tier.oversubscription
        peers = tier.size - 1.0
        part = min((wider - members) / peers, 1.0) if tier.direct and not last else 1.0
        ring = min(ring, members * rate * part)
        own, pair = rate * part, rate / peers if tier.direct and not last else rate
        found, below, members = at, members, wider
    return found, below, ring, own, pair


def moved(op: str, message: float, group: Group, cluster: Cluster, copies: float = 1.0) -> float:
    """Time of the traffic: each message passes the outermost tier, and the tiers inside."""
    size = float(np.asarray(group.size))
    if size <= 1:
        return 0.0
    at, below, ring, own, pair = placed(group, cluster)
    tier = cluster.tiers[at]
    link = model(op, tier.link, LINKS.index(tier.link))
    domains = size / below
    members = size if tier.link == "pcie4" else domains
    if op == "allreduce":
        factor = min(2 * (size - 1) / size, 2.0 if members > 2 else 1.0,
                     1 + 1 / size if tier.in_switch else math.inf)  # fmt: skip
    elif op in ("allgather", "reducescatter"):
        factor = (size - 1) / size
    else:
        factor = (domains - 1) / domains if op == "alltoall" else 1.0
    volume = message * factor * float(distinct_share(domains, copies))
    rate, together = {"alltoall": (own, 1.0), "p2p": (pair, 1.0)}.get(op, (ring, below))
    pace = 2e9 / CLOCK if LINKS.index(tier.link) % 2 else 1.0
    ideal = volume / rate * together**link.sharing
    low, high = link.efficiencies
    efficiency = low + (high - low) * min(max((math.log2(members) - 1) / 3, 0.0), 1.0)
    root = link.root
    passed = op not in ("p2p", "alltoall", "broadcast")
    if passed and not math.isnan(link.beyond) and not math.isnan(tier.latency):
        # Hops of more than the usual 4 us: the pipeline's chunks wait for them.
        root = root * math.sqrt(max(tier.latency, 4e-6) / 4e-6)
    time = pace * root * math.sqrt(ideal) + ideal / efficiency
    if below <= 1:
        return time
    share = {"alltoall": below / size, "p2p": 0.0, "broadcast": 0.0}.get(op, 1.0)
    if copies > 1:
        share = float(distinct_share(size, copies))
    inside = moved(op, message * share, Group(below, group.stride), cluster)
    outward = ring / (own * below) if ring < own * below else 1.0
    staged = tier.link in ("infiniband-ndr", "ethernet") and op != "alltoall"
    chunk = min(CHUNK / max(message, 1.0), 1.0) if staged else 0.0
    other = time * outward
    return max(time, max(other, inside) + chunk * min(other, inside))


def waited(
    op: str, group: Group, cluster: Cluster, whole: float, counted: float, part: float = 0.0
) -> float:
    """Hops of a group that cross each tier and none beyond, those counted so far left out [s]; of
    a ring through nodes, over NVLink, as long as a part of so many bytes has them."""
    if float(np.asarray(group.size)) <= 1:
        return 0.0
    at, below, *_ = placed(group, cluster)
    tier, place = cluster.tiers[at], LINKS.index(cluster.tiers[at].link)
    pace = 2e9 / CLOCK if place % 2 else 1.0
    hop = model(op, tier.link, place).hop * pace if math.isnan(tier.latency) else tier.latency
    if op in ("allgather", "reducescatter") and tier.link.startswith("nvlink"):
        hop = max(hop, min(hop + part / 20e9, 1.9e-6))
    every = float(hops(op, whole / below))
    inside = waited(op, Group(below, group.stride), cluster, whole, every, part)
    return (every - counted) * hop + inside


@pytest.mark.parametrize("op", COLLECTIVE_OPS)
@pytest.mark.parametrize("seed", range(40))
def test_a_collective_rank_by_rank(op: str, seed: int) -> None:
    cluster, group, message = drawn(seed)
    time, sigma = collective_time(op, message, group, cluster, KNOWN)
    size = float(np.asarray(group.size))
    if size == 1:
        assert (float(time), float(sigma)) == (0.0, 0.0)
        return
    at, below, *rates = placed(group, cluster)
    found = span(group, cluster)
    assert (int(found.tier), float(found.below)) == (at, below)
    assert [float(found.ring), float(found.own), float(found.pair)] == pytest.approx(rates)
    tier, place = cluster.tiers[at], LINKS.index(cluster.tiers[at].link)
    link = model(op, tier.link, place)
    pace = 2e9 / CLOCK if place % 2 else 1.0
    hop = link.hop * pace if math.isnan(tier.latency) else tier.latency
    part = message / size if tier.link in ("infiniband-ndr", "ethernet") else 0.0
    waiting = pace * link.base + waited(op, group, cluster, size, 0.0, part)
    busy = moved(op, message, group, cluster)
    assert float(time) == pytest.approx(waiting + busy)
    small = link.sigma if math.isnan(link.latency_sigma) else link.latency_sigma
    share = waiting / (waiting + busy)
    assert float(sigma) == pytest.approx(share * small + (1 - share) * link.sigma)
    assert float(hop_time(op, found, cluster, KNOWN)) == pytest.approx(hop)


@pytest.mark.parametrize("copies", [2.0, 8.0])
@pytest.mark.parametrize("seed", range(20))
def test_copies_share_the_way_to_a_domain_and_are_passed_on_inside(
    seed: int, copies: float
) -> None:
    cluster, group, message = drawn(seed)
    if float(np.asarray(group.size)) == 1:
        return
    alone = collective_time("alltoall", message, group, cluster, KNOWN)[0]
    time = collective_time("alltoall", message, group, cluster, KNOWN, copies)[0]
    waits = float(alone) - moved("alltoall", message, group, cluster)
    assert float(time) - waits == pytest.approx(moved("alltoall", message, group, cluster, copies))


def test_a_chunk_is_what_eight_adapters_send_at_once() -> None:
    """NCCL: steps of half a MiB (buffers of 4 MiB in 8) on sixteen channels."""
    assert CHUNK == 16 * 4 * 2**20 / 8

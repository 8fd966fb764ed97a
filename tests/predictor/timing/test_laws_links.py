"""Links and collectives by hand: traffic, hops, curves, two nodes."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictor.catalog import load, system
from predictor.hardware.links import LinkCurve, LinkModel, default_link
from predictor.hardware.systems import Cluster, Tier
from predictor.plans import distinct_share
from predictor.timing.calibration import (
    Calibration,
)
from predictor.timing.collectives import collective_time, hops, ring_hop, span, traffic, volume
from predictor.work.primitives import Group
from tests.predictor.timing.test_laws_timing import DEVICE

LINK = LinkModel(
    op="allreduce", link="nvlink4", base=3e-6, hop=2e-7, root=1e-4, log2_sizes=(1.0, 3.0),
    efficiencies=(0.5, 0.9), sigma=0.1, points=4,
)  # fmt: skip


def test_traffic_of_a_link_by_hand() -> None:
    """Four members: half way between two and eight in the logarithm."""
    assert float(traffic(LINK, 4e-4, 4.0, 1.0)) == pytest.approx(1e-4 * 2e-2 + 4e-4 / 0.7)
    assert float(traffic(LINK, 4e-4, 4.0, 1.0, 3.0)) == pytest.approx(3e-4 * 2e-2 + 4e-4 / 0.7)
    assert float(traffic(LINK, 4e-4, 64.0, 1.0)) == pytest.approx(1e-4 * 2e-2 + 4e-4 / 0.9)
    # Links of sixteen that share some of their rate: sixteen to the half is four.
    shared = replace(LINK, sharing=0.5)
    plain = traffic(LINK, 4e-4, 4.0, 16.0)
    assert float(traffic(shared, 1e-4, 4.0, 16.0)) == pytest.approx(float(plain))


def test_measured_curves_between_members_and_sizes() -> None:
    low = LinkCurve(2.0, (math.log(1e-5), math.log(1e-3)), (math.log(2.0), math.log(1.0)))
    high = LinkCurve(8.0, (math.log(1e-5), math.log(1e-3)), (math.log(8.0), math.log(1.0)))
    both = replace(LINK, curves=(low, high))
    for members, ideal_time, expected in (
        (2.0, 1e-5, 2.0), (2.0, 1e-7, 2.0), (8.0, 1e-5, 8.0), (64.0, 1e-5, 8.0), (1.0, 1e-5, 2.0),
        (4.0, 1e-5, 4.0), (4.0, 1e-4, 2.0), (4.0, 1.0, 1.0),
    ):  # fmt: skip
        assert float(both.factor(members, ideal_time)) == pytest.approx(expected)
    assert replace(LINK, clock=1.5e9).pace(1e9) == pytest.approx(1.5)
    assert LINK.pace(1e9) == 1.0
    # With a third, of thirty-two members: flat at eight, and eight for sixteen between them.
    top = LinkCurve(32.0, (math.log(1e-5), math.log(1e-3)), (math.log(8.0), math.log(1.0)))
    more = replace(LINK, curves=(low, high, top), root=0.0, efficiencies=(1.0, 1.0))
    assert float(more.factor(16.0, 1e-5)) == pytest.approx(8.0)
    assert float(more.factor(4.0, 1e-5)) == pytest.approx(4.0)
    steep = replace(more, curves=(low, high, replace(top, log_factor=(math.log(32.0), 0.0))))
    assert float(steep.factor(16.0, 1e-5)) == pytest.approx(16.0)
    assert float(traffic(steep, 1e-5, 16.0, 1.0)) == pytest.approx(16.0 * 1e-5)


def test_links_that_nobody_measured() -> None:
    """Inside a node they start sooner and hop faster; NVLink carries 0.75 of its rate, networks
    between nodes 0.85 to 0.9; hops are those of NCCL's tuner, around a microsecond and a few."""
    inside, outside = default_link("allreduce", "nvlink4"), default_link("allreduce", "infiniband")
    assert inside.efficiencies == (0.75,)
    assert 0.85 <= outside.efficiencies[0] <= 0.9
    assert 0.5e-6 <= inside.hop <= 1.5e-6 < 2.5e-6 <= outside.hop <= 6e-6
    assert 5e-6 <= inside.base < 10e-6 < outside.base < 25e-6
    assert inside.root == outside.root == 0.0
    assert 0.1 < inside.sigma == outside.sigma < math.log(1.5)


def test_the_outermost_network_reaches_everyone_whatever_size_it_states() -> None:
    one = Cluster("one", DEVICE, 8, (Tier("gloo", 8.0, 4e9),))
    for group in (Group(16.0, 1.0), Group(4.0, 8.0)):
        place = span(group, one)
        assert (float(place.ring), float(place.own), float(place.tier)) == (4e9, 4e9, 0)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 8, 100])
def test_steps_on_the_way_of_a_collective(size: int) -> None:
    """Rings of all but one; trees up and down for all-reduce, where that is shorter."""
    assert float(hops("allgather", size)) == size - 1
    assert float(hops("alltoall", size)) == size - 1
    assert float(hops("p2p", size)) == float(hops("broadcast", size)) == min(size - 1, 1)
    trees = 2 * math.log2(size)
    assert float(hops("allreduce", size)) == pytest.approx(min(2 * (size - 1), trees))


@pytest.mark.parametrize("op", ["allreduce", "allgather", "reducescatter", "alltoall", "p2p"])
@pytest.mark.parametrize("inner", [4e11, 4e9])
def test_two_nodes_by_hand(op: str, inner: float) -> None:
    """Sixteen ranks on two nodes of eight. The ring leaves over eight links; what goes to the other
    node by itself over one. Inside, the same message, or what of it stays there; of 8 MiB that pass
    both one after the other, what is quicker there counts too."""
    message, outer = 4e8, 5e10
    link = {"nvlink4": (3e-6, 2e-7, 0.8), "infiniband": (5e-6, 4e-7, 0.9)}
    links = {
        (op, name): LinkModel(
            op=op,
            link=name,
            base=base,
            hop=hop,
            root=0.0,
            log2_sizes=(1.0,),
            efficiencies=(share,),
            sigma=0.1,
            points=1,
        )
        for name, (base, hop, share) in link.items()
    }
    node = Cluster("two", DEVICE, 8,
                   (Tier("nvlink4", 8.0, inner), Tier("infiniband", math.inf, outer)))  # fmt: skip
    time = float(collective_time(op, message, Group(16.0, 1.0), node,
                                 Calibration("links", links=links))[0])  # fmt: skip
    moved = {"allreduce": 1.0, "allgather": 15 / 16, "reducescatter": 15 / 16,
             "alltoall": 1 / 2, "p2p": 1.0}[op]  # fmt: skip
    rate = outer * (1 if op in ("alltoall", "p2p") else 8)
    inside = {"allreduce": 2 * 7 / 8, "allgather": 7 / 8, "reducescatter": 7 / 8,
              "alltoall": 8 / 16 * 7 / 8, "p2p": 0.0}[op]  # fmt: skip
    stages = message * moved / rate / 0.9, message * inside / inner / 0.8
    busy = max(stages) + (0.0 if op == "alltoall" else 2**23 / message) * min(stages)
    outward = {"allreduce": 2.0, "p2p": 1.0}.get(op, 1.0)
    steps = {"allreduce": 8.0, "p2p": 1.0}.get(op, 15.0)
    inward = 1.9e-6 if op in ("allgather", "reducescatter") else 2e-7  # parts of 25 MB, by LL128
    waiting = 5e-6 + outward * 4e-7 + (steps - outward) * inward
    assert time == pytest.approx(busy + waiting)


@pytest.mark.parametrize("op", ["allgather", "reducescatter"])
def test_rings_through_many_nodes_wait_as_the_tuner_has_it(op: str) -> None:
    """NCCL's own estimate of its ring by LL128 (src/graph/tuning.cc: 1.9 us inside nodes, 4.0
    between them, 14 at the start): 405 MB, a layer of 7 billion weights, to 256 nodes of eight."""
    h100, shipped = system("dgx-h100"), load("default")
    found = float(collective_time(op, 405e6, Group(2048.0, 1.0), h100, shipped)[0])
    tuner = 14e-6 + 255 * 4.0e-6 + 1792 * 1.9e-6 + 405e6 / (0.92 * 400e9)
    assert found == pytest.approx(tuner, rel=0.05)


def test_hops_of_rings_are_those_of_their_parts() -> None:
    """Short for parts of few bytes, never shorter than what was measured, and only over NVLink."""
    parts = np.array([0.0, 1e3, 1e4, 1e6])
    assert (np.diff(ring_hop("allgather", "nvlink4", 1e-6, parts)) >= 0).all()
    assert ring_hop("allgather", "nvlink4", 1e-6, parts)[[0, -1]] == pytest.approx([1e-6, 1.9e-6])
    assert float(ring_hop("reducescatter", "nvlink4", 3e-6, 1e6)) == 3e-6
    assert ring_hop("allreduce", "nvlink4", 1e-6, 1e6) == 1e-6
    assert ring_hop("allgather", "xgmi4", 1e-6, 1e6) == 1e-6


@given(st.integers(1, 64), st.integers(1, 16))
def test_copies_to_one_domain_share_the_way(domains: int, copies: int) -> None:
    """Drawn at random, so many of the domains are hit at least once."""
    found = float(distinct_share(float(domains), float(copies)))
    hit = domains * (1 - (1 - 1 / domains) ** copies)
    assert found == pytest.approx(hit / copies)
    few = float(distinct_share(float(domains), float(copies), 2.0))
    assert few <= found + 1e-12
    assert float(distinct_share(float(domains), 1.0)) == pytest.approx(1.0)


def test_a_group_alone_moves_nothing() -> None:
    for op in ("allreduce", "allgather", "alltoall", "p2p"):
        assert float(volume(op, 1e6, 1.0, 1.0, False)) == 0.0
    place = span(Group(1.0, 1.0), Cluster("one", DEVICE, 8, (Tier("nvlink4", 8.0, 4e11),)))
    assert (float(place.size), float(place.below)) == (1.0, 1.0)


@pytest.mark.parametrize("stride", [1.0, 2.0, 3.0, 5.0, 7.0, 8.0])
def test_members_of_a_domain_fit_into_it(stride: float) -> None:
    """Ranks that lie `stride` apart: as many whole strides as a domain holds, one at least; in the
    domain of all, all."""
    one = Cluster("one", DEVICE, 8, (Tier("nvlink4", 8.0, 4e11), Tier("ethernet", math.inf, 1e10)))
    place = span(Group(32.0, stride), one)
    assert float(place.below) * stride <= 8.0 < (float(place.below) + 1.0) * stride
    assert float(place.tier) == 1.0

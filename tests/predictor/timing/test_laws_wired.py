"""Accelerators of a node that are wired to one another, without a switch between them."""

from __future__ import annotations

import numpy as np
import pytest

from predictor import catalog
from predictor.catalog.artifacts import load
from predictor.catalog.systems import default_system, resize_node
from predictor.hardware import Cluster, Tier
from predictor.schema import COLLECTIVE_OPS
from predictor.timing.collectives import collective_time, span
from predictor.work.primitives import Group

KERNELS = load("kernels-only")
OUTSIDE = Tier("infiniband", np.inf, 50e9)


def node(size: int, direct: bool) -> Cluster:
    inside = Tier("nvlink4", size, 450e9, direct=direct)
    return Cluster("test", catalog.accelerator("H200-SXM-141GB"), size, (inside, OUTSIDE))


@pytest.mark.parametrize(("size", "members"), [(4, 2), (4, 3), (4, 4), (8, 2), (8, 4), (8, 8)])
def test_a_group_has_the_links_among_its_members(size: int, members: int) -> None:
    """Each of `size - 1` peers has as many links: a ring of some of them has those to the others
    in it, a transfer those to one."""
    found = span(Group(float(members), 1.0), node(size, True))
    assert found.ring == found.own == pytest.approx(450e9 * (members - 1) / (size - 1))
    assert found.pair == pytest.approx(450e9 / (size - 1))
    switched = span(Group(float(members), 1.0), node(size, False))
    assert switched.ring == switched.own == switched.pair == 450e9


@pytest.mark.parametrize("op", COLLECTIVE_OPS)
@pytest.mark.parametrize("members", [2.0, 4.0, 8.0, 16.0])
def test_a_switch_is_never_slower(op: str, members: float) -> None:
    """And no slower for whole nodes but for transfers, which have one link of all there."""
    wired, switched = (
        float(collective_time(op, 256e6, Group(members, 1.0), node(4, direct), KERNELS)[0])
        for direct in (True, False)
    )
    assert wired >= switched
    if members == 4 and op != "p2p":
        assert wired == switched


def test_nodes_share_the_way_out_either_way() -> None:
    group = Group(16.0, 1.0)
    assert span(group, node(4, True)).ring == span(group, node(4, False)).ring == 4 * 50e9


def test_fewer_of_a_wired_node_leave_the_other_links_idle() -> None:
    """Four of eight MI300X have three of seven links in use, whoever counts them."""
    whole = catalog.system("MI300X-8x")
    assert whole.tiers[0].direct
    half = resize_node(whole, 4)
    assert half.tiers[0].bandwidth == pytest.approx(whole.tiers[0].bandwidth * 3 / 7)
    for members in (2.0, 4.0):
        group = Group(members, 1.0)
        assert span(group, half).ring == pytest.approx(float(span(group, whole).ring))
    switched = catalog.system("dgx-h100")
    assert resize_node(switched, 4).tiers[0].bandwidth == switched.tiers[0].bandwidth


@pytest.mark.parametrize("name", ["A100-SXM4-80GB", "H100-SXM5-80GB", "H200-SXM-141GB"])
def test_boards_of_four_have_no_switch(name: str) -> None:
    four = default_system(catalog.accelerator(name), 4)
    assert four.tiers[0].direct
    assert not four.tiers[0].in_switch
    assert not default_system(catalog.accelerator(name), None).tiers[0].direct


def test_perlmutter_carries_what_nccl_measured() -> None:
    """256 MiB reduced by two of its four A100 took 3.90 ms, by all four 1.88 ms (arXiv 2509.22832,
    fgpm_nccl_perlmutter_vista.csv): a third of the links carried a third of the rate. Within a
    fifth, where a switch would have made the pair 2 to 3 times too fast."""
    system = catalog.system("Perlmutter-GPU")
    for members, measured in ((2.0, 3.9046e-3), (4.0, 1.8824e-3)):
        time, _ = collective_time("allreduce", 2.0**28, Group(members, 1.0), system, KERNELS)
        assert float(time) == pytest.approx(measured, rel=0.2)


def test_bridges_only_help_and_are_nobodys_default() -> None:
    """A bridge between two cards never makes a collective of theirs slower than the host's links
    do, and is sold apart: a node that nobody describes has none."""
    kernels = catalog.load("kernels-only")
    for name in ("H100-pairwise-NVLink", "A100-pairwise-NVLink", "A40-pairwise-NVLink"):
        system = catalog.system(name)
        usual = catalog.default_system(system.accelerator, 4)
        assert {tier.link.rstrip("0123456789") for tier in usual.tiers} == {"pcie", "ethernet"}
        for size in (2.0, 4.0):
            for message in (1e5, 1e6, 1e8):
                with_, without = (
                    float(collective_time("allreduce", message, Group(size, 1.0), one, kernels)[0])
                    for one in (system, usual)
                )
                assert with_ < 1.1 * without, (name, size, message)

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictor import catalog
from predictor.catalog.artifacts import load
from predictor.hardware.links import USUAL_HOP, LinkModel
from predictor.hardware.systems import Cluster, Tier
from predictor.plans import distinct_share
from predictor.schema import COLLECTIVE_OPS
from predictor.timing.calibration import Calibration
from predictor.timing.collectives import (
    CHUNK,
    bus_factor,
    chained,
    collective_time,
    hops,
    span,
    volume,
)
from predictor.work.primitives import Group

PLAIN = Calibration("none")
KERNELS = load("kernels-only")


def cluster(*tiers: Tier) -> Cluster:
    return Cluster("test", catalog.accelerator("H100-SXM5-80GB"), 8, tiers)


TWO = cluster(Tier("nvlink4", 8, 450e9), Tier("infiniband", np.inf, 50e9))


def test_a_group_inside_a_node_uses_its_link() -> None:
    found = span(Group(8.0, 1.0), TWO)
    assert (found.tier, found.ring, found.below) == (0, 450e9, 1)


def test_ranks_of_a_node_share_the_way_out() -> None:
    """Sixteen ranks, eight per node: the ring leaves each node over eight links."""
    found = span(Group(16.0, 1.0), TWO)
    assert (found.tier, found.below) == (1, 8)
    assert found.ring == 8 * 50e9


def test_a_group_across_nodes_has_its_own_link_only() -> None:
    """Data parallel over TP 8: one member per node, at the speed of one NIC."""
    found = span(Group(16.0, 8.0), TWO)
    assert (found.tier, found.below, found.ring) == (1, 1, 50e9)


def test_three_tiers() -> None:
    rack = cluster(
        Tier("nvlink5", 4, 900e9), Tier("nvlink5", 72, 900e9), Tier("infiniband", np.inf, 50e9)
    )
    inside, outside = span(Group(64.0, 1.0), rack), span(Group(144.0, 1.0), rack)
    assert (inside.tier, inside.ring) == (1, 900e9)
    assert (outside.tier, outside.ring) == (2, 900e9)
    assert span(Group(8.0, 72.0), rack).ring == 50e9


def test_tensor_parallelism_across_nodes_runs_at_nic_speed() -> None:
    message = 256e6
    inside, _ = collective_time("allreduce", message, Group(8.0, 1.0), TWO, PLAIN)
    narrow = cluster(Tier("nvlink4", 2, 450e9), Tier("infiniband", np.inf, 50e9))
    outside, _ = collective_time("allreduce", message, Group(8.0, 1.0), narrow, PLAIN)
    assert outside > 3 * inside


@pytest.mark.parametrize("op", COLLECTIVE_OPS)
def test_a_group_of_one_costs_nothing(op: str) -> None:
    time, _ = collective_time(op, 1e9, Group(1.0, 1.0), TWO, KERNELS)
    assert time == 0


@given(
    st.sampled_from(COLLECTIVE_OPS),
    st.sampled_from([2, 4, 8, 16, 64]),
    st.floats(1e3, 1e9),
    st.floats(1.1, 4.0),
)
def test_more_bandwidth_never_slows(op: str, size: int, message: float, more: float) -> None:
    group = Group(float(size), 1.0)
    slow, _ = collective_time(op, message, group, TWO, KERNELS)
    faster = cluster(*(Tier(t.link, t.size, t.bandwidth * more) for t in TWO.tiers))
    fast, _ = collective_time(op, message, group, faster, KERNELS)
    assert fast <= slow


@given(st.sampled_from(COLLECTIVE_OPS), st.sampled_from([2, 8, 16]), st.floats(1e2, 1e9))
def test_larger_messages_take_longer(op: str, size: int, message: float) -> None:
    group = Group(float(size), 1.0)
    times, _ = collective_time(op, np.array([message, 2 * message]), group, TWO, KERNELS)
    assert times[1] > times[0] > 0


@given(
    st.sampled_from(COLLECTIVE_OPS),
    st.lists(st.sampled_from([1, 2, 8, 32]), min_size=1, max_size=6),
)
def test_a_batch_equals_its_members(op: str, sizes: list[int]) -> None:
    group = Group(np.array(sizes, float), 1.0)
    together, _ = collective_time(op, 1e7, group, TWO, KERNELS)
    apart = [collective_time(op, 1e7, Group(float(n), 1.0), TWO, KERNELS)[0] for n in sizes]
    np.testing.assert_allclose(together, apart, rtol=1e-12)


def test_bus_factors_are_those_of_nccl_tests() -> None:
    assert bus_factor("allreduce", 8.0) == pytest.approx(2 * 7 / 8)
    assert bus_factor("allgather", 8.0) == pytest.approx(7 / 8)
    assert bus_factor("p2p", 2.0) == 1.0


def test_a_reducing_switch_takes_the_message_once() -> None:
    """And an eighth of the result; a pair is better off without."""
    assert volume("allreduce", 1e6, 8.0, np.array(8.0), True) == pytest.approx(1.125e6)
    assert volume("allreduce", 1e6, 8.0, np.array(8.0), False) == pytest.approx(1.75e6)
    assert volume("allreduce", 1e6, 2.0, np.array(2.0), True) == pytest.approx(1e6)


def test_two_nodes_flatter() -> None:
    """A tree between two nodes takes the message once; rings and trees of more take it twice."""
    two, four, ring = (
        float(volume("allreduce", 1e6, n, np.array(d), False))
        for n, d in ((16.0, 2.0), (32.0, 4.0), (2.0, 2.0))
    )
    assert two == ring == pytest.approx(1e6)
    assert four == pytest.approx(2 * 31 / 32 * 1e6)
    assert volume("allgather", 1e6, 16.0, np.array(2.0), False) == pytest.approx(15 / 16 * 1e6)
    assert volume("alltoall", 1e6, 16.0, np.array(2.0), False) == pytest.approx(0.5e6)


def test_a_fast_network_leaves_the_node_to_decide() -> None:
    """Two nodes whose network is faster than their NVLink: as slow as one node."""
    fast = cluster(Tier("nvlink4", 8, 450e9), Tier("infiniband", np.inf, 1e13))
    across, _ = collective_time("allreduce", 4e9, Group(16.0, 1.0), fast, PLAIN)
    inside, _ = collective_time("allreduce", 4e9, Group(8.0, 1.0), fast, PLAIN)
    assert across == pytest.approx(float(inside), rel=0.02)


@given(st.floats(1e-7, 1.0), st.floats(1e-7, 1.0), st.floats(1.0, 1e11), st.floats(1.0, 4.0))
def test_stages_overlap_once_there_are_chunks(
    outer: float, inner: float, message: float, more: float
) -> None:
    """One chunk goes through one stage after the other; endless many at the slower one's pace; no
    message of the same stages takes longer for being cut finer."""
    small, large = (float(chained(outer, inner, m)) for m in (message, message * more))
    assert max(outer, inner) <= large * (1 + 1e-12) <= small * (1 + 2e-12)
    assert small <= (outer + inner) * (1 + 1e-12)
    if message <= CHUNK:
        assert small == pytest.approx(outer + inner)


def modelled(**changes: object) -> Calibration:
    """A calibration of one link, for all-reduces inside a node."""
    plain = LinkModel(
        op="allreduce", link="nvlink4", base=8e-6, hop=1e-6, root=1e-3, log2_sizes=(1.0, 3.0),
        efficiencies=(0.7, 0.8), sigma=0.1, points=9,
    )  # fmt: skip
    model = replace(plain, **changes)  # type: ignore[arg-type]
    return Calibration("t", links={("allreduce", "nvlink4"): model})


def test_small_and_large_messages_have_a_spread_each() -> None:
    known = modelled(latency_sigma=0.4)
    _, sigma = collective_time("allreduce", np.array([1.0, 1e12]), Group(8.0, 1.0), TWO, known)
    assert sigma == pytest.approx([0.4, 0.1], rel=0.02)
    _, alone = collective_time("allreduce", 1.0, Group(8.0, 1.0), TWO, modelled())
    assert alone == pytest.approx(0.1)


def test_latencies_follow_the_clock() -> None:
    slow, fast = (
        Cluster("t", replace(TWO.accelerator, clock=clock), 8, TWO.tiers) for clock in (9e8, 1.8e9)
    )
    known = modelled(clock=1.8e9, root=0.0)
    times = [collective_time("allreduce", 1.0, Group(8.0, 1.0), c, known)[0] for c in (slow, fast)]
    assert times[0] == pytest.approx(2 * float(times[1]), rel=1e-3)
    unscaled = [
        collective_time("allreduce", 1.0, Group(8.0, 1.0), c, modelled())[0] for c in (slow, fast)
    ]
    assert unscaled[0] == unscaled[1]


def test_links_that_share_the_way_out_add_less() -> None:
    across = replace(modelled().links[("allreduce", "nvlink4")], link="infiniband")
    message, group = 1e9, Group(16.0, 1.0)
    slow = cluster(TWO.tiers[0], Tier("infiniband", np.inf, 5e9))
    times = []
    for sharing in (0.0, 0.5, 1.0):
        model = replace(across, base=0.0, hop=0.0, root=0.0, sharing=sharing)
        known = Calibration("t", links={("allreduce", "infiniband"): model})
        times.append(float(collective_time("allreduce", message, group, slow, known)[0]))
    assert times[1] / times[0] == pytest.approx(8**0.5, rel=0.01)
    assert times[2] / times[0] == pytest.approx(8.0, rel=0.01)


@pytest.mark.parametrize("size", [2.0, 4.0, 8.0])
def test_the_custom_all_reduce_is_a_model_of_its_own(size: float) -> None:
    custom = LinkModel(
        op="allreduce.custom", link="nvlink4", base=4e-6, hop=0.0, root=0.0, log2_sizes=(1.0,),
        efficiencies=(1.0,), sigma=0.1, points=9,
    )  # fmt: skip
    links = {**modelled().links, ("allreduce.custom", "nvlink4"): custom}
    known = Calibration("t", links=links)
    small, group = 8192.0, Group(size, 1.0)
    quick, _ = collective_time("allreduce.custom", small, group, TWO, known)
    nccl, _ = collective_time("allreduce", small, group, TWO, known)
    assert quick < nccl


def test_trees_bound_the_hops_of_large_all_reduces() -> None:
    assert hops("allreduce", np.array(1024.0)) == 20
    assert hops("allgather", np.array(1024.0)) == 1023


def test_oversubscription_divides_the_rate() -> None:
    thin = cluster(TWO.tiers[0], Tier("infiniband", np.inf, 50e9, oversubscription=4.0))
    assert span(Group(16.0, 8.0), thin).ring == 50e9 / 4


def test_hops_inside_and_between_nodes_have_their_own_latency() -> None:
    """Tiny messages: 15 hops of an all-gather over two nodes of eight, one of them between."""
    base = Calibration("none")
    slow = cluster(TWO.tiers[0], Tier("infiniband", np.inf, 50e9, latency=1e-3))
    quick = cluster(TWO.tiers[0], Tier("infiniband", np.inf, 50e9, latency=1e-6))
    long, short = (
        float(collective_time("allgather", 1.0, Group(16.0, 1.0), where, base)[0])
        for where in (slow, quick)
    )
    assert long - short == pytest.approx(1e-3 - 1e-6)
    near, far = base.link("allgather", "nvlink4"), base.link("allgather", "infiniband")
    assert short == pytest.approx(far.base + 1e-6 + 14 * near.hop, rel=1e-3)
    stated, _ = collective_time("allgather", 1.0, Group(16.0, 1.0), TWO, base)
    assert stated == pytest.approx(far.base + far.hop + 14 * near.hop, rel=1e-3)


@pytest.mark.parametrize(("domains", "copies"), [(2, 2), (8, 8), (4, 22)])
def test_copies_to_one_domain_share_the_way(domains: int, copies: int) -> None:
    """Drawn at random: how many domains of D do k copies reach?"""
    rng = np.random.default_rng(0)
    reached = [len(set(draw)) for draw in rng.integers(0, domains, (20_000, copies))]
    assert distinct_share(domains, copies) * copies == pytest.approx(np.mean(reached), rel=0.01)


def test_a_single_copy_has_nothing_to_share() -> None:
    assert distinct_share(np.array([1.0, 2.0, 64.0]), 1.0) == pytest.approx(1.0)


def test_tokens_sent_once_to_each_node_spare_its_way_out() -> None:
    """Sixteen ranks on two nodes, eight copies each: half of them leave the node, or all but surely
    one of eight; inside, every rank still gets what it needs."""
    group, message = Group(16.0, 1.0), 1e9
    apart, _ = collective_time("alltoall", message, group, TWO, PLAIN)
    once, _ = collective_time("alltoall", message, group, TWO, PLAIN, copies=8.0)
    link = PLAIN.link("alltoall", "infiniband")
    assert apart == pytest.approx(0.5 * message / 50e9 / link.efficiencies[0], rel=0.05)
    assert once == pytest.approx(apart * 2 / 8 * (1 - 0.5**8), rel=0.05)
    fast = cluster(TWO.tiers[0], Tier("infiniband", np.inf, 50e12))
    inside, _ = collective_time("alltoall", message, group, fast, PLAIN, copies=8.0)
    near = PLAIN.link("alltoall", "nvlink4")
    ranks = 16 / 8 * (1 - (15 / 16) ** 8)  # share of the copies that differ in their rank
    assert inside == pytest.approx(
        message * ranks * (7 / 8) / 450e9 / near.efficiencies[0], rel=0.05
    )


def test_copies_that_stay_on_few_nodes() -> None:
    """Eight copies among four of eight nodes reach 4 (1 - (3/4)^8) of them; among two, no limit
    of four binds; an element sent once is sent once."""
    assert distinct_share(8.0, 8.0, 4.0) * 8 == pytest.approx(4 * (1 - 0.75**8))
    assert distinct_share(2.0, 8.0, 4.0) == distinct_share(2.0, 8.0)
    assert distinct_share(8.0, 1.0, 4.0) == pytest.approx(1.0)


def test_an_engines_own_kernel_is_known_by_all_engines_or_by_nccl() -> None:
    def model(op: str, link: str) -> LinkModel:
        return replace(PLAIN.link("allreduce", "nvlink4"), op=op, link=link)

    every = Calibration("", links={("allreduce.custom", "nvlink4"): model("custom", "nvlink4")})
    assert every.link("allreduce.custom.vllm", "nvlink4").op == "custom"
    plain = Calibration("", links={("alltoall", "nvlink"): model("nccl", "nvlink")})
    assert plain.link("alltoall.deepep_dispatch", "nvlink4").op == "nccl"
    assert PLAIN.link("alltoall.deepep_dispatch", "nvlink4").points == 0


def test_kernels_that_write_to_all_peers_take_a_hop_per_doubling() -> None:
    assert hops("alltoall.deepep_ll_dispatch", 64.0) == 6
    assert hops("alltoall", 64.0) == 63
    assert hops("allreduce.custom.vllm", 8.0) == hops("allreduce", 8.0)


@given(delay=st.floats(1e-5, 1e-1), size=st.floats(1e5, 1e9))
def test_chunks_that_are_passed_on_wait_for_the_latency_of_their_tier(
    delay: float, size: float
) -> None:
    """A ring's chunks take (h + k) (ideal / k + L) at best, so that what they add grows as the
    square root of the latency that a tier states; a transfer takes that latency once."""
    known = Calibration("x", links={("allreduce", "roce"): CHUNKED, ("p2p", "roce"): CHUNKED})

    def timed(op: str, latency: float) -> float:
        tiers = (Tier("roce", np.inf, 1e9, latency=latency),)
        far = Cluster("x", catalog.accelerator("V100-SXM2-32GB"), 1, tiers)
        return float(collective_time(op, size, Group(2.0, 1.0), far, known)[0])

    added = timed("allreduce", delay) - 2 * delay - size / 1e9
    usual = timed("allreduce", USUAL_HOP) - 2 * USUAL_HOP - size / 1e9
    assert added / usual == pytest.approx(np.sqrt(delay / USUAL_HOP), rel=1e-3)
    transfer = timed("p2p", delay) - timed("p2p", USUAL_HOP)
    assert transfer == pytest.approx(delay - USUAL_HOP, rel=1e-3, abs=1e-9)


CHUNKED = LinkModel(
    op="allreduce", link="roce", base=0.0, hop=USUAL_HOP, root=2 * np.sqrt(2 * USUAL_HOP),
    log2_sizes=(1.0,), efficiencies=(1.0,), sigma=0.1, points=9, beyond=0.0,
)  # fmt: skip
"""Of all-reduces in chunks of the best size over two hops."""


def test_hops_between_nodes_of_a_pod_wait_for_its_network() -> None:
    """512 nodes in two pods: the hops among nodes waited as those of NVLink do, so that 512 of them
    took half as long to gather a small message as 256 in one pod did."""
    pods = cluster(
        Tier("nvlink4", 8, 450e9), Tier("roce", 3072, 50e9), Tier("roce", np.inf, 50e9 / 7)
    )
    for op in ("allgather", "reducescatter", "alltoall", "allreduce"):
        groups = Group(np.array([256.0, 512.0]), np.array([8.0, 8.0]))
        inside, beyond = collective_time(op, np.array([1e3, 1e3]), groups, pods, KERNELS)[0]
        assert beyond > inside, op


def test_a_latency_that_an_inner_tier_states_counts_beyond_it() -> None:
    slow = cluster(Tier("nvlink4", 8, 450e9, latency=1e-4), TWO.tiers[1])
    group = Group(16.0, 1.0)
    usual, longer = (
        float(collective_time("allgather", 1e3, group, one, KERNELS)[0]) for one in (TWO, slow)
    )
    assert longer - usual > 13 * 9e-5


def test_trays_of_a_rack_are_no_domains_of_its_switch() -> None:
    """Eight ranks of an NVL72 are as far from one another on two trays as on eight, and as those of
    a node with the same switch; neither are networks without a bottleneck told apart."""
    tray, rack = Tier("nvlink5", 4, 900e9), Tier("nvlink5", 72, 900e9)
    racks = cluster(tray, rack, TWO.tiers[1])
    node = cluster(Tier("nvlink5", 8, 900e9), TWO.tiers[1])
    for op in ("allreduce", "allgather", "alltoall", "allreduce.custom.vllm"):
        near, far = (
            float(collective_time(op, 1e8, Group(8.0, stride), racks, KERNELS)[0])
            for stride in (1.0, 8.0)
        )
        alone = float(collective_time(op, 1e8, Group(8.0, 1.0), node, KERNELS)[0])
        assert near == pytest.approx(far) == pytest.approx(alone), op
    assert rack.continues(tray)
    assert not replace(rack, bandwidth=5e10).continues(tray)
    assert not replace(rack, in_switch=True).continues(tray)
    assert not Tier("ici", 256, 9e11).continues(Tier("ici", 8, 9e11))
    assert not rack.continues(replace(tray, direct=True))


def test_a_kernel_by_name_starts_no_sooner_between_nodes() -> None:
    """An engine's all-reduce outside a graph took 33 us inside a node and 17 between two."""
    group = Group(np.array([8.0, 12.0]), np.ones(2))
    narrow = cluster(Tier("nvlink3", 8, 300e9), Tier("infiniband-hdr", np.inf, 25e9))
    inside, across = collective_time("allreduce.custom-eager", 1e3, group, narrow, KERNELS)[0]
    assert across >= inside

"""Machines by hand: accelerators, tiers, and what a budget of round numbers pays for."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from predictor.errors import InputError
from predictor.hardware import (
    DEFAULT_CLOCK,
    L2_BYTES_PER_CLOCK_PER_SM,
    OLDER,
    Accelerator,
    Budget,
    LinkTechnology,
    MemoryTechnology,
    Node,
    Processor,
    Tier,
    bridged,
    default_link,
    derive,
    devices,
    hop_beyond,
    link_class,
    link_family,
    matrix_energy,
)
from predictor.hardware.budget import memory_edge, perimeter, tiers
from predictor.hardware.links import USUAL_HOP

PLAIN = Accelerator(
    name="plain", architecture="none", peak={"bf16": 3e14, "fp16": 2e14}, memory=8e10,
    bandwidth=2e12, l2=4e7, l2_bandwidth=5e12, sms=100.0,
)  # fmt: skip


def test_what_an_accelerator_leaves_open() -> None:
    """Nothing known is no number; a host that is not the device costs an operator nothing beside
    its kernel; tensor cores take 16 rows and 8 columns (PTX ISA, mma.m16n8k16)."""
    for name in ("power", "year", "host_bandwidth", "registers", "shared", "register_bandwidth",
                 "shared_bandwidth", "energy", "memory_energy"):  # fmt: skip
        assert math.isnan(float(getattr(PLAIN, name))), name
    assert (PLAIN.dispatch, PLAIN.split_dispatch, PLAIN.doubt) == (0.0, 0.0, 0.0)
    assert PLAIN.wide == "bf16"
    assert [replace(PLAIN, peak={one: 1.0}).wide for one in ("fp16", "fp32", "fp8")] == [
        "fp16", "fp32", "bf16"
    ]  # fmt: skip
    assert (PLAIN.instruction, PLAIN.cluster, PLAIN.relative) == ((16.0, 8.0), 1.0, None)
    assert 1.41e9 < PLAIN.clock == DEFAULT_CLOCK < 1.97e9, "between A100's and B200's"


def test_caches_read_what_was_measured() -> None:
    """gpu-benches: some 5 TB/s on A100 (108 processors at 1.41 GHz), 7 on H100 (132 at 1.83)."""
    assert pytest.approx(5e12, rel=0.1) == L2_BYTES_PER_CLOCK_PER_SM * 108 * 1.41e9
    assert pytest.approx(7e12, rel=0.15) == L2_BYTES_PER_CLOCK_PER_SM * 132 * 1.83e9


def test_wider_matrix_units_take_less_energy() -> None:
    """Joules of a 16-bit FLOP as chosen from caps over rates: 1.5 to 1.7 pJ at 1,024 FLOP per clock
    (L40S, A100 at 2,048 alike), 0.93 at 4,096, 0.67 at 8,192."""
    for width, low, high in ((1024.0, 1.5, 1.7), (4096.0, 0.85, 1.0), (8192.0, 0.6, 0.75)):
        assert low < float(matrix_energy(width)) * 1e12 < high
    # The same factor for every doubling.
    twice = [matrix_energy(2.0 * width) / matrix_energy(width) for width in (512.0, 4096.0)]
    assert twice[0] == pytest.approx(twice[1])
    assert matrix_energy(2048.0, 3.0, 1.0) == pytest.approx(1.5)
    # 12FFN's four times the power of 4N, of which products feel as much as from 4N to N7.
    for older in OLDER.values():
        assert older == pytest.approx(4.0 ** (math.log(1.33) / math.log(1.82)), rel=0.005)


def test_divided_tensors_take_a_host_that_is_the_device_longer_never_shorter() -> None:
    one = replace(PLAIN, architecture="cpu-x86_64", dispatch=3e-6, split_dispatch=7e-6)
    assert one.host_time(np.array([1.0, 2.0, 8.0])).tolist() == [3e-6, 7e-6, 7e-6]
    assert float(replace(one, split_dispatch=1e-6).host_time(2.0)) == 3e-6
    # One that queues kernels does it while they run.
    assert not np.any(replace(one, architecture="hopper").host_time(np.array([1.0, 8.0])))


def test_sums_in_16_bits_run_at_half_the_rate_of_integers_where_that_is_more() -> None:
    assert PLAIN.peak_for("fp16_acc") == 2e14
    for rate, expected in ((3e14, 2e14), (1e15, 5e14)):
        assert replace(PLAIN, peak={**PLAIN.peak, "int8": rate}).peak_for("fp16_acc") == expected
    with pytest.raises(InputError, match="plain has no fp8 rate; choose a precision that uses"):
        PLAIN.peak_for("fp8")
    with pytest.raises(InputError, match="state fp8_tflops"):
        replace(PLAIN, peak={}).peak_for("fp8")


def test_wires_to_each_peer_lead_to_peers_alone() -> None:
    """Of eight each has seven peers; through a switch all links lead to whichever it is."""
    wired = Tier("xgmi", 8.0, 7e10, direct=True)
    assert [float(wired.reached(peers)) for peers in (1.0, 3.0, 7.0, 9.0)] == [
        1 / 7, 3 / 7, 1.0, 1.0
    ]  # fmt: skip
    assert replace(wired, direct=False).reached(1.0) == 1.0
    assert replace(wired, size=math.inf).reached(1.0) == 1.0
    assert [float(replace(wired, size=size).reached(0.5)) for size in (1.0, 2.0, 3.0)] == [
        0.5, 0.5, 0.25
    ]  # fmt: skip


def test_a_flow_carries_a_window_for_each_round_trip() -> None:
    """RFC 7323: a window of 64 KiB over 2 x 1 ms is 32.8 MB/s, however fast the link."""
    link = Tier("ethernet", math.inf, 1e9, latency=1e-3, oversubscription=2.0, window=65536.0)
    assert float(link.rate) == pytest.approx(65536.0 / 2e-3)
    assert float(replace(link, window=1e9).rate) == 5e8
    assert float(replace(link, window=math.inf).rate) == 5e8
    assert float(replace(link, latency=math.nan).rate) == 5e8, "of an unknown latency, none"
    plain = Tier("ethernet", math.inf, 1e9)
    assert (plain.oversubscription, plain.in_switch, plain.direct) == (1.0, False, False)
    assert math.isnan(float(plain.latency))
    assert math.isinf(float(plain.window))


def test_hops_of_elastic_fabrics_are_those_of_their_plugin() -> None:
    """aws-ofi-nccl: platform-aws.c states 150 us for p3dn and 75 for p4d; its tuner 20 since."""
    for link, hop in (("efa", 150), ("efa1", 75), ("efa2", 20), ("efa3", 20), ("efa4", 20)):
        # NCCL's tuner has 4 us for InfiniBand's protocols of small messages (src/graph/tuning.cc).
        assert hop_beyond(link) == pytest.approx((hop - 4) * 1e-6)
        assert default_link("allreduce", link).hop == pytest.approx(hop * 1e-6)
        assert default_link("allreduce", link).beyond == hop_beyond(link)
    assert hop_beyond("infiniband-ndr") == 0.0
    assert default_link("allreduce", "infiniband-ndr").hop == pytest.approx(4e-6)
    assert math.isnan(default_link("allreduce", "nvlink4").beyond)


def test_hops_that_wait_longer_fill_a_pipeline_of_chunks_longer() -> None:
    """2 sqrt(h L ideal): four times the hop, twice the root's term; the hop by what is added."""
    link = replace(default_link("allreduce", "infiniband-ndr"), root=3e-4, hop=9e-6)
    far = link.waiting_beyond(12e-6)
    assert far.hop == pytest.approx(9e-6 + 12e-6)
    assert far.root == pytest.approx(3e-4 * 2.0)
    assert far.beyond == 12e-6
    both = link.waiting_beyond(np.array([0.0, 12e-6]))
    assert np.asarray(both.root).tolist() == pytest.approx([3e-4, 6e-4])
    assert np.asarray(both.hop).tolist() == pytest.approx([9e-6, 21e-6])
    # Of one that already waits for 12 us more, back to none.
    near = replace(link, beyond=12e-6).waiting_beyond(0.0)
    assert (near.root, near.hop) == (pytest.approx(3e-4 / 2.0), pytest.approx(-3e-6))
    assert replace(link, beyond=math.nan).waiting_beyond(5e-6).hop == 9e-6
    assert link.waiting_beyond(0.0) is link


def test_a_time_that_waits_is_as_uncertain_as_its_share() -> None:
    link = replace(default_link("allreduce", "nvlink4"), sigma=0.1)
    assert float(link.spread(0.7)) == pytest.approx(0.1)
    apart = replace(link, latency_sigma=0.5)
    assert float(apart.spread(0.0)) == pytest.approx(0.1)
    assert float(apart.spread(0.25)) == pytest.approx(0.25 * 0.5 + 0.75 * 0.1)
    assert float(apart.spread(1.0)) == pytest.approx(0.5)


def test_names_of_links() -> None:
    assert [link_family(name) for name in ("nvlink4", "infiniband-ndr", "pcie5", "efa")] == [
        "nvlink", "infiniband", "pcie", "efa"
    ]  # fmt: skip
    assert [link_class(name) for name in ("xgmi3", "gloo", "roce", "pcie4")] == [
        "scale-up", "host", "scale-out", "scale-up"
    ]  # fmt: skip
    # Bridges inside, the host beyond; where the host joins all, nothing bridges.
    assert bridged(["nvlink3", "pcie4", "infiniband"])
    assert not bridged(["pcie4", "infiniband"])
    assert not bridged(["nvlink3", "infiniband"])


KNOWN: Mapping[str, float] = {
    "memory_edge_share": 0.5, "lane_mm2": 0.5, "joint_mm2": 20.0, "other_share": 0.1,
    "unit_mm2_per_kflop": 1.5, "processor_mm2": 1.0, "enabled_share": 0.8, "clock_ghz": 2.0,
    "pj_per_flop": 0.5, "width_exponent": 0.5, "clock_exponent": 2.0,
    "sram_array_efficiency": 0.25, "doubt": 0.3,
}  # fmt: skip
NODE = Node("N9", density=2.0, power=0.6, speed=1.25, sram=3e6, wafer=1e4, defects=1e3,
            processor="design")  # fmt: skip
FIRST = Node("N8", density=1.0, power=0.8, speed=1.0, sram=2e6, wafer=1e4, defects=1e3,
             processor="design")  # fmt: skip
MEMORY = MemoryTechnology("stack", bandwidth=5e11, capacity=2e10, energy=3e-11, edge=10e-3,
                          area=10e-6, price=1e-8)  # fmt: skip
UP = LinkTechnology("up", "nvlink9", "scale-up", bandwidth=4e11, energy=4e-11, lanes=40.0,
                    in_switch=True, price=1e3)  # fmt: skip
OUT = LinkTechnology("out", "infiniband-next", "scale-out", bandwidth=1e11, energy=1e-10,
                     lanes=8.0, in_switch=False, price=2e3)  # fmt: skip
DESIGN = Processor(
    "volta", "plain", year=2030.0, node=FIRST, width=8192.0, vector=256.0,
    rates={"bf16": 1.0, "fp8": 2.0}, registers=2.6e5, shared=2.3e5, shared_rate=128.0,
    register_rate=3000.0, instruction=(64.0, 256.0), cluster=2.0,
)  # fmt: skip
BUDGET = Budget(NODE, MEMORY, UP, OUT, DESIGN, area=800e-6, dies=2.0, devices=4.0, l2_share=0.05,
                domain=16.0)  # fmt: skip


def test_edges_of_square_dies_side_by_side() -> None:
    """One has four sides; two have six that touch nothing; interfaces take their share."""
    assert float(perimeter(400e-6, 1.0)) == pytest.approx(4 * 20e-3)
    assert float(perimeter(800e-6, 2.0)) == pytest.approx(6 * 20e-3)
    assert float(memory_edge(BUDGET, KNOWN)) == pytest.approx(0.5 * 6 * 20e-3)
    assert float(memory_edge(replace(BUDGET, edge=0.2), KNOWN)) == pytest.approx(0.1)
    assert float(devices(BUDGET, KNOWN)) == 4.0
    free = replace(BUDGET, devices=math.nan)
    assert float(devices(free, KNOWN)) == 6.0
    assert float(devices(replace(free, edge=0.139), KNOWN)) == 6.0, "whole devices alone"


def test_a_machine_of_a_budget_by_hand() -> None:
    """800 mm2 of two dies: 40 of four interfaces, 24 of 48 lanes, 20 of a joint, 40 of cache, 80
    of the rest leave 596; a processor takes (1 + 12.288) / 2 mm2, of which four fifths are sold."""
    made = derive(BUDGET, PLAIN, KNOWN)
    areas = {"memory interfaces": 40, "links": 44, "cache": 40, "other": 80, "processors": 596}
    assert {name: float(area) * 1e6 for name, area in made.areas.items()} == pytest.approx(areas)
    one = made.accelerator
    count = math.floor(0.8 * 596 / ((1.0 + 1.5 * 8.192) / 2.0))
    assert float(one.sms) == count == 71
    # Unlimited power: the design clock, N9's 1.25 times 2 GHz.
    assert float(made.clock) == float(made.design_clock) == 2.5e9
    assert made.binds == "area"
    assert made.possible
    assert float(one.peak["bf16"]) == pytest.approx(count * 8192 * 2.5e9)
    assert float(one.peak["fp8"]) == pytest.approx(2 * count * 8192 * 2.5e9)
    assert float(one.peak["fp32"]) == pytest.approx(count * 256 * 2.5e9)
    # 0.5 pJ at N7, 0.6 of it at N9, half of that for a unit four times as wide.
    watts = {"memory": 4 * 5e11 * 3e-11, "links": 2 * 4e11 * 4e-11 + 2 * 1e11 * 1e-10,
             "processors": 0.5e-12 * 0.6 / 2 * count * 8192 * 2.5e9}  # fmt: skip
    assert {name: float(value) for name, value in made.watts.items()} == pytest.approx(watts)
    assert float(made.power) == float(one.power) == pytest.approx(sum(watts.values()))
    assert (one.memory, one.bandwidth) == (4 * 2e10, 4 * 5e11)
    assert float(one.l2) == pytest.approx(40e-6 * 3e6 * 0.25)
    assert float(one.l2_bandwidth) == pytest.approx(32 * count * 2.5e9)
    assert float(one.register_bandwidth) == pytest.approx(3000 * count * 2.5e9)
    assert float(one.shared_bandwidth) == pytest.approx(128 * count * 2.5e9)
    # What products draw, carried from N8 to N9; a design of today's process draws no more.
    energy = float(matrix_energy(8192.0)) * 0.6 / 0.8
    assert float(one.energy) == pytest.approx(energy * 1.94)
    today = derive(replace(BUDGET, processor=replace(DESIGN, name="new")), PLAIN, KNOWN)
    assert float(today.accelerator.energy) == pytest.approx(energy)
    assert (one.doubt, one.relative, one.memory_energy) == (0.3, PLAIN, 3e-11)
    assert one.name == "N9-stack-volta"


def test_a_clock_is_what_power_leaves() -> None:
    """Half of what the processors would draw, over a clock to the second power: clock over the
    root of two."""
    free = derive(BUDGET, PLAIN, KNOWN)
    full, rest = float(free.watts["processors"]), float(free.power - free.watts["processors"])
    half = derive(replace(BUDGET, power=rest + full / 2), PLAIN, KNOWN)
    assert float(half.clock) == pytest.approx(2.5e9 / math.sqrt(2.0))
    assert float(half.power) == pytest.approx(rest + full / 2)
    assert half.binds == "power"
    enough = derive(replace(BUDGET, power=rest + 3 * full), PLAIN, KNOWN)
    assert float(enough.power) == pytest.approx(rest + full)
    assert enough.binds == "area"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"devices": 7.0}, "7 devices of stack need 70 mm of the edge, the dies have 60 mm"),
        ({"power": 60.0}, "memory and links alone draw 112 W of the 60 W"),
        ({"l2_share": 0.79}, "leave 4 mm2 of 800, too little for a processor"),
    ],
)
def test_what_a_budget_cannot_pay_is_refused_or_marked(
    changes: dict[str, float], words: str
) -> None:
    with pytest.raises(InputError) as caught:
        derive(replace(BUDGET, **changes), PLAIN, KNOWN)  # type: ignore[arg-type]
    assert words in str(caught.value)
    both = {name: np.array([getattr(BUDGET, name), value]) for name, value in changes.items()}
    many = derive(replace(BUDGET, **both), PLAIN, KNOWN, strict=False)  # type: ignore[arg-type]
    assert many.possible.tolist() == [True, False]
    assert (np.asarray(many.accelerator.sms) >= 1.0).all()
    assert (np.asarray(many.clock) > 0.0).all()


def test_nothing_is_left_for_a_processor_that_finds_no_room() -> None:
    """What is marked impossible has one, so that it can be looked at."""
    shares = np.array([0.05, 0.79])
    many = derive(replace(BUDGET, l2_share=shares), PLAIN, KNOWN, strict=False)
    assert np.asarray(many.accelerator.sms).tolist() == [71.0, 1.0]


def test_half_a_watt_beside_memory_and_links_is_power() -> None:
    spent = float(sum(derive(BUDGET, PLAIN, KNOWN).watts[name] for name in ("memory", "links")))
    slow = derive(replace(BUDGET, power=spent + 0.5), PLAIN, KNOWN)
    assert float(slow.watts["processors"]) == pytest.approx(0.5)
    assert 0.0 < float(slow.clock) < 2.5e8


def test_devices_may_take_the_edge_and_a_hundredth_for_rounding() -> None:
    """Four of 10 mm, of half of the edge."""
    for edge, possible in ((0.0796, True), (0.0788, False)):
        made = derive(replace(BUDGET, edge=edge), PLAIN, KNOWN, strict=False)
        assert bool(made.possible) is possible


def test_a_budgets_networks() -> None:
    """Eight in a node, sixteen in a domain, everyone beyond."""
    inner, domain, outer = tiers(BUDGET)
    assert [(t.link, t.size, t.bandwidth, t.in_switch) for t in (inner, domain, outer)] == [
        ("nvlink9", 8.0, 4e11, True), ("nvlink9", 16.0, 4e11, True),
        ("infiniband-next", math.inf, 1e11, False),
    ]  # fmt: skip
    assert outer.oversubscription == 1.0
    assert tiers(replace(BUDGET, oversubscription=3.0))[-1].oversubscription == 3.0
    assert [t.size for t in tiers(replace(BUDGET, domain=8.0))] == [8.0, math.inf]
    alone = tiers(replace(BUDGET, domain=1.0, in_node=1.0))
    assert [t.size for t in alone] == [math.inf]
    # Of machines that differ, those of the largest; three of a node are three.
    several = replace(BUDGET, in_node=np.array([3.0, 8.0]), domain=np.array([3.0, 12.0]))
    assert [t.size for t in tiers(several)] == [8.0, 12.0, math.inf]
    assert derive(several, PLAIN, KNOWN).cluster.accelerators_per_node == 8
    assert [t.size for t in tiers(replace(BUDGET, in_node=2.0, domain=2.0))] == [2.0, math.inf]
    usual = Budget(NODE, MEMORY, UP, OUT, DESIGN, area=8e-4)
    assert (usual.dies, usual.domain, usual.in_node, usual.oversubscription) == (1, 8, 8, 1)
    assert 0.03 <= usual.l2_share <= 0.04, "A100 and H100 3 % of the dies, B200 4"
    for name in ("devices", "device_memory", "edge"):
        assert math.isnan(getattr(usual, name))
    assert math.isinf(usual.power)
    large = derive(replace(BUDGET, device_memory=3e10), PLAIN, KNOWN)
    assert float(large.accelerator.memory) == 4 * 3e10


def test_links_that_nobody_measured_are_as_nccl_has_them() -> None:
    """Shares of the sheet's rate of nccl-tests, hops of NCCL's tuner, and a launch before them."""
    inside, beyond = default_link("allreduce", "nvlink4"), default_link("allreduce", "ib-ndr")
    assert inside.efficiencies == (0.75,)
    assert 0.75 < beyond.efficiencies[0] < 0.9
    assert inside.hop < beyond.hop == USUAL_HOP + beyond.beyond
    assert inside.hop < inside.base < beyond.base < 2 * inside.base
    assert inside.sigma == beyond.sigma
    assert 0.2 <= inside.sigma <= 0.4, "the datasheet's rate is missed by a quarter or so"

"""Systems that a request means, resized or made up, and traces of requests: by hand."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from predictor import catalog
from predictor.catalog.clusters import (
    complete_cluster,
    scale_up,
    several_systems,
    stated_cluster,
    whole_node,
    with_host,
)
from predictor.catalog.filling import Filler
from predictor.catalog.machine_names import CORES, chip_of, other_memory, read_machine_name
from predictor.catalog.systems import (
    NODE_FALLBACK,
    NODE_NETWORK,
    PCIE_RATE,
    alone,
    default_system,
    networked,
    pcie,
    resize_node,
)
from predictor.catalog.traces import Trace, read_trace
from predictor.errors import InputError
from predictor.hardware import Accelerator, Cluster, Tier

DEVICE = Accelerator(
    name="x", architecture="none", peak={"bf16": 1e14}, memory=4e10, bandwidth=1e12, l2=3e7,
    l2_bandwidth=4e12, sms=100.0,
)  # fmt: skip
NODE = Cluster(
    "node", DEVICE, 8,
    (Tier("nvlink4", 8.0, 4e11), Tier("nvlink4", 32.0, 3e11), Tier("infiniband", math.inf, 5e10)),
    host_memory=2e12,
)  # fmt: skip


def test_generations_of_pcie_double() -> None:
    """x16, one way (PCI-SIG): 4 GB/s of the first, 8, 16, 32 of the fourth, 64, 128."""
    for generation in range(1, 7):
        assert pcie(2e9 * 2**generation) == f"pcie{generation}"
    assert pcie(1e9) == "pcie1"
    assert pcie(26e9) == "pcie4", "what is measured is a little less"
    assert (PCIE_RATE, NODE_FALLBACK) == (32e9, 8)
    assert NODE_NETWORK == 100e9 / 8


@pytest.mark.parametrize(
    ("host", "size", "link", "rate", "port"),
    [
        (math.nan, None, "pcie4", 32e9, 12.5e9), (math.nan, 4, "pcie4", 32e9, 12.5e9),
        (16e9, 8, "pcie3", 16e9, 12.5e9), (32e9, 8, "pcie4", 32e9, 25e9),
        (64e9, 2, "pcie5", 64e9, 50e9), (256e9, 8, "pcie7", 256e9, 50e9),
        (4e9, 8, "pcie1", 4e9, 12.5e9),
    ],
)  # fmt: skip
def test_a_node_that_no_catalog_has(
    host: float, size: int | None, link: str, rate: float, port: float
) -> None:
    """Joined by its slots; by a port of 100 Gb/s of PCIe 3, 200 of 4 and 400 of 5, for all."""
    found = alone(replace(DEVICE, host_bandwidth=host), size)
    inner, outer = found.tiers
    assert (inner.link, inner.size, inner.bandwidth) == (link, float(size or 8), rate)
    assert (outer.link, outer.size, outer.bandwidth) == ("ethernet", math.inf, port / (size or 8))
    assert found.accelerators_per_node == (size or 8)
    assert found.name == "PCIe node of x"


@pytest.mark.parametrize(
    ("card", "links"),
    [
        ("H100-PCIe-80GB", ["pcie5"]),
        ("H100-NVL-94GB", ["nvlink4", "pcie5"]),
        ("H200-NVL-141GB", ["nvlink4", "pcie5"]),
    ],
)
def test_bridges_are_sold_apart_but_for_cards_made_for_them(card: str, links: list[str]) -> None:
    found = default_system(catalog.accelerator(card), None)
    assert [tier.link for tier in found.tiers[:-1]] == links


def test_a_single_node_is_joined_where_it_is_to_have_more() -> None:
    one = replace(NODE, tiers=NODE.tiers[:1])
    assert networked(one, 8.0) is one
    joined = networked(one, 9.0)
    assert [tier.link for tier in joined.tiers] == ["nvlink4", "ethernet"]
    assert joined.tiers[1].bandwidth == 12.5e9 / 8


def test_a_resized_node_keeps_what_each_accelerator_has() -> None:
    """Its links, host memory for each; of those wired to each other the links to fewer peers."""
    half = resize_node(NODE, 4)
    assert [(t.size, t.bandwidth) for t in half.tiers] == [
        (4.0, 4e11), (32.0, 3e11), (math.inf, 5e10)
    ]  # fmt: skip
    assert (half.host_memory, half.accelerators_per_node) == (1e12, 4)
    assert half.name == "node with 4 per node"
    wired = replace(NODE, tiers=(replace(NODE.tiers[0], direct=True), *NODE.tiers[1:]))
    assert resize_node(wired, 4).tiers[0].bandwidth == pytest.approx(4e11 * 3 / 7)


def test_the_scale_up_network_is_that_of_the_innermost_link() -> None:
    assert scale_up(NODE) == 32
    assert scale_up(replace(NODE, tiers=NODE.tiers[::2])) == 8
    endless = replace(NODE, tiers=(Tier("ethernet", math.inf, 1e9),))
    assert scale_up(endless) == 8, "where it joins all, a node's"


def test_several_systems_are_names_and_numbers() -> None:
    found = several_systems("dgx-h100:2+dgx-h100+dgx-a100:3", "systems")
    assert [(one.name, number) for one, number in found] == [
        (catalog.system("dgx-h100").name, 3), (catalog.system("dgx-a100").name, 3)
    ]  # fmt: skip
    for wrong in ("dgx-h100:0", "dgx-h100:two", "dgx-h100:-1"):
        with pytest.raises(InputError, match="write NAME:COUNT"):
            several_systems(wrong, "systems")


def test_what_a_request_states_of_its_host_and_links() -> None:
    values = {"host_memory_gb": 512, "other": 1}
    assert with_host(NODE, values).host_memory == 512e9
    assert values == {"other": 1}
    assert with_host(NODE, {}).host_memory == 2e12
    found = stated_cluster(NODE, {"inter_link_gbps": 100.0, "accelerators_per_node": 4})
    assert found.tiers[-1].bandwidth == 12.5e9
    assert found.accelerators_per_node == 4
    assert [tier.link for tier in found.tiers] == ["nvlink4", "nvlink4", "infiniband"]
    assert stated_cluster(NODE, {"accelerators_per_node": 8}).name == "node"
    # A rate between nodes of a system of one tier: its nodes, and a network between them.
    single = replace(NODE, tiers=(Tier("nvlink4", 256.0, 4e11, in_switch=True),))
    inner, outer = stated_cluster(single, {"inter_link_gbps": 40.0}).tiers
    assert (inner.link, inner.size, inner.bandwidth, inner.in_switch) == ("nvlink4", 8, 4e11, True)
    assert (outer.link, outer.size, outer.bandwidth, outer.in_switch) == (
        "infiniband", math.inf, 5e9, False
    )  # fmt: skip


def test_nodes_as_large_as_a_run() -> None:
    """Four GH200 are a node of four; more or fewer are nodes of one, as the first system is."""
    for name, row in catalog.rows("accelerators").items():
        own = catalog.accelerator(name)
        sizes = {
            int(one["accelerators_per_node"])
            for one in catalog.rows("systems").values()
            if one["accelerator"] == row["name"]
        }
        first = scale_up(default_system(own, None))
        for gpus in (1, 2, 4, 8, 16):
            expected = gpus if gpus in sizes and gpus > first else None
            assert whole_node(own, {"gpus": gpus}) == expected, (name, gpus)
            assert whole_node(own, {"tp": gpus}) == expected


def test_a_system_is_that_of_its_accelerator_and_node() -> None:
    filler = Filler({"accelerator": "H100-SXM5-80GB", "gpus": 16})
    assert complete_cluster(filler).accelerator.name == "H100-SXM5-80GB"
    with pytest.raises(InputError, match="give --system or --accelerator"):
        complete_cluster(Filler({}))
    rows = catalog.rows("systems")
    for row in rows.values():
        own = catalog.accelerator(row["accelerator"])
        size = int(row["accelerators_per_node"])
        found = default_system(own, size)
        assert found.accelerators_per_node == size
        assert default_system(own, 5).accelerators_per_node == 5


def test_names_count_what_they_say() -> None:
    """Cores of chips that have two, else chips; nodes of eight; memory as the name has it."""
    assert set(CORES.values()) == {2}
    for name, count in (
        ("v5p-128", 64), ("v4-8", 4), ("v5litepod-8", 8), ("v6e-8", 8), ("8xH100", 8),
        ("H100:4", 4), ("2x8xH100", 16), ("3 x 4 x H100", 12), ("H100", 0),
    ):  # fmt: skip
        found = read_machine_name(name)
        assert found is not None, name
        assert found.count == count, name
    several = read_machine_name("2x8xH100")
    assert several is not None
    assert several.per_node == 8
    assert read_machine_name("v4-7") is None, "half a chip"
    assert chip_of("H100-SXM5-80GB") == ("h100sxm5", 80.0)
    assert chip_of("T4") is None
    assert other_memory("H100-SXM5-72GB") == ("H100-SXM5-80GB", 72.0)
    assert other_memory("nothing-72GB") is None
    assert catalog.system("1xH100").accelerators_per_node == 1
    rack = read_machine_name("2xgb200-nvl72")
    assert rack is not None
    assert rack.count == 144


def trace(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_requests_come_in_the_order_of_their_times(tmp_path: Path) -> None:
    azure = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "\n".join((
        "2023-11-16 18:15:50.5000000,30,3", "2023-11-16 18:15:46.2500000,10,0",
        "2023-11-16 18:16:46,20,2"))  # fmt: skip
    found = read_trace(trace(tmp_path, "azure.csv", azure))
    assert found.arrival is not None
    assert found.arrival.tolist() == pytest.approx([0.0, 4.25, 59.75])
    assert found.input_len.tolist() == [10.0, 30.0, 20.0]
    assert found.output_len.tolist() == [1.0, 3.0, 2.0], "an answer has a token at least"
    rows = [
        {"timestamp": 2000, "input_length": 700, "output_length": 5, "hash_ids": [1, 2]},
        {"timestamp": 500, "input_length": 500, "output_length": 6, "hash_ids": [1]},
    ]
    text = "\n".join(map(json.dumps, rows)) + "\n\n"
    mooncake = read_trace(trace(tmp_path, "mooncake.jsonl", text))
    assert mooncake.arrival is not None
    assert mooncake.arrival.tolist() == [0.0, 1.5], "milliseconds"
    assert mooncake.pieces == (((1, 512.0),), ((1, 512.0), (2, 512.0)))
    other = read_trace(trace(tmp_path, "own.csv", "arrival_s,input_len,output_len\n7,4,2\n3,5,1\n"))
    assert other.arrival is not None
    assert other.arrival.tolist() == [0.0, 4.0]
    plain = read_trace(trace(tmp_path, "plain.csv", "input_len,output_len\n7,4\n3,5\n"))
    assert plain.arrival is None
    assert plain.input_len.tolist() == [7.0, 3.0]


def test_results_of_clients_leave_out_what_failed(tmp_path: Path) -> None:
    run = {"input_lens": [5, 0, 7, 1], "output_lens": [1, 2, 0, 4], "start_times": [3.0, 1, 2, 1.5]}
    found = read_trace(trace(tmp_path, "bench.json", json.dumps([{"input_lens": []}, run])))
    assert found.arrival is not None
    assert found.arrival.tolist() == [0.0, 1.5]
    assert (found.input_len.tolist(), found.output_len.tolist()) == ([1.0, 5.0], [4.0, 1.0])
    short = {**run, "start_times": [1.0]}
    assert read_trace(trace(tmp_path, "short.json", json.dumps(short))).arrival is None
    with pytest.raises(InputError, match="as many output_lens as input_lens are needed"):
        read_trace(trace(tmp_path, "bad.json", json.dumps({**run, "output_lens": [1]})))
    with pytest.raises(InputError, match="every prompt must have at least one token"):
        read_trace(trace(tmp_path, "none.csv", "input_len,output_len\n0.5,4\n"))
    assert read_trace(trace(tmp_path, "one.csv", "input_len,output_len\n1,4\n")).input_len == 1.0
    with pytest.raises(InputError, match="is neither seconds nor a date"):
        read_trace(trace(tmp_path, "when.csv", "arrival_s,input_len,output_len\nsoon,4,2\n"))
    assert np.isfinite(found.input_len).all()


def test_requests_per_second_are_those_between_the_first_and_the_last() -> None:
    one = np.ones(3)
    assert Trace(np.array([0.0, 1.0, 4.0]), one, one).rate == 0.5
    assert Trace(np.array([0.0, 0.5]), one[:2], one[:2]).rate == 2.0
    for arrival in (None, np.zeros(3), np.zeros(1)):
        assert Trace(arrival, one, one).rate is None

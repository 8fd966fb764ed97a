from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibration.network.fit import bounded, fit_links
from calibration.tables.kernel_table import check_kernels
from predictor import catalog
from predictor.hardware.links import LinkCurve, LinkModel, default_link
from predictor.hardware.systems import Cluster, Tier
from predictor.timing.calibration import Calibration
from predictor.timing.collectives import collective_time
from predictor.units import Z80
from predictor.work.primitives import Group


def table(link: str = "nvlink3", rate: float = 300.0) -> pd.DataFrame:
    """Collectives whose parameters are known: 8 us + 1 us a hop, 0.75 of the rate."""
    rows = []
    for op, passes, trips in (("allreduce", 2, 2), ("allgather", 1, 1)):
        for n in (2, 4, 8):
            for size in 2.0 ** np.arange(10, 31, 1):
                moved = passes * (n - 1) / n * size
                hops = min(trips * (n - 1), 2 * np.log2(n)) if op == "allreduce" else n - 1
                time = 8e-6 + 1e-6 * hops + moved / (0.75 * rate * 1e9)
                rows.append({"accelerator": "A100-SXM4-80GB", "op": op, "dtype": "fp16",
                             "num_gpus": n, "num_nodes": 1, "message_bytes": size,
                             "latency_us": time * 1e6, "link": link, "link_gbs": rate,
                             "in_switch": 0.0})  # fmt: skip
    return check_kernels(pd.DataFrame(rows), "t")


def test_known_parameters_are_found() -> None:
    fitted = fit_links(table())
    model = fitted.links[("allreduce", "nvlink3")]
    assert model.efficiencies == pytest.approx((0.75, 0.75, 0.75), rel=0.02)
    pace = model.pace(catalog.accelerator("A100-SXM4-80GB").clock)
    assert pace * (model.base + 2 * model.hop) == pytest.approx(10e-6, rel=0.05)
    assert fitted.heldout[("allreduce", "nvlink3")].mape < 0.02


def test_the_fit_and_the_prediction_agree() -> None:
    measured = table()
    known = Calibration("x", links=fit_links(measured).links)
    node = Cluster("x", catalog.accelerator("A100-SXM4-80GB"), 8, (Tier("nvlink3", 8, 300e9),))
    for row in measured.iloc[::7].to_dict("records"):
        group = Group(row["num_gpus"], 1.0)
        time, _ = collective_time(row["op"], row["message_bytes"], group, node, known)
        assert float(time) * 1e6 == pytest.approx(row["latency_us"], rel=0.05)


def test_an_unmeasured_generation_uses_its_family() -> None:
    known = Calibration("x", links=fit_links(table()).links)
    assert known.link("allgather", "nvlink7").link == "nvlink"
    assert known.link("allgather", "xgmi4").link == "*scale-up"
    assert known.link("allgather", "efa").pedigree == "roofline"


def test_two_cards_alone_leave_the_latency_of_more_to_the_family() -> None:
    """Hops of 4 us without a start: four cards of a generation that two were timed of take twice
    the latency of those (with what is documented of any link, 1.1 times), eight three times."""
    rows = []
    for link, rate, sizes in (("pcie5", 60.0, (2, 4, 8)), ("pcie4", 30.0, (2,))):
        found = table(link, rate)
        found = found[(found["op"] == "allreduce") & found["num_gpus"].isin(sizes)]
        steps = 2.0 * np.log2(found["num_gpus"])
        latency = found["latency_us"] - (8.0 + 1.0 * steps) + 4.0 * steps
        rows.append(found.assign(latency_us=latency))
    known = Calibration("x", links=fit_links(pd.concat(rows, ignore_index=True)).links)
    node = Cluster("x", catalog.accelerator("A100-SXM4-80GB"), 8, (Tier("pcie4", 8, 30e9),))
    two, four, eight = (
        float(collective_time("allreduce", 1024.0, Group(n, 1.0), node, known)[0])
        for n in (2, 4, 8)
    )
    assert two == pytest.approx(8e-6, rel=0.05)
    assert four == pytest.approx(2.0 * two, rel=0.05)
    assert eight == pytest.approx(3.0 * two, rel=0.05)


def test_halves_of_an_all_reduce_follow_it_between_nodes() -> None:
    across = table("infiniband-ndr", 50.0)
    across = across[across["op"] == "allreduce"].assign(num_nodes=across["num_gpus"])
    known = Calibration("x", links=fit_links(across).links)
    model = known.link("reducescatter", "infiniband-ndr")
    assert model.pedigree == "transferred"
    assert model.efficiencies == known.link("allreduce", "infiniband-ndr").efficiencies


KNOTS = st.lists(st.floats(-1.0, 1.0), min_size=4, max_size=9)


@given(KNOTS, KNOTS, st.floats(1e3, 1e10), st.floats(1.001, 3.0), st.sampled_from([2, 3, 4, 8]))
def test_no_curve_makes_a_larger_message_faster(
    two: list[float], eight: list[float], message: float, more: float, size: int
) -> None:
    curves = []
    for members, factors in ((2.0, two), (8.0, eight)):
        x = np.linspace(np.log(1e-6), np.log(1e-2), len(factors))
        curves.append(LinkCurve(members, tuple(x), bounded(x, np.array(factors))))
    model = LinkModel(
        op="allreduce", link="nvlink4", base=8e-6, hop=1e-6, root=1e-3, log2_sizes=(1.0, 3.0),
        efficiencies=(0.7, 0.8), sigma=0.1, points=9,
    )  # fmt: skip
    model = replace(model, curves=tuple(curves))
    known = Calibration("t", links={("allreduce", "nvlink4"): model})
    device = catalog.accelerator("H100-SXM5-80GB")
    node, wide = (
        Cluster("t", device, 8, (Tier("nvlink4", 8, rate),)) for rate in (450e9, 450e9 * more)
    )
    group, messages = Group(float(size), 1.0), np.array([message, message * more])
    small, large = collective_time("allreduce", messages, group, node, known)[0]
    assert small <= large * (1 + 1e-12)
    faster = collective_time("allreduce", message, group, wide, known)[0]
    assert faster <= small * (1 + 1e-12)


def between_nodes(least: float, nodes: tuple[int, ...] = (2, 4)) -> pd.DataFrame:
    """All-reduces over nodes of eight, as a known network would be predicted to run them."""
    inside = fit_links(table("nvlink4", 450.0)).links
    truth = Calibration(
        "t",
        links={
            ("allreduce", "infiniband-ndr"): LinkModel(
                op="allreduce", link="infiniband-ndr", base=15e-6, hop=4e-6, root=0.0,
                log2_sizes=(1.0,), efficiencies=(0.85,), sigma=0.1, points=9,
            ),
            ("allreduce", "nvlink4"): inside["allreduce", "nvlink4"],
        },
    )  # fmt: skip
    device = catalog.accelerator("H100-SXM5-80GB")
    tiers = (Tier("nvlink4", 8, 450e9), Tier("infiniband-ndr", np.inf, 50e9))
    cluster, sizes = Cluster("x", device, 8, tiers), 2.0 ** np.arange(np.log2(least), 33)
    rows = []
    for count in nodes:
        times, _ = collective_time("allreduce", sizes, Group(8.0 * count, 1.0), cluster, truth)
        rows.append(pd.DataFrame({
            "accelerator": device.name, "op": "allreduce", "dtype": "fp16", "source": "t",
            "num_gpus": 8 * count, "num_nodes": count, "message_bytes": sizes,
            "latency_us": times * 1e6, "link": "infiniband-ndr", "link_gbs": 50.0,
            "in_switch": 0.0, "node_link": "nvlink4", "node_link_gbs": 450.0,
            "node_in_switch": 0.0,
        }))  # fmt: skip
    node = table("nvlink4", 450.0).assign(accelerator=device.name, source="t")
    return check_kernels(pd.concat([node, *rows], ignore_index=True), "t")


def test_hops_and_traffic_inside_the_nodes_are_not_counted_twice() -> None:
    """What is predicted of a network is what its fit finds again: eight ranks of a node have hops
    and traffic of their own, which are not the network's."""
    model = fit_links(between_nodes(256.0)).links["allreduce", "infiniband-ndr"]
    assert model.base + 2 * model.hop == pytest.approx(23e-6, rel=0.1)
    assert model.efficiencies[0] == pytest.approx(0.85, rel=0.1)


def test_large_messages_alone_leave_the_latency_that_is_documented() -> None:
    """Half a gigabyte does not show what an empty message takes, and if eight take a hundredth more
    than they should, that it takes nothing."""
    large = between_nodes(2.0**29)
    large = large[large["num_nodes"] > 1]
    slower = large["latency_us"] * (large["message_bytes"] / 2.0**29) ** 0.005
    fitted = fit_links(large.assign(latency_us=slower)).links["allreduce", "infiniband-ndr"]
    usual = default_link("allreduce", "infiniband-ndr")
    assert fitted.base + 2 * fitted.hop > 0.3 * (usual.base + 2 * usual.hop)


def test_a_network_of_one_table_is_as_uncertain_as_any_other_network() -> None:
    """Its own sizes left out say nothing of the next cluster of that name."""
    first = between_nodes(256.0)
    slow = first[first["num_nodes"] > 1].assign(source="u")
    slow = slow.assign(latency_us=1.5 * slow["latency_us"])
    fitted = fit_links(pd.concat([first, slow], ignore_index=True))
    model = fitted.links["allreduce", "infiniband-ndr"]
    assert model.sigma * Z80 > 0.9 * np.log(1.5)


def generation(link: str, device: str, rate: float, source: str) -> pd.DataFrame:
    """All-reduces between nodes of one accelerator over a network of that hop, in chunks of the
    best size: h hops of L and k of them take (h + k) (ideal / k + L), least at
    k = sqrt(h ideal / L)."""
    hop, rows = {"efa1": 75e-6, "efa2": 20e-6, "infiniband-ndr": 4e-6}[link], []
    for size in 2.0 ** np.arange(3, 33):
        ideal = size / (rate * 1e9)
        time = 15e-6 + 2 * hop + ideal + 2 * np.sqrt(2 * hop * ideal)
        rows.append({"accelerator": device, "op": "allreduce", "dtype": "fp16", "source": source,
                     "num_gpus": 2, "num_nodes": 2, "message_bytes": size,
                     "latency_us": time * 1e6, "link": link, "link_gbs": rate,
                     "in_switch": 0.0})  # fmt: skip
    return check_kernels(pd.DataFrame(rows), "t")


def test_an_unmeasured_generation_has_the_latency_that_is_documented_of_it() -> None:
    """EFA's first generation is known from the second and from InfiniBand: its hop is longer, and
    the chunks of its larger messages wait for it."""
    later = generation("efa2", "H100-SXM5-80GB", 50.0, "a")
    other = generation("infiniband-ndr", "H100-SXM5-80GB", 50.0, "b")
    fitted = fit_links(pd.concat([later, other], ignore_index=True))
    known = Calibration("x", links=fitted.links)
    device = catalog.accelerator("A100-SXM4-80GB")
    for link in ("efa1", "efa2", "infiniband-ndr"):
        cluster = Cluster("x", device, 1, (Tier(link, np.inf, 6.25e9),))
        truth = generation(link, device.name, 6.25, "c")
        times, _ = collective_time(
            "allreduce", truth["message_bytes"].to_numpy(float), Group(2.0, 1.0), cluster, known
        )
        assert times * 1e6 == pytest.approx(truth["latency_us"].to_numpy(float), rel=0.05)


@given(hop=st.floats(1e-6, 1e-2), ideal=st.floats(1e-3, 10.0), hops=st.integers(1, 40))
def test_the_root_grows_as_a_pipeline_of_chunks(hop: float, ideal: float, hops: int) -> None:
    """Longer hops make the term of chunks longer as much as the best number of chunks does."""
    usual = replace(default_link("allreduce", "roce"), root=1.0)

    def beyond(wait: float) -> float:
        chunks = np.sqrt(hops * ideal / wait)
        return float((hops + chunks) * (ideal / chunks + wait) - ideal - hops * wait)

    longer = usual.waiting_beyond(hop)
    wanted = beyond(usual.hop + hop) / beyond(usual.hop)
    assert longer.root / usual.root == pytest.approx(wanted, rel=1e-6)
    assert longer.hop == pytest.approx(usual.hop + hop)

"""Link models on what their fits did not see: sizes, generations, sources."""

from __future__ import annotations

import pandas as pd
import pytest

from calibration.checks.links import unseen_generations, unseen_sizes, unseen_sources
from calibration.network.fit import PHASES
from calibration.network.wire import op_of
from predictor import catalog
from predictor.hardware import link_class
from predictor.timing.calibration import Calibration
from predictor.timing.collectives import collective_time
from predictor.work.primitives import Group

NVLINK = ["nvlink3", "nvlink4", "nvlink5"]
COMPUTED = ["allreduce", "allgather", "reducescatter", "alltoall"]


def row_mean(found: pd.DataFrame, column: str) -> float:
    return float((found[column] * found["n"]).sum() / found["n"].sum())


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.long)])
def test_large_messages_of_unseen_sizes(collectives: pd.DataFrame, every: bool) -> None:
    """8 % on every link, but for all-reduce on NVLink 5 (8.2 %: releases of NCCL switch algorithms
    at different sizes) and for the single row of xGMI; 6 % over all, of which a quarter of the
    sizes tells as well."""
    found = unseen_sizes(collectives, PHASES if every else 1)
    large = found[(found["band"] == "large") & found["op"].isin([*COMPUTED, "p2p"])]
    large = large[large["n"] >= 8]
    assert row_mean(large, "mape") <= 0.06
    if every:
        assert (large["mape"] <= 0.085).all()
        assert (large["mape"] > 0.08).sum() <= 1
    # Between nodes spreads are those of whole networks, which sizes left out must fall within.
    every_size = found[found["band"] == "all"]
    inside = every_size["link"].map(link_class) == "scale-up"
    assert 0.75 <= row_mean(every_size[inside], "coverage") <= 0.85
    assert row_mean(every_size[~inside], "coverage") >= 0.75


def test_an_unseen_generation_of_nvlink(collectives: pd.DataFrame) -> None:
    """15 % over the three generations, each predicted from the others, but not on each (9, 15.5 and
    17 %): NVLink 4 (H100, H200) is quicker than both its neighbours, NVLink 5 slower for its rate.
    That latencies follow the clock was chosen by these figures (23 % on NVLink 4 without)."""
    own = collectives["link"].isin(NVLINK) & op_of(collectives).isin(COMPUTED)
    found = unseen_generations(collectives[own])
    large = found[(found["band"] == "large") & found["op"].isin(COMPUTED)]
    assert row_mean(large, "mape") <= 0.15
    by_link = large.groupby("link")["mape"].mean()
    assert by_link["nvlink3"] <= 0.15
    assert by_link.max() <= 0.175
    # Sought is 75-85 %: three generations are too few to know the spread of a fourth; NVLink 5's
    # latencies lie outside what the other two span.
    every = found[(found["band"] == "all") & found["op"].isin(COMPUTED)]
    assert 0.75 <= row_mean(large, "coverage") <= 0.9
    assert 0.7 <= row_mean(every, "coverage") <= 0.85


def test_an_unseen_network_between_nodes(collectives: pd.DataFrame) -> None:
    own = (collectives["kernel"] != "custom") & (collectives["op"] == "allreduce")
    found = unseen_sources(collectives[own])
    large = found[found["band"] == "large"]
    assert row_mean(large, "mape") <= 0.22


def test_the_model_agrees_with_the_fit_between_nodes(
    collectives: pd.DataFrame, links: Calibration
) -> None:
    """Two nodes of H100: traffic inside the nodes counts in prediction and fit alike."""
    cluster = catalog.system("AWS-p5.48xlarge")
    own = collectives[(collectives["link"] == "efa2") & (collectives["message_bytes"] > 1e8)]
    times, _ = collective_time(
        "allreduce", own["message_bytes"].to_numpy(float), Group(16.0, 1.0), cluster, links
    )
    ratio = times * 1e6 / own["latency_us"].to_numpy(float)
    assert abs(ratio - 1).mean() < 0.12


def test_custom_all_reduces_beat_nccl_on_small_messages(links: Calibration) -> None:
    """Decode at TP 8: 3-10 us in captured graphs, 15-30 us in NCCL (METHOD.md)."""
    for name in ("dgx-a100", "dgx-h100", "DGX-B200"):
        cluster, group = catalog.system(name), Group(8.0, 1.0)
        custom, _ = collective_time("allreduce.custom", 16384.0, group, cluster, links)
        nccl, _ = collective_time("allreduce", 16384.0, group, cluster, links)
        assert 3e-6 < custom < 11e-6 < 14e-6 < nccl < 32e-6


@pytest.mark.parametrize(
    ("system", "gpus", "bus", "within"),
    [
        ("dgx-h100", 16, 467e9, 0.15),
        ("dgx-h100", 64, 387e9, 0.15),
        ("AWS-p6-b200.48xlarge", 32, 380e9, 0.15),
        ("GCP-a4-highgpu-8g", 16, 690e9, 0.15),
        ("GB200-NVL72", 72, 839e9, 0.15),
        ("GB200-NVL72", 144, 811e9, 0.2),
    ],
)
def test_published_bus_bandwidths(
    links: Calibration, system: str, gpus: float, bus: float, within: float
) -> None:
    """Of large all-reduces (bulk/kernels/NOTES.md, headline figures). Only the first is in the fit,
    but the volumes of trees and switches were chosen with these figures in view: a check that they
    stay right, no proof. Racks of GB200 come out 14 and 18 % too quick since trays of one switch
    are reached alike (9 and 14 before). Twenty racks (406 GB/s) are missed twofold: nothing
    measured says how a network falls off at a thousand ranks."""
    message = 8e9
    time, _ = collective_time("allreduce", message, Group(gpus, 1.0), catalog.system(system), links)
    assert 2 * (gpus - 1) / gpus * message / float(time) == pytest.approx(bus, rel=within)

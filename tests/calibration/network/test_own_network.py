"""A cluster that carries its own measured network: from a table of collectives, through `reckon
calibrate`, to the time that a system with that link is predicted to take."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from calibration.network.fit import fit_links, phases
from calibration.sources import fgpm
from calibration.tables.kernel_table import check_kernels
from predictor import catalog
from predictor.catalog.artifacts import load
from predictor.hardware.systems import Cluster
from predictor.timing.calibration import Calibration
from predictor.timing.collectives import collective_time
from predictor.work.primitives import Group
from reckon.verbs.calibrating import calibrate


@pytest.fixture(scope="module")
def slow(shared: Path) -> pd.DataFrame:
    """NCCL between nodes of Perlmutter, at a twentieth of what its adapters carry."""
    table = fgpm.perlmutter(shared / "bulk/seeds/fgpm_nccl_perlmutter_vista.csv")
    table = table[table["op"] == "allreduce"]
    return check_kernels(table.reset_index(drop=True), "perlmutter")


def cluster() -> Cluster:
    return catalog.system(
        {
            "name": "mine",
            "accelerator": "A100-SXM4-40GB",
            "accelerators_per_node": 4,
            "tiers": [
                {"link": "nvlink3", "size": 4, "bandwidth_gbs": 300},
                {"link": "perlmutter-slingshot", "bandwidth_gbs": 25},
            ],
        }
    )


def off(rows: pd.DataFrame, known: Calibration) -> np.ndarray:
    """Relative errors of the predicted all-reduce, through the path of a prediction."""
    found = []
    for (nodes, gpus), own in rows.groupby(["num_nodes", "num_gpus"]):
        # Fewer ranks per node than it holds: ranks of a smaller node.
        mine = cluster()
        node = float(gpus / nodes)
        tiers = (replace(mine.tiers[0], size=node), mine.tiers[1])
        mine = Cluster(mine.name, mine.accelerator, int(node), tiers)
        times, _ = collective_time(
            "allreduce", own["message_bytes"].to_numpy(float), Group(float(gpus), 1.0), mine, known
        )
        found.append(times * 1e6 / own["latency_us"].to_numpy(float) - 1.0)
    return np.abs(np.concatenate(found))


def test_a_measured_network_is_what_is_predicted(slow: pd.DataFrame, tmp_path: Path) -> None:
    phase = phases(np.floor(4 * np.log2(slow["message_bytes"].to_numpy(float))))
    held = phase == 1  # every fourth size
    path = tmp_path / "mine.parquet"
    slow[~held].to_parquet(path)
    calibrate(path, tmp_path / "mine", base="kernels-only")
    known = load(tmp_path / "mine")
    assert known.link("allreduce", "perlmutter-slingshot").pedigree == "interpolated"
    assert off(slow[held], known).mean() < 0.15
    assert off(slow[held], load("kernels-only")).mean() > 0.5


def test_the_other_collectives_are_slow_there_too(slow: pd.DataFrame, links: Calibration) -> None:
    known = Calibration("t", links={**links.links, **fit_links(slow, links).links})
    for op in ("allgather", "reducescatter", "p2p"):
        now, before = (
            collective_time(op, 1e8, Group(8.0, 1.0), cluster(), c)[0] for c in (known, links)
        )
        assert now > 5 * before


@pytest.mark.parametrize("rows", [1, 3, 7])
def test_few_rows_scale_the_family(slow: pd.DataFrame, links: Calibration, rows: int) -> None:
    few = slow.sample(rows, random_state=0)
    fitted = fit_links(few, links)
    model = fitted.links[("allreduce", "perlmutter-slingshot")]
    assert model.pedigree == "transferred"
    known = Calibration("t", links={**links.links, **fitted.links})
    assert off(slow, known).mean() < 0.35
    assert off(slow, links).mean() > 0.5


def test_rows_that_agree_with_the_family_change_nothing(links: Calibration) -> None:
    prior = links.link("allreduce", "somewhere-ib")
    mine = cluster()
    tiers = (mine.tiers[0], replace(mine.tiers[1], link="somewhere-ib"))
    mine = Cluster("mine", mine.accelerator, 4, tiers)
    message = np.array([1e6, 1e8])
    group = Group(4.0, 4.0)
    times, _ = collective_time("allreduce", message, group, mine, links)
    table = pd.DataFrame(
        {"accelerator": "A100-SXM4-40GB", "op": "allreduce", "dtype": "fp16", "num_gpus": 4,
         "num_nodes": 4, "message_bytes": message, "latency_us": times * 1e6,
         "link": "somewhere-ib", "link_gbs": 25.0, "in_switch": 0.0}
    )  # fmt: skip
    model = fit_links(check_kernels(table, "t"), links).links[("allreduce", "somewhere-ib")]
    assert model.base == pytest.approx(prior.base, rel=1e-6)
    assert model.efficiencies == pytest.approx(prior.efficiencies, rel=1e-6)

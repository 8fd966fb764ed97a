"""What slow and failed parts take of a step."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import reckon
from predictor.errors import InputError
from predictor.training import Case
from predictor.training.faults import _arithmetic, _network, loss, told
from predictor.variation.faults import COMPUTE, HBM, NIC, NVLINK, fault, faults

Cli = Callable[..., tuple[int, str, str]]

STREAMS = ("norm", "elementwise", "embedding", "loss", "softmax")
"""Kinds of kernels that memory binds."""

PLAN = {"tp": 8, "pp": 4, "gpus": 256, "global_batch": 256, "seq_len": 8192, "micro_batch": 1}


@pytest.fixture(scope="module")
def case() -> Case:
    return made()


def made(model: str = "llama3-70b", **more: Any) -> Case:
    found = reckon.predict_train(model, "dgx-h100", {**PLAN, **more}, "none")
    request = found.request
    return Case.of(request.model, request.cluster, request.plan, found.batch.calibration)


@pytest.mark.parametrize(
    "text", ["compute:1", "hbm:1", "nvlink:1", "nic:1", "rail:0", "spine:0/32"]
)
def test_a_sound_part_costs_exactly_nothing(case: Case, text: str) -> None:
    found = loss(case, fault(text))
    assert np.all(found.by_stage == 0.0)
    assert (found.packed, found.random, found.spread) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize("kind", [HBM, NVLINK, NIC])
def test_less_that_is_left_never_costs_less(case: Case, kind: str) -> None:
    losses = [loss(case, fault(f"{kind}:{left}")).spread for left in (1.0, 0.5, 0.25, 0.1)]
    assert losses == sorted(losses)
    assert losses[-1] > 0.01


def test_a_slow_accelerator_costs_its_stage_over_and_over(case: Case) -> None:
    """Equal inner stages, m micro-batches: m k t in place of m t, as far as kernels bound by
    arithmetic make up the stage; never more than its factor says."""
    slow = [loss(case, fault(f"{COMPUTE}:{k}")) for k in (1.1, 1.5, 2.0)]
    spreads = [one.spread for one in slow]
    assert spreads == sorted(spreads)
    for one, k in zip(slow, (1.1, 1.5, 2.0), strict=True):
        assert 0.0 < one.packed <= one.random <= one.spread < k - 1.0
        assert len(one.by_stage) == 4


def test_slower_arithmetic_slows_what_is_bound_by_it_alone(case: Case) -> None:
    """Products of 8,192 columns twice as long; what streams through memory as long as before."""
    slow = case.put_together(_arithmetic(case, 2.0))
    longer = {
        name: float(slow.families[name] / own)
        for name, own in case.step.families.items()
        if own > 0
    }
    products = [longer[name] for name in ("gemm", "attention_prefill", "attention_backward")]
    streams = [ratio for name, ratio in longer.items() if name.partition(".")[0] in STREAMS]
    # The bubble is longer by the products, and every family has its part of it.
    assert len(streams) > 5
    assert streams == pytest.approx([streams[0]] * len(streams))
    assert streams[0] < 1.2
    assert products == pytest.approx([2.0 * streams[0]] * 3)


def test_links_show_in_the_dimension_that_crosses_them(case: Case) -> None:
    assert set(loss(case, fault("nvlink:0.5")).by_dimension) == {"tp"}
    inter = loss(case, fault("nic:0.1")).by_dimension
    assert "tp" not in inter
    assert "dp" in inter
    experts = made("mixtral-8x7b", tp=1, pp=1, gpus=64, ep=64 // 8, rank_order="tp-cp-dp-pp")
    assert "ep" in loss(experts, fault("nvlink:0.5")).by_dimension


def test_gradients_hide_a_slow_link_until_their_window_is_full(case: Case) -> None:
    """What a slow link adds to gradients is at most what it adds to their traffic, and less by what
    still hides."""
    own = loss(case, fault("nic:0.9")).by_dimension.get("dp", 0.0)
    exposed = float(case.step.breakdown["dp_communication"])
    hidden = float(case.step.hidden["dp"])
    assert own * float(case.step.step_time) <= (exposed + hidden) * (1 / 0.9 - 1) * 1.01


def test_what_has_failed_is_rerouted_or_stops_the_job(case: Case) -> None:
    """Of eight rails seven are left: as a NIC at 7/8 of its rate."""
    lost = loss(case, fault("nic:0"))
    assert lost.spread == loss(case, fault("rail:1")).spread
    assert lost.spread == pytest.approx(loss(case, fault("nic:0.875")).spread)
    assert not lost.stops
    assert loss(case, fault("nvlink:0")).stops
    assert loss(case, fault("rail:8")).stops


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("nic", "KIND:VALUE"),
        ("fan:0.5", "unknown faults"),
        ("compute:0.5", "1 or more"),
        ("nic:2", "from 0 to 1"),
        ("hbm:0", "stops the job"),
        ("spine:3", "spine"),
        ("nic:0.5@2", "share of the time"),
        ("nic:0.5@0h/2h", "above 0"),
    ],
)
def test_bad_faults_are_refused_in_a_line(text: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        faults(text)


def test_spells_of_slowness_are_the_more_common_the_larger_the_job_and_the_later_noticed() -> None:
    """Of 1,000 accelerators, each slow for 2 of 5,000 h: 1 - e^-0.4 of the time."""
    (early,), (late,) = faults("compute:1.3@5000h/2h"), faults("compute:1.3@5000h/10h")
    assert early.share_of(1000.0) == pytest.approx(1.0 - np.exp(-0.4))
    assert early.share_of(100.0) < early.share_of(1000.0) < late.share_of(1000.0)


def test_a_machine_of_one_node_has_links_inside_it_alone() -> None:
    found = reckon.predict_train(
        "llama3-8b", "RTX4090-8x-PCIe", {"tp": 8, "gpus": 8, "global_batch": 8, "seq_len": 1024},
        "none",
    )  # fmt: skip
    request = found.request
    case = Case.of(request.model, request.cluster, request.plan, found.batch.calibration)
    assert loss(case, fault("nvlink:0.5")).spread > 0.0
    for text in ("nic:0.5", "rail:1", "spine:1/32"):
        with pytest.raises(InputError, match="no network between nodes"):
            loss(case, fault(text))


def test_the_step_that_is_expected_is_the_mean_over_time(case: Case) -> None:
    """Each fault alone for its share of the time, the sound step for the rest."""
    sound = told(case, ())
    step = float(case.step.step_time)
    assert (sound["expected_loss"], sound["expected_step_time_s"]) == (0.0, step)
    found = told(case, faults("nic:0.5@0.1,compute:1.2x3@0.3,nvlink:0@0.2"))
    first, second, third = found["faults"]
    assert third["step_time_s"] is None  # stops the job: no step to count
    longer = [one["share_of_time"] * (one["step_time_s"] - step) for one in (first, second)]
    assert found["expected_step_time_s"] == pytest.approx(step + sum(longer))
    assert first["placement_gain"] == pytest.approx(
        first["step_time_s"] / step / (1.0 + first["loss_packed"])
    )


def test_faults_are_told_beside_a_step_that_stays_as_it_is(cli: Cli, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    common = (
        "predict", "train", "--model", "llama3-8b", "--system", "dgx-h100", "--gpus", "16",
        "--global-batch", "64", "--seq-len", "8192", "--calibration", "none", "--json", str(out),
    )  # fmt: skip
    assert cli(*common)[0] == 0
    plain = json.loads(out.read_text())
    status, text, _ = cli(*common, "--faults", "nic:0.5@0.1,compute:1.2x3")
    assert status == 0
    assert "compute:1.2x3" in text
    found = json.loads(out.read_text())
    own = found.pop("degraded")
    assert found.pop("stated") == {**plain.pop("stated"), "faults": "nic:0.5@0.1,compute:1.2x3"}
    assert found == plain
    first, second = own["faults"]
    expected = 0.1 * first["loss_random"] + second["loss_random"]
    assert own["expected_loss"] == pytest.approx(expected)
    assert second["placement_gain"] >= 1.0
    assert cli(*common, "--faults", "nic")[0] == 2
    _, text, _ = cli(*common, "--faults", "nic:1e-300")
    assert max(map(len, text.splitlines())) < 130, "no number of three hundred digits"


def test_neighbours_cost_what_their_share_of_the_spine_leaves() -> None:
    """Gradients of many replicas that nothing hides: one more job on a spine of half the rates
    leaves half of the link, at worst as a network of half the rate. Without others, or on a spine
    that carries all, exactly nothing; more others never cost less."""
    own = made("llama3-8b", tp=1, pp=1, gpus=64, global_batch=64, grad_overlap=False)
    worst = loss(own, fault("neighbour:1/2"))
    assert (worst.packed, set(worst.by_dimension)) == (0.0, {"dp"})
    assert 0.0 < worst.random < worst.spread
    half = own.put_together(own.apart(_network(own, len(own.cluster.tiers) - 1, 0.5)))
    more = float(half.breakdown["dp_communication"] - own.step.breakdown["dp_communication"])
    assert worst.spread > 0.9 * more / float(own.step.step_time)
    for text in ("neighbour:0/4", "neighbour:3/1"):
        assert loss(own, fault(text)).spread == 0.0
    spreads = [loss(own, fault(f"neighbour:{n}/4")).spread for n in (0, 1, 2, 3, 4)]
    assert spreads == sorted(spreads)
    assert spreads[-1] == pytest.approx(spreads[-2], rel=1e-9), "a quarter is left of any more"
    crowd = loss(own, fault("neighbour:1000/4"))
    assert crowd.random == crowd.spread == pytest.approx(spreads[-1], rel=1e-9), "all the time"


@pytest.mark.parametrize("text", ["neighbour:1", "neighbour:0.5/2", "neighbour:1/0.5"])
def test_neighbours_are_whole_jobs_on_a_spine(text: str) -> None:
    with pytest.raises(InputError, match="other jobs of its kind"):
        fault(text)

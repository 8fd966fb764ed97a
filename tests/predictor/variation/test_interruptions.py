"""Spares, preemption, shrinking, checkpoints in tiers: by hand, as laws, traces replayed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from predictor.errors import InputError
from predictor.training.reliability import best_interval, useful_share
from predictor.training.whole_run import reliability_defaults
from predictor.variation.interruptions import (
    CheckpointTier,
    Standby,
    away,
    down_share,
    elastic,
    enough,
    interrupted,
    needed_spares,
    replay,
    tiers,
)

Cli = Callable[..., tuple[int, str, str]]
HOUR = 3600.0


def test_spares_of_two_thousand_nodes() -> None:
    """Eight accelerators a node, 36,300 h each between failures, repaired within a day: 16 spares
    are enough for 95 % of the time, 32 for all of it."""
    p = float(down_share(36300 / 8 * HOUR, 24 * HOUR))
    assert enough(2048, 16, p) == pytest.approx(0.95, abs=0.005)
    assert enough(2048, 32, p) > 0.999
    assert enough(8, 1_000_000, p) <= 1.0
    fewest = needed_spares(2048, p, 0.99)
    assert enough(2048, fewest, p) >= 0.99 > enough(2048, fewest - 1, p)


def test_how_many_are_away_is_binomial() -> None:
    assert away(40, 0.07) == pytest.approx(stats.binom.pmf(np.arange(41), 40, 0.07), rel=1e-9)
    assert away(5, 0.0).tolist() == [1.0, 0.0, 0.0, 0.0, 0.0, 0.0]


def test_a_job_that_shrinks_in_proportion_has_what_is_there() -> None:
    rate = np.arange(11.0)
    assert elastic(10, 0, 0.1, rate) == pytest.approx(9.0)
    assert 9.0 < elastic(10, 2, 0.1, rate) < 10.0
    # Two and a spare, each away a quarter of the time: 9 of 64 have one, 54 both.
    assert elastic(2, 1, 0.25, rate[:3]) == pytest.approx((9 + 2 * (27 + 27)) / 64)


def test_preemptions_in_groups_interrupt_less_often_and_take_as_much() -> None:
    alone = float(interrupted(1e9, 64.0, 20 * HOUR, 8.0))
    assert alone == pytest.approx(1.0 / (64e-9 + 8 / (20 * HOUR)))
    assert float(interrupted(1e30, 64.0, 20 * HOUR, 8.0, 2.0)) == pytest.approx(5 * HOUR)
    assert float(interrupted(100.0, 4.0, np.inf, 8.0)) == 25.0


def test_one_place_for_checkpoints_is_youngs() -> None:
    """Write 10 s, 2,000 s between interruptions: every 200 s, 5 % + 5 % + restore."""
    own = tiers((CheckpointTier("remote", 10.0, 100.0, 1.0),), 2000.0)
    assert own.intervals == (pytest.approx(200.0),)
    assert own.share == pytest.approx(1.0 / (1.0 + 0.05 + 0.05 + 0.05))


def test_the_memory_of_peers_helps_the_more_it_covers() -> None:
    remote = CheckpointTier("remote", 60.0, 600.0, 1.0)
    shares = [
        tiers((CheckpointTier("peers", 1.0, 60.0, covers), remote), 3600.0).share
        for covers in (0.0, 0.5, 0.9, 0.99)
    ]
    assert shares == sorted(shares)
    assert shares[0] == pytest.approx(tiers((remote,), 3600.0).share)
    with pytest.raises(InputError, match="nearest"):
        tiers((CheckpointTier("peers", 1.0, 60.0, 0.9),), 3600.0)


def test_three_ways_to_go_on_under_a_failure_every_ten_minutes() -> None:
    """Artifact of Oobleck (SOSP 2023), BERT-large: of the time 0.544 is useful with checkpoints and
    restarts, 0.955 where survivors take over, 0.150 where neighbours repeat each other's work.

    A preempted job is not looked for: of the default restart the half that initialises, and
    checkpoints of a small model; who takes over rebuilds its groups and copies states from peers in
    half a minute. Of the third what its simulator is given (tools/simulator/bamboo_simulator.py in
    branch sosp23-artifact): 0.1971 of a step is its own work, steps with one gone take 1.5 times as
    long, a new instance is there in 45 s and rejoins within 30, stages are dealt out in 76.
    """
    every, initialise = 600.0, reliability_defaults()["restart_s"] / 2.0
    write = 14 * 0.34e9 / (reliability_defaults()["storage_gbs"] * 1e9 * 16)
    interval = best_interval(write, every)
    restarted = float(useful_share(interval, write, initialise + write, every))
    assert restarted == pytest.approx(0.544, rel=0.15)
    taken_over = float(useful_share(1.0, 0.0, 30.0, every))
    assert taken_over == pytest.approx(0.955, rel=0.15)
    repeated = float(Standby(1.0 - 0.1971, 1.5, 45.0 + 30.0, 76.0).share(every))
    assert repeated == pytest.approx(0.150, rel=0.15)
    assert repeated < restarted < taken_over


def test_neighbours_that_repeat_nothing_and_lose_nothing_cost_nothing() -> None:
    assert float(Standby(0.0, 1.0, 100.0, 0.0).share(10.0)) == 1.0
    every = np.array([1e2, 1e3, 1e9])
    shares = Standby(0.3, 1.5, 60.0, 20.0).share(every)
    assert np.all(np.diff(shares) > 0)
    assert shares[-1] == pytest.approx(0.7)
    assert shares[1] == pytest.approx(0.7 * (1.0 - 0.04), rel=1e-3)  # 20 s, and a third of 60
    with pytest.raises(InputError, match="share below 1"):
        Standby(1.0, 1.5, 60.0, 20.0).share(600.0)


def test_traces_of_spot_instances(shared: Path) -> None:
    """Rates of 0.016 to 0.43 per instance and hour, 1.6 in a starved zone, one to three at once."""
    table = pd.read_csv(shared / "reference" / "variation" / "spot_instances.csv")
    found = {
        str(source): replay(own["t_s"].to_numpy(), own["instances"].to_numpy(), 300.0)
        for source, own in table.groupby("source")
        if len(own) > 1
    }
    rates = sorted(one.rate_per_hour for one in found.values())
    assert 0.01 < rates[0] < 0.02
    assert rates[-1] == pytest.approx(1.6, abs=0.05)
    assert all(0.99 <= one.group <= 3.01 for one in found.values() if one.events)
    assert all(0.0 < one.share <= 1.0 for one in found.values())
    steady, starved = (
        min(found.values(), key=lambda one: one.rate_per_hour * sign) for sign in (1, -1)
    )
    assert steady.share > starved.share


def test_a_trace_by_hand() -> None:
    """Four instances for an hour, two for another; a pause of a quarter of an hour after the loss,
    which takes both at once: (4 + 2 x 0.75) / 8."""
    own = replay(np.array([0.0, 3600.0, 3600.0, 7200.0]), np.array([4, 3, 2, 2]), 900.0)
    assert (own.hours, own.mean, own.events, own.lost, own.group) == (2.0, 3.0, 1, 2.0, 2.0)
    assert own.share == pytest.approx((4.0 + 2.0 * 0.75) / 8.0)
    assert own.rate_per_hour == pytest.approx(2.0 / 6.0)
    with pytest.raises(InputError, match="in order"):
        replay(np.array([1.0, 0.0]), np.array([1, 1]), 1.0)


def test_a_job_that_has_too_few_stands_still() -> None:
    """An hour each with four instances, one, none and twice four again, for a job that needs two;
    no pause follows what comes or stays. One that needs a single one pauses once before it goes on
    with it."""
    time, there = np.arange(6.0) * HOUR, np.array([4, 1, 0, 4, 4, 4])
    assert replay(time, there, 900.0, least=2).share == pytest.approx(12.0 / 20.0, rel=1e-12)
    one = replay(time, there, 900.0)
    assert one.share == pytest.approx((4.0 + 0.75 + 0.0 + 4.0 + 4.0) / 20.0, rel=1e-12)
    assert (one.events, one.lost, one.group) == (2, 4.0, 2.0)


def test_a_trace_on_which_nothing_changes_is_a_machine_of_ones_own() -> None:
    own = replay(np.array([0.0, 7200.0]), np.array([3, 3]), 900.0)
    assert (own.hours, own.mean, own.share) == (2.0, 3.0, 1.0)
    assert (own.events, own.lost, own.rate_per_hour, own.group) == (0, 0.0, 0.0, 0.0)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.8])
def test_spares_of_a_single_node_are_a_power_of_what_is_away(p: float) -> None:
    """It stands still only where all are away, p to their number; a hundred nodes need more than
    are away on average."""
    chance = 0.99
    spares = needed_spares(1, p, chance)
    assert p ** (spares + 1) <= 1.0 - chance < p**spares
    assert needed_spares(100, p, chance) > 100 * p / (1.0 - p)
    with pytest.raises(InputError, match="a chance is"):
        needed_spares(1, p, 1.0)


def test_fleets_are_told_of_runs(cli: Cli, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    common = (
        "predict", "train", "--model", "llama3-70b", "--system", "dgx-h100", "--gpus", "16384",
        "--tp", "8", "--pp", "16", "--global-batch", "2048", "--seq-len", "8192",
        "--calibration", "none", "--json", str(out), "--allow-oom",
    )  # fmt: skip
    budget = ("--tokens", "1e12")
    assert cli(*common, *budget)[0] == 0
    plain = json.loads(out.read_text())

    def fleet(*more: str) -> dict[str, float]:
        status, _, error = cli(*common, *budget, *more)
        assert status == 0, error
        found = json.loads(out.read_text())
        own: dict[str, float] = found["training"].pop("fleet")
        assert {**found, "stated": plain["stated"]} == plain, "nothing else changes"
        return own

    few, many = fleet("--set", "spares=8"), fleet("--set", "spares=64")
    assert few["enough_nodes"] < many["enough_nodes"]
    assert many["available_share"] == pytest.approx(1.0, abs=1e-3)
    # Llama 3: more than 90 % of the time was effective on 16,384 accelerators.
    assert many["effective_share"]["value"] > 0.9
    shrinking = fleet("--set", "spares=8", "--set", "elastic=true")
    assert few["available_share"] < shrinking["available_share"] <= 1.0
    spot = fleet("--set", "preempted_hours=40", "--set", "spares=64")
    assert spot["mtbf_hours"] < few["mtbf_hours"]
    status, _, error = cli(*common, "--set", "spares=8")
    assert status == 2
    assert "--tokens" in error

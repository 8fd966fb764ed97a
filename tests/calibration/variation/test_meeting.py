"""Waiting where ranks meet: from a profile's stretches into predicted steps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import reckon
from calibration.artifact import write
from calibration.variation.meeting import jitter
from predictor.catalog import load
from predictor.timing import Calibration
from predictor.variation.meeting import late
from predictor.variation.order import normal_maximum

PLAN = {"gpus": 8, "global_batch": 8, "micro_batch": 1, "seq_len": 2048, "recompute": "none"}
H100 = "H100-SXM5-80GB"


def stretches(alike: float, drawn: float, ranks: int, draws: int = 20000) -> pd.DataFrame:
    """What ranks that vary so show, as rows of a profile: means over many stretches."""
    lots, rows = np.random.default_rng(1), []
    for count, length in ((2.0, 2e-3), (16.0, 16e-3), (64.0, 64e-3)):
        spread = np.hypot(alike, drawn / np.sqrt(length))
        times = length * np.exp(spread * lots.standard_normal((draws, ranks)))
        for kernel, own in (("own", times.mean()), ("slowest", times.max(axis=1).mean())):
            rows.append(("waiting", "x", kernel, float(ranks), count, own * 1e6))
    names = ["op", "accelerator", "kernel", "num_gpus", "batch", "latency_us"]
    return pd.DataFrame(rows, columns=names)


@pytest.mark.parametrize("ranks", [2, 8])
@pytest.mark.parametrize(("alike", "drawn"), [(0.05, 0.0), (0.0, 0.004), (0.03, 0.002)])
def test_both_parts_are_recovered(alike: float, drawn: float, ranks: int) -> None:
    found = jitter(stretches(alike, drawn, ranks))["x"]
    for length in (2e-3, 16e-3, 64e-3):
        told = np.hypot(found[0], found[1] / np.sqrt(length))
        assert told == pytest.approx(np.hypot(alike, drawn / np.sqrt(length)), rel=0.1)
    if not drawn:
        assert found[1] < 0.0005
    assert jitter(stretches(0.0, 0.0, ranks))["x"] == (0.0, 0.0)
    assert jitter(pd.DataFrame({"op": ["gemm"], "accelerator": ["x"]})) == {}


def test_waiting_by_hand() -> None:
    """A second's work cut into four: 4 % of it alike; drawn, twice a second's 2 %."""
    work, four = np.array(1.0), np.array(4.0)
    assert float(late(work, four, 0.04, 0.0)) == pytest.approx(0.04)
    assert float(late(work, four, 0.0, 0.02)) == pytest.approx(0.04)
    assert float(late(work, four, 0.03, 0.02)) == pytest.approx(0.05)
    assert float(late(work, np.array(0.0), 0.03, 0.02)) == 0.0


def jittery(alike: float, drawn: float) -> Calibration:
    """Ranks that vary so; with no factor on the step, its parts are the kernels' own times."""
    known = load("default")
    factors = {**known.run.factors, "*": 1.0}
    jitter = {H100: (alike, drawn)} if alike or drawn else {}
    return replace(known, run=replace(known.run, factors=factors, jitter=jitter))


def step(known: Any, tp: int, system: str = "dgx-h100") -> Any:
    return reckon.predict_train("llama3-8b", system, {**PLAN, "tp": tp}, known)


def test_ranks_that_meet_wait_and_others_do_not() -> None:
    """Alike: e_t times the spread of the kernels' time, whatever it is cut into."""
    plain, own = jittery(0.0, 0.0), jittery(0.05, 0.0)
    assert step(plain, 8).breakdown["framework"] == 0.0
    assert step(own, 1).step_time.value == step(plain, 1).step_time.value
    assert step(own, 8, "dgx-a100").step_time.value == step(plain, 8, "dgx-a100").step_time.value
    before, after = step(plain, 8).breakdown, step(own, 8).breakdown
    work = sum(before[term] for term in ("forward", "backward", "recompute"))
    wait = after["tp_communication"] - before["tp_communication"]
    assert wait == pytest.approx(0.05 * float(normal_maximum(8.0)[0]) * work, rel=1e-6)
    short = step(jittery(0.0, 0.001), 8).step_time.value
    assert step(jittery(0.0, 0.002), 8).step_time.value > short > step(plain, 8).step_time.value


def test_a_calibration_keeps_it(tmp_path: Path) -> None:
    write(jittery(0.05, 0.001), tmp_path / "own", {})
    assert load(tmp_path / "own").run.jitter == {H100: (0.05, 0.001)}

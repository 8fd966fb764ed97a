"""Scans of linear attention and state spaces beside what they took on an H200
(`tools/linear_sweep.py`): how much longer they take than their products and traffic was read off
these, for large shapes; others follow."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from calibration.checks.scans import MODELS, takes
from predictor import catalog
from predictor.catalog.artifacts import load
from predictor.plans.training import TrainingPlan
from predictor.timing.kernels import Listed, times_together
from predictor.work.training import step_operators

WITHIN = {
    "gated_delta": 0.12, "gated_delta_step": 0.1, "kda": 0.08, "kda_backward": 0.12,
    "kda_step": 0.12, "lightning": 0.12, "lightning_backward": 0.15, "lightning_step": 0.1,
    "mamba1": 0.3, "mamba1_backward": 0.2, "mamba1_step": 0.15, "mamba2": 0.12,
    "mamba2_backward": 0.12, "mamba2_step": 0.08,
}  # fmt: skip
"""Mean of predicted over measured times, or the reverse, less one."""


def large(row: dict[str, Any]) -> bool:
    """Whether a device has enough to do: most of its sums, and of what is updated."""
    several = row["batch"] >= 32 if row["q_len"] == 1 else row["batch"] * row["q_len"] >= 8192
    return bool(several and row["value_heads"] > 16 and row["value_heads"] != 1024)


MACHINE = catalog.accelerator("H200-SXM-141GB")
TABLE = pd.read_csv(catalog.data_dir() / "measurements" / "h200-sxm-4" / "linear.csv")


@pytest.mark.parametrize("op", WITHIN)
def test_large_scans_take_what_they_took(op: str) -> None:
    rows = [row for row in TABLE[TABLE["op"] == op].to_dict("records") if large(row)]
    assert len(rows) >= 4
    off = np.array(
        [abs(np.log(takes(row, MACHINE, load("default")) / row["latency_us"])) for row in rows]
    )
    assert np.expm1(off).mean() < WITHIN[op]


def test_the_short_convolution_takes_what_it_took() -> None:
    """8,192 channels that are mixed before a rule, 16,384 tokens."""
    model = replace(catalog.model(MODELS["gated_delta"]), delta_value_heads=32)
    made = TrainingPlan(tp=1.0, pp=1.0, dp=1.0, micro_batch=8.0, global_batch=8.0, seq_len=2048.0)
    machine, found = catalog.accelerator("H200-SXM-141GB"), step_operators(model, made)
    for op, name in (("conv", "delta.conv"), ("conv_backward", "delta.conv.bwd")):
        own = [one for one in found if one.name == name]
        (timing,) = times_together([Listed(own, (), host=0.0)], machine, load("default"))
        took = TABLE[(TABLE["op"] == op) & (TABLE["batch"] == 8) & (TABLE["value_heads"] == 8192)]
        assert own[0].n == 8192
        assert float(timing.time[0]) * 1e6 == pytest.approx(took["latency_us"].item(), rel=0.15)


@pytest.mark.parametrize("op", ["gated_delta", "mamba2"])
def test_few_heads_wait_for_one_chunk_after_the_other(op: str) -> None:
    """8,192 tokens in one sequence, on a few heads, take longer than in 16."""
    few = TABLE[(TABLE["op"] == op) & (TABLE["value_heads"] <= 16)]
    one, many = (
        next(row for row in few.to_dict("records") if (row["batch"], row["q_len"]) == shape)
        for shape in ((1, 8192), (16, 512))
    )
    assert one["latency_us"] > 1.15 * many["latency_us"]
    assert takes(one, MACHINE, load("default")) > 1.05 * takes(many, MACHINE, load("default"))
    assert takes(one, MACHINE, load("default")) == pytest.approx(one["latency_us"], rel=0.35)

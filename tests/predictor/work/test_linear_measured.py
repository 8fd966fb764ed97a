"""Scans of linear attention and state spaces beside what they took on an H200
(`tools/linear_sweep.py`): how much longer they take than their products and traffic was read off
these, for large shapes; others follow."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from predictor import catalog
from predictor.catalog.artifacts import load
from predictor.plans.training import TrainingPlan
from predictor.timing.kernels import Listed, times_together
from predictor.work import delta_rule, mamba
from predictor.work.training import step_operators, training_list
from predictor.work.worklist import WorkList

MODELS = {
    "gated_delta": "qwen3-next-80b-a3b",
    "kda": "kimi-linear-48b-a3b",
    "lightning": "minimax-text-01",
    "mamba2": "nemotron-h-8b",
    "mamba1": "falcon-mamba-7b",
}
WITHIN = {
    "gated_delta": 0.12, "gated_delta_step": 0.1, "kda": 0.08, "kda_backward": 0.12,
    "kda_step": 0.12, "lightning": 0.12, "lightning_backward": 0.15, "lightning_step": 0.1,
    "mamba1": 0.3, "mamba1_backward": 0.2, "mamba1_step": 0.15, "mamba2": 0.12,
    "mamba2_backward": 0.12, "mamba2_step": 0.08,
}  # fmt: skip
"""Mean of predicted over measured times, or the reverse, less one."""


def listed(kind: str, row: dict[str, Any]) -> WorkList:
    """Operators of a scan or of one new token."""
    heads, values, sequences, tokens = (
        int(row[name]) for name in ("heads", "value_heads", "batch", "q_len")
    )
    model = catalog.model(MODELS[kind])
    if kind == "mamba1":
        model = replace(model, mamba_heads=values)
    elif kind == "mamba2":
        model = replace(model, mamba_groups=heads, mamba_heads=values)
    else:
        model = replace(model, delta_key_heads=heads, delta_value_heads=values)
    made = TrainingPlan(tp=1.0, pp=1.0, dp=1.0, micro_batch=float(sequences),
                        global_batch=float(sequences), seq_len=max(float(tokens), 2.0))  # fmt: skip
    at = training_list(model, made)
    if tokens == 1:
        rule = mamba if kind.startswith("mamba") else delta_rule
        rule.update(replace(at, learning=None), float(sequences))
    elif kind.startswith("mamba"):
        mamba.scan(at, float(sequences * tokens), float(tokens))
    else:
        delta_rule.scan(at, float(sequences), float(tokens))
    return at


def takes(row: dict[str, Any]) -> float:
    """What is predicted [us]; lightning attention by itself, without what is around it."""
    kind = row["op"].removesuffix("_backward").removesuffix("_step")
    found = [
        one
        for one in listed(kind, row).operators
        if (one.phase == "backward") == row["op"].endswith("_backward")
        and not (kind == "lightning" and ".unit" in one.name)
    ]
    machine = catalog.accelerator("H200-SXM-141GB")
    (timing,) = times_together([Listed(found, (), host=0.0)], machine, load("default"))
    return float(timing.time.sum()) * 1e6


def large(row: dict[str, Any]) -> bool:
    """Whether a device has enough to do: most of its sums, and of what is updated."""
    several = row["batch"] >= 32 if row["q_len"] == 1 else row["batch"] * row["q_len"] >= 8192
    return bool(several and row["value_heads"] > 16 and row["value_heads"] != 1024)


TABLE = pd.read_csv(catalog.data_dir() / "measurements" / "h200-sxm-4" / "linear.csv")


@pytest.mark.parametrize("op", WITHIN)
def test_large_scans_take_what_they_took(op: str) -> None:
    rows = [row for row in TABLE[TABLE["op"] == op].to_dict("records") if large(row)]
    assert len(rows) >= 4
    off = np.array([abs(np.log(takes(row) / row["latency_us"])) for row in rows])
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
    assert takes(one) > 1.05 * takes(many)
    assert takes(one) == pytest.approx(one["latency_us"], rel=0.35)

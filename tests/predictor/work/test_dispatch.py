"""Kernels that send tokens to experts once, bound by their processors as measured ones are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from predictor import catalog
from predictor.catalog.artifacts import load
from predictor.plans.training import TrainingPlan
from predictor.training.prediction import predict
from predictor.work.communication import HANDLED, step_collectives

Make = Callable[..., TrainingPlan]
H200 = catalog.system("dgx-h200")
KERNELS = load("kernels-only")
WIDE = replace(catalog.model("qwen3-30b-a3b"), hidden=1024, num_experts=64, top_k=8)
SENT = {"tp": 1.0, "ep": 8.0, "micro_batch": 1.0, "seq_len": 4096.0, "expert_load": 1.0,
        "dispatch": "once"}  # fmt: skip


def test_processors_take_tokens_rank_by_rank(plan: Make) -> None:
    """4,096 tokens of 2 KiB (1,024 wide in 16 bits), 8 of 64 experts on 8 ranks: 8 (1 - (7/8)^8) =
    5.25 ranks each. Twice the processors take half as long; copies that travel by themselves have
    no such kernel, and on one rank there is none."""

    def least(**how: Any) -> dict[str, float]:
        made = plan(**{**SENT, **how})
        return {one.name: float(one.least) for one in step_collectives(WIDE, made)}

    ranks, kib = 8 * (1 - (7 / 8) ** 8), 2.0
    each = HANDLED[0] * ranks + kib * (HANDLED[1] + HANDLED[2] * ranks)
    found = least()
    for name in ("moe.dispatch", "moe.combine", "moe.dispatch.bwd", "moe.combine.bwd"):
        assert found[name] == pytest.approx(4096 * each / 20)
        assert least(dispatch_processors=40.0)[name] == pytest.approx(found[name] / 2)
    assert found["moe.counts"] == 0.0
    assert not any(least(dispatch="copies").values())
    assert not any(least(ep=1.0).values())


def test_fewer_processors_never_make_a_step_quicker(plan: Make) -> None:
    model = catalog.model("qwen3-30b-a3b")
    many = np.array([64.0, 32.0, 20.0, 8.0, 2.0])
    common = {"tp": 1.0, "pp": 1.0, "dp": 64.0, "ep": 8.0, "dispatch": "once"}
    found = predict(model, H200, plan(**common, dispatch_processors=many), KERNELS)
    assert np.all(np.diff(found.step_time) >= 0.0)
    assert found.step_time[-1] > 1.05 * found.step_time[0]
    one = predict(model, H200, plan(**common, dispatch_processors=8.0), KERNELS)
    assert float(one.step_time) == pytest.approx(float(found.step_time[3]), rel=1e-12)


def test_measured_kernels_take_what_their_processors_do(shared: Path) -> None:
    """DeepEP on one host of five machines, 8 to 16 processors (beyond, Hopper's links bind):
    within a tenth on average, and a fifth on each machine's own."""
    path = shared / "bulk/kernels/aiconfigurator/wideep_deepep_normal_perf.parquet"
    table = pd.read_parquet(path)
    table = table[(table["node_num"] == 1) & (table["num_token"] >= 4096)]
    host = table["system"].map({"gb200": 4.0}).fillna(8.0)
    k = table["num_topk"].astype(float)
    ranks = host * (1.0 - (1.0 - 1.0 / host) ** k)
    off = []
    for step, size in (("dispatch", 1.0 + 4.0 / 128.0), ("combine", 2.0)):
        kib = table["hidden_size"] * size / 1024.0
        each = HANDLED[0] * ranks + kib * (HANDLED[1] + HANDLED[2] * ranks)
        told = 1e6 * table["num_token"] * each / table[f"{step}_sms"]
        own = table[f"{step}_sms"].isin([8, 12, 16])
        off.append(np.log(told / table[f"{step}_transmit_us"])[own])
    away = pd.concat(off)
    assert away.abs().mean() < 0.1
    machines = away.groupby(pd.concat([table["system"].loc[one.index] for one in off]).to_numpy())
    assert machines.median().abs().max() < 0.2

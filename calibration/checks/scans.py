"""Scans of linear attention and state spaces that were timed (`tools/linear_sweep.py`), and what is
predicted of them: how much longer they take than their products and traffic was read off these."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from calibration.robust import balanced_quantile
from predictor import catalog
from predictor.hardware import Accelerator
from predictor.plans.training import TrainingPlan
from predictor.timing import Calibration
from predictor.timing.kernels import Listed, times_together
from predictor.work import delta_rule, mamba
from predictor.work.training import training_list
from predictor.work.worklist import WorkList

MODELS = {
    "gated_delta": "qwen3-next-80b-a3b",
    "kda": "kimi-linear-48b-a3b",
    "lightning": "minimax-text-01",
    "mamba2": "nemotron-h-8b",
    "mamba1": "falcon-mamba-7b",
}
"""By kind of scan: a model that has it, whose other sizes the sweep took."""


def timed() -> pd.DataFrame:
    """All scans that ship; without the convolutions beside them."""
    folder = catalog.data_dir() / "measurements" / "h200-sxm-4"
    table = pd.read_csv(folder / "linear.csv")
    return table[table["op"].map(kind_of_scan).isin(list(MODELS))]


def kind_of_scan(op: str) -> str:
    """The kind of an operation of the sweep, which may be its gradient or one new token."""
    return op.removesuffix("_backward").removesuffix("_step")


def listed(kind: str, row: Mapping[Hashable, Any]) -> WorkList:
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


def takes(row: Mapping[Hashable, Any], machine: Accelerator, calibration: Calibration) -> float:
    """What is predicted of a row [us]; of lightning attention by itself, without what is around
    it."""
    kind = kind_of_scan(row["op"])
    found = [
        one
        for one in listed(kind, row).operators
        if (one.phase == "backward") == row["op"].endswith("_backward")
        and not (kind == "lightning" and ".unit" in one.name)
    ]
    (timing,) = times_together([Listed(found, (), host=0.0)], machine, calibration)
    return float(timing.time.sum()) * 1e6


def left_over(calibration: Calibration) -> float:
    """Log-standard-deviation of scans about what is predicted of them, operations alike: what no
    factor for all shapes tells, on the accelerator where they were timed."""
    machine = catalog.accelerator("H200-SXM-141GB")
    off: dict[str, list[float]] = {}
    for row in timed().to_dict("records"):
        error = abs(np.log(takes(row, machine, calibration) / row["latency_us"]))
        off.setdefault(row["op"], []).append(error)
    groups = [np.array(found) for found in off.values()]
    return balanced_quantile(groups, calibration.interval_level) / calibration.interval_q

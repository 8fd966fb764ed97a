"""What a host does around operators, beside what a processor took for loops without arithmetic
(`data/measurements/two-cores-6`). The counts that steps on an H200 gave are held by
`test_real_steps.py`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from predictor import catalog
from predictor.catalog.artifacts import load
from predictor.catalog.forms import parse
from predictor.catalog.specs import TrainingPlanSpec
from predictor.training.calls import calls
from predictor.training.completion import complete_training
from predictor.work import step_operators

KNOWN = load("kernels-only")
MODEL, DGX = catalog.model("llama3-8b"), catalog.system("dgx-h100")
HOSTS = pd.read_csv(catalog.data_dir() / "measurements" / "two-cores-6" / "hosts.csv")
FURTHER = 0.2
"""Time of a further kernel of an operator over that of its first with the module around it."""

LORA = {"trained": "lora"}


def host(**fields: Any) -> float:
    """Operators' worth of a layer's host time."""
    given = {"gpus": 1, "global_batch": 2, "micro_batch": 2, "seq_len": 512, "recompute": "none",
             "sharding": "none", "framework": "huggingface", **fields}  # fmt: skip
    spec = parse(TrainingPlanSpec, given, "test")
    plan = complete_training(spec, KNOWN.run, model=MODEL, cluster=DGX).plan
    return sum(
        float(np.max(o.count)) * (calls(o, plan) + FURTHER * (float(np.max(o.kernels)) - 1.0))
        for o in step_operators(MODEL, plan)
        if o.module not in ("embedding", "head") and not o.name.endswith(".unlearned")
    )


def measured(loop: str, checkpoints: str, what: str = "step") -> float:
    """Time of a layer over that of a step without checkpoints, mean over the runs."""
    own = HOSTS[HOSTS["loop"] == loop]
    plain = own[(own["checkpoints"] == "none") & (own["what"] == "step")]["layer_ms"].mean()
    chosen = own[(own["checkpoints"] == checkpoints) & (own["what"] == what)]
    return float(chosen["layer_ms"].mean() / plain)


@pytest.mark.parametrize(
    ("loop", "fields"),
    [
        ("transformers", {}),
        ("transformers-lora16-narrow", {**LORA, "adapter_style": "apart"}),
        ("transformers-lora16-autocast", {**LORA, "adapter_style": "autocast"}),
    ],
)
def test_checkpoints_take_the_host_as_long_as_measured(loop: str, fields: dict[str, Any]) -> None:
    """Within three tenths (runs differ by a sixth): what runs again once more, with hooks nearly
    three times."""
    plain = host(**fields)
    for kind, early in (("reentrant", False), ("hooks", True)):
        again = host(**fields, recompute="full", stops_early=early)
        assert again / plain == pytest.approx(measured(loop, kind), rel=0.3)


def test_adapters_that_are_switched_take_half_a_step() -> None:
    plain = host(**LORA)
    more = host(**LORA, learns_from="dpo") - plain
    assert more / plain == pytest.approx(
        measured("transformers-lora16-narrow", "none", "switch"), rel=0.25
    )

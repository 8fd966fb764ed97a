"""What NeMo's launcher set in its files, release by release."""

from __future__ import annotations

from typing import Any

import pytest

from predictor.catalog.forms import parse
from predictor.catalog.specs import TrainingPlanSpec
from predictor.plans import TrainingPlan
from predictor.timing.calibration import RunParameters
from predictor.training.completion import complete_training

BASE: dict[str, Any] = {
    "framework": "nemo", "accelerator": "A100-SXM4-80GB", "gpus": 64, "tp": 4, "pp": 8,
    "global_batch": 256, "micro_batch": 1, "seq_len": 2048, "precision": "bf16",
}  # fmt: skip


def plan(model: str, era: str) -> TrainingPlan:
    spec = parse(TrainingPlanSpec, {**BASE, "model": model, "era": era}, "test")
    return complete_training(spec, RunParameters()).plan


@pytest.mark.parametrize(
    ("era", "dropout", "stages", "tensors", "gradients"),
    [
        ("2023-07", True, True, True, 4.0),  # 23.07
        ("2023-10", True, False, False, 4.0),  # 23.08.03
        ("2023-12", False, False, False, 4.0),  # 23.11
        ("2024-02", True, False, False, 4.0),  # 24.01
        ("2024-08", True, True, False, 2.0),  # 24.07, with examples/training
        ("2024-11", True, True, True, 2.0),  # dgxc-benchmarking v24.11.1
        ("2025-07", False, True, True, 2.0),  # NeMo 2
    ],
)
def test_gpt3_is_trained_as_its_release_has_it(
    era: str, dropout: bool, stages: bool, tensors: bool, gradients: float
) -> None:
    """`hidden_dropout`, `overlap_p2p_comm`, `ub_tp_comm_overlap`, `grad_sync_dtype`."""
    made = plan("gpt3-175b", era)
    assert (made.dropout, made.p2p_overlap, made.tp_overlap) == (dropout, stages, tensors)
    assert (made.reduce_bytes, made.gradient_bytes) == (gradients, gradients)


def test_other_models_drop_nothing_out_and_overlap_their_stages() -> None:
    for era in ("2023-10", "2024-02", "2024-11"):
        made = plan("llama2-70b", era)
        assert (made.dropout, made.p2p_overlap) == (False, True)
    assert plan("llama2-70b", "2024-02").reduce_bytes == 4
    assert plan("llama2-70b", "2024-08").reduce_bytes == 2
    assert plan("nemotron-4-340b", "2024-02").reduce_bytes == 2  # its file states bf16

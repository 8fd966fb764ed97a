"""What frameworks do with experts where nobody says how each is split: dated facts."""

from __future__ import annotations

from typing import Any

import pytest

from predictor.catalog.forms import parse
from predictor.catalog.specs import TrainingPlanSpec
from predictor.timing.calibration import RunParameters
from predictor.training.completion import TrainingRequest, complete_training

BASE: dict[str, Any] = {
    "model": "mixtral-8x7b", "accelerator": "H100-SXM5-80GB", "gpus": 64, "tp": 4, "pp": 1,
    "global_batch": 256, "seq_len": 4096, "micro_batch": 1,
}  # fmt: skip


def complete(**changes: Any) -> TrainingRequest:
    return complete_training(parse(TrainingPlanSpec, {**BASE, **changes}, "test"), RunParameters())


@pytest.mark.parametrize(
    ("framework", "split"),
    [
        ("megatron-lm", 4),
        ("nemo", 4),
        ("megatron-bridge", 1),
        ("torchtitan", 1),
        ("deepspeed", 1),
        ("megatron-deepspeed", 1),
    ],
)
def test_each_expert_is_split_as_its_framework_has_it(framework: str, split: int) -> None:
    """Megatron Core's unset size is tp; Bridge, torchtitan and DeepSpeed keep experts whole."""
    assert complete(framework=framework, ep=4).plan.etp == split
    asked = complete(framework=framework, ep=4, etp=2)
    assert asked.plan.etp == 2
    assert "etp" not in {one.field for one in asked.assumed}


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
@pytest.mark.parametrize("framework", ["megatron-lm", "nemo", "megatron-bridge", "neutral"])
def test_experts_and_their_split_stay_in_a_node(framework: str, tp: int) -> None:
    """Whatever the split, both together fill the node of eight, and divide the stage."""
    plan = complete(framework=framework, tp=tp).plan
    assert plan.ep * plan.etp == 8
    assert plan.etp in (1, tp)
    assert (plan.etp == tp) == (framework in ("megatron-lm", "nemo") or tp == 1)


def test_a_recipe_that_keeps_experts_whole_counts_before_the_default() -> None:
    """NeMo's recipes of Mixtral 8x22B set it to 1 (2.3 to 2.5), those of 8x7B leave it open."""
    common = {"framework": "nemo", "era": "2025-05", "ep": 8, "precision": "bf16"}
    assert complete(**common, model="mixtral-8x22b").plan.etp == 1
    assert complete(**common, model="mixtral-8x7b").plan.etp == 4


def test_what_would_not_divide_the_stage_stays_whole() -> None:
    assert complete(framework="megatron-lm", gpus=8, ep=8, global_batch=8).plan.etp == 1


@pytest.mark.parametrize("gpus", [2, 4, 8])
def test_one_group_that_splits_experts_holds_them_all(gpus: int) -> None:
    """However many the node has besides."""
    plan = complete(framework="megatron-lm", gpus=gpus, tp=gpus).plan
    assert (plan.ep, plan.etp) == (1, gpus)


def test_the_record_says_where_the_split_is_from() -> None:
    rules = {one.field: one.rule for one in complete(framework="megatron-lm", ep=4).assumed}
    assert "megatron-lm" in rules["etp"]

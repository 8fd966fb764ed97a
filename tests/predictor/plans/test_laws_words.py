"""What rules and rankings say in words is so."""

from __future__ import annotations

from dataclasses import replace

import pytest

from predictor.catalog import TrainingPlanSpec, parse
from predictor.errors import InputError
from predictor.plans import TrainingPlan
from predictor.plans.rules import near_multiples
from predictor.search.ranking import brief


@pytest.mark.parametrize(
    ("value", "factors", "told"),
    [
        (60, (8, 4), "32 and 64"),
        (64, (32,), "64 and 96"),
        (5, (8,), "8"),
        (float("inf"), (8,), ""),
    ],
)
def test_the_nearest_multiples(value: float, factors: tuple[float, ...], told: str) -> None:
    assert near_multiples(value, *factors) == told


def test_a_plan_says_how_much_it_recomputes_only_where_that_is_not_all() -> None:
    sizes = {"tp": 2, "pp": 4, "dp": 2, "micro_batch": 1, "global_batch": 16, "seq_len": 2048}
    plan = TrainingPlan(**sizes, recompute="full")
    assert "recompute full, " in brief(plan)
    assert "%" not in brief(plan)
    assert "recompute full, 25% of the layers, " in brief(replace(plan, recompute_share=0.25))


def test_a_weight_may_take_half_a_byte() -> None:
    """Of four bits; no size of an element is nothing."""
    fields = {"gpus": 8, "global_batch": 16, "seq_len": 2048}
    for name in ("weight_bytes", "gather_bytes", "logit_bytes"):
        found = parse(TrainingPlanSpec, {**fields, name: 0.5}, "plan").to_dict(blanks=False)
        assert found[name] == 0.5
        with pytest.raises(InputError):
            parse(TrainingPlanSpec, {**fields, name: 0.0}, "plan")

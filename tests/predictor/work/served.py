"""Plans that serve, and operators by their names."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from predictor import catalog
from predictor.catalog.artifacts import load
from predictor.models.model import Model
from predictor.plans.serving import ServingPlan
from predictor.plans.training import TrainingPlan
from predictor.timing.engines import ServingParameters
from predictor.work.primitives import Operator
from predictor.work.training import step_operators

CALIBRATION = replace(load("default"), serving=ServingParameters())
CLUSTER = catalog.system("DGX-H200")


def plan(**fields: object) -> ServingPlan:
    """Four sequences on eight ranks; `fields` change it."""
    given = {"batch": 4.0, "input_len": 1024.0, "output_len": 128.0, "tp": 8.0, **fields}
    return ServingPlan(**given)  # type: ignore[arg-type]


def named(found: Iterable[Operator]) -> dict[str, Operator]:
    return {operator.name: operator for operator in found}


def of_step(model: Model, trained: TrainingPlan) -> dict[str, Operator]:
    """Operators of a training step by name."""
    return named(step_operators(model, trained))

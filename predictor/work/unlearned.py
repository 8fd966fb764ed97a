"""Passes forward without gradients beside those that learn (`plans.objectives`): of the model that
learns, and of what it is compared with. They keep nothing, and run with every micro-batch; where
software scores a whole batch before it learns from it, they take as long, if not as much memory.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from predictor.arrays import Numeric
from predictor.plans import TrainingPlan
from predictor.records import replace
from predictor.work.primitives import Operator

UNLEARNED = ".unlearned"
"""How names of operators and collectives end whose passes have no gradients."""

ADAPTER = ".lora_"
"""What names of operators have that run adapters."""

TAUGHT = ("index.target", "index.loss")
"""Operators of the forward pass that serve gradients alone."""


def several(plan: TrainingPlan) -> bool:
    """Whether a plan, or any of a batch, has such passes."""
    return bool(np.any(np.asarray(plan.unlearned) > 0))


def unlearned_operators(operators: Iterable[Operator], plan: TrainingPlan) -> list[Operator]:
    """Kernels of these passes beside those of a step, whose adapters are off, or not there, in what
    the model is compared with."""
    if not several(plan):
        return []
    return [
        replace(
            one,
            name=f"{one.name}{UNLEARNED}",
            count=one.count * (plan.scored if ADAPTER in one.name else plan.unlearned),
            saved=0.0,
        )
        for one in operators
        if one.phase == "forward" and not one.name.startswith(TAUGHT)
    ]


def unlearned_passes(plan: TrainingPlan) -> list[tuple[str, str, Numeric]]:
    """(phase, suffix of the operators, passes) of what runs with a forward pass, as often as these
    do, where there are any."""
    return [("forward", UNLEARNED, plan.unlearned)] if several(plan) else []


def gathered_again(plan: TrainingPlan) -> Numeric:
    """How often sharded weights are gathered for them, for each pass that learns: the model's own
    only where it drops them after its forward pass."""
    return plan.unlearned if plan.reshard else plan.referred

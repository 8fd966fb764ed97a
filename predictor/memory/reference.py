"""What a plan holds of a model that answers are compared with."""

from __future__ import annotations

from typing import Protocol

from predictor.arrays import Array, Numeric
from predictor.plans import LOOPS, SHARDINGS, TrainingPlan

REFERENCE = "reference weights"
"""Their class of memory."""

ALIKE = (*LOOPS, "deepspeed")
"""Frameworks that load the reference as the model itself (TRL @ f2cd57710, dpo_trainer.py:
`ref_model_init_kwargs`); others have it in what they compute (verl @ b178a3cd5, workers/
fsdp_workers.py: fp32 for the actor, bf16 for the reference)."""


class Weights(Protocol):
    """Parameters by kind of stage that one rank holds before they are divided, (3, *batch)."""

    @property
    def layers(self) -> Array:
        """Of the layers without routed experts."""

    @property
    def experts(self) -> Array:
        """Of those."""

    @property
    def ends(self) -> Array:
        """Of embedding, output projection and final norm."""


def compared(plan: TrainingPlan, weights: Weights) -> dict[str, Numeric]:
    """Bytes of a reference that is held beside the model, divided as its weights are (TRL:
    `prepare_deepspeed`, `prepare_fsdp`); no class where there is none."""
    if plan.compared_with != "held" or not plan.compares:
        return {}
    own = plan.weight_bytes if plan.framework in ALIKE else plan.recipe.weight
    stored = plan.frozen_bytes if plan.frozen else own
    divides = SHARDINGS[plan.sharding].weights
    group, expert_group = (plan.shard_group, plan.expert_shard_group) if divides else (1.0, 1.0)
    wide = own * weights.ends / group
    return {REFERENCE: stored * (weights.layers / group + weights.experts / expert_group) + wide}

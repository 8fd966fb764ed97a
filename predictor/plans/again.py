"""A plan as the request that gives it: keys that a user may state, and nothing derived."""

from __future__ import annotations

from typing import Any

import numpy as np

from predictor.plans.training import TrainingPlan
from predictor.plans.training_fields import TRAINING_FIELDS

YES_OR_NO = "yes or no"

AS_IT_IS = {"frozen_precision": "as multiplied", "era": "neutral"}
"""Words of plans that requests leave out."""


def request_of(plan: TrainingPlan) -> dict[str, Any]:
    """Fields of a request, with model and system beside them, that gives a single plan.

    What documents make of a plan (`document`, `useful`, ...) is not among them: a request says how
    they are packed.
    """
    found: dict[str, Any] = {}
    for name, entry in TRAINING_FIELDS.items():
        value = getattr(plan, entry.holder) if entry.holder else None
        if value is None or AS_IT_IS.get(name) == value:
            continue
        if not isinstance(value, str | bool):
            number = float(value)
            if np.isnan(number):
                continue
            value = int(number) if number == int(number) else number
            value = bool(value) if entry.kind.what == YES_OR_NO else value
        found[name] = value
    found["gpus"] = int(plan.gpus)
    if plan.recompute != "selective":
        found.pop("recompute_modules")
    if plan.recompute != "full":
        found.pop("recompute_share")
    elif float(plan.recompute_chunk) > 1:
        found.pop("recompute_share")
        found |= {"recompute_method": "uniform", "recompute_layers": int(plan.recompute_chunk)}
    return found

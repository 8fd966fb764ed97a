"""How many blocks of each kind a pipeline stage holds."""

from __future__ import annotations

import numpy as np

from predictor.arrays import Array
from predictor.models import Model
from predictor.plans.pipeline import Stages
from predictor.plans.schedules import BOTH
from predictor.plans.training import TrainingPlan


def blocks(model: Model, plan: TrainingPlan, at: Stages) -> dict[str, Array]:
    """Executions of every module of the work list per micro-batch on a stage, (3, *batch) each.

    Dense layers of a mixture come first, and fall on the first stages as far as they have room for
    them; the blocks of a hybrid are spread evenly. Extra prediction layers are layers with a head
    on the last stage.
    """
    extra = at.heads * (model.mtp_layers if plan.mtp else 0)
    ffn = at.layers * (model.dense_share + model.moe_share)
    if not model.is_moe:
        dense, moe = ffn, np.zeros_like(ffn)
    else:
        first = _first(np.full(ffn.shape[1:], float(model.dense_layers)), ffn, at.count)
        if plan.pipeline.fold == BOTH:  # a device has a stage from each end
            first = (first + first[::-1]) / 2.0
        moe = (ffn - first) / max(model.moe_every_n, 1)
        dense = ffn - moe
    return {
        "layer": at.layers + extra,
        "dense": dense + (0.0 if model.is_moe else extra),
        "moe": moe + (extra if model.is_moe else 0.0),
        "embedding": at.embeds,
        "head": at.heads + extra,
        "mtp": extra,
    }


def _first(amount: Array, room: Array, count: Array) -> Array:
    """Share out `amount` (*batch) to stages in their order, as far as each kind has room for it;
    on a stage of each kind, (3, *batch)."""
    found = np.zeros_like(room)
    for kind in range(len(room)):
        taken = np.minimum(amount, room[kind] * count[kind])
        found[kind] = taken / np.maximum(count[kind], 1.0)
        amount = amount - taken
    return found

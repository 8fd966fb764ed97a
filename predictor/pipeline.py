"""How layers fall on the stages of a pipeline, and what of them is in flight.

Stages are of three kinds (first, inner, last): arrays of shape (3, *batch), with how many stages
there are of each.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from predictor.hardware import Array
from predictor.model import Model
from predictor.plan import TrainingPlan
from predictor.schedules import SCHEDULES

STAGES = ("first", "inner", "last")


@dataclass(frozen=True, slots=True, eq=False)
class Stages:
    """How the model falls on the stages; every field has shape (3, *batch).

    count   stages of the kind (with one stage in all, it is 'last' and has both ends)
    layers  layers on a stage of the kind (the fullest one, of inner stages)
    embeds, heads   1 where the stage holds the embedding, the output projection
    index   position of the kind's earliest stage
    """

    count: Array
    layers: Array
    embeds: Array
    heads: Array
    index: Array


def stages(model: Model, plan: TrainingPlan) -> Stages:
    """Divide the layers among the stages.

    Where pp * vpp divides the layers, all stages are equal. Where it divides layers + 2, embedding
    and output projection take a slot each (Llama 3.1 405B: 126 + 2; BLOOM: 70 + 2); where it
    divides layers + 3, a head for a second token takes another on the last stage (DeepSeek-V3 and
    Kimi-K2: 61 + 3). Else the remainder goes to the inner stages. With `split` 'cost' each stage
    is filled until it passes its share of the arithmetic, in which the output projection counts
    as so many layers (nanotron's get_block_compute_costs).
    """
    layers = float(model.layers)
    shape = plan.shape
    p = np.broadcast_to(np.asarray(plan.pp, float), shape)
    chunks = np.broadcast_to(np.asarray(plan.pp * plan.vpp, float), shape)
    slots = np.select([(layers + extra) % chunks == 0 for extra in (0, 2, 3)], [0.0, 2.0, 3.0], -1)
    per = np.where(slots >= 0, (layers + np.maximum(slots, 0.0)) / p, np.floor(layers / p))
    first = per - (slots > 0)
    last = per - np.maximum(slots - 1.0, 0.0)
    inner_stages = np.maximum(p - 2, 0)
    rest = layers - np.where(p > 1, first + last, 0)
    inner = np.where(inner_stages > 0, np.ceil(rest / np.maximum(inner_stages, 1)), 0)
    # Two uneven stages have no inner one: the first takes the remainder.
    first = np.where(p == 2, layers - last, first)
    if plan.split == "cost":
        head = model.vocab * model.hidden * layers / model.matrix_parameters(active=True)
        share = (layers + head) / p
        first = np.minimum(np.floor(share) + 1.0, layers)
        before = np.minimum(np.floor(share * (p - 1.0)) + 1.0, layers)
        last = layers - before
        inner = np.where(
            inner_stages > 0, np.ceil((before - first) / np.maximum(inner_stages, 1)), 0
        )
    one = p == 1
    zero = np.zeros_like(per)
    return Stages(
        count=np.stack([np.where(one, 0.0, 1.0), inner_stages, zero + 1]),
        layers=np.stack([first, inner, np.where(one, layers, last)]),
        embeds=np.stack([zero + 1, zero, np.where(one, 1.0, 0.0)]),
        heads=np.stack([zero, zero, zero + 1]),
        index=np.stack([zero, np.minimum(1.0, p - 1), p - 1]),
    )


def in_flight(plan: TrainingPlan, at: Stages) -> Array:
    """Layers' worth of activations that a stage holds at its peak, (3, *batch)."""
    behind = plan.pp - at.index
    held = SCHEDULES[plan.schedule].held(behind, plan.pp, plan.micro_batches, plan.vpp)
    return np.asarray(held * at.layers)

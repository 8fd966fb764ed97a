"""How layers fall on the stages of a pipeline, and what of them is in flight.

Stages are of three kinds (first, inner, last): arrays of shape (3, *batch), with how many stages
there are of each.
"""

from __future__ import annotations

import numpy as np

from predictor.arrays import Array
from predictor.models import Model
from predictor.plans.schedules import BOTH, V
from predictor.plans.training import TrainingPlan
from predictor.records import dataclass

STAGES = ("first", "inner", "last")


@dataclass(frozen=True, slots=True, eq=False)
class Stages:
    """How the model falls on the devices of a pipeline; every field has shape (3, *batch).

    count   devices of the kind (with one in all, it is 'last' and has both ends)
    layers  layers that a micro-batch passes on a device of the kind (the fullest one, of inner
            ones)
    embeds, heads   1 where it passes the embedding, the output projection
    index   position of the kind's earliest device

    Where a pipeline folds in a V, the first device has both ends. Where it runs from both ends,
    figures are means of the two stages that a device holds.
    """

    count: Array
    layers: Array
    embeds: Array
    heads: Array
    index: Array


def _inner(layers: float, p: Array, first: Array, last: Array) -> Array:
    """Layers of the fullest inner stage, 0 where there is none."""
    several = np.maximum(p - 2, 0)
    rest = layers - first - last
    return np.where(several > 0, np.ceil(rest / np.maximum(several, 1)), 0)


def _slots(model: Model, plan: TrainingPlan, p: Array) -> tuple[Array, Array]:
    """Layers of the first and the last stage where embedding and heads are slots."""
    layers, fold = float(model.layers), plan.pipeline.fold
    chunks = p * plan.vpp
    slots = np.select([(layers + extra) % chunks == 0 for extra in (0, 2, 3)], [0.0, 2.0, 3.0], -1)
    per = np.where(slots >= 0, (layers + np.maximum(slots, 0.0)) / p, np.floor(layers / p))
    # The first device of a V has the slots of both ends.
    first = per - (np.maximum(slots, 0.0) if fold == V else slots > 0)
    last = per - (0.0 if fold == V else np.maximum(slots - 1.0, 0.0))
    if np.isnan(plan.first_layers).all() and np.isnan(plan.last_layers).all():
        # Two uneven stages have no inner one: the first takes the remainder (of a V, the second).
        if fold == V:
            return first, np.where(p == 2, layers - first, last)
        return np.where(p == 2, layers - last, first), last
    return _stated(plan, layers, p, first, last)


def _stated(
    plan: TrainingPlan, layers: float, p: Array, first: Array, last: Array
) -> tuple[Array, Array]:
    """The same with what a plan states; an end that it does not state is as the inner stages."""
    known = ~np.isnan(plan.first_layers), ~np.isnan(plan.last_layers)
    stated = np.nan_to_num(plan.first_layers), np.nan_to_num(plan.last_layers)
    others = np.maximum(p - known[0] - known[1], 1.0)
    even = np.floor((layers - stated[0] - stated[1]) / others)
    none = ~(known[0] | known[1])
    first = np.where(none, first, np.where(known[0], stated[0], even))
    last = np.where(none, last, np.where(known[1], stated[1], even))
    return np.where((p == 2) & ~known[0], layers - last, first), last


def _equal_cost(model: Model, p: Array) -> tuple[Array, Array, Array]:
    """Layers of the first, an inner and the last stage where each is filled until it passes its
    share of the arithmetic."""
    layers = float(model.layers)
    head = model.vocab * model.hidden * layers / model.matrix_parameters(active=True)
    share = (layers + head) / p
    first = np.minimum(np.floor(share) + 1.0, layers)
    before = np.minimum(np.floor(share * (p - 1.0)) + 1.0, layers)
    last = layers - before
    return first, _inner(layers, p, first, last), last


def stages(model: Model, plan: TrainingPlan) -> Stages:
    """Divide the layers among the stages.

    Where pp * vpp divides the layers, all stages are equal. Where it divides layers + 2, embedding
    and output projection take a slot each (Llama 3.1 405B: 126 + 2; BLOOM: 70 + 2); where it
    divides layers + 3, a head for a second token takes another on the last stage (DeepSeek-V3 and
    Kimi-K2: 61 + 3). Else the remainder goes to the inner stages. With `split` 'cost' each stage
    is filled until it passes its share of the arithmetic, in which the output projection counts
    as so many layers (nanotron's get_block_compute_costs). Layers that the plan states for the
    first and the last stage hold, and the others share the rest, unless it states `inner_layers`.
    """
    layers = float(model.layers)
    p = np.broadcast_to(np.asarray(plan.pp, float), plan.shape)
    if plan.split == "cost":
        first, inner, last = _equal_cost(model, p)
    else:
        first, last = _slots(model, plan, p)
        inner = _inner(layers, p, first, last)
    inner = np.where(np.isnan(plan.inner_layers), inner, plan.inner_layers)
    one, fold = p == 1, plan.pipeline.fold
    zero = np.zeros_like(p)
    first, last = np.asarray(first, float), np.where(one, layers, last)
    embeds = [zero + 1, zero, np.where(one, 1.0, 0.0)]
    heads = [zero, zero, zero + 1]
    if fold == V:
        heads = [zero + 1, zero, np.where(one, 1.0, 0.0)]
    elif fold == BOTH:
        several = ~one
        mean = (first + last) / 2.0
        first, last = np.where(several, mean, first), np.where(several, mean, last)
        embeds = [np.where(several, 0.5, 1.0), zero, np.where(several, 0.5, 1.0)]
        heads = [np.where(several, 0.5, 0.0), zero, np.where(several, 0.5, 1.0)]
    return Stages(
        count=np.stack([np.where(one, 0.0, 1.0), np.maximum(p - 2, 0), zero + 1]),
        layers=np.stack([first, inner, last]),
        embeds=np.stack(embeds),
        heads=np.stack(heads),
        index=np.stack([zero, np.minimum(1.0, p - 1), p - 1]),
    )


def in_flight(plan: TrainingPlan, at: Stages) -> Array:
    """Layers' worth of activations that a stage holds at its peak, (3, *batch)."""
    behind = plan.pp - at.index
    held = plan.pipeline.held(behind, plan.pp, plan.filled, plan.vpp)
    return np.asarray(held * at.layers)

"""What the operators of a work list keep from the forward to the backward pass, told per unit of a
module: once for all plans whose layers are alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from predictor.arrays import Array, Index, Numeric, mapped
from predictor.models import Model
from predictor.plans import LOOPS, TrainingPlan
from predictor.records import dataclass
from predictor.work import LAYER_MODULES, Held, Operator, freed, kept_outcome

ENDS = ("embedding", "head", "mtp")
"""Modules beside those of the layers."""

MIXER = "layer"
"""The module of a layer that mixes tokens."""

ROUTING = ("moe.norm", "moe.router")
"""Operators of a mixture on which its choice of experts rests."""

Units = dict[str, Numeric]
"""By module, of one unit of it and one micro-batch."""


@dataclass(frozen=True, slots=True, eq=False)
class Kept:
    """Bytes that operators keep, and parameters of adapters, by module.

    whole      of the layers, without recomputation
    left       what selective recomputation leaves
    outcomes   what checkpoints by operator keep of what operators put out
    start      input of a layer
    ends       of embedding, output projection and extra predictions
    adapters   parameters, of which each has a weight gradient of its size
    passing    gradients of activations that one of the module holds at a time (`_passing`)
    routed     of a layer's mixer, and of its mixture up to the router
    """

    whole: Units
    left: Units
    outcomes: Units
    start: Numeric
    ends: Units
    adapters: Units
    passing: Units
    routed: Numeric

    def at(self, index: Index) -> Kept:
        """Those of plans, of which these are the distinct ones."""
        return mapped(self, lambda value: value[index] if np.ndim(value) else value)


def kept_by(operators: Iterable[Operator], model: Model, plan: TrainingPlan) -> Kept:
    """What the operators of a plan, or of a batch (`step_operators`), keep."""
    every = list(operators)
    layer = [o for o in every if o.module in LAYER_MODULES and o.phase == "forward"]
    left, outcomes = {}, {}
    if plan.recompute == "per_op":
        outcomes = _units((o, o.count * kept_outcome(o, model, plan)) for o in layer)
    if plan.recompute == "selective":
        left = _units((o, o.count * (o.saved * (1.0 - freed(o, model, plan)))) for o in layer)
    lora = [o for o in every if ".lora_" in o.name and o.variant == "wgrad"]
    size = plan.recipe.activation
    return Kept(
        whole=_units((o, o.count * o.saved) for o in layer),
        left=left,
        outcomes=outcomes,
        start=max(model.streams, 1) * _input(layer, np.where(plan.stream_wide, 4.0, size)),
        ends={module: sum((o.saved for o in every if o.module == module), 0.0) for module in ENDS},
        adapters=_units((o, o.count * o.m * o.n) for o in lora),
        passing=_passing(layer, size),
        routed=sum(
            (o.count * o.saved for o in layer if o.module == MIXER or o.name in ROUTING), 0.0
        ),
    )


def _input(layer: Iterable[Operator], size: Numeric) -> Numeric:
    """A layer's part of the residual stream, which its first norm reads [bytes].

    layer   forward operators of the layers
    size    bytes of an element
    """
    return next((size * o.m * o.n for o in layer if o.op == "norm"), 0.0)


def _passing(layer: Iterable[Operator], size: float) -> Units:
    """Gradients of activations that stand at a time while a module's backward pass goes on, by
    module [bytes]: of the widest product's output, from which that of its input is made, beside
    that of the residual stream. Nothing else keeps them: they come and go layer by layer.

    layer   forward operators of the layers
    """
    widest: Units = {}
    stream: Numeric = 0.0
    for one in layer:
        if one.op == "norm":
            stream = np.maximum(stream, size * one.m * one.n)
        elif one.op == "gemm":
            there = np.asarray(one.count) > 0  # in that plan of a batch
            wide = np.where(there, size * one.m * one.batch * (one.n + one.k), 0.0)
            widest[one.module] = np.maximum(widest.get(one.module, 0.0), wide)
    return {module: wide + stream for module, wide in widest.items()}


GOING = ("activations", "embedding and head activations")
"""Classes of memory that are there when a backward pass begins, and gone when it ends."""


def in_turn(
    plan: TrainingPlan, classes: Mapping[str, Numeric], parts: Iterable[Held]
) -> dict[str, Numeric]:
    """`GOING` less the gradients that come in their place [bytes], which are counted elsewhere.

    A loop on one device drops gradients after each step (`zero_grad(set_to_none=True)`, the default
    of PyTorch), and a layer's come when what was kept for them goes: either all activations are
    there or all gradients. Gradients to which several micro-batches add, buckets in which ranks
    reduce them and buffers that frameworks keep are there all the time.

    parts   of the model
    """
    loop = plan.lone & (np.asarray(plan.micro_batches) <= 1) & (plan.framework in LOOPS)
    coming = sum((one.trained for one in parts), np.zeros(()))
    coming = np.where(loop, plan.gradient_bytes * coming * (1.0 - plan.gradients_gone), 0.0)
    found: dict[str, Numeric] = {}
    for name in GOING:
        left = np.minimum(coming, classes[name])
        found[name] = classes[name] - left
        coming = coming - left
    return found


def _units(found: Iterable[tuple[Operator, Numeric]]) -> Units:
    """Sums by module."""
    sums: Units = {}
    for operator, value in found:
        sums[operator.module] = sums.get(operator.module, 0.0) + value
    return sums


def on_stages(units: Mapping[str, Numeric], held: Mapping[str, Array]) -> Array:
    """Of all units on a stage, (3, *batch).

    held   executions of each module on a stage (`plans.blocks`)
    """
    found: Array = np.zeros(held["layer"].shape)
    for module, value in units.items():
        found = found + held[module] * value
    return found

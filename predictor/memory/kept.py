"""What the operators of a work list keep from the forward to the backward pass, told per unit of a
module: once for all plans whose layers are alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from predictor.arrays import Array, Index, Numeric, mapped
from predictor.models import Model
from predictor.plans import TrainingPlan
from predictor.records import dataclass
from predictor.work import LAYER_MODULES, Operator, freed

ENDS = ("embedding", "head", "mtp")
"""Modules beside those of the layers."""

Units = dict[str, Numeric]
"""By module, of one unit of it and one micro-batch."""


@dataclass(frozen=True, slots=True, eq=False)
class Kept:
    """Bytes that operators keep, and parameters of adapters, by module.

    whole      of the layers, without recomputation
    cores      of their attention cores
    products   of their matrix products
    left       what selective recomputation leaves
    start      input of a layer
    ends       of embedding, output projection and extra predictions
    adapters   parameters, of which each has a weight gradient of its size
    """

    whole: Units
    cores: Units
    products: Units
    left: Units
    start: Numeric
    ends: Units
    adapters: Units

    def at(self, index: Index) -> Kept:
        """Those of plans, of which these are the distinct ones."""
        return mapped(self, lambda value: value[index] if np.ndim(value) else value)


def kept_by(operators: Iterable[Operator], model: Model, plan: TrainingPlan) -> Kept:
    """What the operators of a plan, or of a batch (`step_operators`), keep."""
    every = list(operators)
    layer = [o for o in every if o.module in LAYER_MODULES and o.phase == "forward"]
    left = {}
    if plan.recompute == "selective":
        left = _units((o, o.count * (o.saved * (1.0 - freed(o, model, plan)))) for o in layer)
    lora = [o for o in every if ".lora_" in o.name and o.variant == "wgrad"]
    return Kept(
        whole=_units((o, o.count * o.saved) for o in layer),
        cores=_units((o, o.count * o.saved) for o in layer if o.core),
        products=_units((o, o.count * o.saved) for o in layer if o.op == "gemm"),
        left=left,
        start=next((o.saved for o in layer if o.op == "norm"), 0.0),
        ends={module: sum((o.saved for o in every if o.module == module), 0.0) for module in ENDS},
        adapters=_units((o, o.count * o.m * o.n) for o in lora),
    )


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

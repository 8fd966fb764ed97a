"""What was assumed of a plan and matters: how the step changes where the software did otherwise."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from predictor.memory import memory
from predictor.plans import (
    CP_KINDS,
    DISPATCHES,
    NUMERIC_FIELDS,
    RECOMPUTES,
    TrainingPlan,
    feasible,
)
from predictor.records import dataclass
from predictor.timing import RunParameters
from predictor.training.completion import TrainingRequest

YES_NO = (False, True)

OTHERS: Mapping[str, tuple[Any, ...]] = {
    "vpp": (1, 2, 4, 8),
    "micro_batch": (1, 2, 4, 8),
    "recompute": RECOMPUTES,
    "sharding": ("none", "zero1", "fsdp"),
    "attention": ("flash", "flash2"),
    "cp_kind": CP_KINDS,
    "dispatch": DISPATCHES,
    "cuda_graphs": ("none", "layers", "step"),
    "expert_load": (1.0, 1.1, 1.3),
    "reduce_bytes": (2, 4),
    "sequence_parallel": YES_NO,
    **dict.fromkeys(
        ("tp_overlap", "tp_async_backward", "grad_overlap", "param_overlap", "p2p_overlap",
         "ep_overlap", "reshard", "fused", "dropout"),
        YES_NO,
    ),
}  # fmt: skip
"""Fields that published runs choose differently, and what they choose."""

MATTERS = 0.01
"""Share of the step below which an assumption is not worth stating."""


@dataclass(frozen=True, slots=True)
class Doubt:
    """A field that was assumed, another value that it may well have, and what of the step that
    would change: -0.1 is a tenth less."""

    field: str
    value: Any
    other: Any
    change: float


def others(request: TrainingRequest, field: str) -> Iterator[tuple[Any, TrainingPlan]]:
    """The plan with the other values of a field that it can have."""
    current = getattr(request.plan, field)
    for other in OTHERS[field]:
        if other == current:
            continue
        if other == "fsdp" and float(request.plan.pp) > 1:
            continue  # hardly anybody shards weights under a pipeline
        changed: dict[str, Any] = {field: float(other) if field in NUMERIC_FIELDS else other}
        plan = replace(request.plan, **changed)
        if bool(np.all(feasible(plan, request.model))):
            yield other, plan


def doubts(
    request: TrainingRequest, run: RunParameters, time: Callable[[TrainingPlan], float]
) -> list[Doubt]:
    """Assumed fields that would change the step most, each with the value that does it; those that
    fit in memory, most first.

    time   step time of a plan [s]
    """
    total, room = time(request.plan), float(request.cluster.accelerator.memory)
    found: list[Doubt] = []
    for field in {one.field for one in request.assumed} & set(OTHERS):
        changes = [
            Doubt(field, getattr(request.plan, field), other, time(plan) / total - 1.0)
            for other, plan in others(request, field)
            if float(memory(request.model, plan, run).peak) <= room
        ]
        found += sorted(changes, key=lambda one: -abs(np.log1p(one.change)))[:1]
    kept = [one for one in found if abs(one.change) >= MATTERS]
    return sorted(kept, key=lambda one: (-abs(np.log1p(one.change)), one.field))

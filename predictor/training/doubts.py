"""What was assumed of a plan and matters: how the step changes where the software did otherwise."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from predictor.catalog import framework_settings
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

LAYOUT = ("tp", "pp", "cp", "ep")
"""Fields whose other values are half and twice what was assumed; replicas make up for it."""

OTHERS: Mapping[str, tuple[Any, ...]] = {
    "framework": ("megatron-lm", "torchtitan", "maxtext"),
    **dict.fromkeys(LAYOUT, (0.5, 2.0)),
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
"""Fields that published runs choose differently, and what they choose: of frameworks one of each
family, with its level, its launches and what it does in other assumed fields; of the layout,
factors."""

OTHERWISE: Mapping[str, float] = {
    "framework": 1.0, "ep": 0.33, "recompute": 0.37, "micro_batch": 0.28, "pp": 0.21, "vpp": 0.12,
    "tp": 0.09, "sequence_parallel": 0.07, "cp": 0.04, "sharding": 0.03,
}  # fmt: skip
"""Share of published runs that state a field otherwise than it is assumed where they do not, mean
over up to 28 sources (`python -m calibration.checks.hidden`); nobody runs the neutral framework."""

USUAL = 0.17
"""The same of a field that tables do not state: the mean of all but the framework."""

MATTERS = 0.01
"""Share of the step below which an assumption is not worth stating."""


@dataclass(frozen=True, slots=True)
class Doubt:
    """A field that was assumed, another value that it may well have, and what of the step that
    would change: -0.1 is a tenth less.

    weight   log by which the step is expected to differ: mean over the field's other values, times
             how often published runs have one of them
    """

    field: str
    value: Any
    other: Any
    change: float
    weight: float = 0.0


def others(request: TrainingRequest, field: str) -> Iterator[tuple[Any, TrainingPlan]]:
    """The plan with the other values of a field that it can have."""
    plan = request.plan
    current = getattr(plan, field)
    for other in OTHERS[field]:
        if other == current:
            continue
        if other == "fsdp" and float(plan.pp) > 1:
            continue  # hardly anybody shards weights under a pipeline
        if field == "framework":
            own = replace(plan, framework=other, **_habits(request, other))
        elif field in LAYOUT:
            other = float(current) * other
            own = replace(plan, **_layout(plan, field, other))
        else:
            changed: dict[str, Any] = {field: float(other) if field in NUMERIC_FIELDS else other}
            own = replace(plan, **changed)
        if bool(np.all(feasible(own, request.model))):
            yield other, own


def _habits(request: TrainingRequest, framework: str) -> dict[str, Any]:
    """What another framework does in assumed fields, as far as it is a value by itself."""
    plan = request.plan
    open_ = {one.field for one in request.assumed} & set(OTHERS)
    known = {name: getattr(plan, name) for name in ("precision", "sharding", "trained")}
    era = None if plan.era == "neutral" else plan.era
    settings, _ = framework_settings(framework, era, request.model, known)
    split = settings.pop("sequence_parallel", False)
    found = {
        field: float(value) if field in NUMERIC_FIELDS else value
        for field, value in settings.items()
        if field in open_ and (value in OTHERS[field] or value in YES_NO)
    }
    if "sequence_parallel" in open_:
        found["sequence_parallel"] = float(split is True or (split == "tp" and plan.tp > 1))
    return found


def _layout(plan: TrainingPlan, field: str, value: float) -> dict[str, Any]:
    """A field of the layout, and the replicas that are left of as many accelerators."""
    ranks = {name: float(getattr(plan, name)) for name in ("tp", "pp", "cp")} | {field: value}
    each = ranks["tp"] * ranks["pp"] * ranks["cp"]
    return {field: value, "dp": float(plan.gpus) / each}


def doubts(
    request: TrainingRequest, run: RunParameters, time: Callable[[TrainingPlan], float]
) -> list[Doubt]:
    """Assumed fields by what they are expected to move the step, most first, each with the value
    that changes it most; those that fit in memory.

    time   step time of a plan [s]
    """
    total, room = time(request.plan), float(request.cluster.accelerator.memory)
    found: list[Doubt] = []
    for field in {one.field for one in request.assumed} & set(OTHERS):
        changes = {
            other: time(plan) / total - 1.0
            for other, plan in others(request, field)
            if float(memory(request.model, plan, run).peak) <= room
        }
        if not changes:
            continue
        sizes = {other: abs(float(np.log1p(change))) for other, change in changes.items()}
        most = max(sizes, key=lambda other: sizes[other])
        weight = OTHERWISE.get(field, USUAL) * float(np.mean(list(sizes.values())))
        value = getattr(request.plan, field)
        found.append(Doubt(field, value, most, changes[most], weight))
    kept = [one for one in found if abs(one.change) >= MATTERS]
    return sorted(kept, key=lambda one: (-one.weight, one.field))

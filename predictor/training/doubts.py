"""What was assumed of a plan and matters: how the step changes where the software did otherwise."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from predictor.errors import InputError
from predictor.memory import memory
from predictor.plans import (
    CP_KINDS,
    DISPATCHES,
    RECOMPUTES,
    TrainingPlan,
    feasible,
)
from predictor.records import dataclass
from predictor.timing import RunParameters
from predictor.training.completion import TrainingRequest, restated

YES_NO = (False, True)

LAYOUT = ("tp", "pp", "cp", "ep")
"""Fields whose other values are half and twice what was assumed; replicas make up for it."""

OTHERS: Mapping[str, tuple[Any, ...]] = {
    "framework": ("megatron-lm", "torchtitan", "maxtext"),
    **dict.fromkeys(LAYOUT, (0.5, 2.0)),
    "vpp": (1, 2, 4, 8),
    "micro_batch": (1, 2, 4, 8),
    "recompute": RECOMPUTES,
    "precision": ("bf16", "fp8", "mxfp8"),
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
    "framework": 1.0, "ep": 0.35, "precision": 0.34, "micro_batch": 0.27, "recompute": 0.20,
    "pp": 0.16, "tp": 0.10, "vpp": 0.09, "sequence_parallel": 0.09, "cp": 0.04, "sharding": 0.03,
}  # fmt: skip
"""Share of published runs that state a field otherwise than it is assumed where they do not, mean
over up to 28 sources (`python -m calibration.checks.hidden`); nobody runs the neutral
framework, and fp16 counts as bf16, which is as quick."""

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


def otherwise(field: str) -> float:
    """Share of published runs that state a field otherwise than it is assumed where they do not."""
    return OTHERWISE.get(field, USUAL)


def others(
    request: TrainingRequest, field: str, run: RunParameters
) -> Iterator[tuple[Any, TrainingPlan]]:
    """The plan as it is completed where the other values of a field that it can have are stated.

    run   memory parameters, to judge what fits
    """
    current, values = getattr(request.plan, field), OTHERS[field]
    if field in LAYOUT:
        values = tuple(int(current * factor) for factor in values if current * factor >= 1)
    for value in values:
        if value == current:
            continue
        try:
            own = restated(request, run, **{field: value}).plan
        except InputError:
            continue
        if value == "fsdp" and float(own.pp) > 1:
            continue  # hardly anybody shards weights under a pipeline
        if bool(np.all(feasible(own, request.model))):
            yield value, own


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
            for other, plan in others(request, field, run)
            if float(memory(request.model, plan, run).peak) <= room
        }
        if not changes:
            continue
        sizes = {other: abs(float(np.log1p(change))) for other, change in changes.items()}
        most = max(sizes, key=lambda other: sizes[other])
        weight = otherwise(field) * float(np.mean(list(sizes.values())))
        value = getattr(request.plan, field)
        found.append(Doubt(field, value, most, changes[most], weight))
    kept = [one for one in found if abs(one.change) >= MATTERS]
    return sorted(kept, key=lambda one: (-one.weight, one.field))

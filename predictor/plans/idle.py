"""What a request states that changes nothing of its plan, and what would let it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from predictor.plans.schedules import LINE, SCHEDULES
from predictor.plans.serving import ServingPlan
from predictor.plans.training import TrainingPlan

Stated = Mapping[str, Any]

Need = tuple[str, Callable[[Any, Stated], bool]]
"""What a field needs, in the words of a request; and whether a plan, or what is stated, has it."""


def _other(name: str) -> Need:
    """Another field that is stated, and not nought."""
    return name, lambda plan, stated: bool(stated.get(name))


def _some(*names: str) -> Need:
    """Numbers of a plan of which one is above nought."""

    def has(plan: Any, stated: Stated) -> bool:
        return any(np.any(np.asarray(getattr(plan, name)) > 0) for name in names)

    return names[0], has


def _above_one(name: str) -> Need:
    """A parallelism that divides something."""
    return f"{name} above 1", lambda plan, stated: bool(np.any(np.asarray(getattr(plan, name)) > 1))


_LINKED: Need = (
    "stages of one chunk",
    lambda plan, stated: (
        SCHEDULES[plan.schedule].fold == LINE
        and bool(np.any((np.asarray(plan.pp) > 1) & (np.asarray(plan.vpp) == 1)))
    ),
)
_LORA: Need = ("trained=lora", lambda plan, stated: plan.trained != "all")
_COMPARED: Need = ("learns_from=dpo", lambda plan, stated: plan.compares)
_FULL: Need = ("recompute=full", lambda plan, stated: plan.recompute == "full")
_ONCE: Need = ("dispatch=once", lambda plan, stated: plan.dispatch == "once")
_AWAY = _some("offload_activations", "offload_optimizer", "offload_weights")
_READERS = _some("prefill_workers")
_SCALED, _DRAFTS, _LOADED = _other("most_replicas"), _some("drafted"), _other("adapters")
_HOST = _other("offload")

TRAINING: Mapping[str, Need] = {
    "lora_rank": _LORA,
    "frozen_precision": _LORA,
    "adapter_style": _LORA,
    "compared_with": _COMPARED,
    "offload_to": _AWAY,
    "host_memory_gb": _AWAY,
    "recompute_share": _FULL,
    "stage_recompute": _FULL,
    "recompute_modules": (
        "recompute=selective",
        lambda plan, stated: plan.recompute == "selective",
    ),
    "dp_shard": ("sharding=hsdp", lambda plan, stated: plan.sharding == "hsdp"),
    "reshard": ("sharding=fsdp", lambda plan, stated: plan.sharding in ("zero3", "fsdp", "hsdp")),
    "routed_nodes": _ONCE,
    "dispatch_processors": _ONCE,
    "routing": _ONCE,
    "cp_kind": _above_one("cp"),
    "merges_apart": _above_one("cp"),
    "keys_repeated": _above_one("cp"),
    "p2p_overlap": _above_one("pp"),
    "handed_rate": _LINKED,
    "pipeline_fill": _above_one("pp"),
    "image_tiles": _other("images"),
    "tower": _other("images"),
}
"""Field of training -> what it needs."""

SERVING: Mapping[str, Need] = {
    "prefill_tp": _READERS,
    "prefill_dp": _READERS,
    "prefill_power_limit": _READERS,
    "kv_gbs": _READERS,
    "image_tiles": _other("images"),
    "spacing_s": ("a static batch", lambda plan, stated: not np.any(plan.serving)),
    "cold_start_s": _SCALED,
    "cache_drive_gbs": _other("cache_drive_gb"),
    "draft_cost": _DRAFTS,
    "acceptance": _DRAFTS,
    "adapter_rank": _LOADED,
    "host_bandwidth_gbs": _HOST,
    "host_link_gbs": _HOST,
}
"""Field of serving -> what it needs."""


OF_EXPERTS = ("expert_loads", "expert_replicas", "expert_placement", "expert_capacity",
              "expert_chunks")  # fmt: skip
"""Fields of either that a model without experts has no use for."""


def idle(plan: TrainingPlan | ServingPlan, stated: Stated, experts: bool = True) -> tuple[str, ...]:
    """Fields that are stated and change nothing, each with what it needs: 'lora_rank (needs
    trained=lora)'; `experts` tells whether the model has any."""
    table = TRAINING if isinstance(plan, TrainingPlan) else SERVING
    unused = () if experts else OF_EXPERTS
    return (
        *(f"{name} (needs a model with experts)"
          for name in unused if stated.get(name) is not None),
        *(f"{name} (needs {what})" for name, (what, has) in table.items()
          if stated.get(name) is not None and not has(plan, stated)),
    )  # fmt: skip

"""What of a step lies around its layers: how they fall on stages, what travels between stages and
replicas, the optimizer, copies to the host, the loader.

None of it depends on `LAYERED`, so that plans that differ in those alone share it.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import numpy.typing as npt

from predictor.arrays import Array, Numeric, filled
from predictor.hardware import Accelerator, Cluster
from predictor.memory import kept_by, lay_out, layer_activations, offload, table_parameters
from predictor.models import Model
from predictor.plans import SHARDINGS, Stages, TrainingPlan, blocks
from predictor.records import dataclass
from predictor.timing import Calibration, operator_times
from predictor.training.exchange import EVERYONE, Exchange, Network, Slot
from predictor.work import (
    Held,
    cast_operators,
    flat_operators,
    gradient_collectives,
    pipeline_collectives,
    step_operators,
    update_operators,
)

LAYERED = (
    "recompute",
    "recompute_modules",
    "stops_early",
    "cuda_graphs",
    "attention",
    "cp_kind",
    "tp_overlap",
    "tp_async_backward",
    "tp_regather",
    "ep_overlap",
    "dispatch",
    "routing",
)
"""Categories of a plan that change nothing around its layers, unless the host keeps activations or
adapters are trained (`is_apart`)."""


@dataclass(frozen=True, eq=False)
class Frame:
    """What lies around the layers of a step; fields as of `decomposition.Parts`."""

    at: Stages
    m: Array
    vpp: Array
    gpus: Array
    modules: dict[str, Array]
    between: dict[Slot, Exchange]
    gradients: dict[tuple[Slot, int], Exchange]
    offload: dict[Slot, Exchange]
    flat: Array
    update: Array
    update_sigma: Array
    repeats: Array
    host: Array
    taken: Array
    loading: Array
    attention_cv: Array
    attention_skew: Array
    replicas: Array

    def take(self, index: npt.NDArray[np.intp]) -> Frame:
        """Those of some plans of a batch of one dimension."""

        def cut(value: Any) -> Any:
            if isinstance(value, dict):
                return {key: cut(part) for key, part in value.items()}
            if isinstance(value, Exchange | Stages):
                kind: Any = type(value)
                return kind(*(cut(getattr(value, part.name)) for part in fields(value)))
            return value.take(index, axis=-1)

        return Frame(*(cut(getattr(self, part.name)) for part in fields(Frame)))


def is_apart(plan: TrainingPlan) -> bool:
    """Whether what lies around the layers depends on nothing inside them."""
    return not plan.frozen and not np.any(np.asarray(plan.offload_activations) > 0)


def frame(model: Model, cluster: Cluster, plan: TrainingPlan, calibration: Calibration) -> Frame:
    """Time what lies around the layers of a plan, or of every plan of a batch.

    model, cluster, plan   as `training.predict` takes them
    calibration            efficiencies of kernels and links
    """
    shape, accelerator = plan.shape, cluster.accelerator
    laid = lay_out(model, plan)
    at, parameters = laid.at, laid.parameters
    network = Network.of(plan, cluster, calibration)
    full = (3, *shape)
    between = {
        Slot("pp", c.op, c.phase, c.phase if c.behind else ""): network.exchange(c, 0.0, shape)
        for c in pipeline_collectives(model, plan)
    }
    dense, experts = parameters.dense, parameters.expert
    gradients: dict[tuple[Slot, int], Exchange] = {}
    for number, c in enumerate(
        gradient_collectives(
            plan, dense, experts, plan.pipeline.copies * at.layers, parameters.tied
        )
    ):
        slot = Slot("dp", c.op, "update", c.behind)
        # All groups reduce at once: the network carries the whole job.
        gradients[(slot, number)] = network.exchange(c, 0.0, full, EVERYONE)
    sharding = SHARDINGS[plan.sharding]
    updated = dense.trained + experts.trained
    if sharding.optimizer:
        updated = dense.trained / plan.shard_group + experts.trained / plan.expert_shard_group
    updated = updated + table_parameters(model, plan).trained  # divided among all already
    update = operator_times(update_operators(plan, updated), accelerator, calibration, full)
    update_time, update_sigma = update.time.sum(axis=0), update.sigma
    if np.any(np.asarray(plan.offload_optimizer) > 0):
        update_time = offload.update_time(plan, accelerator, np.asarray(updated), update_time)
        update_sigma = np.maximum(update_sigma, offload.SIGMA)
    present = at.count > 0

    def whole(value: Numeric) -> Array:
        return filled(value, shape)

    return Frame(
        at=at,
        m=whole(plan.micro_batches),
        vpp=whole(plan.vpp),
        gpus=whole(plan.gpus),
        modules=laid.held,
        between=between,
        gradients=gradients,
        offload=_copies(model, plan, at, accelerator),
        flat=_flat(plan, (dense, experts), accelerator, calibration, full),
        update=filled(update_time, full),
        update_sigma=np.max(np.where(present, update_sigma, 0.0), axis=(0, 1)),
        repeats=whole(plan.exchanges),
        host=whole(0.0 if accelerator.is_queued else 1.0),
        taken=whole(_taken(accelerator)),
        attention_cv=whole(plan.attention_cv),
        attention_skew=whole(plan.attention_skew),
        replicas=whole(plan.dp),
        loading=whole(np.nan_to_num(plan.global_batch * plan.seq_len / plan.dp / plan.loader_rate)),
    )


CHANNELS = 16.0
"""Channels of a collective between nodes, each a block of threads that has a processor to itself
(NCCL: "CTAs won't share an SM with compute kernels", NVIDIA/nccl issues 689 and 1656; its logs name
8 to 24 channels, by the links that they find, and RCCL's code is the same)."""

KERNELS = ("NVIDIA", "AMD")
"""Makers whose collectives are kernels; those of others are moved by engines of their own."""


def _taken(accelerator: Accelerator) -> Numeric:
    """Share of the processors that a collective takes from what runs beside it."""
    if accelerator.vendor not in KERNELS:
        return 0.0
    return CHANNELS / np.maximum(accelerator.sms, CHANNELS)


def _flat(
    plan: TrainingPlan,
    held: tuple[Held, Held],
    accelerator: Accelerator,
    calibration: Calibration,
    full: tuple[int, ...],
) -> Array:
    """Seconds of a step in which sharded weights and gradients, of layers and of experts, are
    copied from and to the buffers in which they travel, or cast, (3, *batch)."""
    dense, experts = held
    listed = [
        *flat_operators(plan, dense, plan.shard_group),
        *flat_operators(plan, experts, plan.expert_shard_group),
        *cast_operators(plan, dense),
        *cast_operators(plan, experts),
    ]
    if not listed:
        return np.zeros(full)
    times = operator_times(listed, accelerator, calibration, full).time
    each = zip(listed, times, strict=True)
    return np.asarray(sum((filled(one.count * time, full) for one, time in each), np.zeros(full)))


def _copies(
    model: Model, plan: TrainingPlan, at: Stages, accelerator: Accelerator
) -> dict[Slot, Exchange]:
    """Copies of activations to the host and back, (3, *batch); none where nothing is offloaded."""
    if not np.any(np.asarray(plan.offload_activations) > 0):
        return {}
    saved = kept_by(step_operators(model, plan), model, plan)
    kept, _ = layer_activations(saved, plan, blocks(model, plan, at))
    times = offload.activation_times(plan, accelerator, kept)
    zero, one = np.zeros_like(times[0]), np.ones_like(times[0])
    return {
        Slot("offload", "copy", phase, phase): Exchange(
            time, zero, one, one, np.full_like(time, offload.SIGMA), zero
        )
        for phase, time in zip(("forward", "backward"), times, strict=True)
    }

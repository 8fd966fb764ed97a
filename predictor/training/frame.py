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
from predictor.memory import (
    Layout,
    kept_by,
    lay_out,
    layer_activations,
    offload,
    table_parameters,
)
from predictor.models import Model
from predictor.plans import SHARDINGS, Stages, TrainingPlan, blocks
from predictor.records import dataclass, replace
from predictor.timing import Calibration, operator_times
from predictor.training.exchange import EVERYONE, Exchange, Network, Slot
from predictor.work import (
    STEPS,
    Held,
    cast_operators,
    flat_operators,
    gradient_collectives,
    matrices,
    newton_schulz,
    pipeline_collectives,
    step_operators,
    sum_operators,
    update_operators,
)

LAYERED = (
    "recompute",
    "recompute_modules",
    "stops_early",
    "cuda_graphs",
    "attention",
    "cp_kind",
    "merges_apart",
    "keys_repeated",
    "tp_overlap",
    "tp_async_backward",
    "tp_regather",
    "ep_overlap",
    "dispatch",
    "routing",
)
"""Categories of a plan that change nothing around its layers, unless the host keeps activations or
adapters are trained, or matrices made orthogonal (`is_apart`)."""


@dataclass(frozen=True, eq=False)
class Frame:
    """What lies around the layers of a step; fields as of `decomposition.Parts`."""

    at: Stages
    m: Array
    fills: Array
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
    inside = plan.frozen or plan.optimizer == "muon"
    return not inside and not np.any(np.asarray(plan.offload_activations) > 0)


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
    between = _between(model, plan, network)
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
    update_time, update_sigma = _updated(model, cluster, plan, calibration, laid)
    present = at.count > 0

    def whole(value: Numeric) -> Array:
        return filled(value, shape)

    return Frame(
        at=at,
        m=whole(plan.micro_batches),
        fills=whole(plan.fills),
        vpp=whole(plan.vpp),
        gpus=whole(plan.gpus),
        modules=laid.held,
        between=between,
        gradients=gradients,
        offload=_copies(model, plan, at, (dense, experts), accelerator),
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


def _between(model: Model, plan: TrainingPlan, network: Network) -> dict[Slot, Exchange]:
    """Transfers between stages, and for how long each keeps its stages (`handed_rate`)."""
    found = {}
    for c in pipeline_collectives(model, plan):
        copied = filled(np.nan_to_num(c.bytes / np.asarray(plan.handed_rate)), plan.shape)
        slot = Slot("pp", c.op, c.phase, c.phase if c.behind else "")
        found[slot] = replace(network.exchange(c, 0.0, plan.shape), copied=copied)
    return found


def _updated(
    model: Model, cluster: Cluster, plan: TrainingPlan, calibration: Calibration, laid: Layout
) -> tuple[Array, Array]:
    """Time of the optimizer [s], (3, *batch), and spreads of its kernels."""
    accelerator, full = cluster.accelerator, (3, *plan.shape)
    dense, experts = laid.parameters.dense, laid.parameters.expert
    updated = dense.trained + experts.trained
    if SHARDINGS[plan.sharding].optimizer:
        updated = dense.trained / plan.shard_group + experts.trained / plan.expert_shard_group
    updated = updated + table_parameters(model, plan).trained  # divided among all already
    update = operator_times(update_operators(plan, updated), accelerator, calibration, full)
    time, sigma = update.time.sum(axis=0), update.sigma
    if plan.optimizer == "muon" and not plan.frozen:
        time = time + _orthogonal(model, accelerator, plan, calibration, laid)
    if np.any(np.asarray(plan.offload_optimizer) > 0):
        time = offload.update_time(plan, cluster, np.asarray(updated), time)
        sigma = np.maximum(sigma, offload.SIGMA)
    return np.asarray(time), sigma


def _orthogonal(
    model: Model,
    accelerator: Accelerator,
    plan: TrainingPlan,
    calibration: Calibration,
    laid: Layout,
) -> Array:
    """Time of Muon's products [s], (3, *batch): of all matrices of a stage, or, where ranks divide
    the optimizer, of each rank's share of them, of which one is whole (Megatron Core's layer-wise
    distributed optimizer; Liu et al. 2025, section 2.3)."""
    full = (3, *plan.shape)
    whole, longest = np.zeros(full), np.zeros(full)
    for rows, columns, many in matrices(step_operators(model, plan), model, plan, laid.held):
        listed = newton_schulz(rows, columns, plan.recipe.core)
        times = operator_times(listed, accelerator, calibration, full).time
        one = STEPS * times.sum(axis=0)
        whole = whole + many * one
        longest = np.maximum(longest, np.where(many > 0, one, 0.0))
    if not SHARDINGS[plan.sharding].optimizer:
        return np.asarray(whole)
    return np.asarray(np.maximum(whole / plan.shard_group, longest))


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
    copied from and to the buffers in which they travel, or cast, and gradients added to those of
    earlier micro-batches by kernels of their own, (3, *batch)."""
    dense, experts = held
    listed = [
        *flat_operators(plan, dense, plan.shard_group),
        *flat_operators(plan, experts, plan.expert_shard_group),
        *cast_operators(plan, dense),
        *cast_operators(plan, experts),
        *sum_operators(plan, dense),
        *sum_operators(plan, experts),
    ]
    if not listed:
        return np.zeros(full)
    times = operator_times(listed, accelerator, calibration, full).time
    each = zip(listed, times, strict=True)
    return np.asarray(sum((filled(one.count * time, full) for one, time in each), np.zeros(full)))


def _copies(
    model: Model,
    plan: TrainingPlan,
    at: Stages,
    held: tuple[Held, Held],
    accelerator: Accelerator,
) -> dict[Slot, Exchange]:
    """Copies to the host and back beside the passes, (3, *batch): of activations, of sharded
    weights and of their gradients; none where nothing is offloaded.

    held   parameters of layers and of experts on a rank before they are divided
    """
    saves = np.any(np.asarray(plan.offload_activations) > 0)
    away = (plan.offload_weights, plan.gradients_away)
    if not saves and not any(np.any(np.asarray(share) > 0) for share in away):
        return {}
    kept: Numeric = np.zeros(at.count.shape)
    if saves:
        saved = kept_by(step_operators(model, plan), model, plan)
        kept, _ = layer_activations(saved, plan, blocks(model, plan, at))
    (dense, experts), group = held, plan.shard_group
    weights = dense.weights / group + experts.weights / plan.expert_shard_group
    trained = dense.trained / group + experts.trained / plan.expert_shard_group
    times = offload.pass_times(plan, accelerator, kept, weights, trained)
    found = {Slot("offload", "copy", phase, phase): own for phase, own in times.items()}
    for phase, own in offload.weights_time(plan, accelerator, weights).items():
        found[Slot("offload", "weights", phase, "")] = own
    if saves and offload.takes_loss(plan):
        loss = offload.loss_time(model, plan, accelerator) * blocks(model, plan, at)["head"]
        found |= {Slot("offload", "loss", phase, ""): loss for phase in times}
    return {slot: _copy(filled(own, at.count.shape)) for slot, own in found.items()}


def _copy(time: Array) -> Exchange:
    """A copy to the host or back, of every micro-batch."""
    zero, one = np.zeros_like(time), np.ones_like(time)
    return Exchange(time, zero, one, one, np.full_like(time, offload.SIGMA), zero, zero)

"""The parts of a training step: what every piece takes by itself, before anything overlaps.

Nothing here depends on the parameters of a run (`timing.RunParameters`), so that these can be
fitted to many runs without timing a kernel twice. `step.assemble` puts the parts together.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from predictor.arrays import Array, Numeric
from predictor.errors import InputError
from predictor.hardware import Accelerator, Cluster, clusters_at
from predictor.memory import layer_activations, offload, stage_parameters
from predictor.models import Model
from predictor.plans import SHARDINGS, Stages, TrainingPlan, blocks, stages
from predictor.timing import Calibration, operator_times
from predictor.training.layer import (
    Exchange,
    LayerParts,
    Slot,
    Worklist,
    distinct,
    exchange,
    layer_parts,
)
from predictor.work import (
    Group,
    gradient_collectives,
    groups,
    pipeline_collectives,
    step_operators,
    update_operators,
)

COMPUTE_TERMS = ("forward", "backward", "recompute")


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """A step in pieces, of one plan or of a batch. Stage arrays have shape (3, *batch).

    at          stages
    index       position of every plan among those with distinct layers (base)
    modules     units of each module of the work list on a stage, (3, *batch) (`blocks.blocks`)
    mean_layer  units of each in the mean layer
    work        (module, term, class) -> seconds per unit and micro-batch, base shape
    weights     (module, class) -> what of the backward pass are gradients of weights
    families    (module, family, class) -> the same seconds by fit, for the interval
    launches    operators per unit and micro-batch, by module
    kernels     what operators of several kernels launch beyond their first, alike
    hops        steps of tensor-parallel rings per unit and micro-batch, by module
    inside      collectives inside a stage, per unit and micro-batch, base shape
    between     transfers between stages per micro-batch and virtual stage, batch shape
    gradients   data-parallel collectives per step, (3, *batch)
    offload     copies to the host and back per micro-batch, (3, *batch)
    sigmas      of the families
    update      seconds of the optimizer, (3, *batch); update_sigma is the spread of the log
    repeats     how often the data-parallel collectives repeat in a step
    host        whether the accelerator is the host itself
    loading     seconds in which a rank's tokens of a step are loaded
    """

    at: Stages
    index: npt.NDArray[np.intp]
    m: Array
    vpp: Array
    gpus: Array
    modules: dict[str, Array]
    mean_layer: dict[str, Array]
    work: dict[tuple[str, str, str], Array]
    weights: dict[tuple[str, str], Array]
    families: dict[tuple[str, str, str], Array]
    launches: dict[str, Array]
    kernels: dict[str, Array]
    hops: dict[str, Array]
    inside: dict[tuple[Slot, int], Exchange]
    between: dict[Slot, Exchange]
    gradients: dict[tuple[Slot, int], Exchange]
    offload: dict[Slot, Exchange]
    sigmas: dict[str, Array]
    update: Array
    update_sigma: Array
    repeats: Array
    host: Array
    loading: Array
    schedule: str

    def spread(self, value: Array) -> Array:
        """An array of base shape for every plan of the batch."""
        return np.asarray(value)[..., self.index] if np.ndim(self.index) else np.asarray(value)


def _copies(
    model: Model, plan: TrainingPlan, at: Stages, accelerator: Accelerator
) -> dict[Slot, Exchange]:
    """Copies of activations to the host and back, (3, *batch); none where nothing is offloaded."""
    if not np.any(np.asarray(plan.offload_activations) > 0):
        return {}
    kept, _ = layer_activations(model, step_operators(model, plan), plan, blocks(model, plan, at))
    times = offload.activation_times(plan, accelerator, kept)
    one = np.ones(kept.shape)
    return {
        Slot("offload", "copy", phase, phase): Exchange(
            time + 0.0 * one, 0.0 * one, one, one, offload.SIGMA * one
        )
        for phase, time in zip(("forward", "backward"), times, strict=True)
    }


def parts(
    model: Model,
    cluster: Cluster,
    plan: TrainingPlan,
    calibration: Calibration,
    layers: tuple[LayerParts, npt.NDArray[np.intp]] | None = None,
) -> tuple[Parts, Worklist]:
    """Take a step apart: kernels and collectives timed one by one.

    model, cluster, plan   as `training.predict` takes them
    calibration            efficiencies of kernels and links; its run parameters are not used
    layers                 what `layer_parts` found for plans with these layers, and for every plan
                           the index of its own among them; found here if None

    Operators are timed once per distinct set of the fields on which they depend
    (`plan.LAYER_FIELDS`). Returns the parts and the list of operators behind them.
    """
    shape = plan.shape
    accelerator = cluster.accelerator
    if layers is None:
        base, index = distinct(plan, cluster.varying)
        _, first = np.unique(index, return_index=True)
        layers = layer_parts(model, clusters_at(cluster, shape, first), base, calibration), index
    own, index = layers

    at = stages(model, plan)
    ranks = groups(plan)
    full = (3, *shape)
    between = {
        Slot("pp", c.op, c.phase, c.phase if c.behind else ""): exchange(
            c, ranks, 0.0, shape, cluster, calibration
        )
        for c in pipeline_collectives(model, plan)
    }
    parameters = stage_parameters(model, plan, at)
    dense, experts = parameters.dense, parameters.expert
    gradients: dict[tuple[Slot, int], Exchange] = {}
    for number, c in enumerate(
        gradient_collectives(
            plan, dense, experts, plan.pipeline.copies * at.layers, parameters.tied
        )
    ):
        slot = Slot("dp", c.op, "update", c.behind)
        # All groups reduce at once: the network carries the whole job.
        everyone = Group(plan.gpus, 1.0)
        gradients[(slot, number)] = exchange(c, ranks, 0.0, full, cluster, calibration, everyone)
    sharding = SHARDINGS[plan.sharding]
    updated = dense.trained + experts.trained
    if sharding.optimizer:
        updated = dense.trained / plan.shard_group + experts.trained / plan.expert_shard_group
    updates = update_operators(plan, updated)
    update = operator_times(updates, accelerator, calibration, full)
    update_time, update_sigma = update.time.sum(axis=0), update.sigma
    if np.any(np.asarray(plan.offload_optimizer) > 0):
        update_time = offload.update_time(plan, accelerator, np.asarray(updated), update_time)
        update_sigma = np.maximum(update_sigma, offload.SIGMA)
    present = at.count > 0

    def whole(value: Numeric) -> Array:
        return np.broadcast_to(np.asarray(value, float), shape)

    found = Parts(
        at=at,
        index=index,
        m=whole(plan.micro_batches),
        vpp=whole(plan.vpp),
        gpus=whole(plan.gpus),
        modules=blocks(model, plan, at),
        mean_layer={
            "layer": np.ones(()),
            "dense": np.asarray(model.dense_share),
            "moe": np.asarray(model.moe_share),
        },
        work=own.work,
        weights=own.weights,
        families=own.families,
        launches=own.launches,
        kernels=own.kernels,
        hops=own.hops,
        inside=own.inside,
        between=between,
        gradients=gradients,
        offload=_copies(model, plan, at, accelerator),
        sigmas=own.sigmas,
        update=np.where(present, update_time, 0.0),
        update_sigma=np.max(np.where(present, update_sigma, 0.0), axis=(0, 1)),
        repeats=whole(plan.micro_batches if sharding.per_micro_batch else 1.0),
        host=whole(1.0 if accelerator.is_host else 0.0),
        loading=whole(np.nan_to_num(plan.global_batch * plan.seq_len / plan.dp / plan.loader_rate)),
        schedule=plan.schedule,
    )
    return found, own.listed


def stack(many: list[Parts]) -> Parts:
    """Parts of single plans as one batch: what a plan does not have takes no time in it.

    many   each of one plan (shape ()), of any model, machine and category

    Raises InputError where their schedules differ.
    """
    schedules = sorted({one.schedule for one in many})
    if len(schedules) > 1:
        raise InputError(f"plans of one schedule make a batch, not of {', '.join(schedules)}")

    def join(values: list[Array]) -> Array:
        return np.stack(values, axis=-1)

    def table(name: str, shape: tuple[int, ...]) -> dict[Any, Array]:
        keys = {key: None for one in many for key in getattr(one, name)}
        none = np.zeros(shape)
        return {key: join([getattr(one, name).get(key, none) for one in many]) for key in keys}

    def exchanges(name: str, shape: tuple[int, ...]) -> dict[Any, Exchange]:
        keys = {key: None for one in many for key in getattr(one, name)}
        zero, unit = np.zeros(shape), np.ones(shape)
        nothing = Exchange(zero, zero, zero, unit, zero)
        return {
            key: Exchange(
                *(
                    join([getattr(getattr(one, name).get(key, nothing), part.name) for one in many])
                    for part in fields(Exchange)
                )
            )
            for key in keys
        }

    def plain(name: str) -> Array:
        return join([getattr(one, name) for one in many])

    return Parts(
        at=Stages(*(join([getattr(one.at, part.name) for one in many]) for part in fields(Stages))),
        index=np.arange(len(many)),
        modules=table("modules", (3,)),
        mean_layer=table("mean_layer", ()),
        work=table("work", ()),
        weights=table("weights", ()),
        families=table("families", ()),
        launches=table("launches", ()),
        kernels=table("kernels", ()),
        hops=table("hops", ()),
        inside=exchanges("inside", ()),
        between=exchanges("between", ()),
        gradients=exchanges("gradients", (3,)),
        offload=exchanges("offload", (3,)),
        sigmas=table("sigmas", ()),
        schedule=many[0].schedule,
        **{name: plain(name) for name in SCALARS},
    )


SCALARS = ("m", "vpp", "gpus", "update", "update_sigma", "repeats", "host", "loading")
"""Fields of `Parts` that are one array each."""


def take(found: Parts, index: npt.NDArray[np.intp]) -> Parts:
    """Parts of some of the plans of a batch whose base is the batch itself (`stack`)."""

    def cut(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: cut(part) for key, part in value.items()}
        if isinstance(value, Exchange | Stages):
            return type(value)(*(cut(getattr(value, part.name)) for part in fields(value)))
        return value[..., index] if isinstance(value, np.ndarray) else value

    pieces = {part.name: cut(getattr(found, part.name)) for part in fields(Parts)}
    return Parts(**{**pieces, "index": np.arange(len(index))})

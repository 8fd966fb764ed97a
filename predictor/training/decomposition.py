"""The parts of a training step: what every piece takes by itself, before anything overlaps.

Nothing here depends on the parameters of a run (`timing.RunParameters`), so that these can be
fitted to many runs without timing a kernel twice. `step.assemble` puts the parts together.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from predictor import arrays
from predictor.arrays import Array, Numeric
from predictor.errors import InputError
from predictor.hardware import Cluster
from predictor.models import Model
from predictor.plans import TrainingPlan
from predictor.records import dataclass
from predictor.timing import Calibration
from predictor.training.frame import Frame, frame
from predictor.training.layer import (
    LayerParts,
    LayerTimes,
    Worklist,
    layers_of,
)

COMPUTE_TERMS = ("forward", "backward", "recompute")
EXCHANGE_TERMS = ("tp_communication", "cp_communication", "ep_communication")
"""Terms of a step that are a pass: what is computed, and what ranks exchange meanwhile."""


@dataclass(frozen=True, eq=False)
class Parts(Frame, LayerTimes):
    """A step in pieces, of one plan or of a batch. Stage arrays have shape (3, *batch).

    at          stages
    index       position of every plan among those with distinct layers (base)
    modules     units of each module of the work list on a stage, (3, *batch) (`blocks.blocks`)
    mean_layer  units of each in the mean layer
    m, fills    micro-batches of a step; how often pipelines fill and run empty meanwhile
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
    flat        seconds in which sharded weights and gradients are copied from and to what travels,
                and gradients added up by themselves, (3, *batch)
    sigmas      of the families: of their operators, by time
    update      seconds of the optimizer, (3, *batch); update_sigma is the spread of the log
    repeats     how often the data-parallel collectives repeat in a step
    host        whether the accelerator is the host itself
    taken       share of the processors that a collective between replicas takes
    loading     seconds in which a rank's tokens of a step are loaded
    attention_cv, attention_skew   of the attention of a micro-batch
    replicas    of pipelines
    """

    index: npt.NDArray[np.intp]
    mean_layer: dict[str, Array]
    schedule: str

    def spread(self, value: Array) -> Array:
        """An array of base shape for every plan of the batch."""
        found = np.asarray(value)
        return found.take(self.index, axis=-1) if self.index.ndim else found

    def gathered(self, value: Numeric) -> Numeric:
        """What plans with the same layers have alike, in base shape."""
        if not np.ndim(value) or not self.index.ndim:
            return value
        found: Array = np.ones(self.launches["layer"].shape)
        found[self.index] = value
        return found


def parts(
    model: Model,
    cluster: Cluster,
    plan: TrainingPlan,
    calibration: Calibration,
    layers: tuple[LayerParts, npt.NDArray[np.intp]] | None = None,
    around: Frame | None = None,
) -> tuple[Parts, Worklist]:
    """Take a step apart: kernels and collectives timed one by one.

    model, cluster, plan   as `training.predict` takes them
    calibration            efficiencies of kernels and links; its run parameters are not used
    layers                 what `layers_of` found for plans with these layers, and for every plan
                           the index of its own among them; found here if None
    around                 what `frame` found for these plans; found here if None

    Operators are timed once per distinct set of the fields on which they depend
    (`plan.LAYER_FIELDS`). Returns the parts and the list of operators behind them.
    """
    own, index = layers_of(model, cluster, plan, calibration) if layers is None else layers
    around = frame(model, cluster, plan, calibration) if around is None else around
    return joined(model, own.times, index, around, plan.schedule), own.listed


def joined(
    model: Model,
    times: LayerTimes,
    index: npt.NDArray[np.intp],
    around: Frame,
    schedule: str,
) -> Parts:
    """Parts of plans of one schedule.

    times    of their distinct layers; index says which of them each plan has
    around   what lies around the layers of each
    """
    mean = {
        "layer": np.ones(()),
        "dense": np.asarray(model.dense_share),
        "moe": np.asarray(model.moe_share),
    }
    layers = {part.name: getattr(times, part.name) for part in fields(LayerTimes)}
    rest = {part.name: getattr(around, part.name) for part in fields(Frame)}
    return Parts(index=index, mean_layer=mean, schedule=schedule, **layers, **rest)


def stack(many: list[Parts]) -> Parts:
    """Parts of single plans as one batch: what a plan does not have takes no time in it.

    many   each of one plan (shape ()), of any model, machine and category

    Raises InputError where their schedules differ.
    """
    schedules = sorted({one.schedule for one in many})
    if len(schedules) > 1:
        raise InputError(f"plans of one schedule make a batch, not of {', '.join(schedules)}")

    return replace(arrays.stack(many), index=np.arange(len(many)))


def singles(found: Parts) -> list[Parts]:
    """Parts of each plan of a batch by itself, of shape ()."""
    return [
        replace(
            found,
            index=np.zeros((), int),
            **_of_one(found, Frame, plan),
            **_of_one(found, LayerTimes, layers),
        )
        for plan, layers in enumerate(found.index.tolist())
    ]


def _of_one(found: Parts, kind: type[Frame] | type[LayerTimes], at: int) -> dict[str, Any]:
    """What of parts is of this kind, of the one at a position."""

    def of(value: Any) -> Any:
        return value[..., at] if getattr(value, "ndim", 0) else value

    names = [one.name for one in fields(kind)]
    alone = arrays.mapped(kind(**{name: getattr(found, name) for name in names}), of)
    return {name: getattr(alone, name) for name in names}


def take(found: Parts, index: npt.NDArray[np.intp]) -> Parts:
    """Parts of some of the plans of a batch whose base is the batch itself (`stack`)."""
    return replace(arrays.take(found, index), index=np.arange(len(index)))

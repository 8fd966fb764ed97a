"""Batches of plans together: kernels of all that run on one accelerator are timed in one go, which
spares most of what many small batches take.
"""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Iterator, Sequence

from predictor.arrays import identity, varying
from predictor.errors import InputError
from predictor.hardware import Cluster
from predictor.models import Model
from predictor.plans import Batch, TrainingPlan
from predictor.timing import Calibration, training_times_together
from predictor.training.layer import (
    Layers,
    distinct_layers,
    kernels_listed,
    layer_kernels,
    layer_parts,
)
from predictor.training.prediction import TrainingPrediction, predict
from predictor.work import Operator, step_operators


def layers_together(
    asked: Sequence[tuple[Model, Cluster, TrainingPlan]], calibration: Calibration
) -> list[Layers | None]:
    """`layers_of` of batches of plans on one accelerator, to the last bit, with kernels that are
    timed together; None for models that cannot be trained.

    asked   models, clusters of the same accelerator, and plans, each an array of them

    Raises InputError for data types that the accelerator lacks.
    """
    listed: dict[int, Sequence[Operator]] = {}
    told = [distinct_layers(cluster, plan) for _, cluster, plan in asked]
    for number, (model, _, _) in enumerate(asked):
        with contextlib.suppress(InputError):
            listed[number] = step_operators(model, told[number][1])
    lists = [
        kernels_listed(operators, told[number][1], asked[number][1].accelerator)
        for number, operators in listed.items()
    ]
    timings = training_times_together(lists, asked[0][1].accelerator, calibration)
    found: list[Layers | None] = [None] * len(asked)
    for (number, operators), timing in zip(listed.items(), timings, strict=True):
        machines, base, index = told[number]
        on = asked[number][0], machines, base, calibration
        known = layer_kernels(*on, timing, operators)
        found[number] = layer_parts(*on, known=known), index
    return found


def predict_batches(
    asked: Sequence[Batch[TrainingPlan]], calibration: Calibration
) -> Iterator[TrainingPrediction | InputError]:
    """Predict batches of plans in their order, each as `predict` does by itself, to the last bit;
    the error of one that cannot be stands in its place.

    Kernels of all batches on one accelerator are timed together.
    """
    machines: dict[Hashable, list[int]] = {}
    for number, one in enumerate(asked):
        if not varying(one.cluster):
            machines.setdefault(identity(one.cluster.accelerator), []).append(number)
    layers: dict[int, Layers | None] = {}
    for numbers in machines.values():
        own = [(asked[n].model, asked[n].cluster, asked[n].plan) for n in numbers]
        # Where any cannot be timed, each is asked by itself.
        with contextlib.suppress(InputError):
            layers |= zip(numbers, layers_together(own, calibration), strict=True)
    for number, one in enumerate(asked):
        try:
            yield predict(one.model, one.cluster, one.plan, calibration, layers.pop(number, None))
        except InputError as error:
            yield error

"""`predict_train`: requests in, predictions out, many at once through one evaluation."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar, overload

from predictor import catalog
from predictor.catalog import TrainingPlanSpec, load, parse
from predictor.errors import InputError
from predictor.hardware import Cluster
from predictor.models import Model
from predictor.plans import TrainingPlan, batches, check, check_shapes
from predictor.power import Conditions
from predictor.records import dataclass
from predictor.timing import Calibration
from predictor.training import (
    TrainingPrediction,
    TrainingRequest,
    complete_training,
    dealt_step,
    delayed,
    limited,
    pipeline_of,
    predict,
    step_power,
)
from reckon.verbs.naming import named
from reckon.verbs.pacing import paced
from reckon.verbs.powering import powered
from reckon.verbs.results import Prediction, Varied

Ref = str | Path | Mapping[str, Any]

DEFAULT_CALIBRATION = "default"

MOST_COMBINATIONS = 20_000
"""Comma lists may span this many combinations; larger spaces are for plan search."""


@overload
def predict_train(
    model: Ref | Model,
    cluster: Ref | Cluster,
    plan: Ref,
    calibration: str | Path | Calibration = DEFAULT_CALIBRATION,
) -> Prediction: ...


@overload
def predict_train(
    model: Ref | Model,
    cluster: Ref | Cluster,
    plan: TrainingPlan,
    calibration: str | Path | Calibration = DEFAULT_CALIBRATION,
) -> TrainingPrediction: ...


def predict_train(
    model: Ref | Model,
    cluster: Ref | Cluster,
    plan: Ref | TrainingPlan,
    calibration: str | Path | Calibration = DEFAULT_CALIBRATION,
) -> Prediction | TrainingPrediction:
    """Predict a training step.

    model        catalog name, HuggingFace config.json, YAML file, mapping or `Model`
    cluster      system name, YAML file, mapping or `Cluster`; keys of the plan that state something
                 of the system (`accelerator`, `inter_link_gbps`, ...) hold beside it
    plan         mapping or YAML file with the keys of a plan (what is left out is completed and
                 reported), or a `TrainingPlan`, whose numeric fields may be arrays
    calibration  name, folder or `Calibration`; 'none' for the uncalibrated roofline

    Returns a `Prediction`; for a `TrainingPlan`, the arrays of a `TrainingPrediction`.
    Raises InputError for anything that cannot be.
    """
    known = load(calibration)
    resolved_model = catalog.model(model)
    if isinstance(plan, TrainingPlan):
        check_shapes(plan)
        check(plan, resolved_model)
        return predict(resolved_model, catalog.system(cluster), plan, known)
    fields = catalog.keys_of(plan, "TrainingPlan") | named(model, cluster)
    spec = parse(TrainingPlanSpec, fields, "plan")
    resolved_cluster = catalog.stated_cluster(cluster, spec.to_dict())
    request = complete_training(spec, known.run, model=resolved_model, cluster=resolved_cluster)
    if request.uneven:
        return _unlike(request, known)
    return _single(request, known)


def _single(request: TrainingRequest, calibration: Calibration) -> Prediction:
    """Predict one request by itself."""
    conditions = request.conditions
    alone = predict(request.model, request.cluster, request.plan, calibration)
    found, under = powered(alone, conditions, step_power, limited)
    clocks = None
    if conditions.paced is not None:
        clocks = paced(pipeline_of(alone, conditions), conditions.paced, conditions.slack)
        found = delayed(found, clocks.later)
    varied = Varied.of(found, request.variation)
    return Prediction(request, found, varied=varied, powered=under, paced=clocks)


Q = TypeVar("Q")
R = TypeVar("R")


@dataclass(frozen=True, slots=True, eq=False)
class Sweep(Generic[R]):
    """Predictions of all combinations of comma lists, in the order of the lists.

    refused   combinations that cannot be: the fields that vary, and the reason
    varying   names of the fields that have more than one value
    stated    of each prediction, the values that were asked of them
    """

    predictions: list[R]
    refused: list[tuple[dict[str, Any], str]]
    varying: list[str]
    stated: list[dict[str, Any]]


def expand(fields: Mapping[str, Any]) -> tuple[list[dict[str, Any]], list[str]]:
    """All combinations of the fields' lists, and which fields vary."""
    varying = [name for name, value in fields.items() if isinstance(value, list)]
    for name in varying:
        if not fields[name]:
            raise InputError(f"{name}: the list is empty")
    combinations = 1
    for name in varying:
        combinations *= len(fields[name])
    if combinations > MOST_COMBINATIONS:
        raise InputError(
            f"{combinations} combinations are more than {MOST_COMBINATIONS}; give shorter lists"
        )
    fixed = {name: value for name, value in fields.items() if name not in varying}
    return [
        {**fixed, **dict(zip(varying, values, strict=True))}
        for values in itertools.product(*(fields[name] for name in varying))
    ], varying


def sweep(fields: Mapping[str, Any], calibration: Calibration, where: str) -> Sweep[Prediction]:
    """Predict every combination of the lists in `fields` (keys of `TrainingPlanSpec`).

    A combination that cannot be is listed with its reason; if none can be, InputError is raised.
    """
    combinations, varying = expand(fields)
    found = predict_each(combinations, calibration, where)
    return sorted_out(combinations, found, varying)


def sorted_out(
    combinations: list[dict[str, Any]], found: list[R | InputError], varying: list[str]
) -> Sweep[R]:
    """Results of combinations, and those that were refused with their reason.

    Raises InputError if all were.
    """
    asked = [{key: combination[key] for key in varying} for combination in combinations]
    pairs = list(zip(asked, found, strict=True))
    results = [one for one in found if not isinstance(one, InputError)]
    refused = [(values, one) for values, one in pairs if isinstance(one, InputError)]
    if not results and len(refused) == 1:
        raise refused[0][1]
    if not results:
        raise InputError(f"none of {len(refused)} combinations is possible: {refused[0][1]}")
    stated = [values for values, one in pairs if not isinstance(one, InputError)]
    return Sweep(results, [(values, str(error)) for values, error in refused], varying, stated)


def predict_each(
    combinations: list[dict[str, Any]], calibration: Calibration, where: str
) -> list[Prediction | InputError]:
    """Predict requests (keys of `TrainingPlanSpec`), in their order; the error of one that cannot
    be stands in its place."""
    requests: list[TrainingRequest | InputError] = []
    models: dict[str, Model] = {}
    for combination in combinations:
        spec = parse(TrainingPlanSpec, combination, where)
        try:
            name = str(spec.model)
            if spec.model is not None and name not in models:
                models[name] = catalog.model(spec.model)
            requests.append(complete_training(spec, calibration.run, model=models.get(name)))
        except InputError as error:
            requests.append(error)
    possible = [request for request in requests if not isinstance(request, InputError)]
    predicted = iter(in_place(possible, lambda own: _together(own, calibration)))
    return [one if isinstance(one, InputError) else next(predicted) for one in requests]


def in_place(requests: list[Q], together: Callable[[list[Q]], Sequence[Any]]) -> list[Any]:
    """What `together` finds of a list of requests; where it refuses the list, of its halves, so
    that the error of one that cannot be stands in its place and costs the others nothing."""
    try:
        return list(together(requests))
    except InputError as error:
        if len(requests) == 1:
            return [error]
    half = len(requests) // 2
    return in_place(requests[:half], together) + in_place(requests[half:], together)


class _Conditioned(Protocol):
    @property
    def conditions(self) -> Conditions: ...


def by_conditions(requests: Sequence[_Conditioned]) -> dict[Conditions, list[int]]:
    """Positions of requests by what they say of power."""
    found: dict[Conditions, list[int]] = {}
    for position, request in enumerate(requests):
        found.setdefault(request.conditions, []).append(position)
    return found


def _unlike(request: TrainingRequest, calibration: Calibration) -> Prediction:
    """Predict a request whose stages or replicas are unlike."""
    if request.conditions.paced is not None:
        raise InputError("clocks by stage are of one kind of stage, not of stages dealt unequally")
    found, dealt = dealt_step(request, calibration)
    return Prediction(request, found, dealt=dealt)


def _together(requests: list[TrainingRequest], calibration: Calibration) -> list[Prediction]:
    """Evaluate requests in batches."""
    found = {
        position: _unlike(request, calibration)
        for position, request in enumerate(requests)
        if request.uneven
    }
    for position, request in enumerate(requests):
        if position not in found and request.conditions.paced is not None:
            found[position] = _single(request, calibration)
    alike = [position for position in range(len(requests)) if position not in found]
    grouped = by_conditions([requests[position] for position in alike])
    for conditions, places in grouped.items():
        own = [alike[place] for place in places]
        for batch in batches([requests[position] for position in own]):
            predicted = predict(batch.model, batch.cluster, batch.plan, calibration)
            predicted, under = powered(predicted, conditions, step_power, limited)
            places = [own[position] for position in batch.positions]
            profiles = {requests[position].variation for position in places}
            varied = {one: Varied.of(predicted, one) for one in profiles}
            for index, position in enumerate(places):
                request = requests[position]
                found[position] = Prediction(
                    request, predicted, index, varied[request.variation], under
                )
    return [found[position] for position in range(len(requests))]

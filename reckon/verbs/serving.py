"""`predict_infer`: serving requests in, predictions out, many at once through one evaluation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from predictor import catalog
from predictor.catalog import ServingParameters, ServingPlanSpec, load, load_parameters, parse
from predictor.errors import InputError
from predictor.hardware import Cluster
from predictor.models import Model
from predictor.plans import SERVING_CATEGORIES, ServingPlan, stack_serving
from predictor.serving import (
    InferencePrediction,
    ServingRequest,
    complete_serving,
    predict_inference,
    predict_rate,
)
from predictor.timing import Calibration
from reckon.verbs.served import ServingResult
from reckon.verbs.simulating import one_by_one
from reckon.verbs.training import DEFAULT_CALIBRATION, Ref, Sweep, expand, sorted_out


def predict_infer(
    model: Ref | Model,
    cluster: Ref | Cluster,
    plan: Ref | ServingPlan,
    calibration: str | Path | Calibration = DEFAULT_CALIBRATION,
) -> ServingResult | InferencePrediction:
    """Predict how a model is served.

    model        catalog name, HuggingFace config.json, YAML file, mapping or `Model`
    cluster      system name, YAML file, mapping or `Cluster`
    plan         mapping or YAML file with the keys of a serving plan (what is left out is completed
                 and reported), or a `ServingPlan`, whose numeric fields may be arrays
    calibration  name, folder or `Calibration`; 'none' for the uncalibrated roofline

    Returns a `ServingResult`; for a `ServingPlan`, the arrays of an `InferencePrediction`.
    Raises InputError for anything that cannot be.
    """
    known = load(calibration)
    own = engine_parameters(calibration)
    resolved_model, resolved_cluster = catalog.model(model), catalog.system(cluster)
    if isinstance(plan, ServingPlan):
        return predict_inference(resolved_model, resolved_cluster, plan, known, own)
    fields = dict(plan) if isinstance(plan, Mapping) else catalog.read_mapping(Path(plan))
    spec = parse(ServingPlanSpec, fields, "plan")
    request = complete_serving(spec, known.run, model=resolved_model, cluster=resolved_cluster)
    return predicted(request, known, own)


def predicted(
    request: ServingRequest, calibration: Calibration, parameters: ServingParameters
) -> ServingResult:
    """Predict one request: by closed forms, and request by request where that is asked for."""
    model, cluster, plan = request.model, request.cluster, request.plan
    most, saturated = None, False
    if request.rate is not None:
        found = predict_rate(model, cluster, plan, request.rate, calibration, parameters)
        batch, most, saturated = found.prediction, found.most_requests_per_s, found.saturated
    else:
        batch = predict_inference(model, cluster, plan, calibration, parameters)
    served = None
    if request.simulate:
        clients = float(plan.batch) / float(plan.dp)
        served = one_by_one(
            model,
            cluster,
            plan,
            calibration,
            parameters,
            request.simulate,
            request.variation,
            request.rate,
            max(int(clients), 1) if math.isfinite(clients) else request.simulate,
        )
    return ServingResult(request, batch, None, served, most, saturated)


def engine_parameters(calibration: str | Path | Calibration) -> ServingParameters:
    """Parameters of engines that go with a calibration."""
    return load_parameters(
        calibration.name if isinstance(calibration, Calibration) else str(calibration)
    )


ServingSweep = Sweep[ServingResult]
"""Predictions of all combinations of comma lists."""


def sweep_serving(
    fields: Mapping[str, Any], calibration: Calibration, parameters: ServingParameters, where: str
) -> ServingSweep:
    """Predict every combination of the lists in `fields` (keys of `ServingPlanSpec`).

    A combination that cannot be is listed with its reason; if none can be, InputError is raised.
    """
    combinations, varying = expand(fields)
    found = predict_each_serving(combinations, calibration, parameters, where)
    predictions, refused = sorted_out(combinations, found, varying)
    return Sweep(predictions, refused, varying)


def predict_each_serving(
    combinations: list[dict[str, Any]],
    calibration: Calibration,
    parameters: ServingParameters,
    where: str,
) -> list[ServingResult | InputError]:
    """Predict requests (keys of `ServingPlanSpec`), in their order; the error of one that cannot
    be stands in its place."""
    requests: list[ServingRequest | InputError] = []
    for combination in combinations:
        spec = parse(ServingPlanSpec, combination, where)
        try:
            requests.append(complete_serving(spec, calibration.run))
        except InputError as error:
            requests.append(error)
    possible = [request for request in requests if not isinstance(request, InputError)]
    predicted = iter(_together(possible, calibration, parameters))
    return [one if isinstance(one, InputError) else next(predicted) for one in requests]


def _together(
    requests: list[ServingRequest], calibration: Calibration, parameters: ServingParameters
) -> list[ServingResult]:
    """Evaluate requests of one model, cluster, engine and category as one batch each."""
    found: dict[int, ServingResult] = {}
    groups: dict[tuple[Any, ...], list[int]] = {}
    for position, request in enumerate(requests):
        if len(requests) == 1 or request.rate is not None or request.simulate:
            found[position] = predicted(request, calibration, parameters)
            continue
        key = (
            request.model,
            request.cluster.name,
            request.cluster.accelerator.name,
            *(getattr(request.plan, name) for name in SERVING_CATEGORIES),
        )
        groups.setdefault(key, []).append(position)
    for positions in groups.values():
        members = [requests[position] for position in positions]
        first = members[0]
        plan = first.plan if len(members) == 1 else stack_serving([m.plan for m in members])
        batch = predict_inference(first.model, first.cluster, plan, calibration, parameters)
        for index, (position, member) in enumerate(zip(positions, members, strict=True)):
            found[position] = ServingResult(member, batch, index if len(members) > 1 else None)
    return [found[position] for position in range(len(requests))]

"""`predict_infer`: serving requests in, predictions out, many at once through one evaluation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, overload

from predictor import catalog
from predictor.catalog import ServingPlanSpec, load, parse
from predictor.errors import InputError
from predictor.hardware import Cluster
from predictor.models import Model
from predictor.plans import ServingPlan, batches, check_shapes, enforce, serving_rules
from predictor.serving import (
    EXACT_STEPS,
    STEPS_LISTED,
    AtRate,
    FleetServed,
    InferencePrediction,
    Served,
    ServingRequest,
    complete_serving,
    followed,
    held_engines,
    limited,
    mixture,
    one_by_one,
    predict_inference,
    predict_rate,
    served_instead,
    serving_power,
    unchecked,
    with_fleet,
)
from predictor.timing import Calibration
from reckon.verbs.naming import named
from reckon.verbs.powering import powered
from reckon.verbs.served import Instead, ServingResult
from reckon.verbs.training import (
    DEFAULT_CALIBRATION,
    Ref,
    Sweep,
    by_conditions,
    expand,
    in_place,
    sorted_out,
)

TOGETHER = 128
"""Requests of one batch: each may list `EXACT_STEPS` decode passes."""


@overload
def predict_infer(
    model: Ref | Model,
    cluster: Ref | Cluster,
    plan: Ref,
    calibration: str | Path | Calibration = DEFAULT_CALIBRATION,
) -> ServingResult: ...


@overload
def predict_infer(
    model: Ref | Model,
    cluster: Ref | Cluster,
    plan: ServingPlan,
    calibration: str | Path | Calibration = DEFAULT_CALIBRATION,
) -> InferencePrediction: ...


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
    resolved_model = catalog.model(model)
    if isinstance(plan, ServingPlan):
        check_shapes(plan)
        resolved_cluster = catalog.system(cluster)
        vendor = resolved_cluster.accelerator.vendor
        enforce(serving_rules(plan, resolved_model, vendor), plan)
        single = EXACT_STEPS if plan.shape == () else STEPS_LISTED
        return predict_inference(resolved_model, resolved_cluster, plan, known, single)
    fields = catalog.keys_of(plan, "ServingPlan") | named(model, cluster)
    spec = parse(ServingPlanSpec, fields, "plan")
    resolved_cluster = catalog.stated_cluster(cluster, spec.to_dict())
    loaded: dict[str, Any] = {"model": resolved_model, "cluster": resolved_cluster}
    request = complete_serving(spec, known.run, **loaded)
    return _in_doubt(predicted(request, known), spec, known, **loaded)


def _in_doubt(
    result: ServingResult, spec: ServingPlanSpec, calibration: Calibration, **loaded: Any
) -> ServingResult:
    """A prediction with that of all releases which its engine may be, where that is asked for."""
    if spec.in_doubt != "release":
        return result
    return replace(result, mixture=mixture(spec, calibration, **loaded))


def predicted(request: ServingRequest, calibration: Calibration) -> ServingResult:
    """Predict one request: by closed forms, of one of its replicas, or request by request where
    these are not checked; and request by request where that is asked for."""
    model, cluster, plan = request.model, request.cluster, request.plan
    calibration = request.sure(calibration)
    most, saturated, instead, found = None, False, None, None
    replicas = request.around.fleet.replicas  # closed forms are of one of them
    if request.rate is not None:
        found = predict_rate(
            model,
            cluster,
            plan,
            request.rate / replicas,
            calibration,
            variation=request.variation,
            slowed=lambda one: powered(one, request.conditions, serving_power, limited)[0],
        )
        batch, most, saturated = found.prediction, found.most_requests_per_s, found.saturated
    else:
        one = replace(plan, batch=plan.batch / replicas) if replicas > 1 else plan
        batch = predict_inference(model, cluster, one, calibration, EXACT_STEPS)
    free = batch
    batch, under = powered(free, request.conditions, serving_power, limited)
    passes = held_engines(free, batch, calibration)
    if found is not None:
        batch, instead = _where_unchecked(request, replace(found, prediction=batch), passes)
    served, fleet = _served(request, passes) if request.simulate else (None, None)
    return ServingResult(
        request=request,
        batch=batch,
        served=served,
        most=most,
        saturated=saturated,
        fleet=fleet,
        powered=under,
        instead=instead,
    )


def _where_unchecked(
    request: ServingRequest, closed: AtRate, calibration: Calibration
) -> tuple[InferencePrediction, Instead | None]:
    """What is said of a rate, and why requests one by one say it where closed forms are not
    checked. Those answer still for what no engine serves to its end: more than it carries, more
    than there is room for, and what is around an engine, which is served one by one beside it."""
    fits = float(closed.prediction.memory.shortfall) <= 0
    if request.rate is None or closed.saturated or not (fits and request.around.plain):
        return closed.prediction, None
    client, plan = request.around.client, request.plan
    tpot = float(closed.prediction.latencies.tpot)
    meet = float(closed.prediction.work.meeting) > 1
    why = unchecked(plan, client, request.rate, closed.most_requests_per_s, tpot, meet)
    if not why:
        return closed.prediction, None
    found, served = served_instead(
        model=request.model,
        cluster=request.cluster,
        plan=plan,
        calibration=calibration,
        client=client,
        rate=request.rate,
        closed=closed,
    )
    return found.prediction, Instead(len(served.arrival), why)


def _served(request: ServingRequest, calibration: Calibration) -> tuple[Served, FleetServed | None]:
    """Requests one by one, and their fleet where there is one."""
    plan, around = request.plan, request.around
    clients = float(plan.batch) / float(plan.dp)
    each = max(int(clients), 1) if math.isfinite(clients) else request.simulate
    load: dict[str, Any] = {
        "model": request.model,
        "cluster": request.cluster,
        "plan": plan,
        "calibration": calibration,
        "requests": request.simulate,
        "rate": request.rate,
        "clients": each,
    }
    fleet = None
    if around.plain:
        load["requests"] = followed(request.model, plan, request.simulate, each)
        served = one_by_one(**load, client=around.client)
    else:
        fleet = with_fleet(**load, around=around)
        served = fleet.served
    return served.after(around.client.warmup), fleet


ServingSweep = Sweep[ServingResult]
"""Predictions of all combinations of comma lists."""


def sweep_serving(fields: Mapping[str, Any], calibration: Calibration, where: str) -> ServingSweep:
    """Predict every combination of the lists in `fields` (keys of `ServingPlanSpec`).

    A combination that cannot be is listed with its reason; if none can be, InputError is raised.
    """
    combinations, varying = expand(fields)
    if len(combinations) == 1:  # its operators are listed, too
        (request,) = _requests(combinations, calibration, where)
        spec = parse(ServingPlanSpec, combinations[0], where)
        found = [
            request
            if isinstance(request, InputError)
            else _in_doubt(predicted(request, calibration), spec, calibration)
        ]
    else:
        found = predict_each_serving(combinations, calibration, where)
    return sorted_out(combinations, found, varying)


def predict_each_serving(
    combinations: list[dict[str, Any]],
    calibration: Calibration,
    where: str,
) -> list[ServingResult | InputError]:
    """Predict requests (keys of `ServingPlanSpec`), in their order; the error of one that cannot
    be stands in its place."""
    requests = _requests(combinations, calibration, where)
    possible = [request for request in requests if not isinstance(request, InputError)]
    predicted = iter(in_place(possible, lambda own: _together(own, calibration)))
    return [one if isinstance(one, InputError) else next(predicted) for one in requests]


def _requests(
    combinations: list[dict[str, Any]], calibration: Calibration, where: str
) -> list[ServingRequest | InputError]:
    """Complete requests, or why there is none."""
    requests: list[ServingRequest | InputError] = []
    for combination in combinations:
        spec = parse(ServingPlanSpec, combination, where)
        try:
            requests.append(complete_serving(spec, calibration.run))
        except InputError as error:
            requests.append(error)
    return requests


def _has_readers(request: ServingRequest) -> bool:
    """Whether a request has engines that read prompts and nothing else."""
    return float(request.plan.prefill_workers) > 0


def _together(requests: list[ServingRequest], calibration: Calibration) -> list[ServingResult]:
    """Evaluate requests in batches, those at a rate of arrivals and one by one each for itself."""
    alone = [bool(request.rate is not None or request.simulate) for request in requests]
    found = {
        position: predicted(request, calibration)
        for position, request in enumerate(requests)
        if alone[position]
    }
    rest = [position for position, single in enumerate(alone) if not single]
    # Power of prompts that are read apart is told by itself.
    traits = {p: (_has_readers(requests[p]), requests[p].guessed) for p in rest}
    kinds = [[p for p in rest if traits[p] == kind] for kind in product((False, True), repeat=2)]
    grouped = [
        (conditions, [kind[place] for place in own])
        for kind in kinds
        for conditions, own in by_conditions([requests[p] for p in kind]).items()
    ]
    for conditions, chosen in grouped:
        for batch in batches([requests[position] for position in chosen], most=TOGETHER):
            known = requests[chosen[0]].sure(calibration)
            together = predict_inference(batch.model, batch.cluster, batch.plan, known, EXACT_STEPS)
            together, under = powered(together, conditions, serving_power, limited)
            for index, place in enumerate(batch.positions):
                position = chosen[place]
                found[position] = ServingResult(requests[position], together, index, powered=under)
    return [found[position] for position in range(len(requests))]

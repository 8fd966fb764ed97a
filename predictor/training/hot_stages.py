"""Pipelines whose stages sit where a node is hot, and are given fewer layers there.

In air the rear accelerators of a node take what the front ones have warmed, leak more and, under a
limit of power or heat, run slower (`predictor.power.heat`). Where a pipeline has several stages in
a node, those behind hold the others up; CharLLM (arXiv 2509.10371) deals them fewer layers.
"""

from __future__ import annotations

import numpy as np

from predictor.arrays import Array
from predictor.catalog import power_setting
from predictor.errors import InputError
from predictor.plans import TrainingPlan
from predictor.power import Conditions, Powered, unlimited
from predictor.timing import Calibration
from predictor.training.completion import TrainingRequest
from predictor.training.dealt import Dealt
from predictor.training.decomposition import COMPUTE_TERMS
from predictor.training.power import step_power
from predictor.training.prediction import TrainingPrediction, predict
from predictor.training.unlike_stages import by_stage
from predictor.variation import SILENT


def by_heat(request: TrainingRequest, calibration: Calibration) -> tuple[TrainingPrediction, Dealt]:
    """Predict a plan whose layers are dealt by how fast each stage runs where it sits.

    Clocks are those of equal work: what a layer more or less changes of the heat is left out.

    Raises InputError for one stage, for what it would leave out, and as `by_stage` and `step_power`
    do.
    """
    plan, cluster = request.plan, request.cluster
    _enforce(request)
    if float(plan.pp) == 1:
        raise InputError("split heat deals layers to stages; state --pp of at least 2")
    alone = predict(request.model, cluster, plan, calibration)
    under = step_power(alone, request.conditions)
    place = _paces(alone, under)
    rows = stage_rows(plan, cluster.accelerators_per_node, len(place))
    slower = [float(np.max(place[sorted(own)])) for own in rows]
    kinds = ((cluster, int(plan.pp)),)
    return by_stage(request.model, kinds, plan, calibration, request.seen, slower=slower)


def _enforce(request: TrainingRequest) -> None:
    """Refuse what a step of unlike stages does not tell."""
    plan, tariff = request.plan, request.conditions.tariff
    asked = {
        "first_layers": not np.isnan(plan.first_layers),
        "last_layers": not np.isnan(plan.last_layers),
        "variation": request.variation != SILENT,
        "faults": bool(request.faults),
        "price_per_kwh": tariff.price is not None,
        "carbon_intensity": tariff.carbon is not None,
    }
    for name, is_so in asked.items():
        if is_so:
            raise InputError(f"{name} cannot be with split heat; leave one of them out")


def _paces(found: TrainingPrediction, under: Powered) -> Array:
    """How much longer forward and backward passes take at each position of a node than they were
    predicted, (rows,); front first."""
    usual = unlimited(
        under.work, *power_setting(found.cluster, Conditions(), found.calibration.power)
    )
    before = {name: _time(under, name) for name in COMPUTE_TERMS}
    whole = sum(before.values())
    each = [before[name] * under.each[name].reshape(-1) / float(usual[name]) for name in before]
    return np.asarray(sum(each) / whole)


def _time(under: Powered, phase: str) -> float:
    """Of a phase at the reference clock [s]."""
    own = [work.time for name, work in under.work.items() if name.partition(".")[0] == phase]
    return float(sum(np.max(np.asarray(time, float)) for time in own))


def stage_rows(plan: TrainingPlan, per_node: int, rows: int) -> list[set[int]]:
    """Rows of a node, front first, in which the accelerators of each stage are."""
    sizes = {name: int(getattr(plan, name)) for name in ("tp", "cp", "dp", "pp")}
    rank = np.arange(int(np.prod(list(sizes.values()))))
    stage, inside = np.zeros_like(rank), rank
    for name in plan.rank_order.split("-"):
        inside, own = inside // sizes[name], inside % sizes[name]
        if name == "pp":
            stage = own
    at = rank % per_node * rows // per_node
    return [set(np.unique(at[stage == one]).tolist()) for one in range(sizes["pp"])]

"""Co-optimisation of a machine's budget: the area shares, stacks, power that serve a workload best.

Differential evolution (Storn and Price 1997, as in SciPy), whole generations as arrays; machines
that cannot be made, and plans that do not fit, lose.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from predictor import catalog
from predictor.arrays import Array, stack
from predictor.catalog import (
    Derived,
    ServingPlanSpec,
    TrainingPlanSpec,
    assumptions,
    budget,
    cost_assumptions,
    derive,
    load,
    load_parameters,
    machine_cost,
    parse,
)
from predictor.errors import InputError, unknown
from predictor.search import Limits, search_train
from predictor.serving import complete_serving
from predictor.training import complete_training
from reckon.explore.evaluate import serve_columns, train_columns
from reckon.explore.grid import Grid

OBJECTIVES = ("tokens_per_s", "tokens_per_usd", "tokens_per_joule")
WHOLE = ("technology.stacks", "technology.domain", "technology.dies")
GENERATIONS, POPULATION, SEED = 40, 12, 0


@dataclass(frozen=True, slots=True, eq=False)
class Optimum:
    """The best machine found.

    values   the fields that were free
    score    tokens per second, dollar or joule; and that of the machine as stated
    machine  what they make
    plan     the plan it was judged by
    tried    machines that were evaluated
    """

    values: dict[str, float]
    score: float
    before: float
    machine: Derived
    plan: Any
    tried: int


def optimise(grid: Grid) -> Optimum:
    """Find the best budget of a grid's technology (its key `optimise`: `over`, FIELD: [low, high];
    `objective`).

    Raises InputError for fields that cannot vary, bounds that are no range, and where no machine
    inside the bounds can be made and holds the model.
    """
    spec = grid.spec
    free, objective = _read(grid)
    technology = dict(spec.technology or {})
    known, prices = assumptions(spec.assumptions), cost_assumptions(spec.cost)
    calibration = load(spec.calibration)
    if not spec.launches:
        run = replace(calibration.run, host_per_kernel=0.0)
        calibration = replace(calibration, run=run)
    parameters = load_parameters(spec.calibration)
    model = catalog.model(spec.model)
    training = spec.workload == "training"
    tried = 0

    def plan_for(machine: Derived) -> Any:
        if not training:
            asked = parse(ServingPlanSpec, spec.plan, "plan")
            served = complete_serving(asked, calibration.run, model=model, cluster=machine.cluster)
            return served.plan
        if spec.plans == "best":
            found = search_train(model, machine.cluster, spec.plan, calibration, Limits(), keep=1)
            return found.plan(0)
        form = parse(TrainingPlanSpec, spec.plan, "plan")
        return complete_training(form, calibration.run, model=model, cluster=machine.cluster).plan

    def scores(machine: Derived, plan: Any) -> Array:
        columns = (
            train_columns(model, machine.cluster, plan, calibration)
            if training
            else serve_columns(model, machine.cluster, plan, calibration, parameters)
        )
        rate = columns["tokens_per_s" if training else "output_tokens_per_s"]
        if objective != "tokens_per_s":
            cost = machine_cost(machine, prices)
            per = cost.per_second if objective == "tokens_per_usd" else cost.watts
            rate = rate / np.asarray(plan.gpus) / per
        return np.where(machine.possible & columns["fits"].astype(bool), rate, 0.0)

    def made(values: Array) -> Derived:
        budgets = [
            budget({**technology, **dict(zip(names, each, strict=True))}, known)
            for each in np.atleast_2d(values.T)
        ]
        return derive(stack(budgets), known, strict=False)

    from scipy.optimize import differential_evolution

    names = [name.partition(".")[2] for name in free]
    stated = derive(budget(technology, known), known)
    plan = plan_for(stated)
    before = float(scores(stated, plan))

    def cost_of(values: Array) -> Array:
        nonlocal tried
        machines = made(values)
        tried += int(np.size(machines.possible))
        return np.asarray(-np.log(np.maximum(scores(machines, plan), 1e-30)))

    best: Any = None
    for _ in range(2 if spec.plans == "best" and training else 1):
        best = differential_evolution(
            cost_of,
            [tuple(bounds) for bounds in free.values()],
            vectorized=True,
            updating="deferred",
            maxiter=GENERATIONS,
            popsize=POPULATION,
            rng=SEED,
            polish=False,
            tol=1e-7,
            atol=1e-6,
            integrality=[name in WHOLE for name in free],
        )
        if best.fun > 60:
            raise InputError(
                "optimise: no machine inside the bounds can be made and holds the model"
            )
        chosen = dict(zip(names, (float(value) for value in best.x), strict=True))
        machine = derive(budget({**technology, **chosen}, known), known)
        plan = plan_for(machine)
    score = float(scores(machine, plan))
    values = dict(zip(free, chosen.values(), strict=True))
    return Optimum(values, score, before, machine, plan, tried)


def _read(grid: Grid) -> tuple[dict[str, tuple[float, float]], str]:
    content: Mapping[str, Any] = grid.spec.optimise
    if grid.spec.technology is None:
        raise InputError("optimise: needs a technology to start from")
    for key in content:
        if key not in ("over", "objective"):
            raise unknown("key of optimise", key, ("over", "objective"))
    objective = content.get("objective", OBJECTIVES[0])
    if objective not in OBJECTIVES:
        raise unknown("objective", objective, OBJECTIVES)
    over = content.get("over")
    if not isinstance(over, Mapping) or not over:
        raise InputError("optimise: over: needs FIELD: [low, high]")
    allowed = [
        f"technology.{name}"
        for name in (
            "area_mm2", "dies", "power_w", "stacks", "l2_share", "domain", "scale_up_gbs",
            "scale_out_gbs", "memory_bandwidth_gbs",
        )
    ]  # fmt: skip
    free = {}
    for name, bounds in over.items():
        if name not in allowed:
            raise unknown("field to optimise", name, allowed)
        try:
            low, high = (float(value) for value in bounds)
        except (TypeError, ValueError):
            low, high = 1.0, 0.0
        if not 0 < low < high:
            raise InputError(f"optimise: {name}: write [low, high], got {bounds!r}")
        free[name] = (low, high)
    return free, str(objective)

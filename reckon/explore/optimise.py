"""Co-optimisation of a machine's budget: the area shares, stacks, power that serve a workload best.

Differential evolution (Storn and Price 1997, as in SciPy), whole generations as arrays; machines
that cannot be made, and plans that do not fit, lose.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from predictor import catalog
from predictor.arrays import Array, stack
from predictor.catalog import (
    TrainingPlanSpec,
    assumptions,
    budget,
    cost_assumptions,
    load,
    machine,
    machine_cost,
    parse,
)
from predictor.errors import InputError, unknown
from predictor.hardware import Budget, DerivedMachine
from predictor.models import Model
from predictor.records import dataclass
from predictor.search import Limits, search_train
from predictor.timing import Calibration
from predictor.training import complete_training
from reckon.explore.evaluate import serve_columns, served, train_columns
from reckon.explore.grid import Grid, read_grid

OBJECTIVES = ("tokens_per_s", "tokens_per_usd", "tokens_per_joule")
WHOLE = ("technology.stacks", "technology.domain", "technology.dies")
GENERATIONS, POPULATION, SEED = 40, 12, 0
"""Of the search by differential evolution (Storn and Price 1997): candidates of a dimension."""


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
    machine: DerivedMachine
    plan: Any
    tried: int


@dataclass(frozen=True, slots=True, eq=False)
class Judge:
    """Judges machines made of a grid's technology by one workload."""

    grid: Grid
    objective: str
    model: Model
    calibration: Calibration
    known: Mapping[str, float]
    prices: Mapping[str, float]

    @property
    def training(self) -> bool:
        """Whether the workload is training, else serving."""
        return bool(self.grid.spec.workload == "training")

    def budget(self, chosen: Mapping[str, Any]) -> Budget:
        """The grid's technology with some fields chosen."""
        return budget({**(self.grid.spec.technology or {}), **chosen}, self.known)

    def made(self, budgets: Sequence[Budget]) -> DerivedMachine:
        """Machines of budgets as one; those that cannot be are marked."""
        return machine(stack(budgets), self.known, strict=False)

    def plan(self, made: DerivedMachine) -> Any:
        """The plan that a machine is judged by."""
        spec, run = self.grid.spec, self.calibration.run
        if not self.training:
            return served(spec.plan, run, self.model, made.cluster)
        if spec.plans == "best":
            found = search_train(
                self.model, made.cluster, spec.plan, self.calibration, Limits(), keep=1
            )
            return found.plan(0)
        form = parse(TrainingPlanSpec, spec.plan, "plan")
        return complete_training(form, run, model=self.model, cluster=made.cluster).plan

    def scores(self, made: DerivedMachine, plan: Any) -> Array:
        """Tokens per second, dollar or joule; zero where the machine or the plan cannot be."""
        if self.training:
            columns = train_columns(self.model, made.cluster, plan, self.calibration)
        else:
            columns = serve_columns(self.model, made.cluster, plan, self.calibration)
        rate = columns["tokens_per_s" if self.training else "output_tokens_per_s"]
        if self.objective != "tokens_per_s":
            cost = machine_cost(made, self.prices)
            per = cost.per_second if self.objective == "tokens_per_usd" else cost.watts
            rate = rate / np.asarray(plan.gpus) / per
        return np.where(made.possible & columns["fits"].astype(bool), rate, 0.0)


def _judge(grid: Grid, objective: str) -> Judge:
    spec = grid.spec
    calibration = load(spec.calibration)
    if not spec.launches:
        run = replace(calibration.run, host_per_kernel=0.0)
        calibration = replace(calibration, run=run)
    return Judge(
        grid=grid,
        objective=objective,
        model=catalog.model(spec.model),
        calibration=calibration,
        known=assumptions(spec.assumptions),
        prices=cost_assumptions(spec.cost),
    )


def optimise(ref: Grid | str | Path | Mapping[str, Any]) -> Optimum:
    """Find the best budget of a grid's technology (its key `optimise`: `over`, FIELD: [low, high];
    `objective`).

    ref   a grid, its YAML file or its mapping

    Raises InputError for fields that cannot vary, bounds that are no range, and where no machine
    inside the bounds can be made and holds the model.
    """
    grid = ref if isinstance(ref, Grid) else read_grid(ref)
    free, objective = _read(grid)
    judge = _judge(grid, objective)
    names = [name.partition(".")[2] for name in free]
    best = machine(judge.budget({}), judge.known)
    plan = judge.plan(best)
    before = float(judge.scores(best, plan))
    tried, chosen = 0, {}
    for _ in range(2 if grid.spec.plans == "best" and judge.training else 1):
        values, more = _evolve(judge, plan, dict(zip(names, free.values(), strict=True)))
        tried += more
        chosen = dict(zip(names, values, strict=True))
        best = machine(judge.budget(chosen), judge.known)
        plan = judge.plan(best)
    score = float(judge.scores(best, plan))
    return Optimum(
        values=dict(zip(free, chosen.values(), strict=True)),
        score=score,
        before=before,
        machine=best,
        plan=plan,
        tried=tried,
    )


def _evolve(
    judge: Judge, plan: Any, free: Mapping[str, tuple[float, float]]
) -> tuple[list[float], int]:
    """The best values of free fields under one plan, and how many machines were evaluated.

    Raises InputError where no machine inside the bounds can be made and holds the model.
    """
    from scipy.optimize import differential_evolution

    tried = 0

    def cost_of(values: Array) -> Array:
        nonlocal tried
        chosen = (dict(zip(free, each, strict=True)) for each in np.atleast_2d(values.T))
        machines = judge.made([judge.budget(each) for each in chosen])
        tried += int(np.size(machines.possible))
        return np.asarray(-np.log(np.maximum(judge.scores(machines, plan), 1e-30)))

    found = differential_evolution(
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
        integrality=[f"technology.{name}" in WHOLE for name in free],
    )
    if found.fun > 60:
        raise InputError("optimise: no machine inside the bounds can be made and holds the model")
    return [float(value) for value in found.x], tried


def _read(grid: Grid) -> tuple[dict[str, tuple[float, float]], str]:
    content: Mapping[str, Any] = grid.spec.optimise
    if grid.spec.technology is None:
        raise InputError("optimise: needs a technology to start from")
    if not content:
        raise InputError("optimise: state what may vary: {over: {FIELD: [low, high]}}")
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

"""What makes a newer machine faster: one change at a time from the first to the last, the factors
of which multiply to the whole."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from predictor import catalog
from predictor.catalog import TrainingPlanSpec, load, parse
from predictor.errors import InputError
from predictor.hardware import Cluster
from predictor.memory import MEMORY_FRACTION
from predictor.models import Model
from predictor.plans import TrainingPlan
from predictor.records import dataclass
from predictor.search import brief, search_train
from predictor.timing import Calibration
from predictor.training import complete_training, predict
from predictor.units import GIB
from reckon.explore.machines import changed
from reckon.views.page import Figure, Result, Series

FACTORS = (
    "compute",
    "precision",
    "memory bandwidth",
    "memory capacity",
    "scale-up network",
    "scale-out network",
)

STEP_KEYS = ("name", "factor", "system", "machine", "plan", "search")


@dataclass(frozen=True, slots=True, eq=False)
class Generation:
    """One machine on the way: its speed and the plan that it runs; memory and capacity in GiB,
    sigma the log-standard-deviation without what runs add beyond their kernels."""

    name: str
    factor: str
    tokens_per_s: float
    mfu: float
    sigma: float
    memory: float
    capacity: float
    plan: TrainingPlan


def run(parameters: Mapping[str, Any]) -> Result:
    """Predict a chain of machines.

    parameters   `model`, `plan` (of the first machine), `calibration`, `launches`, `steps`: each a
                 name, the factor that it belongs to (`FACTORS`; the first has none), and what
                 changes: `system`, `machine` (added to what was changed before), `plan`; `search`:
                 a plan is sought among these fields, as the memory allows; `tuned`: fields of a
                 search on the first and on the last machine alike
    """
    model = catalog.model(parameters["model"])
    calibration = load(parameters.get("calibration", "default"))
    if not parameters.get("launches", True):
        run_ = replace(calibration.run, host_per_kernel=0.0)
        calibration = replace(calibration, run=run_)
    steps, machines = [], []
    system, fields = None, dict(parameters["plan"])
    for number, content in enumerate(parameters["steps"]):
        wrong = set(content) - set(STEP_KEYS)
        if wrong:
            raise InputError(f"generations: unknown key {sorted(wrong)[0]!r} of a step")
        factor = content.get("factor", "")
        if number and factor not in FACTORS:
            raise InputError(f"generations: factor {factor!r} is not one of {', '.join(FACTORS)}")
        system = content.get("system", system)
        cluster = changed(system, content.get("machine", {}))
        fields |= content.get("plan", {})
        if "search" in content:
            fields = _searched(model, cluster, fields, content["search"], calibration)
        steps.append(_predicted(content["name"], factor, model, cluster, fields, calibration))
        machines.append(cluster)
    facts: dict[str, Any] = {}
    if "tuned" in parameters:
        ends = []
        for at in (0, -1):
            own = _searched(
                model,
                machines[at],
                {
                    **parameters["plan"],
                    **_batch(steps[at].plan),
                    "precision": steps[at].plan.precision,
                },
                parameters["tuned"],
                calibration,
            )
            ends.append(_predicted("", "", model, machines[at], own, calibration))
        facts["tuned"] = f"{ends[1].tokens_per_s / ends[0].tokens_per_s:.1f}"
        facts["tuned_first"] = brief(ends[0].plan)
    # Of what runs add beyond their kernels, half is taken to be shared by both ends: counted once.
    framework = steps[0].plan.framework
    shared = calibration.run.spread(model.is_moe, framework, untimed=model.untimed)
    spread = math.hypot(steps[0].sigma, steps[-1].sigma, shared)
    reach = calibration.interval_q * spread
    return _result(steps, parameters, facts, math.exp(reach))


def _batch(plan: TrainingPlan) -> dict[str, Any]:
    return {"global_batch": int(plan.global_batch)}


def _searched(
    model: Model,
    cluster: Cluster,
    fields: Mapping[str, Any],
    search: Mapping[str, Any],
    calibration: Calibration,
) -> dict[str, Any]:
    """Fields of the fastest plan that fits, of those that `search` leaves open."""
    kept = {name: value for name, value in fields.items() if name not in search}
    wanted = {name: value for name, value in search.items() if value != "any"}
    found = search_train(model, cluster, {**kept, **wanted}, calibration, keep=1)
    best = found.mapping(0)
    names = (*search, *kept)
    return {name: best.get(name, kept.get(name)) for name in names}


def _predicted(
    name: str,
    factor: str,
    model: Model,
    cluster: Cluster,
    fields: Mapping[str, Any],
    calibration: Calibration,
) -> Generation:
    spec = parse(TrainingPlanSpec, fields, "plan")
    plan = complete_training(spec, calibration.run, model=model, cluster=cluster).plan
    found = predict(model, cluster, plan, calibration)
    shared = calibration.run.spread(model.is_moe, plan.framework, untimed=model.untimed)
    capacity = float(cluster.accelerator.memory)
    peak = float(found.memory.peak)
    if peak > capacity:
        raise InputError(
            f"generations: {name}: {peak / GIB:.1f} GiB do not fit {capacity / GIB:.1f} GiB"
        )
    return Generation(
        name=name,
        factor=factor,
        tokens_per_s=float(found.tokens_per_s),
        mfu=float(found.utilisation("megatron")),
        sigma=math.sqrt(max(float(found.sigma) ** 2 - shared**2, 0.0)),
        memory=peak / GIB,
        capacity=capacity / GIB,
        plan=plan,
    )


def _figures(
    steps: list[Generation], table: pd.DataFrame, factors: pd.DataFrame, target: Mapping[str, Any]
) -> list[Figure]:
    labels = [step.name for step in steps]
    colour = {name: number for number, name in enumerate(FACTORS)}
    speed = [
        Series("predicted", labels, list(table["speedup"]), "line", text=list(table["plan"])),
        Series("published, A100 to B200", [labels[-1]], [target["value"]], "point", group=3),
    ]
    gains = {
        name: [
            (step.name, float(gain))
            for gain, step in zip(table["gain"], steps, strict=True)
            if step.factor == name
        ]
        for name in FACTORS
    }
    bars = [
        Series(
            name,
            [machine for machine, _ in own],
            [gain for _, gain in own],
            "bar",
            text=[f"{gain:.2f}" for _, gain in own],
            group=colour[name],
        )
        for name, own in gains.items()
    ]
    whole = [
        Series(
            "gain",
            list(factors["factor"]),
            list(factors["gain"]),
            "bar",
            text=[f"{g:.2f}x" for g in factors["gain"]],
        )
    ]
    source = f"Published: {target['source']}"
    total = table["speedup"].iloc[-1]
    return [
        Figure("Speed-up of the same training, change by change", "machine",
               "times the first machine", speed, log_y=True, source=source),
        Figure("What each change gains", "change", "times the machine before", bars, log_y=True,
               order=labels[1:]),
        Figure(f"By resource: the factors multiply to {total:.1f}", "resource", "times",
               whole, log_y=True),
    ]  # fmt: skip


def _result(
    steps: list[Generation], parameters: Mapping[str, Any], facts: dict[str, Any], reach: float
) -> Result:
    rate = np.array([step.tokens_per_s for step in steps])
    gains = np.concatenate([[1.0], rate[1:] / rate[:-1]])
    total = float(rate[-1] / rate[0])
    table = pd.DataFrame(
        {
            "machine": [step.name for step in steps],
            "factor": [step.factor for step in steps],
            "gain": gains,
            "speedup": rate / rate[0],
            "tokens_per_s": rate,
            "mfu": [step.mfu for step in steps],
            "memory_gib": [step.memory for step in steps],
            "capacity_gib": [step.capacity for step in steps],
            "plan": [
                f"{step.plan.precision}, batch {step.plan.global_batch:g}, {brief(step.plan)}"
                for step in steps
            ],
        }
    )
    factors = pd.DataFrame(
        {
            "factor": FACTORS,
            "gain": [
                float(
                    np.prod([g for g, step in zip(gains, steps, strict=True) if step.factor == f])
                )
                for f in FACTORS
            ],
        }
    )
    factors["share_of_log"] = np.log(factors["gain"]) / np.log(total)
    target = parameters["published"]
    facts |= {
        "total": f"{total:.1f}",
        "low": f"{total / reach:.0f}",
        "high": f"{total * reach:.0f}",
        "published": f"{target['value']:g}",
        "error": f"{100 * (total / target['value'] - 1):+.0f} %",
        "product": " x ".join(
            f"{gain:.2f} ({name})"
            for name, gain in factors[["factor", "gain"]].itertuples(index=False)
        ),
        "fraction": f"{100 * MEMORY_FRACTION:.0f} %",
    }
    figures = _figures(steps, table, factors, target)
    return Result(figures, {"Change by change": table, "By resource": factors}, facts)

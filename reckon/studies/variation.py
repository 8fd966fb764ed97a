"""What a run will do on machines that vary: scale, profiles, slow parts and where they sit, spares,
and jobs that share a network.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from predictor import catalog
from predictor.arrays import stack
from predictor.catalog import TrainingPlanSpec, load, parse
from predictor.timing import Calibration
from predictor.training import (
    Case,
    Reserve,
    TrainingPrediction,
    TrainingRequest,
    complete_training,
    losses,
    predict,
    served,
    vary,
)
from predictor.variation import LEVELS, faults, kept_of, profile, shared
from reckon.views.page import Figure, Result, Series

BINS = 60
"""Bars of a distribution of steps."""


def _requests(
    parameters: Mapping[str, Any], gpus: Sequence[int], calibration: Calibration
) -> list[TrainingRequest]:
    """The run on each number of accelerators, as many replicas of one layout as there is room for;
    a smaller one has fewer stages, then ranks."""
    model, cluster = catalog.model(parameters["model"]), catalog.system(parameters["system"])
    found = []
    for count in gpus:
        plan = dict(parameters["plan"])
        plan["tp"] = min(plan["tp"], count)
        plan["pp"] = min(plan["pp"], max(count // plan["tp"], 1))
        fields = {**plan, "gpus": count, "tokens": parameters["tokens"]}
        fields["global_batch"] = max(int(count * parameters["batch_per_gpu"]), 1)
        spec = parse(TrainingPlanSpec, fields, "variation")
        found.append(complete_training(spec, calibration.run, model=model, cluster=cluster))
    return found


def _scale(
    parameters: Mapping[str, Any], requests: list[TrainingRequest], found: TrainingPrediction
) -> pd.DataFrame:
    """Quantiles and waiting against the number of accelerators, profile by profile."""
    rows = []
    for name in parameters["profiles"]:
        own = vary(found, profile(name))
        quantiles = [own.quantile(p) for p in LEVELS]
        mean, spread = own.average(1000.0)
        for at, request in enumerate(requests):
            p50, p95, p99 = (float(values[at]) for values in quantiles)
            waits = [float(getattr(own.waits, by)[at]) for by in ("ranks", "stages", "replicas")]
            rows.append(
                {
                    "profile": name,
                    "gpus": int(float(request.plan.gpus)),
                    "step_s": float(found.step_time[at]),
                    "p50_s": p50,
                    "p95_s": p95,
                    "p99_s": p99,
                    "p95_over_p50": p95 / p50,
                    "p99_over_p50": p99 / p50,
                    "p95_over_step": p95 / float(found.step_time[at]),
                    "added_share": float(own.added[at] / found.step_time[at]),
                    "waits_ranks": waits[0],
                    "waits_stages": waits[1],
                    "waits_replicas": waits[2],
                    "in_calibration": float(own.seen[at]),
                    "mean_of_1000_s": float(mean[at]),
                    "sd_of_run_s": float(spread[at]),
                }
            )
    return pd.DataFrame(rows)


def _histogram(found: TrainingPrediction, at: int, names: Sequence[str]) -> Figure:
    """How often a step takes how much of the median, of one size."""
    edges = np.linspace(0.97, 1.2, BINS + 1)
    lines = []
    for number, name in enumerate(names):
        series = vary(found, profile(name)).series
        own = replace(series, **{k: getattr(series, k)[at] for k in ("same", "fresh", "stalled")})
        share = np.diff(own.below(edges))
        lines.append(
            Series(name, list(0.5 * (edges[1:] + edges[:-1])), list(100 * share), group=number)
        )
    return Figure("Steps over the median step", "times the median", "per cent of steps", lines)


def _fleets(
    requests: list[TrainingRequest], parameters: Mapping[str, Any], calibration: Calibration
) -> pd.DataFrame:
    """Effective share of the time against accelerators and spares: the fleet-years table."""
    rows = []
    for request in requests:
        if float(request.plan.gpus) < 1024:
            continue
        found = predict(request.model, request.cluster, request.plan, calibration)
        for spares in parameters["spares"]:
            for shrinks in (False, True):
                fleet = Reserve(spares=spares, elastic=shrinks)
                own = served(found, request.reliability, fleet).to_dict()
                share = own["effective_share"]
                rows.append(
                    {
                        "gpus": int(float(request.plan.gpus)),
                        "spares": spares,
                        "elastic": shrinks,
                        "effective_share": share["value"],
                        "low": share["low"],
                        "high": share["high"],
                        "fleet_years_useful_per_year": share["value"] * float(request.plan.gpus),
                        "enough_nodes": own["enough_nodes"],
                        "spares_for_99_percent": own["spares_for_99_percent"],
                        "mtbf_hours": own["mtbf_hours"],
                    }
                )
    return pd.DataFrame(rows)


def _neighbours(found: TrainingPrediction, at: int, jobs: Sequence[int]) -> pd.DataFrame:
    """What further jobs of the same kind on one spine cost a step, by how it is oversubscribed: a
    job alone has its own rate, several share what the spine carries of all."""
    step = float(found.step_time[at])
    talk = float(found.breakdown["dp_communication"][at] + found.hidden["dp"][at])
    rows = []
    for more in jobs:
        for over in (1.0, 2.0, 4.0):
            share = kept_of(more, over)
            own = shared(talk, min(more * talk, step), step, share)
            rows.append(
                {
                    "other_jobs": more,
                    "oversubscription": over,
                    "share_while_together": share,
                    "worst": float(own.worst) / step,
                    "average": float(own.average) / step,
                }
            )
    return pd.DataFrame(rows)


def _losses(told: Mapping[str, Any]) -> pd.DataFrame:
    """One row per fault."""
    rows = []
    for one in told["faults"]:
        shown = {f"loss_{name}": value for name, value in one["loss_by_dimension"].items()}
        names = ("fault", "loss_packed", "loss_random", "loss_spread", "placement_gain")
        rows.append({**{name: one[name] for name in names}, **shown})
    return pd.DataFrame(rows).fillna(0.0)


def run(parameters: Mapping[str, Any]) -> Result:
    """What a run will do.

    parameters   `model`, `system`, `plan`, `batch_per_gpu`, `gpus`, `profiles`; `at`: accelerators
                 of slow parts and neighbours; `faults`, `spares`, `tokens`, `shared`: other jobs
    """
    calibration = load(parameters.get("calibration", "default"))
    requests = _requests(parameters, parameters["gpus"], calibration)
    first = requests[0]
    found = predict(first.model, first.cluster, stack([one.plan for one in requests]), calibration)
    scale = _scale(parameters, requests, found)
    at = list(parameters["gpus"]).index(parameters["at"])
    here = requests[at]
    case = Case.of(here.model, here.cluster, here.plan, calibration)
    lost = _losses(losses(case, faults(parameters["faults"])))
    fleets = _fleets(requests, parameters, calibration)
    near = _neighbours(found, at, parameters["shared"])

    def lines(column: str, factor: float = 1.0) -> list[Series]:
        return [
            Series(str(name), list(own["gpus"]), list(own[column] * factor), group=number)
            for number, (name, own) in enumerate(scale.groupby("profile", sort=False))
        ]

    whole = fleets[~fleets["elastic"]]
    figures = [
        Figure("P95 over the predicted step", "accelerators", "times", lines("p95_over_step"),
               log_x=True),
        Figure("P95 over P50 of a step", "accelerators", "times", lines("p95_over_p50"),
               log_x=True),
        _histogram(found, at, parameters["profiles"]),
        Figure("What slow parts cost", "part", "per cent of the step",
               [Series(name.removeprefix("loss_"), list(lost["fault"]), list(100 * lost[name]),
                       "bar", group=number)
                for number, name in enumerate(("loss_packed", "loss_random", "loss_spread"))]),
        Figure("Time that makes progress", "accelerators", "per cent",
               [Series(f"{spares} spares", list(own["gpus"]), list(100 * own["effective_share"]),
                       low=list(100 * own["low"]), high=list(100 * own["high"]), group=number)
                for number, (spares, own) in enumerate(whole.groupby("spares"))],
               log_x=True),
    ]  # fmt: skip
    return Result(
        figures,
        {"Scale": scale, "Slow parts": lost, "Fleets": fleets, "Neighbours": near},
        _facts(parameters, scale, lost, fleets, near),
    )


def _facts(
    parameters: Mapping[str, Any],
    scale: pd.DataFrame,
    lost: pd.DataFrame,
    fleets: pd.DataFrame,
    near: pd.DataFrame,
) -> dict[str, Any]:
    """Numbers of the reading."""
    at = int(parameters["at"])
    largest = scale[scale["gpus"] == max(parameters["gpus"])].set_index("profile")
    parts = lost.set_index("fault")
    slow = parts.loc["compute:1.5"]
    worst = parts["loss_spread"].to_dict()
    here = fleets[(fleets["gpus"] == at) & ~fleets["elastic"]].iloc[-1]
    spine = near[(near["other_jobs"] == 1) & (near["oversubscription"] == 2.0)].iloc[0]

    def of_each(column: str, form: str) -> str:
        return ", ".join(f"{name} {value:{form}}" for name, value in largest[column].items())

    return {
        "largest": f"{max(parameters['gpus']):,}",
        "steady": of_each("p95_over_p50", ".3f"),
        "added": of_each("added_share", ".1%"),
        "at": f"{at:,}",
        "slow_spread": f"{slow['loss_spread']:.0%}",
        "slow_packed": f"{slow['loss_packed']:.0%}",
        "slow_gain": f"{slow['placement_gain'] - 1:.1%} over a random place",
        "nic_half": f"{worst['nic:0.5']:.1%}",
        "nic_tenth": f"{worst['nic:0.1']:.1%}",
        "spares_needed": int(here["spares_for_99_percent"]),
        "effective": f"{here['low']:.0%} to {here['high']:.0%}",
        "neighbour_worst": f"{spine['worst']:.1%}",
        "neighbour_average": f"{spine['average']:.1%}",
    }

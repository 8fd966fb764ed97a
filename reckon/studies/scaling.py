"""Strong and weak scaling: throughput, communication's share and utilisation against devices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from predictor import catalog
from predictor.arrays import stack
from predictor.catalog import TrainingPlanSpec, load, parse
from predictor.errors import InputError
from predictor.training import complete_training, predict
from reckon.views.page import Figure, Result, Series

COMMUNICATION = ("tp", "cp", "ep", "pp", "dp")


def curve(name: str, content: Mapping[str, Any], calibration: str) -> pd.DataFrame:
    """One run against its number of accelerators.

    content   `model`, `system`, `plan`, `gpus` (a list), and `global_batch` (strong scaling) or
              `batch_per_gpu` (weak)
    """
    if ("global_batch" in content) == ("batch_per_gpu" in content):
        raise InputError(f"scaling: {name}: state either global_batch or batch_per_gpu")
    known, model = load(calibration), catalog.model(content["model"])
    cluster = catalog.system(content["system"])
    plans = []
    for gpus in content["gpus"]:
        batch = content.get("global_batch") or gpus * content["batch_per_gpu"]
        fields = {**content["plan"], "gpus": gpus, "global_batch": int(batch)}
        spec = parse(TrainingPlanSpec, fields, f"scaling: {name}")
        plans.append(complete_training(spec, known.run, model=model, cluster=cluster).plan)
    if len({(plan.recompute, plan.sharding) for plan in plans}) > 1:
        raise InputError(f"scaling: {name}: state recompute and sharding: they differ by size")
    found = predict(model, cluster, stack(plans), known)
    shown = sum(found.breakdown[f"{kind}_communication"] for kind in COMMUNICATION)
    hidden: Any = sum(found.hidden.values())
    gpus = np.array([float(plan.gpus) for plan in plans])
    each = found.tokens_per_s / gpus
    return pd.DataFrame(
        {
            "run": name,
            "gpus": gpus.astype(int),
            "tokens_per_s": found.tokens_per_s,
            "tokens_per_s_per_gpu": each,
            "per_gpu_over_first": each / each[0],
            "mfu": found.utilisation("megatron"),
            "step_time_s": found.step_time,
            "communication_share": shown / found.step_time,
            "hidden_share": hidden / found.step_time,
            "bubble_share": found.breakdown["bubble"] / found.step_time,
            "speedup_over_first": found.tokens_per_s / found.tokens_per_s[0],
        }
    )


def run(parameters: Mapping[str, Any]) -> Result:
    """Scale several runs.

    parameters   `runs`: name -> see `curve`; `published`: run, gpus, column, value, source;
                 `compare`: loss per accelerator of a run from one size to another
    """
    calibration = parameters.get("calibration", "default")
    frames = [curve(name, content, calibration) for name, content in parameters["runs"].items()]
    table = pd.concat(frames, ignore_index=True)
    told = parameters.get("published", [])

    def lines(column: str, factor: float = 1.0) -> list[Series]:
        found = [
            Series(str(name), list(own["gpus"]), list(own[column] * factor), group=number)
            for number, (name, own) in enumerate(table.groupby("run", sort=False))
        ]
        for point in told:
            if point["column"] == column:
                number = list(parameters["runs"]).index(point["run"])
                found.append(
                    Series(
                        f"published: {point['name']}", [point["gpus"]], [point["value"] * factor],
                        "point", group=number,
                    )
                )  # fmt: skip
        return found

    sources = "; ".join(dict.fromkeys(f"{point['source']}" for point in told))
    source = f"Published: {sources}" if told else ""
    figures = [
        Figure("Throughput per accelerator, over the smallest size", "accelerators", "per cent",
               lines("per_gpu_over_first", 100), log_x=True, source=source),
        Figure("Throughput of the cluster, over the smallest size", "accelerators", "times",
               lines("speedup_over_first"), log_x=True, log_y=True),
        Figure("Exposed communication", "accelerators", "per cent of the step",
               lines("communication_share", 100), log_x=True),
        Figure("Model FLOPs utilisation (Megatron's count)", "accelerators", "per cent",
               lines("mfu", 100), log_x=True, source=source),
    ]  # fmt: skip
    facts: dict[str, Any] = {}
    for number, (name, own) in enumerate(table.groupby("run", sort=False)):
        first, last = own.iloc[0], own.iloc[-1]
        facts[f"run{number}"] = (
            f"{name}: {first['gpus']} to {last['gpus']} accelerators keep "
            f"{100 * last['per_gpu_over_first']:.0f} % of the throughput of each; exposed "
            f"communication goes from {100 * first['communication_share']:.0f} to "
            f"{100 * last['communication_share']:.0f} % of the step, MFU from "
            f"{100 * first['mfu']:.0f} to {100 * last['mfu']:.0f} %"
        )
    for number, point in enumerate(told):
        own = table[(table["run"] == point["run"]) & (table["gpus"] == point["gpus"])]
        facts[f"published{number}"] = f"{100 * point['value']:.0f} %"
        facts[f"predicted{number}"] = f"{100 * float(own[point['column']].iloc[0]):.0f} %"
    return Result(figures, {"Scaling": table}, facts)

"""Taxes on multi-accelerator work, each taken away by itself and all together (arXiv 2511.02168;
`predictor.timing.taxes`): launching kernels, waiting for collectives to end before the next kernel
starts, and bringing through memory what the next kernel reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from predictor import catalog
from predictor.catalog import ServingPlanSpec, TrainingPlanSpec, load, parse
from predictor.errors import InputError
from predictor.serving import complete_serving, decoding_taxes
from predictor.timing import TAXES, Calibration, Taxes
from predictor.training import complete_training, taxes
from reckon.views.page import Figure, Result, Series

WORKLOADS = {"training": "step", "serving": "decode pass"}


def found_of(content: Mapping[str, Any], calibration: Calibration, label: str) -> Taxes:
    """Taxes of one run of the study's file."""
    workload = content.get("workload")
    if workload not in WORKLOADS:
        raise InputError(f"taxes: {label}: workload {workload!r} is not training or serving")
    model, cluster = catalog.model(content["model"]), catalog.system(content["system"])
    if workload == "training":
        spec = parse(TrainingPlanSpec, content["plan"], "taxes")
        plan = complete_training(spec, calibration.run, model=model, cluster=cluster).plan
        return taxes(model, cluster, plan, calibration)
    wanted = parse(ServingPlanSpec, content["plan"], "taxes")
    served = complete_serving(wanted, calibration.run, model=model, cluster=cluster).plan
    return decoding_taxes(model, cluster, served, calibration)


def run(parameters: Mapping[str, Any]) -> Result:
    """Take each tax away in turn, of several runs.

    parameters   `runs`: name -> `workload` (training or serving), `model`, `system`, `plan`
    """
    calibration = load(parameters.get("calibration", "default"))
    rows = []
    for label, content in parameters["runs"].items():
        found = found_of(content, calibration, label)
        rows.append(
            {"run": label, "what": WORKLOADS[content["workload"]], "total": found.total}
            | found.alone
            | {"together": found.together, "interaction": found.interaction}
        )
    table = pd.DataFrame(rows)
    table["rest"] = table["total"] - table["together"]
    for tax in TAXES:
        table[f"speed-up without {tax}"] = table["total"] / (table["total"] - table[tax])
    table["speed-up without all"] = table["total"] / table["rest"]
    labels = list(table["run"])
    places = [label.replace(", ", "<br>") for label in labels]
    shares = [
        Series(tax, places, list(100 * table[tax] / table["total"]), "bar",
               text=[f"{100 * v:.0f} %" for v in table[tax] / table["total"]], group=number)
        for number, tax in zip((0, 1, 2), TAXES, strict=True)
    ]  # fmt: skip
    gains = [
        Series(tax, places, list(table[f"speed-up without {tax}"]), "bar",
               text=[f"{v:.2f}x" for v in table[f"speed-up without {tax}"]])
        for tax in TAXES
    ]  # fmt: skip
    facts = {
        f"{tax.replace('-', '_').replace(' ', '_')}": "; ".join(
            f"{label}: {100 * part / total:.0f} %"
            for label, part, total in zip(labels, table[tax], table["total"], strict=True)
        )
        for tax in (*TAXES, "together")
    }
    figures = [
        Figure("Where the time goes", "run", "per cent of a step or pass", shares),
        Figure("Each tax taken away by itself", "run", "times faster", gains),
    ]
    return Result(figures, {"Taxes": table}, facts)

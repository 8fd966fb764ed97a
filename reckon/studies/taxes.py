"""Taxes on multi-accelerator work, each taken away by itself (arXiv 2511.02168): launching kernels,
waiting for collectives to end before the next kernel starts, and bringing through memory what the
next kernel reads.

Launch: latencies of kernels and gaps between them, and the host's launches. Bulk-synchronous
waiting: exposed collectives, as far as the kernels beside them could cover them, and pipeline
bubbles. Data locality: kernels that only stream (norms, activations, additions) would read from
cache what the kernel before has written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from predictor import catalog
from predictor.catalog import (
    ServingPlanSpec,
    TrainingPlanSpec,
    load,
    parse,
)
from predictor.errors import InputError
from predictor.hardware import Accelerator
from predictor.serving import EXACT_STEPS, complete_serving, predict_inference
from predictor.timing import Calibration
from predictor.training import complete_training, predict
from reckon.views.page import Figure, Result, Series

TAXES = ("launch", "bulk-synchronous waiting", "data locality")
STREAMING = ("norm", "elementwise", "softmax", "embedding")


def without_launches(calibration: Calibration) -> Calibration:
    """The same kernels, but an empty one takes no time and the host launches for free."""
    kernels = {key: replace(model, latency=0.0) for key, model in calibration.kernels.items()}
    run = replace(calibration.run, host_per_kernel=0.0)
    return replace(calibration, kernels=kernels, run=run)


def cached_share(accelerator: Accelerator) -> float:
    """Share of a streaming kernel's time that goes away where it reads from cache, not memory."""
    return 1.0 - float(accelerator.bandwidth) / float(accelerator.l2_bandwidth)


def training_taxes(content: Mapping[str, Any], calibration: Calibration) -> dict[str, float]:
    """Seconds of a training step, and what each tax takes of it."""
    model, cluster = catalog.model(content["model"]), catalog.system(content["system"])
    spec = parse(TrainingPlanSpec, content["plan"], "taxes")
    plan = complete_training(spec, calibration.run, model=model, cluster=cluster).plan
    found = predict(model, cluster, plan, calibration)
    free = predict(model, cluster, plan, without_launches(calibration))
    terms = {name: float(value) for name, value in found.breakdown.items()}
    stretch = float(found.step_time) / (float(found.step_time) - terms["framework"])
    work = sum(terms[name] for name in ("forward", "backward", "recompute"))
    talk = sum(value for name, value in terms.items() if name.endswith("_communication"))
    streamed = sum(
        float(found.timing.time[at] * found.executions[at])
        for at, operator in enumerate(found.operators)
        if operator.op in STREAMING
    )
    return {
        "total": float(found.step_time),
        "launch": float(found.step_time) - float(free.step_time),
        "bulk-synchronous waiting": stretch * (min(talk, work) + terms["bubble"]),
        "data locality": stretch * streamed * cached_share(cluster.accelerator),
    }


def serving_taxes(content: Mapping[str, Any], calibration: Calibration) -> dict[str, float]:
    """Seconds of a pass that decodes, and what each tax takes of it."""
    model, cluster = catalog.model(content["model"]), catalog.system(content["system"])
    spec = parse(ServingPlanSpec, content["plan"], "taxes")
    plan = complete_serving(spec, calibration.run, model=model, cluster=cluster).plan
    found = predict_inference(model, cluster, plan, calibration, EXACT_STEPS)
    free = predict_inference(model, cluster, plan, without_launches(calibration), EXACT_STEPS)
    own, device = found.parameters, found.work.decoding
    total = float(found.latencies.step)
    gaps = own.gap if plan.execution == "graph" else 0.0
    # Gaps between kernels fall away with the launches; host work per pass and sequence stays.
    launch = total - float(free.latencies.step) + float(np.asarray(gaps * device.kernels))
    talk = float(np.asarray(own.communication * free.work.decoding.communication))
    work = float(np.asarray(own.decode * free.work.decoding.compute))
    streamed = float(np.asarray(own.decode * free.decoding.terms["elementwise"]))
    return {
        "total": total,
        "launch": launch,
        "bulk-synchronous waiting": min(talk, work),
        "data locality": streamed * cached_share(cluster.accelerator),
    }


def run(parameters: Mapping[str, Any]) -> Result:
    """Take each tax away in turn, of several runs.

    parameters   `runs`: name -> `workload` (training or serving), `model`, `system`, `plan`
    """
    calibration = load(parameters.get("calibration", "default"))
    rows = []
    for label, content in parameters["runs"].items():
        workload = content.get("workload")
        if workload == "training":
            found = training_taxes(content, calibration)
        elif workload == "serving":
            found = serving_taxes(content, calibration)
        else:
            raise InputError(f"taxes: {label}: workload {workload!r} is not training or serving")
        rows.append(
            {"run": label, "what": "step" if workload == "training" else "decode pass"} | found
        )
    table = pd.DataFrame(rows)
    table["rest"] = table["total"] - table[list(TAXES)].sum(axis=1)
    for tax in TAXES:
        table[f"speed-up without {tax}"] = table["total"] / (table["total"] - table[tax])
    table["speed-up without all"] = table["total"] / table["rest"]
    labels = list(table["run"])
    places = [label.replace(", ", "<br>") for label in labels]
    shares = [
        Series(tax, places, list(100 * table[tax] / table["total"]), "bar",
               text=[f"{100 * v:.0f} %" for v in table[tax] / table["total"]], group=number)
        for number, tax in zip((0, 1, 2, 7), (*TAXES, "rest"), strict=True)
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
        for tax in TAXES
    }
    figures = [
        Figure("Where the time goes", "run", "per cent of a step or pass", shares, stacked=True),
        Figure("Each tax taken away by itself", "run", "times faster", gains),
    ]
    return Result(figures, {"Taxes": table}, facts)

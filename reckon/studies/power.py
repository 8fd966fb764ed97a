"""What training draws, and what layouts, micro-batches, overlap and limits make of it: CharLLM's
questions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from predictor.catalog import load
from reckon.studies.charllm import matrix, predicted
from reckon.studies.findings import NO, SIGN, YES, Ask, findings
from reckon.views.page import Figure, Result, Series


def _knobs(ask: Ask, limits: list[float]) -> pd.DataFrame:
    """Time and energy of the plan under limits of power."""
    rows = []
    for watts in limits:
        found = ask.one(power_limit=watts)
        told = found.power.to_dict()
        rows.append(
            {
                "limit_w": watts,
                "step_s": found.step_time.value,
                "energy_per_sample_j": told["energy_per_sample_j"]["value"],
                "power_w": told["power_w"]["value"],
                "hottest_c": max(told["temperature_c"]),
            }
        )
    return pd.DataFrame(rows)


def run(parameters: Mapping[str, Any]) -> Result:
    """Power over CharLLM's matrix.

    parameters   `systems` (of 'H100' and 'H200'), `node_gbps` of the network of a node; `model`,
                 `system` and `plan` of single questions; `limits` [W]
    """
    calibration = load(parameters.get("calibration", "default"))
    table = predicted(matrix(), parameters["systems"], parameters["node_gbps"], calibration)
    ask = Ask(table, parameters["system"], parameters["model"], parameters["plan"], calibration)
    told = findings(ask)
    knobs = _knobs(ask, parameters["limits"])
    sweeps = table[table["experiment"].str.contains("sweep") & table["fits"].eq(True)]
    micro = table[(table["experiment"] == "microbatch-sweep-h200") & table["fits"].eq(True)]

    def by(own: pd.DataFrame, x: str, y: str, factor: float = 1.0) -> list[Series]:
        return [
            Series(str(name), list(rows[x]), list(rows[y] * factor), "point", group=number)
            for number, (name, rows) in enumerate(own.groupby("model"))
        ]

    lines = [
        Series(f"{model} tp{tp} pp{pp}", list(rows["micro_batch"]), list(rows["burst"]),
               group=number)
        for number, ((model, tp, pp), rows) in enumerate(micro.groupby(["model", "tp", "pp"]))
    ]  # fmt: skip
    figures = [
        Figure("Power against throughput", "samples/s", "W per accelerator",
               by(sweeps, "samples_per_s", "power_w"), log_x=True),
        Figure("Peak over 0.1 s, over the mean, by micro-batch", "micro-batch", "times", lines,
               log_x=True),
        Figure("Rear over front", "W per accelerator", "ratio of °C",
               by(sweeps, "power_w", "rear_over_front")),
        Figure("Under a limit", "W", "per cent of that without",
               [Series(name, list(knobs["limit_w"]), list(100 * knobs[key] / knobs[key].iloc[0]),
                       group=number)
                for number, (name, key) in enumerate((("step time", "step_s"),
                                                      ("energy", "energy_per_sample_j")))]),
    ]  # fmt: skip
    counts = told["status"].value_counts()
    last, first = knobs.iloc[-1], knobs.iloc[0]
    refused = int(table["refused"].notna().sum())
    facts = {
        "rows": len(table),
        "refused": refused,
        "fits": int(table["fits"].eq(True).sum()),
        "yes": int(counts.get(YES, 0)),
        "sign": int(counts.get(SIGN, 0)),
        "no": int(counts.get(NO, 0)),
        "power_low": f"{sweeps['power_w'].min():.0f}",
        "power_high": f"{sweeps['power_w'].max():.0f}",
        "limit": f"{last['limit_w']:.0f}",
        "limit_time": f"{last['step_s'] / first['step_s'] - 1:.1%}",
        "limit_energy": f"{1 - last['energy_per_sample_j'] / first['energy_per_sample_j']:.1%}",
    }
    tables = {"Findings": told, "Limits": knobs, "Every configuration": table.drop(columns="path")}
    return Result(figures, tables, facts)

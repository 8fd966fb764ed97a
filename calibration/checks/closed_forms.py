"""Closed forms of serving against requests one by one, over a grid of loads: what
`docs/accuracy/closed-forms.md` prints.

    python -m calibration.checks.closed_forms > docs/accuracy/closed-forms.md
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from predictor import catalog
from predictor.arrays import Array
from predictor.catalog import load
from predictor.plans import ServingPlan
from predictor.serving import (
    Client,
    Promise,
    Rates,
    capacity,
    counts,
    pass_table,
    poisson,
    predict_inference,
    serve,
    spread_lengths,
    unchecked,
)
from predictor.timing import Calibration

MACHINES: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("llama3-8b", "dgx-h100", {"tp": 1.0}),
    ("llama3-8b", "dgx-a100", {"tp": 1.0}),
    ("llama3-70b", "dgx-h100", {"tp": 8.0}),
    ("deepseek-r1", "dgx-h200", {"tp": 8.0}),
)
LENGTHS = ((128.0, 128.0), (1000.0, 200.0), (200.0, 1000.0), (4000.0, 500.0), (2000.0, 50.0),
           (500.0, 500.0))  # fmt: skip
SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.65, 0.7, 0.75, 0.8)
"""Of the largest load."""

REQUESTS, FIRST = 20_000, 6000
"""Requests of a load, and those, fifteen of each client, that show the largest one."""

INSIDE = "all, inside the bounds"
"""Name of the loads that the closed forms answer."""

FULL = 400
"""Clients that show the largest load, one by one."""


@dataclass(frozen=True, slots=True)
class Load:
    """Errors of the closed forms at one load, as shares; `inside`: of the bounds within which they
    answer (`predictor.serving.unchecked`)."""

    batching: str
    machine: str
    lengths: str
    share: float
    tpot: float
    ttft_p50: float
    ttft_p90: float
    inside: bool


def _plans() -> Iterator[tuple[str, str, ServingPlan]]:
    for (model, system, layout), batching, (given, made) in product(
        MACHINES, ("mixed", "apart"), LENGTHS
    ):
        weights = "fp8_block" if model.startswith("deepseek") else "bf16"
        plan = ServingPlan(
            batch=np.inf, serving=1.0, input_len=given, output_len=made, max_batch=512.0,
            framework="vllm", batching=batching, scheduling="overlapped", weights=weights, **layout,
        )  # fmt: skip
        yield model, system, plan


def _lengths(mean: tuple[float, float], count: int) -> tuple[Array, Array]:
    """Prompts and answers of so many requests [tokens]."""
    given, made = (spread_lengths(m, count, 0.1, seed) for seed, m in enumerate(mean, 1))
    return given, made


def loads(calibration: Calibration) -> Iterator[Load]:
    """Every load of the grid: the closed forms' error against requests one by one."""
    for model_name, system, plan in _plans():
        model, cluster = catalog.model(model_name), catalog.system(system)
        mean = (float(plan.input_len), float(plan.output_len))
        table = pass_table(model, cluster, plan, calibration, (1.1 * mean[0], 1.1 * mean[1]))
        lengths = _lengths(mean, REQUESTS)
        ends = np.sort(serve(table, *_lengths(mean, FIRST), clients=FULL).last)
        most = (FIRST // 2) / float(ends[3 * FIRST // 4] - ends[FIRST // 4])
        full = replace(plan, synchrony=0.0)
        top = predict_inference(model, cluster, full, calibration).requests_per_s
        most = min(most, float(top))
        column = replace(plan, batch=np.ones(1))
        tails = {
            share: capacity(model, cluster, column, calibration, Promise(ttft_share=share))
            for share in (0.5, 0.9)
        }
        rates = Rates(model, cluster, plan, calibration)
        for part in SHARES:
            rate = part * most
            closed = rates.at(rate).prediction.latencies
            _, warm, ending = counts(rate * float(closed.e2e), part)
            served = serve(table, *lengths, poisson(rate, REQUESTS)).after(warm, ending)
            first = {
                share: float(np.interp(rate, np.maximum.accumulate(own.rate[0]), own.ttft[0]))
                / float(np.quantile(served.ttft, share))
                - 1.0
                for share, own in tails.items()
            }
            yield Load(
                batching=str(plan.batching),
                machine=f"{model_name} on {system}",
                lengths=f"{mean[0]:g} in, {mean[1]:g} out",
                share=part,
                tpot=float(closed.tpot) / float(served.tpot.mean()) - 1.0,
                ttft_p50=first[0.5],
                ttft_p90=first[0.9],
                inside=not unchecked(plan, Client(), rate, rate / part, float(closed.tpot)),
            )


def page(found: list[Load]) -> str:
    """The page of documentation."""
    lines = [
        "# Closed forms against requests one by one",
        "",
        "Latencies at a rate of random arrivals are closed forms (`predictor/serving/latency.py`,",
        "`rates.py`, `capacities.py`); the event engine (`events.py`) serves the same requests one",
        f"by one. Errors of the closed forms over {len(found)} loads of 10 to 80 % of the largest",
        "(`python -m calibration.checks.closed_forms`), as mean / 90th percentile over the loads;",
        "outside of their bounds (the rows of all, and of those inside), `predict infer` serves",
        "requests one by one instead, and says so.",
        "",
        "| prompts | machine, lengths | loads | per token | first token P50 | first token P90 |",
        "|---|---|---|---|---|---|",
    ]  # fmt: skip
    keys = sorted({(one.batching, name, "") for one in found for name in ("all", INSIDE)})
    keys += sorted({(one.batching, one.machine, one.lengths) for one in found})
    for batching, machine, lengths in keys:
        own = [
            one
            for one in found
            if one.batching == batching
            and (one.inside or machine != INSIDE)
            and machine in ("all", INSIDE, one.machine)
            and lengths in ("", one.lengths)
        ]
        cells = []
        for name in ("tpot", "ttft_p50", "ttft_p90"):
            errors = np.abs([getattr(one, name) for one in own])
            cells.append(f"{errors.mean():.1%} / {np.quantile(errors, 0.9):.1%}")
        where = ", ".join(part for part in (machine, lengths) if part)
        lines.append(f"| {batching} | {where} | {len(own)} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Print the page."""
    print(page(list(loads(load("default")))), end="")


if __name__ == "__main__":
    main()

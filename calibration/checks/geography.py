"""Which of five systems is faster on accelerators in several regions: pairs in the right order.

    python -m calibration.checks.geography ../shared/reference/variation/lowbw_v100_steps.csv

Steps of GPT-3 XL on 64 V100, eight stages and eight replicas, over emulated links (Yuan et al.
2022, arXiv 2206.01288; github.com/DS3Lab/Decentralized_FM_alpha at cb03043, results/
NeurIPS2022_submission.md). Rates and delays of links are those that its emulation was given
(scheduler/generate_sim_com_matrices.py). Nothing is fitted to any of these rows.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from itertools import combinations
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from calibration.tables.slow_links import RECIPE, slow_cluster, slow_model
from predictor import catalog
from predictor.catalog import TrainingPlanSpec, parse
from predictor.timing import Calibration
from predictor.training import TrainingRequest, complete_training, dealt_step, predict
from predictor.training.regions import Regions

WITHIN, NEAR = (10.0, 2.0), (1.0, 5.0)
"""Delay [ms] and rate [Gb/s] inside a region of the wide cases, and inside a university."""

LINKS = {
    "Oregon-Virginia": (67, 0.79), "Oregon-Ohio": (49, 1.10), "Oregon-Tokyo": (96, 0.523),
    "Oregon-Seoul": (124, 0.46), "Oregon-London": (136, 0.42), "Oregon-Frankfurt": (143, 0.404),
    "Oregon-Ireland": (124, 0.482), "Virginia-Ohio": (11, 1.12), "Virginia-Tokyo": (143, 0.524),
    "Virginia-Seoul": (172, 0.500), "Virginia-London": (76, 1.16),
    "Virginia-Frankfurt": (90, 1.02), "Virginia-Ireland": (67, 1.05), "Ohio-Tokyo": (130, 0.694),
    "Ohio-Seoul": (159, 0.529), "Ohio-London": (86, 1.05), "Ohio-Frankfurt": (99, 0.799),
    "Ohio-Ireland": (77, 1.14), "Tokyo-Seoul": (34, 1.10), "Tokyo-London": (210, 0.366),
    "Tokyo-Frankfurt": (223, 0.36), "Tokyo-Ireland": (199, 0.465), "Seoul-London": (238, 0.342),
    "Seoul-Frankfurt": (235, 0.358), "Seoul-Ireland": (228, 0.335),
    "London-Frankfurt": (14, 1.14), "London-Ireland": (12, 1.09), "Frankfurt-Ireland": (24, 1.08),
}  # fmt: skip
"""Delay [ms] and rate [Gb/s] between cities around the world (case 5)."""

REGIONAL = {
    "Virginia-Oregon": (67, 1.15), "Virginia-California": (59, 1.05), "Virginia-Ohio": (11, 1.12),
    "Oregon-California": (12, 1.25), "Oregon-Ohio": (49, 1.10), "California-Ohio": (52, 1.02),
}  # fmt: skip
"""The same of one country (case 4)."""

CASES = {
    "Case 3": (("Ohio", "Virginia"), {"Ohio-Virginia": (11, 1.12)}, NEAR),
    "Case 4": (("Virginia", "Oregon", "California", "Ohio"), REGIONAL, WITHIN),
    "Case 5": (
        ("Oregon", "Virginia", "Ohio", "Tokyo", "Seoul", "London", "Frankfurt", "Ireland"),
        LINKS,
        WITHIN,
    ),
}
"""Regions in the order of their ranks, links between them, and inside."""

PLACED, ANYWHERE, STAGES = "placed", "anywhere", "stages"
SYSTEMS = {
    "Ours w scheduler": ("gpipe", 1, PLACED),
    "Ours wo Scheduler": ("gpipe", 1, ANYWHERE),
    "Deepspeed PP": ("1f1b", 4, ANYWHERE),
    "Megatron-P8 (wo Scheduler)": ("1f1b", 1, ANYWHERE),
    "Megatron-P8 (Default)": ("1f1b", 1, STAGES),
}
"""Schedule, sequences in a micro-batch, and where ranks are: placed by the links; anywhere, so that
some group of either kind has the slowest link; a stage after the other through the regions as they
are numbered. Micro-batches are those of their scripts: four sequences for DeepSpeed on shuffled
hosts (scripts/local_run_deepspeed_on_rank0.sh), one for Megatron (scripts/local_scripts/
megatron_gpt3_xl_mp8_dp8.sh) and for themselves."""


@cache
def regions(case: str) -> Regions:
    """The regions of a case."""
    names, links, inside = CASES[case]
    delay, rate = (inside[k] * np.eye(len(names)) for k in (0, 1))
    for a, b in combinations(range(len(names)), 2):
        found = links.get(f"{names[a]}-{names[b]}") or links[f"{names[b]}-{names[a]}"]
        delay[a, b] = delay[b, a] = found[0]
        rate[a, b] = rate[b, a] = found[1]
    return Regions(names, rate * 1e9 / 8, delay * 1e-3, "best")


def _request(
    layers: int, batch: int, schedule: str, known: Calibration, case: str, micro_batch: int
) -> TrainingRequest:
    row = {"gpu": "V100-16GB", "delay_ms": 0.0, "bandwidth_gbps": 1.0}
    cluster = regions(case).linked(slow_cluster(row), 0, 0)
    model = slow_model(layers)
    fields: dict[str, Any] = {
        **RECIPE, "schedule": schedule, "gpus": 64, "pp": 8, "tp": 1, "dp": 8, "precision": "fp16",
        "global_batch": batch, "reduce_bytes": 2, "gather_bytes": 2, "gradient_bytes": 2,
        "micro_batch": micro_batch,
    }  # fmt: skip
    spec = parse(TrainingPlanSpec, fields, "row")
    return complete_training(spec, known.run, strict=False, model=model, cluster=cluster)


def step(case: str, system: str, layers: int, batch: int, known: Calibration) -> float:
    """Predicted step [s] of a system on the regions of a case."""
    schedule, micro_batch, where = SYSTEMS[system]
    request = _request(layers, batch, schedule, known, case, micro_batch)
    of = regions(case)
    if where == ANYWHERE:
        message = 2.0 * request.plan.tokens * request.model.hidden
        cluster = of.linked(request.cluster, *of.slowest(float(message)))
        return float(predict(request.model, cluster, request.plan, known).step_time)
    if where == STAGES:
        of = replace(of, crossing="pipelines", ordered=True)
    found, _ = dealt_step(replace(request, regions=of), known)
    return float(found.step_time)


def measured(rows: list[Mapping[str, str]]) -> dict[tuple[str, str, int, int], float]:
    """Mean step [s] of each case, system, number of layers and batch that is told apart here."""
    found: dict[tuple[str, str, int, int], list[float]] = {}
    for row in rows:
        case = next((name for name in CASES if f"{name} " in row["table"]), None)
        if case is not None and row["system"] in SYSTEMS:
            key = case, row["system"], int(float(row["layers"])), int(float(row["global_batch"]))
            found.setdefault(key, []).append(float(row["step_s"]))
    return {key: mean(own) for key, own in found.items()}


def pairs(
    told: Mapping[tuple[str, str, int, int], float], known: Calibration
) -> dict[str, tuple[int, int, int]]:
    """Of each case, pairs of systems that are predicted in the order in which they were measured,
    those that are predicted to differ, and all; two systems of one schedule that lie anywhere are
    one plan here."""
    found = dict.fromkeys(CASES, (0, 0, 0))
    predicted = {key: step(key[0], key[1], key[2], key[3], known) for key in told}
    for one, other in combinations(told, 2):
        if (one[0], *one[2:]) == (other[0], *other[2:]):
            own = (told[one] - told[other]) * (predicted[one] - predicted[other])
            right, apart, every = found[one[0]]
            found[one[0]] = right + int(own > 0), apart + int(own != 0), every + 1
    return found


def main() -> None:
    """Print the share of pairs in order, case by case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", type=Path)
    with parser.parse_args().table.open(newline="") as stream:
        found = pairs(measured(list(csv.DictReader(stream))), catalog.load("default"))
    for case, (right, apart, every) in found.items():
        print(
            f"{case}: {right} of {apart} pairs of systems in order, {every - apart} not told apart"
        )
    right, apart, every = (sum(own[k] for own in found.values()) for k in range(3))
    print(f"all: {right / apart:.1%} of those told apart, {right / every:.1%} of all {every}")


if __name__ == "__main__":
    main()

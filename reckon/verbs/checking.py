"""How well a calibration predicts what the same profile measured for checking: training steps on
one and several ranks, and passes of serving. None of it is ever fitted."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from calibration.sources.reading import read_table
from calibration.tables.cells import cell
from calibration.tables.dimensions import model_of
from calibration.tables.profiles import device_systems
from calibration.tables.waiting import calm_share, threads_of
from predictor.catalog import load
from predictor.errors import InputError
from predictor.hardware import Accelerator, Cluster
from predictor.plans import ServingPlan
from predictor.serving import Pass, decode_pass, prompt_pass
from predictor.timing import Calibration
from reckon.verbs.validating import validate

KIND = re.compile(r"_([a-z]+)\d+$")
"""How a step's ranks share it, at the end of its point id."""

NAMES = {
    "single": "training steps, one process",
    "transformers": "steps of HuggingFace transformers",
    "dp": "DDP steps",
    "fsdp": "FSDP2 steps",
    "tp": "tensor-parallel steps",
    "ttft_ms": "prompts",
    "tpot_ms": "decoding passes",
}
"""What each kind of check is called."""


def _time(found: Pass, accelerator: Accelerator) -> float:
    """Time of a pass whose kernels a host launches one by one, as far ahead as it can [s]."""
    device = float(np.asarray(found.compute + found.communication))
    if not accelerator.is_queued:
        return device
    return max(device, float(accelerator.dispatch) * float(np.asarray(found.kernels)))


def pass_time(row: dict[Any, Any], cluster: Cluster, known: Calibration) -> float:
    """Predicted seconds of one pass of a plain PyTorch loop, without an engine around it."""
    plan = ServingPlan(
        batch=float(row["batch"]),
        input_len=float(row["input_len"]),
        output_len=float(row["output_len"]),
        weights=str(row["weights_precision"]),
        kv=str(row["kv_precision"]),
        execution="eager",
        chunk=float(row["batch"] * row["input_len"]),
    )
    model = model_of(row)
    if row["metric"] == "ttft_ms":
        found, _ = prompt_pass(model, cluster, plan, float(row["batch"]), known)
    else:
        found = decode_pass(model, cluster, plan, float(row["batch"]), known)
    return _time(found, cluster.accelerator)


def _calm(row: dict[Any, Any], cluster: Cluster) -> float:
    """Share of a pass in which its threads did not wait for processors that others used."""
    waited = cell(row, "waited") or 0.0
    return float(calm_share(float(waited), threads_of(cluster.accelerator)))


def check_passes(folder: Path, known: Calibration) -> list[dict[str, Any]]:
    """Measured and predicted seconds of the passes of serving in a profile."""
    path = folder / "passes.csv"
    if not path.is_file():
        return []
    systems = device_systems(folder)
    found = []
    for row in read_table(path).to_dict("records"):
        cluster = systems.get(str(row["accelerator"]))
        if cluster is None:
            raise InputError(f"{path}: no device file of {row['accelerator']!r} lies beside it")
        found.append(
            {
                "name": str(row["point_id"]),
                "kind": str(row["metric"]),
                "measured_s": float(row["value"]) * 1e-3 * _calm(row, cluster),
                "predicted_s": pass_time(row, cluster, known),
            }
        )
    return found


def check(folder: str | Path, calibration: str | Path | Calibration) -> list[dict[str, Any]]:
    """Every step and pass that a profile timed: name, kind (`NAMES`), measured and predicted
    seconds; measured ones are less what their threads waited for processors that others used.

    Raises InputError for a folder that is no profile.
    """
    place, known = Path(folder), load(calibration)
    result = validate(place / "steps.csv", known)
    found = []
    for point in result["points"]:
        kind = KIND.search(point["point_id"])
        found.append(
            {
                "name": point["point_id"],
                "kind": kind[1] if kind else "single",
                "measured_s": point["published"],
                "predicted_s": point["predicted"],
            }
        )
    return found + check_passes(place, known)


def errors(checks: list[dict[str, Any]]) -> dict[str, float]:
    """Mean absolute error of each kind, in the order of `NAMES`."""
    table = pd.DataFrame(checks, columns=["kind", "measured_s", "predicted_s"])
    away = (table["predicted_s"] / table["measured_s"] - 1.0).abs()
    means = away.groupby(table["kind"]).mean()
    return {kind: float(means[kind]) for kind in NAMES if kind in means}

"""What run parameters are worth on model sizes of the nanotron sweep that were left out of them.

python -m calibration.checks.sweep ../shared [--calibration kernels-only]
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.special import ndtr

from calibration.runs.allocation import fit_allocation, sweep_tensors
from calibration.runs.apart import errors, take_apart
from calibration.runs.descent import LAUNCHES, descend
from calibration.runs.fit import default_run
from calibration.tables.sweep import environment_of, read_sweep, sick
from predictor.catalog import load
from predictor.memory import allocation, beside
from predictor.timing import Calibration, RunParameters

NEAR = (0.7, 1.4)
"""Peaks over the limit between which a verdict is hard."""

FIELDS = ("tp", "pp", "dp", "nodes", "micro_batch", "model")


def score_sweep(path: Path, calibration: Calibration) -> pd.DataFrame:
    """Log errors of every timed row of the sweep with the launch costs and the level fitted to the
    other model sizes, healthy rows only. Returns the rows with `error`, `sick` and `nodes`."""
    sweep = read_sweep(path, calibration.run)
    timed = np.flatnonzero(sweep.timed)
    table = sweep.table.iloc[timed].reset_index(drop=True)
    points = [environment_of(sweep.points[at], bool(sweep.fast[at])) for at in timed]
    runs = take_apart(calibration, points)
    table = table.assign(sick=sick(table), nodes=table["num_gpus"] / table["gpus_per_node"])
    model, ill = table["model"].to_numpy(str), table["sick"].to_numpy(bool)
    error = np.zeros(len(table))
    for name in np.unique(model):
        rest = runs.only((model != name) & ~ill)
        fitted = descend(rest, default_run(), LAUNCHES["nanotron"])
        own = model == name
        error[own] = errors(runs.only(own), fitted) - np.median(errors(rest, fitted))
    return table.assign(error=error, step_predicted_s=table["step_time_s"] * np.exp(error))


def score_memory(path: Path, run: RunParameters) -> dict[str, float]:
    """Reserved memory of the first rank and out-of-memory, with the constants of allocation fitted
    to the other model sizes. No field that tells a run that ended from one that ran out is read to
    say whether it did; the reserved memory is that with what waits for collectives where a row says
    that its job launched fast.

    Returns rows, mean and median error, and accuracy, recall and precision of running out, the
    accuracy also of plans at `NEAR` times the limit, and the Brier score of its probability.
    """
    points, tensors, needed = sweep_tensors(read_sweep(path, run), run)
    model = np.array([point.request.model.name for point in points])
    error, ratio = np.zeros(len(points)), np.zeros(len(points))
    for name in np.unique(model):
        own = model == name
        factors = fit_allocation(tensors.only(~own), run, "nanotron", needed.only(~own))
        adds = allocation(replace(run, factors=factors), "nanotron")
        held = tensors.only(own)
        reserved = held.reserved(adds.held, adds.fragmentation)
        first = reserved[np.arange(len(held.first)), held.first]
        error[own] = np.log(first / held.measured)
        peak = needed.only(own).reserved(adds.held, adds.fragmentation).max(axis=1)
        ratio[own] = (peak + beside(held.divided, adds.context)) / held.capacity
    over = ratio > 1.0
    near = (ratio > NEAR[0]) & (ratio < NEAR[1])
    share = np.abs(np.expm1(error[np.isfinite(error)]))
    right = float((over & tensors.out).sum())
    return {
        "rows": len(share),
        "mean": float(share.mean()),
        "median": float(np.median(share)),
        "accuracy": float((over == tensors.out).mean()),
        "near": float((over == tensors.out)[near].mean()),
        "recall": right / float(tensors.out.sum()),
        "precision": right / float(over.sum()),
        "brier": float(np.mean((ndtr(np.log(ratio) / run.memory_sigma) - tensors.out) ** 2)),
    }


def figures(table: pd.DataFrame) -> dict[str, float]:
    """Rows, mean and median error of a step time."""
    share = np.abs(np.expm1(table["error"]))
    return {"rows": len(table), "mean": float(share.mean()), "median": float(share.median())}


def rank_correlation(table: pd.DataFrame, least: int = 8) -> float:
    """Spearman's correlation of predicted and measured tokens per second of plans within a model
    and a number of nodes, mean over those with `least` plans."""
    found = []
    for _, own in table.groupby(["model", "nodes"]):
        if len(own) >= least:
            rate = own["global_batch"] / own["step_time_s"]
            said = own["global_batch"] / own["step_predicted_s"]
            found.append(float(rate.rank().corr(said.rank())))
    return float(np.mean(found))


def by_field(table: pd.DataFrame) -> Mapping[str, pd.DataFrame]:
    """Errors against every field of a plan that may drive them."""
    share = table.assign(share=np.abs(np.expm1(table["error"])))
    return {
        name: share.groupby(name).agg(
            rows=("error", "size"), bias=("error", "mean"), median=("share", "median")
        )
        for name in FIELDS
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line: print the scores."""
    parser = argparse.ArgumentParser(description="Score the nanotron sweep, model sizes left out.")
    parser.add_argument("shared", type=Path)
    parser.add_argument("--calibration", default="kernels-only")
    given = parser.parse_args(arguments)
    path = given.shared / "bulk" / "training" / "nanotron_sweep.csv"
    table = score_sweep(path, load(given.calibration))
    for label, own in (("all rows", table), ("without sick machines", table[~table["sick"]])):
        found = figures(own)
        print(
            f"{label}: {found['rows']:.0f} rows, mean {found['mean']:.1%}, median "
            f"{found['median']:.1%}, rank correlation {rank_correlation(own):.3f}"
        )
    kept = score_memory(path, default_run())
    print(
        f"reserved memory: {kept['rows']} rows, mean {kept['mean']:.1%}, median "
        f"{kept['median']:.1%}; out of memory: accuracy {kept['accuracy']:.1%}, near the "
        f"limit {kept['near']:.1%}, recall "
        f"{kept['recall']:.3f}, precision {kept['precision']:.3f}, Brier score {kept['brier']:.4f}"
    )
    for own in by_field(table[~table["sick"]]).values():
        print(f"\n{own.round(3).to_string()}")


if __name__ == "__main__":
    main()

"""How good the plan is that would have been chosen: on the nanotron sweep, of each model on each
number of nodes, the throughput of the plan predicted to be fastest over that of the fastest one
measured. Run parameters are fitted to the other model sizes.

    python -m calibration.checks.plans ../shared [--calibration kernels-only]
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from calibration.checks.sweep import score_sweep
from predictor.arrays import Array
from predictor.catalog import load
from predictor.timing import Calibration

CLOSE = 0.95
"""A choice is close whose throughput is at least this share of the best measured."""

PLAN = ("tp", "pp", "dp", "micro_batch")


def by_rule(own: pd.DataFrame) -> int:
    """Position of the plan that a rule of thumb takes: as little model parallelism as runs, tensor
    before pipeline (Narayanan et al. 2021, takeaways 1 and 2), and the largest micro-batch. It is
    told which plans ran."""
    ways = (own["tp"] * own["pp"]).to_numpy(float)
    order = np.lexsort((-own["micro_batch"].to_numpy(float), own["pp"].to_numpy(float), ways))
    return int(order[0])


def choices(table: pd.DataFrame, tie: float) -> pd.DataFrame:
    """One row for each model and number of nodes with two plans or more.

    table   rows of the sweep with `step_predicted_s` (`sweep.score_sweep`)
    tie     predicted times within this factor of the least are ties

    `share` is the chosen plan's throughput over the best measured, `thumb` that of the plan which a
    rule of thumb takes (`by_rule`), `middle` that of the middle plan, `rank` its measured place,
    `tied` how many plans tie with it, `among` the best measured of those over the best of all.
    """
    rows = []
    for (model, nodes), own in table.groupby(["model", "nodes"]):
        if len(own) < 2:
            continue
        step, said, batch, length = (
            own[name].to_numpy(float)
            for name in ("step_time_s", "step_predicted_s", "global_batch", "seq_len")
        )
        measured, predicted = batch * length / step, batch * length / said
        chosen, best = int(np.argmax(predicted)), int(np.argmax(measured))
        tied = predicted * tie >= predicted.max()
        plans = own[list(PLAN)].to_numpy(float)

        def told(at: int, plans: Array = plans) -> str:
            return " ".join(f"{n} {v:g}" for n, v in zip(PLAN, plans[at], strict=True))

        rows.append(
            {
                "model": model,
                "nodes": nodes,
                "plans": len(own),
                "share": measured[chosen] / measured.max(),
                "thumb": measured[by_rule(own)] / measured.max(),
                "middle": float(np.median(measured)) / measured.max(),
                "rank": int((measured > measured[chosen]).sum()) + 1,
                "tied": int(tied.sum()),
                "among": measured[tied].max() / measured.max(),
                "chosen": told(chosen),
                "best": told(best),
                "chosen_error": said[chosen] / step[chosen] - 1.0,
                "best_error": said[best] / step[best] - 1.0,
            }
        )
    return pd.DataFrame(rows)


def scored(shared: Path, known: Calibration) -> tuple[pd.DataFrame, float]:
    """The sweep predicted with its model sizes left out in turn, and the factor within which
    predicted times are ties."""
    table = score_sweep(shared / "bulk" / "training" / "nanotron_sweep.csv", known)
    return table, math.exp(known.interval_q * math.sqrt(2.0) * known.run.sigma_plan)


SHOWN = {
    "share": "predicted to be fastest",
    "among": "the best of those that are told to tie with it",
    "thumb": "by a rule of thumb",
    "middle": "the middle one",
}
"""Columns of `choices` that are shown, in words."""


def plan_lines(shared: Path, known: Calibration) -> list[str]:
    """A table of how good chosen plans are, beside those of a rule of thumb."""
    table, tie = scored(shared, known)
    lines = [
        "| plan | groups | within 5 % of the best | mean throughput over the best | least |",
        "|---|---:|---:|---:|---:|",
    ]
    found = choices(table, tie)
    for name, what in SHOWN.items():
        own = found[name]
        lines.append(
            f"| {what} | {len(own)} | {np.mean(own >= CLOSE):.0%} | {own.mean():.1%} | "
            f"{own.min():.0%} |"
        )
    return lines


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line: print the share of groups whose choice is close, and the others."""
    parser = argparse.ArgumentParser(description="Score the choice of plans on the sweep.")
    parser.add_argument("shared", type=Path)
    parser.add_argument("--calibration", default="kernels-only")
    given = parser.parse_args(arguments)
    table, tie = scored(given.shared, load(given.calibration))
    for label, rows in (("all rows", table), ("without sick machines", table[~table["sick"]])):
        found = choices(rows, tie)
        close = np.mean(found["share"] >= CLOSE)
        print(
            f"{label}: {len(found)} groups, the choice is within {1 - CLOSE:.0%} of the best in "
            f"{close:.0%}, median share {found['share'].median():.3f}; the best of its ties "
            f"({found['tied'].median():g} in the median) in {np.mean(found['among'] >= CLOSE):.0%}"
        )
    far = found[found["share"] < CLOSE].drop(columns=["tied"]).round(3)
    print(f"\nfurther off, without sick machines:\n{far.to_string(index=False)}")


if __name__ == "__main__":
    main()

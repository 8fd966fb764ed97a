"""Where published plans stand among all plans of their machine, and why.

    python -m calibration.checks.winners data/reference/training.csv [--sources megatron_sc21,...]

Each published configuration is searched twice: among layouts with the recomputation, sharding and
sequence parallelism that were published (what its authors could tune), and with these free too
(none or ZeRO-1; 1F1B).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from calibration.sources.reading import read_table
from calibration.tables.cells import check_runs
from calibration.tables.runs import Point, Skipped, point_of
from predictor.arrays import Numeric
from predictor.catalog import load
from predictor.errors import InputError
from predictor.memory import memory
from predictor.plans import TrainingPlan
from predictor.search import (
    Limits,
    Ratio,
    SearchResult,
    brief,
    differences,
    ratio,
    search_train,
    timed,
    timed_again,
)
from predictor.timing import Calibration

SOURCES = (
    "megatron_sc21",
    "megatron_seqsel_2205",
    "nemo_docs_perf",
    "nemo_docs_web",
    "megatron_bridge_perf",
)

WHOLE = Limits(memory_fraction=1.0)
"""Published plans fill the memory as far as it goes."""


@dataclass(frozen=True, slots=True)
class Standing:
    """A published plan among the plans of its machine.

    rank, of   plans that are predicted faster, plus one; plans that fit
    over       step time over the best one's, its interval
    best       the best plan
    costs      (term, seconds more than the best), largest first
    freed      step time over the best one's where recomputation and sharding are free too
    fits       whether the published plan is predicted to fit
    """

    point: Point
    rank: int
    of: int
    over: Ratio
    best: TrainingPlan
    costs: list[tuple[str, float]]
    freed: float
    fits: bool


def number(value: Numeric) -> float:
    """A field of a single plan."""
    return float(np.asarray(value))


def standing(point: Point, calibration: Calibration) -> Standing:
    """Search around a published plan. Raises InputError where nothing is possible or fits."""
    request, plan = point.request, point.request.plan

    def search(fields: dict[str, object], prune: bool) -> SearchResult:
        whole = {
            "gpus": int(number(plan.gpus)),
            "global_batch": int(number(plan.global_batch)),
            "seq_len": int(number(plan.seq_len)),
            "schedule": plan.schedule,
            "cp_kind": plan.cp_kind,
            "rank_order": plan.rank_order,
            **fields,
        }
        return search_train(
            request.model, request.cluster, whole, calibration, WHOLE, prune=prune, around=plan
        )

    own: dict[str, object] = {
        "recompute": plan.recompute,
        "sharding": plan.sharding,
        "sequence_parallel": number(plan.sequence_parallel) > 0,
    }
    if own["sequence_parallel"] or number(plan.tp) == 1:
        own["sequence_parallel"] = [False, True]  # without tensor parallelism it says nothing
    if plan.recompute == "selective":
        own["recompute_modules"] = plan.recompute_modules
    if plan.recompute == "full":
        own["recompute_share"] = number(plan.recompute_share)
    found = search(own, prune=False)
    free = search({"sharding": sorted({"none", "zero1", plan.sharding})}, prune=True)
    (mine,) = timed(request.model, request.cluster, plan, calibration)
    (best,) = timed_again(found, [0])
    held = float(memory(request.model, plan, calibration.run).peak)
    return Standing(
        point=point,
        rank=int(np.sum(found.step_time < mine.step_time * (1 - 1e-9))) + 1,
        of=len(found),
        over=ratio(mine, best, calibration),
        best=found.plan(0),
        costs=differences(mine, best),
        freed=mine.step_time / float(free.step_time[0]),
        fits=held <= float(request.cluster.accelerator.memory),
    )


def published(table: Path, sources: Sequence[str], calibration: Calibration) -> list[Point]:
    """Distinct configurations of some sources: the fastest plan of each model, machine, number of
    accelerators, batch, length and precision, which is the one its authors would keep."""
    best: dict[tuple[object, ...], tuple[float, Point]] = {}
    for row in check_runs(read_table(table), str(table)).to_dict("records"):
        if row["source"] not in sources:
            continue
        point = point_of(row, calibration.run)
        if isinstance(point, Skipped):
            continue
        plan = point.request.plan
        key = (
            row["source"],
            point.request.model.name,
            point.request.cluster.accelerator.name,
            number(plan.gpus),
            number(plan.global_batch),
            number(plan.seq_len),
            plan.precision,
        )
        time = float(row["step_time_s"])
        if np.isfinite(time) and (key not in best or time < best[key][0]):
            best[key] = (time, point)
    return [point for _, point in best.values()]


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line: print a row for each published configuration, and a summary."""
    parser = argparse.ArgumentParser(description="Where published plans stand among all plans.")
    parser.add_argument("table", type=Path)
    parser.add_argument("--sources", default=",".join(SOURCES))
    parser.add_argument("--calibration", default="default")
    given = parser.parse_args(arguments)
    calibration = load(given.calibration)
    rows: list[Standing] = []
    for point in published(given.table, given.sources.split(","), calibration):
        try:
            found = standing(point, calibration)
        except InputError as error:
            print(f"{point.point_id}: {error}")
            continue
        rows.append(found)
        term, more = found.costs[0] if found.rank > 1 else ("", 0.0)
        print(
            f"{point.point_id}: rank {found.rank} of {found.of:,}, {found.over.value - 1:+.1%}"
            f"{' (tie)' if found.over.tie else ''}, {found.freed - 1:+.1%} with all free"
            f"{'' if found.fits else ', predicted not to fit'}"
        )
        print(f"    published {brief(point.request.plan)}")
        if found.rank > 1:
            print(f"    best      {brief(found.best)}; most by {term} {more:+.3g} s")
    if rows:
        over = np.array([row.over.value for row in rows])
        ties = np.mean([row.over.tie for row in rows])
        share = np.median([row.rank / row.of for row in rows])
        print(
            f"{len(rows)} configurations: median {np.median(over) - 1:.1%} over the best, within "
            f"5 %: {np.mean(over <= 1.05):.0%}, a tie with the best: {ties:.0%}, median place "
            f"{share:.1%} from the top"
        )


if __name__ == "__main__":
    main()

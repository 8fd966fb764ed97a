"""`reckon sweep`, `explore` and `study`: verbs of many predictions."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from predictor.errors import InputError
from reckon.console.flags import argument, calibration_option, json_option, option
from reckon.console.progress import progress, working

if TYPE_CHECKING:
    from reckon.explore import Grid


@click.command(
    epilog="Example: reckon sweep grid.yaml --out swept --workers 8",
    params=[
        argument("grid", "GRID.yaml"),
        option("out", "Parquet dataset to fill.", "DIR", required=True),
        option("workers", "Processes (default: all cores).", "N", int),
        option("cluster", "Dask scheduler instead.", "tcp://HOST:PORT"),
        option("chunk", "Cells of a file.", "N", int),
        calibration_option(),
        json_option(),
    ],
)
def sweep(grid: str, out: str, json: str | None, **rest: Any) -> int:
    """Predict every combination of a grid, in parallel; run again to resume or to add.

    GRID.yaml: keys of a plan, with lists.
    """
    from reckon.sweeping import sweep

    with progress("sweeping") as told:
        found = sweep(grid, out, progress=told, **rest)
    _write(json, found.to_dict())
    if json != "-":
        from reckon.sweeping.report import show_swept

        show_swept(found)
    return 0


@click.command(
    epilog="Example: reckon explore grid.yaml --out grid.parquet",
    params=[
        argument("grid", "GRID.yaml", type=Path),
        option(
            "out", "Write to a .parquet, .csv or .html; repeatable.", "FILE", Path, multiple=True
        ),
        json_option(),
    ],
)
def explore(grid: Path, out: tuple[Path, ...], json: str | None) -> int:
    """Sweep fields of model, plan, machine or technology; find the best shares of a budget.

    GRID.yaml: model, system or technology (`reckon show technology`), plan, and under sweep lists
    by SECTION.FIELD (plan.tp, technology.node); or optimise, with over: {FIELD: [low, high]}.
    """
    from reckon.explore import explore, read_grid
    from reckon.explore.report import check_target, measure, terminal, write

    for path in out:
        check_target(path)
    wanted = read_grid(grid)
    if wanted.spec.optimise:
        if out:
            raise InputError(f"{out[0]}: an optimum has no points to write: --json writes it")
        return _optimise(wanted, json)
    with progress("exploring") as told:
        found = explore(wanted, progress=lambda done, whole: told(done / max(whole, 1)))
    for path in out:
        write(path, found)
    content = {
        "schema_version": 1,
        "inputs": wanted.spec.to_dict(defaults=False),
        "points": found.table.to_dict("records") if json else [],
        "refused": [{**values, "reason": reason} for values, reason in found.refused],
    }
    _write(json, content)
    if json != "-":
        print(terminal(found))
    column, _ = measure(found)
    empty = int(found.table[column].isna().sum())
    if empty:
        whole = len(found.table)
        first = found.table[list(wanted.axes)][found.table[column].isna()].iloc[0]
        which = ", ".join(f"{name} {value}" for name, value in first.items()) or "the only one"
        print(f"reckon: {empty} of {whole} points have no {column}: {which:.80}", file=sys.stderr)
    return 2 if empty else 0


def _optimise(grid: Grid, json: str | None) -> int:
    from reckon.explore.optimise import optimise

    with working("optimising"):
        found = optimise(grid)
    objective = grid.spec.optimise.get("objective", "tokens_per_s")
    own = found.machine.accelerator
    areas = {name: float(area) * 1e6 for name, area in found.machine.areas.items()}
    content = {
        "schema_version": 1,
        "inputs": grid.spec.to_dict(defaults=False),
        "best": found.values,
        "objective": objective,
        "score": found.score,
        "as_stated": found.before,
        "tried": found.tried,
        "machine": {
            "bf16_tflops": float(own.peak.get("bf16", own.peak["fp16"])) / 1e12,
            "memory_gib": float(own.memory) / 2**30,
            "memory_bandwidth_gbs": float(own.bandwidth) / 1e9,
            "power_w": float(found.machine.power),
            "area_mm2": areas,
        },
    }
    _write(json, content)
    if json == "-":
        return 0
    print(f"best of {found.tried:,} machines by {objective.replace('_', ' ')}")
    for name, value in found.values.items():
        print(f"  {name:32} {value:,.4g}")
    gain = found.score / found.before - 1.0 if found.before else float("nan")
    print(f"  {objective:32} {found.score:,.4g}  ({gain:+.1%} over the budget as stated)")
    if grid.spec.workload == "training":
        from predictor.search import brief

        print(f"  by the plan {brief(found.plan)}")
    for name, area in areas.items():
        print(f"  {name:32} {area:,.0f} mm2")
    return 0


@click.command(
    epilog="Example: reckon study nodes --out studies",
    params=[
        argument("name", "NAME|FILE.yaml"),
        option("out", "For NAME.html, .csv and .md.", "DIR", Path, default="studies"),
        click.Option(["--html/--no-html", "page"], default=True, help="The page of figures."),
        json_option(),
    ],
)
def study(name: str, out: Path, page: bool, json: str | None) -> int:
    """Run a study: figures, tables and a page of reading.

    NAME: one that ships ('list': which).
    """
    from reckon.studies import names, study

    if name == "list":
        print("\n".join(names()))
        return 0
    found = study(name)
    paths = found.write(out, page)
    tables = {key: table.to_dict("records") for key, table in found.result.tables.items()}
    _write(json, {"schema_version": 1, "title": found.title, "tables": tables})
    if json != "-":
        print(f"{found.title}\n\n{found.reading.strip()}\n")
        print("written: " + ", ".join(str(path) for path in paths))
    return 0


def _write(json: str | None, content: Any) -> None:
    """Write a result as JSON, where that is asked for."""
    if json:
        from reckon.console.files import write_json

        write_json(json, content)

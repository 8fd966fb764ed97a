"""The verbs `reckon explore` and `reckon study`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from reckon.console.flags import Json


def register(app: typer.Typer) -> None:
    """Add the verbs to the command line."""
    app.command("explore", epilog="Example: reckon explore grid.yaml --out grid.parquet")(explore)
    app.command("study", epilog="Example: reckon study nodes --out studies")(study)


def explore(
    grid: Annotated[Path, typer.Argument(metavar="GRID.yaml", help="What is swept.")],
    out: Annotated[
        list[Path] | None,
        typer.Option(
            "--out", metavar="FILE", help="Write to a .parquet, .csv or .html; repeatable."
        ),
    ] = None,
    json: Json = None,
) -> None:
    """Sweep fields of model, plan, machine or technology; find the best shares of a budget."""
    from reckon.console.files import write_json
    from reckon.explore import explore as run
    from reckon.explore import read_grid
    from reckon.explore.report import check_target, terminal, write

    for path in out or []:
        check_target(path)
    wanted = read_grid(grid)
    if wanted.spec.optimise:
        raise typer.Exit(_optimise(wanted, json))
    found = run(wanted, progress=_progress if sys.stderr.isatty() else None)
    for path in out or []:
        write(path, found)
    if json:
        content = {
            "schema_version": 1,
            "inputs": wanted.spec.model_dump(exclude_defaults=True),
            "points": found.table.to_dict("records"),
            "refused": [{**values, "reason": reason} for values, reason in found.refused],
        }
        write_json(json, content)
    if json != "-":
        print(terminal(found))


def _progress(done: int, whole: int) -> None:
    end = "\n" if done >= whole else ""
    print(f"\r{done:,} of {whole:,} points", end=end, file=sys.stderr, flush=True)


def _optimise(grid: Any, json: str | None) -> int:
    from reckon.console.files import write_json
    from reckon.explore.optimise import optimise

    found = optimise(grid)
    objective = grid.spec.optimise.get("objective", "tokens_per_s")
    own = found.machine.accelerator
    content = {
        "schema_version": 1,
        "inputs": grid.spec.model_dump(exclude_defaults=True),
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
            "area_mm2": {name: float(area) * 1e6 for name, area in found.machine.areas.items()},
        },
    }
    if json:
        write_json(json, content)
    if json != "-":
        print(f"best of {found.tried:,} machines by {objective.replace('_', ' ')}")
        for name, value in found.values.items():
            print(f"  {name:32} {value:,.4g}")
        gain = found.score / found.before - 1.0 if found.before else float("nan")
        print(f"  {objective:32} {found.score:,.4g}  ({gain:+.1%} over the budget as stated)")
        if grid.spec.workload == "training":
            from predictor.search import brief

            print(f"  by the plan {brief(found.plan)}")
        for name, area in content["machine"]["area_mm2"].items():
            print(f"  {name:32} {area:,.0f} mm2")
    return 0


def study(
    name: Annotated[
        str, typer.Argument(metavar="NAME|FILE.yaml", help="One that ships ('list': which).")
    ],
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="For NAME.html, .csv and .md.")
    ] = Path("studies"),
    page: Annotated[
        bool, typer.Option("--html/--no-html", help="The page of figures (needs plotly).")
    ] = True,
    json: Json = None,
) -> None:
    """Run a study: figures, tables and a page of reading."""
    from reckon.studies import names
    from reckon.studies import study as run

    if name == "list":
        print("\n".join(names()))
        return
    found = run(name)
    paths = found.write(out, page)
    if json:
        from reckon.console.files import write_json

        tables = {k: table.to_dict("records") for k, table in found.result.tables.items()}
        write_json(json, {"schema_version": 1, "title": found.title, "tables": tables})
    if json != "-":
        print(f"{found.title}\n\n{found.reading.strip()}\n")
        print("written: " + ", ".join(str(path) for path in paths))

"""`reckon import runs`: logs of one's own runs as a table that every other verb reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from calibration.tables.cells import check_runs
from predictor.errors import InputError
from predictor.files import write_whole
from reckon.logs import read_log, rows_of
from reckon.logs.rows import Given, Read
from reckon.verbs.importing import WRITERS


def read_runs(
    path: str | Path | Sequence[str | Path],
    fields: Mapping[str, Any] | None = None,
    model: Any = None,
    system: str | None = None,
    launch: tuple[str, str] = ("", ""),
    form: str = "",
    source: str = "own",
) -> pd.DataFrame:
    """Runs of one's own as rows of a table that `validate`, `calibrate` and `adapt` read.

    path     a log, report or table, or several: one run each
    fields   keys of a plan that the files do not say (`reckon show fields`); they count
    model    catalog name, config.json or mapping, where the files do not say it
    system   name or file of the machine
    launch   dialect ('megatron', ...) and the launch line or its file
    form     the files' form; found out if empty
    source   what the table calls the source

    Returns a row for each training run; for a report of serving, one for each of its metrics.
    Raises InputError for files that cannot be read, and where nothing says the time of a step.
    """
    given = Given(dict(fields or {}), model, system, launch, source)
    paths = [path] if isinstance(path, str | Path) else list(path)
    return table([read_one(Path(one), given, form) for one in paths])


def read_one(path: Path, given: Given, form: str = "") -> Read:
    """Rows of one file, with what is missing; HuggingFace's `config.json` beside a trainer's state
    is its model."""
    beside = path.parent / "config.json"
    found = read_log(path, form)
    own_model = getattr(found, "form", "") == "trainer-state" and beside.is_file()
    if own_model and given.model is None:
        given = Given(given.fields, str(beside), given.system, given.launch, given.source)
    return rows_of(found, path, given)


def table(found: Sequence[Read]) -> pd.DataFrame:
    """Rows of several files as one table, point ids told apart."""
    rows: list[dict[str, Any]] = []
    seen: dict[str, int] = {}
    for one in found:
        for row in one.rows:
            name = str(row["point_id"])
            seen[name] = seen.get(name, 0) + 1
            again = f"{name}-{seen[name]}" if seen[name] > 1 else name
            rows.append({**row, "point_id": again})
    kinds = {"input_len" in row for row in rows}
    if len(kinds) > 1:
        raise InputError("training runs and reports of serving do not go into one table; "
                         "import them apart")  # fmt: skip
    made = pd.DataFrame(rows)
    key = "input_len" if kinds == {True} else "global_batch"
    return made if key in made else made.assign(**{key: float("nan")})


def import_runs(
    paths: Sequence[str | Path],
    out: str | Path,
    given: Given,
    form: str = "",
) -> dict[str, Any]:
    """Read logs and reports and write them as one table, whole or not at all.

    Returns what `--json` writes: rows, and of each file its steps and what is missing. Raises
    InputError.
    """
    place = Path(out)
    endings = [ending for ending in WRITERS if place.name.endswith(ending)]
    if not endings:
        raise InputError(f"--out {out}: expected a .parquet, .csv or .csv.gz file")
    read = [read_one(Path(path), given, form) for path in paths]
    rows = table(read)
    check_runs(rows, place.name)
    write_whole(place, lambda temporary: WRITERS[endings[0]](rows, temporary))
    return {
        "schema_version": 1,
        "kind": "runs",
        "out": str(out),
        "rows": len(rows),
        "files": [
            {
                "path": str(path),
                "rows": [dict(row) for row in one.rows],
                "missing": dict(one.missing),
                "notes": list(one.notes),
            }
            for path, one in zip(paths, read, strict=True)
        ],
    }

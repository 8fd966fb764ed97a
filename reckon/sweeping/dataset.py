"""The dataset that a sweep fills: a folder of Parquet files, each a chunk, each there whole or not.

A file is named after its cells, so that a chunk that is done twice (by a worker thought lost, by a
second run) replaces itself and counts once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from predictor.errors import InputError
from predictor.files import write_whole

TYPES = {"string": pa.string(), "double": pa.float64(), "int64": pa.int64(), "bool": pa.bool_()}


def path_of(folder: Path, chunk: str) -> Path:
    """File of a chunk."""
    return folder / f"part-{chunk}.parquet"


def parts(folder: Path) -> list[Path]:
    """Files of the dataset."""
    return sorted(folder.glob("part-*.parquet"))


def done(folder: Path, verb: str) -> set[str]:
    """Identities of the cells that the dataset holds.

    Raises InputError for files of something else.
    """
    found: set[str] = set()
    for path in parts(folder):
        try:
            table = pq.read_table(path, columns=["cell", "verb"])
        except (OSError, ValueError, KeyError, pa.ArrowException):
            raise InputError(f"{path} is no part of a sweep; give another --out") from None
        others = set(table.column("verb").to_pylist()) - {verb}
        if others:
            raise InputError(f"{path} is of a sweep of '{others.pop()}'; give another --out")
        found.update(table.column("cell").to_pylist())
    return found


def write_part(
    folder: Path, chunk: str, rows: list[dict[str, Any]], columns: dict[str, str]
) -> None:
    """Write a chunk's rows under a temporary name, then rename.

    Raises InputError where the folder cannot be written to.
    """
    schema = pa.schema([(name, TYPES[kind]) for name, kind in columns.items()])
    made = [{name: _as(kind, row.get(name)) for name, kind in columns.items()} for row in rows]
    table = pa.Table.from_pylist(made, schema=schema)
    write_whole(path_of(folder, chunk), lambda path: pq.write_table(table, path))


def _as(kind: str, value: Any) -> Any:
    if value is None:
        return None
    convert = {"string": str, "double": float, "int64": int, "bool": bool}
    return convert[kind](value)

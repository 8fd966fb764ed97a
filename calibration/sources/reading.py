"""Tables of points and kernels read from files, whatever they hold."""

from __future__ import annotations

import csv
import zlib
from pathlib import Path

import pandas as pd

from predictor.errors import InputError
from predictor.files import unpacked

MARKS = {";": ",", "\t": "."}
"""What separates columns where commas do not, and its mark of decimals, as spreadsheets write."""

SAID = ("recompute", "dp_sharding")
"""Columns in which None, which pandas takes for an empty cell as it is written, says something."""


def read_table(path: Path) -> pd.DataFrame:
    """Read a kernel or point table (.csv, .csv.gz, .parquet).

    Raises InputError, one line, for a file that is missing, truncated or of another kind.
    """
    name = path.name
    try:
        if name.endswith(".parquet"):
            return pd.read_parquet(path)
        if name.endswith((".csv", ".csv.gz")):
            head = [str(one) for one in pd.read_csv(unpacked(path), nrows=0).columns]
            mark = next((m for m in MARKS if len(head) == 1 and m in head[0]), ",")
            decimal = MARKS.get(mark, ".")
            table = pd.read_csv(
                unpacked(path), sep=mark, decimal=decimal, low_memory=False,
                converters=dict.fromkeys(SAID, str.lower),
            )  # fmt: skip
            if name.endswith(".csv") and mark == "," and _cut_off(path, table.shape[1]):
                raise ValueError("its last line is cut off")
            return table
    except FileNotFoundError:
        raise InputError(f"no such file: {path}") from None
    except (OSError, ValueError, EOFError, zlib.error) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"{path} cannot be read as a table: {reason}") from None
    raise InputError(
        f"{path}: expected a .parquet, .csv or .csv.gz file (logs and reports: reckon import runs)"
    )


def _cut_off(path: Path, columns: int) -> bool:
    """Whether a CSV file ends within a line, before its last column."""
    with path.open("rb") as stream:
        stream.seek(max(path.stat().st_size - 65536, 0))
        tail = stream.read().decode("utf-8", "replace")
    last = tail.rpartition("\n")[2]
    return last != "" and len(next(csv.reader([last]))) < columns

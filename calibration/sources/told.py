"""What is known of a published row beside its columns: cells that follow from its source
(`data/reference/amended.csv`), and what its free text says (`data/reference/noted.csv`, words that
fill columns)."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from predictor import catalog

Row = Mapping[Any, Any]


def _empty(row: Row, column: str) -> bool:
    value = row.get(column)
    return value is None or value == "" or (isinstance(value, float) and math.isnan(value))


@lru_cache(maxsize=8)
def _lines(path: Path) -> tuple[dict[str, str], ...]:
    if not path.is_file():  # data of one's own need not know of published rows
        return ()
    with path.open(newline="", encoding="utf-8") as stream:
        return tuple(csv.DictReader(stream))


@lru_cache(maxsize=8)
def _amendments(path: Path) -> Mapping[tuple[str, str], tuple[dict[str, str], ...]]:
    found: dict[tuple[str, str], tuple[dict[str, str], ...]] = {}
    for line in _lines(path):
        key = (line["source"], line["point_id"])
        found[key] = (*found.get(key, ()), line)
    return found


@lru_cache(maxsize=256)
def _phrases(
    path: Path, table: str, source: str
) -> tuple[tuple[re.Pattern[str], dict[str, str]], ...]:
    """Words to look for in the notes of a table's rows of a source, and what they say."""
    lines = (line for line in _lines(path) if line["table"] == table)
    own = (line for line in lines if line["source"] in ("", source))
    return tuple((re.compile(line["words"], re.IGNORECASE), line) for line in own)


def amended(row: Row) -> Row:
    """A row with the cells that `amended.csv` knows of it: empty ones that follow from its source,
    and those that the table itself calls a guess, or that its page has otherwise."""
    known = _amendments(catalog.data_dir() / "reference" / "amended.csv")
    for line in known.get((str(row.get("source")), str(row.get("point_id"))), ()):
        if line["guessed"] == "1" or _empty(row, line["column"]):
            row = {**row, line["column"]: line["value"]}
    return row


def noted(row: Row, table: str) -> Row:
    """A row with the empty cells that the words of its `notes` fill.

    table   'training', 'inference' or 'collectives'
    """
    if _empty(row, "notes"):
        return row
    path = catalog.data_dir() / "reference" / "noted.csv"
    said = _said(path, table, str(row.get("source", "")), str(row["notes"]))
    found = {column: value for column, value in said if _empty(row, column)}
    return {**row, **found} if found else row


@lru_cache(maxsize=4096)
def _said(path: Path, table: str, source: str, notes: str) -> tuple[tuple[str, str], ...]:
    """What notes of a source's rows say: columns and what fills them, the last of each counts."""
    lines = _phrases(path, table, source)
    found = ((line, words.search(notes)) for words, line in lines)
    return tuple((line["column"], one.expand(line["value"])) for line, one in found if one)

"""Cells of tables of runs: what they hold, and the refusal of what they cannot."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

import numpy as np
import pandas as pd

from predictor.errors import InputError
from predictor.schema import ENDLESS, RUN_NUMBERS


def cell(row: Mapping[str, Any], key: str) -> Any:
    """A cell, None where it is empty; whole floats become integers."""
    value = row.get(key)
    if value is None or (isinstance(value, float) and math.isnan(value)) or value == "":
        return None
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


BLANKS = ("", "-", "\u2013", "\u2014", "?", "n/a", "n.a.", "na", "none", "null", "unknown")
"""What people write into a cell of which there is nothing to say, in any case."""

THOUSANDS, LENGTHS = r"(\d+(?:\.\d+)?)\s*[kK]", ("input_len", "output_len", "seq_len")
"""Lengths as people write them, in 1,024 tokens, and the columns that have them."""

GROUPED = r"\d{1,3}(,\d{3})+(\.\d+)?"
"""A number whose thousands are set apart."""


def check_runs(table: pd.DataFrame, where: str) -> pd.DataFrame:
    """A table of runs with its numbers as such ('1,024' is one, a dash is none), and a name of
    every run.

    where   the table's file, or what it is of

    Raises InputError, naming the line (the first row is line 2) and the column, where a column of
    numbers holds something else.
    """
    checked = table.copy()
    for column in (name for name in RUN_NUMBERS if name in table):
        given = table[column]
        said = given.astype(str).str.strip()
        given = given.where(given.notna() & ~said.str.lower().isin(BLANKS))
        if column in ENDLESS:
            given = given.mask(said == "\u221e", "inf")
        if column in LENGTHS:
            many = said.str.fullmatch(THOUSANDS)
            tokens = pd.to_numeric(said.str.extract(THOUSANDS)[0], errors="coerce") * 1024
            given = given.mask(many, tokens.astype(str))
        given = given.mask(said.str.fullmatch(GROUPED), said.str.replace(",", ""))
        values = pd.to_numeric(given, errors="coerce").astype(float)
        finite = np.isfinite(values) | (column in ENDLESS)
        bad = given.notna() & ~((values >= 0) & finite)
        if bad.any():
            row = int(np.argmax(bad.to_numpy()))
            value = given.iloc[row]
            shown = repr(value) if isinstance(value, str) else str(value)
            raise InputError(
                f"{where}, line {row + 2}: {column} must be a number from 0 up, got {shown}"
            )
        checked[column] = values
    return _named(checked, where)


NAMES = ("point_id", "name", "run", "run_name", "id")
"""Columns that name runs, the first that says something."""


def _named(table: pd.DataFrame, where: str) -> pd.DataFrame:
    """A table whose every run has a `point_id`: what names it, else its file and line."""
    file = PurePath(where).name if PurePath(where).suffix else "row"
    found = pd.Series([f"{file}:{line}" for line in range(2, len(table) + 2)], index=table.index)
    for column in reversed([name for name in NAMES if name in table]):
        told = table[column].astype(str).str.strip()
        found = told.where(table[column].notna() & (told != ""), found)
    table["point_id"] = found
    return table

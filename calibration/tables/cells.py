"""Cells of tables of runs: what they hold, and the refusal of what they cannot."""

from __future__ import annotations

import math
from collections.abc import Mapping
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


def check_runs(table: pd.DataFrame, where: str) -> pd.DataFrame:
    """A table of runs with its numbers as such.

    Raises InputError, naming the line (the first row is line 2) and the column, where a column of
    numbers holds something else.
    """
    checked = table.copy()
    for column in (name for name in RUN_NUMBERS if name in table):
        given = table[column]
        given = given.where(given.notna() & (given.astype(str).str.strip() != ""))
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
    return checked

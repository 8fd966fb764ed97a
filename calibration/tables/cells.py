"""Cells of tables of runs: what they hold, and the refusal of what they cannot."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
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


BLANKS = ("", "-", "--", "\u2013", "\u2014", "?", "n/a", "n.a.", "null", "unknown", "not stated")
"""What people write into a cell of which there is nothing to say, in any case."""

NOTHING = ("none", "na")
"""What else they write into one of a number; of a text it may be what there is."""

WRITTEN = r"[~\u2248]?\s*(\d{1,3}(,\d{3})+|\d+)(\.\d+)?\s*%?"
"""A number as people write it: about so many, thousands set apart, in per cent."""

MULTIPLES = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9, "t": 1e12}
RATE = r"(tfl?op/?s?(/s)?|tok(en)?s?/s(ec)?|(sample|seq)s?/s(ec)?)(/(gpu|chip|device))?"
AS_MANY = re.compile(
    rf"[~\u2248]?\s*(?P<number>((\d{{1,3}}(,\d{{3}})+|\d+)(\.\d*)?|\.\d+)(e[+-]?\d+)?)\s*"
    rf"(%|(?P<many>[kmbgt])(?![a-z]))?\s*({RATE})?",
    re.IGNORECASE,
)
"""A value as people write it: in thousands or millions, with the unit of a rate behind it."""


def plain_number(said: object) -> float | None:
    """The number that a cell of values says ('7,000', '450k', '42%', '420 TFLOPS'), from 0 up; None
    where it says none."""
    if isinstance(said, bool) or said is None:
        return None
    if isinstance(said, int | float):
        return float(said) if math.isfinite(said) and said >= 0 else None
    found = AS_MANY.fullmatch(str(said).strip())
    if found is None:
        return None
    return float(found["number"].replace(",", "")) * MULTIPLES[(found["many"] or "").lower()]


UNITS = (
    (("seq_len", "input_len", "output_len"), r"tok(en)?s?"),
    (("num_gpus", "gpus_per_node"), r"gpus?|chips?|accelerators?|devices?"),
    (("global_batch", "micro_batch", "batch", "concurrency"),
     r"seq(uence)?s?|samples?|requests?|users?|prompts?"),
)  # fmt: skip
"""What people write behind numbers of columns whose unit it is."""

SCALED = (
    (("memory_gb_per_gpu", "memory_reserved_gb", "peak_gib"),
     {"gb": 1.0, "gib": 1.0, "g": 1.0, "mb": 2.0**-10, "mib": 2.0**-10}),
    (("avg_power_w", "power_per_gpu_w", "power_limit_w", "node_power_w", "power_w",
      "avg_power_per_gpu_w", "median_power_per_gpu_w", "enforced_limit_w"),
     {"w": 1.0, "watt": 1.0, "watts": 1.0, "kw": 1e3}),
    (("energy_per_out_token_j",),
     {"j": 1.0, "joule": 1.0, "joules": 1.0, "j/token": 1.0, "j/tok": 1.0, "mj": 1e-3}),
    (("output_tok_s", "throughput_tok_s"),
     {"tok/s": 1.0, "tokens/s": 1.0, "t/s": 1.0, "tps": 1.0}),
    (("core_clock_mhz",), {"mhz": 1.0, "ghz": 1e3}),
    (("time_s", "step_time_s"), {"s": 1.0, "sec": 1.0, "seconds": 1.0, "ms": 1e-3}),
    (("temp_c",), {"c": 1.0, "\u00b0c": 1.0}),
)  # fmt: skip
"""Units behind numbers of other columns, and by how much a number in them is more."""

COMMA = r"\d+,\d{1,2}"
"""A number whose comma cannot set thousands apart: it is that of decimals."""

RAN_OUT = r"(?i).*\b(oom|out[ _-]?of[ _-]?memory)\b.*"
"""What is written where memory did not suffice."""

IN_TOKENS = r"(\d[\d,.]*\s*[kKM]?)\s*tok(?:en)?s?"
"""A batch in tokens ('4M tokens'): as many sequences as it has of theirs."""

LENGTHS = ("seq_len", "input_len", "output_len")
BINARY = r"\d+(\.\d+)?\s*[kKM]"
"""Columns that people write as 8k, and mean 8,192; and how."""


def _plainly(said: str) -> str:
    return re.sub(r"[~\u2248,%\s]", "", said)


def _length(said: str) -> str:
    number = float(re.sub(r"[^\d.]", "", said) or 0)
    return str(number * (2**20 if said.endswith("M") else 2**10))


def without_units(table: pd.DataFrame) -> pd.DataFrame:
    """A table without the units that stand behind its numbers ('64 GPUs', '4096 tokens'), a batch
    in tokens as sequences."""
    plain = table.copy()
    for columns, unit in UNITS:
        for column in (one for one in columns if one in table and _text(table, one)):
            said = table[column].astype(str).str.strip()
            behind = said.str.replace(rf"(?i)(?<=[\dkKM])\s*({unit})$", "", regex=True)
            plain[column] = table[column].mask(said != behind, behind)
    for scaled, factors in SCALED:
        for column in (one for one in scaled if one in table and _text(table, one)):
            plain[column] = table[column].mask(
                table[column].notna(),
                table[column].map(lambda said, known=factors: _scaled(said, known), "ignore"),
            )
    if "seq_len" in table and "global_batch" in table and _text(table, "global_batch"):
        said = table["global_batch"].astype(str).str.strip().str.extract(rf"^{IN_TOKENS}$")[0]
        each = pd.to_numeric(plain["seq_len"].map(_tokens), errors="coerce")
        whole = pd.to_numeric(said.map(_tokens, "ignore"), errors="coerce") / each
        known = said.notna() & np.isfinite(whole)
        plain["global_batch"] = plain["global_batch"].mask(known, whole.round())
    return plain


def _scaled(said: object, factors: Mapping[str, float]) -> object:
    """A cell without its unit, in that of its column; as it is where it has no known one."""
    found = re.fullmatch(r"([~\u2248]?[\d.,]+)\s*([^\d\s.,%]\S*)", str(said).strip())
    factor = factors.get(found[2].lower()) if found else None
    if found is None or factor is None:
        return said
    if re.fullmatch(COMMA, found[1]):
        return float(found[1].replace(",", ".")) * factor
    return float(_plainly(found[1])) * factor if re.fullmatch(WRITTEN, found[1]) else said


def _text(table: pd.DataFrame, column: str) -> bool:
    return not pd.api.types.is_numeric_dtype(table[column])


def _tokens(said: object) -> object:
    """A number of tokens as people write it ('8k', '4,096'), else what is said."""
    text = str(said).strip()
    return _length(text) if re.fullmatch(BINARY, text) else _plainly(text)


UNREAD = "@unread"
"""Column of what is wrong with a row of which a number cannot be read."""


def check_runs(table: pd.DataFrame, where: str, by_row: bool = False) -> pd.DataFrame:
    """A table of runs with its numbers as such ('1,024' is one, and '8k' of tokens; a dash is
    none), texts where there is something to say, and a name of every run.

    where   the table's file, or what it is of
    by_row  whether a number that is none costs its row alone, as `numbers`

    Raises InputError, naming the line (the first row is line 2) and the column, where a column of
    numbers holds something else.
    """
    checked = table.copy()
    for column in checked.columns.difference([*RUN_NUMBERS, *NAMES]):
        if not pd.api.types.is_numeric_dtype(checked[column]):
            said = checked[column].astype(str).str.strip()
            checked[column] = checked[column].mask(said.str.lower().isin(BLANKS), None)
    return _named(numbers(without_units(_run_out(checked)), RUN_NUMBERS, where, by_row), where)


def _run_out(table: pd.DataFrame) -> pd.DataFrame:
    """A table whose rows say by their status that memory did not suffice, where they write so in
    place of its peak."""
    for column in (one for one in SCALED[0][0] if one in table and _text(table, one)):
        out = table[column].astype(str).str.fullmatch(RAN_OUT, na=False)
        if out.any():
            told = table["status"] if "status" in table else pd.Series(None, table.index, object)
            table = table.assign(status=told.astype(object).mask(out, "OOM"))
            table[column] = table[column].mask(out, None)
    return table


def numbers(
    table: pd.DataFrame, columns: Iterable[str], where: str, by_row: bool = False
) -> pd.DataFrame:
    """A table whose columns of numbers, those that it has, hold such or nothing.

    where   the table's file, or what it is of
    by_row  whether a row with something else is marked in a column `UNREAD`, unless all are

    Raises InputError, naming the line and the column, where one holds something else.
    """
    checked = table.copy()
    unread: dict[int, str] = {}
    for column in (name for name in columns if name in table):
        given = table[column]
        said = given.astype(str).str.strip()
        given = given.where(given.notna() & ~said.str.lower().isin((*BLANKS, *NOTHING)))
        given = given.mask(said.str.fullmatch(WRITTEN, na=False), said.map(_plainly, "ignore"))
        given = given.mask(
            said.str.fullmatch(COMMA, na=False), said.str.replace(",", ".", regex=False)
        )
        if column == "value" and not pd.api.types.is_numeric_dtype(given):
            many = said.map(plain_number)
            given = given.mask(given.notna() & many.notna(), many)
        if column in ENDLESS:
            given = given.mask(said == "\u221e", "inf")
        if column in LENGTHS:
            given = given.mask(said.str.fullmatch(BINARY, na=False), said.map(_length, "ignore"))
        values = pd.to_numeric(given, errors="coerce").astype(float)
        finite = np.isfinite(values) | (column in ENDLESS)
        bad = given.notna() & ~((values >= 0) & finite)
        for row in np.flatnonzero(bad.to_numpy()).tolist():
            value = given.iloc[row]
            shown = repr(value) if isinstance(value, str) else str(value)
            unread.setdefault(row, f"{column} must be a number from 0 up, got {shown}")
        checked[column] = values.mask(bad)
        if unread and (not by_row or len(unread) == len(table)):
            row = min(unread)
            raise InputError(f"{where}, line {row + 2}: {unread[row]}")
    if unread:
        checked[UNREAD] = [unread.get(row) for row in range(len(table))]
    return checked


def filled(table: pd.DataFrame, columns: Sequence[str], where: str) -> pd.DataFrame:
    """A table whose every row has a number above 0 in each of some columns.

    where   the table's file, or what it is of

    Raises InputError, naming the line and the column, where one has not.
    """
    for column in columns:
        if column not in table:
            raise InputError(f"{where}: column {column} is missing; it needs {', '.join(columns)}")
    checked = numbers(table, columns, where)
    for column in columns:
        for row in np.flatnonzero(~(checked[column] > 0)).tolist():
            value = "nothing" if pd.isna(checked[column].iloc[row]) else "0"
            raise InputError(f"{where}, line {row + 2}: {column} must be above 0, got {value}")
    return checked


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

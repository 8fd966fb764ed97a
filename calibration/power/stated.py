"""Tables of power as people write them: which one a file is, its numbers, and columns that it may
lack."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from calibration.power.sweeps import device_of
from calibration.tables.cells import numbers, without_units
from predictor.errors import InputError
from predictor.schema import RUN_NUMBERS

KEYS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "served": (
        ("energy_per_out_token_j", "power_per_gpu_w"),
        ("power_per_gpu_w", "output_tok_s"),
        ("avg_power_w", "output_tok_s"),
        ("energy_per_out_token_j", "output_tok_s"),
    ),
    "sweeps": (
        ("control", "power_limit_w", "avg_power_w"),
        ("power_limit_w", "avg_power_w", "time_s"),
        ("power_limit_w", "avg_power_w", "throughput_tok_s"),
        ("core_clock_mhz", "avg_power_w", "time_s"),
        ("core_clock_mhz", "avg_power_w", "throughput_tok_s"),
    ),
    "kernels": (("enforced_limit_w", "workload"),),
    "heat": (("temp_c", "position"),),
    "training": (("avg_power_per_gpu_w", "node_power_w"),),
    "systems": (("category", "component", "value"),),
}
"""Columns that only one of the tables of power has: all of one of these."""

NUMBERS: Mapping[str, tuple[str, ...]] = {
    "served": (
        "n_gpus", "num_gpus", "gpus_per_node", "tp", "pp", "ep", "dp", "batch", "concurrency",
        "max_num_seqs", "request_rate",
        "input_len", "output_len", "max_output_tokens", "output_tok_s", "energy_per_out_token_j",
        "avg_power_w", "power_per_gpu_w",
    ),
    "sweeps": (
        "batch", "power_limit_w", "time_s", "avg_power_w", "core_clock_mhz", "dram_active",
        "throughput_tok_s",
    ),
    "kernels": ("enforced_limit_w", "avg_power_w", "tflops"),
    "heat": ("temp_c", "power_w"),
    "training": (
        *RUN_NUMBERS, "node_power_w", "median_power_per_gpu_w", "avg_power_per_gpu_w",
    ),
    "systems": (),
}  # fmt: skip
"""Their columns of numbers that are read."""

TEXTS: Mapping[str, tuple[str, ...]] = {
    "served": ("source", "model", "accelerator", "task"),
    "sweeps": ("source", "accelerator", "workload", "control", "group", "time_unit"),
    "kernels": ("source", "accelerator", "workload", "precision"),
    "heat": ("source", "accelerator", "position", "workload"),
    "training": ("source", "accelerator"),
    "systems": ("source",),
}
"""Their columns of words that are read."""

READ: Mapping[str, tuple[str, ...]] = {
    "sweeps": ("power_limit_w", "time_s", "avg_power_w", "core_clock_mhz"),
    "kernels": ("avg_power_w",),
}
"""Columns of numbers that are there in any case, empty where a table has none."""


def power_table(table: pd.DataFrame) -> str | None:
    """Which table of power it is; None: none."""
    there = set(table.columns)
    return next(
        (kind for kind, ways in KEYS.items() if any(there.issuperset(keys) for keys in ways)), None
    )


def check_power(table: pd.DataFrame, kind: str, where: str) -> pd.DataFrame:
    """A table of power with its numbers as such, and every column that its reader asks for: words
    are '' where nothing is said, but `group` the work of a row where none has a name for it.

    kind    of `KEYS`
    where   the table's file, or what it is of

    A row of a table that is read row by row is marked (`UNREAD`) where a number of it is none.
    Raises InputError, naming the line and the column, where a column of numbers of another table,
    or of every row, holds something else.
    """
    checked = numbers(without_units(_of_limits(table)), NUMBERS[kind], where, kind in BY_ROW)
    for column in READ.get(kind, ()):
        if column not in checked:
            checked[column] = float("nan")
    for column in TEXTS[kind]:
        told = checked[column] if column in checked else pd.Series("", index=checked.index)
        checked[column] = told.where(told.notna(), "").astype(str).str.strip()
    if kind == "sweeps":
        own = [name for name in WORK if name in checked]
        rows = checked[own].itertuples(index=False)
        work = pd.Series(["|".join(map(str, row)) for row in rows], index=checked.index)
        checked["group"] = checked["group"].mask(checked["group"] == "", work)
    return checked


def _of_limits(table: pd.DataFrame) -> pd.DataFrame:
    """A table whose limits are watts where it has them as shares of the highest ('80%'): of what
    its accelerator may draw, nothing where that is not known."""
    for column in ("power_limit_w", "enforced_limit_w"):
        if column not in table or "accelerator" not in table:
            continue
        said = table[column].astype(str).str.strip()
        share = said.str.fullmatch(r"\d+(\.\d+)?\s*%")
        if share.any():
            part = pd.to_numeric(said.str.rstrip("% "), errors="coerce") / 100.0
            watts = part * table["accelerator"].map(_highest)
            table = table.assign(**{column: table[column].astype(object).mask(share, watts)})
    return table


def _highest(name: object) -> float:
    """What an accelerator may draw [W]; NaN where that is not known."""
    try:
        return float(np.mean(device_of(str(name)).power))
    except InputError:
        return float("nan")


BY_ROW = ("served", "training")
"""Tables of which a row stands for itself."""

WORK = ("model", "workload", "precision", "batch", "optimizer", "n_gpus")
"""Columns that tell the work of a sweep's rows apart."""

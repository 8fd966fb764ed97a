"""What `reckon explore` prints and writes: table, file, page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from predictor.errors import InputError
from predictor.files import write_whole
from reckon.explore.evaluate import Explored
from reckon.views.page import Figure, Result, Series, write_html

SHOWN = 20
"""Rows that the terminal shows: the fastest."""

FORMATS = (".parquet", ".csv", ".html")


def check_target(path: Path) -> None:
    """Raise InputError for a file whose ending names no format."""
    if path.suffix not in FORMATS:
        raise InputError(f"{path}: write to a file that ends in {', '.join(FORMATS)}")


def write(path: Path, found: Explored) -> None:
    """Write a grid's points, by the file's ending."""
    check_target(path)
    if path.suffix == ".html":
        title = found.grid.spec.title or "Grid"
        write_html(path, title, _reading(found), page(found))
    elif path.suffix == ".parquet":
        write_whole(path, lambda place: found.table.to_parquet(place, index=False))
    else:
        write_whole(path, lambda place: found.table.to_csv(place, index=False, float_format="%.6g"))


def measure(found: Explored) -> tuple[str, str]:
    """The column by which points are compared, and its unit."""
    if found.grid.spec.workload == "training":
        return "tokens_per_s", "tokens per second"
    return "e2e_s", "seconds, end to end"


def page(found: Explored) -> Result:
    """A figure over the longest axis, one line for each combination of the others; what binds."""
    axes = found.grid.axes
    table = found.table
    column, unit = measure(found)
    figures = []
    if axes:
        x = max(axes, key=lambda name: len(axes[name]))
        others = [name for name in axes if name != x]
        lines = []
        groups: Any = table.groupby(others, sort=False) if others else [("", table)]
        for number, (name, own) in enumerate(groups):
            told = name if isinstance(name, tuple) else (name,)
            lines.append(
                Series(
                    ", ".join(str(part) for part in told) or "predicted",
                    list(own[x]),
                    list(own[column]),
                    text=[f"binds: {bound}" for bound in own.get("bottleneck", [])],
                    group=number,
                )
            )
        numeric = all(isinstance(value, int | float) for value in axes[x])
        wide = numeric and max(axes[x]) > 20 * min(axes[x]) > 0
        title = found.grid.spec.title or f"{unit} over {x}"
        figures.append(Figure(title, x, unit, lines[:24], log_x=wide))
    return Result(figures, {"Points": table})


def _reading(found: Explored) -> str:
    lines = [f"{len(found.table):,} points; {len(found.refused):,} cannot be."]
    if "bottleneck" in found.table:
        counts = found.table["bottleneck"].value_counts()
        lines.append(
            "What binds: " + ", ".join(f"{n} by {name}" for name, n in counts.items()) + "."
        )
    lines += [f"- {values}: {reason}" for values, reason in found.refused[:10]]
    return "\n\n".join(lines)


def terminal(found: Explored) -> str:
    """The best points as a table, and why others cannot be."""
    from reckon.views.terminal import grid

    column, _ = measure(found)
    slow = column == "e2e_s"
    table = found.table.sort_values(column, ascending=slow, kind="stable").head(SHOWN)
    wanted = [
        *found.grid.axes, column, "low_s", "high_s", "mfu", "tpot_ms", "bottleneck",
        "tokens_per_usd", "fits",
    ]  # fmt: skip
    names = list(dict.fromkeys(name for name in wanted if name in table))
    rows = [[cell(value) for value in row] for row in table[names].itertuples(index=False)]
    text = grid(names, rows, left=len(found.grid.axes))
    if len(found.table) > SHOWN:
        text += f"\n{len(found.table) - SHOWN:,} more points; --out FILE writes them all"
    for values, reason in found.refused[:5]:
        told = ", ".join(f"{key} {value}" for key, value in values.items())
        text += f"\nnot possible: {told}: {reason}"
    if len(found.refused) > 5:
        text += f"\nnot possible: {len(found.refused) - 5:,} more"
    return text


def cell(value: Any) -> str:
    """A table's cell."""
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if isinstance(value, float | np.floating):
        return "" if pd.isna(value) else f"{value:,.4g}"
    return str(value)

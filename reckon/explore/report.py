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


TRAINED: dict[str, tuple[str, ...]] = {
    "step s": ("step_time_s",), "interval": ("low_s", "high_s"), "tokens/s": ("tokens_per_s",),
    "MFU": ("mfu",), "GiB": ("peak_memory_gib",),
}  # fmt: skip
SERVED: dict[str, tuple[str, ...]] = {
    "request s": ("e2e_s",), "interval": ("low_s", "high_s"), "TTFT ms": ("ttft_ms",),
    "TPOT ms": ("tpot_ms",), "tokens/s": ("output_tokens_per_s",), "GiB": ("peak_memory_gib",),
}  # fmt: skip
BOTH: dict[str, tuple[str, ...]] = {
    "binds": ("bottleneck",), "W": ("drawn_w",), "tokens/USD": ("tokens_per_usd",),
}  # fmt: skip
"""Headings of the terminal's table: columns of a grid's points, two for an interval."""

LEGEND = {
    "binds": "binds: of compute, memories and networks the one that helps most if doubled, or "
    "latency if none helps by 3 %",
    "W": "W: what an accelerator draws at work",
    "tokens/USD": "tokens/USD: tokens for what machine and energy cost over its years "
    "(data/technology/cost.yaml; a grid's `cost` replaces it)",
}


def terminal(found: Explored) -> str:
    """What was asked; the best points as a table, and why others cannot be."""
    from reckon.views.terminal import grid, strong

    column, _ = measure(found)
    training = found.grid.spec.workload == "training"
    table = found.table.sort_values(column, ascending=not training, kind="stable").head(SHOWN)
    wanted = {**(TRAINED if training else SERVED), **BOTH}
    heads = {name: keys for name, keys in wanted.items() if set(keys) <= set(table)}
    axes = list(found.grid.axes)
    rows = [
        [cell(row[name]) for name in axes]
        + ["..".join(entry(row[key], key) for key in keys) for keys in heads.values()]
        for row in table.to_dict("records")
    ]
    for row, fits in zip(rows, table["fits"], strict=True):
        row[len(axes) + list(heads).index("GiB")] += " " if fits else "!"
    text = f"{strong(asked(found))}\n\n{grid([*axes, *heads], rows, left=len(axes))}"
    if len(found.table) > SHOWN:
        text += f"\n{len(found.table) - SHOWN:,} more points; --out FILE writes them all"
    if not all(table["fits"]):
        text += "\n! does not fit"
    told = "most tokens per second first" if training else "soonest answers first"
    text += "\n\n" + "\n".join([told, *(LEGEND[name] for name in heads if name in LEGEND)])
    for values, reason in found.refused[:5]:
        told = ", ".join(f"{key} {value}" for key, value in values.items())
        text += f"\nnot possible: {told}: {reason}"
    if len(found.refused) > 5:
        text += f"\nnot possible: {len(found.refused) - 5:,} more"
    return text


def asked(found: Explored) -> str:
    """What a grid asks, in a line: what is done, of which model, on which machine, how."""
    spec, axes = found.grid.spec, found.grid.axes
    machine = {**(spec.technology or {}), **spec.machine}
    where = str(spec.system or "a machine of " * bool(spec.technology))
    where += ", ".join(f"{k} {v}" for k, v in machine.items()
                       if not {f"technology.{k}", f"machine.{k}"} & set(axes))  # fmt: skip
    model = spec.model if isinstance(spec.model, str) else str(spec.model.get("name", "a model"))
    parts = [
        f"{spec.workload} {'models' if 'model' in axes else model}",
        *([] if "system" in axes or not where else [where]),
        ", ".join(f"{k} {v}" for k, v in spec.plan.items() if f"plan.{k}" not in axes),
    ]
    return f"{spec.title}: {'; '.join(parts)}" if spec.title else "; ".join(parts)


def entry(value: Any, key: str) -> str:
    """A table's cell of a column: a share in per cent, others with four digits."""
    from reckon.views.terminal import four

    if isinstance(value, str):
        return value
    if pd.isna(value):
        return ""
    return {
        "mfu": f"{value:.1%}" + " with masked keys" * (value > 1.0),
        "peak_memory_gib": f"{value:.1f}",
        "drawn_w": f"{value:.0f}",
    }.get(key, four(float(value)))


def cell(value: Any) -> str:
    """A table's cell."""
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if isinstance(value, float | np.floating):
        return "" if pd.isna(value) else f"{value:,.4g}"
    return str(value)

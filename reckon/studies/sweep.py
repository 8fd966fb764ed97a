"""Studies that are a grid: curves over one of its axes, their saturation, and what binds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from reckon.explore import explore
from reckon.views.page import Figure, Result, Series

FLAT = 1.10
"""A curve is saturated where a step gains less than a tenth."""


def curves(table: pd.DataFrame, series: Sequence[str]) -> Iterator[tuple[str, pd.DataFrame]]:
    """Rows of each combination of the series' values, in the table's order, with its name."""
    if not series:
        yield "predicted", table
        return
    for values, own in table.groupby(list(series), sort=False):
        told = zip(series, values, strict=True)
        yield (
            ", ".join(v if isinstance(v, str) else f"{k.split('.')[-1]} {v}" for k, v in told),
            own,
        )


def saturation(
    table: pd.DataFrame, x: str, y: str, series: Sequence[str], lower: bool
) -> pd.DataFrame:
    """Where each curve saturates: the first x whose next step gains less than a tenth, and every
    one after it; the whole gain; and what binds at both ends.

    lower   whether less is better
    """
    rows = []
    for name, own in curves(table, series):
        values = own[y].to_numpy(float)
        steps = values[:-1] / values[1:] if lower else values[1:] / values[:-1]
        flat = np.flatnonzero(steps >= FLAT)
        at = int(flat[-1]) + 1 if flat.size else 0
        rows.append(
            {
                "curve": name,
                "saturates at": own[x].iloc[at] if at < len(own) - 1 else "not yet",
                "gain first to last": values[0] / values[-1] if lower else values[-1] / values[0],
                "least step": float(steps.min()) if steps.size else 1.0,
                "binds first": own["bottleneck"].iloc[0],
                "binds last": own["bottleneck"].iloc[-1],
            }
        )
    return pd.DataFrame(rows)


def figures(table: pd.DataFrame, contents: Sequence[Mapping[str, Any]]) -> list[Figure]:
    """Figures of a grid's table as a study describes them: title, x, y, titles, series, where."""
    found = []
    for content in contents:
        own = table
        for key, value in content.get("where", {}).items():
            own = own[own[key] == value]
        factor = float(content.get("factor", 1.0))
        lines = []
        for number, (name, rows) in enumerate(curves(own, content.get("series", []))):
            lines.append(
                Series(
                    name,
                    list(rows[content["x"]]),
                    [float(value) * factor for value in rows[content["y"]]],
                    text=[f"binds: {bound}" for bound in rows["bottleneck"]],
                    group=number,
                )
            )
        for point in content.get("published", ()):
            lines.append(
                Series(point["name"], [point["x"]], [point["value"]], "point", group=len(lines))
            )
        found.append(
            Figure(
                content["title"],
                content["x_title"],
                content["y_title"],
                lines,
                log_x=bool(content.get("log_x", False)),
                log_y=bool(content.get("log_y", False)),
                source=content.get("source", ""),
            )
        )
    return found


def bound_figure(table: pd.DataFrame, x: str, x_title: str, series: Sequence[str]) -> Figure:
    """What each resource would gain, doubled, along one axis: the mean over the other curves."""
    gains = [column for column in table.columns if column.startswith("gain of twice")]
    order = list(dict.fromkeys(table[x]))
    mean = table.groupby(x)[gains].mean().loc[order]
    lines = [
        Series(
            column.removeprefix("gain of twice the "),
            order,
            list(100 * (mean[column] - 1)),
            group=number,
        )
        for number, column in enumerate(gains)
    ]
    others = ", ".join(name.partition(".")[2] for name in series)
    return Figure(
        f"What twice of each resource would gain (mean over {others})"
        if others
        else "What twice of each resource would gain",
        x_title,
        "per cent faster",
        lines,
    )


def run(parameters: Mapping[str, Any]) -> Result:
    """Run a grid and draw it.

    parameters   `grid`, `figures`, `x`, `y`, `series`, `lower` (whether less is better)
    """
    found = explore(parameters["grid"])
    x, y, series = parameters["x"], parameters["y"], parameters.get("series", [])
    rested = saturation(found.table, x, y, series, bool(parameters.get("lower", False)))
    drawn = figures(found.table, parameters["figures"])
    drawn.append(bound_figure(found.table, x, parameters["figures"][0]["x_title"], series))
    kept = [
        *found.grid.axes, "step_time_s", "low_s", "high_s", "tokens_per_s", "mfu", "bottleneck",
        "machine limited by", "bf16_tflops", "clock_ghz", "power_w", "memory_bandwidth_gbs",
        "usd_per_gpu", "tokens_per_usd", "tokens_per_joule",
    ]  # fmt: skip
    table = found.table[[name for name in kept if name in found.table]]
    facts = {
        "curves": len(rested),
        "gain_low": f"{rested['gain first to last'].min():.1f}",
        "gain_high": f"{rested['gain first to last'].max():.1f}",
        "saturates": "; ".join(
            f"{place}: {count}" for place, count in rested["saturates at"].value_counts().items()
        ),
        "binds_first": ", ".join(sorted(set(rested["binds first"]))),
        "binds_last": ", ".join(sorted(set(rested["binds last"]))),
        "refused": len(found.refused),
    }
    return Result(drawn, {"Saturation": rested, "Every point": table}, facts)

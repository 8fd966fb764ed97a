"""Figures and tables of studies and grids, and the page of reading that they stand on."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

import pandas as pd

from predictor.records import dataclass
from reckon.views.pictures import COLOURS, GREY, LOG, Chart, table, write_page

DASHES = ("solid", "dash", "dot", "dashdot")


@dataclass(frozen=True, slots=True)
class Series:
    """One line, group of bars or set of points. `low`, `high`: an interval around y."""

    name: str
    x: Sequence[Any]
    y: Sequence[float]
    kind: str = "line"  # line, bar, point
    text: Sequence[str] = ()
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    group: int | None = None


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure: axis titles carry the unit; `source` says where its published points are from.

    order   of the categories on the x axis, where the series' own does not do
    """

    title: str
    x: str
    y: str
    series: Sequence[Series]
    log_x: bool = False
    log_y: bool = False
    stacked: bool = False
    order: Sequence[str] = ()
    source: str = ""
    line_at: tuple[float, str] | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """What a study found.

    tables   name -> table
    facts    numbers and words that the reading quotes
    """

    figures: list[Figure]
    tables: dict[str, pd.DataFrame]
    facts: dict[str, Any] = field(default_factory=dict)


def draw(figure: Figure) -> Chart:
    """A figure as a chart."""
    data: list[dict[str, Any]] = []
    for number, one in enumerate(figure.series):
        place = number if one.group is None else one.group
        colour, dash = COLOURS[place % len(COLOURS)], DASHES[(place // len(COLOURS)) % 4]
        text = list(one.text) or None
        if one.kind == "bar":
            data.append({"type": "bar", "x": list(one.x), "y": list(one.y), "name": one.name,
                         "marker": {"color": colour}, "text": text,
                         "textposition": "auto"})  # fmt: skip
            continue
        if len(one.low):
            data.append({"type": "scatter", "x": [*one.x, *reversed(one.x)],
                         "y": [*one.high, *reversed(one.low)], "fill": "toself",
                         "fillcolor": colour, "opacity": 0.15, "line": {"width": 0},
                         "showlegend": False, "hoverinfo": "skip"})  # fmt: skip
        point = one.kind == "point"
        data.append({"type": "scatter", "x": list(one.x), "y": list(one.y), "name": one.name,
                     "mode": "markers" if point else "lines+markers", "hovertext": text,
                     "line": {"color": colour, "dash": dash},
                     "marker": {"size": 11 if point else 7, "color": colour,
                                "symbol": "diamond-open" if point else "circle",
                                "line": {"width": 2 if point else 0}}})  # fmt: skip
    layout: dict[str, Any] = {
        "barmode": "relative" if figure.stacked else "group",
        "height": 420,
        "xaxis": {"title": {"text": figure.x}, **(LOG if figure.log_x else {})},
        "yaxis": {"title": {"text": figure.y},
                  **(LOG if figure.log_y else {"rangemode": "tozero"})},
    }  # fmt: skip
    if figure.order:
        layout["xaxis"] |= {"categoryorder": "array", "categoryarray": list(figure.order)}
    if figure.line_at is not None:
        height, told = figure.line_at
        layout |= marked("y", height, told)
    return Chart(figure.title, data, layout, figure.source)


def marked(axis: str, value: float, told: str) -> dict[str, Any]:
    """A dashed line across a chart at a value of an axis, with a word."""
    other = "x" if axis == "y" else "y"
    line = {"color": GREY, "dash": "dash", "width": 1.5}
    shape = {"type": "line", f"{other}ref": "paper", f"{other}0": 0, f"{other}1": 1,
             f"{axis}0": value, f"{axis}1": value, "line": line}  # fmt: skip
    note = {f"{other}ref": "paper", other: 1, axis: value, "text": told, "showarrow": False,
            "xanchor": "right", "yanchor": "bottom"}  # fmt: skip
    return {"shapes": [shape], "annotations": [note]}


def write_html(path: Path, title: str, reading: str, result: Result) -> None:
    """Write figures, reading and tables as one file.

    Raises InputError where the file cannot be written.
    """
    sections = [paragraphs(reading)]
    for name, own in result.tables.items():
        shown = rounded(own)
        inner = table(list(shown.columns), shown.to_numpy().tolist())
        sections.append(f"<h2>{html.escape(name)}</h2>{inner}")
    write_page(path, title, "", [draw(figure) for figure in result.figures], sections)


def rounded(own: pd.DataFrame) -> pd.DataFrame:
    """The table with numbers to four significant digits, as text."""
    return own.map(
        lambda v: ("" if math.isnan(v) else f"{v:,.4g}") if isinstance(v, float) else v
    ).fillna("")


def paragraphs(text: str) -> str:
    """Headings, paragraphs, bullets and emphasis of a Markdown text as HTML."""
    found = []
    for block in re.split(r"\n\s*\n", text.strip()):
        safe = html.escape(block)
        safe = re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", safe, flags=re.DOTALL)
        safe = re.sub(r"`(.+?)`", r"<code>\1</code>", safe)
        if block.startswith("## "):
            found.append(f"<h2>{safe[3:]}</h2>")
        elif block.startswith("- "):
            items = re.split(r"\n?- ", safe)[1:]
            found.append("<ul>" + "".join(f"<li>{item}</li>" for item in items) + "</ul>")
        else:
            found.append(f"<p>{safe}</p>")
    return "".join(found)

"""Figures and tables as one HTML file that opens offline, with a page of reading.

plotly is optional (`reckon[report]`); figures are described here without it, and drawn when the
page is written.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from predictor.errors import InputError
from predictor.files import write_text

COLOURS = (
    "#1f5fa8", "#d9731a", "#2e8b57", "#b8352a", "#7b5ea7", "#8a6d3b", "#c45a9c", "#6b7280",
)  # fmt: skip
DASHES = ("solid", "dash", "dot", "dashdot")

STYLE = (
    "body{font:16px/1.5 system-ui,'DejaVu Sans',sans-serif;max-width:66rem;margin:2rem auto;"
    "padding:0 1rem;color:#1c2430}h1{font-size:1.6rem}h2{font-size:1.15rem;margin-top:2.2rem}"
    "table{border-collapse:collapse;font-size:.82rem}td,th{border-bottom:1px solid #d8dde3;"
    "padding:.25rem .6rem;text-align:right}td:first-child,th:first-child{text-align:left}"
    ".source{color:#5a6572;font-size:.85rem}.wide{overflow-x:auto}"
)


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


def graphs() -> Any:
    """plotly's graph objects. Raises InputError where it is not installed."""
    try:
        import plotly.graph_objects as found
    except ImportError:
        raise InputError(
            "the HTML report needs plotly, which is not installed: pip install 'reckon[report]'"
        ) from None
    return found


def draw(figure: Figure) -> Any:
    """A figure as plotly has it."""
    go = graphs()
    made = go.Figure()
    for number, one in enumerate(figure.series):
        place = number if one.group is None else one.group
        colour, dash = COLOURS[place % len(COLOURS)], DASHES[(place // len(COLOURS)) % 4]
        text = list(one.text) or None
        if one.kind == "bar":
            made.add_bar(
                x=list(one.x), y=list(one.y), name=one.name, marker_color=colour, text=text,
                textposition="auto",
            )  # fmt: skip
            continue
        mode = "markers" if one.kind == "point" else "lines+markers"
        symbol = "diamond-open" if one.kind == "point" else "circle"
        if len(one.low):
            made.add_scatter(
                x=[*one.x, *reversed(one.x)], y=[*one.high, *reversed(one.low)], fill="toself",
                fillcolor=colour, opacity=0.12, line={"width": 0}, showlegend=False,
                hoverinfo="skip",
            )  # fmt: skip
        made.add_scatter(
            x=list(one.x), y=list(one.y), name=one.name, mode=mode, hovertext=text,
            line={"color": colour, "dash": dash},
            marker={"size": 11 if one.kind == "point" else 7, "symbol": symbol, "color": colour,
                    "line": {"width": 2 if one.kind == "point" else 0}},
        )  # fmt: skip
    if figure.line_at is not None:
        made.add_hline(
            y=figure.line_at[0], line_dash="dash", line_color="#6b7280",
            annotation_text=figure.line_at[1],
        )  # fmt: skip
    made.update_layout(
        title={"text": figure.title, "x": 0.01},
        template="plotly_white",
        barmode="relative" if figure.stacked else "group",
        height=460,
        margin={"l": 70, "r": 20, "t": 60, "b": 60},
        legend={"orientation": "v", "font": {"size": 12}},
    )
    made.update_xaxes(title=figure.x, type="log" if figure.log_x else None)
    if figure.order:
        made.update_xaxes(categoryorder="array", categoryarray=list(figure.order))
    made.update_yaxes(title=figure.y, type="log" if figure.log_y else None)
    if not figure.log_y:
        made.update_yaxes(rangemode="tozero")
    return made


def write_html(path: Path, title: str, reading: str, result: Result) -> None:
    """Write figures, reading and tables as one file, plotly's script included.

    Raises InputError without plotly, or where the file cannot be written.
    """
    graphs()
    parts = []
    for number, figure in enumerate(result.figures):
        drawn = draw(figure).to_html(
            full_html=False, include_plotlyjs=number == 0, config={"displayModeBar": False}
        )
        note = f'<p class="source">{html.escape(figure.source)}</p>' if figure.source else ""
        parts.append(drawn + note)
    tables = [
        f'<h2>{html.escape(name)}</h2><div class="wide">'
        + rounded(table).to_html(index=False, border=0, na_rep="")
        + "</div>"
        for name, table in result.tables.items()
    ]
    body = f"<h1>{html.escape(title)}</h1>{''.join(parts)}{paragraphs(reading)}{''.join(tables)}"
    write_text(
        path,
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}'
        f"</title><style>{STYLE}</style></head><body>{body}</body></html>\n",
    )


def rounded(table: pd.DataFrame) -> pd.DataFrame:
    """The table with numbers to four significant digits, as text."""
    return table.map(
        lambda v: ("" if math.isnan(v) else f"{v:,.4g}") if isinstance(v, float) else v
    )


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

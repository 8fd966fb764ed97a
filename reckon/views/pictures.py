"""Charts and tables as one HTML file that opens offline: in light and dark, on wide and narrow
screens, in one look. Charts are plain mappings as plotly.js takes them; its script comes along.
"""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from predictor.files import finite, write_text
from predictor.records import dataclass
from reckon import __version__
from reckon.vendored import plotly_script

COLOURS = (
    "#1f5fa8", "#d9731a", "#2e8b57", "#b8352a", "#7b5ea7", "#8a6d3b", "#c45a9c", "#6b7280",
)  # fmt: skip
GREY = "#9aa4af"

LOG = {"type": "log", "tickformat": ",~g"}
"""A logarithmic axis whose ticks are whole numbers: without a format those between the powers of
ten are single digits, 2 and 5 for 20 and 50."""

STATIC = Path(__file__).resolve().parent / "static"


@lru_cache(maxsize=2)
def _static(name: str) -> str:
    return (STATIC / name).read_text(encoding="utf-8")


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart: `data` and `layout` as plotly.js takes them, and what stands beside it."""

    title: str
    data: Sequence[Mapping[str, Any]]
    layout: Mapping[str, Any]
    note: str = ""


def table(columns: Sequence[str], rows: Sequence[Sequence[Any]], wrap: int = -1) -> str:
    """A table as HTML.

    wrap   column whose cells are sentences
    """
    head = "".join(f'<th scope="col">{html.escape(str(name))}</th>' for name in columns)
    body = "".join(
        "<tr>"
        + "".join(
            f"<td{' class=wrap' if at == wrap else ''}>{html.escape(str(cell))}</td>"
            for at, cell in enumerate(row)
        )
        + "</tr>"
        for row in rows
    )
    return f'<div class="wide"><table><tr>{head}</tr>{body}</table></div>'


def write_page(
    path: Path, title: str, lead: str, charts: Sequence[Chart], sections: Sequence[str] = ()
) -> None:
    """Write a page whole.

    lead       a sentence, as text
    sections   further parts, as HTML

    Raises InputError where it cannot be written.
    """
    figures = "".join(
        f"<figure><figcaption>{html.escape(one.title)}</figcaption>"
        f'<div class="chart" id="chart-{at}" role="img" aria-label="{html.escape(one.title)}"'
        f' style="height:{int(one.layout.get("height", 420))}px"></div>'
        + (f'<p class="source">{html.escape(one.note)}</p>' if one.note else "")
        + "</figure>"
        for at, one in enumerate(charts)
    )
    given = [{"data": finite(list(one.data)), "layout": finite(dict(one.layout))} for one in charts]
    content = json.dumps(given, ensure_ascii=False).replace("</", "<\\/")
    write_text(
        path,
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{_static('report.css')}</style></head><body>"
        f"<h1>{html.escape(title)}</h1><p>{html.escape(lead)}</p>{figures}{''.join(sections)}"
        f"<footer><p>reckon {__version__}</p></footer>"
        f'<script type="application/json" id="charts">{content}</script>'
        f"<script>{plotly_script()}</script><script>{_static('report.js')}</script></body></html>\n",
    )


def assumptions(assumed: Sequence[Any], command: str = "") -> list[str]:
    """The command and what it left open, as sections of a page."""
    found = []
    if command:
        found.append(f"<h2>Command</h2><pre>{html.escape(command)}</pre>")
    if assumed:
        rows = [[one.field, one.value, one.rule] for one in assumed]
        inner = table(["field", "value", "why"], rows, wrap=2)
        found.append(
            f"<details><summary>{len(rows)} things were left open</summary>{inner}</details>"
        )
    return found

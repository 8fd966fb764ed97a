"""Rewrites the tables of `docs/guides/own-runs.md` from what `data/own` keeps of sources left out.

python -m tools.own_runs        # `make own` does, after it has made these figures anew
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from predictor.files import write_text
from tools.scoreboard import put

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "guides" / "own-runs.md"
OWN = ROOT / "data" / "own"

METRICS = {
    "tpot_s": "time per token",
    "e2e_s": "end to end",
    "output_tokens_per_s": "throughput",
    "ttft_s": "first token",
}
"""Metrics of serving, as the page has them."""


def known_runs(left_out: Mapping[str, Any]) -> str:
    """Errors by how many runs of a source, and of a group of it, are known."""
    lines = ["| k | sources | inside 80 % | high / low | groups | inside 80 % | high / low |"]
    lines.append("|--:|--:|--:|--:|--:|--:|--:|")
    for k in left_out["sources"]:
        if k == "larger":
            continue
        cells = [k]
        for over in ("sources", "groups"):
            own = left_out[over][k]
            cells.append(f"{own['error']:.1%}")
            cells += (
                [f"{own['inside']:.0%}", f"{own['width']:.2f}"] if "inside" in own else ["", ""]
            )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def larger_runs(left_out: Mapping[str, Any]) -> str:
    """Errors of large runs by what three small ones say."""
    lines = ["| of | nothing known | three drawn | three of `--among` | the best one factor |"]
    lines.append("|---|--:|--:|--:|--:|")
    for over in ("groups", "sources"):
        own = left_out[over]["larger"]
        cells = [f"{own[name]:.1%}" for name in ("before", "after", "asked", "level")]
        lines.append(f"| {over} | {' | '.join(cells)} |")
    return "\n".join(lines)


def served(left_out: Mapping[str, Any]) -> str:
    """Errors of serving without and with five figures of an engine."""
    lines = ["| metric | draws | nothing known | five figures known |", "|---|--:|--:|--:|"]
    for name, what in METRICS.items():
        own = left_out[name]
        lines.append(f"| {what} | {own['draws']} | {own['before']:.1%} | {own['after']:.1%} |")
    return "\n".join(lines)


TABLES: Mapping[str, tuple[str, Callable[[Mapping[str, Any]], str]]] = {
    "own-serving": ("serving.json", served),
    "own-training": ("training.json", known_runs),
    "own-larger": ("training.json", larger_runs),
}
"""Markers of the page: whose file says what stands between them, and how it is written."""


def page(text: str) -> str:
    """The page with its tables as `data/own` has them."""
    for marker, (name, written) in TABLES.items():
        left_out = json.loads((OWN / name).read_text(encoding="utf-8"))["left_out"]
        text = put(text, marker, written(left_out))
    return text


if __name__ == "__main__":
    write_text(PAGE, page(PAGE.read_text(encoding="utf-8")))

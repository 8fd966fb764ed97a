"""What the terminal shows of runs that were read."""

from __future__ import annotations

import sys
from typing import Any

from reckon.views.terminal import grid, numbered


def _cell(row: dict[str, Any], name: str) -> str:
    value = row.get(name)
    return "" if value is None else (f"{value:.4g}" if isinstance(value, float) else str(value))


def show_runs(result: dict[str, Any]) -> None:
    """Print what was read, and what a prediction would still need."""
    head = ["run", "model", "accelerator", "GPUs", "metric", "value", "steps", "spread", "stalls"]
    lines = []
    for one in result["files"]:
        for row in one["rows"]:
            spread = row.get("step_spread")
            lines.append(
                [
                    *(_cell(row, n) for n in ("point_id", "model", "accelerator", "num_gpus")),
                    *(_cell(row, n) for n in ("metric", "value", "steps")),
                    "" if spread is None else f"{spread:.1%}",
                    _cell(row, "stalls"),
                ]
            )
    print(grid(head, lines, left=3))
    for one in result["files"]:
        for note in one["notes"]:
            print(f"note: {one['path']}: {note}", file=sys.stderr)
        if one["missing"]:
            needed = ", ".join(f"{name} ({by})" for name, by in one["missing"].items())
            print(f"reckon: {one['path']} does not say {needed}", file=sys.stderr)
    print(f"\nwrote {result['out']}: {numbered(result['rows'], 'row')}")

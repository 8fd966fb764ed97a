"""What the terminal shows of a job that is watched."""

from __future__ import annotations

from typing import IO, Any

from reckon.views.terminal import grid


def show_event(event: dict[str, Any], stream: IO[str]) -> None:
    """Print what changed, in a line; at the end a small table."""
    print(f"{event['event']}: {event['text']}", file=stream, flush=True)
    if event["event"] != "end":
        return
    rows = [
        [name, f"{event[key]:.4g}{unit}"]
        for name, key, unit in (
            ("median step", "median_s", " s"),
            ("recent step", "recent_s", " s"),
            ("predicted", "predicted_s", " s"),
            ("interval from", "low_s", " s"),
            ("to", "high_s", " s"),
            ("measured over predicted", "ratio", " x"),
            ("left", "left_s", " s"),
            ("cost of the whole", "cost", ""),
        )
        if event[key] is not None
    ]
    if rows:
        print(grid(["", ""], rows, left=1), file=stream)

"""What the terminal shows of measurements: taken here, read from others, fitted to."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from reckon.views.terminal import grid, numbered
from reckon.views.trace import show_steps

if TYPE_CHECKING:
    from reckon.verbs.profiling import Profile

MOST_REASONS = 15
"""Reasons that the terminal lists; the JSON has all."""


def show_profile(found: Profile) -> None:
    """Print what was measured."""
    if found.kernels is None:
        return
    counts = found.kernels.groupby(["accelerator", "op"], observed=True).size()
    rows = [[str(part) for part in row] for row in counts.reset_index().to_numpy()]
    print(grid(["device", "operator", "rows"], rows, left=2))
    if found.steps:
        print()
        rows = [
            [str(s["point_id"]), f"{s['step_time_s'] * 1e3:.1f} ms", str(s["steps"])]
            for s in found.steps
        ]
        print(grid(["training step (a check, never fitted)", "median", "steps"], rows))
    if found.passes:
        print()
        rows = [
            [str(p["point_id"]), f"{p['value']:.2f} ms", str(p["samples"])] for p in found.passes
        ]
        print(grid(["pass of serving (a check, never fitted)", "median", "passes"], rows))
    if found.power:
        print()
        rows = [
            [f"{p['op']} {p['precision']}", f"{p['avg_power_w']:.0f} W", f"{p['steady_s']:.1f} s"]
            for p in found.power
        ]
        print(grid([f"power, by {found.sensor}", "mean", "over"], rows))
    elif found.sensor:
        print(f"\npower {found.sensor}")
    for problem in found.problems:
        print(f"reckon: {problem}", file=sys.stderr)
    print(f"\nwrote {found.out}/ in {found.seconds:.0f} s")


def show_imported(result: dict[str, Any]) -> None:
    """Print what was written, and what was left out and why."""
    rows = [[w["accelerator"], w["op"], w["dtype"], str(w["n"])] for w in result["written"]]
    print(grid(["accelerator", "operator", "type", "rows"], rows, left=3))
    if result["facts"]:
        print()
        show_steps(result["facts"])
    if result["left_out"]:
        print()
        reasons = [(str(part["reason"]), int(part["n"])) for part in result["left_out"]]
        if rest := sum(count for _, count in reasons[MOST_REASONS:]):
            reasons[MOST_REASONS:] = [("other reasons (--json FILE)", rest)]
        print(grid(["left out, because", "n"], [[why, str(count)] for why, count in reasons]))
    print(f"\nwrote {result['out']}: {numbered(result['rows'], 'row')}")


def show_calibrated(summary: dict[str, Any]) -> None:
    """Print what was fitted, with errors on shapes held out of the fit."""
    rows = [
        [key, str(found["points"]), f"{found['mape']:.1%}", f"{found['median']:.1%}"]
        for key, found in summary["heldout"].items()
        if found["points"]
    ]
    if rows:
        print(grid(["fitted", "held out", "MAPE", "median"], rows))
    for name, one in summary["power"].items():
        told = ", ".join(f"{law} {value:.3g}" for law, value in one["constants"].items())
        print(
            f"power of {name} from {one['rows']} rows: {told}; a row left out is missed by "
            f"{one['left_out']:.1%}"
        )
    for name, reason in summary["power_left_out"].items():
        print(f"power of {name} is not fitted: {reason}")
    for line in (*summary["learned"], *summary["aside"]):
        print(line)
    for reason, count in summary["left_out"].items():
        print(f"left out {count} rows: {reason}")
    if summary["crowded"]:
        print(
            f"{summary['crowded']} of {numbered(summary['rows'], 'row')} were timed while others "
            "ran most of the time: predictions of this machine may be far off; profile again on a "
            "quiet one"
        )
    count = summary["rows"] + len(summary["interval_points"])
    print(f"\nwrote {summary['out']}/ on top of {summary['base']} from {numbered(count, 'row')}")


def show_suggested(found: dict[str, Any]) -> None:
    """Print which runs to measure next, and what they leave open."""
    rows = [
        [str(at), one["name"], f"{one['before']:.1%}", f"{one['after']:.1%}"]
        for at, one in enumerate(found["runs"], 1)
    ]
    print(grid(["", "measure", "open before", "after"], rows, left=2))

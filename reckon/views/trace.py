"""What the terminal shows of a recorded step: where its time went, and what was predicted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reckon.views.terminal import grid, seconds

MOST = 8
"""Operators listed."""


def show_steps(facts: Mapping[str, Any]) -> None:
    """Print where a trace says that its steps spent their time."""
    shown = [
        ("step", facts["step_time_s"], facts["steps"]),
        *((name, time, facts["counts"][name]) for name, time in facts["classes_s"].items()),
        ("all kernels", facts["kernel_time_s"], sum(facts["counts"].values())),
        ("busy with more than communication", facts["compute_s"], ""),
        ("exposed communication", facts["exposed_s"], ""),
        ("waiting for the host", facts["host_idle_s"], facts["gaps"]),
        ("waiting otherwise", facts["other_idle_s"], ""),
    ]
    rows = [
        [name, seconds(time) if time else "0", f"{count:g}" if count != "" else ""]
        for name, time, count in shown
    ]
    title = "of a mean step" if facts["marked"] else "of the whole trace"
    print(grid([title, "time", "number"], rows))


def show_trace(result: Mapping[str, Any]) -> None:
    """Print the terms, the operators that cost most beyond their expectation, the findings."""
    total = result["step_time_s"]

    def times(own: float, other: float) -> str:
        return f"{own / other:.2f}" if other and own else ""

    rows = [
        [
            term["term"],
            seconds(term["measured_s"]) if term["measured_s"] else "",
            seconds(term["predicted_s"]) if term["predicted_s"] else "",
            times(term["measured_s"], term["predicted_s"]),
            f"{term['kernels']:.0f}" if term["kernels"] else "",
        ]
        for term in result["terms"]
    ]
    whole = [seconds(total["measured"]), seconds(total["predicted"])]
    rows.append(["step", *whole, times(total["measured"], total["predicted"]), ""])
    print(grid(["term", "measured", "predicted", "ratio", "kernels"], rows))
    listed = [
        [
            one["operator"],
            f"{one['calls']:g}",
            seconds(one["measured_s"]),
            seconds(one["predicted_s"]),
            times(one["measured_s"], one["predicted_s"]),
            seconds(one["excess_s"]),
        ]
        for one in result["operators"][:MOST]
        if one["excess_s"] > 0
    ]
    if listed:
        print()
        columns = ["slower than expected", "calls", "measured", "expected", "ratio", "per step"]
        print(grid(columns, listed))
    if "ranks" in result:
        print()
        rows = [
            [str(one["rank"]), seconds(one["waited_s"]), f"{one['last_share']:.0%}",
             seconds(one["gain_s"]) if one["gain_s"] else "0"]
            for one in sorted(result["ranks"], key=lambda one: -one["gain_s"])[:MOST]
        ]  # fmt: skip
        print(grid(["rank", "waits for others", "comes last", "gain without its delay"], rows))
    print()
    for sentence in result["findings"]:
        print(f"- {sentence}")

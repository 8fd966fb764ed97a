"""What the terminal shows of a score: by source, by measure, and what was skipped."""

from __future__ import annotations

from collections import Counter
from typing import Any

from reckon.views.terminal import grid


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


def _variation(by_metric: dict[str, Any]) -> str:
    """How far quantiles of steps are off, and distances of whole distributions, by figure."""
    rows = [
        [name, str(own["n"]), *(_percent(own[key]) for key in ("mape", "median_ape", "p90_ape"))]
        for name, own in by_metric.items()
    ]
    return grid(["figure", "n", "mean error", "median", "P90"], rows)


def show_validation(result: dict[str, Any]) -> None:
    """Print the score by source, and what was skipped and why."""
    if result["groups"]:
        print(_sources(result["groups"]))
    print(f"\n{_total(result)}")
    if "inference" in result:
        print("\n" + _served(result["inference"]))
    if result["kind"] == "variation" and any(own["n"] for own in result["by_metric"].values()):
        print("\n" + _variation(result["by_metric"]))
    for line in _memory(result["memory"]):
        print(line)
    _reasons("skipped, because", result["skipped"])
    _reasons("rows contradict themselves", result["noted"])


def _sources(groups: list[dict[str, Any]]) -> str:
    """The score of each source, a row each."""
    rows = [
        [
            group["source"],
            str(group["n"]),
            _percent(group["mape"]),
            _percent(group["median_ape"]),
            "" if group["bias"] is None else f"{group['bias']:+.3f}",
            _percent(group["coverage"]),
            "fitted" if group["in_sample"] else "",
        ]
        for group in groups
    ]
    return grid(["source", "n", "MAPE", "median", "bias", "covered", ""], rows)


def _total(result: dict[str, Any]) -> str:
    """The score of all rows, in a line."""
    # A row of power may state several figures.
    of = "figures predicted, of {} rows," if result["kind"] == "power" else "of {} rows predicted"
    return (
        f"{result['n_predicted']} {of.format(result['n_points'])} with "
        f"{result['calibration']}: MAPE {_percent(result['mape']) or '-'}, median "
        f"{_percent(result['median_ape']) or '-'}, macro over sources "
        f"{_percent(result['macro_mape']) or '-'}; {result['interval_level']:.0%} interval covers "
        f"{_percent(result['interval_coverage']) or '-'}"
    )


def _served(metrics: dict[str, Any]) -> str:
    """The score of each metric of serving, a row each."""
    rows = [
        [
            name,
            str(own["n"]),
            _percent(own["mape"]),
            _percent(own["macro_mape"]),
            _percent(own["coverage"]),
            _percent(own["with_flagged"]["mape"]),
        ]
        for name, own in metrics.items()
    ]
    columns = ["inference", "n", "MAPE", "macro", "covered", "MAPE with flagged rows"]
    return grid(columns, rows)


def _memory(memory: dict[str, Any]) -> list[str]:
    """The score of peaks of memory, and of whether it ran out: a line each, where rows say so."""
    lines = []
    if memory["n"]:
        lines.append(
            f"peak memory: MAPE {_percent(memory['mape'])} over {memory['n']} rows, macro over "
            f"sources {_percent(memory['macro_mape'])}"
        )
    if memory["oom_accuracy"] is not None:
        lines.append(
            f"out of memory or not: {_percent(memory['oom_accuracy'])} of rows right; of those "
            f"that ran out {_percent(memory['oom_recall']) or '-'} said to, of those said to "
            f"{_percent(memory['oom_precision']) or '-'} ran out"
        )
    return lines


def _reasons(title: str, rows: list[dict[str, Any]]) -> None:
    """What is said of rows, and of how many, the commonest first."""
    if found := Counter(row["reason"] for row in rows):
        print()
        print(grid([title, "n"], [[told, str(n)] for told, n in found.most_common()]))

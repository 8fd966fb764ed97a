"""Power and uneven work beside what was asked of them, as tables of the accuracy page:
`python -m calibration.checks.asked SHARED`.

Rows of power are predicted by constants that were fitted without their model or their accelerator,
or that no fit read; nothing is fitted to any row of uneven work.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from calibration.checks.command import of_shared
from calibration.checks.geography import measured, pairs
from calibration.checks.scoreboard import score
from calibration.checks.scored import Scored
from calibration.power.points import PowerPoint, power_points
from calibration.power.spreads import spreads_apart
from calibration.power.stated import power_table
from calibration.sources.reading import read_table
from calibration.tables.documents import shipped
from calibration.variation.documents import LEFT_OUT, left_out
from calibration.variation.documents import measured as measured_documents
from predictor.timing import Calibration
from predictor.units import Z80

GIVEN, ENERGY = "power_w:given_throughput", "energy_per_token_j"

WITHIN = (("H100-SXM5-80GB", 0.09), ("B200-SXM-180GB", 0.09), ("A100-SXM4-40GB", 0.12))
"""Accelerators whose served power is asked for within so much, models left out."""

FITTED_TO = ("mlenergy_v3", "mlenergy_v2")
"""Sources of served energy that fits read, but for the group that is left out."""


@dataclass(frozen=True, slots=True)
class Line:
    """A row of a table: what was predicted, errors in logarithms, whether each interval holds its
    row, and the mean error that was asked for; empty where none was."""

    what: str
    errors: tuple[float, ...]
    inside: tuple[bool, ...]
    asked: str = ""

    def __str__(self) -> str:
        if not self.errors:
            return f"| {self.what} | 0 | | | | | {self.asked} |"
        logs = np.array(self.errors)
        away = np.abs(np.expm1(logs))
        shown = f"{away.mean():.1%} | {np.median(away):.1%} | {logs.mean():+.2f}"
        return (
            f"| {self.what} | {len(logs)} | {shown} | {np.mean(self.inside):.0%} | {self.asked} |"
        )


HEAD = (
    "| what | rows | MAPE | median | bias | inside the 80 % interval | asked |",
    "|---|---:|---:|---:|---:|---:|---:|",
)


def _line(what: str, points: Iterable[PowerPoint], asked: str = "") -> Line:
    own = list(points)
    logs = tuple(float(np.log(one.predicted / one.published)) for one in own)
    inside = (abs(e) <= Z80 * one.sigma for e, one in zip(logs, own, strict=True))
    return Line(what, logs, tuple(inside), asked)


def _served(
    model: list[PowerPoint], apart: list[PowerPoint], alone: list[PowerPoint]
) -> list[Line]:
    """Lines of served energy: each model left out, each accelerator left out, as shipped."""
    lines = []
    for metric, what, most in (
        (GIVEN, "power of serving at the measured rate", ""),
        (ENERGY, "energy per token from the configuration alone", "20%"),
    ):
        for name, within in WITHIN:
            lines.append(
                _line(
                    f"{what}, {name}, models left out",
                    (
                        one for one in model
                        if one.metric == metric and one.accelerator == name
                        and one.source in FITTED_TO
                    ),
                    most or f"{within:.0%}",
                )
            )  # fmt: skip
    for name, _ in WITHIN:
        fitted = (
            p for p in apart
            if (p.metric, p.accelerator) == (GIVEN, name) and p.source in FITTED_TO
        )  # fmt: skip
        lines.append(_line(f"power at the measured rate, {name} left out", fitted, "18%"))
    for source in sorted({p.source for p in alone} - set(FITTED_TO)):
        own = [p for p in alone if p.source == source]
        metric = GIVEN if any(p.metric == GIVEN for p in own) else "power_w"
        told = (p for p in own if p.metric == metric)
        lines.append(_line(f"{source}, which no fit reads", told))
    return lines


def _swept(points: list[PowerPoint]) -> list[Line]:
    """Lines of limits and clocks, each accelerator left out."""
    kinds = (
        ("bound", "rel_time", "time under limits that bind", "5%"),
        ("bound", "rel_power", "power under limits that bind", "4%"),
        ("free", "rel_power", "power under limits that do not bind", ""),
        ("clock", "rel_power", "power at locked clocks", "8%"),
    )
    return [
        _line(
            f"{what}, accelerators left out",
            (p for p in points if (p.control, p.metric) == (control, metric)),
            most,
        )
        for control, metric, what, most in kinds
    ]


def told_apart(points: list[PowerPoint]) -> list[PowerPoint]:
    """Rows each of whose spreads is told by the other rows alone."""
    errors = np.array([np.log(one.predicted / one.published) for one in points])
    sigmas = spreads_apart(errors, [one.point_id for one in points], 0.0)
    return [replace(p, sigma=float(s)) for p, s in zip(points, sigmas, strict=True)]


def power_lines(shared: Path, calibration: Calibration) -> list[Line]:
    """Lines of every table of power under a shared folder; last how many rows the intervals hold,
    and of the table and metric of which they hold least and most."""
    place = shared / "reference" / "power"

    def scored(name: str, by: str | None = None) -> list[PowerPoint]:
        table = read_table(place / name)
        found, _ = power_points(table, power_table(table) or "", calibration, by)
        return [point for point in found if not point.in_sample]

    model = scored("energy_inference.csv", "model")
    apart = scored("energy_inference.csv", "accelerator")
    alone = scored("energy_inference.csv")
    swept = scored("power_limit_sweeps.csv", "accelerator")
    rungs, hot = scored("kernel_power.csv"), scored("thermal.csv")
    ladder = [p for p in rungs if p.accelerator.startswith("B300") and p.metric == "power_w"]
    rungs = [p for p in rungs if p not in ladder] + told_apart(ladder)
    nodes = scored("energy_training.csv") + scored("system_power.csv")
    lines = [
        *_served(model, apart, alone),
        *_swept(swept),
        _line(
            "power of B300's kernels, from three rungs of its ladder",
            (p for p in rungs if p.accelerator.startswith("B300")),
            "8%",
        ),
        _line(
            "power of nodes that fine-tune", (p for p in nodes if p.metric == "node_power_w"), "12%"
        ),
        _line("temperature [°C]", hot),
    ]
    tables = (model, swept, rungs, hot, nodes)
    each = [
        _line(metric, (p for p in points if p.metric == metric))
        for points in tables
        for metric in sorted({p.metric for p in points})
    ]
    held = [float(np.mean(one.inside)) for one in each]
    every = _line(
        f"all tables; of one table and metric {min(held):.0%} to {max(held):.0%} inside",
        (p for points in tables for p in points),
        "75 to 85% inside",
    )
    return [*lines, every]


def _rows(what: str, rows: Iterable[Scored], asked: str) -> Line:
    own = list(rows)
    logs = tuple(one.log_error for one in own)
    inside = tuple(one.low <= one.published <= one.high for one in own)
    return Line(what, logs, inside, asked)


def uneven_lines(shared: Path, calibration: Calibration) -> list[str]:
    """Lines of slow links and of attention by document, then the order of systems over regions."""
    place = shared / "reference" / "variation"
    path = place / "lowbw_v100_steps.csv"
    with path.open(newline="") as stream:
        told: list[Mapping[str, str]] = list(csv.DictReader(stream))
    rows = [
        (told[int(one.point_id.split(":")[1]) - 2], one) for one in score([path], calibration).rows
    ]

    def steps(what: str, asked: str, wanted: Callable[[Mapping[str, str]], bool]) -> Line:
        return _rows(what, (one for stated, one in rows if wanted(stated)), asked)

    lines = [
        steps(
            "pipelines over slow links, fp16", "13%",
            lambda r: r["precision"] == "fp16" and r["dp"] == "1",
        ),
        steps("the same in fp32", "", lambda r: r["precision"] == "fp32"),
        *(
            steps(
                f"the same beside {dp}-way data parallelism", "20%",
                lambda r, dp=dp: r["dp"] == dp,  # type: ignore[misc]
            )
            for dp in sorted({r["dp"] for r, _ in rows} - {"1"}, key=int)
        ),
        _rows("transfers over slow links", score([place / "lowbw_p2p.csv"], calibration).rows, ""),
        *_documents(place / "attention_per_document_h100.csv"),
    ]  # fmt: skip
    found = pairs(measured(told), calibration)
    right, every = (sum(own[at] for own in found.values()) for at in (0, 2))
    order = (
        f"Of {every} pairs of systems over regions, {right / every:.0%} are in order (asked: 90%)."
    )
    return [*HEAD, *map(str, lines), "", order]


def _documents(path: Path) -> list[Line]:
    """Lines of attention by document, fitted without what is left out in turn."""
    plans, times = measured_documents(path)
    known, apart = shipped()[0].sigma
    lines = []
    for what, key in LEFT_OUT.items():
        logs = left_out(plans, times, key)
        inside = tuple(
            bool(one) for one in np.abs(logs) <= Z80 * (apart if what == "cp" else known)
        )
        name = f"attention by document, H100, {what} left out"
        lines.append(Line(name, tuple(logs.tolist()), inside, "6%"))
    return lines


def power_table_of(shared: Path, calibration: Calibration) -> list[str]:
    """The table of power as lines of text."""
    return [*HEAD, *map(str, power_lines(shared, calibration))]


def report(shared: Path, calibration: Calibration) -> None:
    """Print both tables."""
    lines = [*power_table_of(shared, calibration), "", *uneven_lines(shared, calibration)]
    print("\n".join(lines))


if __name__ == "__main__":
    sys.exit(of_shared("calibration.checks.asked", report, sys.argv[1:]))

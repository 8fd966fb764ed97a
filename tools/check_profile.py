"""What the profiler must show, measured on this machine: how far two profiles agree, and how well
what a calibration learns from one predicts steps and passes that it never saw.

    python tools/check_profile.py --out profile-out [--budget 120s] [--long 600s] [--threads 1]

Run by `make check-profile` on a quiet machine. Takes twice the budget and half a minute; `--long
600s` adds a long profile, with which the short one is compared: some 13 minutes with a budget of
60 s. Prints each figure beside its target, and whether it is reached.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

import reckon
from calibration.checks.own_steps import added, line, steps_of
from calibration.sources.kineto_calls import Calls
from calibration.sources.kineto_file import load
from calibration.sources.kineto_steps import anatomy
from predictor import catalog
from profiler import huggingface
from profiler.suite import identity
from reckon.console.files import write_json
from reckon.verbs.checking import NAMES, check, errors
from reckon.views.terminal import grid, strong

TARGETS = {
    "single": 0.10, "transformers": 0.10, "dp": 0.15, "fsdp": 0.15, "tp": 0.12,
    "ttft_ms": 0.12, "tpot_ms": 0.12,
}  # fmt: skip
"""Mean errors to reach."""

SAME, LONGER = 0.05, 1.3
"""Median difference between two profiles; error of a short profile over that of a long one."""


def repeated(one: Path, other: Path) -> dict[str, tuple[int, float]]:
    """By operator: shapes that both profiles measured, median difference of their times."""
    tables = [pd.read_parquet(folder / "kernels.parquet") for folder in (one, other)]
    keyed = [
        {(row["accelerator"], *identity(row)): row for row in table.to_dict("records")}
        for table in tables
    ]
    found: dict[str, list[float]] = {"all": []}
    for key in keyed[0].keys() & keyed[1].keys():
        a, b = (rows[key]["latency_us"] for rows in keyed)
        for op in (str(key[1]), "all"):
            found.setdefault(op, []).append(abs(np.log(a / b)))
    return {op: (len(away), float(np.median(away))) for op, away in sorted(found.items())}


def verdict(value: float, target: float) -> str:
    """Whether a figure reaches its target."""
    return "pass" if value <= target else "miss"


def traces(folder: Path) -> Iterator[list[str]]:
    """What each trace says of its steps, and whether its parts add up to the whole."""
    for path in sorted(folder.glob("*.json.gz")):
        trace = load(path)
        found = anatomy(trace, Calls(trace.events), str(path))
        parts = found.compute + found.exposed + found.host_idle + found.other_idle
        yield [
            path.name, str(found.steps), f"{found.step_time * 1e3:.2f}",
            f"{found.kernel_time * 1e3:.2f}", f"{found.exposed * 1e3:.2f}",
            f"{found.host_idle * 1e3:.2f}", f"{parts / found.window - 1:+.1e}",
        ]  # fmt: skip


def mean_error(checks: list[dict[str, object]]) -> float:
    """Mean absolute error of all checks."""
    ratios = [float(str(one["predicted_s"])) / float(str(one["measured_s"])) for one in checks]
    return float(np.mean(np.abs(np.array(ratios) - 1.0)))


def missing_reason(missing: list[str]) -> str:
    """Why a stranger's steps may be among what was not measured."""
    stranger = NAMES["transformers"] in missing and not huggingface.available()
    return " (transformers is not installed)" if stranger else ""


def measured(folder: Path, budget: str, threads: int | None) -> list[dict[str, object]]:
    """Profile, calibrate, check."""
    ranks = 2 if (os.cpu_count() or 1) >= 2 else 1
    profile = reckon.profile(folder / "profile", budget=budget, ranks=ranks, threads=threads)
    for problem in profile.problems:
        print(f"note: {problem}")
    reckon.calibrate(folder / "profile", folder / "calibration")
    return check(folder / "profile", folder / "calibration")


def show_steps(found: list[dict[str, object]]) -> None:
    rows = []
    for one in found:
        measured_s, predicted_s = float(str(one["measured_s"])), float(str(one["predicted_s"]))
        rows.append(
            [
                str(one["name"]),
                f"{measured_s * 1e3:.2f}",
                f"{predicted_s * 1e3:.2f}",
                f"{predicted_s / measured_s - 1:+.1%}",
            ]
        )
    print(grid(["check (never fitted)", "measured ms", "predicted ms", "error"], rows))


def show_errors(own: dict[str, float], other: dict[str, float]) -> None:
    rows = [
        [NAMES[kind], f"{value:.1%}", f"{other.get(kind, float('nan')):.1%}",
         f"{TARGETS[kind]:.0%}", verdict(max(value, other.get(kind, 0.0)), TARGETS[kind])]
        for kind, value in own.items()
    ]  # fmt: skip
    print("\n" + grid(["mean error", "first profile", "second", "target", ""], rows))
    missing = [NAMES[kind] for kind in TARGETS if kind not in own]
    if missing:
        print("not measured: " + ", ".join(missing) + missing_reason(missing))


def show_longer(
    short: list[dict[str, object]], long: list[dict[str, object]], budget: str, longer: str
) -> None:
    """Errors on the same steps by a calibration from a short and from a long profile."""
    pairs = [(NAMES[kind], errors(short)[kind], value) for kind, value in errors(long).items()]
    pairs.append(("all", mean_error(short), mean_error(long)))
    rows = [
        [name, f"{a:.1%}", f"{b:.1%}", f"{a / b:.2f}", f"{LONGER:g}", verdict(a / b, LONGER)]
        for name, a, b in pairs
    ]
    columns = [f"of the profile of {longer}", budget, longer, "ratio", "target", ""]
    print("\n" + grid(columns, rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("profile-out"))
    parser.add_argument("--budget", default="120s")
    parser.add_argument("--long", default=None)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--traces", type=Path, default=Path("../shared/bulk/traces"))
    arguments = parser.parse_args()
    out: Path = arguments.out
    begin = time.perf_counter()
    print(f"load average before: {os.getloadavg()[0]:.2f}\n")

    first = measured(out / "first", arguments.budget, arguments.threads)
    show_steps(first)
    second = measured(out / "second", arguments.budget, arguments.threads)
    show_errors(errors(first), errors(second))
    own = out / "first"
    print(
        "\n"
        + line("two own steps", added(steps_of(own / "profile", catalog.load(own / "calibration"))))
    )
    same = repeated(out / "first" / "profile", out / "second" / "profile")
    rows = [
        [op, str(n), f"{away:.1%}", f"{SAME:.0%}", verdict(away, SAME)]
        for op, (n, away) in same.items()
    ]
    print("\n" + grid(["two profiles", "shapes", "median difference", "target", ""], rows))

    long: list[dict[str, object]] = []
    short: list[dict[str, object]] = []
    if arguments.long:
        long = measured(out / "long", arguments.long, arguments.threads)
        # Both calibrations predict the same steps: those of the long profile.
        short = check(out / "long" / "profile", out / "first" / "calibration")
        show_longer(short, long, arguments.budget, arguments.long)

    if arguments.traces.is_dir():
        columns = ["trace", "steps", "step ms", "kernels ms", "exposed ms", "host ms", "parts"]
        print("\n" + grid(columns, list(traces(arguments.traces))))
    figures = {"first": first, "second": second, "same": same, "long": long, "short": short}
    write_json(str(out / "checks.json"), figures)
    spent = time.perf_counter() - begin
    print(
        strong(
            f"\n{spent / 60:.1f} minutes; load average after: {os.getloadavg()[0]:.2f}; "
            f"figures in {out}/checks.json"
        )
    )


if __name__ == "__main__":
    main()

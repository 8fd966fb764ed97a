"""Fits what attention over packed documents takes to a table of such times.

    python -m calibration.variation.documents TABLE

writes `data/variation/documents.json`: four constants (`calibration.tables.documents`), the rows
that they were fitted to, and what they miss of lengths, divisions of the sequence and of the heads
that were left out of a fit of their own.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from calibration.sources.reading import read_table
from calibration.tables.cells import filled
from calibration.tables.documents import COLUMNS, FILE, TIME_KEY, DocumentKernel, plan_of
from predictor import catalog
from predictor.arrays import Array
from predictor.errors import InputError
from predictor.files import write_text

Plan = tuple[float, float, float]

START = (20e-6, 0.4, 1000.0, 1.5)
"""Where a search begins: the call, the efficiency, `short` and `joint`."""

WIDE = 0.03
"""Residuals in log beyond this count by their size rather than its square: about as much as a
quadratic in the length misses of one layout, so that lengths of a few calls of the host do not
decide."""

LEFT_OUT: dict[str, Callable[[Plan], Any]] = {
    "tokens": lambda plan: plan[0],
    "cp": lambda plan: plan[1],
    "tp": lambda plan: plan[2],
}
"""What is left out in turn."""


def fit(plans: Sequence[Plan], times: Array) -> DocumentKernel:
    """A kernel fitted to times of documents [s]; shape of times: plans.

    Raises InputError for fewer than ten.
    """
    if len(plans) < 10:
        raise InputError(f"attention by document is fitted to 10 rows or more, not {len(plans)}")
    columns = np.array(plans).T

    def residuals(logs: Array) -> Array:
        found = DocumentKernel(*np.exp(logs)).time(*columns)
        return np.asarray(np.log(found / times))

    best = least_squares(residuals, np.log(START), loss="soft_l1", f_scale=WIDE)
    call, efficiency, short, joint = (float(value) for value in np.exp(best.x))
    return DocumentKernel(call, efficiency, short, joint)


def left_out(plans: Sequence[Plan], times: Array, key: Callable[[Plan], Any]) -> Array:
    """Log of the prediction over each time by a fit without those of its key; shape of times."""
    keys = [key(plan) for plan in plans]
    logs = np.zeros(len(plans))
    for own in dict.fromkeys(keys):
        out = np.array([one == own for one in keys])
        rest = [plan for plan, gone in zip(plans, out, strict=True) if not gone]
        asked = np.array([plan for plan, gone in zip(plans, out, strict=True) if gone]).T
        logs[out] = np.log(fit(rest, times[~out]).time(*asked) / times[out])
    return logs


def measured(path: Path) -> tuple[list[Plan], Array]:
    """Rows of a table of attention by document, and what they took [s].

    Raises InputError for a table that lacks a number.
    """
    table = filled(read_table(path), COLUMNS, str(path))
    plans = [plan_of(row) for row in table.to_dict("records")]
    return plans, table[TIME_KEY].to_numpy(float) / 1e3


def build(path: Path) -> dict[str, object]:
    """What ships: the kernel, what it was fitted to, and how far it is off what it was not."""
    plans, times = measured(path)
    missed = {name: left_out(plans, times, key) for name, key in LEFT_OUT.items()}
    known, apart = (float(np.sqrt(np.mean(missed[name] ** 2))) for name in ("tokens", "cp"))
    return {
        "kernel": asdict(replace(fit(plans, times), sigma=(known, apart))),
        "sources": sorted(set(read_table(path)["source"])),
        "held_out_error": {
            name: float(np.mean(np.abs(np.expm1(logs)))) for name, logs in missed.items()
        },
        "fitted_to": sorted(plans),
    }


def main(argv: Sequence[str] | None = None) -> None:
    """Write the file and print what is missed of what was left out."""
    parser = argparse.ArgumentParser(prog="python -m calibration.variation.documents")
    parser.add_argument("table", type=Path)
    given = parser.parse_args(argv)
    found = build(given.table)
    write_text(catalog.data_dir().joinpath(*FILE), json.dumps(found, indent=1) + "\n")
    print({key: found[key] for key in ("kernel", "held_out_error")})


if __name__ == "__main__":
    main()

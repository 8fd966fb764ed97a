"""What the kernel models are worth on shapes, accelerators and libraries left out of them.

The figures come from the fits themselves (`calibration.kernels`), which keep them in the artifact;
here they are gathered by operator, and libraries are left out of the measurements.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from calibration.libraries import log_times, typical

FOLDS = {
    "kernels": "unseen shapes",
    "accelerator_left_out": "accelerator left out",
    "links": "unseen sizes",
}
"""Sections of an artifact's held-out errors, and what was left out for each."""


def heldout(folder: Path) -> pd.DataFrame:
    """Held-out errors of a calibration, a row per fold, kind, data type and accelerator (or op
    and link): mape, median, bias, points.
    """
    content: Mapping[str, Any] = json.loads((folder / "calibration.json").read_text("utf-8"))
    rows = []
    for section, label in FOLDS.items():
        for name, found in content["heldout"].get(section, {}).items():
            parts = name.split("/")
            kind, dtype, place = (parts[0], "", parts[1]) if len(parts) == 2 else parts
            rows.append({"fold": label, "kind": kind, "dtype": dtype, "place": place, **found})
    return pd.DataFrame(rows)


def few_shots(folder: Path) -> pd.DataFrame:
    """Errors before and after bending to sixty points, a row per kind and accelerator."""
    content: Mapping[str, Any] = json.loads((folder / "calibration.json").read_text("utf-8"))
    rows = []
    for name, found in content["heldout"].get("sixty_points", {}).items():
        kind, dtype, place = name.split("/")
        rows.append({"kind": kind, "dtype": dtype, "place": place, **found})
    return pd.DataFrame(rows)


def summary(folder: Path) -> pd.DataFrame:
    """Mean over accelerators of each kind's held-out MAPE, by data type and fold; `most` and
    `worst` name the accelerator with the largest."""
    table = heldout(folder).dropna(subset=["mape"])
    rows = []
    for (fold, kind, dtype), own in table.groupby(["fold", "kind", "dtype"], sort=False):
        worst = own.sort_values("mape").iloc[-1]
        rows.append(
            {
                "fold": fold,
                "kind": kind,
                "dtype": dtype,
                "places": len(own),
                "mape": float(own["mape"].mean()),
                "median": float(own["median"].mean()),
                "bias": float(own["bias"].mean()),
                "most": float(worst["mape"]),
                "worst": str(worst["place"]),
            }
        )
    return pd.DataFrame(rows)


def library_left_out(tables: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Errors of a library's times taken from those of the other libraries on the same accelerator,
    with the constants that hold on other accelerators; a row per accelerator and library.

    tables   checked rows of one kind and data type by accelerator
    """
    rows = []
    for name, own in tables.items():
        usual = typical({other: table for other, table in tables.items() if other != name})
        wide = log_times(own[own["framework"] != ""])
        for left in wide.columns:
            rest = [other for other in wide.columns if other != left]
            if left not in usual or not rest:
                continue
            constants = np.array([usual.get(str(other), 0.0) for other in rest])
            guess = (wide[rest] - constants).mean(axis=1) + usual[str(left)]
            ratio = (guess - wide[left]).dropna().to_numpy()
            share = np.abs(np.expm1(ratio))
            rows.append(
                {
                    "accelerator": name,
                    "library": str(left),
                    "points": len(ratio),
                    "mape": float(share.mean()),
                    "median": float(np.median(share)),
                    "bias": float(ratio.mean()),
                }
            )
    return pd.DataFrame(rows)

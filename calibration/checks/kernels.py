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

from calibration.kernels.fit import fit_points, folds_of, points_of, predict_points
from calibration.kernels.models import merge_dtypes, part_of, split
from calibration.tables.libraries import library, log_times, typical
from predictor import catalog

FOLDS = {
    "kernels": "unseen shapes",
    "accelerator_left_out": "accelerator left out",
    "links": "unseen sizes",
    "library_left_out": "library left out",
}
"""Sections of an artifact's held-out errors, and what was left out for each."""


def heldout_section(folder: Path, section: str) -> Mapping[str, Any]:
    """One section of an artifact's held-out errors as it is stored; empty where it has none."""
    content: Mapping[str, Any] = json.loads((folder / "calibration.json").read_text("utf-8"))
    return dict(content["heldout"].get(section, {}))


def heldout(folder: Path) -> pd.DataFrame:
    """Held-out errors of a calibration, a row per fold, kind, data type and accelerator (or op
    and link): mape, median, bias, points.
    """
    rows = []
    for section, label in FOLDS.items():
        for name, found in heldout_section(folder, section).items():
            parts = name.split("/")
            kind, dtype, place = (parts[0], "", parts[1]) if len(parts) == 2 else parts
            rows.append({"fold": label, "kind": kind, "dtype": dtype, "place": place, **found})
    return pd.DataFrame(rows)


def few_shots(folder: Path) -> pd.DataFrame:
    """Errors before and after bending to sixty points, a row per kind and accelerator."""
    rows = []
    for name, found in heldout_section(folder, "sixty_points").items():
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


def libraries_left_out(table: pd.DataFrame) -> dict[str, dict[str, float]]:
    """`library_left_out` of every kind and data type of a checked kernel table, by
    'kind/dtype/accelerator'; means over the libraries of an accelerator."""
    table = table.assign(framework=table["framework"].map(library))
    found = {}
    for kind, _, dtype, rows in split(table[table["framework"] != ""]):
        tables = {str(name): own for name, own in rows.groupby("accelerator", observed=True)}
        errors = library_left_out(tables)
        if not len(errors):
            continue
        for name, own in errors.groupby("accelerator"):
            figures = {column: float(own[column].mean()) for column in ("mape", "median", "bias")}
            found[f"{kind}/{dtype}/{name}"] = {**figures, "points": float(own["points"].sum())}
    return found


def families(table: pd.DataFrame, source: str) -> dict[str, dict[str, float]]:
    """Errors on unseen shapes of one source's rows, by 'accelerator/kind/variant': fits to every
    source without a fifth of the shapes, tested on those."""
    table = table.assign(framework=table["framework"].map(library))
    names = set(table.loc[table["source"] == source, "accelerator"])
    table = table[table["accelerator"].isin(names)]
    known = {str(name): catalog.accelerator(str(name)) for name in names}
    found = {}
    for kind, op, dtype, rows in split(merge_dtypes(table, known)):
        if rows["kind"].nunique() > 1:
            continue  # the same rows again, pooled over kernels
        for name, own in rows.groupby("accelerator", observed=True):
            mine = own[own["source"] == source]
            if mine.empty:
                continue
            device = known[str(name)]
            points = part_of(own, device, op, dtype, {}).points
            test = points_of(mine, device, op, dtype)
            out, held = folds_of(points) == 0, folds_of(test, like=points) == 0
            model = fit_points(points.take(np.flatnonzero(~out)), kind, dtype, str(name))
            test = test.take(np.flatnonzero(held))
            ratio = np.log(predict_points(model, test) / test.time)
            for variant in np.unique(test.variant.astype(str)):
                r = ratio[test.variant == variant]
                found[f"{name}/{kind}/{variant}"] = {
                    "mape": float(np.abs(np.expm1(r)).mean()),
                    "median": float(np.median(np.abs(np.expm1(r)))),
                    "bias": float(r.mean()),
                    "points": len(r),
                }
    return found


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

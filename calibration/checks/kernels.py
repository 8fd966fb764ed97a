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
from calibration.kernels.parts import merge_dtypes, part_of, split
from calibration.tables.libraries import library, log_times, typical
from predictor import catalog

FOLDS = {
    "kernels": "unseen shapes",
    "accelerator_left_out": "accelerator left out",
    "links": "unseen sizes",
    "library_left_out": "library left out",
    "library_alone": "library that no relative has",
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


def libraries_left_out(table: pd.DataFrame) -> dict[str, dict[str, dict[str, float]]]:
    """`library_left_out` of every kind and data type of a checked kernel table, by
    'kind/dtype/accelerator', means over the libraries of an accelerator: of those that a relative
    knows, and of the others, by section of the held-out errors."""
    table = table.assign(framework=table["framework"].map(library))
    found: dict[str, dict[str, dict[str, float]]] = {"library_left_out": {}, "library_alone": {}}
    for kind, _, dtype, rows in split(table[table["framework"] != ""]):
        tables = {str(name): own for name, own in rows.groupby("accelerator", observed=True)}
        family = {
            name: catalog.accelerator(name).architecture.removesuffix("-ultra") for name in tables
        }
        errors = library_left_out(tables, family)
        if not len(errors):
            continue
        for (name, alone), own in errors.groupby(["accelerator", errors["relatives"] == 0]):
            figures = {column: float(own[column].mean()) for column in ("mape", "median", "bias")}
            section = found["library_alone" if alone else "library_left_out"]
            section[f"{kind}/{dtype}/{name}"] = {**figures, "points": float(own["points"].sum())}
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


def library_left_out(
    tables: Mapping[str, pd.DataFrame], architectures: Mapping[str, str]
) -> pd.DataFrame:
    """Errors of a library's times taken from those of the other libraries on the same accelerator,
    with what it adds to them on relatives of its architecture that know it (`relatives`, how
    many), else with the constants that hold on other accelerators; a row per accelerator and
    library.

    tables         checked rows of one kind and data type by accelerator
    architectures  of each, a mid-life revision ('-ultra') counting as the one before
    """
    every = pd.concat(tables, names=["place"]).reset_index("place")
    wide = log_times(every[every["framework"] != ""], ["place"])
    known = {str(name): own.dropna(axis=1, how="all") for name, own in wide.groupby("place")}
    known = {name: own.droplevel("place") for name, own in known.items()}
    rows = []
    for name, own in known.items():
        near = [n for n in known if n != name and architectures[n] == architectures[name]]
        usual = typical({other: table for other, table in tables.items() if other != name})
        for left in own.columns:
            rest = [other for other in own.columns if other != left]
            steps = [
                own[both].mean(axis=1, skipna=False)
                + known[n][left]
                - known[n][both].mean(axis=1, skipna=False)
                for n in near
                if left in known[n] and (both := [r for r in rest if r in known[n]])
            ]
            if steps:
                guess = pd.concat(steps, axis=1).mean(axis=1)
            elif left in usual and rest:
                constants = np.array([usual.get(str(other), 0.0) for other in rest])
                guess = (own[rest] - constants).mean(axis=1) + usual[str(left)]
            else:
                continue
            ratio = (guess - own[left]).dropna().to_numpy()
            if not len(ratio):
                continue
            share = np.abs(np.expm1(ratio))
            rows.append(
                {
                    "accelerator": name,
                    "library": str(left),
                    "relatives": len(steps),
                    "points": len(ratio),
                    "mape": float(share.mean()),
                    "median": float(np.median(share)),
                    "bias": float(ratio.mean()),
                }
            )
    return pd.DataFrame(rows)

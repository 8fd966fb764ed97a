"""`reckon calibrate`: bend a calibration to new measurements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import date
from pathlib import Path
from typing import Any

from calibration.artifact import check_folder, heldout_table, write
from calibration.kernels.models import fit_kernels
from calibration.network.fit import fit_links
from calibration.runs.fit import adapt_runs, default_run, read_points
from calibration.tables.kernel_table import gaps
from calibration.tables.profiles import read_measurements
from predictor import catalog
from predictor.catalog import load
from predictor.errors import InputError
from predictor.timing import Calibration


def calibrate(
    measurements: str | Path | Sequence[str | Path],
    out: str | Path,
    reference: Sequence[str | Path] = (),
    base: str | Path | Calibration = "default",
    name: str | None = None,
    system: str | Path | None = None,
) -> dict[str, Any]:
    """Fit efficiencies and links to measurements, on top of a base calibration, and write them.

    measurements  folders of `reckon profile`, kernel tables, or traces of PyTorch's profiler
    out           folder to write
    reference     tables of runs: the run parameters are bent to one's own, fitted to those of
                  several sources
    base          calibration to start from; 'none' starts from the documented defaults
    system        name or file of what traces were recorded on, where they do not say

    Returns a summary with the held-out errors. Raises InputError for unusable input.
    """
    check_folder(Path(out))
    paths = [measurements] if isinstance(measurements, str | Path) else list(measurements)
    recorded_on = None if system is None else catalog.system(system)
    found = read_measurements([Path(path) for path in paths], recorded_on)
    start = load(base)
    if start.name == "none":
        start = replace(start, run=default_run())
    kernels = fit_kernels(found.table, found.accelerators, pool=False, base=start)
    links = fit_links(found.table, start)
    reasons = gaps(found.table)
    left_out = reasons[reasons != ""].value_counts().to_dict()
    if not kernels.models and not links.links:
        why = "".join(f"; {count} rows: {reason}" for reason, count in left_out.items())
        raise InputError(f"{', '.join(found.files)}: too few rows of any kind to fit anything{why}")
    fitted = replace(
        start,
        name=name or Path(out).name,
        kernels={**start.kernels, **kernels.models},
        links={**start.links, **links.links},
        fitted_files=start.fitted_files | frozenset(found.files),
        provenance={
            **start.provenance,
            "base": start.name,
            "adapted_to": sorted(found.accelerators),
            "date": date.today().isoformat(),
        },
    )
    points: list[str] = []
    if reference:
        rows = read_points([Path(path) for path in reference], fitted.run)
        fitted = adapt_runs(fitted, rows)
        points = [point.point_id for point in rows]
    heldout = {"kernels": heldout_table(kernels.heldout), "links": heldout_table(links.heldout)}
    write(fitted, Path(out), heldout)
    return {
        "name": fitted.name,
        "out": str(out),
        "base": start.name,
        "rows": len(found.table),
        "left_out": left_out,
        "accelerators": sorted(found.accelerators),
        "heldout": {
            "/".join(key): asdict(value)
            for fits in (kernels.heldout, links.heldout)
            for key, value in fits.items()
        },
        "interval_points": points,
        "run_sigma": fitted.run.sigma,
    }

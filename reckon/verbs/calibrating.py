"""`reckon calibrate`: bend a calibration to new measurements."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, field, replace
from datetime import date
from pathlib import Path
from typing import Any

from calibration.artifact import check_folder, heldout_table, write
from calibration.kernels.models import fit_kernels
from calibration.network.fit import fit_links
from calibration.power.profile import fit_profiles
from calibration.runs.fit import LEAST_SOURCES, default_run, fit_runs, read_points
from calibration.runs.own import adapt_runs, aside
from calibration.serving.fit import read_inference
from calibration.serving.own import adapt_engines
from calibration.sources.reading import read_table
from calibration.tables.kernel_table import gaps
from calibration.tables.profiles import device_systems, read_measurements
from calibration.tables.waiting import crowded
from calibration.variation.meeting import jitter
from predictor import catalog
from predictor.catalog import FILE as SERVING
from predictor.catalog import engines_mapping, load
from predictor.errors import InputError
from predictor.files import write_text
from predictor.records import dataclass
from predictor.schema import of_inference
from predictor.timing import Calibration


def _start(
    paths: Sequence[str | Path],
    out: str | Path,
    reference: Sequence[str | Path],
    base: str | Path | Calibration,
) -> Calibration:
    """The calibration to start from, once there is something to learn and somewhere to write."""
    if not paths and not reference:
        raise InputError("give measurements (a folder, tables, traces), or --reference with runs")
    for path in (*paths, *reference):
        if not Path(path).exists():
            raise InputError(f"no such file or folder: {path}")
    if not str(out):
        raise InputError("give --out, a folder for the calibration")
    check_folder(Path(out))
    start = load(base)
    return replace(start, run=default_run()) if start.name == "none" else start


def calibrate(
    measurements: str | Path | Sequence[str | Path] = (),
    out: str | Path = "",
    reference: Sequence[str | Path] = (),
    base: str | Path | Calibration = "default",
    name: str | None = None,
    system: str | Path | None = None,
) -> dict[str, Any]:
    """Fit efficiencies and links to measurements, learn from one's own runs, and write a
    calibration.

    measurements  folders of `reckon profile`, kernel tables, or traces of PyTorch's profiler; none:
                  kernels and links stay as they are
    out           folder to write
    reference     tables of runs: of one's own, from which the others are learned (`reckon.adapt`),
                  or of several sources, to which the run parameters are fitted
    base          calibration to start from; 'none' starts from the documented defaults
    system        name or file of what traces were recorded on, where they do not say

    Returns a summary with the held-out errors. Raises InputError for unusable input.
    """
    paths = [measurements] if isinstance(measurements, str | Path) else list(measurements)
    start = _start(paths, out, reference, base)
    fitted = start
    summary: dict[str, Any] = {"rows": 0, "left_out": {}, "crowded": 0, "accelerators": []}
    heldout: dict[str, Any] = {}
    if paths:
        fitted, summary, heldout = _kernels(start, paths, system)
    told = _runs(fitted, [Path(path) for path in reference], paths) if reference else None
    fitted = told.calibration if told else fitted
    power, powerless = fit_profiles([Path(path) for path in paths])
    fitted = replace(
        fitted, power={**fitted.power, **{name: one.constants for name, one in power.items()}}
    )
    provenance = {**fitted.provenance, "base": start.name, "date": date.today().isoformat()}
    fitted = replace(fitted, name=name or Path(out).name, provenance=provenance)
    write(fitted, Path(out), {key: heldout_table(fits) for key, fits in heldout.items()})
    if fitted.serving is not start.serving:
        text = json.dumps(engines_mapping(fitted.serving), indent=1) + "\n"
        write_text(Path(out) / SERVING, text)
    return {
        "name": fitted.name,
        "out": str(out),
        "base": start.name,
        **summary,
        "heldout": {
            "/".join(key): asdict(value) for fits in heldout.values() for key, value in fits.items()
        },
        "interval_points": told.points if told else [],
        "learned": list(told.words) if told else [],
        "doubtful": told.doubtful if told else {},
        "left_out_runs": told.left_out if told else {},
        "aside": aside(told.doubtful, told.left_out) if told else [],
        "run_sigma": fitted.run.sigma,
        "power": {name: asdict(one) for name, one in power.items()},
        "power_left_out": powerless,
    }


def _kernels(
    start: Calibration, paths: list[str | Path], system: str | Path | None
) -> tuple[Calibration, dict[str, Any], dict[str, Any]]:
    """A calibration with kernels and links fitted to measurements, a summary, held-out errors."""
    recorded_on = None if system is None else catalog.system(system)
    found = read_measurements([Path(path) for path in paths], recorded_on)
    kernels = fit_kernels(found.table, found.accelerators, pool=False, base=start)
    links = fit_links(found.table, start)
    reasons = gaps(found.table)
    left_out = reasons[reasons != ""].value_counts().to_dict()
    if not kernels.models and not links.links:
        why = "".join(f"; {count} rows: {reason}" for reason, count in left_out.items())
        raise InputError(f"{', '.join(found.files)}: too few rows of any kind to fit anything{why}")
    met = {**start.run.jitter, **jitter(found.table)}
    fitted = replace(
        start,
        run=replace(start.run, jitter=met),
        kernels={**start.kernels, **kernels.models},
        links={**start.links, **links.links},
        fitted_files=start.fitted_files | frozenset(found.files),
        provenance={**start.provenance, "adapted_to": sorted(found.accelerators)},
    )
    summary = {
        "rows": len(found.table),
        "left_out": left_out,
        "crowded": crowded(found.table, found.accelerators),
        "accelerators": sorted(found.accelerators),
    }
    return fitted, summary, {"kernels": kernels.heldout, "links": links.heldout}


@dataclass(frozen=True, slots=True)
class _Told:
    """A calibration that knows tables of runs, and what is told of them."""

    calibration: Calibration
    points: list[str]
    words: tuple[str, ...] = ()
    doubtful: Mapping[str, float] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)


def _runs(calibration: Calibration, paths: list[Path], profiles: Sequence[str | Path]) -> _Told:
    """Run parameters fitted to runs of several sources, or what one's own say of others.

    profiles   folders of profiles among them, whose devices runs may be of
    """
    served = [path for path in paths if of_inference(read_table(path).columns)]
    if served:
        if len(served) < len(paths):
            raise InputError("give --reference with runs of training, or of serving, not both")
        own = adapt_engines(calibration, read_inference(served, calibration.run))
        return _Told(own.calibration, list(own.points), own.words)
    folders = [folder for one in profiles if (folder := Path(one)).is_dir()]
    devices = {name: found for folder in folders for name, found in device_systems(folder).items()}
    points = read_points(paths, calibration.run, devices)
    names = [point.point_id for point in points]
    if len({point.source for point in points}) >= LEAST_SOURCES:
        return _Told(fit_runs(calibration, points), names)
    found = adapt_runs(calibration, points)
    return _Told(found.calibration, names, found.words, found.doubtful, found.left_out)

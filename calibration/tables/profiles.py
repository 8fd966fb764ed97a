"""Reads what `reckon profile` wrote, and other kernel tables, for calibration and validation."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from calibration.sources import kineto
from calibration.sources.found import Stated
from calibration.sources.reading import read_table
from calibration.tables.kernel_table import check_kernels
from calibration.tables.waiting import calmed, undisturbed
from predictor import catalog
from predictor.errors import InputError
from predictor.hardware import Accelerator, Cluster
from predictor.schema import KERNEL_KEY


@dataclass(frozen=True, slots=True, eq=False)
class Measurements:
    """Checked kernel rows, the accelerators they were measured on, and where they came from."""

    table: pd.DataFrame
    accelerators: dict[str, Accelerator]
    files: tuple[str, ...]


def device_systems(folder: Path) -> dict[str, Cluster]:
    """The systems that the device files of a folder describe, by the name of their accelerator."""
    found = [catalog.system(path) for path in sorted(folder.glob("device*.yaml"))]
    return {cluster.accelerator.name: cluster for cluster in found}


def device_accelerators(folder: Path) -> dict[str, Accelerator]:
    """The accelerators that the device files of a folder describe, by name."""
    return {name: cluster.accelerator for name, cluster in device_systems(folder).items()}


TRACES = (".json", ".json.gz")
"""Endings of traces of PyTorch's profiler."""


def stated_by(system: Cluster | None) -> Stated:
    """What is known of a trace by the system that it was recorded on."""
    if system is None:
        return Stated()
    return Stated(
        tiers=system.tiers,
        per_node=system.accelerators_per_node,
        system=(system.name, system.accelerator.name),
    )


def read_measurements(paths: list[Path], system: Cluster | None = None) -> Measurements:
    """Read profiles (folders), kernel tables and traces (files); training steps are never read.
    Times of a host are less what its threads waited for processors that others used.

    system   that traces were recorded on, where they do not say so or communicate

    Raises InputError, one line, for what is missing, damaged or of another kind.
    """
    tables: list[pd.DataFrame] = []
    accelerators: dict[str, Accelerator] = {}
    files: list[str] = []
    if system is not None:
        accelerators[system.accelerator.name] = system.accelerator
    for path in paths:
        if path.name.endswith(TRACES):
            found = kineto.read(path, stated_by(system)).rows
            tables.append(check_kernels(found, str(path)))
            files.append(str(path))
            continue
        source = path / "kernels.parquet" if path.is_dir() else path
        if path.is_dir() and not source.is_file():
            killed = " --resume" if (path / ".measured.jsonl").is_file() else ""
            raise InputError(
                f"{path} holds no kernels.parquet (reckon profile{killed} --out {path} writes one)"
            )
        table = read_table(source)
        if KERNEL_KEY not in table:
            raise InputError(
                f"{source} is no kernel table: column {KERNEL_KEY!r} is missing; give runs with "
                "--reference"
            )
        tables.append(undisturbed(check_kernels(table, str(source))))
        accelerators |= device_accelerators(source.parent)
        files.append(str(source))
    if not tables:
        raise InputError("give at least one profile, kernel table or trace")
    joined = pd.concat(tables, ignore_index=True)
    for name in joined["accelerator"].unique():
        if name not in accelerators:
            accelerators[str(name)] = catalog.accelerator(str(name))
    return Measurements(calmed(joined, accelerators), accelerators, tuple(files))

"""Reads what `reckon profile` wrote, and other kernel tables, for calibration and validation."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from calibration.tables import check_kernels, read_table
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


def read_measurements(paths: list[Path]) -> Measurements:
    """Read profiles (folders) and kernel tables (files); training steps are never read.

    Raises InputError, one line, for what is missing, damaged or of another kind.
    """
    tables: list[pd.DataFrame] = []
    accelerators: dict[str, Accelerator] = {}
    files: list[str] = []
    for path in paths:
        source = path / "kernels.parquet" if path.is_dir() else path
        if path.is_dir() and not source.is_file():
            raise InputError(f"{path} holds no kernels.parquet (reckon profile writes one)")
        table = read_table(source)
        if KERNEL_KEY not in table:
            raise InputError(
                f"{source} is no kernel table: column {KERNEL_KEY!r} is missing; give runs with "
                "--reference"
            )
        tables.append(check_kernels(table, str(source)))
        accelerators |= device_accelerators(source.parent)
        files.append(str(source))
    if not tables:
        raise InputError("give at least one profile or kernel table")
    joined = pd.concat(tables, ignore_index=True)
    for name in joined["accelerator"].unique():
        if name not in accelerators:
            accelerators[str(name)] = catalog.accelerator(str(name))
    return Measurements(joined, accelerators, tuple(files))

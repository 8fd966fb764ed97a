"""A load to plan for, hour by hour, and what an accelerator costs."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from predictor import catalog
from predictor.arrays import Array
from predictor.errors import InputError
from predictor.hardware import Cluster
from predictor.records import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class Load:
    """Requests per second, hour by hour; one value for a constant rate."""

    hours: Array
    rates: Array

    @property
    def peak(self) -> float:
        """The largest."""
        return float(self.rates.max())


def load_of(given: float | Mapping[str, Sequence[float]] | str | Path | Load) -> Load:
    """A load from a constant rate, a table's columns, or the CSV file of a table."""
    if isinstance(given, Load):
        return given
    if isinstance(given, Mapping):
        try:
            hours, rates = (np.asarray(given[k], float) for k in ("hour", "requests_per_s"))
        except KeyError as error:
            raise InputError(f"the load lacks {error}") from None
        return checked_load(hours, rates, "load")
    if isinstance(given, str | Path):
        return read_load(Path(given))
    return checked_load(np.zeros(1), np.array([float(given)]), "--rate")


def read_load(table: Path) -> Load:
    """Hours and requests per second of a CSV table. Raises InputError where it has none."""
    try:
        with table.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise InputError(f"cannot read {table}: {why}") from None
    for name in ("hour", "requests_per_s"):
        if not rows or name not in rows[0]:
            raise InputError(f"{table} needs the columns hour and requests_per_s, and a row")
    try:
        hours, rates = (
            np.array([float(row[name]) for row in rows]) for name in ("hour", "requests_per_s")
        )
    except (TypeError, ValueError) as error:
        raise InputError(f"{table}: {error}") from None
    return checked_load(hours, rates, str(table))


def checked_load(hours: Array, rates: Array, where: str) -> Load:
    """A load whose rates are possible."""
    if not np.all(np.isfinite(rates)) or np.any(rates < 0) or not rates.max() > 0:
        raise InputError(f"{where}: requests_per_s must be finite, 0 or more, and not all 0")
    return Load(hours, rates)


def prices(text: str | float | None, clusters: Sequence[Cluster]) -> dict[str, float] | None:
    """Price of an accelerator-hour by system: one number for all, or 'SYSTEM=X,SYSTEM=Y'."""
    if text is None:
        return None
    try:
        if "=" not in str(text):
            return {cluster.name: float(text) for cluster in clusters}
        pairs = (part.partition("=") for part in str(text).split(","))
        table = {catalog.system(name.strip()).name: float(value) for name, _, value in pairs}
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"--price-per-gpu-hour {text!r}: write X, or SYSTEM=X,SYSTEM=Y") from None
    for cluster in clusters:
        if cluster.name not in table:
            raise InputError(f"--price-per-gpu-hour {text!r} says nothing of {cluster.name}")
    return table

"""Scores rows of kernels and collectives: predicted latencies beside those of a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from calibration.checks.scored import Scored
from calibration.network.wire import op_of, wire, wire_spread, wire_times
from calibration.tables.implied import implied
from calibration.tables.kernel_table import check_kernels, gaps, is_collective, kinds, shapes_of
from calibration.tables.libraries import library
from calibration.tables.profiles import device_accelerators
from calibration.tables.runs import Skipped
from predictor import catalog
from predictor.errors import InputError
from predictor.hardware import Accelerator
from predictor.timing import Calibration, shape_times

KNOWN, STRANGE = "kernel_sources", "source"
"""Where a provenance lists the sources of its kernels, and where spreads have what other people's
harnesses add."""


@dataclass(frozen=True, slots=True, eq=False)
class _Table:
    """One table on its way: where its rows go, and whether the calibration has seen it."""

    rows: list[Scored]
    skipped: list[Skipped]
    calibration: Calibration
    in_sample: bool

    def skip(self, own: pd.DataFrame, reason: str) -> None:
        """Note rows that are not predicted."""
        self.skipped.extend(
            Skipped(str(n), str(s), reason) for n, s in zip(own["name"], own["source"], strict=True)
        )

    def add(self, own: pd.DataFrame, predicted: np.ndarray, sigma: np.ndarray) -> None:
        """Add rows with their predicted latencies [s] and log-standard-deviations; of sources that
        no fit has seen, with what harnesses differ by."""
        known = set(self.calibration.provenance.get(KNOWN, ()))
        strange = self.calibration.transfer_sigma.get(STRANGE, 0.0)
        sigma = np.where(own["source"].isin(known), sigma, np.hypot(sigma, strange))
        reach = np.exp(self.calibration.interval_q * sigma)
        columns = (own["name"], own["source"], own["latency_us"], predicted * 1e6, reach, sigma)
        for name, source, stated, value, r, s, device in zip(
            *columns, own["accelerator"], strict=True
        ):
            self.rows.append(
                Scored(
                    point_id=str(name),
                    source=str(source),
                    metric="latency_us",
                    published=float(stated),
                    predicted=float(value),
                    low=float(value / r),
                    high=float(value * r),
                    in_sample=self.in_sample,
                    model="",
                    accelerator=str(device),
                    sigma_operators=float(s),
                )
            )

    def collectives(self, table: pd.DataFrame) -> None:
        """Score checked rows of collectives."""
        for (op, link), own in table.groupby([op_of(table), "link"]):
            model = self.calibration.link(str(op), str(link))
            on_wire = wire(own, str(op), self.calibration)
            spread = np.hypot(wire_spread(model, on_wire), own["doubt"].to_numpy(float))
            self.add(own, wire_times(model, on_wire), spread)

    def kernels(self, table: pd.DataFrame, devices: Mapping[str, Accelerator]) -> None:
        """Score checked rows of kernels."""
        table = table.assign(library=table["framework"].map(library), held=held(table))
        for (_, op, dtype, device, software, long), own in table.groupby(
            ["kind", "op", "dtype", "accelerator", "library", "held"]
        ):
            found = _accelerator(str(device), devices)
            if found is None:
                self.skip(own, f"unknown accelerator {device!r} (reckon show accelerators)")
                continue
            try:
                several = own["kernels"].to_numpy(float)
                one = own.assign(message_bytes=own["message_bytes"] / several)
                shapes = shapes_of(one, str(op), str(dtype))
                time, sigma, *_ = shape_times(
                    shapes, found, self.calibration, sustained=bool(long), library=str(software)
                )
            except InputError as error:
                self.skip(own, str(error))
                continue
            self.add(own, time * several, sigma)


def held(table: pd.DataFrame) -> pd.Series:
    """Whether each row ran long enough for the clocks to settle under the power limit: those whose
    power was measured, which takes sensors 0.3 s and more (ai-dynamo/aiconfigurator's runs with
    power; NVML averages over up to a second)."""
    return table["power_w"] > 0


def _accelerator(name: str, devices: Mapping[str, Accelerator]) -> Accelerator | None:
    try:
        return devices.get(name) or catalog.accelerator(name)
    except InputError:
        return None


def predicted_rows(table: pd.DataFrame, calibration: Calibration) -> list[Scored]:
    """Checked rows of kernels with their predictions; those that cannot be predicted are left out.
    Rows are named by their position."""
    rows: list[Scored] = []
    table = implied(table).reset_index(drop=True)
    table = table.assign(kind=kinds(table), name=table.index.astype(str))
    table = table[(gaps(table) == "") & ~is_collective(table)]
    _Table(rows, [], calibration, False).kernels(table, {})
    return rows


def score_kernels(
    path: Path,
    table: pd.DataFrame,
    calibration: Calibration,
    rows: list[Scored],
    skipped: list[Skipped],
    known_devices: Mapping[str, Accelerator] | None = None,
) -> None:
    """Predict the latency of every kernel and collective row, in groups of one kind.

    known_devices   accelerators by name that neither the catalog nor the folder of the table has
    """
    table = implied(check_kernels(table, str(path)).reset_index(drop=True))
    ids = table["point_id"].astype(str) if "point_id" in table else pd.Series("", table.index)
    names = [own or f"{path.name}:{line + 2}" for line, own in enumerate(ids)]
    devices = {**device_accelerators(path.parent), **(known_devices or {})}
    table = table.assign(kind=kinds(table), name=names)
    scored = _Table(rows, skipped, calibration, str(path) in calibration.fitted_files)
    missing = gaps(table)
    for reason, own in table[missing != ""].groupby(missing[missing != ""]):
        scored.skip(own, str(reason))
    table = table[missing == ""]
    collective = is_collective(table)
    scored.collectives(table[collective])
    scored.kernels(table[~collective], devices)

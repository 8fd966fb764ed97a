from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from calibration.sources.kineto_file import TraceFile, load
from calibration.tables.kernel_table import check_kernels
from predictor import catalog
from predictor.hardware.accelerators import Accelerator
from predictor.timing.calibration import Calibration
from predictor.timing.features import ideal


@pytest.fixture(scope="session")
def a100() -> Accelerator:
    return catalog.accelerator("A100-SXM4-80GB")


@pytest.fixture(scope="session")
def collectives(shared: Path) -> pd.DataFrame:
    """Every collective of the shared sets; not to be changed."""
    from calibration.build import collective_table

    return collective_table(shared)


@pytest.fixture(scope="session")
def links(collectives: pd.DataFrame) -> Calibration:
    """Links fitted to all of them, and nothing else."""
    from calibration.network.fit import fit_links

    return Calibration("links", links=fit_links(collectives).links)


@pytest.fixture(scope="session")
def measured_on(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Tables of aiconfigurator as they are, but of some machines alone, where any is named, and of
    some values of other columns: whole, most have millions of rows."""
    folder = tmp_path_factory.mktemp("aiconfigurator")

    def path_of(name: str, *systems: str, **some: tuple[float, ...]) -> Path:
        whole = shared / "bulk/kernels/aiconfigurator" / f"{name}.parquet"
        if not systems:
            return whole
        part = folder / whole.name
        wanted = [(column, "in", values) for column, values in some.items()]
        pd.read_parquet(whole, filters=[("system", "in", systems), *wanted]).to_parquet(part)
        return part

    return path_of


Recorded = Callable[[str], tuple[list[dict[str, Any]], TraceFile]]


@pytest.fixture(scope="session")
def recorded(shared: Path) -> Recorded:
    """By its name, the events of a trace as they stand in its file, and as it is read; not to be
    changed."""

    @cache
    def found(name: str) -> tuple[list[dict[str, Any]], TraceFile]:
        path = shared / "bulk" / "traces" / f"{name}.json.gz"
        return json.loads(gzip.decompress(path.read_bytes()))["traceEvents"], load(path)

    return found


def gemm_table(
    accelerator: str, sizes: list[int], efficiency: float, latency_us: float
) -> pd.DataFrame:
    """Products whose time is known: latency + ideal / efficiency."""
    from calibration.tables.kernel_table import shapes_of

    m, n, k = (x.ravel().astype(float) for x in np.meshgrid(sizes, sizes, sizes))
    table = pd.DataFrame({"m": m, "n": n, "k": k, "latency_us": 1.0})
    table = table.assign(accelerator=accelerator, op="gemm", dtype="bf16", layout="fwd")
    table = check_kernels(table, "synthetic")
    shapes = shapes_of(table, "gemm", "bf16")
    time = ideal(shapes, catalog.accelerator(accelerator)).time / efficiency
    return table.assign(latency_us=time * 1e6 + latency_us)

"""Sweeps over grids of models, systems, accelerators and plans: in parallel, in chunks, resumable.

`sweep(grid, out)` predicts every cell that the dataset in `out` does not hold yet.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from predictor import catalog
from predictor.errors import InputError
from predictor.files import prepare_folder
from predictor.records import dataclass
from reckon.sweeping import dataset
from reckon.sweeping.cells import columns
from reckon.sweeping.grid import Chunk, Grid, chunks, read_grid
from reckon.sweeping.workers import Done, beside, here, on_cluster

CELLS_OF_A_FILE = {"predict train": 256, "predict infer": 256, "plan train": 1, "plan infer": 1}
"""Cells of a file unless stated: about a second's work."""


@dataclass(frozen=True, slots=True)
class Swept:
    """What a sweep came to.

    cells     of the grid
    before    of them done already
    ok, unfit, refused   of those done now: predicted and fitting; not fitting; impossible
    """

    folder: str
    cells: int
    before: int
    ok: int
    unfit: int
    refused: int
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """As `--json` writes it."""
        return {"schema_version": 1, "kind": "sweep", **asdict(self)}


def _stream(
    found: Grid,
    done: set[str],
    size: int,
    calibration: str,
    workers: int | None,
    cluster: str | None,
    left: int,
) -> Iterator[Done]:
    """Chunks of cells as they are done: on a cluster, here, or beside each other."""

    def pending() -> Iterator[Chunk]:
        return chunks(found, done, size)

    if cluster is not None:
        return on_cluster(found.verb, calibration, pending(), cluster)
    processes = workers or os.cpu_count() or 1
    if processes == 1 or left <= size:
        return here(found.verb, calibration, pending())
    return beside(found.verb, calibration, pending, processes)


def sweep(
    grid: str | Path | Mapping[str, Any],
    out: str | Path,
    *,
    calibration: str = "default",
    workers: int | None = None,
    cluster: str | None = None,
    chunk: int | None = None,
    progress: Callable[[float], None] | None = None,
) -> Swept:
    """Predict every cell of a grid into a Parquet dataset; cells that it holds are left out.

    grid         mapping or YAML file: keys of a plan, each a value or a list of values
    out          folder of the dataset, made where it is missing
    calibration  name or folder; a cluster's workers must find it too
    workers      processes on this machine; None: one for each processor
    cluster      address of a Dask scheduler, instead
    chunk        cells of a file
    progress     told what share of the cells is done

    Raises InputError for a bad grid, folder or address.
    """
    content = grid if isinstance(grid, Mapping) else catalog.read_mapping(Path(grid))
    where = "grid" if isinstance(grid, Mapping) else str(grid)
    found = read_grid(content, calibration, where)
    size = chunk if chunk is not None else CELLS_OF_A_FILE[found.verb]
    for name, value in (("--chunk", size), ("--workers", workers)):
        if value is not None and value < 1:
            raise InputError(f"{name} {value} must be at least 1")
    if cluster is not None and workers is not None:
        raise InputError("give --workers or --cluster, not both")
    folder = Path(out)
    prepare_folder(folder)
    done = dataset.done(folder, found.verb)
    before = sum(1 for cell in found.cells() if cell.identity in done) if done else 0

    stream = _stream(found, done, size, calibration, workers, cluster, len(found) - before)
    kinds = columns(found.verb)
    counts: dict[str, int] = {"ok": 0, "does not fit": 0, "refused": 0}
    start = time.monotonic()
    for one, rows in stream:
        dataset.write_part(folder, one.identity, rows, kinds)
        done.update(cell.identity for cell in one.cells)
        for row in rows:
            counts[row["status"]] += 1
        if progress is not None:
            progress((before + sum(counts.values())) / max(len(found), 1))
    return Swept(
        str(folder),
        len(found),
        before,
        counts["ok"],
        counts["does not fit"],
        counts["refused"],
        time.monotonic() - start,
    )


__all__ = ["Swept", "sweep"]

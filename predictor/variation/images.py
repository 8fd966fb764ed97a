"""Images as uneven as they come: tiles of a sample, and of the replica that has most of them.

Sums of independent samples are convolutions of what samples have, and the largest of N sums has the
distribution F^N: exact, where a normal distribution is wrong for bounded tiles by a tenth.
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

from predictor.arrays import Array
from predictor.catalog import data_dir
from predictor.errors import InputError
from predictor.records import dataclass

FILE = ("variation", "image_tiles.csv")


@dataclass(frozen=True, slots=True)
class Tiles:
    """How many samples have 0, 1, 2, ... tiles, as shares."""

    shares: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Tiles of a sample."""
        return float(np.dot(np.arange(len(self.shares)), self.shares))


def tiles_of(text: str) -> Tiles:
    """Tiles of the samples of a data set of `data/variation/image_tiles.csv`, or of a file with the
    columns tiles and samples.

    Raises InputError for a name that is neither, and a file that has no such columns.
    """
    shipped = data_dir().joinpath(*FILE)
    rows = _rows(shipped)
    names = sorted({row["dataset"] for row in rows})
    if text in names:
        return _shares([row for row in rows if row["dataset"] == text], text)
    if not Path(text).is_file():
        raise InputError(f"image_samples {text!r} is neither a file nor one of {', '.join(names)}")
    return _shares(_rows(Path(text)), text)


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))


def _shares(rows: list[dict[str, str]], where: str) -> Tiles:
    try:
        pairs = [(int(row["tiles"]), float(row["samples"])) for row in rows]
    except (KeyError, TypeError, ValueError):
        pairs = []
    if not pairs or min(t for t, _ in pairs) < 0 or not sum(n for _, n in pairs) > 0:
        raise InputError(f"image_samples {where!r}: the file needs columns tiles and samples")
    found = np.zeros(max(t for t, _ in pairs) + 1)
    for tiles, many in pairs:
        found[tiles] += many
    return Tiles(tuple((found / found.sum()).tolist()))


def sums(one: Tiles, samples: int) -> Array:
    """Likelihoods of 0, 1, 2, ... tiles in so many samples together."""
    length = (len(one.shares) - 1) * samples + 1
    spectrum = np.fft.rfft(np.asarray(one.shares), length) ** samples
    found = np.clip(np.fft.irfft(spectrum, length), 0.0, None)
    return np.asarray(found / found.sum())


def busiest_replica(one: Tiles, samples: int, replicas: int) -> float:
    """Tiles of the replica that has most of so many, each with its own samples, over the mean."""
    if replicas == 1 or one.mean == 0.0:
        return 1.0
    below = np.minimum(np.cumsum(sums(one, samples)), 1.0)
    largest = float(np.sum(1.0 - below**replicas))  # sum of P(X > x) over x = 0, 1, ...
    return max(largest / (samples * one.mean), 1.0)

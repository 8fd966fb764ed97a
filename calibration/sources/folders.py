"""A file or a folder of a foreign format whose tables are known by their file names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import pandas as pd

from calibration.sources.found import Found, Stated
from predictor.errors import InputError

Reader = Callable[[Path, Stated], Found]


def read_named(path: Path, stated: Stated, readers: Mapping[str, Reader]) -> Found:
    """Read a table, or all known ones in a folder and below; `readers` by file name.

    Other tables of the same kind of file are counted as left out. Raises InputError where no known
    table is found.
    """
    known = ", ".join(readers)
    if not path.exists():
        raise InputError(f"no such file or folder: {path}")
    suffixes = {Path(name).suffix for name in readers}
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    found: list[Found] = []
    left_out: Counter[str] = Counter()
    for file in files:
        if file.name in readers:
            found.append(readers[file.name](file, stated))
        elif file.suffix in suffixes:
            left_out[f"tables {file.name} are not read"] += 1
    if not found:
        raise InputError(f"{path}: expected {known}, or a folder that holds such files")
    for part in found:
        left_out += part.left_out
    return Found(pd.concat([part.rows for part in found], ignore_index=True), left_out)

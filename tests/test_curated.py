"""Catalogs that ship are those that their command writes: nothing is mended in them alone."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from predictor import catalog
from tools import curate, curate_software, curate_technology


@pytest.mark.parametrize("make", [curate.accelerators, curate.systems, curate.models])
def test_a_catalog_is_what_its_command_writes(
    make: Callable[[Path, Path], None], shared: Path, tmp_path: Path
) -> None:
    name = f"{make.__name__}.csv"
    make(shared, tmp_path)
    assert (tmp_path / name).read_text() == (catalog.data_dir() / name).read_text()


@pytest.mark.parametrize("make", curate_technology.TABLES)
def test_technology_is_what_its_command_writes(
    make: Callable[[Path], pd.DataFrame], shared: Path
) -> None:
    path = catalog.data_dir() / "technology" / f"{make.__name__}.csv"
    assert curate_technology.written(make(shared)) == path.read_text(encoding="utf-8")


def test_recipes_are_what_their_command_writes(shared: Path) -> None:
    """Facts of the shared table, and those that were read beside it."""
    folder = catalog.data_dir() / "software"
    with (folder / "recipes.csv").open(newline="", encoding="utf-8") as stream:
        _, *every = csv.reader(stream)
    table = shared / "reference" / "software" / "training_software.csv"
    made = curate_software.joined(curate_software.rows(table), folder / "recipes_read.csv")
    assert [tuple(row) for row in every] == made

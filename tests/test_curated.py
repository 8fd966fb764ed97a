"""Catalogs that ship are those that their command writes: nothing is mended in them alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from predictor import catalog
from tools import curate


@pytest.mark.parametrize("make", [curate.accelerators, curate.systems, curate.models])
def test_a_catalog_is_what_its_command_writes(
    make: Callable[[Path, Path], None], shared: Path, tmp_path: Path
) -> None:
    name = f"{make.__name__}.csv"
    make(shared, tmp_path)
    assert (tmp_path / name).read_text() == (catalog.data_dir() / name).read_text()

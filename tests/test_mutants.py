from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tools import mutants


def written(folder: Path, text: str) -> list[mutants.Mutant]:
    """Changes of a file of such a text."""
    path = folder / "predictor" / "one.py"
    path.parent.mkdir()
    path.write_text(text, encoding="utf-8")
    return list(mutants.mutants_of(path))


def told(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> set[tuple[str, str]]:
    monkeypatch.setattr(mutants, "ROOT", folder)
    return {(one.old, one.new) for one in written(folder, text)}


def test_sizes_of_caches_and_floors_of_quotients_are_no_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (
        "@lru_cache(maxsize=8)\n"
        "def share(a: int = 3) -> float:\n"
        "    raise_(f'{a + 1}')\n"
        "    return a / np.maximum(a, 1e-12) + np.maximum(a, 0.5)\n"
    )
    assert told(tmp_path, text, monkeypatch) == {
        ("3", "(3 * 2)"), ("/", "*"), ("+", "-"), ("maximum", "minimum"), ("0.5", "(0.5 * 2)"),
    }  # fmt: skip


CHECK = """
from tools import mutants

file = mutants.ROOT / "predictor/units.py"
every = list(mutants.mutants_of(file))
change = next(one for one in every if one.old == "1e9" and '"_gbs"' in one.key)
node = "tests/predictor/catalog/test_catalog.py::test_units_are_converted_once"
assert mutants.ran([node]) == (True, "")
assert mutants.ran([node], change) == (False, node)
assert mutants.survives(change, [node], {node: True})  # a test that fails anyway is no witness
"""


def test_a_change_is_what_tests_import_and_leaves_the_file_alone() -> None:
    file = mutants.ROOT / "predictor" / "units.py"
    before = file.read_bytes()
    subprocess.run([sys.executable, "-c", CHECK], cwd=mutants.ROOT, check=True)
    assert file.read_bytes() == before

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tools import changes, mutants, reached, trials


def written(folder: Path, text: str) -> list[changes.Mutant]:
    """Changes of a file of such a text."""
    path = folder / "predictor" / "one.py"
    path.parent.mkdir()
    path.write_text(text, encoding="utf-8")
    return list(changes.mutants_of(path))


def told(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> set[tuple[str, str]]:
    monkeypatch.setattr(changes, "ROOT", folder)
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


FILE = changes.ROOT / "predictor" / "units.py"
NODE = "tests/predictor/catalog/test_catalog.py::test_units_are_converted_once"

CHECK = """
from tools import trials
from tools.changes import mutants_of
from tools.mutants import survives
from tests.test_mutants import FILE, NODE

{change}
def judge(ran):
    assert ran([NODE]) == (True, "")
    assert ran([NODE], change) == (False, NODE)
    assert survives(change, [NODE], {{NODE: True}}, ran)  # fails anyway: no witness

{judged}
"""


@pytest.mark.parametrize(
    ("change", "judged"),
    [
        ('next(m for m in mutants_of(FILE) if m.old == "1e9" and \'"_gbs"\' in m.key)',
         "assert trials.on_import(change); judge(trials.ran)"),
        ('next(m for m in mutants_of(FILE) if m.old == "*" and "value" in m.key)',
         "assert not trials.on_import(change); trials.collected([NODE.partition('::')[0]], judge)"),
    ],
    ids=["imported", "in place"],
)  # fmt: skip
def test_a_change_is_seen_by_tests_and_leaves_the_file_alone(change: str, judged: str) -> None:
    before = FILE.read_bytes()
    script = CHECK.format(change=f"change = {change}", judged=judged)
    subprocess.run([sys.executable, "-c", script], cwd=changes.ROOT, check=True)
    assert FILE.read_bytes() == before


def test_comprehensions_of_a_file_and_of_its_classes_run_on_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (changes, trials):
        monkeypatch.setattr(module, "ROOT", tmp_path)
    text = (
        "A = {n: n / 8 for n in (1.5, 2.5)}\n"
        "class B:\n    b = [n + 4 for n in (3.5,)]\n    def f(self): return [9 * n for n in A]\n"
        "C = lambda x: x - 1\n"
    )
    soon = {one.old: trials.on_import(one) for one in written(tmp_path, text)}
    assert soon == {
        "/": True, "8": True, "1.5": True, "2.5": True, "+": True, "4": True, "3.5": True,
        "*": False, "9": False, "-": False, "1": False,
    }  # fmt: skip


def test_a_mark_stands_before_each_statement_of_a_function() -> None:
    body = ast.parse(
        "A = 1\ndef f(x):\n    'Doc.'\n    if x:\n        return 1\n    return 2\n"
    ).body
    first = len(reached.PLACES)
    reached.marked("one.py", body)
    assert [(name, list(own)) for name, own in reached.PLACES[first:]] == [
        ("one.py", [1]), ("one.py", [5]), ("one.py", [4]), ("one.py", [6]), ("one.py", [2]),
    ]  # fmt: skip
    told: dict[str, object] = {"__reached__": reached.MARKS}
    exec(compile(ast.Module(body, []), "one.py", "exec"), told)
    reached.MARKS[first : first + 5] = bytes(5)
    assert told["f"](0) == 2  # type: ignore[operator]
    assert list(reached.MARKS[first : first + 5]) == [0, 0, 1, 1, 0]
    reached.MARKS[first : first + 5] = bytes(5)


def test_a_change_of_a_table_is_seen_by_those_that_name_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of several that stand on one line each by its own; in the tests of its own room."""
    for module in (changes, mutants):
        monkeypatch.setattr(module, "ROOT", tmp_path)
    found = written(tmp_path, "A = 2.5\nB, C = 3.5, (4.5, 5.5)\n\n\ndef f(x):\n    return 6.5\n")
    assert {one.old: mutants.name_at(one) for one in found} == {
        "2.5": "A", "3.5": "B", "4.5": "C", "5.5": "C", "6.5": "",
    }  # fmt: skip
    tests = tmp_path / "tests" / "predictor" / "room" / "test_one.py"
    tests.parent.mkdir(parents=True)
    tests.write_text("def test_a():\n    assert A == one.B\n\n\ndef test_b():\n    assert B\n")
    named = mutants.namers("tests/predictor/room/")
    module = "tests.predictor.room.test_one"
    assert (named["A"], named["B"]) == ({f"{module}.test_a"}, {f"{module}.{n}" for n in
                                        ("test_a", "test_b")})  # fmt: skip
    assert not named["C"]

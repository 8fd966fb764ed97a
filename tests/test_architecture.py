"""The house keeps its shape: no files that import each other in a circle, no giants."""

from __future__ import annotations

import ast
from pathlib import Path

import grimp
import pytest

from tests.conftest import ROOT
from tools import rooms

LONGEST = 60
"""Lines of a function, with its docstring."""

LINES = 500
"""Of a file."""

UNNAMED = 7
"""Arguments that a call may leave without their names."""

OF_ANY_NUMBER = ("cli", "broadcast_arrays")
"""What takes as many alike as there are."""

FOLDERS = ("predictor", "calibration", "profiler", "reckon", "tools", "benchmarks")


def functions(path: Path) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_function_is_a_giant(folder: str) -> None:
    paths = sorted((ROOT / folder).rglob("*.py"))
    assert paths
    long = {
        f"{path.relative_to(ROOT)}:{one.name}": one.end_lineno - one.lineno + 1
        for path in paths
        for one in functions(path)
        if one.end_lineno is not None and one.end_lineno - one.lineno >= LONGEST
    }
    assert long == {}


@pytest.mark.parametrize("folder", [*FOLDERS, "tests"])
def test_no_file_is_long(folder: str) -> None:
    paths = sorted((ROOT / folder).rglob("*.py"))
    assert [path for path in paths if len(path.read_text("utf-8").splitlines()) > LINES] == []


@pytest.mark.parametrize("folder", [*FOLDERS, "tests"])
def test_calls_of_many_arguments_name_them(folder: str) -> None:
    calls = [
        (path, call)
        for path in sorted((ROOT / folder).rglob("*.py"))
        for call in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(call, ast.Call) and len(call.args) > UNNAMED
    ]
    found = [
        f"{path.relative_to(ROOT)}:{call.lineno} {ast.unparse(call.func)}"
        for path, call in calls
        if ast.unparse(call.func).split(".")[-1] not in OF_ANY_NUMBER
    ]
    assert found == []


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    return rooms.graph_of()


def test_no_files_import_each_other_in_a_circle(graph: grimp.ImportGraph) -> None:
    assert rooms.cycles(graph) == []


def test_a_circle_is_found_and_what_leads_into_it_is_not_part_of_it() -> None:
    graph = grimp.ImportGraph()
    for name in ("a", "b", "c", "d"):
        graph.add_module(name)
    for importer, imported in (("a", "b"), ("b", "c"), ("c", "d")):
        graph.add_import(importer=importer, imported=imported)
    assert rooms.cycles(graph) == []
    graph.add_import(importer="d", imported="b")
    assert rooms.cycles(graph) == [["b", "c", "d"]]


def test_rooms_are_ordered_by_what_they_import(graph: grimp.ImportGraph) -> None:
    found = rooms.between(graph)
    names = sorted({rooms.room_of(name) for name in graph.modules})
    placed = rooms.order([name for name in names if name.startswith("predictor")], found)
    assert sorted(placed) == [name for name in names if name.startswith("predictor")]
    for at, name in enumerate(placed):
        assert not any(found[name, later] for later in placed[at + 1 :])

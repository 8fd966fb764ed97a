"""The house keeps its shape: no files that import each other in a circle, no giants."""

from __future__ import annotations

import ast
from functools import cache
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


LEAVES = frozenset((ast.Name, ast.Constant, ast.Load, ast.Store, ast.Del))
"""Nodes that hold neither functions nor calls: two of three."""


def nodes(tree: ast.AST) -> list[ast.AST]:
    """Every node of a tree but its leaves."""
    found = [tree]
    for one in found:  # which grows meanwhile
        for part in vars(one).values():
            for inner in part if isinstance(part, list) else (part,):
                if isinstance(inner, ast.AST) and type(inner) not in LEAVES:
                    found.append(inner)
    return found


@cache
def pieces(path: Path) -> tuple[list[tuple[str, int]], list[tuple[str, int]]]:
    """Functions of a file with their lines, and its calls of many arguments with where they are;
    a file is read once for both."""
    functions, calls = [], []
    for one in nodes(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef):
            functions.append((one.name, (one.end_lineno or one.lineno) - one.lineno + 1))
        elif isinstance(one, ast.Call) and len(one.args) > UNNAMED:
            calls.append((ast.unparse(one.func), one.lineno))
    return functions, calls


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_function_is_a_giant(folder: str) -> None:
    paths = sorted((ROOT / folder).rglob("*.py"))
    assert paths
    long = {
        f"{path.relative_to(ROOT)}:{name}": lines
        for path in paths
        for name, lines in pieces(path)[0]
        if lines > LONGEST
    }
    assert long == {}


@pytest.mark.parametrize("folder", [*FOLDERS, "tests"])
def test_no_file_is_long(folder: str) -> None:
    paths = sorted((ROOT / folder).rglob("*.py"))
    assert [path for path in paths if len(path.read_text("utf-8").splitlines()) > LINES] == []


@pytest.mark.parametrize("folder", [*FOLDERS, "tests"])
def test_calls_of_many_arguments_name_them(folder: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line} {name}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for name, line in pieces(path)[1]
        if name.split(".")[-1] not in OF_ANY_NUMBER
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

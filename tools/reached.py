"""Which tests reach which lines of `predictor/`, and how long each takes: a plugin of pytest.

    REACHED=map.json python -m pytest -p tools.reached -p no:xdist tests/predictor

Every statement of a function marks itself as it runs, and what a test has marked is read after it.
What functions remember is forgotten before each file of tests, so that each file is known to reach
what it would have to compute alone.
"""

from __future__ import annotations

import ast
import functools
import gc
import importlib.abc
import json
import os
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent

MARKS = bytearray(1 << 17)
"""A byte for each statement of the project, 1 where it ran."""

PLACES: list[tuple[str, range]] = []
"""File and lines of each."""

QUICK = 8.0
"""What a test may take [s of a processor]: one that takes longer is stopped, and is of no use."""


def blocks(node: ast.AST) -> Iterator[list[ast.stmt]]:
    """The lists of statements that a statement holds."""
    for name in ("body", "orelse", "finalbody"):
        held = getattr(node, name, None)
        if isinstance(held, list) and held and isinstance(held[0], ast.stmt):
            yield held
    for part in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
        yield part.body


def lines_of(one: ast.stmt) -> range:
    """Those of a statement itself, without what it holds."""
    held = [block[0].lineno for block in blocks(one)]
    return range(one.lineno, min(held, default=(one.end_lineno or one.lineno) + 1))


def _mark(name: str, one: ast.stmt) -> ast.stmt:
    """The statement that marks another."""
    place = len(PLACES)
    PLACES.append((name, lines_of(one)))
    mark = ast.parse(f"__reached__[{place}] = 1").body[0]
    for node in ast.walk(mark):
        ast.copy_location(node, one)
    return mark


def marked(name: str, body: list[ast.stmt], inside: bool = False) -> None:
    """Put a mark before every statement of the functions of a list of statements, in place."""
    for one in list(body):
        function = isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)
        for block in blocks(one):
            marked(name, block, (inside or function) and not isinstance(one, ast.ClassDef))
        if inside and not _is_docstring(one):
            body.insert(body.index(one), _mark(name, one))
        elif not inside:
            PLACES.append((name, lines_of(one)))  # runs on import: reached, by no test


def _is_docstring(one: ast.stmt) -> bool:
    return isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant)


class Marking(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports the files of `predictor/` with marks."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: object = None
    ) -> ModuleSpec | None:
        """The place of a module of `predictor`."""
        if name.partition(".")[0] != "predictor":
            return None
        place = ROOT.joinpath(*name.split("."))
        if (file := place.with_suffix(".py")).is_file():
            return spec_from_file_location(name, file, loader=self)
        file, inside = place / "__init__.py", [str(place)]
        return spec_from_file_location(name, file, loader=self, submodule_search_locations=inside)

    def exec_module(self, module: ModuleType) -> None:
        """Run its text, marked."""
        file = Path(str(module.__file__))
        tree = ast.parse(file.read_text(encoding="utf-8"))
        marked(file.relative_to(ROOT).as_posix(), tree.body)
        module.__dict__["__reached__"] = MARKS
        exec(compile(tree, file, "exec"), module.__dict__)


class Recorder:
    """Writes down, after each test, what it marked and how long it took."""

    def __init__(self, target: Path) -> None:
        self.target = target
        self.times: dict[str, float] = {}
        self.skipped: set[str] = set()
        self.collected: list[tuple[str, range]] = []
        self.reached: dict[tuple[str, int], set[str]] = defaultdict(set)
        self.file = ""

    def pytest_collection_finish(self) -> None:
        """What ran as tests were collected."""
        self.collected = [place for place, mark in zip(PLACES, MARKS, strict=False) if mark]

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """What ran during one test, and how long."""
        if (file := item.nodeid.partition("::")[0]) != self.file:
            self.file = file
            for one in remembering():
                one.cache_clear()
        MARKS[:] = bytes(len(MARKS))
        begin = time.process_time()
        yield
        self.times[item.nodeid] = time.process_time() - begin
        at, who = MARKS.find(1), context(item.nodeid)
        while at >= 0:
            self.reached[PLACES[at][0], at].add(who)
            at = MARKS.find(1, at + 1)

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_call(self) -> Iterator[None]:
        """Stops a test that is not quick."""
        signal.setitimer(signal.ITIMER_PROF, QUICK)
        yield
        signal.setitimer(signal.ITIMER_PROF, 0.0)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Those skipped, among them the stopped."""
        if report.skipped:
            self.skipped.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        """Write down all of it."""
        lines: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
        for at, (name, own) in enumerate(PLACES):
            for line in own:
                lines[name][str(line)] |= self.reached.get((name, at), set())
        told = {name: {n: sorted(who) for n, who in own.items()} for name, own in lines.items()}
        times = {node: spent for node, spent in self.times.items() if node not in self.skipped}
        early: dict[str, set[int]] = defaultdict(set)
        for name, own in self.collected:
            early[name].update(own)
        collected = {name: sorted(own) for name, own in early.items()}
        found = {"reached": told, "times": times, "slow": sorted(self.skipped)}
        text = json.dumps({**found, "collected": collected})
        self.target.write_text(text, encoding="utf-8")


def remembering() -> list[Any]:
    """Functions that remember what they found."""
    return [one for one in gc.get_objects() if isinstance(one, functools._lru_cache_wrapper)]


def context(node: str) -> str:
    """The test function of a node of pytest, over all of its cases."""
    file, _, rest = node.partition("::")
    return f"{file[:-3].replace('/', '.')}.{rest.split('[')[0].replace('::', '.')}"


def _slow(*_: object) -> None:
    pytest.skip(f"takes longer than {QUICK:g} s")


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    """Called by pytest before it imports anything of the project."""
    sys.meta_path.insert(0, Marking())


def pytest_configure(config: pytest.Config) -> None:
    """Called by pytest as it starts with this plugin."""
    signal.signal(signal.SIGPROF, _slow)
    config.pluginmanager.register(Recorder(Path(os.environ["REACHED"])), "reached")

"""A sampled mutation check: how many small faults in `predictor/` do the tests notice?

    python tools/mutants.py [--count 100] [--seed 1] [--jobs 2] [--room timing] [--out FILE.json]

Draws so many places at random among the arithmetic of `predictor/`, changes one of them at a time
as it is imported (another operator, another number, the other bound), and runs the tests that
reached that line (of a constant: the lines that read it), those first that are of little else.
Which tests reach a line, and how long each takes, is recorded once (`--map FILE` keeps it). What no
test notices is listed: a missing law, or a change
that changes nothing (`tools/mutants_equivalent.txt` lists those with the reason).
"""

from __future__ import annotations

import argparse
import ast
import importlib
import importlib.abc
import json
import multiprocessing
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
EQUIVALENT = ROOT / "tools" / "mutants_equivalent.txt"
PRELOADED = (
    "hypothesis", "numpy", "pandas", "pydantic", "pydantic_core", "pytest", "scipy.optimize",
    "scipy.stats", "sklearn.ensemble", "yaml",
)  # fmt: skip
"""What tests import beside the project; loaded once."""

MOST_TESTS, MOST_SECONDS = 60, 240.0
"""Tests that are run for a mutant at most, and how long they may take together [s of a processor,
so that what else ran while they were recorded leaves none of them out]."""

GUARD = 1e-9
"""A number so small is no quantity [s, bytes, shares]: it stands where a zero must not."""

MOST_BYTES = 8 * 2**30
"""Memory of a change's tests; one that asks for more is noticed."""

OPERATORS: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"),
    ast.Div: ("/", "*"),
    ast.Pow: ("**", "*"),
    ast.FloorDiv: ("//", "/"),
}
COMPARISONS: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", ">="),
    ast.LtE: ("<=", ">"),
    ast.Gt: (">", "<="),
    ast.GtE: (">=", "<"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
}
CALLS = {
    "minimum": "maximum",
    "maximum": "minimum",
    "ceil": "floor",
    "floor": "ceil",
    "min": "max",
    "max": "min",
    "log2": "log",
    "exp": "expm1",
}


@dataclass(frozen=True)
class Mutant:
    """One change: characters `start` to `end` of a line become `new`."""

    file: str
    line: int
    start: int
    end: int
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.start} {self.old} -> {self.new}"

    @property
    def key(self) -> str:
        """What it is called in the list of equivalent ones: file, text of the line, the change."""
        text = (ROOT / self.file).read_text(encoding="utf-8").splitlines()[self.line - 1].strip()
        return f"{self.file} | {text} | {self.old} -> {self.new}"

    def apply(self, text: str) -> str:
        """The file with the change."""
        lines = text.split("\n")
        line = lines[self.line - 1]
        lines[self.line - 1] = line[: self.start] + self.new + line[self.end :]
        return "\n".join(lines)


def mutants_of(path: Path) -> Iterator[Mutant]:
    """Every change of one file; annotations, defaults of flags and messages are left alone."""
    text = path.read_text(encoding="utf-8")
    lines = text.split("\n")
    name = path.relative_to(ROOT).as_posix()
    skipped: set[ast.AST] = set()
    for node in ast.walk(ast.parse(text)):
        if node in skipped:
            skipped.update(ast.iter_child_nodes(node))
            continue
        if isinstance(node, (ast.JoinedStr, ast.Raise, ast.Assert)):
            skipped.update(ast.iter_child_nodes(node))
            continue
        skipped.update(_harmless(node))
        if isinstance(node, ast.AnnAssign):
            skipped.add(node.annotation)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            skipped.update(a.annotation for a in node.args.args if a.annotation)
            skipped.update(a.annotation for a in node.args.kwonlyargs if a.annotation)
            skipped.update([node.returns] if node.returns else [])
        yield from _changes(node, name, lines)


def _harmless(node: ast.AST) -> Iterator[ast.AST]:
    """Numbers whose change no prediction can show: how much a cache keeps, and floors that keep a
    quotient from 0 / 0 (`GUARD` at most)."""
    if not isinstance(node, ast.Call):
        return
    called = getattr(node.func, "attr", getattr(node.func, "id", ""))
    if called == "lru_cache":
        yield from (word.value for word in node.keywords)
        yield from node.args
    elif called in ("maximum", "max"):
        numbers = (one for one in node.args if isinstance(one, ast.Constant))
        yield from (one for one in numbers if 0.0 < abs(float(one.value)) <= GUARD)


def _changes(node: ast.AST, name: str, lines: list[str]) -> Iterator[Mutant]:
    """Changes of one node that lie on one line."""
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        if any(
            isinstance(side, (ast.JoinedStr, ast.Tuple, ast.List))
            for side in (node.left, node.right)
        ):
            return
        old, new = OPERATORS[type(node.op)]
        yield from _between(node.left, node.right, old, new, name, lines)
    elif isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in COMPARISONS:
        old, new = COMPARISONS[type(node.ops[0])]
        yield from _between(node.left, node.comparators[0], old, new, name, lines)
    elif isinstance(node, ast.Constant) and type(node.value) in (int, float):
        line = lines[node.lineno - 1]
        old = line[node.col_offset : node.end_col_offset]
        new = "1.0" if node.value == 0 else f"({old} * 2)" if node.value != 1 else f"({old} + 1)"
        yield Mutant(name, node.lineno, node.col_offset, node.end_col_offset or 0, old, new)
    elif isinstance(node, ast.Call) and isinstance(node.func, (ast.Attribute, ast.Name)):
        called = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id
        end = node.func.end_col_offset or 0
        if called in CALLS and node.func.end_lineno == node.func.lineno:
            new = CALLS[called]
            yield Mutant(name, node.func.lineno, end - len(called), end, called, new)


def _between(
    left: ast.expr, right: ast.expr, old: str, new: str, name: str, lines: list[str]
) -> Iterator[Mutant]:
    """The operator between two operands, where they share a line."""
    if left.end_lineno != right.lineno:
        return
    start = left.end_col_offset or 0
    at = lines[right.lineno - 1][start : right.col_offset].find(old)
    if at >= 0:
        yield Mutant(name, right.lineno, start + at, start + at + len(old), old, new)


def recorded(target: Path) -> None:
    """Run the tests once and write down which reach each line of `predictor/`, and their times."""
    with tempfile.TemporaryDirectory() as folder:
        data, report = Path(folder) / "coverage", Path(folder) / "times.json"
        settings = Path(folder) / "coveragerc"
        settings.write_text(
            f"[run]\nsource = predictor\ndynamic_context = test_function\ndata_file = {data}\n",
            encoding="utf-8",
        )
        plugin = Path(folder) / "times_plugin.py"
        plugin.write_text(
            "import json, pytest, time\nT = {}\n"
            "@pytest.hookimpl(hookwrapper=True)\n"
            "def pytest_runtest_protocol(item):\n"
            "    begin = time.process_time()\n"
            "    yield\n"
            "    T[item.nodeid] = time.process_time() - begin\n"
            "def pytest_sessionfinish(session):\n"
            f"    json.dump(T, open({str(report)!r}, 'w'))\n",
            encoding="utf-8",
        )
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), folder])}
        run = f"-m coverage run --rcfile={settings} -m pytest -q -p times_plugin -p no:xdist"
        where = "tests/predictor tests/acceptance tests/reckon"
        subprocess.run(
            [sys.executable, *run.split(), *where.split()], cwd=ROOT, env=environment, check=False
        )
        import coverage

        found = coverage.CoverageData(str(data))
        found.read()
        reached: dict[str, dict[str, list[str]]] = {}
        for file in found.measured_files():
            name = Path(file).relative_to(ROOT).as_posix()
            contexts = found.contexts_by_lineno(file)
            reached[name] = {str(line): sorted(filter(None, who)) for line, who in contexts.items()}
        times = json.loads(report.read_text(encoding="utf-8"))
    target.write_text(json.dumps({"reached": reached, "times": times}), encoding="utf-8")


def name_at(mutant: Mutant) -> str:
    """The constant or field that a line gives a value on import; empty: none."""
    for node in ast.walk(ast.parse((ROOT / mutant.file).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Assign | ast.AnnAssign):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            inside = node.lineno <= mutant.line <= (node.end_lineno or node.lineno)
            if inside and isinstance(target, ast.Name):
                return target.id
    return ""


@cache
def readers(name: str) -> list[tuple[str, int]]:
    """Lines of `predictor/` that read a name, or a field of that name."""
    found = []
    for path in sorted((ROOT / "predictor").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            own = node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")
            if own == name and isinstance(getattr(node, "ctx", None), ast.Load):
                found.append((path.relative_to(ROOT).as_posix(), node.lineno))
    return found


def tests_of(
    mutant: Mutant,
    reached: dict[str, dict[str, list[str]]],
    nodes: dict[str, list[tuple[float, str]]],
    wide: Mapping[str, int],
) -> list[str]:
    """The tests that reach a mutant's line (of a constant: those lines that read it, and those of
    the file named for it), those of its room before others, those first that reach the fewest lines
    besides; node ids."""
    lines = reached.get(mutant.file, {})
    contexts = lines.get(str(mutant.line), [])
    if not contexts:  # run on import
        name = name_at(mutant)
        own = {
            one
            for file, line in (readers(name) if name else [])
            for one in reached.get(file, {}).get(str(line), [])
        }
        # Tests that look at tables alone reach no line; they are in the file named for this one.
        named = f".test_{Path(mutant.file).stem}."
        own |= {one for one in nodes if named in one}
        contexts = sorted(own or {one for who in lines.values() for one in who})
    # Those of the mirrored folder know it best, and those that are of little else; a second case of
    # one function only after the first of every other.
    mirror = f"tests/{Path(mutant.file).parent.as_posix()}/"
    found = sorted(
        (not one[1].startswith(mirror), case, wide[context], *one)
        for context in contexts
        for case, one in enumerate(sorted(nodes.get(context, [])))
    )
    chosen, spent = [], 0.0
    for *_, seconds, node in found[:MOST_TESTS]:
        spent += seconds
        if spent > MOST_SECONDS and chosen:
            break
        chosen.append(node)
    return chosen


def by_context(times: dict[str, float]) -> dict[str, list[tuple[float, str]]]:
    """Node ids of pytest by the name that coverage gives a test function."""
    found: dict[str, list[tuple[float, str]]] = defaultdict(list)
    for node, seconds in times.items():
        file, _, rest = node.partition("::")
        function = rest.split("[")[0].replace("::", ".")
        found[f"{file[:-3].replace('/', '.')}.{function}"].append((seconds, node))
    return found


class _Changed(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports one module of the project with a change, from memory."""

    def __init__(self, mutant: Mutant) -> None:
        self.mutant, self.name = mutant, mutant.file[:-3].replace("/", ".")

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """The module's place, where it is the one."""
        file = ROOT / self.mutant.file
        found = spec_from_file_location(name, file, loader=self) if name == self.name else None
        return found

    def exec_module(self, module: ModuleType) -> None:
        """Run the changed text."""
        file = ROOT / self.mutant.file
        text = self.mutant.apply(file.read_text(encoding="utf-8"))
        exec(compile(text, file, "exec"), module.__dict__)


class _Noticed:
    """What pytest is told of, so that it tells which test failed first."""

    def __init__(self) -> None:
        self.first = ""

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.first = self.first or report.nodeid


def _in_fork(tests: list[str], mutant: Mutant | None, answer: int) -> None:
    """Run tests in this process, which ends with them; the one that failed goes to `answer`."""
    import pytest

    signal.alarm(int(3 * MOST_SECONDS))  # a change that never ends is noticed
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    os.chdir(ROOT)
    sys.path.insert(0, str(ROOT))
    if mutant:
        sys.meta_path.insert(0, _Changed(mutant))
    noticed = _Noticed()
    status = 1
    try:
        words = ["-x", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", *tests]
        status = int(pytest.main(words, plugins=[noticed]))
        os.write(answer, noticed.first.encode())
    finally:
        os._exit(status)


def ran(tests: list[str], mutant: Mutant | None = None) -> tuple[bool, str]:
    """Whether all tests pass with a change, and the one that does not ('': it cannot be told).

    A fork of this process, which has imported what the tests import but nothing of the project,
    imports the module changed: that costs a tenth of a new interpreter and no copy of the project.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        _in_fork(tests, mutant, writing)
    os.close(writing)
    with os.fdopen(reading, "rb") as stream:
        told = stream.read().decode()
    _, status = os.waitpid(child, 0)
    return status == 0, told


def survives(mutant: Mutant, tests: list[str], fail: dict[str, bool]) -> bool:
    """Whether all tests pass with the change, but for those that fail without it too.

    fail   what is known of that, which this adds to
    """
    while tests := [one for one in tests if not fail.get(one)]:
        passed, noticed = ran(tests, mutant)
        if not passed and noticed in tests and noticed not in fail:
            fail[noticed] = not ran([noticed])[0]
        if passed or not fail.get(noticed):
            return passed
    return True


def judged(
    mutants: list[Mutant], content: Mapping[str, Any]
) -> tuple[dict[str, bool], dict[str, bool]]:
    """Which mutants survive, and which tests fail without a change."""
    nodes = by_context(content["times"])
    lines = (who for file in content["reached"].values() for who in file.values())
    wide = Counter(context for who in lines for context in who)
    verdicts, fail = {}, {}
    for mutant in mutants:
        tests = tests_of(mutant, content["reached"], nodes, wide)
        verdicts[str(mutant)] = not tests or survives(mutant, tests, fail)
        print("survived" if verdicts[str(mutant)] else "killed  ", mutant.key, flush=True)
    return verdicts, fail


def equivalents() -> dict[str, str]:
    """Changes that change nothing, with the reason: lines 'KEY | because REASON'."""
    if not EQUIVALENT.is_file():
        return {}
    pairs = (line.rsplit(" | because ", 1) for line in EQUIVALENT.read_text("utf-8").splitlines())
    return {pair[0]: pair[1] for pair in pairs if len(pair) == 2}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--room", default="", help="only this room of predictor/")
    parser.add_argument("--map", type=Path, help="which tests reach which lines; made if absent")
    parser.add_argument("--out", type=Path, help="all verdicts, as JSON")
    given = parser.parse_args()
    kept = given.map or Path(tempfile.mkdtemp()) / "map.json"
    if not kept.is_file():
        recorded(kept)
    content = json.loads(kept.read_text(encoding="utf-8"))
    files = sorted((ROOT / "predictor" / given.room).rglob("*.py"))
    every = [m for f in files if f.name != "__init__.py" for m in mutants_of(f)]
    reached = [m for m in every if str(m.line) in content["reached"].get(m.file, {})]
    drawn = random.Random(given.seed).sample(reached, min(given.count, len(reached)))
    harmless = equivalents()
    drawn_out = [m for m in drawn if m.key in harmless]
    todo = [m for m in drawn if m.key not in harmless]
    print(f"{len(every)} possible, {len(reached)} on lines that tests reach, {len(todo)} tried")
    for name in PRELOADED:
        importlib.import_module(name)
    verdicts: dict[str, bool] = {}
    fail: dict[str, bool] = {}
    with ProcessPoolExecutor(given.jobs, multiprocessing.get_context("fork")) as pool:
        shares = [todo[job :: given.jobs] for job in range(given.jobs)]
        for told, broken in pool.map(judged, shares, [content] * given.jobs):
            verdicts |= told
            fail |= broken
    for one in sorted(name for name, broken in fail.items() if broken):
        print(f"  fails without a change, not counted: {one}")
    alive = [name for name, survived in verdicts.items() if survived]
    print(
        f"{len(todo) - len(alive)} of {len(todo)} killed ({1 - len(alive) / max(len(todo), 1):.0%})"
    )
    here = {one for one in harmless if one.startswith(f"predictor/{given.room}")}
    for one in sorted(here - {one.key for one in every}):
        print(f"  listed as equivalent, but of no line: {one}")
    for one in drawn_out:
        print(f"  equivalent: {one.key}: {harmless[one.key]}")
    for name in alive:
        print(f"  survived: {name}")
    if given.out:
        given.out.write_text(json.dumps(verdicts, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""A sampled mutation check: how many small faults in `predictor/` do the tests notice?

    python -m tools.mutants [--count 100] [--seed 1] [--jobs 2] [--room timing] [--out FILE.json]

Draws so many places at random among the arithmetic of `predictor/`, changes one of them at a time
(`tools/changes.py`), and runs the tests that reached that line (of a constant: the lines that read
it), those first that are of little else. Which tests reach a line, and how long each takes, is
recorded once (`tools/reached.py`; `--map FILE` keeps it). What no test notices is listed: a missing
law, or a change that changes nothing (`tools/mutants_equivalent.txt` lists those with the reason).
"""

from __future__ import annotations

import argparse
import ast
import importlib
import json
import multiprocessing
import os
import random
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

from tools.changes import ROOT, Mutant, mutants_of
from tools.trials import Ran, collected, on_import, ran

EQUIVALENT = ROOT / "tools" / "mutants_equivalent.txt"
PRELOADED = (
    "hypothesis", "numpy", "pandas", "pydantic", "pydantic_core", "pytest", "scipy.optimize",
    "scipy.stats", "sklearn.ensemble", "yaml",
)  # fmt: skip
"""What tests import beside the project; loaded once."""

TABLES = 20
"""Tests of a room that are run for a change of what is imported because they reach the fewest
lines: they look at tables and defaults."""

EVERY_ROOM = "tests.predictor.test_open_fields."
"""Tests of what records of every room leave open."""

NARROW, AT_ONCE = 100, 20
"""Lines that a test reaches of which many cases are run early, so many at a time: it is of little
else."""

MOST_TESTS, MOST_SECONDS = 240, 240.0
"""Tests that are run for a mutant at most, and how long they may take together [s of a processor,
so that what else ran while they were recorded leaves none of them out]."""


def recorded(target: Path) -> None:
    """Run the tests once and write down which reach each line of `predictor/`, and their times."""
    words = "-m pytest -q -p tools.reached -p no:xdist -p no:cacheprovider"
    where = "tests/predictor tests/acceptance tests/reckon tests/calibration tests/docs"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "REACHED": str(target)}
    command = [sys.executable, *words.split(), *where.split()]
    subprocess.run(command, cwd=ROOT, env=environment, check=False)


def name_at(mutant: Mutant) -> str:
    """The constant or field that a line gives a value on import; empty: none."""
    for node in ast.walk(ast.parse((ROOT / mutant.file).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Assign | ast.AnnAssign):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            pairs = [(target, node.value)]
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs = list(zip(target.elts, node.value.elts, strict=True))
            for one, value in pairs:
                if isinstance(one, ast.Name) and value and holds(value, mutant):
                    return one.id
    return ""


def holds(node: ast.expr, mutant: Mutant) -> bool:
    """Whether a change is of an expression."""
    begin, end = (node.lineno, node.col_offset), (node.end_lineno or 0, node.end_col_offset or 0)
    return begin <= (mutant.line, mutant.start) < end


def remembered(mutant: Mutant) -> str:
    """The function that holds a line and runs once, its answer being kept; empty: none. Only the
    first test that asks for it is recorded to reach it."""
    for node in ast.walk(ast.parse((ROOT / mutant.file).read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef):
            inside = node.lineno <= mutant.line <= (node.end_lineno or node.lineno)
            kept = any("cache" in ast.unparse(one) for one in node.decorator_list)
            if inside and kept:
                return node.name
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


@cache
def namers(room: str) -> dict[str, set[str]]:
    """Test functions of a folder of tests by the names that they read, as of a table, which many
    of them look at without a line of a function of the project."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in sorted((ROOT / room).rglob("test_*.py")):
        file = path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".")
        for one in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(one, ast.FunctionDef):
                for node in ast.walk(one):
                    own = node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")
                    found[own].add(f"{file}.{one.name}")
    return found


def tests_of(
    mutant: Mutant,
    reached: dict[str, dict[str, list[str]]],
    nodes: dict[str, list[tuple[float, str]]],
    wide: Mapping[str, int],
) -> list[str]:
    """The tests that reach a mutant's line (of a constant: those lines that read it, first of all
    those of its room that name it or are in the file named for its own, and those that look at
    fields of every room), those of its room before others, those first that reach the fewest lines
    besides, last those that are only near; node ids."""
    lines = reached.get(mutant.file, {})
    contexts = set(lines.get(str(mutant.line), []))
    soon = not contexts  # run on import
    name = name_at(mutant) if soon else remembered(mutant)
    for file, line in readers(name) if name else []:
        contexts.update(reached.get(file, {}).get(str(line), []))
    mirror = f"tests/{Path(mutant.file).parent.as_posix()}/"
    room = mirror.replace("/", ".")
    named = f".test_{Path(mutant.file).stem}."
    first = (f"{room[:-1]}{named}", EVERY_ROOM) if soon else ()
    naming = namers(mirror)[name] if soon and name else set()
    contexts |= naming
    near: set[str] = set()
    if soon:
        # Tests that look at tables alone reach hardly a line; they are in the file named for this
        # one, or in the mirrored folder.
        of_room = sorted((wide[one], one) for one in nodes if one.startswith(room))
        contexts |= {one for one in nodes if named in one or EVERY_ROOM in one}
        near = {one for _, one in of_room[:TABLES]} - contexts
    else:
        # What a module's tests share is computed by the first that asks, and looked at by others.
        modules = {one.rpartition(".")[0] for one in contexts}
        near = {one for one in nodes if one.rpartition(".")[0] in modules} - contexts
    contexts |= near
    contexts = contexts or {one for who in lines.values() for one in who}
    # Those of the mirrored folder know it best, and those that are of little else; a second case of
    # one function only after the first of every other, unless it is of little, too.
    found = sorted(
        (
            not context.startswith(first) and context not in naming,
            context in near,
            0 if wide[context] > NARROW else case // AT_ONCE,
            not one[1].startswith(mirror),
            case if wide[context] > NARROW else 0,
            wide[context],
            *one,
        )
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


def survives(mutant: Mutant, tests: list[str], fail: dict[str, bool], ran: Ran = ran) -> bool:
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


Tried = list[tuple[Mutant, list[str]]]
"""Changes, and the tests of each."""

Verdicts = tuple[dict[str, bool], dict[str, bool]]
"""Which changes survive, and which tests fail without one."""


def _judged(tried: Tried, ran: Ran, found: Verdicts) -> Verdicts:
    """Add the verdicts of changes to those found."""
    verdicts, fail = found
    for mutant, tests in tried:
        verdicts[str(mutant)] = not tests or survives(mutant, tests, fail, ran)
        print("survived" if verdicts[str(mutant)] else "killed  ", mutant.key, flush=True)
    return found


def judged_imported(tried: Tried) -> Verdicts:
    """Of changes that are imported."""
    for name in PRELOADED:
        importlib.import_module(name)
    return _judged(tried, ran, ({}, {}))


def judged_in_place(tried: Tried) -> Verdicts:
    """Of changes of functions."""
    found: Verdicts = ({}, {})
    files = sorted({one.partition("::")[0] for _, tests in tried for one in tests})
    collected(files, lambda ran: _judged(tried, ran, found))
    return found


def judged(todo: list[Mutant], content: Mapping[str, Any], jobs: int) -> Verdicts:
    """Which changes survive, and which tests fail without one."""
    nodes = by_context(content["times"])
    lines = (who for file in content["reached"].values() for who in file.values())
    wide = Counter(context for who in lines for context in who)
    early = {file: set(lines) for file, lines in content["collected"].items()}
    imported: Tried = []
    in_place: Tried = []
    for mutant in todo:
        soon = mutant.line in early.get(mutant.file, ()) or on_import(mutant)
        tests = tests_of(mutant, content["reached"], nodes, wide)
        (imported if soon else in_place).append((mutant, tests))
    found: Verdicts = ({}, {})
    for judge, tried in ((judged_in_place, in_place), (judged_imported, imported)):
        with ProcessPoolExecutor(jobs, multiprocessing.get_context("fork")) as pool:
            shares = [tried[job::jobs] for job in range(jobs)]
            for told in pool.map(judge, filter(None, shares)):
                for all_of, own in zip(found, told, strict=True):
                    all_of |= own
    return found


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
    verdicts, fail = judged(todo, content, given.jobs)
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

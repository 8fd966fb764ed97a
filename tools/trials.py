"""Tests run against a small change, in a fork of this process, which sees the change alone.

What functions do is changed in place, in a fork of a process that has collected the tests: that
costs the tests and nothing else. What runs as a file is imported, or as tests are collected, is
imported changed, in a fork of a process that has imported nothing of the project.
"""

from __future__ import annotations

import gc
import importlib.abc
import inspect
import os
import resource
import signal
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from itertools import pairwise
from types import CodeType, FunctionType, ModuleType
from typing import Any

import pytest

from tools.changes import ROOT, Mutant
from tools.reached import remembering

LONGEST = 720
"""Seconds after which a change never ends, which is noticed."""

MOST_BYTES = 8 * 2**30
"""Memory of a change's tests; one that asks for more is noticed."""

COMPREHENSIONS = ("<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>")

QUIET = ("-x", "-q", "-p", "no:xdist", "-p", "no:cacheprovider")


Ran = Callable[..., tuple[bool, str]]
"""`ran`, or what stands for it."""


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
        exec(codes(self.mutant)[1], module.__dict__)


class _Noticed:
    """What pytest is told of, so that it tells which test failed first."""

    def __init__(self) -> None:
        self.first = ""

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.first = self.first or report.nodeid


def forked(work: Callable[[int], int]) -> tuple[bool, str]:
    """Run something in a fork: whether its status is 0, and what it wrote to the file given."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        status = 1
        try:
            signal.alarm(LONGEST)
            resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
            silent = os.open(os.devnull, os.O_WRONLY)
            os.dup2(silent, 1)
            os.dup2(silent, 2)
            os.chdir(ROOT)
            status = work(writing)
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading, "rb") as stream:
        told = stream.read().decode()
    _, status = os.waitpid(child, 0)
    return status == 0, told


def ran(tests: Sequence[str], mutant: Mutant | None = None) -> tuple[bool, str]:
    """Whether all tests pass with a change, and the one that does not ('': it cannot be told).

    This process has imported nothing of the project; the fork imports the module changed.
    """

    def work(answer: int) -> int:
        sys.path.insert(0, str(ROOT))
        if mutant:
            sys.meta_path.insert(0, _Changed(mutant))
        noticed = _Noticed()
        status = int(pytest.main([*QUIET, *tests], plugins=[noticed]))
        os.write(answer, noticed.first.encode())
        return status

    return forked(work)


def codes(mutant: Mutant) -> tuple[CodeType, CodeType]:
    """The compiled file without and with a change."""
    file = ROOT / mutant.file
    text = file.read_text(encoding="utf-8")
    return compile(text, file, "exec"), compile(mutant.apply(text), file, "exec")


def unlike(before: CodeType, after: CodeType) -> Iterator[tuple[CodeType, CodeType]]:
    """The code objects that a change makes other ones, those inside last."""
    if before != after:
        yield before, after
    inner = (
        [one for one in code.co_consts if isinstance(one, CodeType)] for code in (before, after)
    )
    for old, new in zip(*inner, strict=True):
        yield from unlike(old, new)


def _itself(code: CodeType) -> tuple[object, ...]:
    """What a code object does, without what it defines."""
    own = tuple(repr(one) for one in code.co_consts if not isinstance(one, CodeType))
    return code.co_code, code.co_names, own


def soon(code: CodeType) -> Iterator[CodeType]:
    """What of a file's code runs as the file is imported: itself, its classes, and comprehensions
    of either, which are functions before Python 3.12."""
    yield code
    for one in code.co_consts:
        if isinstance(one, CodeType) and (
            one.co_name in COMPREHENSIONS or not one.co_flags & inspect.CO_OPTIMIZED
        ):
            yield from soon(one)


def on_import(mutant: Mutant) -> bool:
    """Whether the change is of what runs as its file is imported."""
    before, after = map(soon, codes(mutant))
    return any(_itself(old) != _itself(new) for old, new in zip(before, after, strict=True))


def change(mutant: Mutant, functions: Sequence[FunctionType]) -> None:
    """Change functions of a file in place."""
    table = {
        (old.co_qualname, old.co_firstlineno, old.co_code): new
        for old, new in unlike(*codes(mutant))
        if old.co_flags & inspect.CO_OPTIMIZED
    }
    for one in functions:
        own = one.__code__
        one.__code__ = table.get((own.co_qualname, own.co_firstlineno, own.co_code), own)


class Session:
    """A session of pytest that judges changes instead of running its tests once."""

    def __init__(self, judge: Callable[[Ran], object]) -> None:
        self.judge, self.items = judge, dict[str, pytest.Item]()
        self.functions: dict[str, list[FunctionType]] = defaultdict(list)
        self.remembering: list[Any] = []
        self.raised: Exception | None = None
        self.judged = False

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Called by pytest once it has collected."""
        self.items = {item.nodeid: item for item in session.items}
        gc.unfreeze()  # what the tests froze is not among the objects that are told
        for one in gc.get_objects():
            if type(one) is FunctionType:
                self.functions[one.__code__.co_filename].append(one)
        self.remembering = remembering()
        gc.freeze()  # nothing of it is looked at again, nor copied into forks
        self.judged = True
        try:
            self.judge(self.ran)
        except Exception as error:
            self.raised = error
        return True

    def ran(self, tests: Sequence[str], mutant: Mutant | None = None) -> tuple[bool, str]:
        """As the function of that name; the fork's functions are changed in place.

        Raises RuntimeError where none of the file is known: the tests would see no change.
        """
        known = self.functions[str(ROOT / mutant.file)] if mutant else []
        if mutant and not known:
            raise RuntimeError(f"no function of {mutant.file} was found to change")

        def work(answer: int) -> int:
            if mutant:
                for one in self.remembering:
                    one.cache_clear()
                change(mutant, known)
            chosen = [self.items[one] for one in tests if one in self.items]
            noticed = _Noticed()
            for item, after in pairwise([*chosen, None]):
                assert item is not None
                item.config.pluginmanager.register(noticed, "noticed")
                item.ihook.pytest_runtest_protocol(item=item, nextitem=after)
                item.config.pluginmanager.unregister(noticed)
                if noticed.first:
                    os.write(answer, noticed.first.encode())
                    return 1
            return 0

        return forked(work)


def collected(files: Sequence[str], judge: Callable[[Ran], object]) -> None:
    """Collect the tests of files and let `judge` run them, by a function as `ran`.

    Raises what `judge` raises, which pytest would only print, and RuntimeError where the tests
    cannot be collected.
    """
    sys.path.insert(0, str(ROOT))
    session = Session(judge)
    status = pytest.main([*QUIET, "-s", *files], plugins=[session])
    if session.raised is not None:
        raise session.raised
    if not session.judged:
        raise RuntimeError(f"pytest ended with {status} before the tests were collected")

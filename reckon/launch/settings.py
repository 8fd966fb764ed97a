"""YAML of settings, and commands that name such a file and set some of its keys beside it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from predictor.errors import InputError
from predictor.records import dataclass
from reckon.launch.interpolation import interpolated, loaded
from reckon.launch.launcher import launched, named_file, program
from reckon.launch.shell import read_script
from reckon.launch.structured import scalar
from reckon.launch.table import Flags

FILE = (".yaml", ".yml")

DEEP = 3
"""Commands within each other that are looked through."""

SETTING = re.compile(r"(?:--|\+{0,2})([A-Za-z_][\w.\-]*)=(.*)", re.S)


@dataclass(frozen=True, slots=True)
class Settings:
    """What a file, or a command with one, sets.

    content   as nested as the file has it; those beside a command put in
    launcher  nodes and processes that a launcher states
    words     of the command; none of a file alone
    missing   files that a command names and that are not there
    """

    content: dict[str, Any]
    launcher: Flags
    words: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


def read_settings(
    text: str, folder: Path, *starts: str, defaults: tuple[str, ...] = ()
) -> Settings:
    """The settings of a YAML text, or of the command in a script that starts a program; of several
    commands the last.

    starts    patterns of the words of that program's command; the first that is found counts
    defaults  names of files that hold what counts anyhow

    Raises InputError where the text is neither.
    """
    mapping = loaded(text)
    if mapping is not None:
        return Settings(dict(mapping), {})
    every = (_commands(text, folder, pattern, DEEP) for pattern in starts)
    found = next((commands for commands in every if commands), [])
    if not found:
        raise InputError("no settings are in it: neither YAML nor a command of the program")
    words = found[-1]
    before, behind = program(words)
    content: dict[str, Any] = {}
    missing: list[str] = []
    for name in (word.partition("=")[2] or word for word in behind if word.endswith(FILE)):
        if Path(name).name in defaults:
            continue
        own = file_named(name, folder)
        content |= own or {}
        missing += [] if own is not None else [name]
    for word in behind:
        match = SETTING.fullmatch(word)
        if match and not match[2].endswith(FILE):
            _put(content, match[1], scalar(match[2]))
    return Settings(interpolated(content), launched(before), tuple(words), tuple(missing))


def _commands(text: str, folder: Path, starts: str, deep: int) -> list[list[str]]:
    """Commands of a script that start a program, those quoted for another to run among them."""
    found: list[list[str]] = []
    for words in read_script(text, folder).commands:
        inner = [w for w in words if len(w.split()) > 2 and re.search(starts, w)]
        if inner and deep:
            found += [
                c for word in inner for c in _commands(_plain(word), folder, starts, deep - 1)
            ]
        elif re.search(starts, " ".join(words)):
            found.append(words)
    return found


def _plain(word: str) -> str:
    """A command as an option holds it: `--command=...`."""
    return re.sub(r"^--?[\w-]+=", "", word)


def file_named(name: str, folder: Path) -> dict[str, Any] | None:
    """The mapping of a YAML file that a command names, from its own folder or one above; None
    where there is none."""
    path = named_file(name, folder)
    return loaded(path.read_text(encoding="utf-8", errors="replace")) if path else None


def _put(content: dict[str, Any], name: str, value: Any) -> None:
    """Set a key by its dotted name."""
    *sections, last = name.split(".")
    place = content
    for section in sections:
        inner = place.get(section)
        place[section] = place = dict(inner) if isinstance(inner, Mapping) else {}
    place[last] = value

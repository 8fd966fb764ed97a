"""Runs a study by name: its file says which kind it is, its parameters and its reading."""

from __future__ import annotations

import string
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from predictor import catalog
from predictor.errors import InputError, unknown
from predictor.files import prepare_folder, write_text
from predictor.records import dataclass
from reckon.studies import (
    generations,
    inference,
    memory,
    power,
    scaling,
    slow_links,
    sweep,
    taxes,
    uneven,
    variation,
)
from reckon.views.page import Result, write_html

KINDS: dict[str, Callable[[Mapping[str, Any]], Result]] = {
    "memory": memory.run,
    "power": power.run,
    "generations": generations.run,
    "sweep": sweep.run,
    "inference": inference.run,
    "scaling": scaling.run,
    "slow-links": slow_links.run,
    "taxes": taxes.run,
    "uneven": uneven.run,
    "variation": variation.run,
}

KEYS = ("title", "kind", "parameters", "reading")


@dataclass(frozen=True, slots=True)
class Study:
    """A study that has been run: its title, its reading with numbers filled in, what it found."""

    name: str
    title: str
    reading: str
    result: Result

    def write(self, folder: Path, page: bool = True) -> list[Path]:
        """Write NAME.md, NAME.csv of each table and, if wanted, NAME.html; returns the paths."""
        prepare_folder(folder)
        made = [folder / f"{self.name}.md"]
        write_text(made[0], f"# {self.title}\n\n{self.reading.strip()}\n")
        for number, table in enumerate(self.result.tables.values()):
            path = folder / f"{self.name}{'' if number == 0 else f'-{number + 1}'}.csv"
            write_text(path, table.to_csv(index=False, float_format="%.6g", lineterminator="\n"))
            made.append(path)
        if page:
            made.append(folder / f"{self.name}.html")
            write_html(made[-1], self.title, self.reading, self.result)
        return made


def names() -> list[str]:
    """Names of the studies that ship with reckon."""
    return sorted(path.stem for path in (catalog.data_dir() / "studies").glob("*.yaml"))


def study(name: str | Path) -> Study:
    """Run a study: one that ships, or a YAML file of that form.

    Raises InputError for unknown names, keys and kinds.
    """
    path = Path(name)
    if path.suffix not in (".yaml", ".yml"):
        path = catalog.data_dir() / "studies" / f"{name}.yaml"
        if str(name) not in names():
            raise unknown("study", name, names(), "or give a .yaml file")
    content = catalog.read_mapping(path)
    for key in content:
        if key not in KEYS:
            raise unknown(f"{path}: key", key, KEYS)
    for key in KEYS[:3]:
        if key not in content:
            raise InputError(f"{path}: key {key!r} is missing")
    if content["kind"] not in KINDS:
        raise unknown(f"{path}: kind", content["kind"], KINDS)
    if not isinstance(content["parameters"], Mapping):
        raise InputError(f"{path}: parameters: expected keys and values")
    try:
        result = KINDS[content["kind"]](content["parameters"])
    except KeyError as error:
        raise InputError(f"{path}: parameters: key {error} is missing") from None
    reading = _filled(str(content.get("reading", "")), result.facts, path)
    return Study(path.stem, str(content["title"]), reading, result)


def _filled(text: str, facts: Mapping[str, Any], path: Path) -> str:
    """The reading with `{fact}` replaced by numbers."""
    try:
        wanted = [name for _, name, _, _ in string.Formatter().parse(text) if name]
        for name in wanted:
            if name not in facts:
                raise unknown(f"{path}: fact", name, facts)
        return text.format(**facts)
    except ValueError as error:
        raise InputError(f"{path}: reading: {error}") from None

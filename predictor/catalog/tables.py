"""The catalogs' tables, and what is read of files: rows by name, mappings of YAML and JSON.

The only module that knows where data lies: `$RECKON_DATA`, else the data installed with the
package (`predictor/_data`), else the checkout's `data/`.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from predictor.errors import InputError, unknown

Row = dict[str, Any]

KINDS = ("accelerators", "systems", "models")


def data_dir() -> Path:
    """Where catalogs, defaults and calibrations lie.

    Raises InputError if `$RECKON_DATA` is set to something that is not a folder.
    """
    override = os.environ.get("RECKON_DATA")
    if override:
        if not Path(override).is_dir():
            raise InputError(f"RECKON_DATA={override} is not a folder")
        return Path(override)
    return _own_data()


@lru_cache(maxsize=1)
def _own_data() -> Path:
    here = Path(__file__).resolve().parent.parent
    installed = here / "_data"
    return installed if installed.is_dir() else here.parent / "data"


@lru_cache(maxsize=8)
def _rows(directory: Path, kind: str) -> dict[str, Row]:
    path = directory / f"{kind}.csv"
    try:
        with path.open(newline="", encoding="utf-8") as stream:
            reader = csv.reader(stream)
            keys = next(reader, ["name"])
            name = keys.index("name")
            return {row[name]: _nest(zip(keys, row, strict=False)) for row in reader if row}
    except OSError as error:
        raise InputError(f"cannot read the catalog {path}: {error.strerror}") from None


def rows(kind: str) -> dict[str, Row]:
    """All rows of a catalog by name; empty cells are left out, tier columns are nested."""
    return _rows(data_dir(), kind)


def _nest(row: Iterable[tuple[str, str]]) -> Row:
    """Turn columns 'tier2_size' into entries of a list 'tiers'; drop empty cells."""
    flat: Row = {key: value for key, value in row if value}
    tiers: dict[str, Row] = {}
    for key in [key for key in flat if key.startswith("tier")]:
        head, _, tail = key.partition("_")
        if head[4:].isdigit():
            tiers.setdefault(head, {})[tail] = flat.pop(key)
    if tiers:
        flat["tiers"] = [tiers[name] for name in sorted(tiers)]
    return flat


def is_called(model: str, beginnings: tuple[str, ...]) -> bool:
    """Whether the name of a model, or one of those that the catalog has for it, begins so."""
    if model.startswith(beginnings):
        return True
    row = rows("models").get(model, {})
    return any(alias.startswith(beginnings) for alias in aliases_of(row))


def aliases_of(row: Row) -> list[str]:
    """Other names of a row."""
    return [alias.strip() for alias in str(row.get("aliases", "")).split(";") if alias.strip()]


def known(kind: str, name: str) -> Row | None:
    """The catalog row of a name or alias, None where there is none; case does not count."""
    table = rows(kind)
    return table[name] if name in table else _folded(data_dir(), kind).get(name.lower())


@lru_cache(maxsize=8)
def _folded(directory: Path, kind: str) -> dict[str, Row]:
    """Rows by name and alias in lower case, the first of each."""
    found: dict[str, Row] = {}
    for row in _rows(directory, kind).values():
        for name in (row["name"], *aliases_of(row)):
            found.setdefault(name.lower(), row)
    return found


def find(kind: str, name: str) -> Row:
    """The catalog row of a name or alias; case does not count.

    Raises InputError with the nearest name.
    """
    found = known(kind, name)
    if found is not None:
        return found
    table = rows(kind)
    names = [*table, *(alias for row in table.values() for alias in aliases_of(row))]
    raise unknown(kind[:-1], name, names, f"reckon show {kind}, or give a .yaml file")


def keys_of(plan: object, other: str) -> dict[str, Any]:
    """Keys of a request: a mapping's, or those of a file.

    other   what else would have been a plan

    Raises InputError, one line, for anything else.
    """
    if isinstance(plan, Mapping):
        return dict(plan)
    if isinstance(plan, str | Path):
        return read_request(Path(plan))
    kind = type(plan).__name__
    raise InputError(f"plan: expected keys and values, a file or a {other}, got {kind}")


def read_request(path: Path) -> dict[str, Any]:
    """Keys of a request: of a run file, or those that the result of one prediction says were
    stated.

    Raises InputError, one line, for other files that were written about predictions.
    """
    content = read_mapping(path)
    if "schema_version" not in content:
        return content
    if not isinstance(stated := content.get("stated"), dict):
        raise InputError(f"{path} is a result which does not say what was stated of one run")
    return stated


def _parsed(text: str) -> Any:
    """The content of a YAML document, of whose keys none is stated twice: of two that are, YAML
    would take the last without a word."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)(text)
    try:
        root = loader.get_single_node()
        left, seen = [root], set()
        while left:
            node = left.pop()
            if id(node) in seen or not isinstance(node, yaml.CollectionNode):
                continue
            seen.add(id(node))
            pairs = isinstance(node, yaml.MappingNode)
            left += [one for pair in node.value for one in pair] if pairs else node.value
            keys = [key for key, _ in node.value if key.tag != MERGE] if pairs else []
            said: set[object] = set()
            for key in keys:
                if str(key.value) in said:
                    told = f"key {key.value!r} is stated twice"
                    raise yaml.MarkedYAMLError(problem=told, problem_mark=key.start_mark)
                said.add(str(key.value))
        return None if root is None else loader.construct_document(root)
    finally:
        loader.dispose()


MERGE = "tag:yaml.org,2002:merge"
"""Tag of the key `<<`, by which a mapping takes the keys of another."""


def read_mapping(path: Path) -> dict[str, Any]:
    """Read a YAML or JSON file that holds one mapping. Nothing in it is executed.

    Raises InputError, one line.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InputError(f"{path} is not a text file") from None
    if path.suffix == ".json":
        import json

        try:
            content = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path} is not JSON: {error}") from None
    else:
        import yaml

        try:
            content = _parsed(text)
        except yaml.YAMLError as error:
            line = getattr(getattr(error, "problem_mark", None), "line", None)
            at = f" (line {line + 1})" if line is not None else ""
            raise InputError(
                f"{path} is not YAML{at}: {getattr(error, 'problem', '') or 'cannot be parsed'}"
            ) from None
        except (ValueError, RecursionError) as error:  # dates and numbers that cannot be
            raise InputError(f"{path} is not YAML: {error}") from None
    if not isinstance(content, dict):
        found = "nothing" if content is None else type(content).__name__
        raise InputError(f"{path} must hold keys and values, found {found}")
    return content

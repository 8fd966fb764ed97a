"""A grid of predictions: fields with lists of values, of which every combination is a cell."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from predictor import catalog
from predictor.catalog import ServingPlanSpec, TrainingPlanSpec, parse
from predictor.errors import InputError, unknown
from predictor.records import dataclass

VERBS = ("predict train", "predict infer", "plan train", "plan infer")
"""What a grid may ask of a cell: a prediction, or the best plan or fleet that a search finds."""

MOST_CELLS = 10_000_000
"""Cells that a grid may have; their identities alone take a minute."""


@dataclass(frozen=True, slots=True)
class Grid:
    """A grid, checked.

    verb         one of `VERBS`
    axes         values of each field, in the order of the file; one value where it does not vary
    calibration  name or folder, as every worker finds it
    fingerprint  of the calibration's content, a part of each cell's identity
    """

    verb: str
    axes: dict[str, tuple[Any, ...]]
    calibration: str
    fingerprint: str

    def __len__(self) -> int:
        return math.prod(len(values) for values in self.axes.values())

    @property
    def varying(self) -> list[str]:
        """Fields with several values."""
        return [name for name, values in self.axes.items() if len(values) > 1]

    def cells(self) -> Iterator[Cell]:
        """Every cell; the last field varies fastest."""
        for values in itertools.product(*self.axes.values()):
            fields = dict(zip(self.axes, values, strict=True))
            yield Cell(digest([self.verb, self.fingerprint, fields]), fields)


@dataclass(frozen=True, slots=True)
class Cell:
    """One combination; `identity` is the same wherever and whenever it is asked for."""

    identity: str
    fields: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Chunk:
    """Cells that are done together and written as one file, named after what they are."""

    cells: tuple[Cell, ...]

    @property
    def identity(self) -> str:
        """Of the cells, in their order."""
        return digest([cell.identity for cell in self.cells])


def digest(content: Any) -> str:
    """Sixteen hexadecimal digits of a content that JSON can hold; keys in any order."""
    text = json.dumps(content, sort_keys=True, ensure_ascii=False)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def chunks(grid: Grid, done: set[str], size: int) -> Iterator[Chunk]:
    """Cells that are not done yet, `size` at a time; borders do not depend on what is done."""
    cells = grid.cells()
    while block := tuple(itertools.islice(cells, size)):
        rest = tuple(cell for cell in block if cell.identity not in done)
        if rest:
            yield Chunk(rest)


def read_grid(content: Mapping[str, Any], calibration: str, where: str = "grid") -> Grid:
    """A grid from a mapping: fields of a plan, each a value or a list; `verb` says what to do.

    Without `verb` a grid with lengths of input and output is `predict infer`, another `predict
    train`. Models and systems that are files are read here, so that workers need not have them.

    Raises InputError, one line, for unknown fields and values.
    """
    fields = dict(content)
    serving = "input_len" in fields or "output_len" in fields
    verb = fields.pop("verb", VERBS[1] if serving else VERBS[0])
    if verb not in VERBS:
        raise unknown(f"{where}: verb", verb, VERBS)
    known = _keys(verb)
    for name in fields:
        if name not in known:
            raise unknown(f"field of {where}", name, known)
    lists = {name: v if isinstance(v, list) else [v] for name, v in fields.items()}
    if "model" not in lists:
        raise InputError(f"{where}: no model; write 'model: [llama3-8b, ...]'")
    if empty := next((name for name, values in lists.items() if not values), None):
        raise InputError(f"{where}: {empty}: the list is empty")
    cells = math.prod(len(values) for values in lists.values())
    if cells > MOST_CELLS:
        raise InputError(f"{where}: {cells:,} cells are more than {MOST_CELLS:,}; split it")
    axes: dict[str, tuple[Any, ...]] = {}
    for name, values in lists.items():
        axes[name] = tuple(_checked(verb, name, one, where) for one in values)
        seen: set[str] = set()
        for one in axes[name]:
            text = json.dumps(one, sort_keys=True)
            if text in seen:
                raise InputError(f"{where}: {name}: {text} stands there twice")
            seen.add(text)
    return Grid(verb, axes, calibration, fingerprint(calibration))


def _keys(verb: str) -> tuple[str, ...]:
    if verb == "predict infer":
        return tuple(ServingPlanSpec.fields())
    if verb == "predict train":
        return tuple(TrainingPlanSpec.fields())
    if verb == "plan infer":
        from reckon.verbs.fleets import OPTIONS

        return (*dict.fromkeys((*ServingPlanSpec.fields(), *OPTIONS, "price_per_gpu_hour")),)
    from reckon.verbs.asking import BATCH_TOKENS
    from reckon.verbs.plans import LIMITS

    own = (BATCH_TOKENS, *LIMITS, "objective")
    return (*dict.fromkeys((*TrainingPlanSpec.fields(), *own)),)


def _checked(verb: str, name: str, value: Any, where: str) -> Any:
    """A value as cells carry it: of files their content, of names the catalog's own.

    Raises InputError.
    """
    if verb == "plan infer" and name in ("system", "accelerator") and "," in str(value):
        several = value.split(",") if isinstance(value, str) else value
        return [_checked(verb, name, one.strip(), where) for one in several]
    kinds = {"model": "models", "system": "systems", "accelerator": "accelerators"}
    if name in kinds:
        kind = kinds[name]
        if isinstance(value, str) and not value.endswith((".yaml", ".yml", ".json")):
            return _named(kind, value)
        return catalog.to_mapping(catalog.spec_of(kind, value))
    form = ServingPlanSpec if verb.endswith("infer") else TrainingPlanSpec
    if verb == "plan infer" and name == "load":
        return _load(value)
    bounds = isinstance(value, str) and (".." in value or "," in value)
    if verb.startswith("plan") and (bounds or name not in form.fields()):
        return value
    return getattr(parse(form, {name: value}, where), name)


def _named(kind: str, name: str) -> str:
    """A name as cells carry it: the catalog's own, or as it was written where it says more than the
    catalog's (a stored precision, a number of accelerators, a cloud's instance).

    Raises InputError.
    """
    more = {"models": catalog.unlike_catalog, "systems": catalog.unlike_system}.get(kind)
    if more is not None and more(name) is not None:
        (catalog.model if kind == "models" else catalog.system)(name)
        return name
    return str(catalog.find(kind, name)["name"])


def _load(value: Any) -> dict[str, list[float]]:
    """The table of a load, so that workers need not have its file."""
    from reckon.verbs.loads import load_of

    found = load_of(value)
    return {"hour": found.hours.tolist(), "requests_per_s": found.rates.tolist()}


def fingerprint(calibration: str) -> str:
    """Of the files that a calibration is read from; two of the same content have the same."""
    if calibration == "none":
        return "none"
    found = hashlib.blake2b(digest_size=8)
    for path in catalog.files_read(Path(calibration)):
        found.update(path.name.encode() + b"\0" + path.read_bytes())
    return found.hexdigest()

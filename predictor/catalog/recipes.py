"""What published training recipes set, by release, model, accelerator and precision:
`data/software/recipes.csv`, facts read in the recipes' files.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from predictor.catalog.machine_names import read_accelerator_name
from predictor.catalog.tables import data_dir, is_called
from predictor.plans import RECOMPUTE_MODULES
from predictor.records import dataclass

NEAR = 6
"""Months from a release within which a recipe is taken to say the same."""


@dataclass(frozen=True, slots=True)
class RecipeFact:
    """One setting of a recipe: from when until when (YYYY-MM), of models whose names begin so, on
    which accelerators in which precisions, a field of a plan and its value."""

    since: str
    until: str
    models: tuple[str, ...]
    task: str
    where: frozenset[tuple[str, str]]
    field: str
    value: Any
    source: str


def _value(text: str) -> Any:
    return int(text) if text.isdigit() else text


@lru_cache(maxsize=1)
def _facts() -> dict[str, tuple[RecipeFact, ...]]:
    found: dict[str, list[RecipeFact]] = {}
    path = data_dir() / "software" / "recipes.csv"
    with path.open(newline="", encoding="utf-8") as stream:
        for row in csv.DictReader(stream):
            fact = RecipeFact(
                since=row["from"],
                until=row["until"],
                models=tuple(row["models"].split()),
                task=row["task"],
                where=frozenset((p[0], p[1]) for p in map(_pair, row["where"].split())),
                field=row["field"],
                value=_value(row["value"]),
                source=row["source"],
            )
            found.setdefault(row["framework"], []).append(fact)
    return {name: tuple(facts) for name, facts in found.items()}


def _pair(text: str) -> tuple[str, str]:
    """Accelerator, as the catalog's name begins, and precision."""
    accelerator, _, precision = text.partition(":")
    known = read_accelerator_name(accelerator) or accelerator  # a rack's name (VR200), too
    return known.partition("-")[0], precision


def _months(text: str) -> int:
    year, month = text.split("-")
    return 12 * int(year) + int(month)


@lru_cache(maxsize=1)
def _read_until() -> int:
    """Month of the latest release that the table knows."""
    return max(_months(fact.until) for facts in _facts().values() for fact in facts)


def _away(fact: RecipeFact, era: str | None) -> int:
    """Months between a date and a fact's releases; of no date, from the latest release of all. What
    is later than any release that was read is taken for that one."""
    if era is None:
        return -_months(fact.until)
    at = min(_months(era), _read_until())
    return max(_months(fact.since) - at, at - _months(fact.until), 0)


def recipe_facts(
    framework: str, era: str | None, model: str, task: str, accelerator: str, precision: str
) -> Iterator[RecipeFact]:
    """What the recipe nearest in time sets, a fact for each field that one sets.

    era          'YYYY-MM', or None for the latest release; none within `NEAR` months: nothing
    model        name in the catalog
    task         'pretrain', 'sft' or 'lora'
    accelerator  name in the catalog, of which the part before the first dash counts
    """
    place = accelerator.partition("-")[0], precision
    best: dict[str, RecipeFact] = {}
    for fact in _facts().get(framework, ()):
        if fact.task == task and place in fact.where and is_called(model, fact.models):
            away = _away(fact, era)
            known = best.get(fact.field)
            if away <= NEAR and (known is None or away < _away(known, era)):
                best[fact.field] = fact
    return iter(best.values())


def settings_of(fact: RecipeFact, layers: int, pipelined: bool) -> dict[str, Any]:
    """Fields of a plan that a fact sets; none that cannot be said of it.

    layers      of the model
    pipelined   whether the plan's stages are known, of which some settings count layers
    """
    word, _, more = str(fact.value).partition(" ")
    if fact.field == "recompute" and more:
        if word == "full":
            return {"recompute": word, "recompute_layers": int(more)} if pipelined else {}
        known = set(more.split(",")) <= set(RECOMPUTE_MODULES)
        return {"recompute": word, "recompute_modules": more} if known else {}
    if fact.field == "sharding" and more:
        return {"sharding": word, "offload_activations": min(int(more) / layers, 1.0)}
    return {fact.field: fact.value}

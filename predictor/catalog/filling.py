"""Values that a request leaves unstated: defaults of frameworks, and the record of what was
filled in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from predictor.catalog import entries
from predictor.errors import InputError, unknown
from predictor.models import Model

STORED = "config.json's quantization_config"
"""How rules begin by which a model's own file decides."""


@dataclass(frozen=True, slots=True)
class Assumption:
    """A field that was filled in: its value and the rule that gave it."""

    field: str
    value: Any
    rule: str


@lru_cache(maxsize=1)
def frameworks() -> Mapping[str, Any]:
    """The table of framework defaults, `data/defaults/frameworks.yaml`."""
    return entries.read_mapping(entries.data_dir() / "defaults" / "frameworks.yaml")


def framework_settings(name: str, era: str | None) -> tuple[dict[str, Any], str]:
    """Defaults of a framework in an era ('YYYY' or 'YYYY-MM'; None: its latest), and a label.

    Raises InputError for an unknown framework or an era that is no date.
    """
    chosen, label = period(frameworks(), name, era)
    return {**chosen["settings"], "means": chosen.get("means", {})}, label


def period(table: Mapping[str, Any], name: str, era: str | None) -> tuple[dict[str, Any], str]:
    """The entry of a framework that holds in an era, of a table of periods; and a label.

    Raises InputError for an unknown framework or an era that is no date.
    """
    if name not in table:
        raise unknown("framework", name, table)
    periods = table[name]
    if era is None or era == "neutral":
        chosen = periods[-1]
    else:
        if not era[:4].isdigit():
            raise InputError(f"era {era!r} is not a date; write YYYY or YYYY-MM")
        month = era if len(era) > 4 else f"{era}-06"
        chosen = next((p for p in periods if "until" not in p or month <= p["until"]), periods[-1])
    return chosen, f"{name} until {chosen['until']}" if "until" in chosen else name


class Filler:
    """Collects values and the record of those that were assumed."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self.values: dict[str, Any] = {k: v for k, v in given.items() if v is not None}
        self.assumed: list[Assumption] = []

    def fill(self, field: str, value: Any, rule: str) -> Any:
        """Take the value and its rule where none was given; returns what holds."""
        if field not in self.values:
            self.values[field] = value
            self.assumed.append(Assumption(field, value, rule))
        return self.values[field]


def named_model(values: Mapping[str, Any]) -> Model:
    """The model that a request names.

    Raises InputError where it names none.
    """
    if "model" not in values:
        raise InputError("give --model (reckon show models)")
    return entries.model(values["model"])

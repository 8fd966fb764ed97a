"""Values that a request leaves unstated: rules that fill them, defaults of frameworks, and the
record of what was filled in. One mechanism, for training and serving.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from predictor.catalog import entries, tables
from predictor.catalog.machine_names import unlike_system
from predictor.catalog.model_names import unlike_catalog
from predictor.errors import InputError, unknown
from predictor.hardware import Accelerator, Cluster
from predictor.models import Model
from predictor.records import dataclass

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
    return tables.read_mapping(tables.data_dir() / "defaults" / "frameworks.yaml")


def framework_settings(
    name: str,
    era: str | None,
    model: Model | None = None,
    given: Mapping[str, Any] | None = None,
) -> tuple[dict[str, Any], str]:
    """Defaults of a framework in an era ('YYYY' or 'YYYY-MM'; None: its latest), and a label.

    model   whose recipes may differ: those of its name, or of all mixtures of experts
    given   what is known of the plan, on which recipes may depend, too

    Raises InputError for an unknown framework or an era that is no date.
    """
    chosen, label = period(frameworks(), name, era)
    of = stands_on(name)
    settings = {"means": {}} if of == name else framework_settings(of, era, model, given)[0]
    settings |= {**chosen["settings"], "means": chosen.get("means", settings["means"])}
    for recipe in chosen.get("recipes", ()):
        if _applies(recipe, model, given or {}):
            settings |= recipe["settings"]
    return settings, label


def stands_on(name: str) -> str:
    """The framework whose code runs under a name that only sets it otherwise; else the name."""
    return str(frameworks()[name][-1].get("of", name)) if name in frameworks() else name


@lru_cache(maxsize=1)
def _offers() -> Mapping[str, Mapping[str, Any]]:
    """The table of what frameworks can run, `data/defaults/offers.yaml`."""
    return tables.read_mapping(tables.data_dir() / "defaults" / "offers.yaml")


def framework_offers(name: str) -> Mapping[str, Any]:
    """Of fields of a plan, the values that a framework can run; fields not named are free."""
    return _offers().get(name, {})


def _applies(recipe: Mapping[str, Any], model: Model | None, given: Mapping[str, Any]) -> bool:
    """Whether a recipe is of the model, or of a plan with what is given; of both, where it names
    both."""
    when, names = recipe.get("when"), tuple(recipe.get("models", ()))
    named = model is not None and tables.is_called(model.name, names)
    if when:
        fits = all(given.get(field) in values for field, values in when.items())
        return fits and (named or not names)
    if model is None:
        return False
    return named or (model.is_moe and bool(recipe.get("mixtures")))


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
        month = dated(era)
        chosen = next((p for p in periods if "until" not in p or month <= p["until"]), periods[-1])
    return chosen, f"{name} until {chosen['until']}" if "until" in chosen else name


def dated(era: str) -> str:
    """An era ('YYYY' or 'YYYY-MM') as a month; the middle of a year that is all it says.

    Raises InputError for one that is no date.
    """
    if not re.fullmatch(r"\d{4}(-(0[1-9]|1[0-2])(-\d{2})?)?", era):
        raise InputError(f"era {era!r} is not a date; write YYYY or YYYY-MM")
    return era if len(era) > 4 else f"{era}-06"


@dataclass(frozen=True, slots=True)
class Default:
    """What a field is where a request leaves it open, and the rule that says so.

    when   whether the rule holds for this request
    """

    field: str
    value: Any
    rule: str
    when: bool = True


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

    def refill(self, field: str, value: Any, rule: str) -> None:
        """Take another value and rule of a field that nobody gave."""
        self.values[field] = value
        self.assumed = [one for one in self.assumed if one.field != field]
        self.assumed.append(Assumption(field, value, rule))

    def supposed(self, field: str) -> bool:
        """Whether a field has a value that nobody gave."""
        return any(one.field == field for one in self.assumed)

    def reopen(self, *fields: str) -> None:
        """Leave fields open again, of those that nobody gave."""
        for field in filter(self.supposed, fields):
            self.values.pop(field, None)
        self.assumed = [one for one in self.assumed if one.field not in fields]

    def run(self, defaults: Iterable[Default]) -> None:
        """Fill by rules, in their order: the first that holds for an open field fills it."""
        for default in defaults:
            if default.when:
                self.fill(default.field, default.value, default.rule)

    def need(self, *fields: str) -> None:
        """Raise InputError where one of the fields is not given."""
        for field in fields:
            if field in self.values:
                continue
            each = field == "global_batch" and "micro_batch" in self.values
            if each and not {"gpus", "dp"} & set(self.values):
                raise InputError(
                    "give --gpus, or --global-batch: sequences of each accelerator are said, and "
                    "not how many accelerators there are"
                )
            raise InputError(f"give --{field.replace('_', '-')}: it has no default")


def default_precision(accelerator: Accelerator) -> Default:
    """The precision of a request that names none."""
    rule = "bf16 where the accelerator has it, else fp16, else fp32"
    return Default("precision", accelerator.wide, rule)


def note_names(filler: Filler, cluster: Cluster, unless: tuple[str, ...] = ("dp",)) -> None:
    """Record what names of a model and a system were taken for that no catalog has as they are
    written; what the latter says of accelerators and of their price; and whose efficiencies an
    accelerator takes that somebody described.

    unless   fields that say how many accelerators there are, beside `gpus`
    """
    values = filler.values
    model, system = values.get("model"), values.get("system")
    if isinstance(model, str) and (named := unlike_catalog(model)):
        filler.assumed.append(Assumption("model", named.row, named.rule))
    _note_relative(filler, cluster.accelerator)
    machine = unlike_system(system) if isinstance(system, str) else None
    if machine is None:
        return
    filler.assumed.append(Assumption("system", cluster.name, machine.rule(cluster.name)))
    if machine.count and not any(field in values for field in unless):
        filler.fill("gpus", machine.count, f"accelerators that {machine.written!r} names")
    instance = machine.instance
    if instance is not None and instance.price is not None and values.get("tokens"):
        each = instance.price / instance.count
        rule = f"{instance.name} on demand, {instance.price:g} USD an hour ({instance.told})"
        filler.fill("price_per_gpu_hour", each, rule)


DESCRIBED = "efficiencies as of"
"""How the rule begins by which an accelerator that somebody described is as efficient as others."""


def _note_relative(filler: Filler, own: Accelerator) -> None:
    """Record whose efficiencies an accelerator takes that the catalog does not have."""
    if own.relative is not None:
        told = f"{DESCRIBED} {own.relative.name}, the nearest of its architecture"
    elif own.is_host or own.name in tables.rows("accelerators"):
        return
    else:
        alike = any(
            row["architecture"] == own.architecture for row in tables.rows("accelerators").values()
        )
        whose = "all of its architecture, none of which is near" if alike else (
            f"all accelerators: none of the catalog has the architecture {own.architecture!r}"
        )  # fmt: skip
        told = f"{DESCRIBED} {whose}"
    filler.assumed.append(Assumption("accelerator", own.name, told))


def named_model(values: Mapping[str, Any]) -> Model:
    """The model that a request names.

    Raises InputError where it names none.
    """
    if "model" not in values:
        raise InputError("give --model (reckon show models)")
    return entries.model(values["model"])

"""What a launch line can say, as the bounds of a search for it.

Nothing is listed here: a plan can be said where the entries of the dialect's own table, which write
the line, read the same back from what they write. Fields that no entry holds mean the framework's
defaults. Entries that share a field are asked together, once for each combination of the fields
that they depend on.
"""

from __future__ import annotations

from dataclasses import field, replace
from functools import cached_property
from typing import Any

import numpy as np

from predictor.arrays import distinct_rows
from predictor.catalog import ServingPlanSpec, TrainingPlanSpec, parse
from predictor.errors import InputError
from predictor.hardware import Cluster
from predictor.models import Model
from predictor.plans import (
    CATEGORY_FIELDS,
    NUMERIC_FIELDS,
    SERVING_CATEGORIES,
    SERVING_NUMBERS,
    Rule,
    ServingPlan,
    TrainingPlan,
)
from predictor.records import dataclass
from predictor.serving import complete_serving
from predictor.timing import RunParameters
from predictor.training import complete_training
from reckon.launch.dialect import Dialect, alike, facts_of_plan
from reckon.launch.dimensions import facts_of
from reckon.launch.table import Entry, Facts, Flags, Number, Switch

Plan = TrainingPlan | ServingPlan

TRAINED = ("tp", "pp", "cp", "vpp", "ep", "etp", "micro_batch", "sequence_parallel", "dp_shard",
           "recompute_share", "offload_activations", "offload_optimizer",
           "offload_weights")  # fmt: skip
"""Numbers of a training plan that a search varies, those aside that follow from others."""

SERVED = ("tp", "pp", "dp", "ep", "prefill_workers", "prefill_tp", "prefill_dp")
"""Numbers of a serving plan that a search varies."""

NAMES = ("framework", "era")
"""Categories that say whose line it is."""


@dataclass(frozen=True, slots=True)
class Group:
    """Entries that share fields; none where the line has no flag for the only field.

    fields  that the line says, or leaves to the framework
    needs   fields on which that depends
    """

    fields: tuple[str, ...]
    needs: tuple[str, ...]
    entries: tuple[Entry, ...]


WHERE = {"cp_kind": ("cp",), "sequence_parallel": ("tp",), "schedule": ("pp",), "split": ("pp",),
         "sharding": ("dp", "cp"), "dp_shard": ("dp", "cp"), "prefill_tp": ("prefill_workers",),
         "prefill_dp": ("prefill_workers",),
         "offload_to": ("offload_activations", "offload_optimizer", "offload_weights")}  # fmt: skip
"""Fields by which others matter at all."""


def groups(dialect: Dialect) -> tuple[Group, ...]:
    """The fields of a search, together where entries hold several of them."""
    searched = (*SERVED, *SERVING_CATEGORIES) if dialect.serving else (*TRAINED, *CATEGORY_FIELDS)
    wanted = [name for name in searched if name not in (*NAMES, *dialect.beside)]
    found: list[Group] = []
    for name in wanted:
        if any(name in group.fields for group in found):
            continue
        fields, size = {name}, 0
        while len(fields) != size:
            size = len(fields)
            own = tuple(e for e in dialect.entries if fields & set(e.fields))
            fields |= {f for e in own for f in e.fields if f in wanted}
        needs = {n for e in own for n in e.needs} | {n for f in fields for n in WHERE.get(f, ())}
        if len(own) == 1 and isinstance(own[0], Number | Switch):
            continue  # which say anything
        found.append(Group(tuple(sorted(fields)), tuple(sorted(needs - fields)), own))
    return tuple(found)


@dataclass(frozen=True, eq=False)
class Target:
    """A dialect for which plans are sought, on one cluster.

    run    memory parameters, by which what a line leaves open is completed
    known  what was asked so far
    """

    dialect: Dialect
    model: Model
    cluster: Cluster
    run: RunParameters
    known: dict[tuple[Any, ...], Any] = field(default_factory=dict, repr=False)

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """The fields of a search, as far as not every value can be said."""
        return groups(self.dialect)

    def rules(self, batch: Any) -> list[Rule]:
        """What the line cannot say of a batch of plans, one rule for each group of fields."""
        numbers = SERVING_NUMBERS if self.dialect.serving else NUMERIC_FIELDS
        first = _first(batch, numbers)
        found = []
        for group in self.groups:
            named = [n for n in (*group.fields, *group.needs) if n in numbers]
            rows, inverse = _distinct(batch, named)
            said = [self._known(group, first, dict(zip(named, row, strict=True))) for row in rows]
            broken = ~np.array(said, dtype=bool)[inverse]
            if broken.any():
                found.append(Rule(broken, self._told(group, first, named), tuple(named or ["tp"])))
        found += self.dialect.laws(batch)
        return found

    def _told(self, group: Group, plan: Plan, named: list[str]) -> str:
        categories = [f"{n} {getattr(plan, n)}" for n in group.fields if n not in named]
        varied = [f"{n} {{{n}}}" for n in named]
        return f"a line of {self.dialect.name} cannot say {', '.join([*categories, *varied])}"

    def _known(self, group: Group, first: Any, numbers: dict[str, float]) -> bool:
        """Whether a group says a plan of given numbers, looked up where it was asked before."""
        names = (*group.fields, *group.needs, "weights" if self.dialect.serving else "precision")
        key = (group.fields, *(numbers.get(n, getattr(first, n)) for n in names))
        if key not in self.known:
            self.known[key] = self._says(group, replace(first, **numbers))
        return bool(self.known[key])

    def _says(self, group: Group, plan: Any) -> bool:
        """Whether the entries of a group read back what they write of a single plan."""
        whole = self.dialect.whole
        facts = {**facts_of_plan(plan, self.cluster), **facts_of(self.model)}
        left: Facts = {name: v for name, v in facts.items() if name not in group.fields}
        flags: Flags = {}
        try:
            for entry in group.entries:
                flags |= entry.write(facts, whole)
            for entry in group.entries:
                left |= entry.read(flags, left, whole)
        except (InputError, ZeroDivisionError):
            return False
        meant = {
            name: _typed(left[name], getattr(plan, name)) if name in left else None
            for name in group.fields
        }
        if None in meant.values():
            default = self._completed(plan, group.fields)
            meant = {n: getattr(default, n) if v is None else v for n, v in meant.items()}
        other = replace(plan, **meant)
        return all(alike(name, plan, other, self.model) for name in group.fields)

    def _completed(self, plan: Any, left_out: tuple[str, ...]) -> Any:
        """A plan as it is completed where a line says its sizes and data types, but for the fields
        that it leaves out."""
        stated: dict[str, Any] = {}
        if self.dialect.serving:
            stated |= {"input_len": 1, "output_len": 1, "tp": 1, "pp": 1, "dp": 1}
            stated |= {"precision": plan.weights} if "weights" not in left_out else {}
        else:
            sizes = ("tp", "pp", "dp", "cp", "micro_batch", "seq_len", "global_batch")
            stated |= {n: int(getattr(plan, n)) for n in sizes if n not in left_out}
            stated |= {"precision": plan.precision} if "precision" not in left_out else {}
            stated["recompute"] = "none"
        key = tuple(stated.items())
        if key not in self.known:
            self.known[key] = self._complete({**stated, "framework": self.dialect.framework})
        return self.known[key]

    def _complete(self, fields: dict[str, Any]) -> Any:
        given: dict[str, Any] = {"strict": False, "model": self.model, "cluster": self.cluster}
        if self.dialect.serving:
            spec = parse(ServingPlanSpec, fields, self.dialect.name)
            return complete_serving(spec, self.run, **given).plan
        return complete_training(
            parse(TrainingPlanSpec, fields, self.dialect.name), self.run, **given
        ).plan


def _typed(value: Any, like: Any) -> Any:
    """A value as a plan has it: truths as such, numbers as float."""
    if isinstance(like, str | bool):
        return type(like)(value)
    return float(value)


def _first(batch: Any, names: tuple[str, ...]) -> Any:
    """The first plan of a batch, its numbers plain."""
    return replace(batch, **{name: float(np.ravel(getattr(batch, name))[0]) for name in names})


def _distinct(batch: Any, names: list[str]) -> tuple[list[tuple[float, ...]], Any]:
    """Combinations of some numbers that occur in a batch, and for every plan which it has."""
    columns = [np.broadcast_to(getattr(batch, name), batch.shape).ravel() for name in names]
    first, inverse = distinct_rows(columns or [np.zeros(batch.shape).ravel()])
    return [tuple(float(c[at]) for c in columns) for at in first], inverse

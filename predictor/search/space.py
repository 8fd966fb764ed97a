"""Spaces of training plans: two tables, of numbers and of categories, as columns of plans.

What a user states replaces the values of a table or, as a range, bounds them. Plans that share
their categories are one `Block`: a batch for the functions that predict a single plan.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from predictor.arrays import Array, Index
from predictor.catalog import Assumption, Given, Range, TrainingPlanSpec, parse, read_given
from predictor.errors import InputError
from predictor.hardware import Cluster
from predictor.models import Model
from predictor.plans import CATEGORY_FIELDS, NUMERIC_FIELDS, TrainingPlan
from predictor.records import dataclass, replace
from predictor.search.axes import AXES, Axis, Columns, SearchBasis, extend
from predictor.search.choices import CHOICES, Mask, everywhere, offered_by
from predictor.search.documents import PACKED, document_axes
from predictor.timing import RunParameters
from predictor.training import (
    SEVERAL,
    STEP_CATEGORIES,
    complete_training,
    distinct,
    enforce_reach,
    inner_categories,
)
from predictor.variation import LOAD_KEYS, PACKED_FIELDS, PACKING_KEYS, load_of

APART = ("gpus", PACKED)
"""Columns that are no fields of a plan: they follow from its numbers, or these from them."""


MOST_PLANS = 100_000_000
"""A search holds where each of its plans is, and what is known of those that fit, some 20 bytes
each: more take hours."""

PLACE = np.int32
"""Type of places in a table, which has no more rows than a search may have plans."""

RANKS = ("tp", "cp", "ep", "pp", "dp")
"""Numbers of ranks, of which `training.environment_of` is."""


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """Plans of one set of categories; their numbers are those of a grid that many blocks have in
    common, and are taken from it where they are asked for.

    fixed    the categories, and numbers that do not vary
    group    number of the layers' categories
    base     plans with distinct layers
    table    which numbers those are: groups of one table differ in their categories alone
    inner    of every row of the grid, which of `base` has its layers
    grid     numbers that vary, arrays of one length, as narrow as holds them (`narrow`)
    place    where in the grid each plan is
    """

    fixed: TrainingPlan
    group: int
    base: TrainingPlan
    table: int
    inner: Index
    grid: Columns
    place: Index

    @property
    def pool(self) -> tuple[str, str, str]:
        """What blocks have in common whose plans make one batch for `training.assemble`."""
        return self.fixed.schedule, self.fixed.framework, self.fixed.era

    def __len__(self) -> int:
        return len(self.place)

    def plan(self, chosen: Index | slice) -> TrainingPlan:
        """Some of the plans, as a batch."""
        place = self.place[chosen]
        return _batch(self.fixed, {n: as_float(own[place]) for n, own in self.grid.items()})

    def column(self, name: str, chosen: Index | slice) -> Any:
        """A field of some of the plans: an array where it varies, else one value for all."""
        column = self.grid.get(name)
        if column is None:
            return getattr(self.fixed, name)
        return as_float(column[self.place[chosen]])

    def layers(self, chosen: Index | slice) -> Index:
        """Which of `base` have the layers of some of the plans."""
        return self.inner[self.place[chosen]]


NARROW: tuple[tuple[Any, float], ...] = (
    (np.int16, float(np.iinfo(np.int16).max)), (np.float32, float(np.finfo(np.float32).max)),
)  # fmt: skip
"""Narrow types of columns, and the largest number that each holds."""


def narrow(columns: Columns) -> Columns:
    """Columns as whole numbers of 16 bits, or as floats of 32, where these hold every value."""
    return {name: _narrow(column) for name, column in columns.items()}


def _narrow(column: Array) -> Array:
    size = float(np.max(np.abs(column), initial=0.0))
    for kind, most in NARROW:
        if size <= most:
            small = column.astype(kind)
            if np.array_equal(small, column):
                return np.asarray(small)
    return column


def as_float(column: Array) -> Array:
    """A column that may be narrow, as arithmetic takes it."""
    return np.asarray(column, dtype=float)


def counted(blocks: Sequence[Block], rows: Sequence[Index]) -> TrainingPlan:
    """Plans of blocks of one pool as one batch, with their numbers of ranks alone."""
    fixed = blocks[0].fixed
    numbers: dict[str, Any] = {
        name: np.concatenate(
            [
                np.broadcast_to(block.column(name, chosen), len(chosen))
                for block, chosen in zip(blocks, rows, strict=True)
            ]
        )
        for name in RANKS
    }
    return replace(fixed, **numbers)


def _batch(fixed: TrainingPlan, rows: Columns) -> TrainingPlan:
    """Columns as a batch; accelerators follow from the other numbers."""
    arrays: dict[str, Any] = {name: column for name, column in rows.items() if name not in APART}
    return replace(fixed, **arrays)


@dataclass(frozen=True, slots=True, eq=False)
class Space:
    """All plans of a request.

    setting   model, cluster and what is stated
    choices   categories that may be, and `Choice.sensible` of them
    around    a plan from which the rest is taken, instead of the framework's defaults
    assumed   what was filled in without being searched
    """

    setting: SearchBasis
    choices: tuple[tuple[list[dict[str, Any]], Callable[..., Mask]], ...]
    around: TrainingPlan | None
    assumed: tuple[Assumption, ...]
    run: RunParameters

    def grid(self) -> Columns:
        """Numbers that do not depend on categories."""
        given = self.setting.given
        pairs = itertools.product(given["global_batch"], given["seq_len"])  # type: ignore[arg-type]
        table = np.array(list(pairs), dtype=float)
        rows = {"global_batch": table[:, 0], "seq_len": table[:, 1]}
        for axis in (*AXES, *_stated(given), *_routed(given)):
            if axis.when is None:
                rows, _ = extend(rows, axis, self.setting)
        return rows

    def blocks(self) -> Iterator[Block]:
        """Every plan once, in batches of one set of categories."""
        grid = self.grid()
        able = [self._somewhere(choice, grid) for choice in self.choices]
        inner = [c for c in able if self._reaches_layers(c[0])]
        outer = [c for c in able if not self._reaches_layers(c[0])]
        piped = self._with_pipelines()
        tables: dict[tuple[str, ...], Columns] = {}
        layers: dict[tuple[str, ...], tuple[TrainingPlan, Index]] = {}
        groups: dict[tuple[Any, ...], TrainingPlan] = {}
        inner_of: dict[tuple[Any, ...], Index] = {}
        grids: dict[tuple[str, ...], tuple[Columns, Index]] = {}
        for categories in _combinations(inner):
            fixed = self._fixed(categories)
            axes = self._axes(fixed, inner=True)
            if _names(axes) not in tables:
                tables[_names(axes)] = self._varied(grid, axes)[0]
            whole = tables[_names(axes)]
            there = np.flatnonzero(self._mask(whole, inner, categories))
            if not there.size:
                continue
            # Which plans have distinct layers depends on the order of ranks too.
            key = (*_names(axes), fixed.rank_order)
            if key not in layers:
                layers[key] = distinct(_batch(fixed, whole))
            base, index = layers[key]
            alike = key, _of_layers(fixed, self.setting.model)
            if alike not in groups:
                own = {name: getattr(fixed, name) for name in CATEGORY_FIELDS}
                groups[alike] = replace(base, weight_bytes=fixed.weight_bytes, **own)
            told = list(groups).index(alike), groups[alike], list(layers).index(key)
            rows = _only(whole, there)
            for others in _combinations(outer):
                inside = there[self._mask(rows, outer, others)]
                if not inside.size:
                    continue
                both = replace(fixed, **_merged(others))
                more = self._axes(both, inner=False)
                along = *_names(axes), "|", *_names(more)
                if along not in grids:
                    table, source = self._varied(whole, more)
                    grids[along] = narrow(table), source.astype(PLACE)
                table, source = grids[along]
                chosen = np.zeros(len(index), dtype=bool)
                chosen[inside] = True
                place: Index = np.flatnonzero(chosen[source]).astype(PLACE)
                names = key, _names(more)
                if names not in inner_of:
                    inner_of[names] = index[source].astype(PLACE)
                for one, at in _parted(both, place, table["pp"] > 1, piped):
                    yield Block(one, *told, inner_of[names], table, at)

    def enumerated(self) -> list[Block]:
        """All plans in blocks. Raises InputError where they are more than a search may hold."""
        found, count = [], 0
        for block in self.blocks():
            found.append(block)
            count += len(block)
            if count > MOST_PLANS:
                raise InputError(
                    f"more than {MOST_PLANS:,} plans: state a range of fewer GPUs, or a value of a "
                    "field more (--tp, --schedule, --recompute, ...)"
                )
        return found

    def _somewhere(self, choice: Any, grid: Columns) -> Any:
        """A choice without what is a plan of its own nowhere."""
        values, sensible = choice
        others = [own for own in values[1:] if sensible(self.setting, grid, own).any()]
        return [*values[:1], *others], sensible

    def _reaches_layers(self, values: list[dict[str, Any]]) -> bool:
        """Whether a choice changes anything inside a layer: by its own fields, or by habits of the
        framework that go with them (no graphs under Megatron's FSDP)."""
        if not _fields(values) <= set(STEP_CATEGORIES):
            return True
        made = [self._fixed((entry,)) for entry in values]
        return any(inner_categories(one) != inner_categories(made[0]) for one in made)

    def _with_pipelines(self) -> dict[str, Any]:
        """What of the whole step the framework does otherwise where there is a pipeline."""
        if self.around is not None:
            return {}
        at = self.setting
        alone, piped = (
            template(at.model, at.cluster, at.given, {}, self.run, pp)[0] for pp in (1, 2)
        )
        return {
            name: getattr(piped, name)
            for name in STEP_CATEGORIES
            if getattr(piped, name) != getattr(alone, name)
        }

    def _mask(
        self, rows: Columns, choices: Sequence[Any], chosen: tuple[dict[str, Any], ...]
    ) -> Mask:
        """Rows for which a combination of categories is a plan of its own."""
        mask = np.ones(len(rows["tp"]), dtype=bool)
        for (values, sensible), own in zip(choices, chosen, strict=True):
            if own is not values[0]:
                mask &= sensible(self.setting, rows, own)
        return mask

    def _axes(self, fixed: TrainingPlan, inner: bool) -> list[Axis]:
        """Axes that vary with categories of the layers, or of the rest."""
        return [
            axis
            for axis in (*AXES, *document_axes(self.setting.given))
            if axis.when is not None
            and (axis.when[0] not in STEP_CATEGORIES) == inner
            and getattr(fixed, axis.when[0]) in axis.when[1]
        ]

    def _varied(self, rows: Columns, axes: list[Axis]) -> tuple[Columns, Index]:
        """Rows extended by some axes, and for each the one that it came from."""
        source = np.arange(len(rows["tp"]))
        for axis in axes:
            rows, came = extend(rows, axis, self.setting)
            source = source[came]
        return rows, source

    def _fixed(self, categories: tuple[dict[str, Any], ...]) -> TrainingPlan:
        at, merged = self.setting, _merged(categories)
        if self.around is not None:
            return replace(self.around, dp_shard=np.nan, **merged)
        return template(at.model, at.cluster, at.given, merged, self.run)[0]


def template(
    model: Model,
    cluster: Cluster,
    given: Given,
    categories: Mapping[str, Any],
    run: RunParameters,
    pp: int = 1,
) -> tuple[TrainingPlan, tuple[Assumption, ...]]:
    """A plan of one accelerator, or of a pipeline of `pp`, with the defaults of its framework and
    precision, and what was assumed for it; its numbers are to be replaced."""
    searched = {axis.field for axis in AXES}
    stated = {
        name: values[0]
        for name, values in given.items()
        if name not in searched and not isinstance(values, Range)
    }
    alone = dict.fromkeys(("tp", "cp", "vpp", "micro_batch", "dp", "ep", "etp"), 1) | {"pp": pp}
    fields = {"recompute": "none", "sharding": "none", **stated, **alone, **categories}
    spec = parse(TrainingPlanSpec, fields, "request")
    found = complete_training(spec, run, strict=False, model=model, cluster=cluster)
    if found.single:
        raise InputError(f"{found.single} is of a single plan: ask reckon predict train for it")
    return replace(found.plan, dp_shard=np.nan), found.assumed


def _of_layers(fixed: TrainingPlan, model: Model) -> tuple[Any, ...]:
    """Categories on which layers depend, those aside that say nothing of this model or beside the
    others."""
    known = inner_categories(fixed)
    if not model.mtp_layers:
        del known["mtp"]
    if fixed.recompute not in ("full", "per_op"):
        del known["stops_early"]
    return tuple(known.items())


def _parted(
    fixed: TrainingPlan, place: Index, piped: Mask, changed: Mapping[str, Any]
) -> list[tuple[TrainingPlan, Index]]:
    """Plans at some places of a table, apart where the framework does something else if there is a
    pipeline: those without one, and those with one and what is changed."""
    if not changed:
        return [(fixed, place)]
    there = piped[place]
    both = (fixed, place[~there]), (replace(fixed, **changed), place[there])
    return [(plan, at) for plan, at in both if at.size]


def _names(axes: Sequence[Axis]) -> tuple[str, ...]:
    """What tells the tables of some axes apart: their fields, and with what these vary."""
    return tuple(f"{axis.field} {axis.when}" for axis in axes)


def _fields(entries: list[dict[str, Any]]) -> set[str]:
    """Fields that the entries of a choice set."""
    return {name for entry in entries for name in entry}


def _merged(categories: tuple[dict[str, Any], ...]) -> dict[str, Any]:
    return {name: value for entry in categories for name, value in entry.items()}


def _combinations(choices: Sequence[Any]) -> Iterator[tuple[dict[str, Any], ...]]:
    return itertools.product(*(values for values, _ in choices))


def _only(rows: Columns, chosen: Any) -> Columns:
    return {name: column[chosen] for name, column in rows.items()}


def _stated(given: Given) -> list[Axis]:
    """Axes of numbers that no table has, of which a request states several values."""
    known = {axis.field for axis in AXES} | {"global_batch", "seq_len"}
    return [
        Axis(name, (), lambda at, own=name: [float(v) for v in at.given[own]])
        for name, values in given.items()
        if name in NUMERIC_FIELDS and name not in known and not isinstance(values, Range)
        if len(values) > 1
    ]


def _single(given: Given, names: Sequence[str]) -> dict[str, Any]:
    """Those of some fields that are stated.

    Raises InputError where one has several values.
    """
    stated: dict[str, Any] = {}
    for name in names:
        if name in given:
            values = given[name]
            if isinstance(values, Range) or len(values) > 1:
                raise InputError(f"{name} takes one value in a search")
            stated[name] = values[0]
    return stated


ROUTED = ("tp", "cp", "micro_batch", "seq_len", "ep", "etp")
"""Numbers on which the busiest rank's load depends where loads of experts are stated."""


def _routed(given: Given) -> list[Axis]:
    """The load of each layout's busiest rank, where loads of experts are stated; no plan where
    replicas do not fill its ranks."""
    one = _single(given, LOAD_KEYS)
    if not one:
        return []

    def load(
        at: SearchBasis,
        tp: float,
        cp: float,
        micro_batch: float,
        seq_len: float,
        ep: float,
        etp: float,
    ) -> list[float]:
        if (at.model.num_experts + int(one.get("expert_replicas", 0))) % ep:
            return []
        copies = micro_batch * seq_len / cp / tp * at.model.top_k * etp
        return [float(load_of(one, at.model, ep, copies).value)]

    return [Axis("expert_load", ROUTED, load)]


def _joined(given: Given, cluster: Cluster) -> Given:
    """What is stated, of numbers of accelerators those that a network joins.

    Raises InputError where it joins none of them.
    """
    if (asked := given.get("gpus")) is None:
        return given
    reach = float(cluster.tiers[-1].size)
    enforce_reach(asked.low if isinstance(asked, Range) else min(map(float, asked)), cluster)
    if isinstance(asked, Range):
        return {**given, "gpus": replace(asked, high=min(asked.high, reach))}
    return {**given, "gpus": tuple(one for one in asked if float(one) <= reach)}


def space_of(
    model: Model,
    cluster: Cluster,
    fields: Mapping[str, Any],
    run: RunParameters,
    around: TrainingPlan | None = None,
) -> Space:
    """The space of a request.

    fields   as `read_given` takes them; `global_batch` and `seq_len` are needed, `gpus` is a
             number, a list or a range
    around   a single plan from which everything is taken that is neither searched nor stated

    Raises InputError: a needed field is missing, a value cannot be.
    """
    if dealt := [name for name in SEVERAL if fields.get(name) is not None]:
        raise InputError(f"{dealt[0]} is of a single plan: reckon predict train deals it out")
    given = _joined(read_given(fields), cluster)
    for field in ("seq_len", "global_batch"):
        if field not in given or isinstance(given[field], Range):
            raise InputError(f"give --{field.replace('_', '-')} as a number or a list of numbers")
    if around is None:
        defaults, assumed = template(model, cluster, given, {}, run)
    else:
        defaults, assumed = around, ()
    at = SearchBasis(model, cluster, given, defaults)
    choices = [(offered_by(choice, at), choice.sensible) for choice in CHOICES]
    offered = {name for values, _ in choices for name in _fields(values)}
    numbers = {axis.field for axis in AXES} | {"global_batch", "seq_len", *PACKING_KEYS}
    for name, values in given.items():
        if isinstance(values, Range) or name in offered or name in numbers or len(values) < 2:
            continue
        if name in NUMERIC_FIELDS:
            continue
        if name not in TrainingPlan.__dataclass_fields__:
            raise InputError(f"{name} takes one value in a search, not {len(values)}")
        choices.append(([{name: value} for value in values], everywhere))
    told = offered | numbers | {"gpus", "dp", *PACKED_FIELDS}
    kept = tuple(a for a in assumed if a.field not in told)
    return Space(at, tuple(choices), around, kept, run)

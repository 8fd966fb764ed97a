"""Spaces of training plans: the values that each field may take, as two tables, and the plans as
columns of numbers.

Numeric fields are `AXES`, each a function of the fields before it; categorical ones are `CHOICES`.
What a user states replaces the values of a table or, as a range, bounds them. Plans that share
their categories are one `Block`: a batch for the functions that predict a single plan.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from predictor.complete import Assumption, complete_training, scale_up
from predictor.efficiency import RunParameters
from predictor.errors import InputError
from predictor.hardware import Array, Cluster
from predictor.model import Model
from predictor.parts import STEP_CATEGORIES, distinct
from predictor.plan import CP_KINDS, NUMERIC_FIELDS, RANK_ORDERS, TrainingPlan
from predictor.schedules import SCHEDULES, V
from predictor.specs import Spec, TrainingPlanSpec, parse

Columns = dict[str, Array]
Index = npt.NDArray[np.intp]

LEAST_TOKENS = 2048
"""A rank keeps at least so many tokens of a sequence that context parallelism splits: with fewer,
attention has no block to hide the exchange behind."""

UNEVEN = 1.25
"""The fullest stage may hold so many times the layers of the mean one."""

SHARES = (0.25, 0.5, 0.75, 1.0)
"""Of the layers that full recomputation covers."""

MOST_GPUS = 65536
"""Where neither a number nor a range is stated."""


@dataclass(frozen=True, slots=True)
class Range:
    """Values of a field from `low` to `high`; every `step`-th where that is stated."""

    low: float
    high: float
    step: float | None = None


Given = Mapping[str, tuple[Any, ...] | Range]
"""What a request states: the values of a field, or their range."""


@dataclass(frozen=True, slots=True, eq=False)
class Setting:
    """What the tables read: model, cluster, what the request states; and the defaults of its
    framework and precision, a plan of one accelerator."""

    model: Model
    cluster: Cluster
    given: Given
    defaults: TrainingPlan


def _divisors(number: float) -> list[float]:
    whole = int(number)
    if whole != number or whole < 1:
        return [1.0]
    small = [d for d in range(1, int(whole**0.5) + 1) if whole % d == 0]
    return sorted({float(d) for d in small} | {float(whole // d) for d in small})


def gpu_counts(low: float, high: float, node: int, step: float | None = None) -> list[float]:
    """Numbers of accelerators from `low` to `high`: every `step`-th; else `low`, `high`, and
    between them whole nodes that double or grow by half."""
    if step:
        return [float(n) for n in np.arange(low, high + 1, step)]
    powers = (2.0**i * half for i in range(30) for half in (1.0, 1.5))
    found = {node * nodes for nodes in powers if nodes >= 1 and nodes == int(nodes)}
    return sorted({low, high} | {n for n in found if low <= n <= high})


def _gpus(at: Setting) -> list[float]:
    node = at.cluster.accelerators_per_node
    limit = min(float(at.cluster.tiers[-1].size), float(MOST_GPUS))
    span = at.given.get("gpus")
    if isinstance(span, Range):
        return gpu_counts(span.low, span.high, node, span.step)
    return gpu_counts(min(node, limit), limit, node)


def _cp(at: Setting, gpus: float, seq_len: float) -> list[float]:
    found = [d for d in _divisors(gpus) if seq_len % (2 * d) == 0 and seq_len / d >= LEAST_TOKENS]
    return found or [1.0]


def _tp(at: Setting, gpus: float, cp: float) -> list[float]:
    return [d for d in _divisors(gpus / cp) if at.model.heads % d == 0] or [1.0]


def _pp(at: Setting, gpus: float, cp: float, tp: float) -> list[float]:
    layers = at.model.layers
    return [d for d in _divisors(gpus / (cp * tp)) if -(-layers // d) * d <= UNEVEN * layers] or [
        1.0
    ]


def _micro_batch(at: Setting, global_batch: float, dp: float) -> list[float]:
    return _divisors(global_batch / dp) if dp >= 1 else [1.0]


def _vpp(at: Setting, pp: float, global_batch: float, dp: float, micro_batch: float) -> list[float]:
    """Virtual stages that divide the layers (or the layers and the ends that count as such), in
    pipelines whose micro-batches fill whole groups of stages (Megatron-LM's condition)."""
    layers, m = at.model.layers, global_batch / (dp * micro_batch)
    if pp == 1 or m % pp:
        return [1.0]
    most = int(layers // pp)
    return [1.0] + [
        float(v)
        for v in range(2, most + 1)
        if any((layers + slots) % (pp * v) == 0 for slots in (0, 2, 3))
    ]


def _ep(at: Setting, tp: float, cp: float, dp: float) -> list[float]:
    if not at.model.is_moe:
        return [1.0]
    ranks = tp * cp * dp
    return [d for d in _divisors(at.model.num_experts) if ranks % d == 0]


def _etp(at: Setting, tp: float, cp: float, dp: float, ep: float) -> list[float]:
    whole = at.model.is_moe and tp > 1 and (tp * cp * dp) % (ep * tp) == 0
    return [1.0, tp] if whole else [1.0]


def _sequence_parallel(at: Setting, tp: float) -> list[float]:
    return [0.0, 1.0] if tp > 1 else [0.0]


def _recompute_share(at: Setting) -> list[float]:
    return list(SHARES)


def _dp_shard(at: Setting, tp: float, cp: float, dp: float) -> list[float]:
    """Shards of a node at least: inside it, gathering from more ranks costs no more."""
    node = scale_up(at.cluster)
    return [d for d in _divisors(dp) if 1 < d < dp and d * tp * cp >= node] or [dp]


@dataclass(frozen=True, slots=True)
class Axis:
    """A numeric field of a plan and the values that it takes.

    needs   fields whose values `values` reads, after the setting
    when    categories with which it varies; else it stays as it is
    """

    field: str
    needs: tuple[str, ...]
    values: Callable[..., list[float]]
    when: tuple[str, str] | None = None


AXES: tuple[Axis, ...] = (
    Axis("gpus", (), _gpus),
    Axis("cp", ("gpus", "seq_len"), _cp),
    Axis("tp", ("gpus", "cp"), _tp),
    Axis("pp", ("gpus", "cp", "tp"), _pp),
    Axis("dp", ("gpus", "cp", "tp", "pp"), lambda at, gpus, cp, tp, pp: [gpus / (cp * tp * pp)]),
    Axis("micro_batch", ("global_batch", "dp"), _micro_batch),
    Axis("vpp", ("pp", "global_batch", "dp", "micro_batch"), _vpp),
    Axis("ep", ("tp", "cp", "dp"), _ep),
    Axis("etp", ("tp", "cp", "dp", "ep"), _etp),
    Axis("sequence_parallel", ("tp",), _sequence_parallel),
    Axis("recompute_share", (), _recompute_share, ("recompute", "full")),
    Axis("dp_shard", ("tp", "cp", "dp"), _dp_shard, ("sharding", "hsdp")),
)
"""Numeric fields in the order in which they are chosen."""

DERIVED = ("dp",)
"""Axes that others decide: what a request states of them is a condition."""


Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Choice:
    """Categories that are chosen together.

    values    setting -> what they may be; the first one holds for every plan
    sensible  (setting, columns, one of the others) -> mask of the plans for which it is possible
              and not the same plan, or a worse one, under another name
    """

    values: Callable[[Setting], list[dict[str, Any]]]
    sensible: Callable[[Setting, Columns, dict[str, Any]], Mask]


def _recomputes(at: Setting) -> list[dict[str, Any]]:
    """Nothing; the parts whose activations weigh most for what they cost to repeat; whole layers.
    The attention core is kept by fused kernels only as its input and output."""
    model = at.model
    unfused = "unfused" in (at.defaults.attention, *at.given.get("attention", ()))  # type: ignore[misc]
    parts = [("core_attn", unfused), ("mla_up_proj", model.is_latent), ("layernorm", True)]
    parts += [("mlp", not model.is_moe), ("moe", model.is_moe)]
    some = [{"recompute": "selective", "recompute_modules": p} for p, there in parts if there]
    whole = [{"recompute": name} for name in ("per_op", "full")]
    return [{"recompute": "none"}, *some, *whole]


def _each(field: str, names: Sequence[str]) -> Callable[[Setting], list[dict[str, Any]]]:
    return lambda at: [{field: name} for name in names]


def _everywhere(at: Setting, rows: Columns, entry: dict[str, Any]) -> Mask:
    return np.ones(rows["tp"].shape, dtype=bool)


def _split_sequences(at: Setting, rows: Columns, entry: dict[str, Any]) -> Mask:
    """Ulysses exchanges whole heads."""
    whole = at.model.heads % (rows["cp"] * rows["tp"]) == 0
    return np.asarray((rows["cp"] > 1) & ((entry["cp_kind"] != "ulysses") | whole))


def _both_dimensions(at: Setting, rows: Columns, entry: dict[str, Any]) -> Mask:
    """Which of two dimensions lies closer matters where ranks of either share a domain."""
    domain = max((t.size for t in at.cluster.tiers if np.isfinite(t.size)), default=1.0)
    near = rows["tp"] * rows["cp"] < domain
    return np.asarray((rows["dp"] > 1) & (rows["pp"] > 1) & near)


def _sharded(at: Setting, rows: Columns, entry: dict[str, Any]) -> Mask:
    """ZeRO-2 reduces gradients after every micro-batch, for which pipelines have many; groups of
    shards smaller than the whole need more replicas than one node has."""
    replicated = rows["dp"] * rows["cp"] > 1
    if entry["sharding"] == "zero2":
        return np.asarray(replicated & (rows["pp"] == 1))
    if entry["sharding"] == "hsdp":
        return np.asarray(rows["dp"] * rows["cp"] * rows["tp"] > scale_up(at.cluster))
    return np.asarray(replicated)


def _overlaps(at: Setting) -> list[dict[str, Any]]:
    """Where the framework hides tensor-parallel collectives: with and without that."""
    names = (False, True) if at.defaults.tp_overlap else (False,)
    return [{"tp_overlap": name} for name in names]


def _inside(at: Setting, rows: Columns, entry: dict[str, Any]) -> Mask:
    """Products and collectives are cut into pieces that overlap only inside a node (Transformer
    Engine's user buffers)."""
    return np.asarray((rows["tp"] > 1) & (rows["tp"] <= scale_up(at.cluster)))


WORSE = ("gpipe",)
"""Schedules that hold more than 1F1B and are no faster; searched only where asked for."""

PAIRED = ("dualpipe", "dualpipev")
"""Schedules in which forward and backward chunks run together."""


def _schedules(at: Setting) -> list[dict[str, Any]]:
    """All but those that are worse than 1F1B. DualPipe runs a forward and a backward chunk
    together, so that one hides the exchanges of the other."""
    names = [name for name in SCHEDULES if name not in WORSE]
    if not at.model.is_moe or "ep_overlap" in at.given:
        return [{"schedule": name} for name in names]
    usual = at.defaults.ep_overlap
    return [{"schedule": name, "ep_overlap": usual or name in PAIRED} for name in names]


def _piped(at: Setting, rows: Columns, entry: dict[str, Any]) -> Mask:
    """Pipelines that fold have two stages on a device; others have one, or take turns."""
    schedule = SCHEDULES[entry["schedule"]]
    own = rows["vpp"] == 2 if schedule.fold == V else schedule.chunks | (rows["vpp"] == 1)
    m = rows["global_batch"] / (rows["dp"] * rows["micro_batch"])
    return np.asarray((rows["pp"] > 1) & own & (m >= schedule.least * rows["pp"]))


CHOICES: tuple[Choice, ...] = (
    Choice(_recomputes, _everywhere),
    Choice(_each("cp_kind", CP_KINDS), _split_sequences),
    Choice(_each("rank_order", RANK_ORDERS), _both_dimensions),
    Choice(_overlaps, _inside),
    Choice(_each("sharding", ("none", "zero1", "zero2", "fsdp", "hsdp")), _sharded),
    Choice(_schedules, _piped),
)
"""Categories that a search tries. The others (precision, attention, overlaps, ...) follow from the
framework's defaults, unless a request lists several values."""


def read_given(
    fields: Mapping[str, Any],
    where: str = "request",
    form: type[Spec] = TrainingPlanSpec,
    numbers: Sequence[str] = (*NUMERIC_FIELDS, "gpus"),
) -> dict[str, Any]:
    """Values that a request states, checked: field -> tuple of values, or a range.

    fields   keys of a plan with a value, a list, a text with commas, or 'LOW..HIGH' or
             'LOW..HIGH:STEP'
    form     of the plan
    numbers  fields that may be ranges

    Raises InputError for unknown keys and values that cannot be.
    """
    found: dict[str, Any] = {}
    for name, value in fields.items():
        if value is None:
            continue
        if isinstance(value, str) and ".." in value:
            found[name] = _range(name, value, where, numbers)
            continue
        commas = isinstance(value, str) and "," in value and name != "recompute_modules"
        values = value.split(",") if isinstance(value, str) and commas else value
        if not isinstance(values, list | tuple):
            values = [values]
        if not values:
            raise InputError(f"{where}: {name}: the list is empty")
        checked = []
        for one in values:
            text = one.strip() if isinstance(one, str) else one
            spec = parse(form, {name: text}, where)
            checked.append(getattr(spec, name))
        found[name] = tuple(dict.fromkeys(checked)) if _hashable(checked) else tuple(checked)
    return found


def _hashable(values: list[Any]) -> bool:
    return not any(isinstance(value, dict) for value in values)


def _range(name: str, text: str, where: str, numbers: Sequence[str]) -> Range:
    ends, _, step = text.partition(":")
    low, _, high = ends.partition("..")
    if name not in numbers:
        raise InputError(f"{where}: {name}: a range {text!r} needs a field that is a number")
    try:
        found = Range(float(low), float(high), float(step) if step else None)
    except ValueError:
        raise InputError(f"{where}: {name}: {text!r} is not LOW..HIGH or LOW..HIGH:STEP") from None
    if not 1 <= found.low <= found.high or (found.step is not None and found.step <= 0):
        raise InputError(f"{where}: {name}: {text!r} has no value of at least 1")
    return found


def extend(rows: Columns, axis: Axis, at: Setting) -> tuple[Columns, Index]:
    """Every row once for each value of an axis; and for each new row the one that it came from."""
    count = len(next(iter(rows.values())))
    if axis.needs:
        keys = np.stack([rows[name] for name in axis.needs], axis=1)
        unique, inverse = np.unique(keys, axis=0, return_inverse=True)
        inverse = inverse.reshape(count)
    else:
        unique, inverse = np.zeros((1, 0)), np.zeros(count, dtype=np.intp)
    lists = [np.asarray(_values(axis, at, tuple(map(float, key)))) for key in unique]
    sizes = np.array([len(values) for values in lists])
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    each = sizes[inverse]
    source = np.repeat(np.arange(count), each)
    within = np.arange(len(source)) - np.repeat(np.cumsum(each) - each, each)
    chosen = np.concatenate(lists)[starts[inverse][source] + within]
    return {**{name: column[source] for name, column in rows.items()}, axis.field: chosen}, source


def _values(axis: Axis, at: Setting, key: tuple[float, ...]) -> list[float]:
    """Values of an axis: those stated, or those of the table, within the range stated."""
    given = None if axis.field in DERIVED else at.given.get(axis.field)
    if given is not None and not isinstance(given, Range):
        return [float(value) for value in given]
    values = axis.values(at, *key)
    if given is None or axis.field == "gpus":
        return values
    if given.step:
        return [float(v) for v in np.arange(given.low, given.high + 1, given.step)]
    inside = [value for value in values if given.low <= value <= given.high]
    return inside or [given.low]


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """Plans of one set of categories.

    fixed    the categories, and numbers that do not vary
    rows     numbers that do, arrays of one length
    layers   number of the layers' categories, and for every plan the index of its layers in `base`
    base     plans with distinct layers
    """

    fixed: TrainingPlan
    rows: Columns
    group: int
    index: Index
    base: TrainingPlan

    def __len__(self) -> int:
        return len(self.index)

    def plan(self, chosen: Index | slice) -> TrainingPlan:
        """Some of the plans, as a batch."""
        return _batch(self.fixed, _only(self.rows, chosen))


def _batch(fixed: TrainingPlan, rows: Columns) -> TrainingPlan:
    """Columns as a batch; accelerators follow from the other numbers."""
    arrays: dict[str, Any] = {name: column for name, column in rows.items() if name != "gpus"}
    return replace(fixed, **arrays)


def _offered(choice: Choice, at: Setting) -> list[dict[str, Any]]:
    """What a choice offers, as far as it agrees with what is stated; and what is stated beyond
    it."""
    table = choice.values(at)
    names = list(dict.fromkeys(name for entry in table for name in entry))
    stated = {name: at.given[name] for name in names if name in at.given}
    if not stated:
        return table
    if "recompute_modules" in stated and "recompute" not in stated:
        stated = {"recompute": ("selective",), **stated}
    agreeing = [
        entry
        for entry in table
        if all(entry.get(name) in values for name, values in stated.items())  # type: ignore[operator]
    ]
    listed = [
        dict(zip(stated, values, strict=True))
        for values in itertools.product(*stated.values())  # type: ignore[arg-type]
    ]
    missing = [one for one in listed if not any(one.items() <= entry.items() for entry in agreeing)]
    return agreeing + missing


@dataclass(frozen=True, slots=True, eq=False)
class Space:
    """All plans of a request.

    setting   model, cluster and what is stated
    choices   categories that may be, and `Choice.sensible` of them
    around    a plan from which the rest is taken, instead of the framework's defaults
    assumed   what was filled in without being searched
    """

    setting: Setting
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
        for axis in (*AXES, *_stated(given)):
            if axis.when is None:
                rows, _ = extend(rows, axis, self.setting)
        return rows

    def blocks(self) -> Iterator[Block]:
        """Every plan once, in batches of one set of categories."""
        grid = self.grid()
        inner = [c for c in self.choices if not _fields(c[0]) <= set(STEP_CATEGORIES)]
        outer = [c for c in self.choices if _fields(c[0]) <= set(STEP_CATEGORIES)]
        for number, categories in enumerate(_combinations(inner)):
            rows = _only(grid, self._mask(grid, inner, categories))
            if not len(rows["tp"]):
                continue
            fixed = self._fixed(categories)
            rows, _ = self._varied(rows, fixed, inner=True)
            base, index = distinct(_batch(fixed, rows))
            for others in _combinations(outer):
                there = np.flatnonzero(self._mask(rows, outer, others))
                if not there.size:
                    continue
                whole = replace(fixed, **_merged(others))
                varied, source = self._varied(_only(rows, there), whole, inner=False)
                yield Block(whole, varied, number, index[there][source], base)

    def _mask(
        self, rows: Columns, choices: Sequence[Any], chosen: tuple[dict[str, Any], ...]
    ) -> Mask:
        """Rows for which a combination of categories is a plan of its own."""
        mask = np.ones(len(rows["tp"]), dtype=bool)
        for (values, sensible), own in zip(choices, chosen, strict=True):
            if own is not values[0]:
                mask &= sensible(self.setting, rows, own)
        return mask

    def _varied(self, rows: Columns, fixed: TrainingPlan, inner: bool) -> tuple[Columns, Index]:
        """Rows with the axes that belong to categories of the layers, or of the rest."""
        source = np.arange(len(rows["tp"]))
        for axis in AXES:
            if axis.when is None or (axis.when[0] in STEP_CATEGORIES) == inner:
                continue
            if getattr(fixed, axis.when[0]) == axis.when[1]:
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
) -> tuple[TrainingPlan, tuple[Assumption, ...]]:
    """A plan of one accelerator with the defaults of its framework and precision, and what was
    assumed for it; its numbers are to be replaced."""
    searched = {axis.field for axis in AXES}
    stated = {
        name: values[0]
        for name, values in given.items()
        if name not in searched and not isinstance(values, Range)
    }
    alone = dict.fromkeys(("tp", "pp", "cp", "vpp", "micro_batch", "dp", "ep", "etp"), 1)
    fields = {"recompute": "none", "sharding": "none", **stated, **alone, **categories}
    spec = parse(TrainingPlanSpec, fields, "request")
    found = complete_training(spec, run, strict=False, model=model, cluster=cluster)
    return replace(found.plan, dp_shard=np.nan), found.assumed


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
    given = read_given(fields)
    for field in ("seq_len", "global_batch"):
        if field not in given or isinstance(given[field], Range):
            raise InputError(f"give --{field.replace('_', '-')} as a number or a list of numbers")
    if around is None:
        defaults, assumed = template(model, cluster, given, {}, run)
    else:
        defaults, assumed = around, ()
    at = Setting(model, cluster, given, defaults)
    choices = [(_offered(choice, at), choice.sensible) for choice in CHOICES]
    offered = {name for values, _ in choices for name in _fields(values)}
    numbers = {axis.field for axis in AXES} | {"global_batch", "seq_len"}
    for name, values in given.items():
        if isinstance(values, Range) or name in offered or name in numbers or len(values) < 2:
            continue
        if name in NUMERIC_FIELDS:
            continue
        if name not in TrainingPlan.__dataclass_fields__:
            raise InputError(f"{name} takes one value in a search, not {len(values)}")
        choices.append(([{name: value} for value in values], _everywhere))
    kept = tuple(a for a in assumed if a.field not in offered | numbers | {"gpus", "dp"})
    return Space(at, tuple(choices), around, kept, run)

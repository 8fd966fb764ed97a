"""Searches a space of training plans through the very functions that predict a single one.

Laws first, then memory, then a bound on the time; only what may still matter is timed. Nothing is
lost by the bound: a plan goes untimed only where it cannot be among the plans that are kept, nor on
the Pareto front, nor the best with any of its values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from predictor.complete import Assumption, scale_up
from predictor.efficiency import Calibration
from predictor.errors import InputError
from predictor.hardware import Array, Cluster
from predictor.kernels import Timing
from predictor.memory import memory
from predictor.model import Model
from predictor.parts import (
    COLLECTIVE_CATEGORIES,
    STEP_CATEGORIES,
    LayerParts,
    layer_parts,
    parts,
)
from predictor.plan import CATEGORY_FIELDS, NUMERIC_FIELDS, Rule, TrainingPlan, rules
from predictor.space import AXES, Block, Index, Range, Space, space_of
from predictor.step import assemble, stretched
from predictor.training import environment_of, interval
from predictor.units import GIB

MEMORY_FRACTION = 0.95
"""Share of a device's memory that a plan may take unless stated: peaks are predicted within a few
per cent, and a plan at the brim runs out of memory half of the time."""

CHUNK = 50_000
"""Plans that are evaluated together: some 0.3 GB of arrays."""

FIRST, LEADING = 512, 32
"""Most promising plans of a block, and most promising blocks: timed before anything is dropped by
the bound."""

OBJECTIVES = {"time": 0.0, "cost": 1.0}
"""Plans are ranked by step time x accelerators to this power: the fastest, or the cheapest."""

DAY, HOUR = 86400.0, 3600.0


@dataclass(frozen=True, slots=True)
class Limits:
    """Conditions on a plan beyond its own fields; None: none.

    memory_fraction  of the device's memory
    tp_in_node       tensor and expert-tensor parallelism stay inside the innermost network
    tokens           to train on
    days, money      to train on them at most; money in the unit of `price`
    price            of one accelerator for an hour
    """

    memory_fraction: float = MEMORY_FRACTION
    tp_in_node: bool = False
    tokens: float | None = None
    days: float | None = None
    money: float | None = None
    price: float | None = None

    def __post_init__(self) -> None:
        if not 0 < self.memory_fraction <= 1:
            raise InputError(f"memory_fraction {self.memory_fraction:g} is not between 0 and 1")
        for name in ("tokens", "days", "money", "price"):
            value = getattr(self, name)
            if value is not None and not 0 < value < np.inf:
                raise InputError(f"{name} {value:g} must be above 0")
        for name, needed in (("days", ("tokens",)), ("money", ("tokens", "price"))):
            if getattr(self, name) is not None:
                for other in needed:
                    if getattr(self, other) is None:
                        flag = {"price": "price-per-gpu-hour"}.get(other, other)
                        raise InputError(f"a budget in {name} needs --{flag}")


@dataclass(frozen=True, slots=True)
class Counts:
    """Plans of a space: in all; that obey every law and condition; that fit the memory; that were
    timed, because the bound could not rule them out."""

    enumerated: int
    possible: int
    fitting: int
    timed: int


@dataclass(frozen=True, slots=True, eq=False)
class SearchResult:
    """Plans that were timed, best first; arrays of one length.

    step_time   [s]
    sigma       log-standard-deviation of it
    memory      peak of the fullest device [bytes]
    gpus        accelerators
    score       by which they are ranked
    frontier    positions of the plans that no other beats in step time, memory and accelerators
    assumed     what was filled in, not searched
    """

    model: Model
    cluster: Cluster
    calibration: Calibration
    limits: Limits
    objective: str
    counts: Counts
    step_time: Array
    sigma: Array
    memory: Array
    gpus: Array
    score: Array
    frontier: Index
    assumed: tuple[Assumption, ...]
    keep: int
    blocks: list[Block] = field(repr=False)
    block: Index = field(repr=False)
    row: Index = field(repr=False)

    def __len__(self) -> int:
        return len(self.step_time)

    def plan(self, position: int) -> TrainingPlan:
        """One plan of the ranking."""
        batch = self.blocks[self.block[position]].plan(self.row[position : position + 1])
        return single(batch)

    def weight(self, position: int) -> float:
        """What the step time of a plan is multiplied by to rank it."""
        return float(self.gpus[position] ** OBJECTIVES[self.objective])

    def mapping(self, position: int) -> dict[str, Any]:
        """One plan as a mapping of its fields."""
        return mapping(self.plan(position))

    @property
    def plans(self) -> list[dict[str, Any]]:
        """The best plans, `keep` of them, as mappings of their fields."""
        return [self.mapping(position) for position in range(min(self.keep, len(self)))]

    def column(self, name: str) -> npt.NDArray[Any]:
        """A field of every plan, in the order of the ranking."""
        found: list[Any] = [None] * len(self.blocks)
        for number, block in enumerate(self.blocks):
            value = block.rows.get(name)
            found[number] = getattr(block.fixed, name, None) if value is None else value
        text = isinstance(found[0], str | bool)
        result = np.empty(len(self), dtype=object if text else float)
        for number in np.unique(self.block):
            own = self.block == number
            value = found[number]
            result[own] = value[self.row[own]] if isinstance(value, np.ndarray) else value
        return result

    def training_days(self) -> Array | None:
        """Days to train on the tokens of `limits`, of every plan; None without them."""
        if self.limits.tokens is None:
            return None
        steps = self.limits.tokens / (self.column("global_batch") * self.column("seq_len"))
        return np.asarray(steps * self.step_time / DAY)

    def cost(self) -> Array | None:
        """Money to train on them; None without tokens or a price."""
        days = self.training_days()
        if days is None or self.limits.price is None:
            return None
        return np.asarray(days * DAY / HOUR * self.gpus * self.limits.price)


def single(batch: TrainingPlan) -> TrainingPlan:
    """The only plan of a batch of one, its numbers plain."""
    numbers = {name: float(np.ravel(getattr(batch, name))[0]) for name in NUMERIC_FIELDS}
    return replace(batch, **numbers)  # type: ignore[arg-type]


def mapping(plan: TrainingPlan) -> dict[str, Any]:
    """A single plan as a mapping of `TrainingPlan` fields; whole numbers as integers."""
    found: dict[str, Any] = {}
    for name in NUMERIC_FIELDS:
        value = float(getattr(plan, name))
        if not np.isnan(value):
            found[name] = int(value) if value == int(value) else value
    return {**found, **{name: getattr(plan, name) for name in CATEGORY_FIELDS}}


def search_train(
    model: Model,
    cluster: Cluster,
    fields: Mapping[str, Any],
    calibration: Calibration,
    limits: Limits | None = None,
    objective: str = "time",
    keep: int = 100,
    prune: bool = True,
    around: TrainingPlan | None = None,
) -> SearchResult:
    """Find the best plans of a space.

    fields     keys of a training plan: values, lists or ranges (`space.read_given`); `gpus`,
               `global_batch` and `seq_len` in any case
    limits     conditions; the default ones if None
    objective  'time' or 'cost'
    keep       how many of the best plans are certain to be timed
    prune      leave out what the bound rules out; else every plan that fits is timed
    around     a single plan from which everything is taken that is neither searched nor stated

    Raises InputError: a value cannot be; conditions that exclude each other, named; nothing fits,
    with the least memory that would.
    """
    limits = limits or Limits()
    if objective not in OBJECTIVES:
        raise InputError(f"objective {objective!r} is not one of {', '.join(OBJECTIVES)}")
    space = space_of(model, cluster, fields, calibration.run, around)
    found = _Search(space, calibration, limits, objective, keep)
    found.narrow()
    return found.time(prune)


class _Search:
    """One search on its way: blocks, and of each the rows that are left."""

    def __init__(
        self, space: Space, calibration: Calibration, limits: Limits, objective: str, keep: int
    ) -> None:
        self.space, self.calibration, self.limits = space, calibration, limits
        self.objective, self.power, self.keep = objective, OBJECTIVES[objective], keep
        self.model, self.cluster = space.setting.model, space.setting.cluster
        self.blocks = list(space.blocks())
        self.enumerated = sum(len(block) for block in self.blocks)
        self.possible = 0
        self.rows: list[Index] = []
        self.peak: list[Array] = []

    def narrow(self) -> None:
        """Keep the rows that obey the laws and conditions, and of those the ones that fit."""
        capacity = float(self.cluster.accelerator.memory)
        allowed = self.limits.memory_fraction * capacity
        conflict = Conflict()
        least, where = np.inf, (0, 0)
        for number, block in enumerate(self.blocks):
            lawful: list[Index] = []
            for part in _chunks(np.arange(len(block))):
                plan = block.plan(part)
                laws = [*self._conditions(plan, block, part), *rules(plan, self.model)]
                broken = np.zeros(len(part), dtype=bool)
                for law in laws:
                    broken |= np.asarray(law.broken, dtype=bool)
                lawful.append(part[~broken])
                if not self.possible and broken.all():
                    conflict.note(laws, plan)
                self.possible += len(lawful[-1])
            kept, peaks = [], []
            for part in lawful:
                if not part.size:
                    continue
                peak = memory(self.model, block.plan(part), self.calibration.run).peak
                low = int(np.argmin(peak))
                if peak[low] < least:
                    least, where = float(peak[low]), (number, int(part[low]))
                fits = peak <= allowed
                kept.append(part[fits])
                peaks.append(peak[fits])
            self.rows.append(np.concatenate([np.empty(0, np.intp), *kept]))
            self.peak.append(np.concatenate([np.empty(0), *peaks]))
        if not self.possible:
            raise InputError(conflict.message())
        if not any(rows.size for rows in self.rows):
            best = single(self.blocks[where[0]].plan(np.array([where[1]])))
            share = (
                ""
                if self.limits.memory_fraction == 1
                else (f" ({self.limits.memory_fraction:.0%} of {capacity / GIB:.1f})")
            )
            name = self.cluster.accelerator.name
            raise InputError(
                f"no plan fits the {allowed / GIB:.1f} GiB{share} of {name}: the least that would "
                f"is {least / GIB:.1f} GiB per GPU, with {brief(best)}"
            )

    def _conditions(self, plan: TrainingPlan, block: Block, part: Index) -> list[Rule]:
        """What the request asks beyond the laws."""
        given, count = self.space.setting.given, len(part)
        every = np.zeros(count, dtype=bool)
        gpus = _gpus(block, part)
        ranks = plan.tp * plan.pp * plan.cp
        found = [
            Rule(
                every | (gpus % ranks != 0),
                "tp {tp} x pp {pp} x cp {cp} does not divide the GPUs stated",
                ("tp", "pp", "cp"),
            )
        ]
        if (dp := given.get("dp")) is not None:
            value = np.broadcast_to(plan.dp, (count,))
            outside: Any
            if isinstance(dp, Range):
                outside, what = (value < dp.low) | (value > dp.high), f"{dp.low:g}..{dp.high:g}"
            else:
                outside, what = ~np.isin(value, dp), ", ".join(f"{v:g}" for v in dp)
            text = f"gpus / (tp x pp x cp) = {{dp}} is not the dp stated, {what}"
            found.append(Rule(outside, text, ("dp",)))
        if self.limits.tp_in_node:
            node = scale_up(self.cluster)
            for name in ("tp", "etp"):
                found.append(
                    Rule(
                        every | (getattr(plan, name) > node),
                        f"{name} {{{name}}} leaves the node of {node}, inside which it is to stay",
                        (name,),
                    )
                )
        return found

    def time(self, prune: bool) -> SearchResult:
        """Time what is left, most promising blocks and plans first."""
        layers: dict[int, tuple[LayerParts, Index, Array]] = {}
        used: dict[tuple[Any, ...], Index] = {}
        kernels: dict[tuple[Any, ...], Timing] = {}
        for block, rows in zip(self.blocks, self.rows, strict=True):
            key = _kernels(block)
            own = np.unique(block.index[rows])
            used[key] = np.union1d(used.get(key, own), own)
        bounds: list[Array] = []
        for block, rows in zip(self.blocks, self.rows, strict=True):
            key = _kernels(block)
            if block.group not in layers and rows.size:
                found = self._layers(block, used[key], kernels.get(key))
                layers[block.group] = found
                kernels[key] = found[0].listed.timing
            bounds.append(self._bound(block, rows, layers) if rows.size else np.empty(0))
        state = _Found(self.keep, self.power, self.blocks)
        order = sorted(
            (number for number, rows in enumerate(self.rows) if rows.size),
            key=lambda number: float(bounds[number].min()),
        )
        rest: dict[int, Index] = {}
        for number in order[:LEADING]:
            ascending = np.argsort(bounds[number], kind="stable")
            rest[number] = ascending[FIRST:]
            self._evaluate(number, ascending[:FIRST], layers, state)
        for number in order:
            left = rest.get(number, np.arange(self.rows[number].size))
            if prune:
                state.settle()
                gpus = _gpus(self.blocks[number], self.rows[number][left])
                rows = self.rows[number][left]
                columns = bounds[number][left], self.peak[number][left], gpus
                left = left[state.matters(number, rows, *columns)]
            for part in _chunks(left):
                self._evaluate(number, part, layers, state)
        return self._result(state)

    def _layers(
        self, block: Block, used: Index, timing: Timing | None = None
    ) -> tuple[LayerParts, Index, Array]:
        """Layers of a group of blocks, timed; their place by the index of the block; and the time
        of the mean layer's kernels, forward and backward [s]."""
        base = block.base.take(used)
        found = layer_parts(self.model, self.cluster, base, self.calibration, timing)
        place = np.zeros(block.base.shape[0], dtype=np.intp)
        place[used] = np.arange(len(used))
        share = {
            "layer": 1.0,
            "dense": self.model.dense_share or float(not self.model.is_moe),
            "moe": self.model.moe_share,
        }
        factors = self.calibration.run.factors
        layer: Array = np.zeros(len(used))
        for (module, _, own), time in found.work.items():
            layer = layer + share.get(module, 0.0) * stretched(factors, own) * time
        return found, place, layer

    def _bound(
        self, block: Block, rows: Index, layers: dict[int, tuple[LayerParts, Index, Array]]
    ) -> Array:
        """Least time of a step [s]: the slowest stage is no faster than the mean one, and runs
        the kernels of its layers for every micro-batch."""
        _, place, layer = layers[block.group]
        plan = block.plan(rows)
        using = environment_of(self.cluster, plan, self.calibration.run)
        own = layer[place[block.index[rows]]]
        return np.asarray(using.factor * plan.micro_batches * own * (self.model.layers / plan.pp))

    def _evaluate(
        self,
        number: int,
        part: Index,
        layers: dict[int, tuple[LayerParts, Index, Array]],
        state: _Found,
    ) -> None:
        block = self.blocks[number]
        rows = self.rows[number][part]
        timed, place, _ = layers[block.group]
        plan = block.plan(rows)
        shared = timed, place[block.index[rows]]
        run = self.calibration.run
        using = environment_of(self.cluster, plan, run)
        found, _ = parts(self.model, self.cluster, plan, self.calibration, shared)
        step = assemble(found, run, using)
        state.add(
            number,
            rows,
            step.step_time,
            interval(step, using.factor, run.spread(self.model.is_moe)),
            self.peak[number][part],
            np.broadcast_to(np.asarray(plan.gpus, float), rows.shape),
        )

    def _result(self, state: _Found) -> SearchResult:
        block, row, time, sigma, peak, gpus = state.columns()
        fitting = sum(rows.size for rows in self.rows)
        counts = Counts(self.enumerated, self.possible, fitting, len(time))
        score = time * gpus**self.power
        inside = np.ones(len(time), dtype=bool)
        limits = self.limits
        if limits.days is not None or limits.money is not None:
            inside = self._affordable(block, row, time, gpus)
        order = np.flatnonzero(inside)
        order = order[np.lexsort((peak[order], gpus[order], score[order]))]
        return SearchResult(
            model=self.model,
            cluster=self.cluster,
            calibration=self.calibration,
            limits=limits,
            objective=self.objective,
            counts=counts,
            step_time=time[order],
            sigma=sigma[order],
            memory=peak[order],
            gpus=gpus[order],
            score=score[order],
            frontier=frontier(time[order], peak[order], gpus[order]),
            assumed=self.space.assumed,
            keep=self.keep,
            blocks=self.blocks,
            block=block[order],
            row=row[order],
        )

    def _affordable(self, block: Index, row: Index, time: Array, gpus: Array) -> Any:
        """Mask of plans within the budgets. Raises InputError where there is none."""
        limits, tokens = self.limits, np.empty(len(time))
        assert limits.tokens is not None
        for number in np.unique(block):
            own = block == number
            plan = self.blocks[number].plan(row[own])
            tokens[own] = plan.global_batch * plan.seq_len
        days = limits.tokens / tokens * time / DAY
        inside = np.ones(len(time), dtype=bool)
        if limits.days is not None:
            inside &= days <= limits.days
            if not inside.any():
                at = int(np.argmin(days))
                raise InputError(
                    f"no plan trains on {limits.tokens:.4g} tokens in {limits.days:g} days: the "
                    f"fastest takes {days[at]:.1f} on {gpus[at]:g} GPUs"
                )
        if limits.money is not None and limits.price is not None:
            cost = days * 24.0 * gpus * limits.price
            cheap = np.where(inside, cost, np.inf)
            inside &= cost <= limits.money
            if not inside.any():
                at = int(np.argmin(cheap))
                within = f" in {limits.days:g} days" if limits.days is not None else ""
                raise InputError(
                    f"no plan trains on {limits.tokens:.4g} tokens{within} for {limits.money:,.0f}:"
                    f" the cheapest costs {cheap[at]:,.0f} on {gpus[at]:g} GPUs"
                )
        return inside


class _Found:
    """Plans timed so far, and what a further one has to beat."""

    def __init__(self, keep: int, power: float, blocks: list[Block]) -> None:
        self.keep, self.power, self.blocks = keep, power, blocks
        self.varied = varied(blocks)
        self.with_value: dict[tuple[str, Any], float] = {}
        self.pieces: list[tuple[Any, ...]] = []
        self.best = np.empty(0)
        self.front: tuple[Array, Array, Array] = (np.empty(0), np.empty(0), np.empty(0))
        self.settled = 0
        self.worst = np.inf
        self.stairs: list[tuple[float, Array, Array]] = []

    def add(self, number: int, rows: Index, *columns: Array) -> None:
        self.pieces.append((np.full(len(rows), number, dtype=np.intp), rows, *columns))

    def columns(self) -> tuple[Any, ...]:
        return tuple(np.concatenate(column) for column in zip(*self.pieces, strict=True))

    def settle(self) -> None:
        """Take in what was added since: the best scores, and the Pareto front as stairs."""
        new = self.pieces[self.settled :]
        if not new:
            return
        self.settled = len(self.pieces)
        time, peak, gpus = (np.concatenate([piece[at] for piece in new]) for at in (2, 4, 5))
        for number, rows, step, *_, count in new:
            score = step * count**self.power
            for key, own in self._values(int(number[0]), rows):
                if own.any():
                    low = float(score[own].min())
                    self.with_value[key] = min(low, self.with_value.get(key, np.inf))
        self.best = np.sort(np.concatenate([self.best, time * gpus**self.power]))[: self.keep]
        self.worst = float(self.best[-1]) if len(self.best) >= self.keep else np.inf
        columns = [
            np.concatenate(pair) for pair in zip(self.front, (time, peak, gpus), strict=True)
        ]
        chosen = frontier(*columns)
        self.front = (columns[0][chosen], columns[1][chosen], columns[2][chosen])
        self.stairs = []
        for count in np.unique(self.front[2]):
            own = self.front[2] <= count
            order = np.argsort(self.front[0][own], kind="stable")
            held = np.minimum.accumulate(self.front[1][own][order])
            self.stairs.append((float(count), self.front[0][own][order], held))

    def _values(self, number: int, rows: Index) -> Iterator[tuple[tuple[str, Any], Any]]:
        """Every value of a field that plans of a block have, and the mask of those that have it."""
        block = self.blocks[number]
        for name in self.varied:
            column = block.rows.get(name)
            if column is None:
                yield (name, getattr(block.fixed, name)), np.ones(len(rows), dtype=bool)
                continue
            for value in np.unique(column[rows]):
                yield (name, float(value)), column[rows] == value

    def matters(self, number: int, rows: Index, bound: Array, peak: Array, gpus: Array) -> Any:
        """Mask of plans of a block that may be among the best, the best with one of their values,
        or on the front."""
        score = bound * gpus**self.power
        among = score <= self.worst
        for key, own in self._values(number, rows):
            among |= own & (score <= self.with_value.get(key, np.inf))
        beaten = np.zeros(len(bound), dtype=bool)
        for count, times, held in self.stairs:
            at = np.searchsorted(times, bound, side="left") - 1
            beaten |= (at >= 0) & (held[np.maximum(at, 0)] <= peak) & (gpus >= count)
        return among | ~beaten


def varied(blocks: list[Block]) -> list[str]:
    """Fields of a plan that the plans of some blocks differ in, or may."""
    searched = {axis.field for axis in AXES if axis.field != "gpus"}
    numbers = [n for n in NUMERIC_FIELDS if n in searched or any(n in b.rows for b in blocks)]
    numbers = [name for name in numbers if name not in ("global_batch", "seq_len")]
    categories = [
        name
        for name in CATEGORY_FIELDS
        if len({getattr(block.fixed, name) for block in blocks}) > 1
    ]
    return [*numbers, *categories]


def frontier(time: Array, peak: Array, gpus: Array) -> Index:
    """Positions of plans that no other equals or beats in all of step time, memory and
    accelerators, in order of accelerators and time. Of equal plans, the first."""
    order = np.lexsort((peak, time, gpus))
    found: list[Index] = []
    times, peaks = np.empty(0), np.empty(0)
    for count in np.unique(gpus):
        own = order[gpus[order] == count]
        # Those of fewer accelerators come first, so that equals of theirs are not taken again.
        joined_time = np.concatenate([times, time[own]])
        joined_peak = np.concatenate([peaks, peak[own]])
        late = np.concatenate([np.zeros(len(times)), np.ones(len(own))])
        sort = np.lexsort((late, joined_peak, joined_time))
        held = joined_peak[sort]
        before = np.concatenate([[np.inf], np.minimum.accumulate(held)[:-1]])
        kept = sort[held < before]
        found.append(own[kept[kept >= len(times)] - len(times)])
        times, peaks = joined_time[kept], joined_peak[kept]
    return np.concatenate([np.empty(0, np.intp), *found])


def _kernels(block: Block) -> tuple[Any, ...]:
    """What blocks have in common that run the same kernels in the same layers: their categories,
    those of collectives and of the rest of the step aside, and the numbers of distinct layers."""
    apart = (*COLLECTIVE_CATEGORIES, *STEP_CATEGORIES)
    categories = tuple(getattr(block.fixed, n) for n in CATEGORY_FIELDS if n not in apart)
    return *categories, block.base.shape


def _gpus(block: Block, part: Index) -> Array:
    """Accelerators that the request asks for, of some plans of a block."""
    return block.rows["gpus"][part]


def _chunks(rows: Index) -> list[Index]:
    return [rows[start : start + CHUNK] for start in range(0, len(rows), CHUNK)]


SHORT = ("tp", "pp", "vpp", "cp", "ep", "etp", "dp", "dp_shard", "micro_batch")


def brief(plan: TrainingPlan) -> str:
    """One plan in a line: what it splits, and what it recomputes and shards."""
    always = ("tp", "pp", "dp", "micro_batch")
    sizes = " ".join(
        f"{name.replace('_', '-')} {float(getattr(plan, name)):g}"
        for name in SHORT
        if name in always or float(getattr(plan, name)) > 1
    )
    again = plan.recompute
    if again == "selective":
        again = f"{again} ({plan.recompute_modules})"
    if again == "full" and float(plan.recompute_share) < 1:
        again = f"full, {float(plan.recompute_share):.0%} of the layers"
    return f"{sizes}, recompute {again}, {plan.sharding}, {plan.schedule}"


class Conflict:
    """Why no plan of a space is possible: the fewest laws and conditions that together exclude all
    of them."""

    def __init__(self) -> None:
        self.patterns: set[frozenset[str]] = set()
        self.values: dict[str, set[float]] = {}
        self.fields: dict[str, tuple[str, ...]] = {}

    def note(self, laws: list[Rule], plan: TrainingPlan) -> None:
        """Take in a batch of which every plan breaks a law."""
        masks = np.stack([np.broadcast_to(law.broken, plan.shape) for law in laws])
        for pattern in np.unique(masks, axis=1).T:
            self.patterns.add(frozenset(laws[at].message for at in np.flatnonzero(pattern)))
        for law in laws:
            self.fields[law.message] = law.fields
            for name in law.fields:
                values = np.unique(np.asarray(getattr(plan, name), float))
                self.values.setdefault(name, set()).update(values.tolist())

    def message(self) -> str:
        """One line that names them."""
        from itertools import combinations

        every = sorted(
            {name for pattern in self.patterns for name in pattern},
            key=lambda message: (self._follows(message), message),
        )
        for size in range(1, 4):
            for some in combinations(every, size):
                if all(pattern & set(some) for pattern in self.patterns):
                    told = "; ".join(self._told(message) for message in some)
                    if size == 1:
                        return f"no plan is possible: {told}"
                    return f"no plan is possible, every one breaks one of these: {told}"
        told = "; ".join(self._told(message) for message in every)
        return f"no plan is possible, every one breaks one of these: {told}"

    def _follows(self, message: str) -> bool:
        """Whether a law speaks of numbers that are not whole: what broke them says more."""
        return any(value % 1.0 for name in self.fields[message] for value in self.values[name])

    def _told(self, message: str) -> str:
        named = {}
        for name in self.fields[message]:
            values = sorted(self.values[name])
            some = [f"{value:g}" for value in values[:4]]
            named[name] = " or ".join(some) + (" or more" if len(values) > 4 else "")
        text = message.format(**named)
        first = self.fields[message][0]
        return f"{first} {text}" if text.startswith(named[first]) else text

"""Searches a space of training plans through the very functions that predict a single one.

Laws first, then memory, then a bound on the time; only what may still matter is timed. Nothing is
lost by the bound: a plan goes untimed only where it cannot be among the plans that are kept, nor on
the Pareto front, nor the best with any of its values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from predictor.arrays import Array, Index, take
from predictor.catalog import Range, scale_up
from predictor.errors import InputError
from predictor.hardware import Cluster
from predictor.memory import host_room, memory, saved_at, savers
from predictor.models import Model
from predictor.plans import CATEGORY_FIELDS, Rule, TrainingPlan, any_broken, training_rules
from predictor.search.bounds import Within, further
from predictor.search.conflict import Conflict
from predictor.search.contenders import Contenders, frontier
from predictor.search.ranking import (
    DAY,
    OBJECTIVES,
    Counts,
    Layers,
    Limits,
    SearchResult,
    Surroundings,
    brief,
    single,
)
from predictor.search.space import Block, Space, space_of
from predictor.search.surroundings import surroundings
from predictor.timing import Calibration, Timing
from predictor.training import (
    COLLECTIVE_CATEGORIES,
    STEP_CATEGORIES,
    arithmetic_share,
    as_measured,
    assemble,
    environment_of,
    executions,
    interval,
    layer_parts,
    parts,
    stretched,
    vary_step,
)
from predictor.units import GB, GIB
from predictor.variation import LEVELS, NONE, SILENT, Profile, profile
from predictor.work import Operator, step_operators

CORRECTED = 256
"""Plans that are timed as one's own runs say, beside those of the front: the best without them."""

PLANS_AT_ONCE = 50_000
"""Plans that are evaluated together: some 0.3 GB of arrays."""

Progress = Callable[[float], None]
"""Told how much of a search is done, 0..1, as it goes; what it raises ends the search."""

P95 = LEVELS[1]

BESIDE_LAYERS = frozenset(("logit_bytes",))
"""Numbers of a plan on which the tensors of its ends depend beside those of its layers."""

NARROWED, BOUNDED = 0.35, 0.35
"""Shares of a search's time that laws and memory take, and the kernels of layers."""

FIRST, LEADING = 512, 32
"""Most promising plans of a block, and most promising blocks: timed before anything is dropped by
the bound."""


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
    within: Within | None = None,
    progress: Progress | None = None,
    each: bool = True,
) -> SearchResult:
    """Find the best plans of a space.

    fields     keys of a training plan: values, lists or ranges (`space.read_given`); `gpus`,
               `global_batch` and `seq_len` in any case; `variation` names a profile of machines,
               on which plans are ranked by the P95 of a step
    limits     conditions; the default ones if None
    objective  'time' or 'cost'
    keep       how many of the best plans are certain to be timed
    prune      leave out what the bound rules out; else every plan that fits is timed
    around     a single plan from which everything is taken that is neither searched nor stated
    within     further laws, asked of plans that obey the others
    progress   told how much is done
    each       whether the best plan with each value of a field is certain to be timed as well, as
               `alternatives` needs it

    Raises InputError: a value cannot be; conditions that exclude each other, named; nothing fits,
    with the least memory that would.
    """
    limits = limits or Limits()
    if objective not in OBJECTIVES:
        raise InputError(f"objective {objective!r} is not one of {', '.join(OBJECTIVES)}")
    stated = dict(fields)
    machines = profile(str(stated.pop("variation", NONE)))
    space = space_of(model, cluster, stated, calibration.run, around)
    found = _Search(space, calibration, limits, objective, keep, within, machines)
    found.progress = progress or found.progress
    found.narrow()
    return found.time(prune, each)


class _Search:
    """One search on its way: blocks, and of each the rows that are left."""

    def __init__(
        self,
        space: Space,
        calibration: Calibration,
        limits: Limits,
        objective: str,
        keep: int,
        within: Within | None = None,
        machines: Profile = SILENT,
    ) -> None:
        self.within, self.machines = within, machines
        self.space, self.calibration, self.limits = space, calibration, limits
        self.objective, self.power, self.keep = objective, OBJECTIVES[objective], keep
        self.model, self.cluster = space.setting.model, space.setting.cluster
        self.blocks = list(space.blocks())
        self.enumerated = sum(len(block) for block in self.blocks)
        self.possible = 0
        self.rows: list[Index] = []
        self.peak: list[Array] = []
        self.listed: dict[int, list[Operator]] = {}
        self.progress: Progress = lambda share: None

    def narrow(self) -> None:
        """Keep the rows that obey the laws and conditions, and of those the ones that fit."""
        capacity = float(self.cluster.accelerator.memory)
        allowed = self.limits.memory_fraction * capacity
        conflict = Conflict()
        least, where = np.inf, (0, 0)
        crowded = np.inf, 0.0, 0.0
        for number, block in enumerate(self.blocks):
            self.progress(NARROWED * number / len(self.blocks))
            lawful: list[Index] = []
            for part in _chunks(np.arange(len(block))):
                plan = block.plan(part)
                laws = [*self._conditions(plan, block, part), *training_rules(plan, self.model)]
                laws += further(self.within, plan, laws)
                broken = any_broken(laws, plan.shape)
                lawful.append(part[~broken])
                if not self.possible and broken.all():
                    conflict.note(laws, plan)
                self.possible += len(lawful[-1])
            kept, peaks = [], []
            for part in lawful:
                if not part.size:
                    continue
                plan = block.plan(part)
                operators = self._operators(block, part)
                held = memory(self.model, plan, self.calibration.run, operators)
                peak, room = held.peak, host_room(self.cluster, plan)
                low = int(np.argmin(peak))
                if peak[low] < least:
                    least, where = float(peak[low]), (number, int(part[low]))
                fits = peak <= allowed
                over = np.where(fits, held.host / room, np.inf)
                if (near := int(np.argmin(over))) >= 0 and over[near] < crowded[0]:
                    crowded = float(over[near]), float(held.host[near]), float(room[near])
                fits &= held.host <= room
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
            if np.isfinite(crowded[0]):
                raise InputError(
                    f"no plan fits the hosts of {self.cluster.name}: of those that fit {name}, the "
                    f"least would keep {crowded[1] / GB:.1f} GB for each accelerator, for which "
                    f"the host has {crowded[2] / GB:.1f} GB"
                )
            raise InputError(
                f"no plan fits the {allowed / GIB:.1f} GiB{share} of {name}: the least that would "
                f"is {least / GIB:.1f} GiB per GPU, with {brief(best)}"
            )

    def _operators(self, block: Block, part: Index) -> list[Operator] | None:
        """Operators of some plans of a block, made once for all blocks of its group; None where
        tensors are kept whose size says more than the layers' fields."""
        if not BESIDE_LAYERS.isdisjoint(block.rows):
            return None
        if block.group not in self.listed:
            self.listed[block.group] = savers(step_operators(self.model, block.base))
        return saved_at(self.listed[block.group], block.index[part])

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

    def time(self, prune: bool, each: bool = True) -> SearchResult:
        """Time what is left, most promising blocks and plans first."""
        layers: dict[int, Layers] = {}
        used: dict[tuple[Any, ...], Index] = {}
        kernels: dict[tuple[Any, ...], Timing] = {}
        for block, rows in zip(self.blocks, self.rows, strict=True):
            key = _kernels(block)
            own = np.unique(block.index[rows])
            used[key] = np.union1d(used.get(key, own), own)
        bounds: list[Array] = []
        for number, (block, rows) in enumerate(zip(self.blocks, self.rows, strict=True)):
            self.progress(NARROWED + BOUNDED * number / len(self.blocks))
            key = _kernels(block)
            if block.group not in layers and rows.size:
                found = self._layers(block, used[key], kernels.get(key))
                layers[block.group] = found
                kernels[key] = found.parts.listed.timing
            bounds.append(self._bound(block, rows, layers) if rows.size else np.empty(0))
        frames = surroundings(self.model, self.cluster, self.calibration, self.blocks, self.rows)
        state = Contenders(self.keep, self.power, self.blocks, each)
        order = sorted(
            (number for number, rows in enumerate(self.rows) if rows.size),
            key=lambda number: float(bounds[number].min()),
        )
        rest: dict[int, Index] = {}
        for number in order[:LEADING]:
            ascending = np.argsort(bounds[number], kind="stable")
            rest[number] = ascending[FIRST:]
            self._evaluate(number, ascending[:FIRST], layers, frames, state)
        for done, number in enumerate(order):
            self.progress(NARROWED + BOUNDED + (1 - NARROWED - BOUNDED) * done / len(order))
            left = rest.get(number, np.arange(self.rows[number].size))
            if prune:
                state.settle()
                gpus = _gpus(self.blocks[number], self.rows[number][left])
                rows = self.rows[number][left]
                columns = bounds[number][left], self.peak[number][left], gpus
                left = left[state.matters(number, rows, *columns)]
            for part in _chunks(left):
                self._evaluate(number, part, layers, frames, state)
        return self._result(state, layers, frames)

    def _layers(self, block: Block, used: Index, timing: Timing | None = None) -> Layers:
        """Time those of a group's layers that some plan has."""
        base = take(block.base, used)
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
        return Layers(found, place, layer)

    def _bound(self, block: Block, rows: Index, layers: Mapping[int, Layers]) -> Array:
        """Least time of a step [s]: the slowest stage is no faster than the mean one, and runs
        the kernels of its layers for every micro-batch."""
        timed = layers[block.group]
        plan = block.plan(rows)
        using = environment_of(self.cluster, plan, self.calibration.run)
        own = timed.least[timed.place[block.index[rows]]]
        return np.asarray(using.factor * plan.micro_batches * own * (self.model.layers / plan.pp))

    def _evaluate(
        self,
        number: int,
        part: Index,
        layers: Mapping[int, Layers],
        frames: Mapping[int, Surroundings],
        state: Contenders,
    ) -> None:
        block = self.blocks[number]
        rows = self.rows[number][part]
        plan = block.plan(rows)
        shared = layers[block.group].of(block, rows)
        around = frames[number].of(rows) if number in frames else None
        run = self.calibration.run
        using = environment_of(self.cluster, plan, run)
        found, listed = parts(self.model, self.cluster, plan, self.calibration, shared, around)
        step = assemble(found, run, using)
        sigma = interval(step, using.factor, run.spread(self.model.is_moe))
        ranked = np.ones(rows.shape)
        if self.machines.name != NONE:
            share = arithmetic_share(executions(found, listed, step), listed.timing, found.index)
            whole = step.step_time, step.breakdown, step.passes
            varied = vary_step(plan, *whole, share, self.machines)
            ranked = varied.quantile(P95) / step.step_time
        state.add(
            number,
            rows,
            step.step_time,
            sigma,
            self.peak[number][part],
            ranked,
            np.broadcast_to(np.asarray(plan.gpus, float), rows.shape),
        )

    def _result(
        self,
        state: Contenders,
        layers: Mapping[int, Layers],
        frames: Mapping[int, Surroundings],
    ) -> SearchResult:
        block, row, time, sigma, peak, by, gpus = state.columns()
        if self.calibration.own is not None:
            score = time * by * gpus**self.power
            exact = np.union1d(np.argsort(score, kind="stable")[:CORRECTED],
                               frontier(time * by, peak, gpus))  # fmt: skip
            time, sigma = self._as_measured(block, row, (time, sigma), exact, layers, frames)
        fitting = sum(rows.size for rows in self.rows)
        counts = Counts(self.enumerated, self.possible, fitting, len(time))
        ranked = time * by
        score = ranked * gpus**self.power
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
            ranked=ranked[order],
            machines=self.machines,
            memory=peak[order],
            gpus=gpus[order],
            score=score[order],
            frontier=frontier(ranked[order], peak[order], gpus[order]),
            assumed=self.space.assumed,
            keep=self.keep,
            blocks=self.blocks,
            block=block[order],
            row=row[order],
            layers=layers,
            frames=frames,
        )

    def _as_measured(
        self,
        block: Index,
        row: Index,
        known: tuple[Array, Array],
        exact: Index,
        layers: Mapping[int, Layers],
        frames: Mapping[int, Surroundings],
    ) -> tuple[Array, Array]:
        """Step times and spreads as one's own runs say: of the plans at `exact` each by itself,
        of the others with the mean of those corrections."""
        time, sigma = known[0].copy(), known[1].copy()
        run = self.calibration.run
        for number in np.unique(block[exact]):
            at = exact[block[exact] == number]
            rows, own = row[at], self.blocks[number]
            plan = own.plan(rows)
            shared = layers[own.group].of(own, rows)
            around = frames[number].of(rows) if number in frames else None
            using = environment_of(self.cluster, plan, run)
            found, _ = parts(self.model, self.cluster, plan, self.calibration, shared, around)
            step = assemble(found, run, using)
            of = self.model, self.cluster, plan
            step, _, spread = as_measured(found, step, using, sigma[at], of, self.calibration)
            time[at], sigma[at] = step.step_time, spread
        rest = np.setdiff1d(np.arange(len(time)), exact)
        time[rest] *= np.exp(np.mean(np.log(time[exact] / known[0][exact])))
        sigma[rest] = np.maximum(sigma[rest], np.mean(sigma[exact]))
        return time, sigma

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


def _kernels(block: Block) -> tuple[Any, ...]:
    """What blocks have in common that run the same kernels in the same layers: their categories,
    those of collectives and of the rest of the step aside, and the numbers of distinct layers. The
    order of ranks counts: it says which layers are distinct."""
    apart = {*COLLECTIVE_CATEGORIES, *STEP_CATEGORIES} - {"rank_order"}
    categories = tuple(getattr(block.fixed, n) for n in CATEGORY_FIELDS if n not in apart)
    return *categories, block.base.shape


def _gpus(block: Block, part: Index) -> Array:
    """Accelerators that the request asks for, of some plans of a block."""
    return block.rows["gpus"][part]


def _chunks(rows: Index) -> list[Index]:
    return [rows[start : start + PLANS_AT_ONCE] for start in range(0, len(rows), PLANS_AT_ONCE)]

"""Searches a space of training plans through the very functions that predict a single one.

Laws first, then memory, then a bound on the time; only what may still matter is timed. Nothing is
lost by the bound: a plan goes untimed only where it cannot be among the plans that are kept, nor on
the Pareto front, nor the best with any of its values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from predictor.arrays import Array, Index, join, take
from predictor.errors import InputError
from predictor.hardware import Cluster
from predictor.models import Model
from predictor.plans import TrainingPlan
from predictor.records import dataclass, replace
from predictor.search import steadiness
from predictor.search.bounds import Within
from predictor.search.contenders import Contenders, frontier
from predictor.search.narrowing import Narrowing, asked, chunks
from predictor.search.ranking import (
    DAY,
    OBJECTIVES,
    Counts,
    Layers,
    Limits,
    SearchResult,
    Surroundings,
)
from predictor.search.space import Block, Space, counted, space_of
from predictor.search.steadiness import Arithmetic
from predictor.search.surroundings import surroundings
from predictor.timing import Calibration
from predictor.training import (
    COLLECTIVE_CATEGORIES,
    LayerKernels,
    LayerTimes,
    Parts,
    Step,
    alone,
    as_measured,
    assemble,
    environment_of,
    frame,
    inner_categories,
    interval,
    joined,
    layer_kernels,
    layer_parts,
    parts,
    stretched,
)
from predictor.variation import NONE, SILENT, Profile, profile

CORRECTED = 256
"""Plans that are timed as one's own runs say, beside those of the front: the best without them."""

Progress = Callable[[float], None]
"""Told how much of a search is done, 0..1, as it goes; what it raises ends the search."""


NARROWED, BOUNDED = 0.35, 0.35
"""Shares of a search's time that laws and memory take, and the kernels of layers."""

TOGETHER = 2048
"""Plans that are put together at once where there are enough: what is in hand of them stays in a
core's own cache."""

TABLED = 128
"""Blocks whose layers lie in one table at a time: what one lacks takes room in all."""

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


Piece = tuple[int, Index]
"""A block's number, and which of the rows that are left of it."""


@dataclass(frozen=True, slots=True, eq=False)
class _Timed:
    """What has been timed before plans are put together.

    times    layers of all groups in one row, those that any plan that is left has
    places   of a group's layers in it, by group
    """

    layers: Mapping[int, Layers]
    frames: Mapping[int, Surroundings]
    times: LayerTimes
    places: Mapping[int, Index]

    @property
    def count(self) -> int:
        """Layers of all groups."""
        return int(self.times.launches["layer"].shape[0])


def laid_out(
    layers: Mapping[int, Layers], needed: Mapping[int, Index]
) -> tuple[LayerTimes, dict[int, Index]]:
    """Those layers of groups that are needed in one row, and the places of each group's in it.
    What one group lacks takes room in all, so that rows which nobody needs would cost much."""
    start, pieces, places = 0, [], {}
    for group, rows in needed.items():
        times, size = layers[group].parts.times, layers[group].parts.base.shape[0]
        pieces.append(times if rows.size == size else take(times, rows))
        places[group] = np.zeros(size, dtype=np.intp)
        places[group][rows] = start + np.arange(rows.size)
        start += rows.size
    return join(pieces, [rows.size for rows in needed.values()]), places


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
        self.kernels: dict[int, Arithmetic] = {}
        self.space, self.calibration, self.limits = space, calibration, limits
        self.objective, self.power, self.keep = objective, OBJECTIVES[objective], keep
        self.model, self.cluster = space.setting.model, space.setting.cluster
        self.blocks = space.enumerated()
        self.enumerated = sum(len(block) for block in self.blocks)
        self.possible = 0
        self.rows: list[Index] = []
        self.peak: list[Array] = []
        self.progress: Progress = lambda share: None

    def narrow(self) -> None:
        """Keep the rows that obey the laws and conditions, and of those the ones that fit."""
        run = self.calibration.run
        narrowing = Narrowing(self.blocks, self.space.setting, self.limits, run, self.within)
        found = narrowing.narrow(lambda share: self.progress(NARROWED * share))
        self.possible, self.rows, self.peak = found.count, found.rows, found.peak

    def time(self, prune: bool, each: bool = True) -> SearchResult:
        """Time what is left, most promising blocks and plans first."""
        layers: dict[int, Layers] = {}
        used: dict[tuple[Any, ...], Index] = {}
        kernels: dict[tuple[Any, ...], LayerKernels] = {}
        for block, rows in zip(self.blocks, self.rows, strict=True):
            key = _kernels(block)
            own = np.unique(block.layers(rows))
            used[key] = np.union1d(used.get(key, own), own)
        bounds: list[Array] = []
        for number, (block, rows) in enumerate(zip(self.blocks, self.rows, strict=True)):
            self.progress(NARROWED + BOUNDED * number / len(self.blocks))
            key = _kernels(block)
            if block.group not in layers and rows.size:
                found = self._layers(block, used[key], kernels.get(key))
                layers[block.group], kernels[key] = found
            bounds.append(self._bound(block, rows, layers) if rows.size else np.empty(0))
        frames = surroundings(self.model, self.cluster, self.calibration, self.blocks, self.rows)
        state = Contenders(self.keep, self.power, self.blocks, each)
        order = sorted(
            (number for number, rows in enumerate(self.rows) if rows.size),
            key=lambda number: float(bounds[number].min()),
        )
        rest = {number: np.arange(self.rows[number].size) for number in order}
        leading: list[Piece] = []
        for number in order[:LEADING]:
            ascending = np.argsort(bounds[number], kind="stable")
            rest[number] = ascending[FIRST:]
            leading.append((number, ascending[:FIRST]))
        self._evaluate(leading, self._timed(leading, layers, frames), state)
        mattering = self._mattering(bounds, state) if prune else lambda number, left: left
        for done in range(0, len(order), TABLED):
            numbers = order[done : done + TABLED]
            open_ = [(number, mattering(number, rest[number])) for number in numbers]
            pieces = [(number, left) for number, left in open_ if left.size]
            if not pieces:
                continue
            timed = self._timed(pieces, layers, frames)
            waiting: dict[Any, list[Piece]] = {}
            for at, (number, several) in enumerate(pieces, start=done):
                self.progress(NARROWED + BOUNDED + (1 - NARROWED - BOUNDED) * at / len(order))
                left = mattering(number, several)  # the best so far rule out more
                queue = waiting.setdefault(self.blocks[number].pool, [])
                queue += [(number, part) for part in chunks(left)]
                if sum(len(part) for _, part in queue) >= TOGETHER:
                    self._evaluate(queue, timed, state)
                    queue.clear()
            self._evaluate([one for queue in waiting.values() for one in queue], timed, state)
        self.progress(1.0)
        return self._result(state, layers, frames)

    def _mattering(self, bounds: list[Array], state: Contenders) -> Callable[[int, Index], Index]:
        """What keeps of rows of a block those that may matter yet."""

        def kept(number: int, left: Index) -> Index:
            rows = self.rows[number][left]
            gpus = asked(self.blocks[number], rows)
            columns = bounds[number][left], self.peak[number][left], gpus
            return np.asarray(left[state.matters(number, rows, *columns)])

        return kept

    def _timed(
        self,
        pieces: list[Piece],
        layers: Mapping[int, Layers],
        frames: Mapping[int, Surroundings],
    ) -> _Timed:
        """What plans of some pieces are put together from."""
        needed: dict[int, list[Index]] = {}
        for number, part in pieces:
            block, rows = self.blocks[number], self.rows[number][part]
            own = np.unique(layers[block.group].place[block.layers(rows)])
            needed.setdefault(block.group, []).append(own)
        used = {group: np.unique(np.concatenate(own)) for group, own in needed.items()}
        return _Timed(layers, frames, *laid_out(layers, used))

    def _layers(
        self, block: Block, used: Index, known: LayerKernels | None = None
    ) -> tuple[Layers, LayerKernels]:
        """Time those of a group's layers that some plan has, and their kernels if they are not
        known from a group that has the same (`_kernels`)."""
        on = self.model, self.cluster
        if known is None:
            known = layer_kernels(*on, take(block.base, used), self.calibration)
        talks = {name: getattr(block.base, name) for name in COLLECTIVE_CATEGORIES}
        base = replace(known.base, **talks)
        found = layer_parts(*on, base, self.calibration, known=known)
        place = np.zeros(block.base.shape[0], dtype=np.intp)
        place[used] = np.arange(len(used))
        share = {
            "layer": 1.0,
            "dense": self.model.dense_share or float(not self.model.is_moe),
            "moe": self.model.moe_share,
        }
        factors = self.calibration.run.factors
        using = environment_of(self.cluster, base, self.calibration.run)
        layer: Array = np.zeros(len(used))
        for (module, _, own), time in found.times.work.items():
            once = stretched(factors, own, module) / alone(using, own)
            layer = layer + share.get(module, 0.0) * once * time
        for (slot, _), exchange in found.times.inside.items():
            if not slot.behind and slot.place in share:
                layer = layer + share[slot.place] * exchange.time * exchange.count
        return Layers(found, place, layer), known

    def _bound(self, block: Block, rows: Index, layers: Mapping[int, Layers]) -> Array:
        """Least time of a step [s]: the slowest stage is no faster than the mean one, and for
        every micro-batch runs the kernels of its layers and the collectives that nothing hides."""
        timed = layers[block.group]
        plan = block.plan(rows)
        using = environment_of(self.cluster, plan, self.calibration.run)
        own = timed.least[timed.place[block.layers(rows)]]
        return np.asarray(using.factor * plan.micro_batches * own * (self.model.layers / plan.pp))

    def _evaluate(self, pieces: list[Piece], timed: _Timed, state: Contenders) -> None:
        """Time rows of blocks, those of one pool together."""
        for own in self._together(pieces, timed.frames):
            found = self._parts(own, timed)
            run, blocks = self.calibration.run, [self.blocks[number] for number, _ in own]
            rows = [self.rows[number][part] for number, part in own]
            fixed = blocks[0].fixed
            using = environment_of(self.cluster, counted(blocks, rows), run)
            model = self.model
            spread = run.spread(model.is_moe, fixed.framework, fixed.named, model.untimed)
            step = assemble(found, run, using)
            gpus = [asked(block, chosen) for block, chosen in zip(blocks, rows, strict=True)]
            state.add(
                np.repeat([number for number, _ in own], [len(part) for _, part in own]),
                np.concatenate(rows),
                step.step_time,
                interval(step, using.factor, spread),
                np.concatenate([self.peak[number][part] for number, part in own]),
                self._ranked(own, timed, found, step),
                np.concatenate(gpus),
            )
        state.settle()

    def _together(
        self, pieces: list[Piece], frames: Mapping[int, Surroundings]
    ) -> list[list[Piece]]:
        """Pieces that are timed as one batch: of one pool; each for itself where what lies around
        its layers is not laid out."""
        found: dict[tuple[Any, ...], list[Piece]] = {}
        for at, (number, part) in enumerate(pieces):
            if part.size:
                key = self.blocks[number].pool if number in frames else (at,)
                found.setdefault(key, []).append((number, part))
        return list(found.values())

    def _parts(self, own: list[Piece], timed: _Timed) -> Parts:
        """Parts of pieces of one pool."""
        index, places = [], []
        for number, part in own:
            block, rows = self.blocks[number], self.rows[number][part]
            layers = timed.layers[block.group]
            index.append(timed.places[block.group][layers.place[block.layers(rows)]])
            if number in timed.frames:
                places.append(timed.frames[number].at(rows))
        first = self.blocks[own[0][0]]
        if places:
            around = timed.frames[own[0][0]].frame.take(np.concatenate(places))
        else:
            around = frame(self.model, self.cluster, first.plan(rows), self.calibration)
        where, times = np.concatenate(index), timed.times
        if timed.count > where.size:
            # Collectives are put together layer by layer: of many, those that these plans have.
            own_layers, where = np.unique(where, return_inverse=True)
            times = take(times, own_layers)
        return joined(self.model, times, where, around, first.fixed.schedule)

    def _ranked(self, own: list[Piece], timed: _Timed, found: Parts, step: Step) -> Array:
        """The time by which plans are ranked over the step time: one, unless machines vary."""
        if self.machines.name == NONE:
            return np.ones(step.step_time.shape)
        pieces = []
        for number, part in own:
            block, rows = self.blocks[number], self.rows[number][part]
            shared, index = timed.layers[block.group].of(block, rows)
            if block.group not in self.kernels:
                self.kernels[block.group] = Arithmetic.of(shared.listed)
            pieces.append(steadiness.Piece(block.plan(rows), index, self.kernels[block.group]))
        return steadiness.over_step(found, step, pieces, self.machines)

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
    order of ranks counts: it says which layers are distinct, and where groups lie."""
    apart = {*COLLECTIVE_CATEGORIES} - {"rank_order"}
    known = inner_categories(block.base).items()
    return *(value for name, value in known if name not in apart), block.table

"""Which plans of a space are possible at all: laws and conditions first, then memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from predictor.arrays import Array, Index, Mask
from predictor.catalog import Range, scale_up
from predictor.errors import InputError
from predictor.memory import (
    LAID,
    UNHELD,
    Kept,
    Layout,
    host_room,
    kept_by,
    lay_out,
    memory,
)
from predictor.plans import (
    CATEGORY_FIELDS,
    Rule,
    TrainingPlan,
    any_broken,
    training_rules,
)
from predictor.records import dataclass
from predictor.search.axes import SearchBasis
from predictor.search.bounds import Within, further
from predictor.search.conflict import Conflict
from predictor.search.ranking import Limits, brief, single
from predictor.search.space import PLACE, Block
from predictor.timing import RunParameters
from predictor.units import GB, GIB
from predictor.work import step_operators

PLANS_AT_ONCE = 50_000
"""Plans that are evaluated together: some 0.3 GB of arrays."""


REMEMBERED = 250_000
"""Plans whose layouts on stages are remembered: some 0.1 GB of arrays."""


def asked(block: Block, part: Index) -> Array:
    """Accelerators that the request asks for, of some plans of a block."""
    return np.asarray(block.column("gpus", part))


def chunks(rows: Index) -> list[Index]:
    """Rows in as many as are evaluated together."""
    return [rows[start : start + PLANS_AT_ONCE] for start in range(0, len(rows), PLANS_AT_ONCE)]


@dataclass(slots=True, eq=False)
class _Misses:
    """What came nearest to fitting, and why plans cannot be.

    possible  whether any plan obeys the laws
    least     memory of all [bytes], and the block and row of that, of equals the first; none yet
    crowded   of plans that fit the accelerator: what the host would keep over what it has, the
              block, and both
    """

    conflict: Conflict = field(default_factory=Conflict)
    possible: bool = False
    least: tuple[float, int, int] = (np.inf, 0, 0)
    crowded: tuple[float, int, float, float] = (np.inf, 0, np.nan, np.nan)


@dataclass(frozen=True, slots=True, eq=False)
class _Judged:
    """Numbers of a grid with one set of categories: whether they are judged yet, lawful, fit, and
    their peak memory."""

    known: Mask
    lawful: Mask
    fits: Mask
    peak: Array

    @classmethod
    def of(cls, size: int) -> _Judged:
        """None judged yet."""
        known, lawful, fits = (np.zeros(size, dtype=bool) for _ in range(3))
        return cls(known, lawful, fits, np.zeros(size))


@dataclass(slots=True, eq=False)
class Possible:
    """What is left of blocks: plans that obey the laws, and of each block the rows that fit and
    their peak memory [bytes]."""

    count: int
    rows: list[Index]
    peak: list[Array]


@dataclass(frozen=True, slots=True, eq=False)
class Narrowing:
    """Blocks whose plans are judged.

    within   further laws
    kept     what the operators of a group of blocks keep
    laid     what lies on the stages of plans alike in that (`_laid`)
    """

    blocks: Sequence[Block]
    setting: SearchBasis
    limits: Limits
    run: RunParameters
    within: Within | None
    kept: dict[int, Kept] = field(default_factory=dict)
    laid: dict[tuple[Any, ...], Layout] = field(default_factory=dict)

    def narrow(self, progress: Callable[[float], None]) -> Possible:
        """The rows that obey the laws and conditions, and of those the ones that fit.

        progress   told what share of the blocks is done

        Raises InputError where there are none: conditions that exclude each other, or the least
        memory that would do.
        """
        alike: dict[tuple[Any, ...], list[int]] = {}
        for number in range(len(self.blocks)):
            alike.setdefault(self._alike(number), []).append(number)
        none: Index = np.empty(0, dtype=PLACE)
        misses, done = _Misses(), 0
        found = Possible(0, [none] * len(self.blocks), [np.empty(0)] * len(self.blocks))
        for numbers in alike.values():
            table = _Judged.of(len(self.blocks[numbers[0]].grid["tp"]))
            for number in numbers:
                progress(done / len(self.blocks))
                block, done = self.blocks[number], done + 1
                for part in chunks(np.flatnonzero(~table.known[block.place])):
                    self._judge(number, part, table, misses)
                found.count += int(np.count_nonzero(table.lawful[block.place]))
                rows: Index = np.flatnonzero(table.fits[block.place]).astype(PLACE)
                found.rows[number], found.peak[number] = rows, table.peak[block.place[rows]]
        if not found.count:
            raise InputError(misses.conflict.message())
        if not any(rows.size for rows in found.rows):
            raise self._too_large(misses)
        return found

    def _alike(self, number: int) -> tuple[Any, ...]:
        """What blocks have in common of whose plans laws and memory say the same: none with
        another where there are further laws, which may ask for anything."""
        block = self.blocks[number]
        if self.within is not None:
            return (number,)
        told = (getattr(block.fixed, name) for name in CATEGORY_FIELDS if name not in UNHELD)
        return id(block.grid), *told

    def _judge(self, number: int, part: Index, table: _Judged, misses: _Misses) -> None:
        """Which rows of a block obey the laws, and fit; noted in a table of its grid."""
        block = self.blocks[number]
        plan, place = block.plan(part), block.place[part]
        laws = [*self._conditions(plan, block, part), *training_rules(plan, self.setting.model)]
        laws += further(self.within, plan, laws)
        broken = any_broken(laws, plan.shape)
        if not misses.possible and broken.all():
            misses.conflict.note(laws, plan)
        table.known[place] = True
        table.lawful[place] = ~broken
        if broken.all():
            return
        if broken.any():
            part, place = part[~broken], place[~broken]
            plan = block.plan(part)
        misses.possible = True
        saved = self._saved(block, part)
        laid = self._laid(plan, saved)
        held = memory(self.setting.model, plan, self.run, saved, laid)
        room = host_room(self.setting.cluster, plan)
        fits = held.peak <= self.limits.memory_fraction * float(
            self.setting.cluster.accelerator.memory
        )
        low = int(np.argmin(held.peak))
        misses.least = min(misses.least, (float(held.peak[low]), number, int(part[low])))
        over = np.where(fits, held.host / room, np.inf)
        near = int(np.argmin(over))
        least = float(over[near]), number, float(held.host[near]), float(room[near])
        misses.crowded = min(misses.crowded, least)
        table.fits[place] = fits & (held.host <= room)
        table.peak[place] = held.peak

    def _too_large(self, misses: _Misses) -> InputError:
        """Why no plan fits."""
        cluster = self.setting.cluster
        capacity = float(cluster.accelerator.memory)
        share = self.limits.memory_fraction
        name = cluster.accelerator.name
        if np.isfinite(misses.crowded[0]):
            return InputError(
                f"no plan fits the hosts of {cluster.name}: of those that fit {name}, the "
                f"least would keep {misses.crowded[2] / GB:.1f} GB for each accelerator, for which "
                f"the host has {misses.crowded[3] / GB:.1f} GB"
            )
        least, number, row = misses.least
        best = single(self.blocks[number].plan(np.array([row])))
        part = "" if share == 1 else f" ({share:.0%} of {capacity / GIB:.1f})"
        return InputError(
            f"no plan fits the {share * capacity / GIB:.1f} GiB{part} of {name}: the least that "
            f"would is {least / GIB:.1f} GiB per GPU, with {brief(best)}"
        )

    def _saved(self, block: Block, part: Index) -> Kept:
        """What the operators of some plans of a block keep, told once for all blocks of its
        group."""
        if block.group not in self.kept:
            operators = step_operators(self.setting.model, block.base)
            self.kept[block.group] = kept_by(operators, self.setting.model, block.base)
        return self.kept[block.group].at(block.layers(part))

    def _laid(self, plan: TrainingPlan, saved: Kept) -> Layout:
        """What lies on the stages of plans, told once for all that differ in nothing of it."""
        model = self.setting.model
        if plan.frozen:
            return lay_out(model, plan, saved)
        told = (getattr(plan, name) for name in LAID if name != "mtp" or model.mtp_layers)
        key = plan.shape, *(v.tobytes() if isinstance(v, np.ndarray) else v for v in told)
        if key not in self.laid:
            if sum(shape[0] for shape, *_ in self.laid) > REMEMBERED:
                self.laid.clear()
            self.laid[key] = lay_out(model, plan, saved)
        return self.laid[key]

    def _conditions(self, plan: TrainingPlan, block: Block, part: Index) -> list[Rule]:
        """What the request asks beyond the laws."""
        given, count = self.setting.given, len(part)
        every = np.zeros(count, dtype=bool)
        gpus = asked(block, part)
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
            node = scale_up(self.setting.cluster)
            for name in ("tp", "etp"):
                found.append(
                    Rule(
                        every | (getattr(plan, name) > node),
                        f"{name} {{{name}}} leaves the node of {node}, inside which it is to stay",
                        (name,),
                    )
                )
        return found

"""Plans of training that a search has timed, best first; and single plans in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from predictor.arrays import Array, Index
from predictor.catalog import Assumption
from predictor.errors import InputError
from predictor.hardware import Cluster
from predictor.memory import MEMORY_FRACTION
from predictor.models import Model
from predictor.plans import CATEGORY_FIELDS, NUMERIC_FIELDS, TrainingPlan
from predictor.records import dataclass
from predictor.search.documents import PACKED, packing_of
from predictor.search.space import Block
from predictor.timing import Calibration
from predictor.training import Frame, LayerParts
from predictor.variation import Profile

OBJECTIVES = {"time": 0.0, "cost": 1.0}
"""Plans are ranked by step time x accelerators to this power: the fastest, or the cheapest."""

DAY, HOUR = 86400.0, 3600.0


@dataclass(frozen=True, slots=True, eq=False)
class Layers:
    """Layers of a group of blocks, timed.

    parts   of distinct layers
    place   of those of `Block.base` in them
    least   time of the mean layer's kernels and of what nothing hides, forward and backward [s]
    """

    parts: LayerParts
    place: Index
    least: Array

    def of(self, block: Block, rows: Index) -> tuple[LayerParts, Index]:
        """The layers, and which of them some plans of a block have."""
        return self.parts, self.place[block.layers(rows)]


@dataclass(frozen=True, slots=True, eq=False)
class Surroundings:
    """What lies around the layers of the plans of a block, timed.

    frame   of distinct plans, of all blocks of a pool together
    inner   of every row of the block's grid, where in that it is
    place   of every plan of the block in the grid
    """

    frame: Frame
    inner: Index
    place: Index

    def at(self, rows: Index) -> Index:
        """Where in the frame some plans of the block are."""
        return self.inner[self.place[rows]]

    def of(self, rows: Index) -> Frame:
        """Of some plans of the block."""
        return self.frame.take(self.at(rows))


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
    ranked      step time by which plans are ranked [s]: its P95 on `machines` that vary
    memory      peak of the fullest device [bytes]
    gpus        accelerators
    score       by which they are ranked
    frontier    positions of the plans that no other beats in step time, memory and accelerators
    assumed     what was filled in, not searched
    block, row  where plans are found in `blocks`
    layers      what was timed for the blocks of a group (`Block.group`)
    frames      what was timed around the layers of a block
    """

    model: Model
    cluster: Cluster
    calibration: Calibration
    limits: Limits
    objective: str
    counts: Counts
    step_time: Array
    sigma: Array
    ranked: Array
    machines: Profile
    memory: Array
    gpus: Array
    score: Array
    frontier: Index
    assumed: tuple[Assumption, ...]
    keep: int
    blocks: list[Block] = field(repr=False)
    block: Index = field(repr=False)
    row: Index = field(repr=False)
    layers: Mapping[int, Layers] = field(repr=False)
    frames: Mapping[int, Surroundings] = field(repr=False)

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
        """One plan as a mapping of its fields, with how its documents are packed."""
        block, row = self.blocks[self.block[position]], self.row[position : position + 1]
        packed = block.column(PACKED, row)[0] if PACKED in block.grid else None
        return {**mapping(self.plan(position)), **({} if packed is None else packing_of(packed))}

    @property
    def plans(self) -> list[dict[str, Any]]:
        """The best plans, `keep` of them, as mappings of their fields."""
        return [self.mapping(position) for position in range(min(self.keep, len(self)))]

    def column(self, name: str, positions: Sequence[int] | None = None) -> npt.NDArray[Any]:
        """A field of some plans, of every one if None, in the order of the ranking."""
        chosen = slice(None) if positions is None else np.asarray(positions, dtype=np.intp)
        numbers, place = np.unique(self.block[chosen], return_inverse=True)
        own = [self.blocks[number] for number in numbers]
        values = [getattr(one.fixed, name, None) for one in own if name not in one.grid]
        if any(isinstance(value, str | bool) for value in values):
            return np.array(values, dtype=object)[place]
        found, rows = np.empty(len(place)), self.row[chosen]
        order = np.argsort(place, kind="stable")
        for at, part in zip(own, np.split(order, np.cumsum(np.bincount(place))[:-1]), strict=False):
            found[part] = at.column(name, rows[part])
        return found

    def training_days(self, positions: Sequence[int] | None = None) -> Array | None:
        """Days to train on the tokens of `limits`, of some plans, of every one if None; None
        without tokens."""
        if self.limits.tokens is None:
            return None
        chosen = slice(None) if positions is None else np.asarray(positions, dtype=np.intp)
        sequences, length = (self.column(n, positions) for n in ("global_batch", "seq_len"))
        steps = self.limits.tokens / (sequences * length)
        return np.asarray(steps * self.step_time[chosen] / DAY)

    def cost(self, positions: Sequence[int] | None = None) -> Array | None:
        """Money to train on them; None without tokens or a price."""
        days = self.training_days(positions)
        if days is None or self.limits.price is None:
            return None
        chosen = slice(None) if positions is None else np.asarray(positions, dtype=np.intp)
        return np.asarray(days * DAY / HOUR * self.gpus[chosen] * self.limits.price)


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

"""Plans of training that a search has timed, best first; and single plans in words."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from predictor.arrays import Array, Index
from predictor.catalog import Assumption
from predictor.errors import InputError
from predictor.hardware import Cluster
from predictor.models import Model
from predictor.plans import CATEGORY_FIELDS, NUMERIC_FIELDS, TrainingPlan
from predictor.search.space import Block
from predictor.timing import Calibration

MEMORY_FRACTION = 0.95
"""Share of a device's memory that a plan may take unless stated: peaks are predicted within a few
per cent, and a plan at the brim runs out of memory half of the time."""

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

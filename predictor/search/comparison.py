"""Two plans against each other: the ratio of their step times, and what makes the difference.

What both plans are wrong about in the same way cancels: the error of a family of operators counts
only by the difference of its shares, and that of the run as a whole not at all (DESIGN, 2.6).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from predictor.arrays import Index
from predictor.hardware import Cluster
from predictor.models import Model
from predictor.plans import TrainingPlan
from predictor.records import dataclass
from predictor.search.contenders import varied
from predictor.search.documents import PACKED, packing_of
from predictor.search.ranking import SearchResult
from predictor.timing import Calibration
from predictor.training import (
    Frame,
    LayerParts,
    as_measured,
    assemble,
    environment_of,
    family_errors,
    host_error,
    parts,
)


@dataclass(frozen=True, slots=True)
class Timed:
    """A plan timed once more, for what a search does not keep.

    step_time   [s]
    breakdown   seconds by term
    errors      family of operators, or the host -> its share of the step times its log-standard-
                deviation
    """

    step_time: float
    breakdown: Mapping[str, float]
    errors: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Ratio:
    """Step time of one plan over another's, with the calibration's interval."""

    value: float
    low: float
    high: float

    @property
    def tie(self) -> bool:
        """Whether it cannot be said which of the two is faster."""
        return self.low <= 1.0 <= self.high


def timed(
    model: Model,
    cluster: Cluster,
    plan: TrainingPlan,
    calibration: Calibration,
    layers: tuple[LayerParts, Index] | None = None,
    around: Frame | None = None,
) -> list[Timed]:
    """Time every plan of a batch of one dimension, or a single one.

    layers, around   what is known of them already, as `training.parts` takes it
    """
    using = environment_of(cluster, plan, calibration.run)
    found, _ = parts(model, cluster, plan, calibration, layers, around)
    step = assemble(found, calibration.run, using)
    of = model, cluster, plan
    none = np.zeros(np.shape(step.step_time))
    step, using, _ = as_measured(found, step, using, none, of, calibration)
    shape = np.shape(step.step_time)

    def plain(table: Mapping[str, Any]) -> list[dict[str, float]]:
        columns = {name: np.broadcast_to(v, shape).ravel() for name, v in table.items()}
        count = math.prod(shape)
        return [
            {name: float(column[at]) for name, column in columns.items()} for at in range(count)
        ]

    waited = {"host": host_error(step, using.factor)}
    errors = plain(family_errors(step, using.factor) | waited)
    return [
        Timed(float(time), breakdown, own)
        for time, breakdown, own in zip(
            np.ravel(step.step_time), plain(step.breakdown), errors, strict=True
        )
    ]


def timed_again(result: SearchResult, positions: Sequence[int] | Index) -> list[Timed]:
    """Some plans of a ranking, in their order."""
    at = np.asarray(positions, dtype=np.intp)
    found: dict[int, Timed] = {}
    for number in np.unique(result.block[at]):
        own = at[result.block[at] == number]
        block, rows = result.blocks[number], result.row[own]
        batch = timed(
            result.model,
            result.cluster,
            block.plan(rows),
            result.calibration,
            result.layers[block.group].of(block, rows),
            result.frames[number].of(rows) if number in result.frames else None,
        )
        found.update(zip(own.tolist(), batch, strict=True))
    return [found[position] for position in at.tolist()]


def ratio(one: Timed, other: Timed, calibration: Calibration, weight: float = 1.0) -> Ratio:
    """Step time of one plan over that of another, times `weight` (their accelerators', where plans
    are ranked by cost).

    sigma² = Σ over families (error of one - error of the other)² + 2 sigma_plan²
    """
    names = dict.fromkeys((*one.errors, *other.errors))  # in an order that does not change
    shared = sum((one.errors.get(f, 0.0) - other.errors.get(f, 0.0)) ** 2 for f in names)
    own = calibration.run.sigma_plan
    reach = math.exp(calibration.interval_q * math.sqrt(shared + 2.0 * own**2))
    value = weight * one.step_time / other.step_time
    return Ratio(value, value / reach, value * reach)


def differences(one: Timed, other: Timed) -> list[tuple[str, float]]:
    """What one plan spends more than another, by term [s], largest in size first."""
    found = [
        (term, one.breakdown.get(term, 0.0) - other.breakdown.get(term, 0.0))
        for term in {**one.breakdown, **other.breakdown}
    ]
    return sorted(found, key=lambda pair: -abs(pair[1]))


def over_best(result: SearchResult, positions: Sequence[int]) -> list[Ratio]:
    """Step times (or costs, as plans are ranked) of some plans over the best one's."""
    winner, *rest = timed_again(result, [0, *positions])
    return [_over(result, one, at, winner) for at, one in zip(positions, rest, strict=True)]


def _over(result: SearchResult, one: Timed, position: int, winner: Timed) -> Ratio:
    weight = result.weight(position) / result.weight(0)
    return ratio(one, winner, result.calibration, weight)


@dataclass(frozen=True, slots=True)
class Alternative:
    """The best plan with another value of one field than the winner's.

    more   (term, seconds more than the winner) that costs most
    """

    field: str
    value: Any
    position: int
    ratio: Ratio
    more: tuple[str, float]


def _first_of_each(values: npt.NDArray[Any]) -> Index:
    """Positions of the first of every distinct number or text."""
    if values.dtype == object:  # few words, many plans
        return np.array([np.argmax(values == one) for one in set(values.tolist())], dtype=np.intp)
    return np.unique(values, return_index=True)[1]


def _in_words(field: str, value: Any) -> tuple[str, Any]:
    """A field and its value as users state them."""
    if field != PACKED:
        return field, value
    packing, division = packing_of(value).values()
    return "packing", f"{packing}, cp_sharding {division}"


TOLD_BY_OTHERS = ("dp", "dp_shard", "recompute_modules", "recompute_share", "stops_early")
"""Fields that follow from others: ranks that are left, parts of recomputation, what frameworks do
with a sharding."""


def alternatives(result: SearchResult, most: int = 3) -> list[Alternative]:
    """For every field of the winner, the best plans with other values of it, `most` of each;
    closest first. They say what each choice of the winner is worth.

    Fields that belong together (those of recomputation, the size of shards) are told by the first.
    """
    chosen: list[tuple[str, Any, int]] = []
    for field in varied(result.blocks):
        if field in TOLD_BY_OTHERS or (field == "mtp" and not result.model.mtp_layers):
            continue
        column = result.column(field)
        others = np.flatnonzero(column != column[0])
        for position in sorted(others[_first_of_each(column[others])].tolist())[:most]:
            chosen.append((*_in_words(field, column[position]), position))
    if not chosen:
        return []
    winner, *rest = timed_again(result, [0, *(position for _, _, position in chosen)])
    found = [
        Alternative(
            field,
            value,
            position,
            _over(result, other, position, winner),
            max(differences(other, winner), key=lambda pair: pair[1]),
        )
        for (field, value, position), other in zip(chosen, rest, strict=True)
    ]
    return sorted(found, key=lambda one: one.ratio.value)


def ties(result: SearchResult, most: int = 200) -> list[tuple[int, Ratio]]:
    """Positions of plans among the first `most` of which it cannot be said that the winner is
    faster, and the ratio of their step time to the winner's."""
    positions = list(range(1, min(most, len(result))))
    pairs = zip(positions, over_best(result, positions), strict=True)
    return [(at, own) for at, own in pairs if own.tie]

"""Which shapes to measure next: a design of experiments over the efficiency model's features.

Every group of operators that has an efficiency of its own (kind and data type) is first covered:
`COVER` shapes, each far from those before it. From then on the shape counts whose time is least
certain, by a Gaussian process over the group's features whose spread is learned as the
measurements come in, weighted by the root of the share that the group has in the work (what many
shapes share errs on average less than what few do). Both per root of the seconds that measuring
costs (Chaloner & Verdinelli 1995 on designs that minimise predicted variance).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from predictor.arrays import Array
from predictor.hardware import Accelerator
from predictor.timing import columns, ideal, kind_of
from predictor.work import Operator

COVER = 6
"""Shapes of each group that come before any refinement."""

COVERING = 1e6
"""What a shape that a group still lacks counts above any refinement."""

LEAST_WEIGHT = 0.15
"""Weight of a group that training hardly notices: a pass of serving may consist of it."""

PRIOR_SPREAD = 0.35
"""Log-standard-deviation of an efficiency of which nothing is known."""

PRIOR_WEIGHT = 3.0
"""Measurements that the prior spread counts as."""

NUGGET = 0.03
"""Log-standard-deviation of a measurement itself."""

OVERHEAD = 0.06
"""Seconds that a measurement takes beside its first calls: samples of small kernels, a set-up."""

CALLS = 12.0
"""Calls that a measurement takes: warm-up and the fewest samples."""

FILLING = 2e-9
"""Seconds per byte that its data takes to be made."""


@dataclass(slots=True, eq=False)
class Group:
    """Candidates of one kind and data type: positions in the list of all, features (standardised),
    ideal times [s], bytes, what has been measured of them (log of time over ideal; NaN: not yet),
    and which are no longer to be had."""

    index: list[int]
    features: Array
    ideal: Array
    moved: Array
    weight: float
    seen: Array
    gone: npt.NDArray[np.bool_]

    def covariance(self, one: Array, other: Array) -> Array:
        """Correlation of two sets of features, 1 where they are equal."""
        width = max(one.shape[1], 1)
        distance = ((one[:, None, :] - other[None, :, :]) ** 2).sum(axis=-1) / width
        return np.asarray(np.exp(-0.5 * distance))

    @property
    def measured(self) -> npt.NDArray[np.intp]:
        """Positions that have been measured."""
        return np.flatnonzero(~np.isnan(self.seen))

    def spread(self) -> float:
        """Log-standard-deviation of what has been measured, the prior mixed in."""
        y = self.seen[self.measured]
        squares = float(((y - y.mean()) ** 2).sum()) if len(y) else 0.0
        return float(np.sqrt((squares + PRIOR_WEIGHT * PRIOR_SPREAD**2) / (len(y) + PRIOR_WEIGHT)))

    def uncertainty(self) -> Array:
        """Log-standard-deviation of every candidate's time given what was measured."""
        known = self.features[self.measured]
        spread = self.spread()
        if not len(known):
            return np.full(len(self.index), spread)
        own = self.covariance(known, known) + (NUGGET / spread) ** 2 * np.eye(len(known))
        cross = self.covariance(known, self.features)
        explained = np.einsum("ij,ij->j", cross, np.linalg.solve(own, cross))
        return np.asarray(spread * np.sqrt(np.clip(1.0 - explained, 0.0, 1.0)))

    def expected(self) -> Array:
        """Expected time of every candidate [s]."""
        y = self.seen[self.measured]
        return np.asarray(self.ideal * np.exp(np.median(y) if len(y) else 1.0))


@dataclass(slots=True, eq=False)
class Design:
    """The order in which candidates are measured, as the results come in.

    longest   candidates expected to take longer than this are left out [s]
    """

    groups: list[Group]
    longest: float
    place: dict[int, tuple[Group, int]] = field(default_factory=dict)
    scores: dict[int, tuple[Array, Array]] = field(default_factory=dict)

    def next(self, left: float) -> int | None:
        """Number of the candidate to measure next, None if none is worth the seconds `left`."""
        best: tuple[float, int] | None = None
        for number, group in enumerate(self.groups):
            if number not in self.scores:
                self.scores[number] = (group.uncertainty(), group.expected())
            sigma, time = self.scores[number]
            cost = OVERHEAD + CALLS * time + FILLING * group.moved
            # What is known already, within the noise of a measurement, is not asked again.
            fits = ~group.gone & (time < self.longest) & (cost < left) & (sigma > NUGGET)
            if not fits.any():
                continue
            behind = max(COVER - len(group.measured), 0)
            value = np.where(fits, sigma, 0.0) * np.sqrt(group.weight / cost)
            score = COVERING * behind + float(value.max())
            if score > 0 and (best is None or score > best[0]):
                best = (score, group.index[int(np.argmax(value))])
        return None if best is None else best[1]

    def drop(self, candidate: int) -> None:
        """Leave a candidate out: it was measured, or it cannot be."""
        group, at = self.place[candidate]
        group.gone[at] = True

    def learn(self, candidate: int, seconds: float) -> None:
        """Take in a measurement."""
        group, at = self.place[candidate]
        group.gone[at] = True
        group.seen[at] = np.log(seconds / group.ideal[at])
        self.scores.pop(next(n for n, g in enumerate(self.groups) if g is group), None)


def design(operators: list[Operator], accelerator: Accelerator, longest: float) -> Design:
    """A design over candidates.

    operators    to choose from, each once
    accelerator  what is known of the device so far
    """
    together: dict[tuple[str, str], list[int]] = {}
    for number, operator in enumerate(operators):
        key = (kind_of(operator.op, operator.variant), operator.dtype)
        together.setdefault(key, []).append(number)
    found = Design([], longest)
    for index in together.values():
        shapes = columns([operators[number] for number in index], ())
        described = ideal(shapes, accelerator)
        scale = described.features.std(axis=0)
        kept = scale > 1e-9
        centred = (described.features - described.features.mean(axis=0))[:, kept] / scale[kept]
        # Directions of a product differ by more than their features say.
        variants = np.eye(len(shapes.variants))[shapes.variant.astype(int)]
        group = Group(
            index,
            np.hstack([centred, 2.0 * variants]) if len(shapes.variants) > 1 else centred,
            described.time,
            shapes.bytes,
            float(described.time.sum()),
            np.full(len(index), np.nan),
            np.zeros(len(index), bool),
        )
        found.groups.append(group)
        found.place.update({number: (group, at) for at, number in enumerate(index)})
    total = sum(group.weight for group in found.groups)
    for group in found.groups:
        group.weight = max(float(np.sqrt(group.weight / total)), LEAST_WEIGHT)
    return found

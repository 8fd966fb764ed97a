"""How steady the steps of a configuration are whose quality nobody knows: a population of clusters,
fitted to tables of step ratios; `python -m calibration.variation.population TABLE...` refits it.

The log-standard-deviation s of a step is log-normal over configurations about

    ln s = level + by_accelerators ln N + by_parameters ln (P / 1e10),

robustly fitted: work of more accelerators is more often disturbed, and what disturbs it lasts the
same while larger models take longer. A step of a configuration of unknown s is then a mixture of
log-normals, and as far as it stalls, Pareto (`predictor.variation.outcome`).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path

import numpy as np

from calibration.sources.reading import read_table
from calibration.variation.ratios import Configuration, configurations
from predictor import catalog
from predictor.arrays import Array
from predictor.errors import InputError
from predictor.files import write_text
from predictor.variation.outcome import Series
from predictor.variation.profile import Profile

FILE = ("variation", "steps.json")

WIDE = 0.5
"""Residuals of ln s beyond this count as less (Huber's weights)."""

STALL = Profile("population", stalls=1.0, stall_least=0.1, stall_index=1.5)

_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(15)
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()


@dataclass(frozen=True, slots=True)
class Population:
    """How steady configurations are.

    level, by_accelerators, by_parameters   of the median configuration's ln s
    apart      standard deviation of ln s between configurations
    within     the same within a run: steps are not all alike
    stalled    share of steps that stall
    """

    level: float
    by_accelerators: float
    by_parameters: float
    apart: float
    within: float
    stalled: float

    def spread(self, accelerators: float, parameters: float) -> float:
        """Log-standard-deviation of a step of the median configuration; of 10 billion parameters
        where theirs are not known."""
        size = np.nan_to_num(np.log(parameters / 1e10))
        return float(
            np.exp(
                self.level + self.by_accelerators * np.log(accelerators) + self.by_parameters * size
            )
        )

    def below(self, ratio: Array, spread: float, apart: float) -> Array:
        """Probability that a step takes at most `ratio` of the median, of a configuration whose
        ln s is normal about that of `spread` with the standard deviation `apart`; shape of
        `ratio`."""
        found = np.zeros(np.shape(ratio))
        for node, weight in zip(_NODES, _WEIGHTS, strict=True):
            series = Series(spread * np.exp(apart * node), 0.0, self.stalled, 0.0, STALL)
            found = found + weight * series.below(ratio)
        return found

    def quantile(self, p: float, spread: float) -> float:
        """Ratio to the median that a step of a configuration of that spread does not exceed with
        probability p."""
        grid = 1.0 + np.geomspace(1e-6, 300.0, 4000)
        reached = self.below(grid, spread, self.within)
        return float(grid[min(int(np.searchsorted(reached, p)), len(grid) - 1)])

    def over_median(self, p: float, spread: float) -> float:
        """P-quantile over the median."""
        return self.quantile(p, spread) / self.quantile(0.5, spread)


def distance(ratios: Array, below: Callable[[Array], Array]) -> float:
    """Kolmogorov-Smirnov distance of sorted ratios from a distribution."""
    found, count = below(ratios), len(ratios)
    over = np.arange(1, count + 1) / count - found
    under = found - np.arange(count) / count
    return float(max(over.max(), under.max()))


def fit(found: Sequence[Configuration]) -> Population:
    """Fit a population to configurations. Raises InputError for fewer than four."""
    if len(found) < 4:
        raise InputError(f"a population is fitted to 4 configurations or more, not {len(found)}")
    spreads = np.log([max(one.spread, 1e-6) for one in found])
    columns = np.stack(
        [
            np.ones(len(found)),
            np.log([one.accelerators for one in found]),
            np.nan_to_num(np.log([one.parameters / 1e10 for one in found])),
        ],
        axis=1,
    )
    weight = np.ones(len(found))
    for _ in range(30):
        part = columns * weight[:, None]
        # A grain of a ridge on the slopes, for tables of one benchmark or one size.
        own = np.linalg.solve(part.T @ columns + np.diag([0.0, 0.2, 0.2]), part.T @ spreads)
        left = spreads - columns @ own
        weight = 1.0 / np.maximum(1.0, np.abs(left) / WIDE)
    tails = [np.quantile(np.log(one.ratios), 0.95) / max(one.spread, 1e-6) for one in found]
    return Population(
        level=float(own[0]),
        by_accelerators=float(own[1]),
        by_parameters=float(own[2]),
        apart=float(np.sqrt(np.mean(left**2))),
        within=_within(float(np.median(tails))),
        stalled=float(np.mean([np.mean(one.ratios > 1.1) for one in found])),
    )


@cache
def _heights() -> tuple[Array, Array]:
    """Spreads of ln s within a run, and how many of the middle half's standard deviations above the
    median the P95 of such steps lies."""
    grid = np.linspace(0.0, 1.5, 31)
    heights = []
    for within in grid:
        own = Population(0.0, 0.0, 0.0, 0.0, float(within), 0.0)
        middle, high = (np.log(own.quantile(p, 0.01)) for p in (0.75, 0.95))
        heights.append(high / (middle / 0.6745))
    return grid, np.array(heights)


def _within(tail: float) -> float:
    """Spread of ln s within a run at which the P95 lies that high."""
    grid, heights = _heights()
    return float(np.interp(tail, heights, grid))


def together(found: Sequence[Configuration], of: Sequence[Population]) -> float:
    """KS distance of the steps of all configurations together, each of the same weight, from the
    mixture of what is predicted for each by the population beside it."""
    spreads = [p.spread(one.accelerators, one.parameters) for one, p in zip(found, of, strict=True)]
    apart = [float(np.hypot(p.apart, p.within)) for p in of]
    evenly = (np.arange(500) + 0.5) / 500
    pooled = np.sort(np.concatenate([np.quantile(one.ratios, evenly) for one in found]))

    def mixture(x: Array) -> Array:
        whole = [p.below(x, s, a) for p, s, a in zip(of, spreads, apart, strict=True)]
        return np.asarray(np.mean(whole, axis=0))

    return distance(pooled, mixture)


def scores(found: Sequence[Configuration], of: Sequence[Population]) -> dict[str, float]:
    """KS distances of configurations, each from the population beside it: mean, median, share up to
    0.15, and of all together."""
    own = []
    for one, p in zip(found, of, strict=True):
        spread = p.spread(one.accelerators, one.parameters)
        below = partial(p.below, spread=spread, apart=float(np.hypot(p.apart, p.within)))
        own.append(distance(one.ratios, below))
    return {
        "mean": float(np.mean(own)),
        "median": float(np.median(own)),
        "share_up_to_0.15": float(np.mean(np.array(own) <= 0.15)),
        "pooled": together(found, of),
    }


def left_out(found: Sequence[Configuration], keys: Sequence[str]) -> list[Population]:
    """For every configuration the population fitted without those of its key."""
    each = {
        key: fit([one for one, other in zip(found, keys, strict=True) if other != key])
        for key in dict.fromkeys(keys)
    }
    return [each[key] for key in keys]


def build(found: Sequence[Configuration]) -> dict[str, object]:
    """What ships: the population, what it was fitted to, and how far it is off what it was not."""
    groups = {
        "configuration": [one.name for one in found],
        "submitter": [one.submitter for one in found],
    }
    return {
        "population": asdict(fit(found)),
        "fitted_to": sorted(one.name for one in found),
        "sources": sorted({one.source for one in found}),
        "steps": int(sum(len(one.ratios) for one in found)),
        "held_out_ks": {by: scores(found, left_out(found, keys)) for by, keys in groups.items()},
    }


def shipped() -> tuple[Population, frozenset[str]]:
    """The population that ships, and the configurations that it was fitted to."""
    path = catalog.data_dir().joinpath(*FILE)
    content = json.loads(path.read_text(encoding="utf-8"))
    return Population(**content["population"]), frozenset(content["fitted_to"])


def main() -> None:
    """Refit the population and write it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, default=catalog.data_dir().joinpath(*FILE))
    asked = parser.parse_args()
    found = [one for path in asked.tables for one in configurations(read_table(path), str(path))]
    content = build(found)
    write_text(asked.out, json.dumps(content, indent=1) + "\n")
    print(json.dumps(content["held_out_ks"], indent=1))


if __name__ == "__main__":
    main()

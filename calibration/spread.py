"""How far runs lie from their predictions: the spread that an interval needs, by conformal means.

Runs of mixtures of experts have a spread of their own: the code of experts differs from framework
to framework and from release to release far more than that of dense models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from predictor.efficiency import RunParameters

LEAST_SOURCES = 3
"""Sources of mixtures below which these share the spread of all runs."""


@dataclass(frozen=True, slots=True)
class Residual:
    """One predicted run: log(predicted / measured), the operators' part of its spread, its source,
    and whether its model is a mixture of experts."""

    error: float
    sigma: float
    source: str
    moe: bool = False


def run_sigma(found: Sequence[Residual], q: float, level: float) -> float:
    """The run's own log-standard-deviation with which `level` of the points, every source counting
    alike, lie inside exp(+-q sigma) (split conformal prediction, Lei et al. 2018)."""
    sources, counts = np.unique([r.source for r in found], return_counts=True)
    share = dict(zip(sources, 1.0 / counts / len(sources), strict=True))
    weight = np.array([share[r.source] for r in found])
    # A point is inside once sigma_run² reaches (error / q)² - sigma_operators².
    needed = np.array([max((r.error / q) ** 2 - r.sigma**2, 0.0) for r in found])
    order = np.argsort(needed)
    covered = np.cumsum(weight[order])
    index = min(int(np.searchsorted(covered, level)), len(order) - 1)
    # A hair more, so that rounding does not leave the deciding point outside.
    return float(np.sqrt(needed[order][index])) * (1.0 + 1e-9)


def with_spread(
    run: RunParameters, found: Sequence[Residual], q: float, level: float
) -> RunParameters:
    """Run parameters whose spreads cover `level` of the runs, dense models and mixtures apart."""
    spreads = []
    for moe in (False, True):
        own = [r for r in found if r.moe == moe]
        enough = len({r.source for r in own}) >= LEAST_SOURCES
        spreads.append(max(run_sigma(own if enough else found, q, level), 0.01))
    return replace(run, sigma=spreads[0], sigma_moe=spreads[1])

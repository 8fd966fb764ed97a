"""Spreads of first tokens under load: how far they come sooner than predicted, how far later, and
how both grow with the share of the time in which prompts are read and with that of the first token
that is a wait for room.

The score of an interval at level 1 - a is its width and 2 / a times by how much it misses
(Gneiting & Raftery 2007, section 6.2); the spreads are those with the least score.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from predictor.arrays import Array
from predictor.timing import EARLY_SPREADS, LATE_SPREADS

DOUBTED = 0.3
"""Of what a source counts, that of one which doubts its own figures. With 0.1, 0.3 and 1 the score
of sources left out is 3.39, 3.40 and 3.70, and 64, 72 and 72 % of their rows are inside."""

FEWEST = 5
"""Rows of a source below which it says nothing of others."""

STARTS = (0.1, 0.4)
"""Spreads from which the search begins."""


def interval_score(low: Array, high: Array, value: Array, level: float) -> Array:
    """Width of intervals, and 2 / (1 - level) times by how much values miss them."""
    missed = np.maximum(low - value, 0.0) + np.maximum(value - high, 0.0)
    return np.asarray(high - low + 2.0 / (1.0 - level) * missed)


def fit_first_tokens(
    errors: Array,
    operators: Array,
    loads: Array,
    sources: Sequence[str],
    doubtful: Array,
    q: float,
    level: float,
) -> dict[str, float]:
    """Spreads by name (`timing.EARLY_SPREADS`, `LATE_SPREADS`); none where no source has enough
    rows. Sources count alike.

    errors     log(predicted / published), of sources left out
    operators  the operators' part of each spread
    loads      share of the time in which prompts are read, and share of the first token that is a
               wait for room, (2, rows)
    doubtful   whether the source doubts its own figure
    """
    from scipy.optimize import minimize

    counts = Counter(sources)
    kept = np.array([counts[one] >= FEWEST for one in sources], bool)
    if not kept.any():
        return {}
    share = np.array([1.0 / counts[one] for one in sources]) * np.where(doubtful, DOUBTED, 1.0)
    weight = share[kept] / share[kept].sum()
    above, own = -np.asarray(errors)[kept], operators[kept]
    shares = np.clip(np.vstack([np.ones_like(own), loads[:, kept]]), 0.0, 1.0)
    names = (*EARLY_SPREADS, *LATE_SPREADS)

    def cost(logs: Array) -> float:
        early, late = np.exp(logs).reshape(2, -1)
        low, high = (q * np.sqrt(own**2 + (each**2) @ shares**2) for each in (early, late))
        return float(np.sum(weight * interval_score(-low, high, above, level)))

    found = [
        minimize(cost, np.full(len(names), np.log(start)), method="Nelder-Mead",
                 options={"maxiter": 4000, "maxfev": 4000, "xatol": 1e-3, "fatol": 1e-5})
        for start in STARTS
    ]  # fmt: skip
    best = min(found, key=lambda one: float(one.fun))
    return {name: round(float(value), 4) for name, value in zip(names, np.exp(best.x), strict=True)}

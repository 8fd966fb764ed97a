"""How far predictions of power lie from what was measured, as the spread of an interval."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from predictor.arrays import Array
from predictor.units import Z80

LEVEL = 0.8
"""Of the intervals: sigma is this quantile of what is missed by, over the normal one's."""

LEAST_SIGMA = 0.05 / Z80
"""Input data alone move the power of products by tens of percent: no interval is narrower."""


def spread(errors: Array) -> float:
    """Log-standard-deviation whose interval holds `LEVEL` of the errors; NaN of none."""
    if not len(errors):
        return float("nan")
    return max(float(np.quantile(np.abs(errors), LEVEL)) / Z80, LEAST_SIGMA)


def spreads_apart(errors: Array, groups: Sequence[str], default: float) -> Array:
    """Spread for each row, told by the rows of other groups alone, so that what an interval holds
    is no matter of its making.

    errors    of rows that were predicted without their group, in logarithms, (N,)
    groups    of the rows, (N,)
    default   where all rows are of one group
    """
    keys = np.asarray(groups, dtype=str)
    found = np.full(len(errors), default)
    for key in np.unique(keys):
        others = errors[keys != key]
        if len(others):
            found[keys == key] = spread(others)
    return found

"""How far predictions of power lie from what was measured, as the spread of an interval."""

from __future__ import annotations

from collections.abc import Callable, Sequence

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


def spread_of_rows(errors: Array, groups: Sequence[str]) -> float:
    """Spread of rows of groups that are known, whatever their groups."""
    return spread(errors)


def spread_of_another(errors: Array, groups: Sequence[str]) -> float:
    """Spread of a group that is none of these: what rows of one differ by among themselves, and
    what they share, which few groups tell (Student's t of as many degrees of freedom).

    errors    of rows that were predicted without their group, in logarithms, (N,)
    groups    of the rows, (N,)
    """
    from scipy.special import stdtrit  # a fit alone needs it

    names, of = np.unique(np.asarray(groups, dtype=str), return_inverse=True)
    own = np.array([errors[of == at].mean() for at in range(len(names))])
    shared = float(np.sqrt((own**2).mean()))
    level = 0.5 * (1.0 + LEVEL)
    return float(np.hypot(spread(errors - own[of]), shared * stdtrit(len(names), level) / Z80))


def spreads_apart(
    errors: Array,
    groups: Sequence[str],
    default: float,
    told: Callable[[Array, Sequence[str]], float] = spread_of_rows,
) -> Array:
    """Spread for each row, told by the rows of other groups alone, so that what an interval holds
    is no matter of its making.

    errors    of rows that were predicted without their group, in logarithms, (N,)
    groups    of the rows, (N,)
    default   where all rows are of one group
    told      the spread that others tell
    """
    keys = np.asarray(groups, dtype=str)
    found = np.full(len(errors), default)
    for key in np.unique(keys):
        others = errors[keys != key]
        if len(others):
            found[keys == key] = told(others, keys[keys != key].tolist())
    return found

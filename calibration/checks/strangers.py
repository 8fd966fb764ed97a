"""What other people's measurements of the same kernels add to the spread of one's own.

Clocks, cold and warm caches, how kernels are launched and timed: a table of a source that no fit
has seen is off by more than shapes left out of a known one. How much more is what makes intervals
cover their share of such sources (`sources.tidy.STRANGERS`), as a mean over them.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from calibration.checks.kernel_rows import predicted_rows
from predictor.timing import Calibration

LEAST_LATENCY = 50.0
"""Rows below are left out: some of these harnesses time launches by the host, too [us]."""

LEAST_ROWS = 20
"""Sources of fewer rows do not count: four say nothing of a share of 80 %, and had as much say as
hundreds of another harness."""


def between_sources(table: pd.DataFrame, calibration: Calibration, level: float) -> float:
    """Log-standard-deviation that rows of unseen sources add to that of their kernels.

    table   checked kernel rows of such sources, none of them fitted
    level   share of a source's rows that intervals are to cover, as a mean over sources
    """
    rows = predicted_rows(table[table["latency_us"] >= LEAST_LATENCY], calibration)
    errors: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        errors.setdefault(row.source, []).append((abs(row.log_error), row.sigma_operators))
    groups = [np.array(found).T for found in errors.values() if len(found) >= LEAST_ROWS]
    if not groups:
        return 0.0

    def covered(more: float) -> float:
        reach = (calibration.interval_q * np.hypot(sigma, more) for _, sigma in groups)
        return float(np.mean([np.mean(e <= r) for (e, _), r in zip(groups, reach, strict=True)]))

    low, high = 0.0, 2.0
    for _ in range(30):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if covered(middle) < level else (low, middle)
    return high

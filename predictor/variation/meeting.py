"""Waiting for the slowest rank wherever ranks meet, of machines whose ranks were timed together."""

from __future__ import annotations

import numpy as np

from predictor.arrays import Array, Numeric

SHORTEST = 1e-9
"""Seconds between two meetings at the least, so that none divides by zero."""


def late(work: Array, meetings: Array, alike: Numeric, drawn: Numeric) -> Array:
    """What ranks wait for the slowest of them [s]; broadcast shape.

    work      of a rank [s]
    meetings  that cut it into stretches; none: no waiting
    alike     mean lateness of the slowest over a stretch, however long that lasts
    drawn     the same of what is drawn anew in each, of a second's stretch [s^0.5]
    """
    between = np.maximum(work / np.maximum(meetings, 1.0), SHORTEST)
    found = work * np.hypot(alike, np.asarray(drawn) / np.sqrt(between))
    return np.asarray(np.where(meetings > 0, found, 0.0))

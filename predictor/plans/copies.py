"""To how many ranks, or nodes, the copies of a token go."""

from __future__ import annotations

import numpy as np

from predictor.arrays import Array, Numeric


def distinct_share(
    domains: Numeric, copies: Numeric, reach: Numeric = np.nan, turn: Numeric = np.nan
) -> Array:
    """Share of an all-to-all that is left where copies of an element that go to one domain go
    there once, 0..1: of `copies` draws among `domains`, how many differ, on average.

    reach   domains among which each element draws; NaN: all
    turn    targets that are dealt in turn, so that the copies of an element go to neighbours; NaN:
            they are drawn
    """
    several = np.asarray(copies) > 1
    if not several.any():
        return np.ones(np.broadcast_shapes(np.shape(domains), np.shape(copies)))
    spread = np.fmin(np.maximum(domains, 1.0), reach)
    drawn = spread / copies * (1.0 - np.power(1.0 - 1.0 / spread, copies))
    if np.all(np.isnan(turn)):
        return np.where(several, drawn, 1.0)
    own = np.rint(np.where(np.isnan(turn), 1.0, turn) / np.maximum(domains, 1.0))
    own = np.maximum(own, 1.0)
    # Elements begin at multiples of what they share with a domain's targets.
    common = np.gcd(np.rint(copies).astype(int), own.astype(int))
    dealt = np.minimum((copies + own - common) / own, spread) / copies
    return np.where(several, np.where(np.isnan(turn), drawn, dealt), 1.0)

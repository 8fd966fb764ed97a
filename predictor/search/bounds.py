"""Further laws that a search asks of plans: what its target can express."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from predictor.arrays import take
from predictor.plans import Rule, any_broken

Within = Callable[[Any], list[Rule]]
"""Plans of a batch that obey the laws -> further ones."""


def further(within: Within | None, batch: Any, laws: list[Rule]) -> list[Rule]:
    """The further laws of a batch of plans, asked of those only that obey the others.

    batch  plans, one-dimensional
    laws   that all plans obey
    """
    if within is None:
        return []
    lawful = np.flatnonzero(~any_broken(laws, batch.shape))
    if not lawful.size:
        return []
    found = []
    for law in within(take(batch, lawful)):
        broken = np.zeros(batch.shape, dtype=bool)
        broken[lawful] = law.broken
        found.append(replace(law, broken=broken))
    return found

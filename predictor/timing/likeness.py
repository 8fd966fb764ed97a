"""Which accelerators are alike: whose measurements stand for one of which nothing was measured."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from predictor.arrays import Numeric
from predictor.hardware import Accelerator
from predictor.records import dataclass


@dataclass(frozen=True, slots=True)
class Kin:
    """Whose measurements a pooled model learned from: their vendor, and their mean `traits`."""

    vendor: str
    traits: tuple[float, ...]


LIKENESS = 0.6
"""Distance of traits over which a relative's say falls by a factor e (accelerators of the shared
tables left out with their architecture, means over kinds of log errors: 0.3 0.231 on HBM parts and
0.323 on others, 0.6 0.231 and 0.317, 1.2 0.243 and 0.311, 3 0.283 and 0.337)."""


def per_clock(accelerator: Accelerator) -> Numeric:
    """16-bit arithmetic of a processor per clock [FLOP]; NaN where unknown."""
    half = accelerator.peak.get("bf16", accelerator.peak.get("fp16", np.nan))
    return half / (accelerator.sms * accelerator.clock)


@lru_cache(maxsize=8)
def traits(accelerator: Accelerator) -> tuple[float, ...]:
    """What kernels of an accelerator live on, as logarithms: arithmetic over bandwidth, bandwidth
    of the cache over that of memory, arithmetic of a processor per clock. NaN where unknown."""
    half = accelerator.peak.get("bf16", accelerator.peak.get("fp16", np.nan))
    found = (
        half / accelerator.bandwidth,
        accelerator.l2_bandwidth / accelerator.bandwidth,
        per_clock(accelerator),
    )
    return tuple(float(np.mean(np.log(ratio))) for ratio in found)


def likeness(one: tuple[float, ...], other: tuple[float, ...]) -> float:
    """How much a relative counts, 0..1; traits that are not known do not part them."""
    away = np.abs(np.subtract(one, other))
    return float(np.exp(-np.nansum(away) / LIKENESS))

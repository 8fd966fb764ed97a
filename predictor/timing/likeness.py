"""Which accelerators are alike: whose measurements stand for one of which nothing was measured."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from predictor.arrays import Numeric
from predictor.hardware import Accelerator
from predictor.precision import PEAK
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


STRANGE = 0.8
"""Distance of a trait that is not known: as far apart as the shipped pools are by one that is
(their means by trait: 0.70, 0.75, 1.03). Were it none, those of which least is known would be
everybody's nearest relatives, as Pascal without a 16-bit rate was Blackwell's."""

USUAL = {"fp8": 2.0, "int8": 2.0, "fp4": 4.0}
"""Rates of matrix units over their 16-bit rate: as many times as operands are narrower."""


def per_clock(accelerator: Accelerator, dtype: str = "bf16") -> Numeric:
    """Arithmetic of a processor per clock as 16-bit arithmetic [FLOP]: that of a narrow data type
    over what it usually is of that; NaN where unknown."""
    rate = accelerator.peak.get("bf16", accelerator.peak.get("fp16", np.nan))
    peak = PEAK.get(dtype, dtype)
    if peak in USUAL:
        rate = accelerator.peak.get(peak, np.nan) / USUAL[peak]
    return rate / (accelerator.sms * accelerator.clock)


HELD_BACK = 3.0
"""Rate of 8-bit integers over that of 16 bits from which on the latter is held back: matrix units
multiply twice as fast at half the width, GeForce cards four times (NVIDIA's white papers of Turing,
Ampere and Ada: half the rate where products in 16 bits are added up in 32)."""


def held_back(accelerator: Accelerator) -> bool:
    """Whether an accelerator's 16-bit rate is held back below what all else on the chip is made
    for. RTX 3090 left out with its architecture: mean log error of products in bf16 0.38, and 0.16
    where relatives' products hide beside the arithmetic (`relatives.eased`). Units that are merely
    narrower gain nothing from that: 0.15 and 0.21 on A100, 0.14 and 0.28 on MI300X (blocks in fp8).
    """
    half = accelerator.peak.get("bf16", accelerator.peak.get("fp16", np.nan))
    held = np.all(accelerator.peak.get("int8", 0.0) >= HELD_BACK * np.asarray(half))
    return bool(held) and accelerator.vendor == "NVIDIA"  # others have units for integers


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
    """How much a relative counts, 0..1."""
    away = np.abs(np.subtract(one, other))
    return float(np.exp(-np.where(np.isnan(away), STRANGE, away).sum() / LIKENESS))

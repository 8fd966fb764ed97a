"""Three taxes on multi-accelerator work (arXiv 2511.02168): launching kernels, waiting for
collectives to end before the next kernel starts, and bringing through memory what the next kernel
reads. What each takes alone, all together, and what they share.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from predictor.arrays import Array, Numeric
from predictor.errors import InputError
from predictor.hardware import Accelerator
from predictor.records import dataclass
from predictor.timing.calibration import Calibration
from predictor.work import Operator

LAUNCH, BULK, LOCALITY = "launch", "bulk-synchronous waiting", "data locality"
TAXES = (LAUNCH, BULK, LOCALITY)

STREAMING = ("norm", "elementwise", "softmax", "embedding")
"""Kernels that read what the kernel before has written."""

TILES = 8
"""Pieces into which a product and its collective are cut, where they overlap."""


@dataclass(frozen=True, slots=True)
class Taxes:
    """What each tax takes of `total`, alone [s]; and all taken away together."""

    total: float
    alone: dict[str, float]
    together: float

    @property
    def interaction(self) -> float:
        """What all together save beyond the sum of each alone; below 0 where they overlap [s]."""
        return self.together - sum(self.alone.values())

    def to_dict(self) -> dict[str, Any]:
        """As `--json` writes it."""
        return {
            "total_s": self.total,
            "alone_s": dict(self.alone),
            "together_s": self.together,
            "interaction_s": self.interaction,
            "shares": {name: value / self.total for name, value in self.alone.items()},
        }


def taxes_of(time: Callable[[frozenset[str]], float]) -> Taxes:
    """Taxes of what takes `time(without)` when some of `TAXES` are not paid [s]."""
    total = time(frozenset())
    alone = {name: max(total - time(frozenset({name})), 0.0) for name in TAXES}
    return Taxes(total, alone, max(total - time(frozenset(TAXES)), 0.0))


def tiled(product: Numeric, collective: Numeric, tiles: float = TILES) -> Array:
    """Time of a product and its collective that overlap in tiles [s]: the longer one and one tile
    of the other, max + min / n; with one tile their sum. Shape of the two.

    Raises InputError for less than one tile.
    """
    if not tiles >= 1:
        raise InputError(f"a product is cut into one tile or more, not {tiles:g}")
    return np.asarray(
        np.maximum(product, collective) + np.minimum(product, collective) / float(tiles)
    )


def without_launches(calibration: Calibration) -> Calibration:
    """The same kernels, but an empty one takes no time and the host launches for free."""
    kernels = {key: replace(model, latency=0.0) for key, model in calibration.kernels.items()}
    run = replace(calibration.run, host_per_kernel=0.0)
    return replace(calibration, kernels=kernels, run=run)


def cached_share(accelerator: Accelerator) -> float:
    """Share of a streaming kernel's time that goes away where it reads from cache, not memory."""
    return float(np.maximum(1.0 - accelerator.bandwidth / accelerator.l2_bandwidth, 0.0))


def on_chip(operators: tuple[Operator, ...], accelerator: Accelerator) -> Array:
    """Time of operators whose intermediates stay in the last-level cache over their time through
    memory, (operators,): of those that stream, and whose half of the traffic (what they read) fits
    it."""
    fits = np.array([float(np.max(o.bytes)) / 2.0 <= float(accelerator.l2) for o in operators])
    streams = np.array([o.op in STREAMING for o in operators])
    return np.where(streams & fits, 1.0 - cached_share(accelerator), 1.0)

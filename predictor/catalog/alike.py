"""Accelerators that somebody describes, and those of the catalog that they are like."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from predictor.hardware import Accelerator

NEAR = 2.0
"""Unlikeness (`_unlike`) up to which an accelerator is one of the catalog's with other numbers.
Beyond it, what all accelerators of its architecture say together is nearer, unless it has as much
of everything: then it is as quick at least."""

FURTHER = 0.1
"""Log-standard-deviation that one unit of unlikeness adds, as its root: products of the shared
tables on one accelerator of an architecture, told from another's by the ratio of their rooflines,
are missed by 0.08 (root mean square) at 0.2 to 1 (A100, H100, H200, GH200, B200, B300) and by 0.25
at 3 to 6 (MI308X, H20, L4); 0.05 of the first is there between two of one kind (H100, H800)."""

ALIKE = ("bandwidth", "l2", "l2_bandwidth", "sms", "clock")
"""Traits of accelerators, beside their peaks, by which they are alike: not the size of the
memory, which makes no kernel quicker."""


def as_alike(own: Accelerator, known: Sequence[Accelerator]) -> Accelerator:
    """An accelerator that somebody describes, with the one of the catalog whose efficiencies it
    takes: with its data types, the one most alike, if it is `NEAR`. What is described as the
    catalog has it, by its name, is the catalog's; by another it is as quick, and what has more of
    anything no slower.

    known   accelerators of the catalog of its architecture
    """
    if same := next((one for one in known if repr(one) == repr(own)), None):  # unknown is nan
        return same
    found = [(_unlike(own, one), at) for at, one in enumerate(known)]
    near = [one for one in found if one[0] <= NEAR]
    # Farther away it is as quick at least as those of which it has as much of everything.
    less = [one for one in found if _has_as_much(own, known[one[1]])]
    apart, at = min(near or less, default=(np.inf, -1))
    if at < 0:
        return own
    return replace(own, relative=known[at], doubt=FURTHER * float(np.sqrt(apart)))


def _unlike(one: Accelerator, other: Accelerator) -> float:
    """How far apart two accelerators are: the sum of the logarithms of what one has more of (of
    their peaks, the mean). Endless where the other lacks a data type."""
    if not set(one.peak) <= set(other.peak):
        return np.inf
    peaks = np.array([one.peak[dtype] / other.peak[dtype] for dtype in one.peak])
    rest = np.array([getattr(one, name) / getattr(other, name) for name in ALIKE])
    return float(np.mean(abs(np.log(peaks))) + np.sum(abs(np.log(rest))))


def _has_as_much(one: Accelerator, other: Accelerator) -> bool:
    """Whether one accelerator has no less of anything than another of its data types."""
    traits = all(getattr(one, name) >= getattr(other, name) for name in ALIKE)
    return traits and all(one.peak[dtype] >= other.peak.get(dtype, np.inf) for dtype in one.peak)

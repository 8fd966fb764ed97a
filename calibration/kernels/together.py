"""Models of all accelerators of a vendor together, for those of an architecture that nobody timed.

What its architectures say one by one, each follows its own tables. Fitted together they have to
agree on what a feature does, and what is peculiar to one of them averages out. NVIDIA's
architectures left out in turn (Blackwell with its mid-life revision; products, experts, attention
in 16 bits, products in fp8): mean log error of the weighted mean over architectures 0.254, of the
mean of that and of the model of all together (`timing.kernels.blend`) 0.229.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from calibration.kernels.fit import NETWORK_POINTS, Points, fit_points
from predictor.hardware import Accelerator
from predictor.timing import VENDOR, EfficiencyModel, Kin, traits

MOST_TOGETHER = 15_000
"""Neutral points, and measurements, that a fit of a vendor's accelerators takes at most."""

SEEN_TOGETHER = 1.2e6
"""Points that its network sees in all its epochs: half of what one architecture's does, since it is
not to follow any of them closely."""


def kin_of(names: Sequence[str], accelerators: Mapping[str, Accelerator]) -> Kin:
    """Whose measurements a model of several accelerators of one vendor is of."""
    every = [traits(accelerators[name]) for name in names]
    return Kin(accelerators[names[0]].vendor, tuple(float(x) for x in np.mean(every, axis=0)))


def groups(
    names: Sequence[str], accelerators: Mapping[str, Accelerator], without: str = ""
) -> dict[str, list[str]]:
    """Accelerators by vendor, of vendors of which more than one architecture was measured.

    without   an architecture that is left out
    """
    found: dict[str, list[str]] = {}
    for name in names:
        if accelerators[name].architecture != without:
            found.setdefault(accelerators[name].vendor, []).append(name)
    return {
        vendor: own
        for vendor, own in found.items()
        if len({accelerators[name].architecture for name in own}) > 1
    }


def fit_together(
    points: Points,
    kind: str,
    dtype: str,
    accelerators: Mapping[str, Accelerator],
) -> EfficiencyModel | None:
    """Fit points of several architectures of one vendor; None where they are too few for a network
    (products of features run away between architectures)."""
    if len(points.time) < NETWORK_POINTS:
        return None
    names = [str(name) for name in np.unique(points.group.astype(str))]
    place = f"{VENDOR}{accelerators[names[0]].vendor}"
    model = fit_points(points, kind, dtype, place, seen=SEEN_TOGETHER)
    empty = [float(np.median(points.latency[points.group == name])) for name in names]
    return replace(
        model,
        latency=float(np.mean(empty)),
        keys=np.empty(0),
        kin=kin_of(names, accelerators),
        year=float(np.mean([accelerators[name].year for name in names])),
    )

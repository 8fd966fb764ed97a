"""Pools of few points, which lean on what many points say.

Hundreds of tuned shapes of one library do not say what they leave out: products of features that
fit them run away on other accelerators. Half of what a model of another design's many accelerators
answers, and a firmly held line through what that leaves, does not. Products of aiter's tables, each
AMD architecture from each other, means over pairs of mean log errors: products of features 0.40, a
line alone 0.33, the other vendor's model bent 0.28, half of it and a line 0.23 (0.4 or 0.6 of it
the same; a line held three times less firmly 0.24, three times more 0.24).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from calibration.kernels.fit import Points, balance, inefficiency, shortest
from predictor.timing import VENDOR, EfficiencyModel
from predictor.timing.data_types import RELATED_DTYPES

LEANT = ("gemm", "bmm", "moe_gemm", "attention_prefill", "attention_decode")
"""Operators of which there is a model to lean on. Attention was timed in few points on TPUs alone:
products of features took 278 us there for a decoding step on TPUv4 that takes 38 on TPUv6e."""

SHARE, FIRM = 0.5, 100.0
"""How much of the other model counts, and the pull of the line's slopes to zero."""

FEW_POINTS = (20, 8000)
"""Pools of so many points lean: fewer say one thing each, and those of whole harnesses have tens of
thousands."""

BEST = 0.02
"""Share of the points that are better than what counts as the best."""

Models = Mapping[tuple[str, str, str], EfficiencyModel]
"""Keyed as in the calibration."""


def support(models: Models, kind: str, dtype: str) -> EfficiencyModel | None:
    """The model of a vendor's accelerators together that has most points of a kind and data type,
    or else of a related one, or of the generic kind; None where there is none."""
    for name in dict.fromkeys((kind, kind.partition(".")[0])):
        for candidate in (dtype, *RELATED_DTYPES.get(dtype, ())):
            found = [
                model
                for (own, of, place), model in models.items()
                if (own, of) == (name, candidate) and place.startswith(VENDOR)
            ]
            if found:
                return max(found, key=lambda model: model.points)
    return None


def leans(points: Points, kind: str) -> bool:
    """Whether points are so few that a pool of them leans on others."""
    return kind.partition(".")[0] in LEANT and FEW_POINTS[0] <= len(points.time) < FEW_POINTS[1]


def leaning(model: EfficiencyModel, points: Points, other: EfficiencyModel) -> EfficiencyModel:
    """The model of a pool as `SHARE` of another and a line through what that leaves of the points.

    model   of the pool's points, whose names and places stay
    """
    from sklearn.linear_model import Ridge

    z = other.standard(points.features)
    base = inefficiency(replace(other, stacks={}), points)
    weight = points.weight * balance(points.group)
    line = Ridge(alpha=FIRM).fit(z, points.y - SHARE * base, sample_weight=weight)
    return replace(
        other,
        kind=model.kind,
        dtype=model.dtype,
        accelerator=model.accelerator,
        latency=shortest(points),
        limit=max(model.limit, SHARE * other.limit),
        sigma=model.sigma,
        points=model.points,
        offsets=dict.fromkeys(map(str, np.unique(points.variant)), 0.0),
        weights=(*other.weights[:-1], SHARE * other.weights[-1]),
        biases=(*other.biases[:-1], SHARE * other.biases[-1]),
        keys=np.empty(0),
        stacks={},
        year=model.year,
        tilt=np.concatenate([[line.intercept_], line.coef_]),
        lags={},
        near=None,
        casts=model.casts,
        kin=model.kin,
        least=_best(points),
    )


def _best(points: Points) -> float:
    """y of the most efficient of the points that arithmetic binds: slower units of another chip do
    not make a library's kernels better than the best that it was seen to run."""
    bound = points.features[:, 0] > 0.0
    return (
        max(float(np.quantile(points.y[bound], BEST)), 0.0) if bound.sum() >= FEW_POINTS[0] else 0.0
    )

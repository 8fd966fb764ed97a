"""Scores how steady steps are: P95 and P99 over the median, and the distance of the whole
distribution (Kolmogorov-Smirnov), configuration by configuration and of all together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from calibration.checks.scored import Scored
from calibration.variation.population import Population, distance, left_out, shipped, together
from calibration.variation.ratios import Configuration

LEVELS = {"p95_over_p50": 0.95, "p99_over_p50": 0.99}


def _rows(one: Configuration, of: Population, q: float, in_sample: bool) -> list[Scored]:
    spread = of.spread(one.accelerators, one.parameters)
    reach = float(np.exp(q * of.apart))
    median = float(np.median(one.ratios))

    def row(metric: str, published: float, values: tuple[float, float, float]) -> Scored:
        return Scored(
            point_id=f"{one.name}:{metric}",
            source=one.source,
            metric=metric,
            published=published,
            predicted=values[0],
            low=values[1],
            high=values[2],
            in_sample=in_sample,
            model=one.benchmark,
            kind="variation",
        )

    found = []
    for metric, p in LEVELS.items():
        stated = float(np.quantile(one.ratios, p)) / median
        ends = tuple(of.over_median(p, spread * by) for by in (1.0, 1.0 / reach, reach))
        found.append(row(metric, stated, ends))  # type: ignore[arg-type]
    apart = float(np.hypot(of.apart, of.within))
    far = distance(one.ratios, lambda x: of.below(x, spread, apart))
    return [*found, row("ks", 0.0, (far, far, far))]


def _scored(
    found: Sequence[Configuration], of: Sequence[Population], q: float, fitted: Sequence[bool]
) -> list[Scored]:
    rows = [
        row
        for one, population, inside in zip(found, of, fitted, strict=True)
        for row in _rows(one, population, q, inside)
    ]
    if len(found) > 1:
        far = together(found, of)
        rows.append(
            Scored(
                point_id="all configurations:ks_pooled",
                source="all configurations",
                metric="ks_pooled",
                published=0.0,
                predicted=far,
                low=far,
                high=far,
                in_sample=any(fitted),
                kind="variation",
            )
        )
    return rows


def scored(found: Sequence[Configuration], q: float) -> list[Scored]:
    """Rows of configurations, against the population that ships; those that it was fitted to are
    in the sample.

    q   log-standard-deviations of an interval
    """
    of, fitted = shipped()
    return _scored(found, [of] * len(found), q, [one.name in fitted for one in found])


def refolded(found: Sequence[Configuration], q: float, by: str) -> list[Scored]:
    """The same against populations fitted to these configurations without each group: 'source',
    'model' (the benchmark) or 'accelerator' (the configuration itself: tables state none)."""
    if len(found) < 5:
        return scored(found, q)
    keys = {
        "source": [one.source for one in found],
        "model": [one.benchmark for one in found],
        "accelerator": [one.name for one in found],
    }[by]
    if len(set(keys)) < 2:
        keys = [one.name for one in found]
    return _scored(found, left_out(found, keys), q, [False] * len(found))

"""What of a run's parameters is fitted, and its fit to contrasts within sources."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from calibration.robust import soft, with_priors
from calibration.runs.apart import Runs, errors
from predictor.arrays import Array
from predictor.timing import RunParameters
from predictor.training import HOP, LAUNCH, MIXED, NODES, ONCE, ROUTED, YOUNG

NOISE = 0.08
"""Log error of a row beside its source's own, beyond which it counts less: repeats of one
configuration differ by 1 to 8 % (METHOD, floors)."""

MOST_ROWS = 20.0
"""A source counts as so many rows at most: its rows share their errors."""

FAR = 0.3
"""Log error of a source's median run, beside that of the median source, beyond which the source
counts less, by the square: steps that take half as long again as their parts are made of something
else, which contrasts among them are contrasts of (eager loops over experts, repeats that differ by
1.8 times)."""

STEP = 1e-3
"""By which a parameter is moved on its scale to see what follows."""


@dataclass(frozen=True, slots=True)
class Free:
    """A parameter that is fitted: how it is kept in a run's parameters, and its prior.

    kind     'overlap' (a share, on the logit scale) or 'factors' (on the log scale)
    key      in that mapping
    spread   of the prior, on that scale
    start    middle of the prior where the documented defaults have none (a launch that binds: at
             one that does not, nothing would move)
    """

    kind: str
    key: str
    spread: float
    start: float | None = None


SHARED = (
    Free("overlap", "tp", 1.0),
    Free("overlap", "dp", 1.0),
    Free("factors", LAUNCH, 0.5, 5.0),
    Free("factors", ROUTED, 0.7, 40.0),
    Free("factors", ONCE, 0.7, 3000.0),
    Free("factors", "attention.triton", 0.33),
    Free("factors", YOUNG, 0.15, 1.0),
    Free("factors", MIXED, 0.15, 1.0),
)
"""Layers of Megatron Core take the host about a millisecond forward and backward, some thirty
operators, hence 5 times the launch alone; those of mixtures without graphs, several. A model of 32
layers has some 300 tensors, and a training loop takes each in hand twice or so once a step (norm,
update, copies): at 5 launches each, with a wait and the next batch, some 3,000 launches, 18 ms.
The first FlashAttention in Triton is 1.3 to 2.5 times slower than FlashAttention-2 (`data/defaults/
run.yaml`): half of that span is 0.33.
Contention, the time of communication per doubling of nodes and the times of products, attention
and streams in a step over those by themselves were free, too: none made sources that were left
out better, so that they keep their defaults."""

LAUNCHES: Mapping[str, tuple[Free, ...]] = {
    "megatron-deepspeed": (Free("factors", f"{LAUNCH}/megatron-deepspeed", 2.0, 8.0),),
    "nanotron": (
        Free("factors", f"{LAUNCH}/nanotron", 2.0, 8.0),
        Free("factors", f"{HOP}/nanotron/slow", 3.0, 10.0),
        Free("factors", f"{HOP}/nanotron", 3.0, 1.0),
        Free("factors", f"{NODES}/nanotron", 0.5, 1.0),
    ),
}
"""By framework: what its sweeps of small models, bound by launches, say of it."""


def _value(run: RunParameters, free: Free) -> float:
    """A parameter on its scale; its prior's middle where it is not set."""
    value = getattr(run, free.kind).get(free.key, free.start)
    if free.kind == "overlap":
        value = min(max(value, 0.01), 0.99)
        return float(np.log(value / (1.0 - value)))
    return float(np.log(value))


def _set(run: RunParameters, free: Sequence[Free], values: Array) -> RunParameters:
    """Parameters with values on their scales."""
    for one, value in zip(free, values.tolist(), strict=True):
        natural = 1.0 / (1.0 + np.exp(-value)) if one.kind == "overlap" else np.exp(value)
        changed = {**getattr(run, one.kind), one.key: float(f"{natural:.6g}")}
        if one.kind == "overlap":
            run = replace(run, overlap=changed)
        else:
            run = replace(run, factors=changed)
    return run


def descend(runs: Runs, run: RunParameters, free: Sequence[Free]) -> RunParameters:
    """Least squares of log errors within sources, with a prior.

    run    where the search starts; the prior is around it
    free   what may change

    The mean error of every source is free; a source counts as `MOST_ROWS` at most. Rows whose
    error lies far from their source's mean count less (soft absolute value).
    """
    from scipy.optimize import least_squares

    _, group = np.unique(runs.source, return_inverse=True)
    weight = np.minimum(1.0, MOST_ROWS / np.bincount(group))[group]
    start = np.array([_value(run, one) for one in free])
    prior = np.array([one.spread for one in free])
    count, rows = len(free), len(group)
    at_start = errors(runs, run)
    middles = np.array([np.median(at_start[group == g]) for g in range(int(group.max()) + 1)])
    away = np.abs(middles - np.median(middles))
    weight = weight * (np.minimum(1.0, FAR / np.maximum(away, FAR)) ** 2)[group]

    def residuals(found: Array) -> Array:
        off = errors(runs, _set(run, free, found[:count])) - found[count:][group]
        return np.concatenate([off / NOISE, (found[:count] - start) / prior])

    def slopes(found: Array) -> Array:
        table = np.zeros((rows + count, len(found)))
        here = errors(runs, _set(run, free, found[:count]))
        for column, unit in enumerate(np.eye(count)):
            there = errors(runs, _set(run, free, found[:count] + STEP * unit))
            table[:rows, column] = (there - here) / STEP / NOISE
            table[rows + column, column] = 1.0 / prior[column]
        table[np.arange(rows), count + group] = -1.0 / NOISE
        return table

    found = least_squares(
        residuals,
        np.concatenate([start, middles]),
        jac=slopes,
        loss=with_priors(soft, weight),
        xtol=1e-6,
        ftol=1e-8,
    )
    return _set(run, free, found.x[:count])


def fit_parameters(runs: Runs, run: RunParameters) -> RunParameters:
    """Launch costs, then shared parameters from the frameworks without any.

    run   where the search starts, and the middle of the priors
    """
    found = run
    for framework, free in LAUNCHES.items():
        own = runs.framework == framework
        if own.any():
            found = descend(runs.only(own), found, free)
    others = ~np.isin(runs.framework, list(LAUNCHES))
    return descend(runs.only(others), found, SHARED) if others.any() else found

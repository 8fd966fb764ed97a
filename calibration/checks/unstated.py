"""Whether published runs chose otherwise than what is assumed of them: an ablation.

    python -m calibration.checks.unstated data/reference/training.csv [--only SOURCE ...]

Every field that a row leaves open is varied alone (`predictor.training.doubts`): the largest change
of the step that another value makes is its doubt. Were a share of the runs to have that other value
instead, errors would lean the way of the doubts, and scatter as they do. Both are fitted with every
source left out in turn: the share of each field (a distribution's weight), and a spread in
proportion to the doubts (an interval's term).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from scipy.optimize import lsq_linear, minimize
from scipy.stats import t as student

from calibration.runs.apart import Runs, take_apart
from calibration.runs.fit import default_run, left_out, read_points
from predictor.arrays import Array
from predictor.catalog import load
from predictor.timing import Calibration
from predictor.training import assemble, environment_of, parts
from predictor.training.doubts import doubts
from predictor.units import Z80

Names = npt.NDArray[np.str_]

SHRINK, REACH = 0.3, 0.1
"""Weight of no share at all against a source; log error beyond which a row counts less."""

ROUNDS = 20
"""Of weighing rows by what is left of their errors."""

TAILS = 3.0
"""Degrees of freedom of Student's t, with whose tails errors of runs are taken to be spread."""

LEVEL = 0.8
"""Of the intervals."""

LEAST_SOURCES = 3
"""Sources with a doubt about a field below which nothing is fitted to it."""


def changes(runs: Runs, calibration: Calibration) -> tuple[Array, tuple[str, ...]]:
    """Doubts of every run, as log(step with the other value / step): (runs, fields), and the
    fields."""
    rows: list[dict[str, float]] = []
    for point in runs.points:
        request = point.request

        def time(plan: object, request: object = request) -> float:
            found, _ = parts(request.model, request.cluster, plan, calibration)  # type: ignore[attr-defined, arg-type]
            using = environment_of(request.cluster, plan, calibration.run)  # type: ignore[attr-defined, arg-type]
            return float(assemble(found, calibration.run, using).step_time)

        found = doubts(request, calibration.run, time)
        rows.append({one.field: float(np.log1p(one.change)) for one in found})
    names = sorted({name for row in rows for name in row})
    table = np.array([[row.get(name, 0.0) for name in names] for row in rows])
    there = table.reshape(len(rows), len(names)) != 0.0
    enough = [len(set(runs.source[there[:, i]])) >= LEAST_SOURCES for i in range(len(names))]
    kept = [name for name, own in zip(names, enough, strict=True) if own]
    return table.reshape(len(rows), len(names))[:, enough], tuple(kept)


def each_alike(source: Names) -> Array:
    """Weights of rows with which sources count alike."""
    _, group, count = np.unique(source, return_inverse=True, return_counts=True)
    return np.asarray(1.0 / count[group])


def shares(error: Array, doubt: Array, weight: Array) -> Array:
    """Share of runs that have each field's other value, 0..1: by least squares of log errors, rows
    beyond `REACH` counting less (Huber 1964).

    error   log(predicted / measured), (runs,)
    doubt   (runs, fields)
    """
    fields = doubt.shape[1]
    found = np.zeros(fields)
    for _ in range(ROUNDS):
        beyond = np.abs(error + doubt @ found) / REACH
        root = np.sqrt(weight / np.maximum(1.0, beyond))
        left = np.vstack([-doubt * root[:, None], SHRINK * np.eye(fields)])
        right = np.concatenate([error * root, np.zeros(fields)])
        found = np.asarray(lsq_linear(left, right, bounds=(0.0, 1.0)).x)
    return found


def spreads(error: Array, own: Array, terms: Array, weight: Array) -> Array:
    """Standard deviation per unit of each term, (terms,): the likeliest under Student's t, then
    scaled so that `LEVEL` of the weight lies inside (split conformal prediction, Lei et al. 2018).

    own    what operators explain of the spread, (runs,)
    terms  (runs, terms)
    """
    square, known = terms**2, own**2

    def loss(found: Array) -> float:
        sigma = np.sqrt(square @ np.exp(2.0 * found) + known)
        chance = student.logpdf(error / sigma, TAILS) - np.log(sigma)
        return float(-(weight @ chance) / weight.sum() + 0.01 * ((found + 2.0) ** 2).sum())

    value = np.exp(minimize(loss, np.full(terms.shape[1], -2.0), method="L-BFGS-B").x)
    needed = np.abs(error) / np.sqrt(square @ value**2 + known)
    order = np.argsort(needed)
    covered = np.cumsum(weight[order]) / weight.sum()
    at = min(int(np.searchsorted(covered, LEVEL)), len(order) - 1)
    return np.asarray(value * needed[order][at] / Z80)


def interval_score(error: Array, sigma: Array) -> Array:
    """Score of intervals on the log scale, less is better (Gneiting and Raftery 2007, eq. 43)."""
    half = Z80 * sigma
    outside = np.maximum(np.abs(error) - half, 0.0)
    return np.asarray(2.0 * half + 2.0 / (1.0 - LEVEL) * outside)


def kinds(moe: Sequence[bool]) -> Array:
    """Terms of the spread of dense models and of mixtures of experts, (runs, kinds there are), as
    they are fitted apart (`calibration.spread`)."""
    mixture = np.array(moe, bool)
    table = np.stack([~mixture, mixture], axis=1).astype(float)
    return table[:, table.any(axis=0)]


def ablation(
    error: Array, own: Array, doubt: Array, source: Names, moe: Sequence[bool]
) -> dict[str, float]:
    """Means over sources, each left out of what is fitted: error as assumed and of the mixture's
    mean; interval score without and with a term for each doubt, beneath which the spread of the
    runs is fitted anew."""
    shifted = error.copy()
    plain, wider = np.zeros(len(error)), np.zeros(len(error))
    alone = kinds(moe)
    both = np.hstack([alone, doubt])
    for name in np.unique(source):
        out = source == name
        weight = each_alike(source[~out])
        shifted[out] += doubt[out] @ shares(error[~out], doubt[~out], weight)
        for terms, sigma in ((alone, plain), (both, wider)):
            found = spreads(error[~out], own[~out], terms[~out], weight)
            sigma[out] = np.sqrt(terms[out] ** 2 @ found**2 + own[out] ** 2)
    weight = each_alike(source)

    def mean(values: Array) -> float:
        return float(weight @ values / weight.sum())

    return {
        "error as assumed": mean(np.abs(np.expm1(error))),
        "error of the mixture": mean(np.abs(np.expm1(shifted))),
        "interval score": mean(interval_score(error, plain)),
        "interval score with terms": mean(interval_score(error, wider)),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line: the ablation over tables of runs, and the share of every field."""
    parser = argparse.ArgumentParser(description="What would assuming otherwise explain?")
    parser.add_argument("tables", nargs="+", type=Path)
    parser.add_argument("--only", nargs="+", help="sources")
    parser.add_argument("--calibration", default="default")
    given = parser.parse_args(arguments)
    calibration = load(given.calibration)
    points = read_points(given.tables, calibration.run)
    runs = take_apart(calibration, [p for p in points if not given.only or p.source in given.only])
    found = left_out(runs, default_run())
    error = np.array([one.error for one in found])
    doubt, names = changes(runs, calibration)
    own = np.array([one.sigma for one in found])
    moe = [one.moe for one in found]
    for what, value in ablation(error, own, doubt, runs.source, moe).items():
        print(f"{what:28} {value:.3f}")
    share = shares(error, doubt, each_alike(runs.source))
    for name, value in sorted(zip(names, share.tolist(), strict=True), key=lambda one: -one[1]):
        print(f"  {name:20} chosen otherwise {value:.2f}")


if __name__ == "__main__":
    main()

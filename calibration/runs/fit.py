"""Fits the parameters of a run to published runs: few, physical, shared.

    python -m calibration.runs ../shared [--base data/calibrations/kernels-only]
                               [--out data/calibrations/default]

Kernels and links stay as their own measurements fitted them. Steps are taken apart once
(`predictor.parts`), so that a fit takes seconds and can be repeated without every source.

1. Shared parameters (`SHARED`) from contrasts within sources: what one source has in common says
   nothing about them.
2. Launch costs of frameworks that published sweeps of small models (`LAUNCHES`), each with a level
   of its own.
3. Levels: the median log error of a source is one number. Its frameworks in general, the family
   of the framework, the framework: each a robust mean of the sources that share it, shrunk to the
   one above. A framework without another source has the level of its family.
4. The spread of a run, so that the interval covers its share of the points (`spread`).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from calibration.artifact import write
from calibration.runs.allocation import with_allocation
from calibration.sources.reading import read_table
from calibration.spread import Residual, with_plan_spread, with_spread
from calibration.tables.cells import check_runs
from calibration.tables.runs import Point, point_of
from calibration.tables.sweep import healthy_points
from predictor import catalog
from predictor.arrays import Array
from predictor.catalog import load, run_parameters
from predictor.errors import InputError
from predictor.plans import CATEGORY_FIELDS, NUMERIC_FIELDS
from predictor.schema import TRAINING_KEY
from predictor.timing import Calibration, RunParameters
from predictor.training import (
    ANY,
    HOP,
    LAUNCH,
    NODES,
    Environment,
    Parts,
    assemble,
    environment,
    interval,
    parts,
    stack,
    take,
)

NOISE = 0.08
"""Log error of a row beside its source's own, beyond which it counts less: repeats of one
configuration differ by 1 to 8 % (METHOD, floors)."""

WITHIN = 0.2
"""Log-standard-deviation of what a source's error does not carry from its smallest runs to its
largest: their medians differ by 0.13 in the middle of the reference table's sources."""

MOST_ROWS = 20.0
"""A source counts as so many rows at most: its rows share their errors."""

LEVEL_REACH = 0.05
"""Distance of a source from its level beyond which it counts less."""

FAMILY_PRIOR, FRAMEWORK_PRIOR = 1.0, 30.0
"""Sources that the level above counts for. That of frameworks is high: sources of one framework
differ among themselves as much as frameworks of one family do."""

FEW_ROWS = 5.0
"""A source of so many rows counts half."""

LEAST_SOURCES = 3
"""Fewer sources than this keep the documented defaults."""

Mask = npt.NDArray[np.bool_]


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
    Free("factors", LAUNCH, 1.0, 20.0),
)
"""Contention, the time of communication per doubling of nodes and the times of products, attention
and streams in a step over those by themselves were free, too: none made sources that were left
out better, so that they keep their defaults."""

LAUNCHES: Mapping[str, tuple[Free, ...]] = {
    "megatron-deepspeed": (Free("factors", f"{LAUNCH}/megatron-deepspeed", 2.0, 8.0),),
    "nanotron": (
        Free("factors", f"{LAUNCH}/nanotron", 2.0, 8.0),
        Free("factors", f"{HOP}/nanotron", 3.0, 10.0),
        Free("factors", f"{HOP}/nanotron/fast", 3.0, 1.0),
        Free("factors", f"{NODES}/nanotron", 0.5, 1.0),
    ),
}
"""By framework: what its sweeps of small models, bound by launches, say of it."""


@dataclass(frozen=True, slots=True, eq=False)
class Runs:
    """Published runs, taken apart; arrays of their number.

    measured   log of the measured time
    one_layer  1 where one layer was timed, not a step
    """

    points: tuple[Point, ...]
    parts: Parts
    measured: Array
    one_layer: Mask
    source: npt.NDArray[np.str_]
    framework: npt.NDArray[np.str_]
    era: npt.NDArray[np.str_]

    def only(self, mask: Mask) -> Runs:
        """Some of the runs."""
        at = np.flatnonzero(mask)
        return Runs(
            tuple(self.points[i] for i in at),
            take(self.parts, at),
            *(
                getattr(self, name)[at]
                for name in ("measured", "one_layer", "source", "framework", "era")
            ),
        )


def default_run() -> RunParameters:
    """The run parameters of `data/defaults/run.yaml`."""
    return run_parameters(catalog.read_mapping(catalog.data_dir() / "defaults" / "run.yaml"))


def families() -> Mapping[str, str]:
    """Family of each framework, or of one in a year, from `data/defaults/run.yaml`."""
    table = catalog.read_mapping(catalog.data_dir() / "defaults" / "run.yaml")["families"]
    return {name: family for family, found in table.items() for name in found["frameworks"]}


def read_points(paths: Sequence[Path], run: RunParameters) -> list[Point]:
    """Training points with a step time from tables of runs.

    Raises InputError where a file is no table of training runs or holds no usable row.
    """
    found: list[Point] = []
    for path in paths:
        table = read_table(path)
        if TRAINING_KEY not in table:
            raise InputError(f"{path} is no table of training runs: no column {TRAINING_KEY!r}")
        made = [point_of(row, run) for row in check_runs(table, str(path)).to_dict("records")]
        found += [p for p in made if isinstance(p, Point) and p.measured > 0]
    if not found:
        raise InputError(f"no row of {', '.join(map(str, paths))} can be predicted")
    return found


def take_apart(calibration: Calibration, points: Sequence[Point]) -> Runs:
    """Time the pieces of every point's step; points that cannot be predicted are left out.

    Raises InputError where none can.
    """
    made: list[Parts] = []
    kept: list[Point] = []
    for point in points:
        request = point.request
        try:
            made.append(parts(request.model, request.cluster, request.plan, calibration)[0])
        except InputError:
            continue
        kept.append(point)
    if not kept:
        raise InputError("none of the runs can be predicted")
    plans = [point.request.plan for point in kept]
    return Runs(
        points=tuple(kept),
        parts=stack(made),
        measured=np.log([point.measured for point in kept]),
        one_layer=np.array([point.one_layer for point in kept]),
        source=np.array([point.source for point in kept]),
        framework=np.array([plan.framework for plan in plans]),
        era=np.array([plan.era for plan in plans]),
    )


def environments(runs: Runs, run: RunParameters) -> Environment:
    """The environment of every run, as arrays."""
    keys = list(zip(runs.framework.tolist(), runs.era.tolist(), strict=True))
    known = {key: environment(run.factors, *key) for key in set(keys)}

    def column(name: str) -> Array:
        return np.array([getattr(known[key], name) for key in keys], float)

    return Environment(*(column(name) for name in ("factor", "launch", "hop", "nodes")))


def predictions(runs: Runs, run: RunParameters) -> tuple[Array, Array]:
    """Log of the predicted time of every run, and the operators' part of its spread."""
    using = environments(runs, run)
    step = assemble(runs.parts, run, using)
    value = np.where(runs.one_layer, using.factor * step.layer_time, step.step_time)
    return np.log(value), interval(step, using.factor, 0.0)


def errors(runs: Runs, run: RunParameters) -> Array:
    """log(predicted / measured) of every run."""
    return predictions(runs, run)[0] - runs.measured


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
    """Least squares of log errors within sources, by Gauss and Newton with a prior.

    run    where the search starts; the prior is around it
    free   what may change

    The mean error of every source is free; a source counts as `MOST_ROWS` at most. Rows whose
    error lies far from their source's median count less (soft absolute value).
    """
    _, group = np.unique(runs.source, return_inverse=True)
    size = int(group.max()) + 1
    weight = np.minimum(1.0, MOST_ROWS / np.bincount(group))[group]
    start = np.array([_value(run, one) for one in free])
    prior = np.array([1.0 / one.spread for one in free])
    found = start.copy()
    step = 1e-3
    for _ in range(25):
        here = errors(runs, _set(run, free, found))
        moved = [errors(runs, _set(run, free, found + step * unit)) for unit in np.eye(len(free))]
        middle = np.array([np.median(here[group == g]) for g in range(size)])
        own = weight / np.sqrt(1.0 + ((here - middle[group]) / NOISE) ** 2)
        total: Array = np.bincount(group, own).astype(float)
        root = np.sqrt(own) / NOISE

        def inside(values: Array, own: Array = own, total: Array = total) -> Array:
            """Values less the mean of their source."""
            return np.asarray(values - (np.bincount(group, own * values) / total)[group])

        slopes = [root * inside((there - here) / step) for there in moved]
        matrix = np.concatenate([np.stack(slopes, axis=1), np.diag(prior)])
        target = np.concatenate([-root * inside(here), prior * (start - found)])
        change = np.clip(np.linalg.lstsq(matrix, target, rcond=None)[0], -0.7, 0.7)
        found = found + change
        if np.abs(change).max() < 1e-3:
            break
    return _set(run, free, found)


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


def robust_mean(values: Array, weights: Array) -> tuple[float, float]:
    """Mean in which values beyond `LEVEL_REACH` count less (Huber 1964), and its total weight."""
    middle, own = float(np.median(values)), weights
    for _ in range(50):
        own = weights / np.maximum(1.0, np.abs(values - middle) / LEVEL_REACH)
        middle = float(own @ values / own.sum())
    return middle, float(own.sum())


def fit_levels(runs: Runs, run: RunParameters) -> RunParameters:
    """Factors of frameworks in general, of families and of frameworks.

    Every source counts once whatever its rows, those with few less; one that ran several
    frameworks is divided among them by its rows.
    """
    family_of = families()
    names = {*family_of, *runs.framework.tolist(), ANY}
    keep = {k: v for k, v in run.factors.items() if k.split("/")[0] not in names}
    bare = replace(run, factors=keep)
    error = errors(runs, bare)
    dated = zip(runs.framework.tolist(), runs.era.tolist(), strict=True)
    named = np.array([own if (own := f"{f}/{era[:4]}") in family_of else f for f, era in dated])
    pairs = sorted(set(zip(runs.source.tolist(), named.tolist(), strict=True)))
    masks = [(runs.source == s) & (named == f) for s, f in pairs]
    value = np.array([-np.median(error[mask]) for mask in masks])
    count = np.array([mask.sum() for mask in masks], float)
    size = np.array([(runs.source == s).sum() for s, _ in pairs], float)
    weight = count / (size + FEW_ROWS)
    framework = np.array([f for _, f in pairs])
    family = np.array([family_of.get(f, ANY) for f in framework])
    general, _ = robust_mean(value, weight)

    def shrunk(own: Mask, above: float, prior: float) -> float:
        if not own.any():
            return above
        mean, total = robust_mean(value[own], weight[own])
        return above + total / (total + prior) * (mean - above)

    level = {name: shrunk(family == name, general, FAMILY_PRIOR) for name in family_of.values()}
    factors = {ANY: general}
    for name in sorted({*family_of, *framework.tolist()}):
        above = level.get(family_of.get(name, ANY), general)
        factors[name] = shrunk(framework == name, above, FRAMEWORK_PRIOR)
    return replace(
        run, factors={**keep, **{k: float(f"{np.exp(v):.6g}") for k, v in factors.items()}}
    )


def fit_run(runs: Runs, run: RunParameters) -> RunParameters:
    """Parameters of a run: launch costs, shared parameters, levels.

    run   the documented defaults, which hold where the runs say nothing
    """
    if len(np.unique(runs.source)) < LEAST_SOURCES:
        return run
    return fit_levels(runs, fit_parameters(runs, run))


def residuals(runs: Runs, run: RunParameters) -> list[Residual]:
    """Errors of every run and what of their spread the operators explain."""
    value, sigma = predictions(runs, run)
    rows = zip(value - runs.measured, sigma, runs.points, strict=True)
    return [
        Residual(
            float(error),
            float(spread),
            point.source,
            point.request.model.is_moe,
            *_compared(point),
        )
        for error, spread, point in rows
    ]


def _compared(point: Point) -> tuple[str, str]:
    """What a run has in common with those that differ from it in the plan alone; the plan."""
    request = point.request
    plan, machine = request.plan, request.cluster.accelerator.name
    same = ("precision", "framework", "era")
    common = [request.model.name, machine, float(plan.gpus), *(getattr(plan, n) for n in same)]
    names = (name for name in (*NUMERIC_FIELDS, *CATEGORY_FIELDS) if name not in same)
    return repr(common), repr([str(getattr(plan, name)) for name in names])


def left_out(
    runs: Runs, run: RunParameters, key: npt.NDArray[np.str_] | None = None
) -> list[Residual]:
    """Errors of every run with the parameters fitted without its group, in the runs' order.

    run   the documented defaults
    key   group of every run; its source if None
    """
    groups = runs.source if key is None else key
    found: list[Residual | None] = [None] * len(runs.points)
    for group in np.unique(groups):
        own = groups == group
        made = residuals(runs.only(own), fit_run(runs.only(~own), run) if not own.all() else run)
        for at, residual in zip(np.flatnonzero(own), made, strict=True):
            found[at] = residual
    return [residual for residual in found if residual is not None]


def fit_runs(calibration: Calibration, points: Sequence[Point]) -> Calibration:
    """A calibration with its run parameters fitted to points, from the documented defaults.

    The spread is that of errors on sources left out of the fit. The points' ids are kept, so that
    `reckon validate` knows them as seen.
    """
    runs = take_apart(calibration, points)
    defaults = default_run()
    fitted = replace(
        calibration,
        run=fit_run(runs, defaults),
        fitted_points=frozenset(point.point_id for point in runs.points),
        provenance={
            **calibration.provenance,
            "fitted_to": "kernels and collectives; run parameters to published runs",
            "interval": "spreads of runs that were left out with their source, sources alike",
            "runs": {
                str(source): int(count)
                for source, count in zip(*np.unique(runs.source, return_counts=True), strict=True)
            },
        },
    )
    found = left_out(runs, defaults)
    spread = with_spread(fitted.run, found, fitted.interval_q, fitted.interval_level)
    return replace(fitted, run=with_plan_spread(spread, found))


def bend_runs(calibration: Calibration, points: Sequence[Point]) -> Calibration:
    """Bend a calibration's run parameters to a handful of a user's own runs.

    Shared parameters move within their priors as far as differences between the runs tell; all
    levels move together by the runs' robust mean error, as far as their number outweighs what
    the calibration's spread leaves open. The run's spread becomes what is left: that of the bent
    runs (at least `NOISE`), and what of the old one they do not settle.
    """
    runs = take_apart(calibration, points)
    one = replace(runs, source=np.full(len(runs.points), "own"))
    before = calibration.run
    bent = descend(one, before, SHARED)
    error = errors(one, bent)
    mean, _ = robust_mean(-error, np.ones(len(error)))
    doubt = NOISE**2 / len(error) + WITHIN**2
    kinds = [before.spread(point.request.model.is_moe) for point in runs.points]
    wide = float(np.mean(np.square(kinds)))
    sure = wide / (wide + doubt)
    names = {ANY, *families(), *runs.framework.tolist()}
    level = float(np.exp(sure * mean))
    moved: dict[str, float] = {
        name: level * float(environment(bent.factors, str(name), "").factor) for name in names
    }
    factors = {**bent.factors, **moved}
    left = float(np.sqrt(np.mean((error + mean) ** 2)))
    least = max(left, NOISE)
    sigma, sigma_moe = (
        float(np.hypot(least, old * np.sqrt(1.0 - sure)))
        for old in (before.sigma, before.sigma_moe)
    )
    return replace(
        calibration,
        run=replace(bent, factors=factors, sigma=sigma, sigma_moe=sigma_moe),
        fitted_points=calibration.fitted_points | {point.point_id for point in runs.points},
        provenance={
            **calibration.provenance,
            "bent_to": f"{len(runs.points)} runs: all steps by {np.expm1(sure * mean):+.1%}",
        },
    )


def adapt_runs(calibration: Calibration, points: Sequence[Point]) -> Calibration:
    """Run parameters from `points`: fitted anew where they come from several sources, bent where
    they are one's own."""
    many = len({point.source for point in points}) >= LEAST_SOURCES
    return fit_runs(calibration, points) if many else bend_runs(calibration, points)


def fit_shared(calibration: Calibration, shared: Path) -> Calibration:
    """A calibration with its run parameters fitted to the runs that ship with it, and what
    nanotron's allocation adds to its sweep."""
    fitted = fit_runs(calibration, shared_points(shared, calibration.run))
    sweep = shared / "bulk" / "training" / "nanotron_sweep.csv"
    return replace(fitted, run=with_allocation(sweep, fitted.run))


def shared_points(shared: Path, run: RunParameters) -> list[Point]:
    """All runs that the shipped calibration is fitted to: the reference table, and the sweeps of
    small models beside it."""
    training = shared / "bulk" / "training"
    reference = catalog.data_dir() / "reference" / "training.csv"
    return [
        *read_points([reference, training / "vtrain_single_node.csv"], run),
        *healthy_points(training / "nanotron_sweep.csv", run),
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line: refit the run level of a calibration."""
    parser = argparse.ArgumentParser(description="Fit run parameters to published runs.")
    parser.add_argument("shared", type=Path)
    parser.add_argument("--base", type=Path, default=Path("data/calibrations/kernels-only"))
    parser.add_argument("--out", type=Path, default=Path("data/calibrations/default"))
    given = parser.parse_args(arguments)
    base = load(given.base)
    start = replace(base, name=given.out.name, run=default_run())
    fitted = fit_shared(start, given.shared)
    manifest: dict[str, Any] = json.loads(
        (given.base / "calibration.json").read_text(encoding="utf-8")
    )
    beside = given.base.resolve().parent == given.out.resolve().parent
    write(fitted, given.out, manifest["heldout"], kernels=given.base.name if beside else None)
    print(f"wrote {given.out}: {len(fitted.fitted_points)} runs")
    print(
        f"spread {fitted.run.sigma:.3f}, of mixtures of experts {fitted.run.sigma_moe:.3f}, "
        f"between plans {fitted.run.sigma_plan:.3f}"
    )
    for name, value in {**fitted.run.overlap, **fitted.run.factors}.items():
        print(f"  {name:28} {value:.3f}")


if __name__ == "__main__":
    main()

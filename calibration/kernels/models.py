"""Fits efficiencies of kernels to measured tables.

For each kind of operator and data type: one model per accelerator, one pooled over each
architecture, so that an accelerator without data still gets its relatives' efficiency; and what
each is worth on accelerators that it never saw.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

import numpy as np
import pandas as pd
from joblib import Parallel, delayed

from calibration.heldout import HeldOut, errors
from calibration.kernels.casts import Casts, casts, with_casts
from calibration.kernels.derived import derive_backward, derive_layouts
from calibration.kernels.fewshot import bend
from calibration.kernels.fit import (
    LEAST_POINTS,
    NETWORK_POINTS,
    Points,
    fit_checked,
    fit_points,
    folds_of,
    predict_points,
    spread,
)
from calibration.kernels.leaning import FEW_POINTS, leaning, leans, support
from calibration.kernels.left_out import (
    Trials,
    near_of,
    pools_without,
    relatives_without,
    score_left_out,
    try_without,
)
from calibration.kernels.parts import (
    Group,
    KernelFit,
    Key,
    Part,
    join_sample,
    merge_dtypes,
    part_of,
    split,
)
from calibration.kernels.together import MOST_TOGETHER, fit_together, groups, kin_of
from calibration.tables.libraries import library, typical
from predictor import catalog
from predictor.hardware import Accelerator
from predictor.timing import ABROAD, ANY, PLAIN, VENDOR, Calibration, EfficiencyModel


def fit_kernels(
    table: pd.DataFrame,
    known: Mapping[str, Accelerator] | None = None,
    pool: bool = True,
    jobs: int = 1,
    progress: Callable[[str], None] = lambda text: None,
    base: Calibration | None = None,
) -> KernelFit:
    """Fit every kind of operator in a checked kernel table.

    table     rows of `predictor.schema`
    known     accelerators by name; those not given are looked up in the catalog
    pool      also fit over architectures, and measure what that is worth on each accelerator when
              it is left out
    jobs      processes
    progress  called with a line of text as the work advances
    base      what was known before: where few points are at hand and bending its model to them
              predicts points left out better than a fit of their own, that is done
    """
    accelerators = {
        str(name): (known or {}).get(str(name)) or catalog.accelerator(str(name))
        for name in table["accelerator"].unique()
    }
    table = table.assign(framework=table["framework"].map(library))
    result = KernelFit()
    parts: dict[tuple[str, str], dict[str, Part]] = {}
    for kind, op, dtype, rows in split(merge_dtypes(table, accelerators)):
        tables = {str(name): own for name, own in rows.groupby("accelerator", observed=True)}
        usual = typical(tables)
        for name, own in tables.items():
            part = part_of(own, accelerators[name], op, dtype, usual)
            if len(part.points.time) >= LEAST_POINTS:
                parts.setdefault((kind, dtype), {})[name] = part

    run = Parallel(n_jobs=jobs)
    single = [(key, name, p) for key, group in parts.items() for name, p in group.items()]
    progress(f"{len(single)} fits of single accelerators")
    # A host has no relatives whose fit could be bent to it; plain PyTorch was timed by few.
    fitted = run(
        delayed(fit_checked)(p.points, *key, name, p.rows, _few(key[0], accelerators[name]))
        for key, name, p in single
    )
    for (key, name, part), (model, found) in zip(single, fitted, strict=True):
        if base is not None and len(part.points.time) < NETWORK_POINTS:
            relative = base.resolve(*key, accelerators[name]).model
            if relative is not None:
                start = replace(relative, kind=key[0], dtype=key[1])  # perhaps a related one's
                bent, error = bend_checked(part, start, accelerators[name])
                if not error.mape > found.mape:
                    model, found = bent, error
        result.models[(*key, name)] = model
        result.heldout[(*key, name)] = found
    if pool:
        beside = casts(table)
        _fit_pools(result, parts, accelerators, run, progress, beside)
        architectures = {name: one.architecture for name, one in accelerators.items()}
        result.models.update(with_casts(result.models, beside, architectures))
        derive_backward(result.models, accelerators)
        derive_layouts(result.models)
    return result


def _few(kind: str, accelerator: Accelerator) -> bool:
    """Whether so few points are at hand that each may speak for those around it."""
    return accelerator.is_host or kind.endswith(PLAIN)


def bend_checked(
    part: Part, known: EfficiencyModel, accelerator: Accelerator
) -> tuple[EfficiencyModel, HeldOut]:
    """Bend a model to the points of one accelerator; error and spread from fifths of the shapes
    left out."""
    start = replace(
        known,
        accelerator=accelerator.name,
        latency=float(known.latency_on(accelerator)),
        year=np.nan,
        points=len(part.points.time),
        keys=np.unique(part.points.keys),
    )
    fold, own = folds_of(part.points), folds_of(part.rows, like=part.points)
    predicted, measured = [], []
    for number in np.unique(fold):
        trial = bend(start, part.points.take(np.flatnonzero(fold != number)))
        test = part.rows.take(np.flatnonzero(own == number))
        predicted.append(predict_points(trial, test))
        measured.append(test.time)
    guess, truth = np.concatenate(predicted), np.concatenate(measured)
    model = replace(bend(start, part.points), sigma=max(spread(guess, truth), 0.01))
    return model, errors(guess, truth)


def _architectures(group: Group, accelerators: Mapping[str, Accelerator]) -> dict[str, list[str]]:
    """Accelerators of a group by architecture."""
    found: dict[str, list[str]] = {}
    for name in group:
        found.setdefault(accelerators[name].architecture, []).append(name)
    return found


def _fit_pools(
    result: KernelFit,
    parts: Mapping[tuple[str, str], Group],
    accelerators: Mapping[str, Accelerator],
    run: Parallel,
    progress: Callable[[str], None],
    beside: Casts,
) -> None:
    """Add the models pooled over architectures to `result`, and what relatives are worth on each
    accelerator left out of them: of its architecture, or where there is none, of those most alike.

    beside   what tables time beside products (`casts`)
    """
    pools = [
        (key, arch, names)
        for key, group in parts.items()
        for arch, names in _architectures(group, accelerators).items()
    ]
    joint = [pool for pool in pools if len(pool[2]) > 1]
    progress(f"{len(joint)} pooled fits")
    fitted = run(
        delayed(fit_points)(join_sample(parts[key], names), *key, f"{ANY}{arch}")
        for key, arch, names in joint
    )
    models = {(key, arch): model for (key, arch, _), model in zip(joint, fitted, strict=True)}
    for key, arch, names in pools:
        place, kin = f"{ANY}{arch}", kin_of(names, accelerators)
        model = models.get((key, arch), result.models[(*key, names[0])])
        year = float(np.mean([accelerators[name].year for name in names]))
        of_pool = replace(model, accelerator=place, keys=np.empty(0), kin=kin, year=year)
        result.models[(*key, place)] = of_pool
    near = {
        (key, name): found
        for key, group in parts.items()
        for name in group
        if (found := near_of(key[0], name, group, accelerators))
    }
    progress(f"{len(near)} fits with an accelerator left out")
    left = run(
        delayed(fit_points)(join_sample(parts[key], names), *key, name)
        for (key, name), names in near.items()
    )
    joint_trials = _fit_together(result, parts, accelerators, set(near), run, progress)
    _lean_pools(result, parts, accelerators)
    trials = {
        (key, name): _lean(
            model,
            join_sample(parts[key], near[key, name]),
            result.models,
            accelerators[name].vendor,
        )
        for (key, name), model in zip(near, left, strict=True)
    }
    score_left_out(result, parts, accelerators, trials, joint_trials, beside)


def _lean_pools(
    result: KernelFit, parts: Mapping[Key, Group], accelerators: Mapping[str, Accelerator]
) -> None:
    """Make the pools of few points lean on what is known of many."""
    for key, group in parts.items():
        for arch, names in _architectures(group, accelerators).items():
            place = (*key, f"{ANY}{arch}")
            points, vendor = join_sample(group, names), accelerators[names[0]].vendor
            own = result.models[place]
            lent = _lean(own, points, result.models, vendor)
            if lent is own:
                continue
            if not own.sparse:  # enough for those of its architecture
                place = (*key, f"{ANY}{arch}{ABROAD}")
                lent = replace(lent, accelerator=place[2])
            result.models[place] = lent


def fit_few(
    table: pd.DataFrame, models: Mapping[tuple[str, str, str], EfficiencyModel]
) -> KernelFit:
    """Fit the pools of few points again over models that are known, whose own tables stay unread.

    table    rows of `predictor.schema`
    models   of a calibration, keyed as there; those that do not change are in the result, too

    Held-out errors are those of accelerators of whose vendor nothing is leant on.
    """
    names = table["accelerator"].unique()
    accelerators = {str(name): catalog.accelerator(str(name)) for name in names}
    table = table.assign(framework=table["framework"].map(library))
    result = KernelFit(models=dict(models))
    parts: dict[Key, dict[str, Part]] = {}
    for kind, op, dtype, rows in split(merge_dtypes(table, accelerators)):
        home = rows["accelerator"].map(lambda name: accelerators[str(name)].architecture)
        few = home.map(home.value_counts()) < FEW_POINTS[1]
        for name, own in rows[few].groupby("accelerator", observed=True):
            part = part_of(own, accelerators[str(name)], op, dtype, {})
            place = (kind, dtype, f"{ANY}{accelerators[str(name)].architecture}")
            if len(part.points.time) >= LEAST_POINTS and place in models:
                parts.setdefault((kind, dtype), {})[str(name)] = part
    _lean_pools(result, parts, accelerators)
    for key, group in parts.items():
        for name in group:
            one = accelerators[name]
            other = support(result.models, *key)
            if other is None or other.accelerator == f"{VENDOR}{one.vendor}":
                continue
            without: Calibration | None
            if near := near_of(key[0], name, group, accelerators):
                points = join_sample(group, near)
                pool = _lean(fit_points(points, *key, name), points, result.models, one.vendor)
                without = pools_without(result.models, {key: pool}, one)
            else:
                without = relatives_without(result.models, {}, key, one)
            if without is not None:
                try_without(result, key, group[name], one, without, {})
    return result


def _lean(
    model: EfficiencyModel,
    points: Points,
    models: Mapping[tuple[str, str, str], EfficiencyModel],
    vendor: str,
) -> EfficiencyModel:
    """A pool of a vendor's accelerators as it is, or where its points are few leaning on the model
    that knows most, if that is another vendor's."""
    other = support(models, model.kind, model.dtype) if leans(points, model.kind) else None
    if other is None or other.accelerator == f"{VENDOR}{vendor}":
        return model
    return leaning(model, points, other)


def _fit_together(
    result: KernelFit,
    parts: Mapping[Key, Group],
    accelerators: Mapping[str, Accelerator],
    near: Collection[tuple[Key, str]],
    run: Parallel,
    progress: Callable[[str], None],
) -> Trials:
    """Add the models of each vendor's accelerators together to `result`; returns those without the
    architecture of each accelerator that has no relatives in it."""
    alone = {
        (key, accelerators[name].architecture): accelerators[name].vendor
        for key, group in parts.items()
        for name in group
        if (key, name) not in near
    }
    jobs = [
        (key, home, names)
        for key, home in [*((key, "") for key in parts), *alone]
        for vendor, names in groups(list(parts[key]), accelerators, home).items()
        if vendor == alone.get((key, home), vendor)
    ]
    progress(f"{len(jobs)} fits of vendors")
    fitted = run(
        delayed(fit_together)(join_sample(parts[key], names, MOST_TOGETHER), *key, accelerators)
        for key, _, names in jobs
    )
    trials: Trials = {}
    for (key, home, _), model in zip(jobs, fitted, strict=True):
        if model is not None and home:
            trials[key, home] = model
        elif model is not None:
            result.models[(*key, model.accelerator)] = model
    return trials

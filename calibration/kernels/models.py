"""Fits efficiencies of kernels to measured tables.

For each kind of operator and data type: one model per accelerator, one pooled over each
architecture, so that an accelerator without data still gets its relatives' efficiency; and what
each is worth on accelerators that it never saw.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd
from joblib import Parallel, delayed

from calibration.heldout import HeldOut, errors
from calibration.kernels.casts import casts, with_casts
from calibration.kernels.derived import derive_backward, derive_layouts
from calibration.kernels.fewshot import FewShot, bend, few_shot_trial
from calibration.kernels.fit import (
    LEAST_POINTS,
    MOST_POINTS,
    NETWORK_POINTS,
    SMALL_TABLE,
    Points,
    fit_checked,
    fit_points,
    folds_of,
    join,
    op_of,
    points_of,
    predict_points,
    predict_unseen,
    sample,
    spread,
)
from calibration.kernels.leaning import FEW_POINTS, leaning, leans, support
from calibration.kernels.together import MOST_TOGETHER, fit_together, groups, kin_of
from calibration.tables.kernel_table import STREAMED, kinds, variants
from calibration.tables.libraries import library, neutral, typical
from predictor import catalog
from predictor.hardware import Accelerator
from predictor.timing import ABROAD, ANY, VENDOR, Calibration, EfficiencyModel
from predictor.units import Z80

FEW_SHOT_KINDS = ("gemm", "attention_prefill", "attention_decode")
"""Kinds on which bending to a few points is tried out."""


@dataclass(frozen=True, slots=True, eq=False)
class KernelFit:
    """Models with the held-out errors of each, keyed as in the calibration."""

    models: dict[tuple[str, str, str], EfficiencyModel] = field(default_factory=dict)
    heldout: dict[tuple[str, str, str], HeldOut] = field(default_factory=dict)
    transfer: dict[tuple[str, str, str], HeldOut] = field(default_factory=dict)
    transfer_sigma: dict[str, float] = field(default_factory=dict)
    transfer_coverage: dict[str, float] = field(default_factory=dict)
    fewshot: dict[tuple[str, str, str], FewShot] = field(default_factory=dict)


def split(table: pd.DataFrame) -> Iterator[tuple[str, str, str, pd.DataFrame]]:
    """Parts of a kernel table that are fitted together: (kind, op, dtype, rows)."""
    table = table.assign(kind=kinds(table), layout=variants(table).where(table["op"] == "gemm", ""))
    table = table[table["kind"] != ""]
    for (kind, op, dtype), rows in table.groupby(["kind", "op", "dtype"], observed=True):
        yield str(kind), str(op), str(dtype), rows
    for (op, dtype), rows in table[table["op"].isin(STREAMED)].groupby(["op", "dtype"]):
        if rows["kind"].nunique() > 1:
            yield str(op), str(op), str(dtype), rows


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
    # A host has no relatives whose fit could be bent to it.
    fitted = run(
        delayed(fit_checked)(p.points, *key, name, p.rows, accelerators[name].is_host)
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
        _fit_pools(result, parts, accelerators, run, progress)
        architectures = {name: one.architecture for name, one in accelerators.items()}
        result.models.update(with_casts(result.models, casts(table), architectures))
        derive_backward(result.models, accelerators)
        derive_layouts(result.models)
    return result


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


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """One kind and data type on one accelerator: neutral times, and the measurements behind them
    (the same, where rows name no library)."""

    neutral: Points
    rows: Points

    @property
    def points(self) -> Points:
        """Both, to fit."""
        return self.neutral if self.rows is self.neutral else join([self.neutral, self.rows])


def part_of(
    rows: pd.DataFrame, accelerator: Accelerator, op: str, dtype: str, usual: dict[str, float]
) -> Part:
    """Rows of one kind, data type and accelerator.

    usual   constants of libraries that hold elsewhere (`libraries.typical`)
    """
    names = set(rows["framework"]) - {""}
    if len(names) == 1 and not names & set(usual):
        rows = rows.assign(framework="")  # nobody to compare it with: it stands for all
    plain = neutral(rows, usual)
    named = rows[rows["framework"] != ""]
    everything = points_of(pd.concat([plain, named]), accelerator, op, dtype)
    is_neutral = everything.library == ""
    own = sample(everything.take(np.flatnonzero(is_neutral)), MOST_POINTS)
    if named.empty:
        return Part(own, own)
    return Part(own, everything.take(np.flatnonzero(~is_neutral)))


Key = tuple[str, str]
"""Kind and data type."""

Group = Mapping[str, "Part"]
"""The accelerators on which one kind and data type was measured."""


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
) -> None:
    """Add the models pooled over architectures to `result`, and what relatives are worth on each
    accelerator left out of them: of its architecture, or where there is none, of those most alike.
    """
    pools = [
        (key, arch, names)
        for key, group in parts.items()
        for arch, names in _architectures(group, accelerators).items()
    ]
    joint = [pool for pool in pools if len(pool[2]) > 1]
    progress(f"{len(joint)} pooled fits")
    fitted = run(
        delayed(fit_points)(_join_sample(parts[key], names), *key, f"{ANY}{arch}")
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
        if (found := _near(name, group, accelerators))
    }
    progress(f"{len(near)} fits with an accelerator left out")
    left = run(
        delayed(fit_points)(_join_sample(parts[key], names), *key, name)
        for (key, name), names in near.items()
    )
    joint_trials = _fit_together(result, parts, accelerators, set(near), run, progress)
    _lean_pools(result, parts, accelerators)
    trials = {
        (key, name): _lean(
            model,
            _join_sample(parts[key], near[key, name]),
            result.models,
            accelerators[name].vendor,
        )
        for (key, name), model in zip(near, left, strict=True)
    }
    ratios: dict[str, dict[str, np.ndarray]] = {}
    for key, group in parts.items():
        for name in group:
            one = accelerators[name]
            own = {other: trials.get((other, name)) for other in parts if name in parts[other]}
            without = (
                pools_without(result.models, own, one)
                if own[key]
                else relatives_without(result.models, joint_trials, key, one)
            )
            if without is not None:
                _try_without(result, key, group[name], one, without, ratios)
    spread_of_transfers(result, ratios)


def _lean_pools(
    result: KernelFit, parts: Mapping[Key, Group], accelerators: Mapping[str, Accelerator]
) -> None:
    """Make the pools of few points lean on what is known of many."""
    for key, group in parts.items():
        for arch, names in _architectures(group, accelerators).items():
            place = (*key, f"{ANY}{arch}")
            points, vendor = _join_sample(group, names), accelerators[names[0]].vendor
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
            if near := _near(name, group, accelerators):
                points = _join_sample(group, near)
                pool = _lean(fit_points(points, *key, name), points, result.models, one.vendor)
                without = pools_without(result.models, {key: pool}, one)
            else:
                without = relatives_without(result.models, {}, key, one)
            if without is not None:
                _try_without(result, key, group[name], one, without, {})
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
        delayed(fit_together)(_join_sample(parts[key], names, MOST_TOGETHER), *key, accelerators)
        for key, _, names in jobs
    )
    trials: Trials = {}
    for (key, home, _), model in zip(jobs, fitted, strict=True):
        if model is not None and home:
            trials[key, home] = model
        elif model is not None:
            result.models[(*key, model.accelerator)] = model
    return trials


Trials = dict[tuple[Key, str], EfficiencyModel]
"""Models of a vendor together by what they are of and the architecture left out."""


def pools_without(
    models: Mapping[tuple[str, str, str], EfficiencyModel],
    pools: Mapping[Key, EfficiencyModel | None],
    accelerator: Accelerator,
) -> Calibration:
    """What is known of an accelerator by others of its architecture.

    pools   of every kind and data type that was measured on it, the pool without it; None where
            there is none
    """
    home = f"{ANY}{accelerator.architecture}"
    others = {
        k: model
        for k, model in models.items()
        if k[2] != accelerator.name and not (k[:2] in pools and k[2] in (home, f"{home}{ABROAD}"))
    }
    for key, pool in pools.items():
        if pool is not None:
            others[(*key, home)] = replace(pool, accelerator=home)
    return Calibration("", kernels=others)


def relatives_without(
    models: Mapping[tuple[str, str, str], EfficiencyModel],
    trials: Trials,
    key: Key,
    accelerator: Accelerator,
) -> Calibration | None:
    """What is known of an accelerator where nothing of its architecture was measured, in no data
    type; None where nothing is."""
    home = f"{ANY}{accelerator.architecture}"
    left_out = home, f"{home}{ABROAD}", f"{VENDOR}{accelerator.vendor}"
    others = {k: model for k, model in models.items() if k[2] not in left_out}
    for (other, absent), model in trials.items():
        if absent == accelerator.architecture:
            others[(*other, model.accelerator)] = model
    known = Calibration("", kernels=others)
    return known if known.resolve(*key, replace(accelerator, name="")).relatives else None


def spread_of_transfers(result: KernelFit, ratios: dict[str, dict[str, np.ndarray]]) -> None:
    """Spreads, and what they cover, of accelerators left out, by kind and how near relatives are.

    ratios   absolute log errors of each
    """
    for kind, groups_ in ratios.items():
        result.transfer_sigma[kind] = _balanced_quantile(list(groups_.values())) / Z80
        if len(groups_) > 2:
            result.transfer_coverage[kind] = _coverage(groups_)


def _try_without(
    result: KernelFit,
    key: Key,
    part: Part,
    accelerator: Accelerator,
    without: Calibration,
    ratios: dict[str, dict[str, np.ndarray]],
) -> None:
    """What relatives are worth on an accelerator, as it would be predicted from them: errors into
    `result`, ratios by how near they are into `ratios`.

    without   what is known of it without its own measurements
    """
    rows, kind, place = part.rows, key[0].split(".")[0], (*key, accelerator.name)
    found = without.resolve(*key, replace(accelerator, name=""))
    if not found.relatives:
        kind = f"{kind}/architecture"
    predicted = predict_unseen(rows, accelerator, op_of(key[0]), key[1], without)
    result.transfer[place] = errors(predicted, rows.time)
    ratios.setdefault(kind, {})["/".join(place)] = np.abs(np.log(predicted / rows.time))
    enough = key[0] in FEW_SHOT_KINDS and len(part.points.time) > SMALL_TABLE
    if enough and found.model is not None:
        result.fewshot[place] = few_shot_trial(found.model, result.models[place], part.neutral)


def _near(name: str, group: Group, accelerators: Mapping[str, Accelerator]) -> list[str]:
    """Those of `_relatives` where they were measured enough to stand for an architecture."""
    found = _relatives(name, group, accelerators)
    enough = sum(len(group[n].points.time) for n in found) >= SMALL_TABLE
    return found if enough else []


def _coverage(groups: Mapping[str, np.ndarray]) -> float:
    """What an interval fitted to the other accelerators covers of each, their mean."""
    covered = []
    for name in groups:
        rest = [values for other, values in groups.items() if other != name]
        covered.append(float(np.mean(groups[name] <= _balanced_quantile(rest))))
    return float(np.mean(covered))


def _relatives(name: str, group: Group, accelerators: Mapping[str, Accelerator]) -> list[str]:
    """Accelerators of the same architecture; where none of them was timed with one of the
    libraries in question, also those of which it is a mid-life revision ('-ultra')."""
    own = accelerators[name].architecture
    others = [n for n in group if n != name]
    near = [n for n in others if accelerators[n].architecture == own]
    known = {library for n in near for library in np.unique(group[n].rows.library.astype(str))}
    if set(np.unique(group[name].rows.library.astype(str))) <= known:
        return near
    parent = own.removesuffix("-ultra")
    return [n for n in others if accelerators[n].architecture.removesuffix("-ultra") == parent]


def _balanced_quantile(groups: list[np.ndarray]) -> float:
    """80 % quantile over groups that count alike."""
    spread = [np.quantile(values, np.linspace(0.005, 0.995, 100)) for values in groups]
    return float(np.quantile(np.concatenate(spread), 0.8))


def _join_sample(group: Group, names: list[str], most: int = MOST_POINTS) -> Points:
    """Points of several accelerators, as many of each; neutral ones, and as many measurements."""
    plain = sample(join([group[name].neutral for name in names]), most)
    named = [group[name].rows for name in names if group[name].rows is not group[name].neutral]
    return join([plain, sample(join(named), most)]) if named else plain


def merge_dtypes(table: pd.DataFrame, known: Mapping[str, Accelerator]) -> pd.DataFrame:
    """On GPUs fp16 and bf16 products run alike, and memory-bound kernels in any type do; hosts
    compute in both cases, so their types stay apart."""
    hosts = {name for name, device in known.items() if device.is_host}
    gpu = ~table["accelerator"].isin(hosts)
    merged = table["dtype"].where(~(gpu & (table["dtype"] == "fp16")), "bf16")
    streaming = gpu & table["op"].isin(STREAMED)
    return table.assign(dtype=merged.where(~streaming, ANY))

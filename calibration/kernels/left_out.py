"""What relatives are worth on accelerators that are left out: each is predicted as if nothing had
been measured on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from calibration.heldout import errors
from calibration.kernels.casts import Casts, with_casts
from calibration.kernels.fewshot import few_shot_trial
from calibration.kernels.fit import SMALL_TABLE, op_of, predict_unseen
from calibration.kernels.parts import Group, KernelFit, Key, Part
from calibration.robust import balanced_quantile
from predictor.hardware import Accelerator
from predictor.timing import (
    ABROAD,
    ANY,
    VENDOR,
    Calibration,
    EfficiencyModel,
    points_of_pool,
)
from predictor.units import Z80

FEW_SHOT_KINDS = ("gemm", "attention_prefill", "attention_decode")
"""Kinds on which bending to a few points is tried out."""

Trials = dict[tuple[Key, str], EfficiencyModel]
"""Models of a vendor together by what they are of and the architecture left out."""


def score_left_out(
    result: KernelFit,
    parts: Mapping[Key, Group],
    accelerators: Mapping[str, Accelerator],
    trials: Mapping[tuple[Key, str], EfficiencyModel],
    joint: Trials,
    beside: Casts,
) -> None:
    """Add to `result` what relatives are worth on each accelerator, and how far they spread.

    trials   pools of its architecture without it, by what they are of and its name
    joint    those of vendors, for accelerators that have none
    beside   what tables time beside products (`casts`)
    """
    ratios: dict[str, dict[str, np.ndarray]] = {}
    architectures = {name: one.architecture for name, one in accelerators.items()}
    for key, group in parts.items():
        for name in group:
            one = accelerators[name]
            own = {other: trials.get((other, name)) for other in parts if name in parts[other]}
            without = (
                pools_without(result.models, own, one)
                if own[key]
                else relatives_without(result.models, joint, key, one)
            )
            if without is not None:
                others = {at: own for at, own in beside.items() if at[1] != name}
                kernels = with_casts(without.kernels, others, architectures)
                try_without(
                    result, key, group[name], one, replace(without, kernels=kernels), ratios
                )
    spread_of_transfers(result, ratios)


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
        result.transfer_sigma[kind] = balanced_quantile(list(groups_.values())) / Z80
        if len(groups_) > 2:
            result.transfer_coverage[kind] = _coverage(groups_)


def try_without(
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


def near_of(
    kind: str, name: str, group: Group, accelerators: Mapping[str, Accelerator]
) -> list[str]:
    """Those of `_relatives` where they were measured enough to stand for an architecture, as they
    would in a prediction (`points_of_pool`)."""
    found = _relatives(name, group, accelerators)
    points = sum(len(group[n].points.time) for n in found)
    least = points_of_pool(kind, group[name].points.features.shape[1])
    return found if points >= least else []


def _coverage(groups: Mapping[str, np.ndarray]) -> float:
    """What an interval fitted to the other accelerators covers of each, their mean."""
    covered = []
    for name in groups:
        rest = [values for other, values in groups.items() if other != name]
        covered.append(float(np.mean(groups[name] <= balanced_quantile(rest))))
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

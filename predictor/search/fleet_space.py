"""Ways to serve on one system: layouts of the engine that decodes, and of workers that read prompts
on accelerators of their own; as arrays.

How many workers an engine needs follows from how much it decodes (`workers`), so that sensible
ratios of the two are found instead of tried.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from predictor.arrays import Array, Index, take
from predictor.catalog import (
    Engine,
    Range,
    ServingPlanSpec,
    Setting,
    engine_named,
    parse,
    scale_up,
    spelled,
)
from predictor.errors import InputError
from predictor.hardware import Cluster
from predictor.memory import node_memory
from predictor.models import Model
from predictor.plans import ServingPlan
from predictor.serving import READ, complete_serving, held_by_worker, read_by
from predictor.timing import Calibration, RunParameters

DECODING = ("tp", "pp", "dp", "ep")
"""Sizes of an engine that decodes."""

READING = ("prefill_workers", "prefill_tp", "prefill_dp")
"""Sizes of what reads prompts apart."""

FIELDS = (*DECODING, *READING)
"""Numbers that are searched, unless a request states them."""

BEYOND = 8.0
"""Workers may have so many times the accelerators of a scale-up network where none inside holds
the weights."""

SPARE = 1.5
"""Numbers of workers that are looked at: up to so many times those that are busy all the time while
the engine decodes the most that it can, and a few."""

FEW = 8
"""Numbers of workers that are looked at in any case, from one on."""

STEPS = 24
"""Numbers of workers between those and the most."""


def _bounded(values: list[float], wanted: Any) -> list[float]:
    """Values of a table, or those that a request states instead, or inside its range."""
    if isinstance(wanted, Range):
        return [v for v in values if wanted.low <= v <= wanted.high]
    return values if wanted is None else [float(v) for v in wanted]


def layouts(model: Model, cluster: Cluster, given: Mapping[str, Any]) -> dict[str, Array]:
    """Columns of `DECODING`: stated values, or powers of two inside the scale-up network; stages
    beyond it. Replicas of the attention only share anything where experts are divided."""
    node = scale_up(cluster)
    powers = [float(2**i) for i in range(12) if 2**i <= node]
    table = {
        "tp": [p for p in powers if model.heads % p == 0],
        "pp": [1.0, 2.0, 4.0, 8.0],
        "dp": powers if model.is_moe else [1.0],
    }
    tps, pps, dps = (_bounded(values, given.get(name)) for name, values in table.items())
    rows = [
        (tp, pp, dp, ep)
        for tp in tps
        for pp in pps
        for dp in dps
        for ep in _expert_ranks(model, tp, dp, given.get("ep"))
    ]
    columns = np.array(rows, dtype=float).reshape(-1, len(DECODING)).T
    return dict(zip(DECODING, columns, strict=True))


def _expert_ranks(model: Model, tp: float, dp: float, wanted: Any) -> list[float]:
    whole = [1.0] if dp == 1 else []
    ranks = [r for r in (tp, tp * dp) if r > 1 and model.num_experts % r == 0]
    found = sorted(set(whole + ranks)) if model.is_moe else [1.0]
    return _bounded(found, wanted)


def batches(
    model: Model, cluster: Cluster, fields: Mapping[str, Any], calibration: Calibration
) -> Iterator[ServingPlan]:
    """Plans on one system that read their own prompts, a batch for each set of categories.

    fields   keys of a serving plan: values, tuples of values or ranges (`space.read_given`'s form)
    """
    listed = {
        name: values
        for name, values in fields.items()
        if name not in FIELDS and not isinstance(values, Range)
    }
    columns = layouts(model, cluster, fields)
    if not columns["tp"].size:
        return
    names = list(listed)
    for values in itertools.product(*listed.values()):
        stated = dict(zip(names, values, strict=True))
        alone = dict.fromkeys(DECODING, 1) | {"gpus": 1, "saturated": True}
        spec = parse(ServingPlanSpec, {**stated, **alone}, "request")
        engine = engine_named(spelled(str(stated.get("framework", "neutral"))))
        for laid, rows in _alike(engine, Setting(cluster.accelerator, model), columns):
            found = complete_serving(
                spec, calibration.run, False, model=model, cluster=cluster, laid=laid
            )
            if asked := found.conditions.stated:
                raise InputError(f"{asked} is of a single plan: ask reckon predict infer for it")
            own = {name: column[rows] for name, column in columns.items()}
            numbers: dict[str, Any] = {**own, "batch": own["dp"]}
            if "host_memory_gb" not in stated:
                # Engines of a fleet share nodes: each has the part of its accelerators.
                ranks = own["tp"] * own["pp"] * own["dp"] / cluster.accelerators_per_node
                numbers["host_memory"] = node_memory(cluster) * ranks
            yield replace(found.plan, **numbers)


def _alike(
    engine: Engine, where: Setting, columns: Mapping[str, Array]
) -> list[tuple[tuple[int, int], Index]]:
    """Layouts on which an engine does the same by default: tp and dp of one, and all of their
    rows."""
    found: dict[tuple[int, ...], list[int]] = {}
    pairs = [(int(tp), int(dp)) for tp, dp in zip(columns["tp"], columns["dp"], strict=True)]
    for row, (tp, dp) in enumerate(pairs):
        found.setdefault(engine.ranked(replace(where, tp=tp, dp=dp)), []).append(row)
    return [(pairs[rows[0]], np.array(rows, np.intp)) for rows in found.values()]


def together_too(fields: Mapping[str, Any]) -> bool:
    """Whether engines that read their own prompts are asked for."""
    wanted = fields.get("prefill_workers")
    return wanted is None or (not isinstance(wanted, Range) and 0 in wanted)


def not_apart(plan: ServingPlan, fields: Mapping[str, Any]) -> str | None:
    """Why reading prompts apart is no choice for a batch of plans; None where it is."""
    wanted = fields.get("prefill_workers")
    if wanted is not None and not isinstance(wanted, Range) and not any(wanted):
        return "prefill_workers 0 was asked for"
    if np.all(np.asarray(plan.output_len) < 2):
        return "nothing is decoded after the first token"
    if plan.offload == "weights":
        return "the cache lies in the host's memory"
    return None


def apart(
    model: Model,
    cluster: Cluster,
    plan: ServingPlan,
    fields: Mapping[str, Any],
    run: RunParameters,
) -> ServingPlan:
    """The plans of a batch once for each layout of the workers that read their prompts, with one
    worker, which stands for any number: tensor parallel alone, or of a mixture as many replicas of
    the attention.

    Inside the scale-up network; beyond it only as far as the weights need, where it is not stated.
    """
    wanted, copies = fields.get("prefill_tp"), fields.get("prefill_dp")
    node = scale_up(cluster.readers)
    powers = [float(2**i) for i in range(12) if 2**i <= BEYOND * node]
    split = _bounded([p for p in powers if model.heads % p == 0], wanted)
    if copies is None:
        families = [[(tp, 1.0) for tp in split]]
        if model.is_moe and not isinstance(wanted, tuple):
            families.append([(tp, dp) for tp in split[:1] for dp in powers[1:]])
    else:
        families = [[(tp, dp) for tp in split] for dp in _bounded(powers, copies)]
    stated = isinstance(wanted, tuple)
    sizes = np.concatenate([_inside(model, cluster, plan, one, run, stated) for one in families])
    count = plan.shape[0]
    rows = take(plan, np.repeat(np.arange(count), len(sizes)))
    tp, dp = (np.tile(column, count) for column in sizes.T)
    many = replace(rows, prefill_tp=tp, prefill_dp=dp, prefill_workers=np.ones(rows.shape))
    return replace(many, **_as_read(model, cluster, many, fields))


def _as_read(
    model: Model, cluster: Cluster, plan: ServingPlan, fields: Mapping[str, Any]
) -> dict[str, Any]:
    """What workers do with prompts by default, on their own ranks, where it is not stated."""
    engine, versions = engine_named(plan.framework), fields.get("version", ())
    version = str(versions[0]) if len(versions) == 1 else ""
    where = Setting(
        cluster.accelerator, model, weights=plan.weights, drafted=int(np.max(plan.drafted))
    )
    pairs = np.stack(np.broadcast_arrays(plan.prefill_tp, plan.prefill_dp), axis=-1).astype(int)
    layouts, which = np.unique(pairs.reshape(-1, 2), axis=0, return_inverse=True)
    era = None if plan.era == "neutral" else plan.era
    told = [
        {one.field: one.value for one in read_by(engine, where, cluster, (tp, dp), era, version)}
        for tp, dp in layouts.tolist()
    ]
    return {
        name: np.array([float(one[name]) for one in told])[which.reshape(plan.shape)]
        for name in READ
        if name not in fields and all(name in one for one in told)
    }


def _inside(
    model: Model,
    cluster: Cluster,
    plan: ServingPlan,
    sizes: list[tuple[float, float]],
    run: RunParameters,
    stated: bool,
) -> Array:
    """Layouts of workers, (N, 2), rising in ranks, that lie inside the scale-up network, and the
    first beyond it that holds the weights if none inside does; all where they are stated."""
    found = np.array(sizes, dtype=float).reshape(-1, 2)
    if stated or not len(found):
        return found
    one = replace(
        take(plan, np.zeros(len(found), np.intp)),
        prefill_tp=found[:, 0], prefill_dp=found[:, 1], prefill_workers=1.0,
    )  # fmt: skip
    holds = held_by_worker(model, cluster, one, run).fits > 0
    inside = found.prod(axis=1) <= scale_up(cluster.readers)
    return np.asarray(found[inside | ((np.cumsum(holds) == 1) & holds)])


def workers(busiest: Array, wanted: Any) -> tuple[Index, Array]:
    """Numbers of workers worth evaluating: positions in a batch, and how many for each.

    busiest  workers that are busy all the time while each plan decodes the most that it can
    wanted   what the request states of them
    """
    every = np.arange(len(busiest))
    if isinstance(wanted, tuple):
        counts = np.array([v for v in wanted if v > 0], dtype=float)
        return np.repeat(every, len(counts)), np.tile(counts, len(every))
    most = np.ceil(SPARE * busiest) + 2.0
    few = np.minimum(np.arange(1.0, FEW + 1.0), most[:, None])
    more = np.round(FEW + np.maximum(most - FEW, 0.0)[:, None] * np.linspace(0.0, 1.0, STEPS))
    some = np.concatenate([few, np.minimum(more, most[:, None])], axis=1)
    if isinstance(wanted, Range):
        some = np.clip(some, max(wanted.low, 1.0), wanted.high)
    some = np.sort(some, axis=1)
    fresh = np.diff(some, axis=1, prepend=-1.0) > 0
    return np.repeat(every, fresh.sum(axis=1)), some[fresh]

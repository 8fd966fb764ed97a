"""How long the collectives of a pass take: NCCL's, and those of the engine's own that stand in for
them, inside captured graphs or outside.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from itertools import takewhile

import numpy as np

from predictor.arrays import Array, Numeric
from predictor.hardware import Cluster
from predictor.plans import ServingPlan
from predictor.serving.parts import TERMS, Pass
from predictor.timing import Calibration, collective_time
from predictor.work import Collective, Group, pass_groups

CUSTOM_LIMIT = 8 * 2.0**20
"""Largest message that engines give to their one-kernel all-reduce [bytes] (vLLM's and
TensorRT-LLM's custom all-reduce); larger ones go to NCCL."""

SWITCH_LIMITS: dict[str, dict[int, float]] = {
    "hopper": {2: 64.0, 4: 32.0, 8: 64.0},
    "blackwell": {2: 8.0, 4: 32.0, 8: 128.0},
}
"""The same where they add up in the switch [MiB], by architecture and ranks (vLLM 0.33.0,
distributed/device_communicators/all_reduce_utils.py); of others, that of Hopper."""

THROUGHPUT, LOW_LATENCY = "alltoall.deepep_", "alltoall.deepep_ll_"
"""DeepEP's exchanges of tokens, by what they are made for."""


def communication(
    found: list[Collective],
    plan: ServingPlan,
    cluster: Cluster,
    calibration: Calibration,
    captured: Numeric,
) -> Pass:
    """Time the collectives of a pass; small all-reduces inside a node are the engine's own kernels
    where the plan says so, as they run inside or outside a captured graph (`captured` 1 or 0)."""
    shape = plan.shape
    zero = np.zeros(shape)
    terms = dict.fromkeys(TERMS, zero)
    kernels = zero
    families: dict[str, tuple[Array, Array]] = {}
    ranks = pass_groups(plan)
    known: dict[Hashable, tuple[Array, Array]] = {}
    for one in found:
        group = ranks[one.group]
        if not np.any(np.asarray(one.count) * (np.asarray(group.size) > 1)):
            continue
        if one.call not in known:
            known[one.call] = _call(one, group, plan, cluster, calibration, captured)
        time, sigma = known[one.call]
        name = "pp" if one.op == "p2p" else ("ep" if one.name.startswith("moe.") else "tp")
        if one.name == "moe.reduce":
            name = "tp"
        spent = np.broadcast_to(time * one.count, shape)
        terms[f"{name}_communication"] = terms[f"{name}_communication"] + spent
        kernels = kernels + np.where(np.asarray(group.size) > 1, one.count, 0.0)
        before, most = families.get(one.op, (zero, zero))
        families[one.op] = (before + spent, np.maximum(most, sigma))
    return Pass(terms, kernels, families)


def _call(
    one: Collective,
    group: Group,
    plan: ServingPlan,
    cluster: Cluster,
    calibration: Calibration,
    captured: Numeric,
) -> tuple[Array, Array]:
    """Time of one call of a collective [s] and its log-standard-deviation."""
    if one.op.startswith(THROUGHPUT):
        return _exchanged(one, group, cluster, calibration, captured)
    time, sigma = collective_time(one.op, one.bytes, group, cluster, calibration, one.copies)
    if one.op == "allreduce" and plan.allreduce == "custom":
        inside = _reached(plan, cluster)
        near = Group(np.minimum(group.size, inside), group.stride)
        small, spread = _own_allreduce(
            one.bytes, near, plan.library, cluster, calibration, captured
        )
        largest = _largest(plan, cluster, group)
        taken = (np.asarray(one.bytes) <= largest) & (np.asarray(group.size) <= inside)
        time = np.where(taken, np.minimum(small, time), time)
        sigma = np.where(taken, spread, sigma)
    return time, sigma


def _reached(plan: ServingPlan, cluster: Cluster) -> float:
    """Ranks that the engine's own all-reduce spans at most."""
    inner = cluster.tiers[0]
    if plan.reach == "node":
        return inner.size
    same = takewhile(lambda tier: tier.link == inner.link, cluster.tiers)
    return max(tier.size for tier in same)


def _largest(plan: ServingPlan, cluster: Cluster, group: Group) -> Numeric:
    """Largest message that the engine's own all-reduce takes [bytes]."""
    if plan.summed == "card":
        return CUSTOM_LIMIT
    family = cluster.accelerator.architecture.partition("-")[0]
    limits = SWITCH_LIMITS.get(family, SWITCH_LIMITS["hopper"])
    ranks = np.asarray(group.size)
    most = np.select([ranks <= 2, ranks <= 4, ranks <= 8], [limits[2], limits[4], limits[8]])
    return np.maximum(most * 2.0**20, CUSTOM_LIMIT)


def _own_allreduce(
    moved: Numeric,
    group: Group,
    library: str,
    cluster: Cluster,
    calibration: Calibration,
    captured: Numeric,
) -> tuple[Array, Array]:
    """Time and spread of an engine's own all-reduce, inside captured graphs or outside."""
    whose = "" if library == "neutral" else f".{library}"
    return _either(
        lambda: collective_time(f"allreduce.custom{whose}", moved, group, cluster, calibration),
        lambda: collective_time(
            f"allreduce.custom-eager{whose}", moved, group, cluster, calibration
        ),
        captured,
    )


def _exchanged(
    one: Collective, group: Group, cluster: Cluster, calibration: Calibration, captured: Numeric
) -> tuple[Array, Array]:
    """Time and spread of DeepEP's exchange: inside captured graphs its kernels for low latency, by
    which every copy of a token goes by itself."""
    quick = one.op.replace(THROUGHPUT, LOW_LATENCY)
    return _either(
        lambda: collective_time(quick, one.bytes, group, cluster, calibration),
        lambda: collective_time(one.op, one.bytes, group, cluster, calibration, one.copies),
        captured,
    )


def _either(
    within: Callable[[], tuple[Array, Array]],
    outside: Callable[[], tuple[Array, Array]],
    captured: Numeric,
) -> tuple[Array, Array]:
    """Time and spread of a kernel inside captured graphs or outside (`captured` 1 or 0)."""
    inside = np.asarray(captured) > 0
    if np.all(inside):
        return within()
    if not np.any(inside):
        return outside()
    (one, sigma), (other, wider) = within(), outside()
    return np.where(inside, one, other), np.where(inside, sigma, wider)

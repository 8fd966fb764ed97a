"""The system that a request means: by name, by its accelerator, or resized."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from predictor.catalog import entries, tables
from predictor.catalog.filling import Filler
from predictor.catalog.forms import parse
from predictor.catalog.specs import TrainingPlanSpec
from predictor.catalog.systems import default_system, networked, resize_node, system
from predictor.errors import InputError
from predictor.hardware import Accelerator, Cluster
from predictor.units import GB


def scale_up(cluster: Cluster) -> int:
    """Accelerators that the innermost link joins: those of a node, or of an NVLink domain."""
    inner = [tier for tier in cluster.tiers if tier.link == cluster.tiers[0].link]
    sizes = [tier.size for tier in inner if np.isfinite(tier.size)]
    return int(max(sizes, default=cluster.accelerators_per_node))


def several_systems(text: str, where: str) -> tuple[tuple[Cluster, int], ...]:
    """Systems and how many of something are on each: 'dgx-h100:2+dgx-a100:2', a name alone meaning
    one; neighbours of one name are joined.

    where   the field, for an error

    Raises InputError for numbers that are none.
    """
    found: list[tuple[str, int]] = []
    for part in text.split("+"):
        name, _, number = part.strip().rpartition(":")
        name, number = (name, number) if name else (number, "1")
        if not number.isdigit() or not int(number):
            raise InputError(
                f"{where} {text!r}: write NAME:COUNT+NAME:COUNT, as dgx-h100:2+dgx-a100:2"
            )
        if found and found[-1][0] == name:
            found[-1] = name, found[-1][1] + int(number)
        else:
            found.append((name, int(number)))
    return tuple((system(name), number) for name, number in found)


def with_host(cluster: Cluster, values: dict[str, Any]) -> Cluster:
    """The system with the host memory per node that `values` state, `host_memory_gb`; taken out of
    them."""
    stated = parse(
        TrainingPlanSpec, {"host_memory_gb": values.pop("host_memory_gb", None)}, "request"
    ).host_memory_gb
    return cluster if stated is None else replace(cluster, host_memory=stated * GB)


def _accelerators(values: Mapping[str, Any]) -> int:
    """Accelerators of a run, as far as its number of them or its layout says so."""
    return int(
        values.get("gpus") or math.prod(int(values.get(k) or 1) for k in ("tp", "pp", "cp", "dp"))
    )


def whole_node(accelerator: Accelerator, values: Mapping[str, Any]) -> int | None:
    """Accelerators of a node, where a run that says how many it has, and nothing of its nodes, is
    more than a link joins in the first system with that accelerator, and just a node of another;
    else None. Four GH200 are a node of four, not four nodes of one."""
    gpus = _accelerators(values)
    if gpus <= scale_up(default_system(accelerator, None)):
        return None
    sizes = (
        int(row["accelerators_per_node"])
        for row in tables.rows("systems").values()
        if row["accelerator"] == accelerator.name
    )
    return next((size for size in sizes if size == gpus), None)


def complete_cluster(filler: Filler) -> Cluster:
    """The system that a request names, or the first of its accelerator, resized as it states."""
    values = filler.values
    if "system" in values:
        return stated_cluster(values["system"], values)
    if "accelerator" not in values:
        raise InputError("give --system or --accelerator (reckon show systems)")
    own = entries.accelerator(values["accelerator"])
    cluster = default_system(own, values.get("accelerators_per_node") or whole_node(own, values))
    rule = "catalog system of that accelerator and node size, else a PCIe node"
    if values.get("inter_link_gbps") is None:
        cluster = networked(cluster, _accelerators(values))
    filler.fill("system", cluster.name, rule)
    return _resized(cluster, values)


BESIDE = ("accelerator", "accelerators_per_node", "inter_link_gbps")
"""What a plan may state of its system beside the name (`stated_cluster`)."""


def stated_cluster(ref: entries.Ref | Cluster, values: Mapping[str, Any]) -> Cluster:
    """A system as `system` takes it, with what a plan states of it beside: other accelerators, the
    size of its nodes, the rate between them."""
    cluster = system(ref)
    if values.get("accelerator") is not None:
        cluster = replace(cluster, accelerator=entries.accelerator(values["accelerator"]))
    return _resized(cluster, values)


def _resized(cluster: Cluster, values: Mapping[str, Any]) -> Cluster:
    """The system with the size of nodes and the rate between them that `values` state."""
    per_node, link = values.get("accelerators_per_node"), values.get("inter_link_gbps")
    if per_node is not None and per_node != cluster.accelerators_per_node:
        cluster = resize_node(cluster, per_node)
    if link is not None:
        outer = replace(cluster.tiers[-1], bandwidth=link * 1e9 / 8)
        if len(cluster.tiers) == 1:
            inner = replace(cluster.tiers[0], size=float(cluster.accelerators_per_node))
            outer = replace(outer, link="infiniband", size=np.inf, in_switch=False)
            cluster = replace(cluster, tiers=(inner, outer))
        else:
            cluster = replace(cluster, tiers=(*cluster.tiers[:-1], outer))
    return cluster

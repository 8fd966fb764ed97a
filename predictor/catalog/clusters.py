"""The system that a request means: by name, by its accelerator, or resized; and nodes of
accelerators that no catalog system has.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from predictor.catalog import entries
from predictor.catalog.filling import Filler
from predictor.catalog.specs import TrainingPlanSpec, parse
from predictor.catalog.systems import system
from predictor.errors import InputError
from predictor.hardware import Accelerator, Cluster, Tier
from predictor.units import GB

NODE_FALLBACK = 8

PCIE_RATE = 32e9
"""A PCIe 4 x16 link, one direction [bytes/s] (PCI Express 4.0 base specification)."""

NODE_NETWORK = 12.5e9
"""What joins nodes of which the catalog knows nothing: one 100 Gb/s port [bytes/s]."""


def default_system(accelerator: Accelerator, per_node: int | None) -> Cluster:
    """The first catalog system with an accelerator and node size, else one of another node size
    resized, else a PCIe node (`alone`)."""
    matches = [
        name
        for name, row in entries.rows("systems").items()
        if row["accelerator"] == accelerator.name
    ]
    if not matches:
        return alone(accelerator, per_node)
    for name in matches:
        row = entries.rows("systems")[name]
        if per_node in (None, int(row["accelerators_per_node"])):
            return system(name)
    found = system(matches[0])
    return resize_node(found, int(per_node or NODE_FALLBACK))


def alone(accelerator: Accelerator, per_node: int | None = None) -> Cluster:
    """A node of accelerators that no catalog system has: joined by their PCIe links (that of a
    PCIe 4 x16 where the catalog has none), and by a `NODE_NETWORK` per node."""
    size = int(per_node or NODE_FALLBACK)
    host = accelerator.host_bandwidth
    inside = Tier("pcie4", float(size), host if np.isfinite(host) else PCIE_RATE)
    outside = Tier("ethernet", math.inf, NODE_NETWORK / size)
    return Cluster(f"PCIe node of {accelerator.name}", accelerator, size, (inside, outside))


def resize_node(cluster: Cluster, per_node: int) -> Cluster:
    """The same links, and host memory for each accelerator, with another number per node."""
    old = cluster.accelerators_per_node
    tiers = tuple(
        replace(tier, size=float(per_node)) if tier.size == old else tier for tier in cluster.tiers
    )
    name = f"{cluster.name} with {per_node} per node"
    host = cluster.host_memory * per_node / old
    return replace(
        cluster, name=name, accelerators_per_node=per_node, tiers=tiers, host_memory=host
    )


def scale_up(cluster: Cluster) -> int:
    """Accelerators that the innermost link joins: those of a node, or of an NVLink domain."""
    inner = [tier for tier in cluster.tiers if tier.link == cluster.tiers[0].link]
    sizes = [tier.size for tier in inner if np.isfinite(tier.size)]
    return int(max(sizes, default=cluster.accelerators_per_node))


def with_host(cluster: Cluster, values: dict[str, Any]) -> Cluster:
    """The system with the host memory per node that `values` state, `host_memory_gb`; taken out of
    them."""
    stated = parse(
        TrainingPlanSpec, {"host_memory_gb": values.pop("host_memory_gb", None)}, "request"
    ).host_memory_gb
    return cluster if stated is None else replace(cluster, host_memory=stated * GB)


def complete_cluster(filler: Filler) -> Cluster:
    """The system that a request names, or the first of its accelerator, resized as it states."""
    values = filler.values
    per_node, link = values.get("accelerators_per_node"), values.get("inter_link_gbps")
    if "system" in values:
        cluster = system(values["system"])
        if "accelerator" in values:
            own = entries.accelerator(values["accelerator"])
            cluster = replace(cluster, accelerator=own)
    elif "accelerator" in values:
        own = entries.accelerator(values["accelerator"])
        cluster = default_system(own, per_node)
        rule = "catalog system of that accelerator and node size, else a PCIe node"
        filler.fill("system", cluster.name, rule)
    else:
        raise InputError("give --system or --accelerator (reckon show systems)")
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

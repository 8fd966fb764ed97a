"""Finds and loads systems: by name, from a file, from a machine's budget or given; and nodes of
accelerators that no catalog system has."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from predictor.catalog import entries, tables
from predictor.catalog.entries import Ref, resolve
from predictor.catalog.forms import parse
from predictor.catalog.machine_names import MachineName, chip_of, unlike_system
from predictor.catalog.specs import SystemSpec
from predictor.catalog.technology import system_of
from predictor.errors import InputError
from predictor.hardware import Accelerator, Cluster, Tier, bridged
from predictor.units import GB, to_si


def system(ref: Ref | Cluster) -> Cluster:
    """Load a system (accelerators behind a tiered network) from a name, a file or a mapping; a
    file or mapping may hold a machine's budget under the key `technology` (`technology.KEYS`).

    A name may be that of a catalog system, of its accelerator (`h100`), of so many (`8xH100`), of
    a slice of TPUs (`v5p-128`) or of a cloud's instance (`p5.48xlarge`).
    """
    if isinstance(ref, Cluster):
        return ref
    if isinstance(ref, str) and not ref.endswith((".yaml", ".yml", ".json")):
        return _catalog_system(ref, tables.data_dir())
    return _read(ref)


@lru_cache(maxsize=256)
def _catalog_system(name: str, _: Path) -> Cluster:
    """A system that the catalog of a folder knows by name."""
    named = unlike_system(name)
    return _read(name) if named is None else _named(named)


def _read(ref: Ref) -> Cluster:
    """A system of the catalog, a file or a mapping."""
    content, where = resolve("systems", ref)
    if "technology" in content:  # a machine that does not exist yet, from its budget
        return system_of(content, where)
    return _system(parse(SystemSpec, content, where), where)


def _named(name: MachineName) -> Cluster:
    """The system of an instance, or the usual one of an accelerator, with as many in a node as the
    name has in one where those are fewer."""
    if name.instance is not None:
        return system(name.instance.system)
    if name.system:
        return system(name.system)
    usual = default_system(entries.accelerator(name.accelerator), None)
    stated = name.per_node or name.count
    fewer = 0 < stated < usual.accelerators_per_node
    return resize_node(usual, stated) if fewer else usual


def _system(spec: SystemSpec, where: str) -> Cluster:
    tiers = []
    before = 1.0
    for position, tier in enumerate(spec.tiers):
        last = position == len(spec.tiers) - 1
        size = tier.size if tier.size is not None else (np.inf if last else None)
        if size is None or size < before:
            raise InputError(
                f"{where}: tiers.{position}.size must be given and not below {before:g}, the size "
                "of the tier inside it"
            )
        before = size
        si = to_si(tier.to_dict(blanks=False))
        tiers.append(
            Tier(
                link=tier.link,
                size=float(size),
                bandwidth=float(si["bandwidth"]),
                latency=float(si.get("latency", np.nan)),
                oversubscription=tier.oversubscription,
                in_switch=tier.in_switch,
                window=float(si.get("window", np.inf)),
                direct=tier.direct,
            )
        )
    host = np.nan if spec.host_memory_gb is None else spec.host_memory_gb * GB
    machine = entries.accelerator(spec.accelerator)
    return Cluster(spec.name, machine, spec.accelerators_per_node, tuple(tiers), host)


NODE_FALLBACK = 8
"""Accelerators of a node where nothing says how many: what boards of all vendors carry (NVIDIA HGX;
Open Compute's universal baseboard of eight OAM modules)."""

PCIE_RATE = 32e9
"""A PCIe 4 x16 link, one direction [bytes/s] (PCI Express 4.0 base specification)."""

NODE_NETWORK = 12.5e9
"""One port of 100 Gb/s [bytes/s], which 16 lanes of PCIe 3 feed; those of PCIe 4 and 5 feed ports
of 200 and 400 Gb/s (NVIDIA ConnectX-5, -6 and -7, from memory)."""


def default_system(accelerator: Accelerator, per_node: int | None) -> Cluster:
    """The first catalog system with an accelerator and node size, else one of another node size
    resized; else that of the same chip with other memory; else a PCIe node (`alone`)."""
    rows = tables.rows("systems")
    own = accelerator.name
    matches = [name for name, row in rows.items() if row["accelerator"] == own and _whole(row)]
    if not matches:
        chip = (chip_of(own) or ("", 0.0))[0]
        others = (str(row["accelerator"]) for row in rows.values() if _whole(row))
        twin = next((one for one in others if (chip_of(one) or (None,))[0] == chip), None)
        if twin is None:
            return alone(accelerator, per_node)
        return replace(default_system(entries.accelerator(twin), per_node), accelerator=accelerator)
    for name in matches:
        if per_node in (None, int(rows[name]["accelerators_per_node"])):
            return system(name)
    found = system(matches[0])
    return resize_node(found, int(per_node or NODE_FALLBACK))


def _whole(row: Mapping[str, Any]) -> bool:
    """Whether a system comes as it stands: bridges between its cards are sold apart, but for cards
    that are made for them (NVIDIA's NVL)."""
    return "-NVL-" in row["accelerator"] or not bridged([tier["link"] for tier in row["tiers"]])


def alone(accelerator: Accelerator, per_node: int | None = None) -> Cluster:
    """A node of accelerators that no catalog system has: joined by their PCIe links (that of a
    PCIe 4 x16 where the catalog has none), and by one port per node (`_outside`)."""
    size = int(per_node or NODE_FALLBACK)
    host = accelerator.host_bandwidth
    rate = host if np.isfinite(host) else PCIE_RATE
    tiers = (Tier(pcie(float(np.mean(rate))), float(size), rate), _outside(accelerator, size))
    return Cluster(f"PCIe node of {accelerator.name}", accelerator, size, tiers)


def networked(cluster: Cluster, accelerators: float) -> Cluster:
    """A system that the catalog has without a network (a single node, a pod), joined as nodes are
    of which nothing is known where it is to have more accelerators than it reaches."""
    if accelerators <= cluster.tiers[-1].size:
        return cluster
    outside = _outside(cluster.accelerator, cluster.accelerators_per_node)
    return replace(cluster, tiers=(*cluster.tiers, outside))


def _outside(accelerator: Accelerator, size: int) -> Tier:
    """What joins nodes of which the catalog knows nothing: one port, of the generation of the slots
    in them where that is known: 100 Gb/s of PCIe 3, 200 of 4, 400 of 5 (`NODE_NETWORK`)."""
    host = float(np.mean(accelerator.host_bandwidth))
    slots = max(round(host / (PCIE_RATE / 2.0)), 1) if np.isfinite(host) else 1
    return Tier("ethernet", math.inf, NODE_NETWORK * min(slots, 4) / size)


def pcie(rate: float) -> str:
    """The generation of PCIe whose 16 lanes carry a rate [bytes/s]: 32 GB/s is its fourth, and each
    one doubles it (PCI-SIG)."""
    return f"pcie{max(4 + round(math.log2(rate / PCIE_RATE)), 1)}"


def resize_node(cluster: Cluster, per_node: int) -> Cluster:
    """The same links, and host memory for each accelerator, with another number per node; fewer
    that are wired to one another leave the links to the others idle."""
    old = cluster.accelerators_per_node
    tiers = tuple(
        replace(tier, size=float(per_node), bandwidth=tier.bandwidth * tier.reached(per_node - 1.0))
        if tier.size == old
        else tier
        for tier in cluster.tiers
    )
    name = f"{cluster.name} with {per_node} per node"
    host = cluster.host_memory * per_node / old
    return replace(
        cluster, name=name, accelerators_per_node=per_node, tiers=tiers, host_memory=host
    )

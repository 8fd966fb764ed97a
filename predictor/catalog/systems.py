"""Finds and loads systems: by name, from a file, from a machine's budget or given."""

from __future__ import annotations

import numpy as np

from predictor.catalog import entries
from predictor.catalog.entries import Ref, resolve
from predictor.catalog.specs import SystemSpec, parse
from predictor.catalog.technology import system_of
from predictor.errors import InputError
from predictor.hardware import Cluster, Tier
from predictor.units import GB, to_si


def system(ref: Ref | Cluster) -> Cluster:
    """Load a system (accelerators behind a tiered network) from a name, a file or a mapping; a
    file or mapping may hold a machine's budget under the key `technology` (`technology.KEYS`)."""
    if isinstance(ref, Cluster):
        return ref
    content, where = resolve("systems", ref)
    if "technology" in content:  # a machine that does not exist yet, from its budget
        return system_of(content, where)
    return _system(parse(SystemSpec, content, where), where)


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
        si = to_si(tier.model_dump(exclude_none=True))
        tiers.append(
            Tier(
                link=tier.link,
                size=float(size),
                bandwidth=float(si["bandwidth"]),
                latency=float(si.get("latency", np.nan)),
                oversubscription=tier.oversubscription,
                in_switch=tier.in_switch,
            )
        )
    host = np.nan if spec.host_memory_gb is None else spec.host_memory_gb * GB
    machine = entries.accelerator(spec.accelerator)
    return Cluster(spec.name, machine, spec.accelerators_per_node, tuple(tiers), host)

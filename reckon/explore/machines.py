"""The machines of a grid: each distinct one made once, alike ones as arrays."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from predictor import catalog
from predictor.arrays import compact, kind, stack
from predictor.catalog import (
    AcceleratorSpec,
    Cost,
    assumptions,
    budget,
    catalog_cost,
    cost_assumptions,
    machine,
    machine_cost,
    read_table,
)
from predictor.errors import InputError
from predictor.hardware import Budget, Cluster, DerivedMachine
from predictor.records import dataclass
from predictor.timing import energy_of
from reckon.explore.grid import LINKS, NUMBERS

RESOURCES = (
    "compute",
    "on-chip memory",
    "memory bandwidth",
    "scale-up network",
    "scale-out network",
)
"""What a machine has more or less of; a bottleneck is the one whose doubling helps most."""


@dataclass(frozen=True, slots=True, eq=False)
class Machines:
    """Alike machines: their numbers are arrays of one length.

    rows     positions of the machines that these are, among all of the grid
    derived  how they were made; None for those of the catalog
    cost     of one accelerator with its share of the system; None where no price is known
    """

    rows: npt.NDArray[np.intp]
    cluster: Cluster
    derived: DerivedMachine | None
    cost: Cost | None


def technology_machines(
    contents: Sequence[Mapping[str, Any]],
    overrides: Mapping[str, Any],
    costs: Mapping[str, Any],
) -> tuple[list[Machines], dict[int, str]]:
    """Machines from budgets, alike ones together; and why others are refused, by position."""
    known, prices = assumptions(overrides), cost_assumptions(costs)
    refused: dict[int, str] = {}
    groups: dict[tuple[Any, ...], list[tuple[int, Budget]]] = {}
    for position, content in enumerate(contents):
        try:
            one = budget(content, known)
        except InputError as error:
            refused[position] = str(error)
            continue
        key = (
            one.processor.name,
            one.scale_up.link,
            one.scale_out.link,
            float(one.domain),
            float(one.in_node),
        )
        groups.setdefault(key, []).append((position, one))
    found = []
    for members in groups.values():
        possible = machine(stack([one for _, one in members]), known, strict=False).possible
        for (position, one), good in zip(members, possible, strict=True):
            if not good:
                try:
                    machine(one, known)
                except InputError as error:
                    refused[position] = str(error)
        kept = [member for member, good in zip(members, possible, strict=True) if good]
        if kept:
            made = machine(stack([one for _, one in kept]), known)
            rows = np.array([position for position, _ in kept])
            found.append(Machines(rows, made.cluster, made, machine_cost(made, prices)))
    return found, refused


def catalog_machines(
    contents: Sequence[tuple[Any, Mapping[str, Any]]], costs: Mapping[str, Any]
) -> tuple[list[Machines], dict[int, str]]:
    """Catalog systems with some of their numbers changed, alike ones together; and why others are
    refused, by position.

    contents   of each a system and the fields to change (`AcceleratorSpec`, `grid.LINKS`)
    """
    prices = cost_assumptions(costs)
    refused: dict[int, str] = {}
    groups: dict[Hashable, list[tuple[int, Cluster]]] = {}
    for position, (system, changes) in enumerate(contents):
        try:
            cluster = changed(system, changes)
        except InputError as error:
            refused[position] = str(error)
            continue
        groups.setdefault(kind(cluster), []).append((position, cluster))
    found = []
    for members in groups.values():
        joined = compact(stack([cluster for _, cluster in members]))
        rows = np.array([position for position, _ in members])
        own = joined.accelerator
        cost = catalog_cost(own.name, own.power, _network_price(joined), prices)
        found.append(Machines(rows, joined, None, cost))
    return found, refused


def _network_price(cluster: Cluster) -> float:
    known = {
        row["link"]: float(row["usd_per_accelerator"]) for row in read_table("networks").values()
    }
    links = dict.fromkeys(tier.link for tier in cluster.tiers)
    return sum(known.get(link, 0.0) for link in links)


def changed(system: Any, changes: Mapping[str, Any]) -> Cluster:
    """A catalog system with fields of its accelerator and rates of its networks changed. Its
    kernels take over the efficiencies of the unchanged one."""
    cluster = catalog.system(system)
    if not changes:
        return cluster
    if "network" in changes:
        other = catalog.system(changes["network"])
        cluster = replace(cluster, tiers=other.tiers)
    numbers = {}
    for key in NUMBERS:
        if key in changes:
            try:
                numbers[key] = float(changes[key])
            except (TypeError, ValueError):
                numbers[key] = np.nan
            if not 0 < numbers[key] < np.inf:
                raise InputError(f"machine: {key} {changes[key]!r} is not a positive number")
    own = {key: value for key, value in changes.items() if key not in LINKS}
    real = cluster.accelerator
    if own:
        base = catalog.spec_of("accelerators", real.name)
        assert isinstance(base, AcceleratorSpec)
        content = base.to_dict(blanks=False)
        if "memory_gb" in own:
            content.pop("memory_gib", None)
        made = catalog.accelerator({**content, **own})
        cluster = replace(cluster, accelerator=replace(made, relative=real, doubt=0.1))
    tiers = list(cluster.tiers)
    if "domain" in numbers:
        same = [tier for tier in tiers if tier.link == tiers[0].link and np.isfinite(tier.size)]
        tiers = [replace(same[-1], size=numbers["domain"]), *tiers[len(same) :]]
    if "scale_up_gbs" in numbers:
        link = tiers[0].link
        tiers = [
            replace(t, bandwidth=numbers["scale_up_gbs"] * 1e9) if t.link == link else t
            for t in tiers
        ]
    if "scale_out_gbs" in numbers:
        tiers[-1] = replace(tiers[-1], bandwidth=numbers["scale_out_gbs"] * 1e9)
    return replace(cluster, tiers=tuple(tiers))


def boosted(cluster: Cluster, resource: str, factor: float = 2.0) -> Cluster:
    """The same machine with `factor` times of one of `RESOURCES`: compute is arithmetic and the
    power for it; on-chip memory the rates of registers, shared memory and cache."""
    own = cluster.accelerator
    tiers = list(cluster.tiers)
    if resource == "scale-up network":
        link = tiers[0].link
        tiers = [
            replace(t, bandwidth=t.bandwidth * factor)
            if t.link == link and np.isfinite(t.size)
            else t
            for t in tiers
        ]
    elif resource == "scale-out network":
        tiers[-1] = replace(tiers[-1], bandwidth=tiers[-1].bandwidth * factor)
    else:
        own = replace(own, relative=own, doubt=0.0)
        if resource == "compute":
            own = replace(
                own,
                peak={dtype: rate * factor for dtype, rate in own.peak.items()},
                power=own.power * factor,
                energy=energy_of(own),
            )
        elif resource == "on-chip memory":
            own = replace(
                own,
                l2_bandwidth=own.l2_bandwidth * factor,
                register_bandwidth=own.register_bandwidth * factor,
                shared_bandwidth=own.shared_bandwidth * factor,
            )
        else:
            own = replace(own, bandwidth=own.bandwidth * factor)
    return replace(cluster, accelerator=own, tiers=tuple(tiers))

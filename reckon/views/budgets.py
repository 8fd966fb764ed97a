"""`reckon show technology`: what a machine's budget may be made of; and what a budget makes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from predictor import catalog
from predictor.errors import InputError, unknown
from predictor.units import GB, GIB

SCOPES = {"scale-up": "scale_up", "scale-out": "scale_out"}
"""Classes of networks, and the key of a budget that names one."""


def technologies(word: str | None = None) -> list[dict[str, Any]]:
    """Logic nodes, memories, networks and processor designs by name: the key of a budget that takes
    each, its year, and what it gives.

    word   only those whose name, or key, has it

    Raises InputError where none has.
    """
    rows = [
        _row("node", one, f"density {one['density']} x N7, power {one['power']} x, speed "
             f"{one['speed']} x, {one['sram_mib_mm2']} Mib SRAM per mm2, {one['wafer_usd']} USD a "
             "wafer")
        for one in catalog.read_table("nodes").values()
    ] + [
        _row("memory", one, f"{one['bandwidth_gbs']} GB/s and {one['capacity_gb']} GiB a device, "
             f"{one['pj_per_bit']} pJ/bit, {one['edge_mm']} mm of a die's edge")
        for one in catalog.read_table("memories").values()
    ] + [
        _row(SCOPES[one["class"]], one, f"{one['bandwidth_gbs']} GB/s per direction, "
             f"{one['pj_per_bit']} pJ/bit")
        for one in catalog.read_table("networks").values()
    ] + [
        {"key": "processor", "name": name, "year": int(one["year"]),
         "gives": f"{one['width']} 16-bit FLOP per clock, {', '.join(one['rates'])}; efficiencies "
                  f"of {one['relative']}"}
        for name, one in catalog.processors().items()
    ]  # fmt: skip
    if word is None:
        return rows
    found = [row for row in rows if word.lower() in (str(row["name"]).lower(), row["key"])]
    found = found or [row for row in rows if word.lower() in str(row["name"]).lower()]
    if not found:
        raise unknown("technology", word, [*(str(r["name"]) for r in rows), *catalog.KEYS])
    return found


def _row(key: str, one: Mapping[str, str], gives: str) -> dict[str, Any]:
    return {"key": key, "name": one["name"], "year": int(one["year"]), "gives": gives}


def budgeted(content: Mapping[str, Any], where: str) -> dict[str, Any]:
    """What the budget of a file makes: rates, memory, networks, power, areas, what it costs.

    content   a system's file with the key `technology`

    Raises InputError where it cannot be made.
    """
    catalog.system(dict(content))  # says what of the file is wrong
    known = catalog.assumptions(content.get("assumptions"))
    made = catalog.machine(catalog.budget(content["technology"], known), known)
    own, cost = made.accelerator, catalog.machine_cost(made)
    if not np.all(made.possible):
        raise InputError(f"{where}: the machine cannot be made")
    return {
        "name": content.get("name", ""),
        **{f"{dtype}_tflops": round(float(rate) / 1e12, 1) for dtype, rate in own.peak.items()},
        "processors": float(own.sms),
        "clock_ghz": float(made.clock) / 1e9,
        "limited by": str(made.binds),
        "memory_gib": float(own.memory) / GIB,
        "memory_bandwidth_gbs": float(own.bandwidth) / GB,
        "l2_mb": float(own.l2) / 1e6,
        "power_w": float(made.power),
        "networks": ", ".join(
            f"{tier.link} {float(tier.bandwidth) / GB:g} GB/s x {float(tier.size):g}"
            for tier in made.cluster.tiers
        ),
        "efficiencies of": own.relative.name if own.relative else "",
        "area_mm2": {name: float(area) * 1e6 for name, area in made.areas.items()},
        "watts": {name: float(power) for name, power in made.watts.items()},
        "cost_usd": {name: float(usd) for name, usd in cost.parts.items()},
        "capital_usd": float(cost.capital),
    }

"""What an importer returns, and what its user may state about a foreign file."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from predictor.errors import InputError
from predictor.hardware import Tier
from predictor.schema import KERNEL_COLUMNS, KERNEL_SCHEMA_VERSION


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """Kernel rows of a foreign file (columns `KERNEL_COLUMNS`), how many of its measurements
    became no row, by reason, and what else it says."""

    rows: pd.DataFrame
    left_out: Counter[str] = field(default_factory=Counter)
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Stated:
    """What the user states about a file.

    accelerator   its catalog name; None: as the file says
    op            collective that the file times; None: as the file says
    tiers         network of the machine, from the inside out
    per_node      accelerators of one host; None: unknown
    system        name of the system that `tiers` were taken from, and its accelerator
    """

    accelerator: str | None = None
    op: str | None = None
    tiers: tuple[Tier, ...] = ()
    per_node: int | None = None
    system: tuple[str, str] | None = None


def kernel_rows(rows: pd.DataFrame | list[dict[str, Any]]) -> pd.DataFrame:
    """Rows with the columns of a kernel table, all of them and in their order."""
    table = pd.DataFrame(rows).reindex(columns=list(KERNEL_COLUMNS))
    return table.assign(schema_version=KERNEL_SCHEMA_VERSION)


def link_columns(stated: Stated, ranks: float, hosts: float) -> dict[str, Any]:
    """The link that a collective runs on: the innermost tier inside one host, else the first
    beyond it that holds all ranks, else the outermost.

    Returns `link`, `link_gbs` [GB/s per accelerator and direction] and `in_switch`. Raises
    InputError where no network is stated, or none between hosts.
    """
    if not stated.tiers:
        raise InputError("the link is not stated: give --system NAME, or --link NAME --link-gbs X")
    outer = stated.tiers[1:]
    if hosts > 1 and not outer:
        name = stated.system[0] if stated.system else "the system"
        raise InputError(f"{name} has no network between hosts; give --link NAME --link-gbs X")
    inside = stated.tiers[0]
    tier = inside if hosts == 1 else next((t for t in outer if t.size >= ranks), outer[-1])
    return {
        "link": tier.link,
        "link_gbs": float(tier.rate) / 1e9,
        "in_switch": float(tier.in_switch),
    }

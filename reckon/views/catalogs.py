"""`reckon show`: the catalogs, as tables, JSON, or YAML to edit and pass back."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from predictor import catalog
from predictor.catalog import load
from predictor.errors import InputError, unknown
from predictor.files import is_file
from predictor.precision import PEAK
from predictor.units import GB, GIB
from reckon.views.budgets import budgeted, technologies
from reckon.views.fields import briefly, entry, listed
from reckon.views.terminal import grid

TECHNOLOGY = "technology"

KINDS = (*catalog.KINDS, "calibrations", "fields", TECHNOLOGY)

Content = list[dict[str, Any]] | dict[str, Any]


def content(kind: str, name: str | None) -> Content:
    """A catalog as rows, one of its entries, or the rows that have a word in their name which is
    the name of none.

    Raises InputError for unknown kinds and names.
    """
    if kind not in KINDS:
        raise unknown("catalog", kind, KINDS)
    if kind == "fields":
        return listed() if name is None else entry(name)
    if kind == TECHNOLOGY:
        return technologies(name)
    if name is None:
        return _all(kind)
    if kind == "systems" and is_file(path := Path(name)):
        stated = catalog.read_mapping(path)
        if TECHNOLOGY in stated:
            return budgeted(stated, str(path))
    try:
        return _one(kind, name)
    except InputError:
        word = _letters(name)
        alike = [row for row in _all(kind) if word and word in _letters(str(row["name"]))]
        if not alike:
            raise
        return alike


def _letters(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def show(kind: str, found: Content) -> None:
    """Print a catalog or one of its entries."""
    if isinstance(found, list):
        rows = briefly(found) if kind == "fields" else found
        columns = list(rows[0])
        text = len(columns) if kind in ("fields", TECHNOLOGY) else 2
        print(grid(columns, [[_cell(row[c]) for c in columns] for row in rows], left=text))
    else:
        print(grid(["", ""], [[key, _cell(value)] for key, value in _flat(found)], left=2))


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return "" if value is None else str(value)


def _flat(content: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for key, value in content.items():
        if isinstance(value, dict):
            found += _flat(value, f"{prefix}{key}.")
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            for position, item in enumerate(value):
                found += _flat(item, f"{prefix}{key}.{position}.")
        else:
            found.append((prefix + key, value))
    return found


def _all(kind: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    if kind == "accelerators":
        for name in catalog.rows(kind):
            own = catalog.accelerator(name)
            rows.append(
                {
                    "name": name,
                    "architecture": own.architecture,
                    "bf16 TFLOP/s": own.peak.get("bf16", own.peak.get("fp16", 0.0)) / 1e12,
                    "memory GiB": own.memory / GIB,
                    "GB/s": own.bandwidth / GB,
                    "L2 MB": own.l2 / 1e6,
                    "TDP W": own.power,
                }
            )
    elif kind == "systems":
        for name in catalog.rows(kind):
            cluster = catalog.system(name)
            links = ", ".join(
                f"{tier.link} {tier.bandwidth / GB:g} GB/s x {tier.size:g}"
                for tier in cluster.tiers
            )
            rows.append(
                {
                    "name": name,
                    "accelerator": cluster.accelerator.name,
                    "per node": cluster.accelerators_per_node,
                    "network, inside out (per accelerator and direction)": links,
                }
            )
    elif kind == "models":
        for name in catalog.rows(kind):
            found = catalog.model(name)
            rows.append(
                {
                    "name": name,
                    "parameters": f"{found.parameters / 1e9:.3g} B",
                    "active": f"{found.active_parameters / 1e9:.3g} B",
                    "layers": found.layers,
                    "hidden": found.hidden,
                    "heads": found.heads,
                    "kv heads": found.kv_heads,
                    "ffn": found.ffn_hidden,
                    "vocab": found.vocab,
                }
            )
    else:
        for name in catalog.calibrations():
            known = load(name)
            rows.append(
                {
                    "name": name,
                    "fitted to": known.provenance.get("fitted_to", ""),
                    "kernel models": len(known.kernels),
                    "links": len(known.links),
                }
            )
    return rows


def _one(kind: str, name: str) -> dict[str, Any]:
    if kind == "calibrations":
        own = load(name)
        return {
            "name": own.name,
            **dict(own.provenance),
            "kernel models": len(own.kernels),
            "accelerators": sorted({key[2] for key in own.kernels if "*" not in key[2]}),
            "data types": sorted({PEAK.get(key[1], key[1]) for key in own.kernels} - {"*"}),
            "links": sorted({key[1] for key in own.links}),
            "host per kernel us": own.run.host_per_kernel * 1e6,
            "interval level": own.interval_level,
            "sigma of a run": own.run.sigma,
        }
    return catalog.to_mapping(catalog.spec_of(kind, name))

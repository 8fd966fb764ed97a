"""The tables of technologies and the file form of a machine's budget: what `data/technology` and a
file's key `technology` say, as objects of `hardware`.

Files carry units in their keys.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from predictor.catalog import entries, tables
from predictor.errors import InputError, unknown
from predictor.hardware import (
    Accelerator,
    Budget,
    Cluster,
    DerivedMachine,
    LinkTechnology,
    MemoryTechnology,
    Node,
    Processor,
    derive,
    devices,
)
from predictor.units import CM2, MM, MM2, PJ_PER_BIT


def read_table(name: str) -> dict[str, dict[str, str]]:
    """Rows of a table of `data/technology` by name."""
    return _read_table(tables.data_dir() / "technology" / f"{name}.csv")


@lru_cache(maxsize=16)
def _read_table(path: Path) -> dict[str, dict[str, str]]:
    try:
        with path.open(newline="", encoding="utf-8") as stream:
            return {row["name"]: row for row in csv.DictReader(stream)}
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None


@lru_cache(maxsize=8)
def _read_yaml(path: Path) -> dict[str, Any]:
    return tables.read_mapping(path)


def _find(kind: str, name: object, table: Mapping[str, Any]) -> Any:
    for known, row in table.items():
        if known.lower() == str(name).lower():
            return row
    raise unknown(kind, name, table)


def node(name: str) -> Node:
    """A logic node by name: N12, N10, N7, N5, N4, N3, N2, N1.6, N1.4, N1."""
    return _node(name, tables.data_dir())


@lru_cache(maxsize=64)
def _node(name: str, _: Path) -> Node:
    row = _find("logic node", name, read_table("nodes"))
    return Node(
        name=row["name"],
        density=float(row["density"]),
        power=float(row["power"]),
        speed=float(row["speed"]),
        sram=float(row["sram_mib_mm2"]) * 2**20 / 8 / MM2,
        wafer=float(row["wafer_usd"]),
        defects=float(row["defects_per_cm2"]) / CM2,
        processor=row["processor"],
    )


def memory_technology(name: str) -> MemoryTechnology:
    """A memory technology by name: GDDR6 ... HBM2E, HBM3, HBM4, HBM5."""
    return _memory_technology(name, tables.data_dir())


@lru_cache(maxsize=64)
def _memory_technology(name: str, _: Path) -> MemoryTechnology:
    row = _find("memory technology", name, read_table("memories"))
    return MemoryTechnology(
        name=row["name"],
        bandwidth=float(row["bandwidth_gbs"]) * 1e9,
        capacity=float(row["capacity_gb"]) * 2**30,  # stacks are built in binary gigabytes
        energy=float(row["pj_per_bit"]) * PJ_PER_BIT,
        edge=float(row["edge_mm"]) * MM,
        area=float(row["area_mm2"]) * MM2,
        price=float(row["usd_per_gb"]) / 2**30,
    )


def link_technology(name: str, scope: str) -> LinkTechnology:
    """A link technology by name; scope 'scale-up' (NVLink2 ...) or 'scale-out' (HDR ... GDR)."""
    return _link_technology(name, scope, tables.data_dir())


@lru_cache(maxsize=64)
def _link_technology(name: str, scope: str, _: Path) -> LinkTechnology:
    table = {k: row for k, row in read_table("networks").items() if row["class"] == scope}
    row = _find(f"{scope} network", name, table)
    return LinkTechnology(
        name=row["name"],
        link=row["link"],
        scope=scope,
        bandwidth=float(row["bandwidth_gbs"]) * 1e9,
        energy=float(row["pj_per_bit"]) * PJ_PER_BIT,
        lanes=float(row["lanes"]),
        in_switch=row["in_switch"] == "1",
        price=float(row["usd_per_accelerator"]),
    )


def processor(name: str) -> Processor:
    """A processor design by name: volta, ampere, hopper, blackwell."""
    return _processor(name, tables.data_dir())


def processors() -> dict[str, Any]:
    """Processor designs by name, as their file states them."""
    return _read_yaml(tables.data_dir() / "technology" / "processors.yaml")


@lru_cache(maxsize=64)
def _processor(name: str, _: Path) -> Processor:
    row = _find("processor", name, processors())
    rows, columns = row["instruction"]
    return Processor(
        name=str(name).lower(),
        relative=row["relative"],
        year=float(row["year"]),
        node=node(row["node"]),
        width=float(row["width"]),
        vector=float(row["vector_flop"]),
        rates={dtype: float(rate) for dtype, rate in row["rates"].items()},
        registers=float(row["registers_kib"]) * 1024,
        shared=float(row["shared_kib"]) * 1024,
        shared_rate=float(row["shared_bytes_per_clock"]),
        register_rate=float(row["register_bytes_per_clock"]),
        instruction=(float(rows), float(columns)),
        cluster=float(row.get("cluster", 1)),
    )


def assumptions(overrides: Mapping[str, Any] | None = None) -> dict[str, float]:
    """The constants that all machines share (`data/technology/assumptions.yaml`), some of them
    replaced.

    Raises InputError for one that does not exist or is no positive number.
    """
    table = _read_yaml(tables.data_dir() / "technology" / "assumptions.yaml")
    return overridden(table, overrides, "assumption")


def overridden(
    table: Mapping[str, Mapping[str, Any]], overrides: Mapping[str, Any] | None, what: str
) -> dict[str, float]:
    """Values of a table of stated assumptions, some of them replaced.

    Raises InputError for one that does not exist or is no number of at least zero.
    """
    values = {name: float(entry["value"]) for name, entry in table.items()}
    for name, value in (overrides or {}).items():
        if name not in values:
            raise unknown(what, name, values)
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = np.nan
        if not 0 <= number < np.inf:
            raise InputError(f"{what} {name}: {value!r} is not a number of at least 0")
        values[name] = number
    return values


KEYS = (
    "node",
    "processor",
    "memory",
    "stacks",
    "stack_gb",
    "area_mm2",
    "dies",
    "power_w",
    "l2_share",
    "perimeter_mm",
    "scale_up",
    "scale_out",
    "domain",
    "per_node",
    "oversubscription",
    "scale_up_gbs",
    "scale_out_gbs",
    "memory_bandwidth_gbs",
)
"""Keys of a machine's budget in a file."""


def budget(content: Mapping[str, Any], known: Mapping[str, float] | None = None) -> Budget:
    """A budget from its file form.

    content   keys of `KEYS`; node, memory, scale_up and scale_out by name; stacks, stack_gb,
              dies, power_w, l2_share, domain, per_node may be left out; *_gbs override a
              technology's rate (memory_bandwidth_gbs: of all devices together)
    known     `assumptions`

    Raises InputError for unknown or missing keys and numbers that cannot be.
    """
    known = assumptions() if known is None else known
    for key in content:
        if key not in KEYS:
            raise unknown("key of a technology", key, KEYS)
    for key in ("node", "area_mm2", "memory"):
        if key not in content:
            raise InputError(
                f"technology: key {key!r} is missing; a budget needs node, area_mm2 and memory "
                "(reckon show technology)"
            )
    of = node(str(content["node"]))
    memory = memory_technology(str(content["memory"]))
    up = link_technology(str(content.get("scale_up", "NVLink4")), "scale-up")
    out = link_technology(str(content.get("scale_out", "NDR")), "scale-out")
    if "scale_up_gbs" in content:
        up = replace(up, bandwidth=_positive(content, "scale_up_gbs") * 1e9)
    if "scale_out_gbs" in content:
        out = replace(out, bandwidth=_positive(content, "scale_out_gbs") * 1e9)
    area = _positive(content, "area_mm2") * MM2
    dies = _positive(content, "dies", np.ceil(area / MM2 / known["reticle_mm2"]))
    found = Budget(
        node=of,
        memory=memory,
        scale_up=up,
        scale_out=out,
        processor=processor(str(content.get("processor", of.processor))),
        area=area,
        dies=dies,
        power=_positive(content, "power_w", np.inf),
        devices=_positive(content, "stacks", np.nan),
        l2_share=_positive(content, "l2_share", known["l2_share"]),
        domain=_positive(content, "domain", 8.0),
        in_node=_positive(content, "per_node", min(8.0, _positive(content, "domain", 8.0))),
        oversubscription=_positive(content, "oversubscription", 1.0),
        device_memory=_positive(content, "stack_gb", np.nan) * 2**30,
        edge=_positive(content, "perimeter_mm", np.nan) * MM,
    )
    if "memory_bandwidth_gbs" in content:
        whole = _positive(content, "memory_bandwidth_gbs") * 1e9
        each = whole / devices(found, known)
        found = replace(found, memory=replace(memory, bandwidth=each))
    if area / dies > known["reticle_mm2"] * MM2 * (1 + 1e-9):
        raise InputError(
            f"technology: area_mm2 {area / MM2:g} on {dies:g} dies is more than a reticle of "
            f"{known['reticle_mm2']:g} mm2 each; state more dies"
        )
    return found


def _positive(content: Mapping[str, Any], key: str, default: Any = None) -> float:
    value = content.get(key, default)
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = np.nan
    if key in content and not 0 < number < np.inf:
        raise InputError(f"technology: {key} {value!r} is not a positive number")
    return number


def machine(
    given: Budget,
    known: Mapping[str, float] | None = None,
    name: str = "",
    strict: bool = True,
) -> DerivedMachine:
    """The machine that a budget pays for (`hardware.derive`), behind it the catalog's accelerator
    of its processor design.

    Raises InputError where strict and the machine cannot be.
    """
    known = assumptions() if known is None else known
    # By name: the design of a batch holds arrays.
    behind = relative(processor(given.processor.name))
    return derive(given, behind, known, name, strict)


def system_of(content: Mapping[str, Any], where: str) -> Cluster:
    """The system of a file with the keys `technology` (a budget), and, if wanted, `name` and
    `assumptions`.

    Raises InputError as `budget` and `machine` do.
    """
    for key in content:
        if key not in ("name", "technology", "assumptions"):
            raise unknown(f"{where}: key", key, ("name", "technology", "assumptions"))
    for key in ("technology", "assumptions"):
        if not isinstance(content.get(key, {}), Mapping):
            raise InputError(f"{where}: {key}: expected keys and values")
    known = assumptions(content.get("assumptions"))
    given = budget(content["technology"], known)
    return machine(given, known, str(content.get("name", ""))).cluster


def relative(design: Processor) -> Accelerator:
    """The accelerator that stands behind a processor design, registers and shared memory known."""
    found = entries.accelerator(design.relative)
    cycles = found.sms * np.asarray(found.clock)
    return replace(
        found,
        registers=design.registers,
        shared=design.shared,
        register_bandwidth=design.register_rate * cycles,
        shared_bandwidth=design.shared_rate * cycles,
        instruction=design.instruction,
        cluster=design.cluster,
    )

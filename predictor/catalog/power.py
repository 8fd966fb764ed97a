"""Constants of power: of an accelerator, its node and how it is cooled, from `data/power`.

`laws.yaml` states laws by which any accelerator has constants, `fitted.json` what was fitted: the
laws' own values, and those of accelerators that were measured. What a machine's budget says of its
arithmetic (`Accelerator.energy`) stands in place of the law.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from predictor.arrays import Numeric
from predictor.catalog import tables
from predictor.catalog.clusters import scale_up
from predictor.errors import InputError, unknown
from predictor.hardware import Accelerator, Cluster, matrix_energy
from predictor.power import (
    COOLINGS,
    LOWEST,
    STREAMING,
    Chassis,
    Conditions,
    NodeConstants,
    PowerConstants,
    Tariff,
    VoltageCurve,
)

PJ = 1e-12

STACKED = 1.2e12
"""Bandwidth from which memory that no table names is stacked (HBM), below which it is GDDR
[bytes/s]."""

SET = 1.25
"""Clock up to which boards may be set, over that of a datasheet's rates, at which work was timed;
beyond that one it binds nothing: an H100 to 1,980 of 1,830 MHz (stas00/ml-engineering@744d01e18b),
GeForce boards further (RTX 4090 to 3,105 of 2,520 MHz, from memory)."""

HOT, COOL = 700.0, 10.0
"""Limit for which the heat sink and the air of `laws.yaml` hold [W]; limits below that over this
have the heat sink of that."""


@lru_cache(maxsize=4)
def _tables(folder: Path) -> tuple[dict[str, float], dict[str, dict[str, float]], dict[str, Any]]:
    table = tables.read_mapping(folder / "power" / "laws.yaml")
    laws = {name: float(entry["value"]) for name, entry in table.items()}
    path = folder / "power" / "fitted.json"
    if not path.is_file():
        return laws, {}, {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{path} is no JSON: {error}") from None
    return {**laws, **content["laws"]}, content["accelerators"], content


def power_laws() -> dict[str, float]:
    """Values of the laws, the fitted ones in place of the assumed."""
    return dict(_tables(tables.data_dir())[0])


def power_fit() -> Mapping[str, Any]:
    """The content of `fitted.json`: provenance and errors of what was left out."""
    return _tables(tables.data_dir())[2]


@lru_cache(maxsize=4)
def _memories(folder: Path) -> tuple[dict[str, str], dict[str, str], dict[str, int]]:
    table = tables.read_mapping(folder / "power" / "memories.yaml")
    return table["architectures"], table["accelerators"], table["dies"]


@lru_cache(maxsize=4)
def _machines(folder: Path) -> tuple[dict[str, dict[str, Any]], frozenset[str]]:
    """What is known of systems' nodes by name, and accelerators that share their limit with the
    processors beside them."""
    table = tables.read_mapping(folder / "power" / "machines.yaml")
    return table["systems"], frozenset(table["with_processors"])


def memory_kind(accelerator: Accelerator) -> str:
    """'hbm', 'gddr' or 'lpddr': as `memories.yaml` names it, else by its bandwidth."""
    families, names, _ = _memories(tables.data_dir())
    kind = names.get(accelerator.name) or families.get(accelerator.architecture)
    if kind is not None and not np.any(np.isfinite(accelerator.memory_energy)):
        return kind
    return "hbm" if np.all(np.asarray(accelerator.bandwidth) >= STACKED) else "gddr"


def byte_law(accelerator: Accelerator) -> str:
    """Name of the law of a byte's energy."""
    kind = memory_kind(accelerator)
    return "byte_pj" if kind == "hbm" else f"{kind}_byte_pj"


def power_constants(
    accelerator: Accelerator,
    laws: Mapping[str, float] | None = None,
    own: Mapping[str, float] | None = None,
) -> PowerConstants:
    """Constants of an accelerator: its own where it was measured, else by law.

    laws, own   instead of the tables' (fits use them)

    Raises InputError for a host, and where the catalog knows no power limit.
    """
    known, measured, _ = _tables(tables.data_dir())
    limit = accelerator.power
    if accelerator.is_host or not np.all(np.isfinite(limit)):
        raise InputError(
            f"power of {accelerator.name} is not known; state tdp_w of the accelerator"
        )
    fitted = measured.get(accelerator.name, {}) if own is None else own
    near = {} if fitted or own is not None else _relative(accelerator, measured)
    law = {**(known if laws is None else laws), **near, **fitted}
    kind = memory_kind(accelerator)
    standing = law[f"{kind}_w_per_gb"] * np.asarray(accelerator.memory) / 1e9
    still = kind != "hbm" and "awake_share" not in {**near, **fitted}
    awake = law["still" if still else "awake_share"] * np.asarray(limit) + standing
    busy = law["busy_share"] * np.asarray(limit)
    return PowerConstants(
        limit=limit,
        off=law["off_share"] * np.asarray(limit),
        awake=np.asarray(awake),
        busy=busy,
        waiting=law["waiting_share"] * np.asarray(limit),
        padding=law["padding_share"] * np.asarray(limit),
        rows=law["rows"],
        flop=law["flop_scale"] * _product_energy(accelerator),
        thin=law["thin"],
        byte=_byte_energy(accelerator, law, fitted, near, awake + busy),
        link=PJ * law["link_pj"],
        widen=PJ * law["widen_pj"],
        leaking=law["leaking"],
        leakage=law["leakage"],
        reference=law["reference_c"],
        tracking=law["tracking"],
        slowdown=law["slowdown_c"],
        beside=law["beside"],
        clock=accelerator.clock,
        sigma=law.get("sigma", law["sigma_relatives"]),
        curve=_curve(accelerator, law, {**near, **fitted}),
        resistance=_resistances(law, limit),
        status="fitted" if fitted else "relatives",
    )


def _relative(
    accelerator: Accelerator, measured: Mapping[str, Mapping[str, float]]
) -> Mapping[str, float]:
    """Constants of a measured accelerator of the same architecture, the one of the limit nearest to
    its own: shares and energies are of the chip. How sure they are stays that of relatives."""
    rows = tables.rows("accelerators")
    same = [
        (abs(float(rows[name]["tdp_w"]) - float(np.mean(np.asarray(accelerator.power)))), name)
        for name in measured
        if name in rows and rows[name]["architecture"] == accelerator.architecture
    ]
    if not same:
        return {}
    return {k: v for k, v in measured[min(same)[1]].items() if k != "sigma"}


def _curve(
    accelerator: Accelerator, law: Mapping[str, float], own: Mapping[str, float]
) -> VoltageCurve:
    """Voltage over clock: the accelerator's own, its family's (`slope_blackwell`), or the law's."""
    family = accelerator.architecture.partition("-")[0]
    values = (own.get(n, law.get(f"{n}_{family}", law[n])) for n in ("slope", "floor"))
    return VoltageCurve(*values)


def is_older(accelerator: Accelerator) -> bool:
    """Whether its memory is stacked beside a chip of before 2022, of 7 nm or more."""
    return memory_kind(accelerator) == "hbm" and bool(np.all(np.asarray(accelerator.year) < 2022))


def _byte_energy(
    accelerator: Accelerator,
    law: Mapping[str, float],
    own: Mapping[str, float],
    near: Mapping[str, float],
    standing: Numeric,
) -> Numeric:
    """Of a byte of memory traffic [J]: its own, its budget's with the way to the processors, or by
    law; but no more than lets the board stream its memory within `stream_most` of its limit.

    standing   what full processors draw beside it [W]
    """
    name = byte_law(accelerator)
    if name in own:
        return PJ * law[name]
    stated = np.asarray(accelerator.memory_energy, float)
    older = law["byte_older"] if is_older(accelerator) and "thin" not in near else 1.0
    usual = np.where(np.isfinite(stated), stated + PJ * law["path_pj"], PJ * older * law[name])
    room = law["stream_most"] * np.asarray(accelerator.power) - standing
    rate = STREAMING * np.asarray(accelerator.bandwidth)
    return np.asarray(np.minimum(usual, np.maximum(room, 0.0) / rate))


def _product_energy(accelerator: Accelerator) -> Numeric:
    """Per 16-bit FLOP of products [J]: the budget's, else by the width of the matrix units."""
    stated = np.asarray(accelerator.energy, float)
    peak = accelerator.peak.get("bf16", accelerator.peak.get("fp16", np.nan))
    width = np.asarray(peak) / (np.asarray(accelerator.sms) * accelerator.clock)
    usual = np.asarray(matrix_energy(np.where(np.isfinite(width), width, 1024.0)))
    return np.asarray(np.where(np.isfinite(stated), stated, usual))


def _resistances(law: Mapping[str, float], limit: Numeric) -> dict[str, float]:
    """By cooling [K/W]: heat sinks are made for the limit of the board."""
    scale = float(np.clip(HOT / np.mean(np.asarray(limit)), 1.0 / COOL, COOL))
    return {name: law[f"resistance_{name}"] * scale for name in COOLINGS}


def chassis(cluster: Cluster, cooling: str | None = None, inlet: float | None = None) -> Chassis:
    """How the nodes of a cluster are cooled: as stated, as its system is known to be
    (`machines.yaml`), else air unless their scale-up domain leaves the node (racks of NVL72).

    cooling   of `COOLINGS`
    inlet     of the air or the coolant [°C]

    Raises InputError for a cooling that does not exist.
    """
    law = power_laws()
    if cooling is not None and cooling not in COOLINGS:
        raise unknown("cooling", cooling, COOLINGS)
    wide = len(cluster.tiers) > 1 and scale_up(cluster) > 2 * cluster.accelerators_per_node
    known = _machines(tables.data_dir())[0].get(cluster.name, {})
    name = cooling or known.get("cooling") or ("liquid" if wide else "air")
    rows = int(law["air_rows"]) if cluster.accelerators_per_node >= 4 else 1
    limit = float(np.mean(np.asarray(cluster.accelerator.power)))
    return Chassis(
        cooling=name,
        inlet=law[f"inlet_{name}_c"] if inlet is None else inlet,
        rows=rows if name == "air" else 1,
        flow=law["air_flow"] * limit / HOT,
        coupling=law["die_coupling"],
        dies=_memories(tables.data_dir())[2].get(cluster.accelerator.name, 0),
    )


SWITCHED = ("nvlink", "ualink", "unifiedbus")
"""Links that go through switches where more than `MESHED` accelerators are joined."""

MESHED = {"nvlink2": 8}
"""Accelerators that a link joins without a switch at most: eight V100 in a cube; else four."""


def _is_switched(cluster: Cluster) -> bool:
    """Whether switches join the accelerators of a node."""
    tier = cluster.tiers[0]
    most = MESHED.get(tier.link, 4)
    return tier.link.startswith(SWITCHED) and not tier.direct and scale_up(cluster) > most


def node_constants(cluster: Cluster) -> NodeConstants:
    """What of a node of a cluster is no accelerator. The laws are of nodes of eight with two
    processors; of other nodes these are known (`machines.yaml`), or grow with the root of their
    accelerators."""
    law, count = power_laws(), float(cluster.accelerators_per_node)
    share = count / 8.0
    scale = float(np.mean(np.asarray(cluster.accelerator.power))) / HOT
    systems, superchips = _machines(tables.data_dir())
    known = systems.get(cluster.name, {})
    # Of systems on a chip, which share their memory with their processors, nothing is beside.
    alone = memory_kind(cluster.accelerator) == "lpddr"
    inside = alone or cluster.accelerator.name in superchips
    hosts = 0.0 if inside else known.get("processors", 2.0 * share**0.5) / 2.0
    adapters = 0.0 if alone else known.get("adapters", law["adapters_per_accelerator"] * count)
    return NodeConstants(
        idle=law["node_idle"] * hosts,
        span=law["node_span"] * hosts,
        load=law["node_load"],
        adapter=law["adapter"],
        adapters=adapters,
        switch=law["switch"] if _is_switched(cluster) else 0.0,
        fans=law["fans"] * share * scale,
        spread=law["fan_least"],
        efficiency=law["supply_efficiency"],
        fabric=law["fabric"],
    )


def power_setting(
    cluster: Cluster,
    conditions: Conditions,
    own: Mapping[str, Mapping[str, float]] | None = None,
) -> tuple[PowerConstants, Chassis]:
    """Constants of a cluster's accelerators and how they are cooled, under conditions.

    own   constants by accelerator that a calibration adds to those that ship

    Raises InputError where the power of the accelerator is not known, and for a limit below what it
    draws without work or above its own, a clock far above its own, an inlet above its slowdown.
    """
    device = cluster.accelerator
    added = (own or {}).get(device.name)
    shipped = _tables(tables.data_dir())[1].get(device.name, {})
    constants = power_constants(device, own=None if added is None else {**shipped, **added})
    cooled = chassis(cluster, conditions.cooling, conditions.inlet)
    least = float(np.max(np.asarray(constants.awake)))
    most = float(np.max(np.asarray(constants.limit)))
    limit, clock, inlet = conditions.limit, conditions.clock, cooled.inlet
    for one in () if limit is None else np.ravel(limit).tolist():
        if not least < one <= most:
            named = "prefill_power_limit" if limit is conditions.reading else "--power-limit"
            raise InputError(
                f"{named} {one:g} W: {device.name} draws {least:.0f} W awake and takes "
                f"limits up to {most:g} W"
            )
    top = float(np.max(np.asarray(constants.clock)))
    if clock is not None and not LOWEST * top <= clock <= SET * top:
        raise InputError(
            f"--clock {clock / 1e6:g} MHz: {device.name} runs from {LOWEST * top / 1e6:.0f} to "
            f"{top / 1e6:.0f} MHz at work"
        )
    hottest = float(np.min(np.asarray(constants.slowdown)))
    if float(np.max(np.asarray(inlet))) >= hottest:
        raise InputError(
            f"--inlet {inlet:g} C is not below {hottest:g} C, at which {device.name} steps its "
            "clock down"
        )
    return constants, cooled


def conditions_of(values: Mapping[str, Any]) -> Conditions:
    """What a request states of power (`plans.POWER_FIELDS`, clocks of stages, and limits of what
    reads prompts apart, where anything does).

    Raises InputError for a slack that nothing uses.
    """
    if values.get("stage_slack") is not None and values.get("stage_clocks") is None:
        raise InputError("--stage-slack is of --stage-clocks; give that, too")
    clock, law = values.get("clock"), power_laws()
    return Conditions(
        limit=values.get("power_limit"),
        reading=values.get("prefill_power_limit") if values.get("prefill_workers") else None,
        clock=None if clock is None else clock * 1e6,
        inlet=values.get("inlet"),
        cooling=values.get("cooling"),
        paced=values.get("stage_clocks"),
        slack=values.get("stage_slack") or 0.0,
        tariff=Tariff(
            price=values.get("price_per_kwh"),
            carbon=values.get("carbon_intensity"),
            pue=values.get("pue", law["pue"]),
        ),
    )

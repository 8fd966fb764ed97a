"""Accelerators and systems that do not exist yet: from a logic node, budgets of area, power and
edge, a memory technology and two link technologies to a `Cluster` as any other.

Floorplan: what interfaces, cache and the rest leave of the dies is filled with processors, whose
own area shrinks with the density of logic. Power: arithmetic at the design clock (voltage and
frequency fall together where the budget does not suffice), memory and links at full rate. The
approach is that of DeepFlow (Ardalani et al. 2022, arXiv 2211.03309) and of arXiv 2407.14645.

Numeric fields are floats or arrays of one broadcast shape, in SI; files carry units in their keys.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from predictor.arrays import Array, Numeric
from predictor.catalog import entries
from predictor.errors import InputError, unknown
from predictor.hardware import L2_BYTES_PER_CLOCK_PER_SM, Accelerator, Cluster, Tier
from predictor.timing import ENERGY, NARROWING

MM2, MM, PJ_PER_BIT, CM2 = 1e-6, 1e-3, 8e-12, 1e-4
"""Square and plain millimetres in metres; pJ per bit in J per byte; square centimetres."""


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """A logic node; density, power (at equal speed) and speed (at equal power) are over N7's.

    sram     bits of cache cells, in bytes per area [bytes/m²]
    wafer    price of a 300 mm wafer [USD]
    defects  per area [1/m²]
    """

    name: str
    density: Numeric
    power: Numeric
    speed: Numeric
    sram: Numeric
    wafer: Numeric
    defects: Numeric
    processor: str


@dataclass(frozen=True, slots=True, eq=False)
class MemoryTechnology:
    """A device of memory (stack or chip): bandwidth [bytes/s], capacity [bytes], energy [J/byte],
    the edge [m] and area [m²] of its interface on the die, price [USD/byte]."""

    name: str
    bandwidth: Numeric
    capacity: Numeric
    energy: Numeric
    edge: Numeric
    area: Numeric
    price: Numeric


@dataclass(frozen=True, slots=True, eq=False)
class LinkTechnology:
    """A link: the name that calibrations know it by, rate per accelerator and direction [bytes/s],
    energy [J/byte], serial lanes on the die, price per accelerator [USD]."""

    name: str
    link: str
    scope: str
    bandwidth: Numeric
    energy: Numeric
    lanes: Numeric
    in_switch: bool
    price: Numeric


@dataclass(frozen=True, slots=True, eq=False)
class Processor:
    """A processor design: FLOP per clock of its matrix unit and vector unit, rates of data types
    over the 16-bit one, registers and shared memory [bytes] and their bytes per clock, the output
    tile of a matrix instruction, and blocks that load an operand from the cache once for all. Its
    name is the architecture that calibrations know it by; relative is the accelerator that its
    efficiencies are taken from."""

    name: str
    relative: str
    year: float
    node: str
    width: Numeric
    vector: Numeric
    rates: Mapping[str, float]
    registers: Numeric
    shared: Numeric
    shared_rate: Numeric
    register_rate: Numeric
    instruction: tuple[float, float]
    cluster: float


@dataclass(frozen=True, slots=True, eq=False)
class Budget:
    """What a machine may use.

    area        of all dies together [m²]
    dies        of equal size
    power       of the package [W]; inf: as much as the design clock takes
    devices     of memory (stacks or chips); NaN: as many as the edge has room for
    l2_share    of the area
    domain      accelerators that the scale-up network joins
    in_node     of them, in one node
    oversubscription   of the scale-out network
    device_memory   capacity of a device [bytes]; NaN: the technology's
    edge        outer perimeter of the dies [m]; NaN: of square dies side by side
    """

    node: Node
    memory: MemoryTechnology
    scale_up: LinkTechnology
    scale_out: LinkTechnology
    processor: Processor
    area: Numeric
    dies: Numeric = 1.0
    power: Numeric = np.inf
    devices: Numeric = np.nan
    l2_share: Numeric = 0.033
    domain: Numeric = 8.0
    in_node: Numeric = 8.0
    oversubscription: Numeric = 1.0
    device_memory: Numeric = np.nan
    edge: Numeric = np.nan


@dataclass(frozen=True, slots=True, eq=False)
class Derived:
    """A machine made of a budget.

    areas   of the dies by what is on them [m²]
    watts   of the package at full rate, by what draws them [W]
    clock   [Hz], and the one that it would run at with unlimited power
    binds   'area' where more power would not help, else 'power'
    possible   whether edge, area and power suffice
    """

    budget: Budget
    cluster: Cluster
    areas: dict[str, Array]
    watts: dict[str, Array]
    clock: Array
    design_clock: Array
    binds: Array
    possible: npt.NDArray[np.bool_]

    @property
    def accelerator(self) -> Accelerator:
        """The accelerator itself."""
        return self.cluster.accelerator

    @property
    def power(self) -> Array:
        """Of the package at full rate [W]."""
        return np.asarray(sum(self.watts.values()))


def read_table(name: str) -> dict[str, dict[str, str]]:
    """Rows of a table of `data/technology` by name."""
    return _read_table(entries.data_dir() / "technology" / f"{name}.csv")


@lru_cache(maxsize=16)
def _read_table(path: Path) -> dict[str, dict[str, str]]:
    try:
        with path.open(newline="", encoding="utf-8") as stream:
            return {row["name"]: row for row in csv.DictReader(stream)}
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None


@lru_cache(maxsize=8)
def _read_yaml(path: Path) -> dict[str, Any]:
    return entries.read_mapping(path)


def _find(kind: str, name: object, table: Mapping[str, Any]) -> Any:
    for known, row in table.items():
        if known.lower() == str(name).lower():
            return row
    raise unknown(kind, name, table)


def node(name: str) -> Node:
    """A logic node by name: N12, N10, N7, N5, N4, N3, N2, N1.6, N1.4, N1."""
    return _node(name, entries.data_dir())


@lru_cache(maxsize=64)
def _node(name: str, _: Path) -> Node:
    row = _find("logic node", name, read_table("nodes"))
    return Node(
        row["name"],
        float(row["density"]),
        float(row["power"]),
        float(row["speed"]),
        float(row["sram_mib_mm2"]) * 2**20 / 8 / MM2,
        float(row["wafer_usd"]),
        float(row["defects_per_cm2"]) / CM2,
        row["processor"],
    )


def memory_technology(name: str) -> MemoryTechnology:
    """A memory technology by name: GDDR6 ... HBM2E, HBM3, HBM4, HBM5."""
    return _memory_technology(name, entries.data_dir())


@lru_cache(maxsize=64)
def _memory_technology(name: str, _: Path) -> MemoryTechnology:
    row = _find("memory technology", name, read_table("memories"))
    return MemoryTechnology(
        row["name"],
        float(row["bandwidth_gbs"]) * 1e9,
        float(row["capacity_gb"]) * 2**30,  # stacks are built in binary gigabytes
        float(row["pj_per_bit"]) * PJ_PER_BIT,
        float(row["edge_mm"]) * MM,
        float(row["area_mm2"]) * MM2,
        float(row["usd_per_gb"]) / 2**30,
    )


def link_technology(name: str, scope: str) -> LinkTechnology:
    """A link technology by name; scope 'scale-up' (NVLink2 ...) or 'scale-out' (HDR ... GDR)."""
    return _link_technology(name, scope, entries.data_dir())


@lru_cache(maxsize=64)
def _link_technology(name: str, scope: str, _: Path) -> LinkTechnology:
    table = {k: row for k, row in read_table("networks").items() if row["class"] == scope}
    row = _find(f"{scope} network", name, table)
    return LinkTechnology(
        row["name"],
        row["link"],
        scope,
        float(row["bandwidth_gbs"]) * 1e9,
        float(row["pj_per_bit"]) * PJ_PER_BIT,
        float(row["lanes"]),
        row["in_switch"] == "1",
        float(row["usd_per_accelerator"]),
    )


def processor(name: str) -> Processor:
    """A processor design by name: volta, ampere, hopper, blackwell."""
    return _processor(name, entries.data_dir())


@lru_cache(maxsize=64)
def _processor(name: str, _: Path) -> Processor:
    table = _read_yaml(entries.data_dir() / "technology" / "processors.yaml")
    row = _find("processor", name, table)
    rows, columns = row["instruction"]
    return Processor(
        str(name).lower(),
        row["relative"],
        float(row["year"]),
        row["node"],
        float(row["width"]),
        float(row["vector_flop"]),
        {dtype: float(rate) for dtype, rate in row["rates"].items()},
        float(row["registers_kib"]) * 1024,
        float(row["shared_kib"]) * 1024,
        float(row["shared_bytes_per_clock"]),
        float(row["register_bytes_per_clock"]),
        (float(rows), float(columns)),
        float(row.get("cluster", 1)),
    )


def assumptions(overrides: Mapping[str, Any] | None = None) -> dict[str, float]:
    """The constants that all machines share (`data/technology/assumptions.yaml`), some of them
    replaced.

    Raises InputError for one that does not exist or is no positive number.
    """
    table = _read_yaml(entries.data_dir() / "technology" / "assumptions.yaml")
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

_WORDS = ("node", "processor", "memory", "scale_up", "scale_out")


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
            raise InputError(f"technology: key {key!r} is missing")
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
        of,
        memory,
        up,
        out,
        processor(str(content.get("processor", of.processor))),
        area,
        dies,
        _positive(content, "power_w", np.inf),
        _positive(content, "stacks", np.nan),
        _positive(content, "l2_share", known["l2_share"]),
        _positive(content, "domain", 8.0),
        _positive(content, "per_node", min(8.0, _positive(content, "domain", 8.0))),
        _positive(content, "oversubscription", 1.0),
        _positive(content, "stack_gb", np.nan) * 2**30,
        _positive(content, "perimeter_mm", np.nan) * MM,
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


def perimeter(area: Numeric, dies: Numeric) -> Array:
    """Outer edge of square dies side by side [m]: of the free edges, those that touch no other."""
    side = np.sqrt(np.asarray(area) / dies)
    return np.asarray((2.0 * dies + 2.0) * side)


def memory_edge(given: Budget, known: Mapping[str, float]) -> Array:
    """Edge of the dies that memory interfaces may take [m]."""
    edge = np.where(np.isnan(given.edge), perimeter(given.area, given.dies), given.edge)
    return np.asarray(known["memory_edge_share"] * edge)


def devices(given: Budget, known: Mapping[str, float]) -> Array:
    """Devices of memory: as stated, else as many as the edge has room for."""
    whole = np.floor(memory_edge(given, known) / given.memory.edge)
    return np.asarray(np.where(np.isnan(given.devices), whole, given.devices))


def derive(
    given: Budget,
    known: Mapping[str, float] | None = None,
    name: str = "",
    strict: bool = True,
) -> Derived:
    """The machine that a budget pays for.

    given   floats or arrays; one processor design and pair of links
    known   `assumptions`
    strict  else impossible machines of a batch are only marked (`Derived.possible`)

    Raises InputError where memory interfaces do not find room on the edge, nothing is left for
    processors, or memory and links alone draw more than the power.
    """
    known = assumptions() if known is None else known
    of, design, memory = given.node, given.processor, given.memory
    stacks = devices(given, known)
    room = memory_edge(given, known)
    laws = Laws(strict)
    laws.refuse(
        stacks * memory.edge > room * 1.01,
        lambda at: (
            f"technology: {at(stacks):g} devices of {memory.name} need "
            f"{at(stacks * memory.edge) / MM:.0f} mm of the edge, the dies have "
            f"{at(room) / MM:.0f} mm for them; larger dies, or fewer stacks"
        ),
    )
    lanes = given.scale_up.lanes + given.scale_out.lanes
    joints = np.asarray(given.dies) - 1.0
    areas = {
        "memory interfaces": stacks * memory.area,
        "links": lanes * known["lane_mm2"] * MM2 + joints * known["joint_mm2"] * MM2,
        "cache": np.asarray(given.l2_share) * given.area,
        "other": np.asarray(known["other_share"] * given.area),
    }
    left = given.area - sum(areas.values())
    unit = known["unit_mm2_per_kflop"] * 1e-3 * design.width
    each = (known["processor_mm2"] + unit) * MM2 / of.density
    count = np.floor(known["enabled_share"] * left / each)
    laws.refuse(
        count < 1,
        lambda at: (
            f"technology: interfaces and cache leave {at(left) / MM2:.0f} mm2 of "
            f"{at(given.area) / MM2:.0f}, too little for a processor"
        ),
    )
    count = np.maximum(count, 1.0)
    areas["processors"] = np.asarray(left)
    capacity = np.where(np.isnan(given.device_memory), memory.capacity, given.device_memory)
    bandwidth = stacks * memory.bandwidth
    design_clock = known["clock_ghz"] * 1e9 * np.asarray(of.speed)
    energy = known["pj_per_flop"] * 1e-12 * np.asarray(of.power)
    energy = energy * (design.width / 2048.0) ** -known["width_exponent"]
    full = energy * count * design.width * design_clock
    watts = {
        "memory": bandwidth * memory.energy,
        "links": 2.0 * given.scale_up.bandwidth * given.scale_up.energy
        + 2.0 * np.asarray(given.scale_out.bandwidth) * given.scale_out.energy,
    }
    rest = given.power - sum(watts.values())
    laws.refuse(
        rest <= 0,
        lambda at: (
            f"technology: memory and links alone draw {at(sum(watts.values())):.0f} W of "
            f"the {at(given.power):.0f} W"
        ),
    )
    slow = np.minimum(np.maximum(rest / full, 1e-6), 1.0) ** (1.0 / known["clock_exponent"])
    clock = design_clock * slow
    watts["processors"] = full * slow ** known["clock_exponent"]
    half = count * design.width * clock
    peak: dict[str, Numeric] = {dtype: half * rate for dtype, rate in design.rates.items()}
    peak["fp32"] = count * design.vector * clock
    # Energy in sustained products as the predictor has it for this width, carried from the node
    # where the design first appeared to this one.
    sustained = ENERGY * (np.asarray(design.width) / 1024.0) ** -NARROWING
    sustained = sustained * of.power / node(design.node).power
    rate = L2_BYTES_PER_CLOCK_PER_SM * count * clock
    accelerator = Accelerator(
        name=name or f"{of.name}-{memory.name}-{design.name}",
        architecture=design.name,
        peak=peak,
        memory=stacks * capacity,
        bandwidth=bandwidth,
        l2=areas["cache"] * of.sram * known["sram_array_efficiency"],
        l2_bandwidth=rate,
        sms=count,
        power=sum(watts.values()),
        clock=clock,
        year=design.year,
        vendor="NVIDIA",
        registers=design.registers,
        shared=design.shared,
        register_bandwidth=design.register_rate * count * clock,
        shared_bandwidth=design.shared_rate * count * clock,
        instruction=design.instruction,
        cluster=design.cluster,
        energy=sustained,
        relative=relative(processor(design.name)),
        doubt=known["doubt"],
    )
    return Derived(
        given,
        Cluster(accelerator.name, accelerator, int(np.max(given.in_node)), tiers(given)),
        areas,
        {key: np.asarray(value) for key, value in watts.items()},
        np.asarray(clock),
        np.asarray(design_clock),
        np.where(np.asarray(slow) < 1.0, "power", "area"),
        ~np.broadcast_to(laws.broken, np.shape(clock)),
    )


def system_of(content: Mapping[str, Any], where: str) -> Cluster:
    """The system of a file with the keys `technology` (a budget), and, if wanted, `name` and
    `assumptions`.

    Raises InputError as `budget` and `derive` do.
    """
    for key in content:
        if key not in ("name", "technology", "assumptions"):
            raise unknown(f"{where}: key", key, ("name", "technology", "assumptions"))
    for key in ("technology", "assumptions"):
        if not isinstance(content.get(key, {}), Mapping):
            raise InputError(f"{where}: {key}: expected keys and values")
    known = assumptions(content.get("assumptions"))
    given = budget(content["technology"], known)
    return derive(given, known, str(content.get("name", ""))).cluster


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


class Laws:
    """What a machine must obey: the first that is broken raises InputError, or is marked."""

    def __init__(self, strict: bool) -> None:
        self.strict = strict
        self.broken = np.asarray(False)

    def refuse(self, broken: Any, message: Callable[[Callable[[Any], float]], str]) -> None:
        """Refuse machines for which `broken` holds.

        message   makes the line from a function that yields a quantity of the first of them
        """
        mask = np.asarray(broken)
        if self.strict and mask.any():
            at = np.unravel_index(int(np.argmax(mask)), mask.shape)
            raise InputError(message(lambda value: float(np.broadcast_to(value, mask.shape)[at])))
        self.broken = self.broken | mask


def tiers(given: Budget) -> tuple[Tier, ...]:
    """The two networks; a scale-up domain beyond a node is a tier of its own.

    Sizes are one number per batch.
    """
    up, out = given.scale_up, given.scale_out
    sizes = sorted({float(np.max(given.in_node)), float(np.max(given.domain))})
    inner = tuple(
        Tier(up.link, size, up.bandwidth, in_switch=up.in_switch) for size in sizes if size > 1
    )
    outer = Tier(out.link, np.inf, out.bandwidth, oversubscription=given.oversubscription)
    return (*inner, outer)

"""Accelerators and systems that do not exist yet: from a logic node, budgets of area, power and
edge, a memory technology and two link technologies to a `Cluster` as any other.

Floorplan: what interfaces, cache and the rest leave of the dies is filled with processors, whose
own area shrinks with the density of logic. Power: arithmetic at the design clock (voltage and
frequency fall together where the budget does not suffice), memory and links at full rate. The
approach is that of DeepFlow (Ardalani et al. 2022, arXiv 2211.03309) and of arXiv 2407.14645.

Numeric fields are floats or arrays of one broadcast shape, in SI. `known` are the constants that
all machines share, by their keys in `data/technology/assumptions.yaml`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from predictor.arrays import Array, Numeric
from predictor.errors import InputError
from predictor.hardware.accelerators import (
    L2_BYTES_PER_CLOCK_PER_SM,
    OLDER,
    Accelerator,
    matrix_energy,
)
from predictor.hardware.systems import Cluster, Tier
from predictor.hardware.technologies import LinkTechnology, MemoryTechnology, Node, Processor
from predictor.records import dataclass
from predictor.units import MM, MM2


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
class DerivedMachine:
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
    relative: Accelerator,
    known: Mapping[str, float],
    name: str = "",
    strict: bool = True,
) -> DerivedMachine:
    """The machine that a budget pays for.

    given     floats or arrays; one processor design and pair of links
    relative  the accelerator that its efficiencies are taken from
    known     constants that all machines share
    strict    else impossible machines of a batch are only marked (`DerivedMachine.possible`)

    Raises InputError where memory interfaces do not find room on the edge, nothing is left for
    processors, or memory and links alone draw more than the power.
    """
    laws = Laws(strict)
    stacks = devices(given, known)
    _edge(given, stacks, known, laws)
    areas, count = _floorplan(given, stacks, known, laws)
    watts, clock, design_clock = _power(given, stacks, count, known, laws)
    cache = areas["cache"] * given.node.sram * known["sram_array_efficiency"]
    accelerator = replace(
        _processors(given, count, clock),
        name=name or f"{given.node.name}-{given.memory.name}-{given.processor.name}",
        memory=stacks * _capacity(given),
        bandwidth=stacks * given.memory.bandwidth,
        memory_energy=given.memory.energy,
        l2=cache,
        power=sum(watts.values()),
        relative=relative,
        doubt=known["doubt"],
    )
    return DerivedMachine(
        budget=given,
        cluster=Cluster(accelerator.name, accelerator, int(np.max(given.in_node)), tiers(given)),
        areas=areas,
        watts={key: np.asarray(value) for key, value in watts.items()},
        clock=np.asarray(clock),
        design_clock=np.asarray(design_clock),
        binds=np.where(np.asarray(clock < design_clock), "power", "area"),
        possible=~np.broadcast_to(laws.broken, np.shape(clock)),
    )


def _edge(given: Budget, stacks: Array, known: Mapping[str, float], laws: Laws) -> None:
    """Memory interfaces find room on the edge of the dies."""
    taken, room = stacks * given.memory.edge, memory_edge(given, known)
    laws.refuse(
        taken > room * 1.01,
        lambda at: (
            f"technology: {at(stacks):g} devices of {given.memory.name} need "
            f"{at(taken) / MM:.0f} mm of the edge, the dies have "
            f"{at(room) / MM:.0f} mm for them; larger dies, or fewer stacks"
        ),
    )


def _floorplan(
    given: Budget, stacks: Array, known: Mapping[str, float], laws: Laws
) -> tuple[dict[str, Array], Array]:
    """What is on the dies [m²], and the processors that find room on what is left."""
    lanes = given.scale_up.lanes + given.scale_out.lanes
    joints = np.asarray(given.dies) - 1.0
    areas = {
        "memory interfaces": stacks * given.memory.area,
        "links": lanes * known["lane_mm2"] * MM2 + joints * known["joint_mm2"] * MM2,
        "cache": np.asarray(given.l2_share) * given.area,
        "other": np.asarray(known["other_share"] * given.area),
    }
    left = given.area - sum(areas.values())
    unit = known["unit_mm2_per_kflop"] * 1e-3 * given.processor.width
    each = (known["processor_mm2"] + unit) * MM2 / given.node.density
    count = np.floor(known["enabled_share"] * left / each)
    laws.refuse(
        count < 1,
        lambda at: (
            f"technology: interfaces and cache leave {at(left) / MM2:.0f} mm2 of "
            f"{at(given.area) / MM2:.0f}, too little for a processor"
        ),
    )
    areas["processors"] = np.asarray(left)
    return areas, np.maximum(count, 1.0)


def _capacity(given: Budget) -> Array:
    """Of a device of memory [bytes]: as stated, else the technology's."""
    stated = np.isnan(given.device_memory)
    return np.where(stated, given.memory.capacity, given.device_memory)


def _power(
    given: Budget, stacks: Array, count: Array, known: Mapping[str, float], laws: Laws
) -> tuple[dict[str, Any], Array, Array]:
    """What draws power [W], the clock that is left for arithmetic, and the design clock [Hz]."""
    of, width = given.node, given.processor.width
    design_clock = known["clock_ghz"] * 1e9 * np.asarray(of.speed)
    energy = known["pj_per_flop"] * 1e-12 * np.asarray(of.power)
    energy = energy * (width / 2048.0) ** -known["width_exponent"]
    full = energy * count * width * design_clock
    watts = {
        "memory": stacks * given.memory.bandwidth * given.memory.energy,
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
    watts["processors"] = full * slow ** known["clock_exponent"]
    return watts, design_clock * slow, design_clock


def _processors(given: Budget, count: Array, clock: Array) -> Accelerator:
    """The accelerator of so many processors at a clock; its memory is not yet known."""
    of, design = given.node, given.processor
    half = count * design.width * clock
    peak: dict[str, Numeric] = {dtype: half * rate for dtype, rate in design.rates.items()}
    peak["fp32"] = count * design.vector * clock
    # Carried from the node where the design first appeared to this one.
    sustained = matrix_energy(np.asarray(design.width)) * OLDER.get(design.name, 1.0)
    sustained = sustained * of.power / design.node.power
    return Accelerator(
        name=design.name,
        architecture=design.name,
        peak=peak,
        memory=np.nan,
        bandwidth=np.nan,
        l2=np.nan,
        l2_bandwidth=L2_BYTES_PER_CLOCK_PER_SM * count * clock,
        sms=count,
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

"""What machines that do not exist yet are made of: logic nodes, memories, links, processor designs.

Numeric fields are floats or arrays of one broadcast shape, in SI.
"""

from __future__ import annotations

from collections.abc import Mapping

from predictor.arrays import Numeric
from predictor.records import dataclass


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
    name is the architecture that calibrations know it by; relative names the accelerator that its
    efficiencies are taken from, node is where it first appeared."""

    name: str
    relative: str
    year: float
    node: Node
    width: Numeric
    vector: Numeric
    rates: Mapping[str, float]
    registers: Numeric
    shared: Numeric
    shared_rate: Numeric
    register_rate: Numeric
    instruction: tuple[float, float]
    cluster: float

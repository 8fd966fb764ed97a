"""What an accelerator and its share of a system cost, to build, to buy and to run.

Every constant is an assumption in `data/technology/cost.yaml` and can be replaced. Yield: negative
binomial (Stapper 1983); dies per wafer: de Vries 2005, eq. 2. Floats or arrays, as the budgets.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from predictor.arrays import Array, Numeric
from predictor.catalog import tables
from predictor.catalog.technology import overridden, read_table
from predictor.hardware import DerivedMachine
from predictor.records import dataclass
from predictor.units import MM2

HOURS = 8766.0
"""Of a mean year."""


def cost_assumptions(overrides: Mapping[str, Any] | None = None) -> dict[str, float]:
    """Assumptions of the cost model, some of them replaced.

    Raises InputError for one that does not exist or is no number of at least zero.
    """
    table = tables.read_mapping(tables.data_dir() / "technology" / "cost.yaml")
    return overridden(table, overrides, "cost assumption")


@dataclass(frozen=True, slots=True, eq=False)
class Cost:
    """Cost of one accelerator with its share of the system.

    parts      USD by item; they add up to `capital`
    energy     USD over the years of use
    watts      average draw of the accelerator with its share of host and cooling [W]
    years      of use
    """

    parts: dict[str, Array]
    energy: Array
    watts: Array
    years: float

    @property
    def capital(self) -> Array:
        """What is paid for it [USD]."""
        return np.asarray(sum(self.parts.values()))

    @property
    def per_second(self) -> Array:
        """Capital and energy over the seconds of use [USD/s]."""
        return np.asarray((self.capital + self.energy) / (self.years * HOURS * 3600.0))


def dies_per_wafer(area: Numeric, known: Mapping[str, float]) -> Array:
    """Whole square dies on a wafer: pi r² / A - 2 pi r / sqrt(2 A) (de Vries 2005).

    area   of a die [m²]
    """
    radius = (known["wafer_diameter_mm"] / 2.0 - known["edge_exclusion_mm"]) * 1e-3
    area = np.asarray(area, float)
    whole = np.pi * radius**2 / area - 2.0 * np.pi * radius / np.sqrt(2.0 * area)
    return np.asarray(np.maximum(np.floor(whole), 1.0))


def die_yield(area: Numeric, defects: Numeric, clustering: float) -> Array:
    """Share of dies without a fatal defect: (1 + A D / alpha) ** -alpha, 0..1.

    area      in which a defect is fatal [m²]
    defects   per area [1/m²]
    """
    return np.asarray((1.0 + np.asarray(area) * defects / clustering) ** -clustering)


def machine_cost(machine: DerivedMachine, known: Mapping[str, float] | None = None) -> Cost:
    """Cost of a machine made of a budget, item by item."""
    known = cost_assumptions() if known is None else known
    given = machine.budget
    die = given.area / np.asarray(given.dies)
    spared = known["salvage"] * machine.areas["processors"] / given.dies
    good = die_yield(die - spared, given.node.defects, known["clustering"])
    silicon = given.dies * given.node.wafer / (dies_per_wafer(die, known) * good)
    stacks = machine.accelerator.bandwidth / given.memory.bandwidth
    footprint = given.area / MM2 + stacks * known["stack_mm2"]
    package = known["package_usd_per_mm2"] * footprint
    memory = machine.accelerator.memory * given.memory.price
    board = known["board_usd"] + known["board_usd_per_w"] * machine.power
    lost = (silicon + package + memory) * (1.0 / known["package_yield"] - 1.0)
    built = silicon + package + memory + board + lost
    parts = {
        "dies": silicon,
        "package": package,
        "memory": memory,
        "board and cooling": board,
        "packages lost": lost,
        "margin": built * (1.0 / (1.0 - known["gross_margin"]) - 1.0),
        "scale-up network": np.asarray(given.scale_up.price),
        "scale-out network": np.asarray(given.scale_out.price),
        "host": np.asarray(known["host_usd"]),
    }
    return _running(parts, machine.power, known)


def catalog_cost(
    name: str, power: Numeric, network: Numeric, known: Mapping[str, float] | None = None
) -> Cost | None:
    """Cost of a catalog accelerator at its list price; None where the catalog knows none.

    power     rated [W]
    network   price of its links [USD]
    """
    known = cost_assumptions() if known is None else known
    row = read_table("prices").get(name)
    if row is None:
        return None
    parts = {
        "accelerator, list price": np.asarray(float(row["list_price_usd"])),
        "networks": np.asarray(network),
        "host": np.asarray(known["host_usd"]),
    }
    return _running(parts, power, known)


def _running(parts: dict[str, Any], power: Numeric, known: Mapping[str, float]) -> Cost:
    watts = np.asarray(power * known["draw"] / (1.0 - known["host_power_share"]) * known["pue"])
    hours = known["years"] * HOURS
    energy = np.asarray(watts / 1e3 * hours * known["usd_per_kwh"])
    return Cost({k: np.asarray(v) for k, v in parts.items()}, energy, watts, known["years"])

"""What machines cost and what is read of technologies, by hand."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from predictor import catalog
from predictor.catalog import technology as tech
from predictor.catalog.cost import (
    HOURS,
    Cost,
    catalog_cost,
    cost_assumptions,
    dies_per_wafer,
    machine_cost,
)
from predictor.errors import InputError
from predictor.hardware import derive
from tests.predictor.hardware.test_laws_machines import BUDGET, KNOWN, PLAIN

PRICES: Mapping[str, float] = {
    "wafer_diameter_mm": 300.0, "edge_exclusion_mm": 5.0, "clustering": 2.0, "salvage": 0.5,
    "package_usd_per_mm2": 0.25, "stack_mm2": 100.0, "package_yield": 0.8, "board_usd": 600.0,
    "board_usd_per_w": 0.4, "gross_margin": 0.75, "host_usd": 5000.0, "years": 5.0,
    "usd_per_kwh": 0.1, "pue": 1.2, "host_power_share": 0.2, "draw": 0.9,
}  # fmt: skip


def test_a_machine_item_by_item() -> None:
    """Two dies of 400 mm2, half of whose 298 mm2 of processors spare themselves, four stacks."""
    made = derive(BUDGET, PLAIN, KNOWN)
    found = machine_cost(made, PRICES)
    power = float(made.power)
    wafer = 145.0**2 * math.pi
    dies = math.floor(wafer / 400 - 2 * math.pi * 145 / math.sqrt(800))
    good = (1 + (400 - 0.5 * 298) * 1e-6 * 1e3 / 2) ** -2
    silicon = 2 * 1e4 / (dies * good)
    package, memory = 0.25 * (800 + 4 * 100), 8e10 * 1e-8
    board = 600 + 0.4 * power
    lost = (silicon + package + memory) * 0.25
    expected = {
        "dies": silicon, "package": package, "memory": memory, "board and cooling": board,
        "packages lost": lost, "margin": 3 * (silicon + package + memory + board + lost),
        "scale-up network": 1e3, "scale-out network": 2e3, "host": 5e3,
    }  # fmt: skip
    assert {name: float(value) for name, value in found.parts.items()} == pytest.approx(expected)
    assert float(found.capital) == pytest.approx(sum(expected.values()))
    # A fifth of the node's power is the host's; cooling adds a fifth to all of it.
    assert float(found.watts) == pytest.approx(power * 0.9 / 0.8 * 1.2)
    hours = 5 * 8766
    assert float(found.energy) == pytest.approx(power * 0.9 / 0.8 * 1.2 / 1e3 * hours * 0.1)
    both = sum(expected.values()) + float(found.energy)
    assert float(found.per_second) == pytest.approx(both / (hours * 3600))
    assert found.years == 5.0


def test_a_year_has_365_days_and_a_quarter() -> None:
    assert HOURS == 365.25 * 24
    one = Cost({"all": np.asarray(3600.0 * HOURS)}, np.asarray(0.0), np.asarray(0.0), 2.0)
    assert float(one.per_second) == pytest.approx(0.5)


def test_a_wafer_has_one_die_at_least() -> None:
    assert float(dies_per_wafer(0.05, PRICES)) == 1.0
    both = dies_per_wafer(np.array([100e-6, 400e-6]), PRICES)
    assert both[0] > 4 * both[1], "small dies lose less at the edge"


def test_what_is_listed_costs_its_price_and_its_share() -> None:
    found = catalog_cost("A100-SXM4-40GB", 400.0, 700.0, PRICES)
    assert found is not None
    assert {name: float(value) for name, value in found.parts.items()} == {
        "accelerator, list price": 10000.0, "networks": 700.0, "host": 5000.0,
    }  # fmt: skip
    assert float(found.watts) == pytest.approx(400 * 0.9 / 0.8 * 1.2)
    assert catalog_cost("no such thing", 1.0, 1.0) is None
    usual = catalog_cost("A100-SXM4-40GB", 400.0, 700.0)
    assert usual is not None
    assert usual.years == cost_assumptions()["years"]
    assert float(cost_assumptions({"years": 3})["years"]) == 3.0
    assert cost_assumptions({"years": 0.5, "salvage": 0})["years"] == 0.5
    for wrong in (-1, "many", math.inf, None):
        with pytest.raises(InputError, match=r"years: .* is not a number of at least 0"):
            cost_assumptions({"years": wrong})
    with pytest.raises(InputError, match="did you mean 'years'"):
        cost_assumptions({"yeers": 3})


def test_technologies_are_read_in_si() -> None:
    """Rows of the tables, number by number: N7's 24.7 MiB of bits per mm2, ...; HBM stacks hold
    binary gigabytes; 8 pJ per bit are 64 per byte."""
    node = tech.node("n7")
    assert node.sram == pytest.approx(24.7 * 2**20 / 8 * 1e6)
    assert (node.density, node.power, node.speed) == (1.0, 1.0, 1.0)
    assert (node.wafer, node.defects) == (10000.0, pytest.approx(0.09 * 1e4))
    memory = tech.memory_technology("HBM2")
    assert (memory.bandwidth, memory.capacity) == (256e9, 8 * 2**30)
    assert memory.energy == pytest.approx(3.9e-12 * 8)
    assert (memory.edge, memory.area) == (pytest.approx(10.5e-3), pytest.approx(11e-6))
    assert memory.price * memory.capacity == pytest.approx(80.0)
    link = tech.link_technology("NVLink4", "scale-up")
    assert (link.bandwidth, link.lanes, link.in_switch) == (450e9, 36.0, True)
    assert (link.energy, link.price) == (pytest.approx(6.5e-12 * 8), 1200.0)
    assert not tech.link_technology("NVLink2", "scale-up").in_switch
    # A100: four tensor cores of 512 FLOP each, 256 KiB of registers, 164 of shared memory.
    own = tech.processor("ampere")
    assert (own.width, own.vector) == (2048.0, 128.0)
    assert (own.registers, own.shared) == (256 * 1024, 164 * 1024)
    assert (own.instruction, own.cluster, own.year) == ((16.0, 8.0), 1.0, 2020.0)
    assert tech.processor("hopper").cluster == 2.0
    behind = tech.relative(own)
    cycles = behind.sms * behind.clock
    assert behind.shared_bandwidth == pytest.approx(128 * cycles)
    assert behind.register_bandwidth == pytest.approx(1536 * cycles)
    assert (behind.registers, behind.shared) == (own.registers, own.shared)


LEAST = {"node": "N5", "area_mm2": 800, "memory": "HBM3"}


def test_what_a_budget_leaves_open() -> None:
    found = tech.budget(LEAST)
    assert (float(found.dies), found.domain, found.in_node, found.oversubscription) == (1, 8, 8, 1)
    assert math.isinf(found.power)
    for name in ("devices", "device_memory", "edge"):
        assert math.isnan(getattr(found, name)), name
    assert found.area == pytest.approx(800e-6)
    assert (found.scale_up.name, found.scale_out.name) == ("NVLink4", "NDR")
    assert found.processor.name == "hopper"
    # As many dies as reticles of 858 mm2 hold it; a node is no larger than a domain.
    for area, dies in ((858, 1), (859, 2), (1716, 2), (1717, 3)):
        assert float(tech.budget({**LEAST, "area_mm2": area}).dies) == dies
    assert tech.budget({**LEAST, "domain": 4}).in_node == 4.0
    assert tech.budget({**LEAST, "domain": 72}).in_node == 8.0
    assert tech.budget({**LEAST, "domain": 72, "per_node": 18}).in_node == 18.0


def test_what_a_budget_states_of_its_rates() -> None:
    stated = {"scale_up_gbs": 500, "scale_out_gbs": 40, "stack_gb": 24, "perimeter_mm": 120,
              "stacks": 6, "memory_bandwidth_gbs": 3000}  # fmt: skip
    found = tech.budget({**LEAST, **stated})
    assert (found.scale_up.bandwidth, found.scale_out.bandwidth) == (500e9, 40e9)
    assert found.device_memory == 24 * 2**30
    assert found.edge == pytest.approx(0.12)
    assert float(found.memory.bandwidth) == pytest.approx(500e9)
    assert float(tech.machine(found).accelerator.bandwidth) == pytest.approx(3000e9)
    assert float(tech.machine(found).accelerator.memory) == pytest.approx(6 * 24 * 2**30)


@pytest.mark.parametrize("key", ["area_mm2", "node", "memory"])
def test_a_budget_needs_three_things(key: str) -> None:
    with pytest.raises(InputError, match=f"key '{key}' is missing; a budget needs"):
        tech.budget({name: value for name, value in LEAST.items() if name != key})


@pytest.mark.parametrize("value", [0, -3, math.inf, math.nan, "wide", None])
def test_a_budgets_numbers_are_above_nought(value: object) -> None:
    with pytest.raises(InputError, match=f"stacks {value!r} is not a positive number"):
        tech.budget({**LEAST, "stacks": value})


def test_a_die_is_no_larger_than_a_reticle() -> None:
    assert float(tech.budget({**LEAST, "area_mm2": 1716, "dies": 2}).dies) == 2
    with pytest.raises(InputError, match="area_mm2 1717 on 2 dies is more than a reticle of 858"):
        tech.budget({**LEAST, "area_mm2": 1717, "dies": 2})


def test_a_machines_name_is_its_own_or_what_it_is_made_of() -> None:
    assert tech.machine(tech.budget(LEAST)).accelerator.name == "N5-HBM3-hopper"
    named = catalog.system({"name": "next", "technology": LEAST})
    assert named.accelerator.name == named.name == "next"
    assert tech.machine(tech.budget(LEAST), tech.assumptions()).cluster.accelerators_per_node == 8
    assert replace(BUDGET, area=1e-3).dies == 2.0

"""Constants of power by hand: from laws of round numbers."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from predictor import catalog
from predictor.catalog import power, tables
from predictor.errors import InputError
from predictor.hardware import Accelerator, Cluster, Tier
from predictor.power import COOLINGS, STREAMING, Conditions

LAWS = {
    "off_share": 0.1, "awake_share": 0.2, "still": 0.15, "hbm_w_per_gb": 0.25, "gddr_w_per_gb": 0.5,
    "lpddr_w_per_gb": 0.03, "busy_share": 0.17, "waiting_share": 0.12, "padding_share": 0.4,
    "rows": 150.0, "flop_scale": 0.7, "thin": 2.5, "byte_pj": 100.0, "gddr_byte_pj": 160.0,
    "lpddr_byte_pj": 90.0, "byte_older": 2.0, "path_pj": 80.0, "stream_most": 10.0,
    "widen_pj": 20.0, "link_pj": 30.0, "leaking": 0.3, "leakage": 0.01, "reference_c": 55.0,
    "tracking": 0.98, "slope": 0.8, "floor": 0.7, "slope_blackwell": 1.5, "floor_blackwell": 0.9,
    "slowdown_c": 88.0, "sigma_relatives": 0.2, "beside": 0.6,
    **{f"resistance_{name}": 0.01 * at for at, name in enumerate(COOLINGS, 1)},
}  # fmt: skip
"""A law for each constant, no two of one value."""
BOARD = Accelerator(
    name="board", architecture="none", peak={"bf16": 4e14, "fp16": 2e14}, memory=1e11,
    bandwidth=2e12, l2=4e7, l2_bandwidth=5e12, sms=100.0, power=350.0, clock=1e9, year=2023.0,
    vendor="none",
)  # fmt: skip
"""A hundred processors of 4,000 FLOP per clock; stacked memory, by its bandwidth."""


def test_constants_are_shares_of_the_limit_and_energies_of_laws() -> None:
    found = power.power_constants(BOARD, LAWS, {})
    assert found.limit == 350.0
    assert float(np.asarray(found.off)) == pytest.approx(35.0)
    assert float(np.asarray(found.awake)) == pytest.approx(0.2 * 350 + 0.25 * 100)
    assert float(np.asarray(found.busy)) == pytest.approx(0.17 * 350)
    assert float(np.asarray(found.waiting)) == pytest.approx(0.12 * 350)
    assert float(np.asarray(found.padding)) == pytest.approx(0.4 * 350)
    # The law of matrix units of 4,000 FLOP per clock (`hardware.matrix_energy`).
    energy = 1.6e-12 * (4000 / 1024) ** -0.42
    assert float(np.asarray(found.flop)) == pytest.approx(0.7 * energy)
    assert float(np.asarray(found.byte)) == pytest.approx(100e-12)
    assert (found.link, found.widen) == (pytest.approx(30e-12), pytest.approx(20e-12))
    same = {name: LAWS[name] for name in ("rows", "thin", "leaking", "leakage", "tracking")}
    assert {name: getattr(found, name) for name in same} == same
    assert (found.reference, found.slowdown, found.beside) == (55.0, 88.0, 0.6)
    assert (found.clock, found.sigma, found.status) == (1e9, 0.2, "relatives")
    assert (found.curve.slope, found.curve.floor) == (0.8, 0.7)
    # Heat sinks are made for the limit: of half the power, twice the resistance.
    assert found.resistance == pytest.approx(
        {name: 2 * 0.01 * at for at, name in enumerate(COOLINGS, 1)}
    )
    for watts, scale in ((7.0, 10.0), (7e4, 0.1)):
        other = power.power_constants(replace(BOARD, power=watts), LAWS, {})
        assert other.resistance[COOLINGS[0]] == pytest.approx(0.01 * scale)


def test_what_was_measured_stands_in_place_of_laws() -> None:
    own = {"awake_share": 0.3, "byte_pj": 50.0, "sigma": 0.05, "slope": 2.0}
    found = power.power_constants(BOARD, LAWS, own)
    assert float(np.asarray(found.awake)) == pytest.approx(0.3 * 350 + 25)
    assert float(np.asarray(found.byte)) == pytest.approx(50e-12)
    assert (found.sigma, found.curve.slope, found.status) == (0.05, 2.0, "fitted")


def test_boards_with_slower_memory_are_still() -> None:
    """Below 1.2 TB/s it is GDDR, whose interface stays on, unless the board was measured."""
    slow = replace(BOARD, bandwidth=1.1e12)
    assert (power.memory_kind(slow), power.memory_kind(BOARD)) == ("gddr", "hbm")
    assert power.memory_kind(replace(BOARD, bandwidth=1.2e12)) == "hbm"
    assert (power.byte_law(slow), power.byte_law(BOARD)) == ("gddr_byte_pj", "byte_pj")
    found = power.power_constants(slow, LAWS, {})
    assert float(np.asarray(found.awake)) == pytest.approx(0.15 * 350 + 0.5 * 100)
    assert float(np.asarray(found.byte)) == pytest.approx(160e-12)
    stated = power.power_constants(slow, LAWS, {"awake_share": 0.2})
    assert float(np.asarray(stated.awake)) == pytest.approx(0.2 * 350 + 0.5 * 100)


def test_older_chips_move_bytes_at_twice_the_energy() -> None:
    for year, factor in ((2021.0, 2.0), (2022.0, 1.0)):
        found = power.power_constants(replace(BOARD, year=year), LAWS, {})
        assert float(np.asarray(found.byte)) == pytest.approx(factor * 100e-12)
        assert power.is_older(replace(BOARD, year=year)) is (factor > 1)
    assert not power.is_older(replace(BOARD, year=2018.0, bandwidth=5e11))


def test_no_board_streams_beyond_its_limit() -> None:
    """What its limit leaves beside awake and full processors, over the rate of its memory."""
    room = 1.1 * 350 - (0.2 * 350 + 25 + 0.17 * 350)
    tight = {**LAWS, "stream_most": 1.1, "byte_pj": 400.0}
    found = power.power_constants(BOARD, tight, {})
    assert float(np.asarray(found.byte)) == pytest.approx(room / (STREAMING * 2e12))
    assert float(np.asarray(found.byte)) < 400e-12
    none = power.power_constants(BOARD, {**tight, "stream_most": 0.1}, {})
    assert float(np.asarray(none.byte)) == 0.0


def test_a_budget_says_what_its_memory_and_arithmetic_take() -> None:
    """And the way from the memory's devices to the processors on top."""
    made = replace(BOARD, energy=3e-13, memory_energy=4e-11)
    found = power.power_constants(made, LAWS, {})
    assert float(np.asarray(found.flop)) == pytest.approx(0.7 * 3e-13)
    assert float(np.asarray(found.byte)) == pytest.approx(4e-11 + 80e-12)


def test_blackwells_voltage_has_its_own_slope() -> None:
    for name in ("blackwell", "blackwell-ultra"):
        found = power.power_constants(replace(BOARD, architecture=name), LAWS, {})
        assert (found.curve.slope, found.curve.floor) == (1.5, 0.9)


def test_a_chip_is_like_the_measured_one_of_its_architecture_of_the_nearest_limit() -> None:
    """But no surer than relatives are."""
    rows = catalog.rows("accelerators")
    of = [name for name in rows if rows[name]["architecture"] == "hopper"][:2]
    first, second = (float(rows[name]["tdp_w"]) for name in of)
    measured = {of[0]: {"rows": 1.0, "sigma": 0.01}, of[1]: {"rows": 2.0, "sigma": 0.02},
                "A100-SXM4-80GB": {"rows": 3.0}, "unknown": {"rows": 4.0}}  # fmt: skip
    for watts, expected in ((first, 1.0), (second, 2.0)):
        if first == second:
            continue
        near = power._relative(replace(BOARD, architecture="hopper", power=watts), measured)
        assert near == {"rows": expected}
    assert power._relative(replace(BOARD, architecture="ampere"), measured) == {"rows": 3.0}
    assert power._relative(BOARD, measured) == {}


def cluster(node: int = 8, domain: float = 8.0, watts: float = 350.0) -> Cluster:
    device = replace(BOARD, power=watts)
    tiers = Tier("nvlink4", domain, 4e11), Tier("infiniband", math.inf, 5e10)
    return Cluster("one", device, node, tiers)


@pytest.fixture
def laws(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    more = {
        **LAWS, "air_rows": 2.0, "air_flow": 0.05, "die_coupling": 3.0, "inlet_air_c": 24.0,
        "inlet_liquid_c": 31.0, "inlet_immersion_c": 41.0, "node_idle": 640.0, "node_span": 480.0,
        "node_load": 0.6, "adapter": 33.0, "adapters_per_accelerator": 1.5, "switch": 27.0,
        "fans": 1400.0, "fan_least": 0.4, "supply_efficiency": 0.9, "fabric": 61.0, "pue": 1.3,
    }  # fmt: skip
    monkeypatch.setattr(power, "power_laws", lambda: more)
    return more


def test_nodes_are_cooled_by_air_unless_their_links_leave_them(laws: dict[str, float]) -> None:
    usual = power.chassis(cluster())
    assert (usual.cooling, usual.inlet, usual.rows, usual.coupling) == ("air", 24.0, 2, 3.0)
    assert usual.flow == pytest.approx(0.05 / 2)
    assert power.chassis(cluster(domain=16.0)).cooling == "air"
    assert power.chassis(cluster(domain=17.0)).cooling == "liquid"
    rack = power.chassis(cluster(node=4, domain=72.0))
    assert (rack.cooling, rack.inlet, rack.rows) == ("liquid", 31.0, 1)
    assert [power.chassis(cluster(node=n, domain=n)).rows for n in (1, 3, 4)] == [1, 1, 2]
    stated = power.chassis(cluster(), "immersion", 12.0)
    assert (stated.cooling, stated.inlet, stated.rows) == ("immersion", 12.0, 1)
    alone = replace(cluster(), tiers=(Tier("nvlink4", 72.0, 4e11),))
    assert power.chassis(alone).cooling == "air", "of one tier nothing is known"
    assert usual.dies == 0
    two = replace(cluster(), accelerator=replace(BOARD, name="MI250-128GB"))
    assert power.chassis(two).dies == 2
    with pytest.raises(InputError, match="unknown cooling 'aire'; did you mean 'air'"):
        power.chassis(cluster(), "aire")


def test_what_of_a_node_is_no_accelerator(laws: dict[str, float]) -> None:
    """The laws are of eight accelerators of 700 W; hosts and boards grow with the root of their
    number, fans with what they cool."""
    full, half = power.node_constants(cluster(8, watts=700.0)), power.node_constants(cluster(2))
    assert (full.idle, full.span, full.load) == (640.0, 480.0, 0.6)
    assert (half.idle, half.span) == (pytest.approx(320.0), pytest.approx(240.0))
    assert (full.adapters, half.adapters, full.adapter) == (12.0, 3.0, 33.0)
    assert (full.switch, half.switch) == (27.0, 27.0)
    assert (full.fans, half.fans) == (1400.0, pytest.approx(1400.0 / 8))
    assert (full.spread, full.efficiency, full.fabric) == (0.4, 0.9, 61.0)


def test_nodes_have_the_processors_adapters_and_switches_that_they_are_known_to_have() -> None:
    def parts(name: str) -> tuple[float, float, float]:
        known = power.node_constants(catalog.system(name))
        law = power.power_laws()
        return tuple(
            float(np.asarray(value))
            for value in (known.idle / law["node_idle"], known.adapters, known.switch)
        )

    switch = power.power_laws()["switch"]
    assert parts("dgx-h100") == (1.0, 8.0, switch)
    assert parts("dgx-1v") == (1.0, 4.0, 0.0), "eight V100 in a cube"
    assert parts("dgx-2") == (1.0, 8.0, switch)
    assert parts("mi250x-frontier") == (0.5, 4.0, 0.0), "one processor beside eight dies"
    assert parts("perlmutter-gpu") == (0.5, 4.0, 0.0), "four A100 wired to one another"
    assert parts("gb200-nvl72")[2] == switch, "four of a rack's 72"
    assert parts("l40s-8x-pcie") == (1.0, 8.0, 0.0)
    for superchip, adapters in (("alps-gh200", 4.0), ("vista-gh200", 1.0), ("mi300a-4x", 4.0)):
        assert parts(superchip) == (0.0, adapters, 0.0), "within the accelerator's limit"
    assert parts("dgx-spark") == (0.0, 0.0, 0.0)


def test_what_is_known_of_nodes_is_of_systems_and_accelerators_that_are() -> None:
    systems, superchips = power._machines(catalog.data_dir())
    assert set(systems) <= set(tables.rows("systems"))
    assert set(superchips) <= set(tables.rows("accelerators"))
    assert all(set(one) <= {"cooling", "processors", "adapters", "source"} for one in
               systems.values())  # fmt: skip


def test_what_is_stated_of_power_is_within_what_a_machine_can() -> None:
    machine = catalog.system("dgx-h100")
    own = power.power_constants(machine.accelerator)
    least, most, top = (float(np.asarray(v)) for v in (own.awake, own.limit, own.clock))
    for limit in (least, most * 1.01):
        with pytest.raises(InputError, match=f"takes limits up to {most:g} W"):
            power.power_setting(machine, Conditions(limit=limit))
    for clock in (1.3 * top, 0.01 * top):
        with pytest.raises(InputError, match=f"to {top / 1e6:.0f} MHz"):
            power.power_setting(machine, Conditions(clock=clock))
    with pytest.raises(InputError, match="steps its clock down"):
        power.power_setting(machine, Conditions(inlet=own.slowdown))
    slowest = power.LOWEST * top
    for stated in (Conditions(limit=most), Conditions(limit=least + 1.0), Conditions(clock=top),
                   Conditions(clock=slowest)):  # fmt: skip
        found = power.power_setting(machine, stated)[0]
        assert (found.limit, found.rows, found.status) == (own.limit, own.rows, own.status)
    other = power.power_setting(machine, Conditions(), {machine.accelerator.name: {"rows": 7.0}})
    assert other[0].rows == 7.0
    assert other[0].thin == own.thin, "what ships of it stays beside what a calibration adds"
    foreign = power.power_setting(machine, Conditions(), {"another": {"rows": 7.0}})[0]
    assert foreign.rows == own.rows


def test_limits_of_unlike_boards_suit_all_of_them() -> None:
    """Above what each draws awake; up to the largest limit, the lowest slowdown, the top clock."""
    watts, clocks = np.array([300.0, 700.0]), np.array([1e9, 2e9])
    machine = replace(cluster(), accelerator=replace(BOARD, power=watts, clock=clocks))
    awake = np.asarray(power.power_constants(machine.accelerator).awake)
    assert awake[1] > awake[0]
    with pytest.raises(InputError, match="takes limits up to 700 W"):
        power.power_setting(machine, Conditions(limit=float(awake.mean())))
    power.power_setting(machine, Conditions(limit=500.0, clock=1.5e9))


def test_fits_are_kept_with_what_they_say_of_themselves() -> None:
    found = power.power_fit()
    assert {"laws", "accelerators"} <= set(found)
    laws = power.power_laws()
    assert all(laws[name] == value for name, value in found["laws"].items())


def test_requests_state_megahertz(laws: dict[str, float]) -> None:
    found = power.conditions_of({"clock": 1200.0, "power_limit": 300.0, "price_per_kwh": 0.2})
    assert (found.clock, found.limit, found.slack) == (1.2e9, 300.0, 0.0)
    assert (found.tariff.price, found.tariff.pue, found.tariff.carbon) == (0.2, 1.3, None)
    empty = power.conditions_of({})
    assert (empty.clock, empty.limit, empty.inlet, empty.cooling, empty.paced) == (None,) * 5
    paced = power.conditions_of({"stage_clocks": "own", "stage_slack": 0.1, "pue": 1.1})
    assert (paced.paced, paced.slack, paced.tariff.pue) == ("own", 0.1, 1.1)
    with pytest.raises(InputError, match="--stage-slack is of --stage-clocks"):
        power.conditions_of({"stage_slack": 0.1})


def test_no_limit_and_no_host_has_constants() -> None:
    for one in (replace(BOARD, power=math.nan), replace(BOARD, architecture="cpu-x")):
        with pytest.raises(InputError, match="power of board is not known"):
            power.power_constants(one, LAWS, {})
    # Whose matrix units are not known has those of 1,024 FLOP per clock.
    bare = replace(BOARD, peak={"fp8": 1e15})
    assert float(np.asarray(power.power_constants(bare, LAWS, {}).flop)) == pytest.approx(
        0.7 * 1.6e-12
    )


@pytest.mark.parametrize(
    ("name", "cooling"),
    [
        ("GB200-NVL72", "liquid"),
        ("GB300-NVL72", "liquid"),
        ("VR200-NVL72", "liquid"),
        ("TPU-v4-pod", "liquid"),
        ("TPU-v2-pod", "air"),
        ("MI250X-Frontier", "liquid"),
        ("DGX-H100", "air"),
        ("DGX-2", "air"),
        ("HGX-B100", "air"),
    ],
)
def test_systems_are_cooled_as_their_makers_say(name: str, cooling: str) -> None:
    """Racks have their domain as a tier beyond the node's."""
    assert power.chassis(catalog.system(name)).cooling == cooling

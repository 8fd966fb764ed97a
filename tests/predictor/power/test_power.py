"""Laws of power and heat: hand counts, signs, limits."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from predictor import catalog
from predictor.errors import InputError
from predictor.power import (
    CLOCKS,
    LOWEST,
    Activity,
    Chassis,
    Conditions,
    NodeConstants,
    Phase,
    VoltageCurve,
    ambient,
    demand,
    die_gap,
    energy,
    mean_power,
    node_power,
    operating,
    package_gap,
    peak_power,
    power_at,
    powered,
    settle,
    settled,
    stretch,
    switching,
    unlimited,
)

H100 = catalog.power_constants(catalog.accelerator("H100-SXM5-80GB"))
shares = st.floats(0.0, 1.0)


def products(flops: float = 6e14) -> Activity:
    return Activity(1.0, flop=flops, bytes=5e11, rows=1e9, core=1.0)


@given(clock=st.floats(LOWEST, 1.0), core=shares)
def test_a_slower_clock_never_speeds_work_up_and_draws_no_more(clock: float, core: float) -> None:
    curve = VoltageCurve(0.8, 0.8)
    whole = power_at(1.0, 100.0, 400.0, 100.0, core, curve)
    assert stretch(clock, core) >= 1.0
    assert power_at(clock, 100.0, 400.0, 100.0, core, curve) <= whole + 1e-9


def test_below_the_knee_energy_of_an_event_is_flat() -> None:
    curve = VoltageCurve(slope=1.0, floor=0.8)
    assert switching(0.8, curve) == pytest.approx(0.64)
    assert switching(0.5, curve) == pytest.approx(0.64)
    assert switching(0.9, curve) == pytest.approx(0.81)


@given(
    limit=st.floats(250.0, 599.0), core=shares, slope=st.floats(0.3, 1.5), floor=st.floats(0.6, 0.9)
)
def test_work_settles_at_its_limit(limit: float, core: float, slope: float, floor: float) -> None:
    curve = VoltageCurve(slope, floor)
    clock = settled(limit, 100.0, 400.0, 100.0, core, curve)
    power = power_at(clock, 100.0, 400.0, 100.0, core, curve)
    assert power <= limit * (1 + 1e-5) or clock == pytest.approx(LOWEST)
    if LOWEST + 0.01 < clock < 1.0:
        assert power == pytest.approx(limit, rel=1e-5)


def test_temperatures_are_those_of_what_is_drawn_at_them() -> None:
    drawn = [demand(products(flops), H100) for flops in (2e14, 9e14)]
    share = [np.ones(3), np.array([0.2, 1.0, 5.0])]
    found = settle(drawn, share, H100, 550.0, AIR)
    again = [operating(one, H100, 550.0, temperature=found.temperature) for one in drawn]
    times = [part * one.slower for part, one in zip(share, again, strict=True)]
    joules = sum(time * one.power for time, one in zip(times, again, strict=True))
    assert found.mean == pytest.approx(joules / sum(times), rel=3e-3)
    assert found.temperature.shape == (2, 3)


def test_what_lies_below_its_limit_keeps_its_clock() -> None:
    assert settled(700.0, 100.0, 400.0, 100.0, 1.0, VoltageCurve(0.6, 0.85)) == 1.0


def test_streaming_loses_no_time_to_a_clock_that_products_follow() -> None:
    state = operating(demand(Activity(1.0, bytes=2e12, rows=1e9), H100), H100, 700.0, clock=0.7)
    assert state.slower == 1.0
    assert operating(demand(products(), H100), H100, 700.0, clock=0.7).slower > 1.4


def test_demand_is_the_sum_that_its_equation_says() -> None:
    drawn = demand(Activity(2.0, flop=4e14, bytes=1e12, link=1e10, rows=H100.rows), H100)
    hand = H100.awake + 0.5 * H100.busy + H100.flop * 2e14 + H100.byte * 5e11 + H100.link * 5e9
    assert drawn.whole == pytest.approx(float(hand))


def test_tiles_of_padding_draw_in_proportion_to_their_time() -> None:
    none, half, whole = (
        float(demand(Activity(1.0, padded=p), H100).whole) for p in (0.0, 0.5, 1.0)
    )
    assert whole - none == pytest.approx(float(H100.padding))
    assert half - none == pytest.approx(0.5 * (whole - none))


def test_processors_are_not_kept_busy_while_the_host_is_at_work() -> None:
    busy, half, none = (
        float(demand(Activity(1.0, rows=1e9, halted=share), H100).whole)
        for share in (0.0, 0.5, 1.0)
    )
    assert none == pytest.approx(float(H100.awake))
    assert half == pytest.approx(0.5 * (busy + none))


def test_idle_has_levels() -> None:
    awake = demand(Activity(1.0), H100).whole
    waiting = demand(Activity(1.0, spinning=1.0), H100).whole
    assert 0 < H100.off < awake < waiting < H100.limit


@example([700.0, 700.0])  # nothing is held
@given(st.lists(st.floats(100.0, 700.0), min_size=2, max_size=6))
def test_plans_of_a_batch_settle_as_one_by_one(limits: list[float]) -> None:
    drawn = demand(products(), H100)
    together = operating(drawn, H100, np.array(limits))
    alone = [float(operating(drawn, H100, one).power) for one in limits]
    assert together.power.tolist() == alone


AIR = Chassis("air", inlet=25.0, rows=2, flow=0.045)


def test_the_rear_is_hotter_in_air_and_not_in_liquid() -> None:
    drawn = [demand(products(), H100)]
    air = settle(drawn, [np.ones(())], H100, 700.0, AIR)
    assert 1.05 < air.temperature[1] / air.temperature[0] < 1.35
    wet = settle(drawn, [np.ones(())], H100, 700.0, Chassis("liquid", 30.0, 2, 0.045))
    assert wet.temperature[0] == wet.temperature[1]


def test_heat_takes_clock_under_a_limit() -> None:
    """V100 at its limit: -0.17 %/K within one device (47 cases); here of that order."""
    drawn = demand(products(9e14), H100)
    cool, warm = (operating(drawn, H100, 700.0, temperature=t) for t in (60.0, 80.0))
    loss = float(1.0 - warm.clock / cool.clock) / 20.0
    assert 0.0005 < loss < 0.005


def test_a_chip_is_held_at_its_slowdown_temperature() -> None:
    hot = Chassis("air", inlet=60.0, rows=2, flow=0.045)
    found = settle([demand(products(), H100)], [np.ones(())], H100, 700.0, hot)
    assert found.throttled.all()
    assert found.temperature.max() < H100.slowdown + 2.0
    assert (found.longer > 1.0).all()


def test_air_is_warmed_by_what_it_carries_away() -> None:
    """Of an ideal gas at one atmosphere and 35 °C (308 K, 28.97 g/mol): 1.146 kg/m³, which take
    1,006 J/(kg K): 700 W warm 0.05 m³/s by 12.1 K; the last of three is warmed by both before."""
    density = 101_325.0 * 28.97e-3 / (8.314 * 308.15)
    rise = 700.0 / (density * 1006.0 * 0.05)
    assert rise == pytest.approx(12.1, rel=0.01)
    row = Chassis("air", inlet=30.0, rows=3, flow=0.05)
    found = ambient(np.full(3, 700.0), row)
    assert found == pytest.approx([30.0, 30.0 + rise, 30.0 + 2 * rise], rel=0.01)
    assert ambient(np.full(3, 700.0), replace(row, cooling="liquid")).tolist() == [30.0] * 3


def test_coupled_dies_differ_less_than_each_alone() -> None:
    assert die_gap(20.0, 0.1, 0.0) == 20.0
    assert die_gap(20.0, 0.1, 5.0) == pytest.approx(10.0)


def test_the_rear_die_of_a_package_is_hotter_in_air() -> None:
    """A package is a package, counted as one accelerator of two dies or as two of one."""
    whole = Chassis("air", inlet=25.0, rows=1, flow=0.036, coupling=2.0, dies=2)
    die = replace(whole, flow=0.018, dies=1)
    gap = package_gap(np.array(560.0), 0.069, whole)
    assert gap == pytest.approx(package_gap(np.array(280.0), 0.138, die))
    assert gap < 280.0 / (1160.0 * 0.036)
    assert package_gap(np.array(560.0), 0.069, replace(whole, cooling="liquid")) == 0.0
    assert package_gap(np.array(560.0), 0.069, replace(whole, dies=0)) == 0.0
    settled_ = settle([demand(products(), H100)], [np.ones(())], H100, 700.0, replace(AIR, dies=2))
    assert (settled_.gap > 0.0).all()


def test_peaks_lie_between_mean_and_highest_and_fall_with_the_window() -> None:
    phases = [
        Phase("forward", np.array(0.6), np.array(700.0), np.array(3.0)),
        Phase("bubble", np.array(0.4), np.array(200.0), np.array(1.0)),
    ]
    mean = float(mean_power(phases))
    assert mean == pytest.approx(0.6 * 700 + 0.4 * 200)
    assert energy(phases) == pytest.approx(mean)
    instant, second = peak_power(phases, 0.1), peak_power(phases, 1.0)
    assert mean < second < instant <= 700.0


def test_a_node_is_the_sum_of_its_parts_and_fans_are_cubic() -> None:
    node = NodeConstants(
        idle=600.0, span=400.0, load=1.0, adapter=30.0, adapters=8.0, switch=25.0, fans=1000.0,
        spread=0.1, efficiency=0.95, fabric=60.0,
    )  # fmt: skip
    full = node_power(700.0, 8, 700.0, node, "air")
    assert float(full.whole) == pytest.approx(sum(float(v) for v in full.parts.values()))
    assert full.parts["fans"] == pytest.approx(1000.0)
    less = node_power(300.0, 8, 700.0, node, "air")
    heat = (300 * 8 + 1000 + 240 + 200) / (700 * 8 + 1000 + 240 + 200)
    assert less.parts["fans"] == pytest.approx(1000.0 * heat**3)
    assert node_power(700.0, 8, 700.0, node, "liquid").parts["fans"] == 0.0
    alone = node_power(700.0, 1, 700.0, node, "air", places=8)
    heat = (700 + 1000 + 240 + 25) / (700 * 8 + 1000 + 240 + 200)
    assert alone.parts["fans"] == pytest.approx(1000.0 * heat**3), "of a node made for eight"
    half = node_power(700.0, 8, 700.0, replace(node, load=0.5), "liquid")
    assert half.parts["host"] == 600.0 + 0.5 * 400.0


def test_an_hgx_node_at_work_draws_what_is_published() -> None:
    """8xH100 in air: 7,752 W mean in intensive training, 8,400 W the highest seen (BNL)."""
    cluster = catalog.system("dgx-h100")
    node = node_power(670.0, 8, 700.0, catalog.node_constants(cluster), "air")
    assert 0.88 * 7752 < float(node.whole) < 1.08 * 8400


@pytest.mark.parametrize(("name", "most"), [
    ("DGX-2", 10.0), ("DGX-A100-80GB", 6.5), ("DGX-H100", 10.2), ("DGX-B200", 14.3),
    ("DGX-B300", 14.0), ("MI300X-8x", 10.0), ("Gaudi2-HLS2", 7.5), ("Gaudi3-HLB325", 10.5),
    ("L40S-8x-PCIe", 4.5),
])  # fmt: skip
def test_nodes_at_the_limit_draw_what_their_makers_say_at_most(name: str, most: float) -> None:
    """Largest powers of nodes of makers' datasheets [kW], as the shared table of nodes has them."""
    cluster = catalog.system(name)
    device, cooled = cluster.accelerator, catalog.chassis(cluster)
    node = node_power(
        device.power, cluster.accelerators_per_node, device.power,
        catalog.node_constants(cluster), cooled.cooling,
    )  # fmt: skip
    assert 0.8 * most < float(node.whole) / 1e3 < 1.1 * most


def test_an_accelerator_that_was_never_measured_has_constants_by_law() -> None:
    found = catalog.power_constants(catalog.accelerator("MI300X-192GB"))
    assert found.status == "relatives"
    assert 0 < found.awake < 0.4 * found.limit
    with pytest.raises(InputError, match="power of"):
        catalog.power_constants(_unrated())


def rated() -> list[str]:
    """Accelerators of the catalog whose limit is known."""
    names = catalog.tables.rows("accelerators")
    return [n for n in names if np.isfinite(catalog.accelerator(n).power)]


@pytest.mark.parametrize("name", rated())
def test_every_accelerator_draws_what_a_board_can(name: str) -> None:
    """Awake well below its limit; streaming its memory about at it; large products up to it; more
    rows, more clock or more bytes never draw less."""
    device = catalog.accelerator(name)
    own = catalog.power_constants(device)
    limit, rate = float(np.asarray(own.limit)), float(np.asarray(device.bandwidth))
    assert 0.1 < float(own.awake) / limit < 0.46
    streaming = demand(Activity(1.0, bytes=0.92 * rate, rows=1e9), own).whole / limit
    assert 0.45 < float(streaming) < (1.45 if own.status == "fitted" else 1.16)
    decoding = [
        float(demand(Activity(1.0, flop=b * rate, bytes=0.6 * rate, rows=b, thin=1.0), own).whole)
        for b in (1.0, 8.0, 64.0)
    ]
    assert decoding == sorted(decoding)
    assert 0.2 < decoding[0] / limit < 0.85
    drawn = demand(Activity(1.0, flop=1e15, bytes=0.3 * rate, rows=1e9, core=0.9), own)
    capped = [float(operating(drawn, own, cap * limit).power) for cap in (0.6, 0.8, 1.0)]
    assert capped == sorted(capped)
    assert capped[-1] <= limit
    clocked = [float(operating(drawn, own, limit, clock=f).power) for f in (0.5, 0.75, 1.0)]
    assert clocked == sorted(clocked)


def test_memory_is_what_its_board_has() -> None:
    kinds = {"H100-SXM5-80GB": "hbm", "A30-24GB": "hbm", "RTX-5090-32GB": "gddr", "L4-24GB": "gddr"}
    kinds |= {"GB10-128GB": "lpddr", "Apple-M2Ultra-76c-192GB": "lpddr", "P100-PCIe-16GB": "hbm"}
    assert {name: catalog.memory_kind(catalog.accelerator(name)) for name in kinds} == kinds


def test_chips_of_a_measured_architecture_draw_as_its_measured_one() -> None:
    names = ("H100-SXM5-80GB", "H200-SXM-141GB", "MI300X-192GB")
    measured, near, far = (catalog.power_constants(catalog.accelerator(name)) for name in names)
    assert near.awake / near.limit == pytest.approx(measured.awake / measured.limit)
    assert far.awake / far.limit != pytest.approx(measured.awake / measured.limit)
    assert (measured.status, near.status) == ("fitted", "relatives")
    assert near.sigma > measured.sigma


def test_a_byte_takes_more_beside_older_chips() -> None:
    older, newer = (catalog.accelerator(n) for n in ("V100-SXM2-32GB", "MI300X-192GB"))
    wide = {**catalog.power_laws(), "stream_most": np.inf}
    energies = [catalog.power_constants(one, wide, {}).byte for one in (older, newer)]
    assert energies[0] / energies[1] == pytest.approx(wide["byte_older"])
    assert 1.3 < wide["byte_older"] < 2.5


def test_a_budgets_memory_says_what_its_bytes_take() -> None:
    device = catalog.accelerator("H100-SXM5-80GB")
    stated = [replace(device, name="b", memory_energy=pj * 1e-12) for pj in (5.0, 20.0)]
    less, more = (catalog.power_constants(one).byte for one in stated)
    assert more - less == pytest.approx(15e-12)


def _unrated():  # type: ignore[no-untyped-def]
    return replace(catalog.accelerator("H100-SXM5-80GB"), name="unrated", power=np.nan)


def test_work_that_is_not_stated_is_none() -> None:
    idle = Activity(time=2.0)
    assert [getattr(idle, one.name) for one in fields(Activity)] == [
        2.0,
        *[0.0] * (len(fields(Activity)) - 1),
    ]


def test_a_board_of_twice_the_power_idles_and_waits_at_twice() -> None:
    """What a board draws without work is a share of its limit."""
    board = catalog.accelerator("H100-SXM5-80GB")
    one, two = (catalog.power_constants(replace(board, power=watts)) for watts in (350.0, 700.0))
    for name in ("limit", "off", "awake", "busy", "waiting", "padding"):
        assert float(getattr(two, name)) == pytest.approx(2.0 * float(getattr(one, name)))
        assert float(getattr(one, name)) <= 350.0


def test_clocks_that_are_looked_at_go_from_the_highest_down() -> None:
    assert CLOCKS[0] == 1.0
    assert (np.diff(CLOCKS) < 0).all()
    assert CLOCKS[-1] == LOWEST > 0.0


def test_what_a_limit_holds_is_all_of_a_phase_or_none() -> None:
    """Products under a limit far below what they draw, and under one far above."""
    pieces, liquid = {"forward": np.ones(())}, Chassis("liquid", 30.0, 1, 0.045)
    for limit, share in ((300.0, 1.0), (5000.0, 0.0)):
        found = powered({"forward": products()}, pieces, H100, liquid, Conditions(limit=limit))
        assert float(found.held["forward"]) == share
        assert (float(found.longer["forward"]) > 1.0) == bool(share)


def test_memory_on_the_board_draws_by_its_size_and_stacked_memory_does_not() -> None:
    for name, each in (("L40S-48GB", catalog.power_laws()["gddr_w_per_gb"]), ("H100-SXM5-80GB", 0)):
        board = catalog.accelerator(name)
        more = replace(board, memory=board.memory + 10e9)
        awake, with_more = (float(catalog.power_constants(b, own={}).awake) for b in (board, more))
        assert with_more - awake == pytest.approx(10.0 * each)


@given(flops=st.floats(1e14, 9e14), share=shares, inlet=st.floats(15.0, 55.0))
def test_without_conditions_phases_last_as_those_of_a_board_by_itself(
    flops: float, share: float, inlet: float
) -> None:
    """Products over and below the board's limit, of two kinds of kernels in one phase, in cool and
    in hot air."""
    chassis = replace(catalog.power_setting(catalog.system("dgx-h100"), Conditions())[1],
                      inlet=inlet)  # fmt: skip
    work = {
        "forward.products": products(flops),
        "forward.others": Activity(np.array([0.2, 0.4]), bytes=3e11, core=share, rows=1e9),
        "waiting": Activity(0.1, spinning=1.0),
    }
    pieces = {"forward": np.ones(2), "waiting": np.ones(2)}
    whole = powered(work, pieces, H100, chassis, Conditions())
    found = unlimited(work, H100, chassis)
    assert list(found) == list(whole.longer)
    for name, longer in whole.longer.items():
        assert found[name] == pytest.approx(longer, rel=1e-12)
        assert np.all(longer >= 1.0)


def test_clocks_and_limits_are_those_that_a_machine_has() -> None:
    """From a quarter of its clock to what it may be set to; limits above what it draws awake."""
    cluster = catalog.system("dgx-h100")
    constants, _ = catalog.power_setting(cluster, Conditions())
    top = float(np.max(np.asarray(constants.clock)))
    for share in (LOWEST, 0.5, 1.0, 1980 / 1830):
        catalog.power_setting(cluster, Conditions(clock=share * top))
    for share in (0.9 * LOWEST, 1.3):
        with pytest.raises(InputError, match="runs from"):
            catalog.power_setting(cluster, Conditions(clock=share * top))
    most = float(np.max(np.asarray(constants.limit)))
    catalog.power_setting(cluster, Conditions(limit=most))
    for limit in (float(np.max(np.asarray(constants.awake))), 1.01 * most):
        with pytest.raises(InputError, match="takes limits"):
            catalog.power_setting(cluster, Conditions(limit=limit))

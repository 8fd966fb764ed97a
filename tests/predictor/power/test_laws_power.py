"""Laws that hold of any work on any accelerator, drawn at random: limits, heat, phases, peaks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictor import catalog
from predictor.power import (
    LOWEST,
    RELATIVE_ENERGY,
    Activity,
    Chassis,
    Conditions,
    PowerConstants,
    VoltageCurve,
    demand,
    operating,
    powered,
    relative_energy,
    settle,
)
from predictor.power.demand import LEFT, leaking
from predictor.power.heat import AIR

BOARDS = (
    "H100-SXM5-80GB", "A100-SXM4-80GB", "B200-SXM-180GB", "MI300X-192GB", "V100-SXM2-16GB",
    "A40-48GB", "L4-24GB", "GB10-128GB", "T4-16GB",
)  # fmt: skip
shares = st.floats(0.0, 1.0)


@st.composite
def work(draw: st.DrawFn) -> tuple[PowerConstants, Activity]:
    """A board and a second of work on it, up to its peak rates; waiting ranks do little."""
    board = catalog.accelerator(draw(st.sampled_from(BOARDS)))
    peak = float(np.asarray(board.peak.get("bf16", board.peak.get("fp16", 1e14))))
    done = draw(shares)
    activity = Activity(
        time=1.0,
        flop=done * 0.7 * peak,
        bytes=draw(shares) * 0.9 * float(np.asarray(board.bandwidth)),
        link=draw(shares) * 1e11,
        rows=10.0 ** draw(st.floats(0.0, 6.0)),
        thin=draw(shares),
        spinning=draw(shares),
        core=draw(shares),
        halted=draw(shares),
    )
    return catalog.power_constants(board), activity


def limits_of(board: PowerConstants, lower: float, higher: float) -> tuple[float, float]:
    """Two limits between what a board draws awake and its own [W]."""
    awake, own = float(np.asarray(board.awake)), float(np.asarray(board.limit))
    least, most = sorted((lower, higher))
    return tuple(awake + (0.02 + 0.98 * part) * (own - awake) for part in (least, most))  # type: ignore[return-value]


def held_to(
    limit: float, board: PowerConstants, activity: Activity, warm: float | np.ndarray
) -> np.ndarray:
    """What a limit holds work to [W]: no clock takes away what leaks, beside which `LEFT` of the
    limit is left to work."""
    leaks = demand(activity, board).fixed * leaking(board, warm)
    return np.asarray(np.maximum(limit, leaks + LEFT * limit))


@given(drawn=work(), lower=shares, higher=shares, warm=st.floats(30.0, 85.0))
def test_a_lower_limit_is_never_quicker_nor_exceeded(
    drawn: tuple[PowerConstants, Activity], lower: float, higher: float, warm: float
) -> None:
    """Whatever the work, traffic of memory too, whose time does not follow the clock."""
    board, activity = drawn
    less, more = limits_of(board, lower, higher)
    tight, loose = (
        operating(demand(activity, board), board, w, temperature=warm) for w in (less, more)
    )
    assert tight.power <= held_to(less, board, activity, warm) * (1 + 1e-6)
    assert tight.power <= loose.power * (1 + 1e-5)
    assert tight.slower >= loose.slower * (1 - 1e-5) >= 1.0 - 1e-4
    assert tight.clock <= loose.clock * (1 + 1e-5)


@given(drawn=work(), lower=shares)
def test_clocks_that_are_left_out_cost_no_energy_but_what_leaks(
    drawn: tuple[PowerConstants, Activity], lower: float
) -> None:
    """At the lowest clock the same events take longer: what is drawn beside leakage falls as the
    time grows."""
    board, activity = drawn
    less, _ = limits_of(board, lower, lower)
    demanded = demand(activity, board)
    held = operating(demanded, board, less)
    if held.clock > LOWEST:
        return
    free = operating(demanded, board, board.limit, clock=LOWEST)
    spent = (held.power - demanded.fixed) * held.slower
    assert spent == pytest.approx(float((free.power - demanded.fixed) * free.slower), rel=1e-6)


@given(drawn=work(), cool=st.floats(10.0, 45.0), warmer=st.floats(0.5, 30.0))
def test_a_warmer_inlet_heats_and_never_speeds_up(
    drawn: tuple[PowerConstants, Activity], cool: float, warmer: float
) -> None:
    """What leaks more is drawn unless a limit or heat takes it from the clock."""
    board, activity = drawn
    flow = 0.045 * float(np.asarray(board.limit)) / 700.0
    found = [
        settle(
            [demand(activity, board)], [np.ones(())], board, board.limit,
            Chassis("air", inlet, 2, flow),
        )
        for inlet in (cool, cool + warmer)
    ]  # fmt: skip
    before, after = found
    assert np.all(after.longer >= before.longer * (1 - 5e-3))
    assert np.all(after.temperature >= before.temperature - 0.2)
    if not after.throttled.any() and np.all(after.states[0].clock >= 1.0):
        assert np.all(after.mean >= before.mean * (1 - 1e-9))


@given(drawn=work(), inlet=st.floats(15.0, 80.0))
def test_a_chip_is_hotter_than_its_slowdown_at_the_lowest_clock_alone(
    drawn: tuple[PowerConstants, Activity], inlet: float
) -> None:
    board, activity = drawn
    flow = 0.045 * float(np.asarray(board.limit)) / 700.0
    chassis = Chassis("air", inlet, 2, flow)
    found = settle([demand(activity, board)], [np.ones(())], board, board.limit, chassis)
    clock = np.broadcast_to(found.states[0].clock, found.temperature.shape)
    hot = found.temperature > board.slowdown + 1.0
    assert np.all(clock[hot] <= LOWEST + 1e-6)


def test_what_heat_held_at_its_lowest_clock_goes_on_as_the_air_cools() -> None:
    """At first the front warms the air by all it demands, and the rear falls to its lowest clock;
    once the front is held, the rear draws what carries its heat away at its slowdown."""
    board = catalog.power_constants(catalog.accelerator("MI300X-192GB"))
    activity = Activity(time=1.0, flop=2.86e14, rows=1.0, spinning=1.0)
    flow = 0.045 * float(np.asarray(board.limit)) / 700.0
    chassis = Chassis("air", 73.0, 2, flow)
    found = settle([demand(activity, board)], [np.ones(())], board, board.limit, chassis)
    resistance, slowdown = board.resistance["air"], float(np.asarray(board.slowdown))
    front = (slowdown - 73.0) / resistance
    rear = (slowdown - 73.0 - front / (AIR * flow)) / resistance
    assert found.temperature == pytest.approx(slowdown, abs=0.05)
    assert found.mean == pytest.approx([front, rear], rel=1e-3)
    first, last = np.asarray(found.states[0].clock)
    assert first > 1.5 * last > 1.5 * 1.01 * LOWEST


@given(drawn=work(), lower=shares, second=work(), inlet=st.floats(15.0, 70.0))
def test_phases_add_up_and_stay_within_their_limit(
    drawn: tuple[PowerConstants, Activity],
    second: tuple[PowerConstants, Activity],
    lower: float,
    inlet: float,
) -> None:
    """Energy is power times time part by part; positions that wait for a slower one are held by the
    limit as well."""
    board, activity = drawn
    other = replace(second[1], time=0.3)
    less, _ = limits_of(board, lower, lower)
    flow = 0.045 * float(np.asarray(board.limit)) / 700.0
    found = powered(
        {"a.one": activity, "a.two": other, "b": other},
        {"a": np.array(4.0), "b": np.array(1.0)},
        board,
        Chassis("air", inlet, 2, flow),
        Conditions(limit=less),
    )
    parts = [one.time * one.power for one in found.phases]
    assert float(found.energy) == pytest.approx(float(np.sum(parts)))
    assert float(found.mean) * float(found.time) == pytest.approx(float(found.energy))
    warm = np.minimum(found.temperature, board.slowdown)
    most = max(float(held_to(less, board, one, warm).max()) for one in (activity, other))
    assert all(float(one.power) <= most * (1 + 1e-6) for one in found.phases)
    highest = max(float(one.power) for one in found.phases)
    assert float(found.mean) <= float(found.averaged) * (1 + 1e-12)
    assert float(found.averaged) <= float(found.instant) * (1 + 1e-12)
    assert float(found.instant) <= highest * (1 + 1e-9)
    assert np.all(np.array(list(found.longer.values())) >= 1.0 - 1e-4)
    assert 0.0 <= float(found.waited) < 1.0


@given(drawn=work(), slope=st.floats(0.2, 1.5), floor=st.floats(0.6, 0.95), lower=shares)
def test_work_that_follows_no_clock_loses_no_time_before_the_lowest(
    drawn: tuple[PowerConstants, Activity], slope: float, floor: float, lower: float
) -> None:
    board, activity = drawn
    board = replace(board, curve=VoltageCurve(slope, floor))
    less, _ = limits_of(board, lower, lower)
    found = operating(demand(replace(activity, core=0.0), board), board, less)
    if found.clock > LOWEST:
        assert float(found.slower) == pytest.approx(1.0)


def test_narrower_factors_take_less_energy() -> None:
    """By width: 8 bits half of 16 or a little less, 4 bits less again, but more than half of 8; a
    scale for each block a little more; tf32 twice and more, as its rate is half of 16 bits'. Vector
    units take what their share of the rate would: 10 to 16 of the tables' accelerators."""
    energy = {name: relative_energy(name) for name in RELATIVE_ENERGY}
    eights = {energy[name] for name in ("fp8", "mxfp8", "int8", "sq", "w4a8_mxfp4_mxfp8")}
    fours = {energy[name] for name in ("fp4", "nvfp4", "mxfp4")}
    assert len(eights) == len(fours) == 1
    (eight,), (four,) = eights, fours
    assert eight / 2 < four < eight < energy["fp8_block"] <= 0.5
    assert 2.0 < energy["tf32"] < 4.0
    assert 10.0 < energy["fp32"] < 16.0
    assert relative_energy("bf16") == relative_energy("int4_wo") == 1.0


def test_air_carries_what_its_density_and_heat_say() -> None:
    """An ideal gas of 287 J/(kg K) at one atmosphere and 35 °C, with 1007 J/(kg K)."""
    assert pytest.approx(101325 / (287.05 * 308.15) * 1007, rel=0.01) == AIR

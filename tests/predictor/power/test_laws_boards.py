"""Power and heat against their equations written anew, of a board whose constants all differ."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pandas as pd
import pytest

from predictor import catalog
from predictor.power import (
    AVERAGED,
    INSTANT,
    KWH,
    LOWEST,
    Activity,
    Chassis,
    Conditions,
    Drawn,
    NodeConstants,
    Pace,
    Phase,
    PowerConstants,
    Tariff,
    VoltageCurve,
    demand,
    leaking,
    mean_power,
    node_power,
    occupancy,
    operating,
    pace,
    package_gap,
    peak_power,
    power_at,
    powered,
    relative_energy,
    sensible,
    settle,
    settled,
    stretch,
    worth,
)

CURVE = VoltageCurve(slope=0.9, floor=0.7)
BOARD = PowerConstants(
    limit=700.0, off=50.0, awake=110.0, busy=70.0, waiting=85.0, padding=45.0, rows=1e3,
    flop=5e-13, thin=2.5, byte=4e-11, link=3e-10, leaking=0.4, leakage=0.009, reference=60.0,
    tracking=0.97, slowdown=90.0, widen=6e-12, beside=0.3, clock=2e9, sigma=0.1, curve=CURVE,
    resistance={"air": 0.06, "liquid": 0.04}, status="fitted",
)  # fmt: skip
COLD = replace(BOARD, leakage=0.0)
"""One that leaks alike at every temperature."""

BUSY = Activity(
    time=2.0, flop=5e14, bytes=6e11, link=4e10, widened=7e11, rows=3e3, thin=0.2, spinning=0.3,
    padded=0.1, core=0.8, halted=0.25,
)  # fmt: skip


def test_demand_has_every_term_of_its_equation() -> None:
    """P = awake + busy rows / (rows + half) (1 - halted) + waiting + padding + energies / time; a
    FLOP in products of a row for each sequence takes `thin` times as much."""
    standing = 110.0 + 70.0 * 3e3 / (3e3 + 1e3) * (1.0 - 0.25)
    flops = 5e-13 * (0.8 * 5e14 + 2.5 * 0.2 * 5e14)
    other = (4e-11 * 6e11 + 3e-10 * 4e10) / 2.0
    core = 0.6 * standing + 85.0 * 0.3 + 45.0 * 0.1 + (flops + 6e-12 * 7e11) / 2.0
    found = demand(BUSY, BOARD)
    parts = [float(getattr(found, one.name)) for one in fields(Drawn)]
    assert parts == pytest.approx([0.4 * standing, core, other, 0.8])
    assert float(found.whole) == pytest.approx(sum(parts[:3]))
    assert occupancy(BOARD.rows, BOARD) == 0.5
    assert float(leaking(BOARD, 60.0)) == 1.0
    assert float(leaking(BOARD, 70.0)) == pytest.approx(np.exp(0.09))


def drawn(fixed: float, core: float, other: float, share: float = 0.6) -> Drawn:
    return Drawn(*(np.asarray(value) for value in (fixed, core, other, share)))


def test_work_below_every_limit_draws_what_it_demands() -> None:
    found = operating(drawn(50.0, 300.0, 100.0), BOARD, 700.0)
    assert (found.clock, found.slower, found.power, found.beside) == (1.0, 1.0, 450.0, 100.0)


def test_what_exceeds_the_boards_own_limit_was_held_to_it_as_it_was_timed() -> None:
    """Its parts that switch are those that leave the board at its mean power, at the clock of the
    measurement; leaks above the limit leave nothing for them."""
    found = operating(drawn(79.0, 900.0, 300.0), BOARD, 700.0)
    assert (float(found.clock), float(found.slower)) == (1.0, 1.0)
    assert float(found.power) == pytest.approx(0.97 * 700.0)
    assert float(found.beside) == pytest.approx(300.0 / 1200.0 * (0.97 * 700.0 - 79.0))
    hot = operating(drawn(800.0, 900.0, 300.0), BOARD, 700.0)
    assert float(hot.beside) == 0.0


@pytest.mark.parametrize("limit", [300.0, 400.0, 550.0])
def test_work_under_a_limit_draws_it_at_the_clock_that_it_leaves(limit: float) -> None:
    """The limit's own mean power, which `power_at` has at the clock found; the work is longer by
    that clock, and memory draws less by as much."""
    for fixed, core, other, share in ((60.0, 450.0, 120.0, 0.9), (90.0, 200.0, 330.0, 0.4)):
        found = operating(drawn(fixed, core, other, share), BOARD, limit)
        assert float(found.power) == pytest.approx(0.97 * limit, rel=1e-12)
        clock = float(found.clock)
        assert LOWEST < clock < 1.0
        own = power_at(clock, fixed, core, other, share, CURVE)
        assert float(own) == pytest.approx(0.97 * limit, rel=2e-6)
        slower = 1.0 - share + share / clock
        assert float(found.slower) == pytest.approx(slower)
        assert float(found.beside) == pytest.approx(other / slower)


def test_clocks_that_are_not_exceeded_are_those_of_a_batch_and_of_each() -> None:
    """A clock of 1 is none; a lower one holds where the limit does not."""
    own = drawn(60.0, 450.0, 120.0, 0.9)
    clocks = np.array([0.4, 0.7, 0.95, 1.0])
    batch = operating(own, BOARD, 500.0, clocks)
    for at, clock in enumerate(clocks):
        one = operating(own, BOARD, 500.0, float(clock))
        for name in ("clock", "slower", "power", "beside"):
            value = float(getattr(one, name))
            assert getattr(batch, name)[at] == pytest.approx(value, rel=4e-6)
    held = float(operating(own, BOARD, 500.0).clock)
    assert batch.clock == pytest.approx(np.minimum(clocks, held))
    assert batch.power == pytest.approx(power_at(batch.clock, 60.0, 450.0, 120.0, 0.9, CURVE))
    assert batch.beside == pytest.approx(120.0 / stretch(batch.clock, 0.9))


def test_at_the_lowest_clock_events_take_the_time_that_a_limit_leaves_them() -> None:
    """What leaks aside, their energy is that of the lowest clock; heat alone leaves none out."""
    own = drawn(60.0, 450.0, 120.0, 0.9)
    least = float(power_at(LOWEST, 60.0, 450.0, 120.0, 0.9, CURVE))
    found = operating(own, BOARD, 80.0)
    assert float(found.clock) == LOWEST
    assert float(found.power) == pytest.approx(0.97 * 80.0)
    longer = (least - 60.0) / (0.97 * 80.0 - 60.0)
    assert float(found.slower) == pytest.approx(float(stretch(LOWEST, 0.9)) * longer)
    assert float(found.beside) == pytest.approx(120.0 / float(found.slower))
    hot = operating(own, BOARD, 80.0, stated=700.0)
    assert float(hot.power) == pytest.approx(least)
    assert least > 80.0


def test_five_steps_settle_within_a_hundred_thousandth() -> None:
    """Every limit on every curve, knees among them: what is said beside `TRIES`."""
    grid = np.meshgrid(
        np.linspace(0.0, 1.0, 9), np.linspace(0.3, 1.5, 7), np.linspace(0.55, 0.95, 5),
        np.linspace(0.45, 0.99, 12), [0.0, 60.0, 300.0], indexing="ij",
    )  # fmt: skip
    core, slope, floor, share, other = (one.ravel() for one in grid)
    curve = VoltageCurve(slope, floor)
    limit = share * (80.0 + 500.0 + other)
    clock = settled(limit, 80.0, 500.0, other, core, curve)
    power = power_at(clock, 80.0, 500.0, other, core, curve)
    free = clock > LOWEST
    assert free.mean() > 0.9
    assert power[free] == pytest.approx(limit[free], rel=1e-5)
    assert np.all(power[~free] >= limit[~free])


WET = Chassis("liquid", 30.0, 1, 0.05)


def test_heat_is_what_the_chip_draws_and_its_memory_a_part_of() -> None:
    """T = inlet + R (P - (1 - beside) P_memory), of three phases in their times."""
    phases = [BUSY, replace(BUSY, bytes=4e12, flop=1e13), Activity(1.0, spinning=1.0)]
    share = [np.array([1.0, 3.0]), np.array([2.0, 1.0]), np.array([0.5, 0.5])]
    work = [demand(one, COLD) for one in phases]
    found = settle(work, share, COLD, 700.0, WET)
    time = sum(share)
    mean = sum(part * float(one.whole) for part, one in zip(share, work, strict=True)) / time
    memory = sum(part * float(one.other) for part, one in zip(share, work, strict=True)) / time
    assert found.mean == pytest.approx(mean[None])
    assert found.temperature == pytest.approx(30.0 + 0.04 * (mean - 0.7 * memory)[None])
    assert found.longer == pytest.approx(time[None])
    assert found.temperature.shape == found.gap.shape == (1, 2)
    assert not found.throttled.any()


@pytest.mark.parametrize(("flop", "limit"), [(4e14, 700.0), (2.5e15, 350.0)])
@pytest.mark.parametrize("chassis", [WET, *(Chassis("air", 25.0, rows, 0.05) for rows in (1, 2))])
def test_two_rounds_find_the_temperature_that_many_do(
    chassis: Chassis, flop: float, limit: float
) -> None:
    """A round leaves R dP/dT = 0.05 of what the first guess is off, a dozen kelvin: 0.03 after two.
    Here one position is settled after the other: the front sees the inlet, the rear what the front
    has warmed."""
    board = replace(BOARD, leakage=0.0115)
    own = demand(replace(BUSY, time=1.0, flop=flop), board)
    found = settle([own], [np.full((), 3.0)], board, limit, chassis)
    inlet, resistance = float(chassis.inlet), board.resistance[chassis.cooling]
    for row in range(chassis.rows):
        warm = 60.0
        for _ in range(60):
            state = operating(own, board, limit, temperature=warm)
            warm = inlet + resistance * float(state.power - 0.7 * state.beside)
        assert found.temperature[row] == pytest.approx(warm, abs=0.03)
        inlet += float(state.power) / (1160.0 * chassis.flow)


@pytest.mark.parametrize("dies", [0, 2])
def test_a_hot_chip_is_held_at_its_slowdown_and_no_lower(dies: int) -> None:
    """Its hotter die; what is drawn is then what the cooling carries away."""
    warm = Chassis("air", 58.0, 2, 0.05, coupling=3.0, dies=dies)
    board = replace(BOARD, beside=1.0)
    found = settle([demand(replace(BUSY, time=1.0), board)], [np.ones(())], board, 700.0, warm)
    hottest = found.temperature + 0.5 * found.gap
    assert found.throttled.tolist() == [True, True]
    assert hottest == pytest.approx(np.full(2, 90.0), abs=0.1)
    inlet = 58.0 + np.array([0.0, found.mean[0] / (1160.0 * 0.05)])
    assert found.temperature == pytest.approx(inlet + 0.06 * found.mean, abs=0.05)
    assert found.mean[1] < found.mean[0] < 0.97 * 700.0
    assert (found.gap > 0.0).all() == bool(dies)


def test_the_hotter_die_says_when_a_chip_is_held() -> None:
    package, board = Chassis("air", 40.0, 1, 0.03, dies=2), replace(COLD, beside=1.0)
    work = [demand(replace(BUSY, time=1.0), board)]
    cool = settle(work, [np.ones(())], board, 700.0, package)
    assert float(cool.gap[0]) > 2.0
    below = 90.0 - float(cool.temperature[0] + 0.5 * cool.gap[0])
    for more, held in ((below - 0.5, False), (below + 0.5, True)):
        warm = replace(package, inlet=40.0 + more)
        assert settle(work, [np.ones(())], board, 700.0, warm).throttled.tolist() == [held]


@pytest.mark.parametrize("idle", [0.3, 1.0])
def test_a_hot_chip_that_rests_between_works_as_its_mean_allows(idle: float) -> None:
    """Chips warm up slower than phases follow each other: what they rest they may draw before."""
    warm = replace(WET, inlet=78.0)
    work = [demand(replace(BUSY, time=1.0), BOARD), demand(Activity(1.0), BOARD)]
    found = settle(work, [np.ones(()), np.asarray(idle)], BOARD, 700.0, warm)
    assert found.throttled.all()
    assert found.temperature == pytest.approx(np.full(1, 90.0), abs=0.1)
    assert float(found.states[0].power[0]) > float(found.mean[0])


def test_dies_of_a_package_by_hand() -> None:
    """560 W of two dies in a row: 280 warm the air of the whole, 0.036 m3/s, by 6.7 K; each die has
    twice the resistance of the package, and 2 W/K between them take a part of it back."""
    package = Chassis("air", 25.0, 1, 0.036, coupling=2.0, dies=2)
    alone = 280.0 / (1160.0 * 0.036)
    assert alone == pytest.approx(6.7, abs=0.01)
    gap = float(package_gap(np.array(560.0), 0.069, package))
    assert gap == pytest.approx(alone / (1.0 + 2.0 * 2.0 * 2.0 * 0.069))
    loose = Chassis("air", 25.0, 1, 0.036, dies=2)
    assert float(package_gap(np.array(560.0), 0.069, loose)) == pytest.approx(alone)
    assert package_gap(np.array(560.0), 0.069, Chassis("air", 25.0, 1, 0.036)) == 0.0


def test_passes_at_clocks_are_each_part_at_each_clock() -> None:
    parts = [BUSY, Activity(1.0, bytes=2e12, rows=1e9)]
    clocks = np.array([1.0, 0.6, 0.3])
    found = pace(parts, BOARD, 700.0, 60.0, clocks)
    assert found.longer.shape == found.power.shape == (3, 2)
    for at, clock in enumerate(clocks):
        for part, one in enumerate(parts):
            state = operating(demand(one, BOARD), BOARD, 700.0, clock, 60.0)
            assert found.longer[at, part] == pytest.approx(float(state.slower), rel=4e-6)
            assert found.power[at, part] == pytest.approx(float(state.power), rel=4e-6)


def test_worth_is_time_and_energy_beyond_waiting() -> None:
    """Parts of 2 and 4 s: 2 x 1.5 + 4 = 7 s at the lower clock, 3 (300 - 100) + 4 (250 - 100) J."""
    own = Pace(np.array([[1.0, 1.0], [1.5, 1.0]]), np.array([[500.0, 260.0], [300.0, 250.0]]))
    time, joules = worth(own, np.array([2.0, 4.0]), 100.0)
    assert time.tolist() == [6.0, 7.0]
    assert joules.tolist() == [2 * 400.0 + 4 * 160.0, 3 * 200.0 + 4 * 150.0]


def test_sensible_clocks_are_the_lower_hull() -> None:
    """From the quickest to the one of the least energy; no clock lies below the line between two
    that follow each other, and none that lies on it is kept."""
    lots = np.random.default_rng(4)
    for _ in range(60):
        time, joules = lots.permutation(np.arange(1.0, 9.0)), lots.integers(1, 30, 8).astype(float)
        kept = sensible(time, joules)
        quick, least = np.lexsort((joules, time))[0], joules.min()
        assert kept[0] == quick
        assert joules[kept[-1]] == least
        assert time[kept[-1]] == time[joules == least].min()
        steps = np.diff(joules[kept]) / np.diff(time[kept])
        assert np.all(steps < 0)
        assert np.all(np.diff(steps) > 0)
        between = time <= time[kept[-1]]
        line = np.interp(time[between], time[kept], joules[kept])
        assert np.all(joules[between] >= line - 1e-9)


def test_of_two_that_take_as_long_the_thriftier_is_chosen() -> None:
    assert sensible(np.array([1.0, 1.0, 2.0]), np.array([5.0, 4.0, 3.0])).tolist() == [1, 2]


def test_peaks_are_windows_over_a_phase_and_the_mean_of_the_rest() -> None:
    """1.2 s at 700 W in three pieces, 0.8 at 200: a piece of 0.4 s fills two fifths of a second."""
    phases = [
        Phase("forward", np.array(1.2), np.array(700.0), np.array(3.0)),
        Phase("bubble", np.array(0.8), np.array(200.0), np.array(1.0)),
    ]
    assert float(mean_power(phases)) == 500.0
    assert float(peak_power(phases, 1.0)) == pytest.approx(0.4 * 700.0 + 0.6 * 500.0)
    assert float(peak_power(phases, 0.1)) == 700.0
    whole = [replace(phases[0], pieces=np.array(one)) for one in (1.0, 0.0)]
    assert [float(peak_power([one, phases[1]], 2.4)) for one in whole] == [600.0, 600.0]


def test_sensors_average_over_a_second_or_show_a_tenth() -> None:
    """NVML's documentation of nvmlDeviceGetPowerUsage: over one second from Ampere on but GA100;
    counters of A100 and H100 change every 100 ms (Yang et al. 2023, "Part-time Power Measurements",
    arXiv 2312.02741)."""
    assert (INSTANT, AVERAGED) == (0.1, 1.0)


def test_supplies_and_fabric_of_a_node_by_hand() -> None:
    node = NodeConstants(
        idle=600.0, span=400.0, load=0.5, adapter=30.0, adapters=6.0, switch=25.0, fans=1000.0,
        spread=0.4, efficiency=0.8, fabric=60.0,
    )  # fmt: skip
    inside = 4 * 300.0 + 800.0 + 6 * 30.0 + 4 * 25.0
    full = 4 * 700.0 + 1000.0 + 6 * 30.0 + 4 * 25.0
    found = node_power(300.0, 4, 700.0, node, "air")
    assert float(found.direct) == pytest.approx(inside + 1000.0 * (inside / full) ** 3)
    assert float(found.whole) * 0.8 == pytest.approx(float(found.direct))
    assert float(found.parts["supplies"]) == pytest.approx(0.25 * float(found.direct))
    assert float(found.fabric) == 360.0
    least, most = (node_power(watts, 4, 700.0, node, "air") for watts in (0.0, 900.0))
    assert float(least.parts["fans"]) == pytest.approx(1000.0 * 0.4**3)
    assert float(most.parts["fans"]) == 1000.0
    assert KWH == 1000.0 * 3600.0


def test_what_is_not_asked_of_power_is_as_the_machine_has_it() -> None:
    none = Conditions()
    assert (none.slows, none.stated, none.slack) == (False, "", 0.0)
    assert Tariff().pue == catalog.power_laws()["pue"] >= 1.0


TWO = Chassis("air", 55.0, 2, 0.05)


def test_a_step_waits_for_its_hottest_position_and_spins_meanwhile() -> None:
    """Two positions in a row, the rear one held by heat: the front's energy is its own and that of
    waiting for the rest of each phase; rows side by side wait for nobody."""
    work = {
        "forward.products": replace(BUSY, time=0.8, core=1.0),
        "forward.others": Activity(0.4, bytes=9e11, core=0.2, rows=1e9),
        "backward.products": replace(BUSY, time=1.0, core=0.7),
    }
    pieces = {"forward": np.ones(()), "backward": np.ones(())}
    found = powered(work, pieces, BOARD, TWO, Conditions(limit=500.0))
    state = settle(
        [demand(one, BOARD) for one in work.values()],
        [np.asarray(one.time) for one in work.values()],
        BOARD,
        500.0,
        TWO,
    )
    times = [float(one.time) for one in work.values()]
    slower = np.array([one.slower for one in state.states])  # (parts, rows)
    lasts = np.array(times)[:, None] * slower
    slowest = lasts.max(axis=1)
    assert slowest[0] > lasts[0, 0] > times[0]
    waiting = 110.0 + 85.0
    joules = sum(
        time * one.power + (end - time) * waiting
        for time, end, one in zip(lasts, slowest, state.states, strict=True)
    )
    assert float(found.time) == pytest.approx(slowest.sum())
    assert float(found.energy) == pytest.approx(joules.mean())
    assert float(found.mean) == pytest.approx(joules.mean() / slowest.sum())
    assert float(found.waited) == pytest.approx(1.0 - lasts.min(axis=1).sum() / slowest.sum())
    assert float(found.burst) == pytest.approx(float(found.instant / found.mean))
    assert float(found.burst) >= 1.0
    assert found.longer["forward"] == pytest.approx(slowest[:2].sum() / 1.2)
    assert found.each["forward"] == pytest.approx(lasts[:2].sum(axis=0) / 1.2)
    assert found.each["backward"] == pytest.approx(slower[2])
    clocks = np.array([one.clock for one in state.states])
    assert found.clock == pytest.approx(clocks.min(axis=0))
    apart = powered(work, pieces, BOARD, TWO, Conditions(limit=500.0), together=False)
    assert float(apart.energy) == pytest.approx(
        sum(lasts[k].mean() * np.mean(one.power) for k, one in enumerate(state.states))
    )
    alone = powered(work, pieces, BOARD, replace(TWO, rows=1), Conditions())
    assert float(alone.waited) == 0.0


def test_kernels_that_a_limit_holds_are_a_share_of_their_phase() -> None:
    """Products under a limit beside streaming that stays below it; a clock that is not exceeded
    holds what follows it; of boards that differ the least sure one counts."""
    work = {
        "forward.products": replace(BUSY, time=1.0, flop=9e14, core=1.0),
        "forward.others": Activity(0.5, bytes=1e12, rows=1e3),
    }
    found = powered(work, {"forward": np.ones(())}, BOARD, WET, Conditions(limit=400.0))
    longer = float(found.phases[0].time) - 0.5
    assert longer > 1.0
    assert float(found.held["forward"]) == pytest.approx(longer / (longer + 0.5))
    clocked = powered(work, {"forward": np.ones(())}, BOARD, WET, Conditions(clock=1e9))
    assert float(clocked.phases[0].time) == pytest.approx(1.0 / 0.5 + 0.5)
    unsure = replace(BOARD, sigma=np.array([0.1, 0.3]))
    assert powered(work, {"forward": np.ones(())}, unsure, WET, Conditions()).sigma == 0.3


def test_energies_of_data_types_follow_their_multipliers() -> None:
    """Narrower ones take less, blocks of scales somewhat more, those multiplied alike the same; 16
    bits are the unit. Of fp32 over fp16, multiplication and addition, Horowitz (2014, "Computing's
    energy problem", ISSCC) gives (3.7 + 0.9) / (1.1 + 0.4) pJ = 3.1, and beside the matrix units
    every operand comes from a register for every product: what an H100 and an H200 draw above rest
    in products of either kind, over their rates."""
    order = ("fp4", "fp8", "fp8_block", "bf16", "tf32", "fp32")
    energies = [relative_energy(name) for name in order]
    assert energies == sorted(set(energies))
    assert relative_energy("bf16") == relative_energy("fp16") == 1.0
    assert relative_energy("fp32") > 3.1
    for folder in ("h100-sxm", "h200-sxm"):
        table = pd.read_csv(catalog.data_dir() / "measurements" / folder / "power.csv")
        rest = table.set_index("op").loc["idle", "avg_power_w"]
        own = table[table["op"] == "gemm"].set_index("precision")
        drawn = (own["avg_power_w"] - rest) * own["call_s"] / (own["m"] * own["n"] * own["k"])
        ratio = float(drawn["fp32"] / drawn["bf16"])
        assert relative_energy("fp32") == pytest.approx(ratio, rel=0.2)
    for alike in (("fp8", "mxfp8", "int8", "sq", "w4a8_mxfp4_mxfp8"), ("fp4", "nvfp4", "mxfp4")):
        assert len({relative_energy(name) for name in alike}) == 1


@pytest.mark.parametrize("limit", [700.0, 600.0])
def test_what_waits_for_the_rear_heats_as_little_as_it_draws(limit: float) -> None:
    """In hot air the front waits for the rear, and each is as warm as what it draws in all of the
    step makes it, waiting included."""
    board = replace(BOARD, beside=1.0)
    work = {"forward.products": replace(BUSY, time=1.0, core=1.0)}
    found = powered(work, {"forward": np.ones(())}, board, TWO, Conditions(limit=limit))
    assert float(found.waited) > 0.02
    front, rear = found.temperature
    watts = [(front - 55.0) / 0.06]
    watts.append((rear - 55.0 - watts[0] / (1160.0 * 0.05)) / 0.06)
    assert float(np.mean(watts)) == pytest.approx(float(found.mean), rel=2e-3)
    assert [bool(one) for one in found.throttled] == [False, True]


def test_nothing_idles_below_off_at_any_clock() -> None:
    board = replace(BOARD, off=60.0)
    idle = demand(Activity(1.0), board)
    watts = [float(operating(idle, board, 700.0, clock=one).power) for one in (0.25, 0.5, 0.9)]
    assert watts[0] == 60.0 < watts[1] < watts[2] < board.awake

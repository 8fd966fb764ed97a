"""What is said of kernels, one by one in plain loops; constants within what their sources say."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from predictor import catalog
from predictor.hardware.accelerators import Accelerator
from predictor.timing import Kin, traits
from predictor.timing.calibration import (
    Calibration,
    EfficiencyModel,
    Neighbours,
    RunParameters,
    Throttle,
    empty_kernel,
    shape_keys,
)
from predictor.timing.defaults import DEFAULTS
from predictor.timing.engines import EngineParameters, ServingParameters
from predictor.timing.features import ideal
from predictor.timing.kernels import shape_times
from predictor.timing.roofline import hierarchy, least_time
from predictor.timing.shapes import Shapes, memory_time, power_limit
from predictor.timing.sustained import throttled

L2, L2_RATE, RATE, PEAK, SMS = 3e7, 5e12, 1.5e12, 4e14, 70.0
DEVICE = Accelerator(
    name="device", architecture="none", peak={"bf16": PEAK}, memory=4e10, bandwidth=RATE, l2=L2,
    l2_bandwidth=L2_RATE, sms=SMS, clock=1.5e9,
)  # fmt: skip
"""A device that no power cap binds, of no real one's numbers."""


TILES = ((256, 256), (256, 128), (128, 256), (128, 128), (128, 64), (64, 64), (32, 64), (16, 64))
SPLITS = (1, 2, 4, 8)
"""Output tiles of cuBLAS and CUTLASS, and parts of the depth."""


def shapes(op: str, m: float, n: float, k: float, batch: float = 1.0, **more: object) -> Shapes:
    sizes = (np.array([value], float) for value in (m, n, k, batch))
    flop, moved = 2 * m * n * k * batch, 2 * (m * k + k * n + m * n) * batch
    return Shapes(op, "bf16", ("fwd",), np.zeros(1), *sizes, np.array([flop]), np.array([moved]),
                  **more)  # fmt: skip


def cached(moved: float) -> float:
    """What the cache can hold may come from there."""
    held = min(moved, L2)
    return held / L2_RATE + (moved - held) / RATE


@pytest.mark.parametrize("moved", [1e3, L2, 1.5 * L2, 100 * L2])
def test_the_cache_serves_what_it_can_hold(moved: float) -> None:
    assert float(memory_time(np.array(moved), DEVICE)) == pytest.approx(cached(moved))


def bounded(value: float, low: float, high: float) -> float:
    """Its logarithm, within bounds."""
    return min(max(math.log(value), low), high)


SHAPES = [
    (1, 4096, 4096, 1),
    (200, 5120, 5120, 1),
    (4096, 4096, 64, 1),
    (300, 300, 9000, 1),
    (8192, 1000, 2048, 3),
    (129, 65, 33, 17),
    (16, 64, 24, 1),  # deeper than the least piece of 16, in two parts
    (200, 2000, 2000, 1),  # weights of which some stay in the cache
    (8, 80000, 80000, 1),
    (8192, 64, 4096, 1),
    (300, 500, 700, 2),
]


@pytest.mark.parametrize(("m", "n", "k", "batch"), SHAPES)
@pytest.mark.parametrize("cold", [0.0, 1.0])
def test_a_product_in_every_tiling(m: int, n: int, k: int, batch: int, cold: float) -> None:
    """Tiles and splits one by one. The ceiling has the fewest wasted waves; the library's choice
    counts traffic to the cache, too, and 8 bytes for every partial sum. What benchmarks find in
    the cache and a model does not bounds the kernel beside that, at four fifths of memory's rate
    where all of it stays there.
    """
    weights = 0 if batch > 1 else 2 * k * n
    moved = 2 * (m * k + k * n + m * n) * batch
    # Of benchmarks' five copies of the weights small ones stay in the cache.
    stay = min(max(2 - 5 * weights / L2, 0), 1)
    delivery = cold * weights / RATE * (1 + 0.25 * stay)
    floor = cached(moved - weights) + weights * (stay / L2_RATE + (1 - stay) / RATE)
    limit = float(power_limit(DEVICE))
    found, least = {}, math.inf
    for (rows, columns), parts in product(TILES, SPLITS):
        tiles = math.ceil(m / rows) * math.ceil(n / columns)
        blocks = tiles * batch * parts
        waves = math.ceil(blocks / SMS)
        each = 2 * rows * columns * max(k / parts, 16) / (PEAK * limit / SMS)
        least = min(least, waves * each)
        reads = 2 * batch * k * m * n * (1 / min(rows, m) + 1 / min(columns, n))
        sums = 8 * m * n * batch * parts if parts > 1 else 0
        cost = max(waves * each, floor) + (reads + sums) / L2_RATE
        used = m * n / (tiles * rows * columns)
        found[(rows, columns, parts)] = (cost, waves, blocks / (waves * SMS), used)
    one = ideal(shapes("gemm", m, n, k, batch, cold=cold), DEVICE)
    time, best = max(least, floor), min(cost for cost, *_ in found.values())
    assert one.time[0] == pytest.approx(time)
    assert float(np.asarray(one.least).max()) == pytest.approx(delivery)
    compute = 2 * m * n * k * batch / PEAK
    assert one.compute[0] == pytest.approx(compute)
    assert one.memory[0] == pytest.approx(moved / RATE)
    row = one.features[0]
    assert row[0] == pytest.approx(bounded(compute / floor, -6, 6))
    assert row[1] == pytest.approx(math.log(min(time, 5e-3) / 1e-6))
    assert row[2] == pytest.approx(bounded(best / time, -1, 6), abs=2e-3)
    near = [key for key, (cost, *_) in found.items() if cost < best * 1.002]
    told = [(*found[key][1:], key[0] * key[1], key[2]) for key in near]
    own = (math.exp(row[3]), row[4], row[5], math.exp(row[6]), math.exp(row[7]))
    chosen = [(min(t[0], math.exp(5)), *t[1:]) for t in told]
    assert any(own == pytest.approx(t) for t in chosen)
    logs = [math.log(min(m, 4096)), math.log(min(n, 4096)), bounded(m / n, -6, 6), math.log(k)]
    assert list(row[8:12]) == pytest.approx(logs)
    assert row[12] == pytest.approx(bounded(2 * k * n * batch / L2, -8, 6))
    assert row[13] == pytest.approx(bounded(moved / L2, -8, 6))
    assert list(row[14:16]) == [n % 8 == 0 and k % 8 == 0, m % 8 == 0]
    for at, (rows, columns) in enumerate([(256, 128), (128, 128), (64, 64), (16, 64)]):
        price = min(found[(rows, columns, parts)][0] for parts in SPLITS)
        assert row[16 + at] == pytest.approx(min(math.log(price / time), 4))
    assert row[20] == math.ceil(math.log2(min(max(m, 8), 1024)))
    for at, (rows, columns) in enumerate([(256, 128), (128, 128), (64, 128)]):
        filled = math.ceil(m / rows) * math.ceil(n / columns) * batch / SMS
        whole = math.ceil(filled)
        expected = [filled / whole, min(math.log(whole), 4)]
        assert list(row[21 + 2 * at : 23 + 2 * at]) == pytest.approx(expected)
    assert len(row) == 27


def test_shapes_are_those_of_benchmarks_unless_stated() -> None:
    """No rows of experts elsewhere, and weights where the last run left them."""
    plain, stated = shapes("gemm", 64, 512, 512), shapes("gemm", 64, 512, 512, idle=0.0, cold=0.0)
    assert ideal(plain, DEVICE).time == ideal(stated, DEVICE).time
    assert (plain.idle, plain.cold) == (0.0, 0.0)


@pytest.mark.parametrize("share", [1e-3, 0.125, 1.0, 8.0, 1e3])
def test_how_far_a_streaming_kernel_exceeds_the_cache(share: float) -> None:
    """One half where it moves as much as the cache holds; the second is as far at an eighth."""
    moved = np.array([share * L2])
    one = np.ones(1)
    for op, n in (("elementwise", 300.0), ("norm", 300.0), ("norm", 4.0), ("softmax", 1e6)):
        own = Shapes(
            op=op, dtype="bf16", variants=("add",), variant=np.zeros(1), m=one, n=n * one, k=one,
            batch=one, flop=0 * one, bytes=moved,
        )  # fmt: skip
        found = ideal(own, DEVICE)
        assert found.time[0] == pytest.approx(cached(share * L2))
        assert (found.memory[0], found.compute[0]) == (pytest.approx(share * L2 / RATE), 0)
        # A machine of which only this is known takes no less than the cache needs to pass it on.
        assert least_time(own, DEVICE)[0] == pytest.approx(max(found.time[0], share * L2 / L2_RATE))
        row = found.features[0]
        assert row[:2] == pytest.approx([1 / (1 + share), 1 / (1 + 8 * share)])
        length = math.log(min(max(n, 128), 65536)) if op != "elementwise" else 0
        assert row[2] == pytest.approx(length)


def test_an_accelerator_under_its_power_runs_slower_than_its_peak() -> None:
    """A quarter of the power that the peak draws: the clock falls by 4 to the 0.45."""
    energy = 1e-12
    hungry = replace(DEVICE, energy=energy, power=energy * PEAK / 4)
    assert float(power_limit(hungry)) == pytest.approx(4**-0.45)
    assert float(power_limit(replace(hungry, power=1e6))) == 1.0
    assert float(power_limit(DEVICE)) == 1.0


HOPPER = catalog.technology.relative(catalog.technology.processor("hopper"))


@pytest.mark.parametrize(("m", "n", "k"), [(8192, 8192, 8192), (1, 8192, 8192), (500, 300, 9000)])
@pytest.mark.parametrize(("l2", "batch"), [(5e7, 1), (1e5, 1), (5e7, 7)])
def test_every_level_of_the_hierarchy_in_every_tiling(
    m: int, n: int, k: int, l2: float, batch: int
) -> None:
    """Bytes of each level over its rate; the tiling whose slowest level takes least."""
    machine = replace(HOPPER, l2=l2)
    peak = float(machine.peak["bf16"] * power_limit(machine))
    out, side = 2 * m * n * batch, math.sqrt(float(machine.sms))
    first, second = machine.instruction

    def read(rows: float, columns: float) -> float:
        return 2 * batch * (math.ceil(n / columns) * m * k + math.ceil(m / rows) * k * n)

    best: tuple[float, ...] = (math.inf,)
    for rows, columns in TILES:
        if 4 * rows * columns > machine.registers:
            continue
        if 2 * 32 * 2 * (rows + columns) > machine.shared:
            continue
        blocks = math.ceil(m / rows) * math.ceil(n / columns) * batch
        waves = math.ceil(blocks / float(machine.sms))
        unit = read(min(first, rows), min(second, columns))
        warp = read(min(max(first, 64), rows), min(max(second, 64), columns))
        whole = 2 * batch * (m * k + k * n)
        again = max(read(rows * side, columns * side), whole)
        levels = (
            waves * float(machine.sms) * 2 * rows * columns * k / peak,
            unit / machine.register_bandwidth,
            (warp + out) / machine.shared_bandwidth,
            (read(rows * machine.cluster, columns) + out) / machine.l2_bandwidth,
            ((whole if 2 * k * min(m, n) <= l2 else again) + out) / machine.bandwidth,
        )
        best = min(best, tuple(float(v) for v in levels), key=max)
    found = hierarchy(shapes("gemm", m, n, k, batch), machine)
    assert list(found.times[:, 0]) == pytest.approx(list(best))
    assert found.time[0] == pytest.approx(max(best))


def test_registers_and_shared_memory_each_bound_a_tile() -> None:
    """The largest tile of 32-bit sums that the registers hold; of two pieces 32 deep, of both
    operands, that the shared memory does."""
    large = replace(HOPPER, registers=1e9, shared=1e9)
    for registers in (4096 * 4.0, 128 * 64 * 4.0):
        few = hierarchy(shapes("gemm", 8192, 8192, 8192), replace(large, registers=registers))
        assert 4 * np.prod(few.tile) == registers
    for rows, columns in ((64, 64), (128, 64), (128, 128)):
        room = 2.0 * 32 * 2 * (rows + columns)
        few = hierarchy(shapes("gemm", 8192, 8192, 8192), replace(large, shared=room))
        assert few.tile.sum() == rows + columns


def model(**fields: object) -> EfficiencyModel:
    """Two features of box 0..10, mean 2 and scale 4; a layer of three, rectified, then one."""
    given: dict[str, object] = {
        "kind": "gemm", "dtype": "bf16", "accelerator": "device", "latency": 2e-6, "limit": 50.0,
        "degree": 1, "sigma": 0.1, "points": 5, "offsets": {}, "low": np.zeros(2),
        "high": np.full(2, 10.0), "mean": np.full(2, 2.0), "scale": np.full(2, 4.0),
        "weights": (np.array([[1.0, -2.0, 0.5], [0.3, 1.0, 2.0]]), np.array([[2.0], [1.0], [3.0]])),
        "biases": (np.array([0.1, 0.2, -0.3]), np.array([4.0])), "keys": np.empty(0),
    }  # fmt: skip
    return EfficiencyModel(**{**given, **fields})  # type: ignore[arg-type]


def chained(x: float, y: float, shift: float = 0.0) -> float:
    """The same by hand."""
    a, b = ((min(max(v, 0.0), 10.0) - 2.0) / 4.0 for v in (x, y))
    inner = [a + 0.3 * b + 0.1, -2 * a + b + 0.2, 0.5 * a + 2 * b - 0.3]
    return 4.0 + sum(w * max(v + shift, 0.0) for w, v in zip((2.0, 1.0, 3.0), inner, strict=True))


POINTS = [(0.0, 0.0), (3.0, 7.0), (10.0, 1.0), (-5.0, 20.0)]


@pytest.mark.parametrize(("x", "y"), POINTS)
def test_a_fitted_chain_by_hand(x: float, y: float) -> None:
    at = np.array([[x, y]])
    assert model().inefficiency(at)[0] == pytest.approx(chained(x, y))
    stacked = model(stacks={"own": np.full(3, 0.5)})
    assert stacked.inefficiency(at, "own")[0] == pytest.approx(chained(x, y, 0.5))
    assert stacked.inefficiency(at, "other")[0] == pytest.approx(chained(x, y))
    a, b = model().standard(at)[0]
    bent = model(tilt=np.array([0.7, 0.2, -0.1])).inefficiency(at)[0]
    assert bent == pytest.approx(chained(x, y) + 0.7 + 0.2 * a - 0.1 * b)
    # Few points bend it near them: two of variants a and b, half as alike as their own.
    near = Neighbours(np.array([[0.0, 1.0], [1.0, 0.0]]), np.array([2.0, -1.0]), ("a", "b"),
                      np.array([0.0, 1.0]), 1.7, 0.5)  # fmt: skip
    pulls = [
        pull * math.exp(-((a - p) ** 2 + (b - q) ** 2) / (2 * 1.7**2))
        for pull, p, q in ((2.0, 0.0, 1.0), (-1.0, 1.0, 0.0))
    ]
    for variant, expected in (
        (None, pulls[0] + pulls[1]),
        ("a", pulls[0] + 0.5 * pulls[1]),
        ("b", 0.5 * pulls[0] + pulls[1]),
    ):
        names = None if variant is None else np.array([variant])
        found = model(near=near).inefficiency(at, "", names)[0]
        assert found == pytest.approx(chained(x, y) + expected)
    assert model(limit=1.0).inefficiency(at)[0] == 1.0


def test_expanded_features_are_all_products_of_two() -> None:
    weights = (np.array([[1.0], [2.0], [3.0], [5.0], [7.0]]),)
    squared = model(degree=2, weights=weights, biases=(np.array([20.0]),))
    for x, y in POINTS:
        a, b = model().standard(np.array([[x, y]]))[0]
        expected = 20 + a + 2 * b + 3 * a * a + 5 * a * b + 7 * b * b
        assert squared.inefficiency(np.array([[x, y]]))[0] == pytest.approx(expected)


def test_distance_is_counted_in_standard_deviations_of_the_farthest_feature() -> None:
    found = model().distance(np.array([[5.0, 5.0], [12.0, 5.0], [-2.0, 18.0]]))
    assert found == pytest.approx([0.0, 0.5, 2.0])
    own, wide = model(), model(high=np.array([10.0, 14.1]))
    assert wide.reaches_beyond(own)
    assert not own.reaches_beyond(wide)
    assert not model(high=np.array([10.0, 13.9])).reaches_beyond(own)
    assert model(low=np.array([-4.1, 0.0])).reaches_beyond(own)


def test_kernels_start_faster_from_year_to_year_by_sixty_percent_at_most() -> None:
    """2.5 us on A100 (2020), 1.65 us on B200 (2024), from CUDA graphs."""
    assert float(empty_kernel(2020)) == pytest.approx(2.5e-6)
    assert float(empty_kernel(2024)) == pytest.approx(1.65e-6, rel=0.06)
    assert float(empty_kernel(2022)) == pytest.approx(math.sqrt(2.5e-6 * 1.65e-6), rel=0.03)
    assert float(empty_kernel(1990)) == pytest.approx(2.5e-6 * 1.6)
    assert float(empty_kernel(2050)) == pytest.approx(2.5e-6 / 1.6)
    assert float(empty_kernel(math.nan)) == pytest.approx(2.5e-6)


def test_a_power_cap_by_hand() -> None:
    """Twice the share of the peak that it sustains, to the power gamma; half of that in the
    logarithm of a kernel as long as it takes to fade."""
    rule, peak = Throttle(0.4, 0.5, 2e-3, 1e-12), np.array([1e15])
    for time, part in ((1e-9, 1.0), (2e-3, 0.5), (6e-3, 0.25)):
        flop = 0.8 * peak * time
        found = throttled(rule, np.array([time]), flop, peak, math.nan)[0]
        assert found / time == pytest.approx(2 ** (0.5 * part), rel=1e-5)
        # Twice the power for each FLOP/s: twice the share.
        assert throttled(rule, np.array([time]), flop, peak, 2e-12)[0] == time


def test_constants_stay_within_what_their_sources_say() -> None:
    """Shares of a ceiling. Products of dense layers reach 0.7 to 0.85, batched ones and experts
    less; attention 0.5 to 0.73 forward, backward less and no more than 0.63; streams of up to 0.91;
    a loss makes five passes where the ideal makes one."""
    share = {name: one.efficiency for name, one in DEFAULTS.items()}
    assert 0.7 <= share["gemm"] <= 0.85
    assert 1 / 3 < share["moe_gemm"] < share["bmm"] < share["gemm"]
    assert 0.5 <= share["attention_prefill"] <= 0.73
    assert 0.3 <= share["attention_backward"] < share["attention_prefill"]
    assert 1 / 5 <= share["loss"] <= 2 / 5
    assert share["loss"] < share["optimizer"] < share["*"] <= 0.91
    for name, one in DEFAULTS.items():
        parts = 1 if name in ("gemm", "bmm", "*") else 4
        assert 2.5e-6 <= one.latency <= 2.5e-6 * (1 + parts), name
        # A tenth either way at least, a factor of one and a half at most.
        assert 0.1 < one.sigma <= math.log(1.5), name
        assert one.source


def test_where_nothing_is_fitted_runs_are_as_uncertain_as_each_other() -> None:
    """One number for all; a plan's own part is a part of it. Frameworks and engines take 1 to 3 GB,
    allocators lose some percent, launches take longer than the kernels that they start."""
    run = RunParameters()
    assert run.spread(True) == run.spread(False) == run.memory_sigma
    assert 0 < run.sigma_plan < run.sigma / 2
    assert 0.01 <= run.fragmentation < 0.1
    assert run.contention == 1.0
    assert 1e9 <= run.context <= 3e9
    assert 1e9 <= run.engine <= 3e9
    assert 4e-6 <= run.host_per_kernel <= 10e-6
    own = EngineParameters()
    assert (own.decode, own.prefill, own.communication, own.mixing) == (1, 1, 1, 1)
    assert 8e-6 <= own.launch <= 30e-6, "two or three launches of 4 to 10 us"
    assert own.gap < 1e-6 < own.sequence < own.step < own.request < 10e-3


def test_engines_change_with_the_years() -> None:
    """Up to a month one, then the next, then the last; else the engine of all years, else all
    engines' mean, else the documented defaults."""
    names = ("a until 2023-06", "a until 2024-06", "a", "neutral", "b until 2024-01")
    own = {name: EngineParameters(decode=float(at)) for at, name in enumerate(names)}
    known = ServingParameters(own, {"ttft": 0.1, "ttft.static": 0.2, "all": 0.4})
    for engine, era, expected in (
        ("a", "2023-01", 0), ("a", "2023-06", 0), ("a", "2023-07", 1), ("a", "2025-01", 2),
        ("a", "neutral", 2), ("b", "2023-12", 4), ("b", "2025-01", 3), ("c", "2023-01", 3),
    ):  # fmt: skip
        assert known.of(engine, era).decode == expected
    assert ServingParameters().of("a", "2023-01").decode == EngineParameters().decode
    assert known.spread("ttft", "static") == 0.2
    assert known.spread("ttft", "serving") == 0.1
    assert known.spread("tpot", "serving") == 0.4
    # Engines of one time differ by a third and more.
    assert math.log(1.33) <= ServingParameters().spread("tpot", "serving") <= math.log(1.5)


def test_time_is_latency_and_what_the_ideal_takes_at_an_efficiency() -> None:
    own = shapes("gemm", 4096, 4096, 4096)
    time = shape_times(own, DEVICE, Calibration("none"))[0]
    gemm = DEFAULTS["gemm"]
    expected = gemm.latency + ideal(own, DEVICE).time / gemm.efficiency
    assert time == pytest.approx(expected)
    fitted = Calibration("one", kernels={("gemm", "bf16", "device"): model(
        low=np.zeros(27), high=np.zeros(27), mean=np.zeros(27), scale=np.ones(27),
        weights=(np.zeros((27, 1)),), biases=(np.array([0.3]),),
        offsets={"fwd": 0.2}, lags={"fwd": 1e-6},
    )})  # fmt: skip
    time, sigma, *_ = shape_times(own, DEVICE, fitted)
    assert time == pytest.approx(2e-6 + 1e-6 + ideal(own, DEVICE).time * math.exp(0.3 + 0.2))
    # Far outside of what was measured: as uncertain as five standard deviations make it.
    assert sigma == pytest.approx(math.hypot(0.1, 0.05 * 5.0))


def flat(y: float, high: float, **more: object) -> EfficiencyModel:
    """The same y everywhere, of a box up to `high` in each of a product's features."""
    zero = np.zeros(27)
    return model(
        low=zero - 50, high=zero + high, mean=zero, scale=zero + 1, weights=(np.zeros((27, 1)),),
        biases=(np.array([y]),), **more,
    )  # fmt: skip


def test_beyond_its_measurements_an_accelerator_is_like_its_relatives() -> None:
    """Its own measurements count less by e for every standard deviation outside of them."""
    own, theirs = (
        flat(0.3, 10.0),
        flat(0.4, 30.0, latency=4e-6, accelerator="*none", sigma=0.15, offsets={"fwd": 0.1}),
    )
    known = Calibration("two", kernels={("gemm", "bf16", "device"): own,
                                        ("gemm", "bf16", "*none"): theirs})  # fmt: skip
    product = shapes("gemm", 4096, 4096, 2.0**16)
    found = ideal(product, DEVICE)
    away = float(own.distance(found.features)[0])
    assert 0.5 < away < 3
    trust = math.exp(-away)
    time, sigma, _, pedigree, family = shape_times(product, DEVICE, known)
    y, latency = 0.5 - 0.2 * trust, 4e-6 - 2e-6 * trust
    assert time[0] == pytest.approx(latency + found.time[0] * math.exp(y))
    assert sigma[0] == pytest.approx(math.hypot(0.1, (1 - trust) * 0.2))
    assert (pedigree, family) == ("interpolated", "gemm/bf16/device")
    # Where it was measured itself it is like itself.
    small = shapes("gemm", 512, 512, 512)
    inside = shape_times(small, DEVICE, known)[0]
    assert inside == pytest.approx(2e-6 + ideal(small, DEVICE).time * math.exp(0.3))


def test_a_transfer_of_unknown_spread_is_less_certain_than_fits_and_more_than_constants() -> None:
    kin = Kin(DEVICE.vendor, traits(DEVICE))
    far = replace(flat(0.3, 30.0, accelerator="*other"), kin=kin)
    known = Calibration("far", kernels={("gemm", "bf16", "*other"): far})
    found = known.resolve("gemm", "bf16", DEVICE)
    assert found.pedigree == "transferred"
    assert found.model is not None
    assert found.model.sigma < found.sigma < DEFAULTS["gemm"].sigma


def test_shapes_that_were_measured_are_known_by_their_sizes() -> None:
    """All of them, or it is an interpolation."""
    a, b, c = (shapes("gemm", m, 512, 256) for m in (64, 128, 192))
    sizes = [(s.m, s.n, s.k, s.batch) for s in (a, b)]
    keys = np.sort(np.concatenate([shape_keys(*s) for s in sizes]))
    own = Calibration("own", kernels={("gemm", "bf16", "device"): flat(0.3, 60.0, keys=keys)})
    pedigrees = [shape_times(s, DEVICE, own)[3] for s in (a, b, c)]
    assert pedigrees == ["measured", "measured", "interpolated"]
    columns = zip(*sizes, (c.m, c.n, c.k, c.batch), strict=True)
    both = replace(a, **{name: np.concatenate(v) for name, v in zip("mnk", columns, strict=False)})
    assert shape_keys(both.m, both.n, both.k, np.ones(3)).size == 3


def test_shipped_measurements_are_found_again() -> None:
    """Of DeepSeek's 128 heads, queries of 128 to latents of 512 and those back to values: in the
    tables of H100 for 64 tokens, but not for 63."""
    machine, known = catalog.accelerator("H100-SXM5-80GB"), catalog.load("default")
    for n, k in ((512, 128), (128, 512)):
        for tokens, pedigree in ((64, "measured"), (63, "interpolated")):
            absorbed = replace(shapes("gemm", tokens, n, k, 128), variants=("bmm",))
            assert shape_times(absorbed, machine, known)[3] == pedigree


def test_sustained_work_is_throttled_and_bursts_are_not() -> None:
    rule = Throttle(0.4, 0.5, 1e9, DEVICE.peak["bf16"])
    capped = Calibration("capped", throttles={"none": rule})
    product = shapes("gemm", 8192, 8192, 8192)
    burst, long = (shape_times(product, DEVICE, capped, s)[0][0] for s in (False, True))
    busy = burst - DEFAULTS["gemm"].latency
    share = product.flop[0] / busy / PEAK
    assert 0.4 < share < 1
    assert long - DEFAULTS["gemm"].latency == pytest.approx(busy * (share / 0.4) ** 0.5)


def test_a_revised_architecture_is_capped_as_the_first_over_its_own_watts() -> None:
    rule = Throttle(0.4, 0.5, 1e9, DEVICE.peak["bf16"])
    capped = Calibration("capped", throttles={"arch": rule})
    product = shapes("gemm", 8192, 8192, 8192)
    first = replace(DEVICE, architecture="arch", power=300.0)

    def long(**changes: object) -> float:
        return float(shape_times(product, replace(first, **changes), capped, True)[0][0])

    assert long() == long(architecture="arch-ultra")
    assert long(architecture="arch-ultra", power=600.0) <= long(architecture="arch-ultra")
    burst = float(shape_times(product, first, capped, False)[0][0])
    assert long(architecture="other") == burst < long(architecture="arch-ultra")


def test_a_host_reads_and_writes_every_element_once() -> None:
    """Of kernels that lists count in more ways than one; the others as they are counted."""
    host, one = replace(DEVICE, architecture="cpu-x"), np.ones(1)
    for variant, width, moved in (("rmsnorm", 2, 2 * 2), ("swiglu_bwd", 2, 2 * 2), ("add", 2, 6)):
        size = 3e5
        own = Shapes(
            op="elementwise", dtype="bf16", variants=(variant,), variant=np.zeros(1), m=size * one,
            n=1e3 * one, k=one, batch=one, flop=0 * one, bytes=6 * 1e3 * size * one,
        )  # fmt: skip
        assert width == 2
        assert ideal(own, host).memory[0] == pytest.approx(moved * size * 1e3 / RATE)

"""What one's own benchmarks say of others, pair by pair (Rasmussen and Williams 2006, eq. 2.23)."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from predictor.timing import Calibration, Kin, traits
from predictor.timing.alternatives import SLACK, apart
from predictor.timing.benchmarks import (
    LOUDER,
    MOST_SIZE,
    NOISE,
    QUEUED,
    SIZES,
    Benchmarks,
    Process,
    key_of,
    sizes_of,
)
from predictor.timing.calibration import VENDOR, EfficiencyModel
from predictor.timing.features import ideal
from predictor.timing.kernels import shape_times
from predictor.timing.relatives import blend
from predictor.timing.shapes import Shapes
from predictor.timing.taxes import cached_share, on_chip
from predictor.work import Operator
from tests.predictor.timing.test_laws_decoding import shapes
from tests.predictor.timing.test_laws_timing import DEVICE, L2, L2_RATE, PEAK, RATE, flat

OF = Process(
    common=0.11, metric=0.13, near=0.17, across=0.07,
    lengths={"batch": 1.5, "input_len": 2.5, "output_len": 3.5, "tp": 0.5}, noise=0.05, most=0.3,
)  # fmt: skip
KIN = Kin(DEVICE.vendor, traits(DEVICE))
METRICS = ("tpot", "ttft", "tpot", "e2e")
WHERE = sizes_of(np.array([1, 8, 32, 8]), np.array([128, 4096, 512, 512]), 256.0, 2.0)
LEFT = np.array([0.1, -0.2, 0.15, 0.05])


def covariance(a: np.ndarray, one: str, b: np.ndarray, other: str) -> float:
    away = sum(
        ((x - y) / length) ** 2 for x, y, length in zip(a, b, OF.lengths.values(), strict=True)
    )
    alike = 1.0 if one == other else 0.0
    near = (0.17**2 * alike + 0.07**2) * math.exp(-0.5 * away)
    return 0.11**2 + 0.13**2 * alike + near


@pytest.mark.parametrize("level", [0.0, 0.4])
@pytest.mark.parametrize("metric", ["tpot", "ttft", "throughput"])
def test_a_correction_is_the_process_around_its_level(level: float, metric: str) -> None:
    """First tokens are noisier, and are not of the level of a checkpoint; no correction goes far
    beyond the most that there is."""
    keys = ["a", "a", "a", "a", "b"]
    known = Benchmarks(OF, keys, [*METRICS, "tpot"], np.vstack([WHERE, WHERE[:1]]),
                       np.append(LEFT, 9.0), {"a": level})  # fmt: skip
    inside = np.array([
        [covariance(p, m, q, n) for q, n in zip(WHERE, METRICS, strict=True)]
        for p, m in zip(WHERE, METRICS, strict=True)
    ])  # fmt: skip
    noise = [0.05 * (0.3 / 0.08 if name == "ttft" else 1.0) for name in METRICS]
    inside += np.diag(np.square(noise))
    rest = LEFT - level * np.array([name != "ttft" for name in METRICS])
    asked = sizes_of(np.array([4.0, 1e9]), 1000.0, np.array([1.0, 64.0]), 4.0)
    pull = np.linalg.solve(inside, rest)
    own = 0.0 if metric == "ttft" else level
    expected = [
        own + 0.3 * math.tanh(
            sum(covariance(at, metric, q, n) * v
                for q, n, v in zip(WHERE, METRICS, pull, strict=True)) / 0.3
        )
        for at in asked
    ]  # fmt: skip
    assert known.correction("a", metric, asked) == pytest.approx(expected)
    assert known.correction("c", metric, asked).tolist() == [0.0, 0.0]
    # One by one, each in its own metric, as together.
    both = known.correction("a", np.array([metric, "e2e"]), asked)
    assert both[0] == pytest.approx(expected[0])
    assert both[1] == pytest.approx(known.correction("a", "e2e", asked[1]))


def test_sizes_are_octaves_up_to_the_most() -> None:
    assert SIZES == ("batch", "input_len", "output_len", "tp")
    found = sizes_of(np.array([1.0, np.inf]), 0.5, 1024.0, 8.0)
    assert found.tolist() == [[0.0, 0.0, 10.0, 3.0], [16.0, 0.0, 10.0, 3.0]]
    assert MOST_SIZE == 2**16
    assert key_of("vllm", "m", "H100", "fp8", "linear") == "vllm m H100 fp8 linear"


def test_first_tokens_are_as_much_noisier_as_queues_are() -> None:
    assert {"ttft": QUEUED / NOISE} == LOUDER
    assert 0.05 <= NOISE <= 0.1, "half of what engines of one time differ by, or less"
    assert math.log(1.2) <= QUEUED <= math.log(1.5)


def slow(kind: str, y: float, features: int) -> EfficiencyModel:
    """Kernels that take e to the y times their ideal wherever they are."""
    zero = np.zeros(features)
    return EfficiencyModel(
        kind=kind, dtype="bf16", accelerator="*other", latency=3e-6, limit=50.0, degree=1,
        sigma=0.1, points=5, offsets={}, low=zero - 99, high=zero + 99, mean=zero, scale=zero + 1,
        weights=(np.zeros((features, 1)),), biases=(np.array([y]),), keys=np.empty(0), kin=KIN,
    )  # fmt: skip


def test_experts_take_no_longer_than_one_after_the_other() -> None:
    """As products of dense layers, half as long again, where nothing like them was timed there."""
    one = shapes("moe_gemm", "bf16", 40.0, 2048.0, 4096.0, 16.0)
    count = ideal(one, DEVICE).features.shape[1]
    known = Calibration("far", kernels={
        ("moe_gemm", "bf16", "*other"): slow("moe_gemm", 5.0, count),
    })  # fmt: skip
    dense = sum(_time(part, known) for part in apart(one))
    found = shape_times(one, DEVICE, known)[0]
    assert float(found[0]) == pytest.approx(SLACK * 16.0 * dense)
    quick = Calibration("near", kernels={
        ("moe_gemm", "bf16", "*other"): slow("moe_gemm", 0.3, count),
    })  # fmt: skip
    usual = ideal(one, DEVICE).time[0] * math.exp(0.3) + 3e-6
    assert float(shape_times(one, DEVICE, quick)[0][0]) == pytest.approx(usual)


def _time(part: Shapes, known: Calibration) -> float:
    return float(shape_times(part, DEVICE, known)[0][0])


def test_pools_of_few_points_have_less_to_say() -> None:
    """Forty points for each of 27 features are enough; below, a pool weighs a third."""
    kin = Kin(DEVICE.vendor, traits(DEVICE))
    many, few = (
        replace(flat(0.3, 30.0, accelerator=name), kin=kin, points=points)
        for name, points in (("*a", 40 * 27), ("*b", 40 * 27 - 1))
    )
    assert (many.sparse, few.sparse) == (False, True)
    known = Calibration("two", kernels={("gemm", "bf16", "*b"): few, ("gemm", "bf16", "*a"): many})
    (first, own), (second, less) = known._pooled("gemm", "bf16", "", traits(DEVICE))
    assert (first.accelerator, second.accelerator) == ("*a", "*b")
    assert 0.25 <= less / own <= 0.4
    assert own == pytest.approx(1.0), "as like itself as can be"


def test_a_vendors_pool_weighs_between_its_architectures() -> None:
    """Means by what each counts; the pool of all says no less than the least of them and no more
    than the most."""
    models = [
        (flat(0.0, 1.0, accelerator=name, latency=latency), weight)
        for name, latency, weight in (
            ("*a", 2e-6, 2.0), ("*b", 4e-6, 1.0), (f"{VENDOR}one", 6e-6, 3.0)
        )
    ]  # fmt: skip
    for pool, told in ((5.0, 2.0), (0.5, 1.0), (1.5, 1.5)):
        every = [np.array([1.0]), np.array([2.0]), np.array([pool])]
        y, latency = blend(models, every, DEVICE)
        assert y == pytest.approx([(2 * 1.0 + 1 * 2.0 + 3 * told) / 6])
        each = [float(np.asarray(model.latency_on(DEVICE))) for model, _ in models]
        assert float(latency) == pytest.approx((2 * each[0] + each[1] + 3 * each[2]) / 6)
    alone, _ = blend(models[:2], [np.array([1.0]), np.array([2.0])], DEVICE)
    assert alone == pytest.approx([4 / 3])


def test_what_a_stream_reads_stays_near_where_it_fits() -> None:
    """Half of its traffic, up to the cache; at the cache's rate instead of the memory's."""

    def stream(op: str, moved: float) -> Operator:
        return Operator(name="x", op=op, variant="fwd", phase="forward", module="layer",
                        dtype="bf16", m=1.0, n=1.0, bytes=moved)  # fmt: skip

    many = (stream("norm", 2 * L2), stream("norm", 2.1 * L2), stream("gemm", L2))
    assert cached_share(DEVICE) == pytest.approx(1 - RATE / L2_RATE)
    assert on_chip(many, DEVICE).tolist() == pytest.approx([RATE / L2_RATE, 1.0, 1.0])
    slow = replace(DEVICE, l2_bandwidth=RATE / 2)
    assert cached_share(slow) == 0.0


def test_whatever_stands_for_a_product_it_takes_its_own_start_and_its_ideal() -> None:
    """A narrow product that nobody timed there, of kernels that are slow to start and slow; the
    same in 16 bits was timed, starts quickly and replaces it, but for its start and its ideal."""
    eight = replace(DEVICE, peak={"bf16": PEAK, "fp8": 2 * PEAK})
    kernels = {
        ("gemm", "fp8", "*other"): replace(slow("gemm", 3.0, 27), dtype="fp8", latency=5e-5),
        ("gemm", "bf16", "device"): flat(0.3, 99.0),
    }
    known = Calibration("both", kernels=kernels)
    for size in (256.0, 4096.0):
        one = shapes("gemm", "fp8", size, size, size)
        found = ideal(one, eight)
        time = float(shape_times(one, eight, known)[0][0])
        assert time >= (5e-5 + float(found.time[0])) * (1 - 1e-9)
        assert time <= 5e-5 + float(found.time[0]) * math.exp(3.0)


def test_no_kernel_of_few_is_better_than_the_best_of_them_where_arithmetic_binds() -> None:
    """Where it does not, nothing but the peak binds; one of many points has no such bound."""
    quick, few = slow("gemm", 0.1, 2), replace(slow("gemm", 0.1, 2), least=0.4)
    at = np.array([[0.0, 3.0], [0.01, 3.0], [0.7, 0.0]])
    assert few.inefficiency(at) == pytest.approx([0.1, 0.4, 0.4])
    assert quick.inefficiency(at) == pytest.approx([0.1] * 3)
    perfect = replace(quick, biases=(np.array([-0.3]),))
    assert perfect.inefficiency(at).tolist() == [0.0] * 3, "none beats its ideal"
    assert replace(perfect, least=0.2).inefficiency(at) == pytest.approx([0.0, 0.2, 0.2])


@pytest.mark.parametrize("rows", [1.0, 7.0, 15.0, 100.0])
def test_products_of_odd_rows_take_no_longer_than_with_rows_of_zeros(rows: float) -> None:
    """Kernels that take e^2 times as long where rows are no multiple of eight."""
    odd = shapes("gemm", "bf16", rows, 4096.0, 4096.0, 1.0)
    even = shapes("gemm", "bf16", 8.0 * math.ceil(rows / 8.0), 4096.0, 4096.0, 1.0)
    count = ideal(odd, DEVICE).features.shape[1]
    aligned = np.zeros((count, 1))
    aligned[15] = -2.0
    own = replace(slow("gemm", 2.5, count), weights=(aligned,))
    known = Calibration("far", kernels={("gemm", "bf16", "*other"): own})
    assert _time(odd, known) == pytest.approx(_time(even, known))
    alone = ideal(odd, DEVICE).time[0] * math.exp(2.5) + own.latency
    assert _time(odd, known) < 0.5 * alone

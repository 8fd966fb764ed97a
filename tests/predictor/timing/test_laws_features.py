"""Features of kernels: what a device twice as large, or four times as quick, changes of them, and
data types that stand for each other."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictor import catalog
from predictor.catalog.artifacts import load
from predictor.hardware import Accelerator
from predictor.precision import ELEMENT_BYTES, WEIGHT_BYTES
from predictor.timing.alternatives import apart, in_type, together
from predictor.timing.attention import attention
from predictor.timing.features import ideal
from predictor.timing.fitted import _fitted
from predictor.timing.products import TYPICAL_TILES, _cheapest
from predictor.timing.shapes import LONG_KERNEL, Shapes, weights_time
from tests.predictor.quicker import QUICKER, quicker_accelerator

H100 = catalog.accelerator("H100-SXM5-80GB")


def shapes(op: str, m: float, n: float, k: float, batch: float, **more: float) -> Shapes:
    """One kernel, in 16 bits, whose operands are moved once."""
    flop, moved = 2.0 * m * n * k * batch, 2.0 * (m * k + k * n + m * n) * batch
    if op.startswith("attention"):
        flop, moved = 4.0 * m * n * k * batch, 4.0 * (m + n) * k * batch
    if op == "attention_backward":
        flop = 2.5 * flop
    if op == "moe_gemm":
        flop, moved = 3.0 * flop, 2.0 * (3.0 * n * k + 2.0 * m * k + 3.0 * m * n) * batch
    if op == "elementwise":
        flop, moved = 0.0, 4.0 * m * n * batch
    numbers = {"m": m, "n": n, "k": k, "batch": batch, "flop": flop, "bytes": moved}
    columns = {name: np.array([float(value)]) for name, value in numbers.items()}
    others = {name: np.array([value]) for name, value in more.items()}
    return Shapes(op, "bf16", ("x",), variant=np.zeros(1), **columns, **others)


KERNELS = [
    shapes("gemm", 512.0, 1024.0, 2048.0, 3.0),
    shapes("gemm", 100.0, 4096.0, 512.0, 7.0),
    shapes("gemm", 4096.0, 8192.0, 4096.0, 2.0),
    shapes("attention_prefill", 700.0, 2048.0, 128.0, 32.0, sharing=4.0),
    shapes("attention_prefill", 3000.0, 20000.0, 96.0, 200.0, sharing=8.0, windowed=1.0, idle=0.3),
    shapes("attention_backward", 4096.0, 4096.0, 64.0, 64.0),
    shapes("attention_decode", 8.0, 3000.0, 128.0, 100.0, cold=1.0),
    shapes("attention_decode", 1.0, 70000.0, 128.0, 9.0, idle=0.5, windowed=1.0),
    shapes("elementwise", 4096.0, 8192.0, 1.0, 1.0),
    shapes("moe_gemm", 40.0, 2048.0, 4096.0, 16.0, idle=2.0),
    shapes("moe_gemm", 3.0, 768.0, 2048.0, 100.0),
]


def larger(one: Accelerator) -> Accelerator:
    """Two of it as one: twice the processors, memory, caches and power."""
    names = ("sms", "bandwidth", "l2", "l2_bandwidth", "power", "memory")
    doubled = {name: 2 * getattr(one, name) for name in names}
    return replace(one, peak={name: 2.0 * rate for name, rate in one.peak.items()}, **doubled)


def twice(one: Shapes) -> Shapes:
    return replace(one, batch=2.0 * one.batch, flop=2.0 * one.flop, bytes=2.0 * one.bytes)


@pytest.mark.parametrize("one", KERNELS, ids=lambda one: one.op)
def test_twice_the_work_on_twice_the_device_is_the_same_kernel(one: Shapes) -> None:
    """Time and features: shares, waves and ratios. Of experts, how many there are shows."""
    usual, both = ideal(one, H100), ideal(twice(one), larger(H100))
    for name in ("time", "compute", "memory"):
        assert getattr(both, name) == pytest.approx(getattr(usual, name))
    assert np.asarray(both.fetch) == pytest.approx(np.asarray(usual.fetch))
    more = np.zeros(usual.features.shape)
    if one.op == "moe_gemm":
        more[0, [6, 9]] = math.log(2.0)
    np.testing.assert_allclose(both.features, usual.features + more, atol=1e-9)


@pytest.mark.parametrize("one", KERNELS, ids=lambda one: one.op)
def test_a_device_four_times_as_quick_runs_the_same_kernel_in_a_quarter(one: Shapes) -> None:
    """Features have no unit of time but the one that is how long the kernel takes."""
    usual, quick = ideal(one, H100), ideal(one, quicker_accelerator(H100))
    for name in ("time", "compute", "memory", "fetch"):
        assert QUICKER * np.asarray(getattr(quick, name)) == pytest.approx(
            np.asarray(getattr(usual, name))
        )
    less = np.zeros(usual.features.shape)
    if one.op != "elementwise":
        longest = (4.0 if one.op == "moe_gemm" else 1.0) * LONG_KERNEL
        at = [min(float(own.time[0]), longest) for own in (usual, quick)]
        less[0, 1] = math.log(at[0] / at[1])
    np.testing.assert_allclose(quick.features, usual.features - less, atol=1e-9)


def test_features_of_attention_by_hand() -> None:
    """1,000 queries of 8 heads that see 3,000 keys each, on 132 processors: 8 rows of 128 a head,
    64 blocks, not half a wave; packed by four 32 rows of two heads, 63 or 64 blocks."""
    one = shapes("attention_prefill", 1000.0, 3000.0, 128.0, 8.0, sharing=4.0)
    found = attention(one, H100)
    sms = float(H100.sms)
    shown = found.features[0]
    time = float(found.time[0])
    compute = float(one.flop[0]) / H100.peak["bf16"]
    floor = float(one.bytes[0]) / H100.l2_bandwidth  # it fits into the cache
    scores = 1000.0 * 3000.0 * 8.0
    walk = 128.0 * 3000.0 * 4.0 * 128.0 / (H100.peak["bf16"] / sms)
    expected = {
        0: math.log(compute / floor), 1: math.log(time / 1e-6),
        2: math.log(scores / (16.0 * sms * H100.clock) / time), 3: 0.0, 4: 64.0 / sms,
        5: 0.0, 6: 64.0 / sms, 7: math.log(3000.0), 8: 0.0, 9: 0.0, 10: 1.0, 11: 0.0, 12: 0.0,
        13: math.log1p(64.0 / 3000.0), 14: math.log(8.0 / sms), 15: math.log(2.0 / sms),
        16: math.log(4.0), 18: math.log(walk / time), 20: math.log(walk / time),
    }  # fmt: skip
    for at, value in expected.items():
        assert shown[at] == pytest.approx(value, abs=1e-9), at


def test_features_of_experts_by_hand() -> None:
    """16 gated experts of 40 tokens each, two more rows elsewhere for each of theirs: blocks of 128
    columns of both first matrices, of 16 rows, of which they fill two and a half as they fall, of
    64 and of 128, of which they fill none and take one."""
    found = ideal(shapes("moe_gemm", 40.0, 2048.0, 4096.0, 16.0, idle=2.0), H100).features[0]
    weights, inputs = 3.0 * 2.0 * 2048.0 * 4096.0 * 16.0, 2.0 * 40.0 * 16.0 * 4096.0
    sms, sizes = float(H100.sms), (40.0, 2048.0, 4096.0, 16.0)
    expected = [math.log(weights / H100.l2), *map(math.log, sizes), math.log(inputs / H100.l2)]
    expected += [math.log1p(2.0), math.log(3.0 * 40.0 * 16.0), 3.0]
    expected += [math.log(16.0 * down * 32.0 / sms) for down in (2.5, 1.0, 1.0)]
    np.testing.assert_allclose(found[2:], expected)
    # Columns that fill no block have one all the same: of 2 x 200, four.
    ragged = ideal(shapes("moe_gemm", 40.0, 200.0, 4096.0, 16.0), H100).features[0]
    np.testing.assert_allclose(np.exp(ragged[11:]), np.array([10.0, 4.0, 4.0]) * 16 / sms)


def test_features_of_a_products_sizes_by_hand() -> None:
    """Three of 512 x 2,048 by 2,048 x 1,000: 1,000 is a multiple of 8, 2,047 none."""
    one = shapes("gemm", 512.0, 1000.0, 2048.0, 3.0)
    found = ideal(one, H100).features[0]
    weights = 2.0 * 2048.0 * 1000.0 * 3.0
    expected = [512.0, 1000.0, 512.0 / 1000.0, 2048.0, weights / H100.l2, one.bytes[0] / H100.l2]
    np.testing.assert_allclose(found[8:14], np.log(expected))
    assert found[14:16].tolist() == [1.0, 1.0]
    odd = ideal(shapes("gemm", 511.0, 1000.0, 2047.0, 3.0), H100).features[0]
    assert odd[14:16].tolist() == [0.0, 0.0]
    for rows, power in ((1.0, 3.0), (9.0, 4.0), (512.0, 9.0), (513.0, 10.0), (9000.0, 10.0)):
        own = ideal(shapes("gemm", rows, 1000.0, 2048.0, 1.0), H100).features[0]
        assert own[16 + len(TYPICAL_TILES)] == power  # the power of two that holds the rows


@pytest.mark.parametrize("op", ["gemm", "moe_gemm"])
@pytest.mark.parametrize("dtype", ["fp8", "int8", "nvfp4", "int4_wo"])
def test_operands_of_another_type_differ_by_their_elements(op: str, dtype: str) -> None:
    """A gated expert has three matrices, of which two read the input and one what they make."""
    one = shapes(op, 6.0, 30.0, 50.0, 4.0)
    other = in_type(one, dtype)
    weights, inputs = (30.0 * 50.0, 6.0 * 50.0) if op == "gemm" else (3.0 * 1500.0, 6.0 * 110.0)
    more = 4.0 * ((WEIGHT_BYTES[dtype] - 2.0) * weights + (ELEMENT_BYTES[dtype] - 2.0) * inputs)
    assert float(other.bytes[0] - one.bytes[0]) == pytest.approx(more)
    assert float(in_type(other, "bf16").bytes[0]) == pytest.approx(float(one.bytes[0]))


@pytest.mark.parametrize("matrices", [2.0, 3.0])
def test_an_experts_products_are_those_of_a_dense_layer(matrices: float) -> None:
    """Ups side by side, then one down; all experts together are the kernel's arithmetic."""
    one = shapes("moe_gemm", 6.0, 30.0, 50.0, 4.0)
    one = replace(one, flop=one.flop * matrices / 3.0)
    up, down = apart(one)
    ups = matrices - 1.0
    assert (float(up.n[0]), float(up.k[0])) == (ups * 30.0, 50.0)
    assert (float(down.n[0]), float(down.k[0])) == (50.0, 30.0)
    assert 4.0 * float(up.flop[0] + down.flop[0]) == pytest.approx(float(one.flop[0]))
    for part, columns, depth in ((up, ups * 30.0, 50.0), (down, 50.0, 30.0)):
        assert float(part.batch[0]) == 1.0
        moved = 2.0 * (columns * depth + 6.0 * (columns + depth))
        assert float(part.bytes[0]) == pytest.approx(moved)


def test_heads_beyond_those_timed_cost_their_arithmetic_in_whole_instructions() -> None:
    """40 query heads of a key head: 16 as timed, 24 of the 48 rows that instructions hold more."""
    one = shapes("attention_decode", 40.0, 1000.0, 128.0, 4.0)
    few, beside = together(one, H100)
    assert float(few.m[0]) == 16.0
    assert float(few.flop[0]) == pytest.approx(float(one.flop[0]) * 0.4)
    rest = float(one.flop[0]) * 0.6 * 48.0 / 40.0
    assert float(beside[0]) == pytest.approx(rest / (0.5 * H100.peak["bf16"]))
    assert float(together(shapes("attention_decode", 8.0, 1000.0, 128.0, 4.0), H100)[1][0]) == 0.0


@pytest.mark.parametrize("one", KERNELS, ids=lambda one: one.op)
def test_where_nothing_was_timed_nothing_is_far_from_it(one: Shapes) -> None:
    found = _fitted(one, H100, load("none"), "neutral")
    assert float(np.max(np.asarray(found.away))) == 0.0
    assert not found.measured.any()


@given(
    st.integers(1, 40),
    st.lists(st.lists(st.floats(0.1, 10.0), min_size=40, max_size=40), min_size=1, max_size=6),
)
def test_few_tilings_are_chosen_as_many_are(many: int, rows: list[list[float]]) -> None:
    """Number by number or as arrays: the same row for every product, whatever stands beside it."""
    prices = np.array(rows)
    cost, chosen = _cheapest(prices)
    few, own = _cheapest(prices[:, :many])
    assert few.tolist() == cost[:many].tolist()
    assert own.tolist() == chosen[:many].tolist()


@pytest.mark.parametrize("cold", [0.0, 0.25, 1.0])
def test_a_host_reads_weights_from_its_cache_or_from_memory(cold: float) -> None:
    """Where some of them stay: those from the one, the others from the other, each byte once."""
    host = replace(catalog.accelerator("H100-SXM5-80GB"), architecture="cpu-x")
    near, far = 1.0 / float(host.l2_bandwidth), 1.0 / float(host.bandwidth)
    assert near < far
    sizes = float(host.l2) * np.linspace(0.01, 3.0, 60)
    each = weights_time(sizes, host, cold).floor / sizes
    assert each[0] == pytest.approx((1.0 - cold) * near + cold * far)
    assert each[-1] == pytest.approx(far)
    assert np.all(np.diff(each) >= -1e-9 * far), "the more there are the fewer stay"
    assert np.all(each <= far * (1.0 + 1e-9))

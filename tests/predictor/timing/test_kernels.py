from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibration.tables.kernel_table import check_kernels, shapes_of
from predictor import catalog
from predictor.catalog.artifacts import load
from predictor.plans.training import TrainingPlan
from predictor.timing.alternatives import padded
from predictor.timing.calibration import Calibration, Throttle
from predictor.timing.features import ideal
from predictor.timing.kernels import operator_times, shape_times
from predictor.timing.shapes import Shapes, kind_of, memory_time
from predictor.timing.sustained import throttled
from predictor.work.primitives import gemm, streaming
from predictor.work.training import step_operators
from tests.predictor.dense import dense

PLAIN, KERNELS = Calibration("none"), load("kernels-only")
A100, H100 = catalog.accelerator("A100-SXM4-80GB"), catalog.accelerator("H100-SXM5-80GB")


def products(m: object, n: object, k: object, batch: float = 1.0) -> Shapes:
    m, n, k = (np.atleast_1d(np.asarray(x, float)) for x in (m, n, k))
    m, n, k = np.broadcast_arrays(m, n, k)
    count = np.full(m.shape, batch)
    moved = 2.0 * (m * k + k * n + m * n) * batch
    return Shapes(
        op="gemm", dtype="bf16", variants=("fwd",), variant=np.zeros(m.shape), m=m, n=n, k=k,
        batch=count, flop=2.0 * m * n * k * batch, bytes=moved,
    )  # fmt: skip


dims = st.integers(1, 16384)


@given(dims, dims, dims)
def test_nothing_beats_the_roofline(m: int, n: int, k: int) -> None:
    shapes = products(m, n, k)
    for accelerator in (A100, H100):
        for calibration in (PLAIN, KERNELS):
            time, *_ = shape_times(shapes, accelerator, calibration)
            assert time[0] >= shapes.flop[0] / accelerator.peak["bf16"]
            assert time[0] >= ideal(shapes, accelerator).time[0]
            assert time[0] >= memory_time(shapes.bytes, accelerator)[0]


@given(dims, dims, dims, st.sampled_from(["m", "n", "k"]))
def test_the_ideal_never_falls_when_a_product_grows(m: int, n: int, k: int, axis: str) -> None:
    size = {"m": m, "n": n, "k": k}
    larger = {**size, axis: 2 * size[axis]}
    found = ideal(products(*(np.array([size[a], larger[a]]) for a in "mnk")), A100).time
    assert found[1] >= found[0]


def test_waves_are_quantised() -> None:
    """One tile more than a full wave costs a whole wave, in the ideal time of large tiles."""
    k, tile = 4096, 256
    per_wave = 108 * tile
    found = ideal(products([per_wave, per_wave + 1], tile, k), A100).time
    peak = 2.0 * per_wave * tile * k / A100.peak["bf16"]
    assert found[0] == pytest.approx(peak, rel=1e-6)
    assert found[1] > found[0]


def test_skinny_products_are_memory_bound_and_square_ones_compute_bound() -> None:
    *_, bound, _, _ = shape_times(products([1, 8192], 8192, 8192), A100, KERNELS)
    time, sigma, bound, pedigree, family = shape_times(
        products([1, 8192], 8192, 8192), A100, KERNELS
    )
    assert list(bound) == [1, 0]
    assert pedigree == "interpolated"
    assert family == "gemm/bf16/A100-SXM4-80GB"
    assert (sigma > 0).all()
    assert (time > 0).all()


def test_tiny_products_are_launch_bound() -> None:
    _, _, bound, *_ = shape_times(products(16, 16, 16), A100, KERNELS)
    assert bound[0] == 2


def test_llama2_13b_projections_turn_memory_bound_on_h100() -> None:
    """200 tokens: above A100's ridge (153 FLOP/B), below H100's (295)."""
    model = catalog.model("llama2-13b")
    shapes = products(200, model.hidden, model.hidden)
    assert shape_times(shapes, A100, PLAIN)[2][0] == 0
    assert shape_times(shapes, H100, PLAIN)[2][0] == 1


def test_pedigree_says_where_an_efficiency_comes_from() -> None:
    shapes = products(4096, 4096, 4096)
    known = {
        "A100-SXM4-80GB": "interpolated",
        "H20-96GB": "transferred",  # another Hopper
        "MI300X-192GB": "transferred",  # pooled over everything
    }
    for name, pedigree in known.items():
        assert shape_times(shapes, catalog.accelerator(name), KERNELS)[3] == pedigree
    assert shape_times(shapes, A100, PLAIN)[3] == "roofline"


def test_other_hardware_is_less_certain() -> None:
    shapes = products(4096, 4096, 4096)
    own = shape_times(shapes, H100, KERNELS)[1][0]
    other = shape_times(shapes, catalog.accelerator("H20-96GB"), KERNELS)[1][0]
    assert other > own


def test_unusual_shapes_are_less_certain() -> None:
    usual = shape_times(products(4096, 4096, 4096), H100, KERNELS)[1][0]
    unusual = shape_times(products(2**22, 4096, 4096), H100, KERNELS)[1][0]
    assert unusual > usual


@given(st.floats(1e-6, 1e-2), st.floats(0.05, 1.0))
def test_throttling_slows_what_is_near_the_peak(time: float, share: float) -> None:
    peak = 1e15
    flop = np.array([share * peak * time])
    rule = Throttle(0.5, 0.4, 2e-3, 1e-12)
    found = throttled(rule, np.array([time]), flop, np.array([peak]), np.nan)[0]
    capped = throttled(rule, np.array([time]), flop, np.array([peak]), 0.7e-12)[0]
    assert capped >= found
    assert found >= time
    if share <= 0.5:
        assert found == time


def test_no_throttling_without_one() -> None:
    time = np.array([1.0])
    assert throttled(None, time, np.array([1e15]), np.array([1e15]), 1.0) is time


def test_missing_rates_are_refused() -> None:
    with pytest.raises(Exception, match=r"A100-SXM4-80GB has no fp8 rate; choose .*bf16"):
        A100.peak_for("fp8")


def test_operators_evaluate_alike_alone_and_together() -> None:
    model = dense(layers=2, heads=16, ffn_hidden=4096, vocab=8192)
    operators = step_operators(model, TrainingPlan(1.0, 1.0, 1.0, 2.0, 2.0, 1024.0))
    together = operator_times(operators, A100, KERNELS, ())
    for index, operator in enumerate(operators):
        alone = operator_times([operator], A100, KERNELS, ())
        assert alone.time[0] == pytest.approx(float(together.time[index]), rel=1e-9)


def test_streaming_takes_bytes_over_bandwidth() -> None:
    big = streaming(
        name="x", op="elementwise", variant="add", phase="forward", module="layer", dtype="bf16",
        rows=1e6, columns=1e4, bytes_per_element=6.0,
    )  # fmt: skip
    found = operator_times([big], A100, PLAIN, ()).time[0]
    assert found == pytest.approx(6e10 / 2039e9 / 0.8, rel=0.02)


def test_bytes_of_a_product() -> None:
    found = gemm(
        name="x", layout="wgrad", phase="backward", module="layer", dtype="bf16", m=10.0, n=20.0,
        k=30.0, out_bytes=4.0,
    )  # fmt: skip
    assert found.bytes == 2 * (300 + 600) + 4 * 200
    assert found.flop == 2 * 10 * 20 * 30


@pytest.mark.parametrize(
    "name", ["A100-SXM4-80GB", "H100-SXM5-80GB", "B200-SXM-180GB", "GB200-186GB"]
)
@pytest.mark.parametrize("op", ["attention_prefill", "attention_backward"])
def test_longer_sequences_than_were_measured_keep_their_speed(name: str, op: str) -> None:
    """Measured up to 16,384 tokens; beyond, attention is more of the same."""
    accelerator, s = catalog.accelerator(name), np.array([16384.0, 65536.0, 262144.0, 1048576.0])
    one, heads, d = np.ones(4), np.full(4, 32.0), np.full(4, 128.0)
    flop = 2.0 * heads * s * s * d
    shapes = Shapes(
        op=op, dtype="bf16", variants=("flash",), variant=0 * one, m=s, n=s, k=d, batch=heads,
        flop=flop, bytes=8.0 * s * heads * d,
    )  # fmt: skip
    rate = flop / shape_times(shapes, accelerator, KERNELS)[0]
    steps = np.abs(np.log(rate[1:] / rate[:-1]))
    assert steps[0] < 0.25  # 28 waves, then 110: the last one counts less
    assert (steps[1:] < 0.02).all()
    assert (rate[1:] > 0.9 * rate[0]).all()


@pytest.mark.parametrize("name", ["A100-SXM4-80GB", "H100-SXM5-80GB", "H200-SXM-141GB",
                                  "B200-SXM-180GB", "MI300X-192GB"])  # fmt: skip
@pytest.mark.parametrize(
    ("op", "variant", "columns"),
    [("elementwise", "add", 8192), ("elementwise", "swiglu", 8192), ("norm", "rmsnorm", 8192),
     ("softmax", "fwd", 4096), ("loss", "fwd", 131072), ("optimizer", "adam", 1)],
)  # fmt: skip
def test_large_memory_bound_kernels_run_at_a_steady_bandwidth(
    name: str, op: str, variant: str, columns: int
) -> None:
    accelerator = catalog.accelerator(name)
    sizes = 2.0 ** np.arange(30, 36)
    kernel = streaming(
        name="x", op=op, variant=variant, phase="forward", module="layer", dtype="bf16",
        rows=sizes / columns, columns=columns, bytes_per_element=6.0,
    )  # fmt: skip
    found = operator_times([kernel], accelerator, KERNELS, sizes.shape).time[0]
    rate = 6.0 * sizes / found / accelerator.bandwidth
    assert (np.diff(found) > 0).all()
    assert rate.max() < 1.01  # what lies in the cache comes faster
    assert rate.min() > (0.1 if op == "loss" else 0.35)
    assert np.abs(np.log(rate[1:] / rate[:-1])).max() < (0.25 if op == "optimizer" else 0.15)


def test_unmeasured_layouts_take_the_step_seen_elsewhere() -> None:
    """No table of H100 has weight gradients; where all layouts were timed they are slower."""
    shape = {"m": 8192.0, "n": 8192.0, "k": 8192.0}
    time = {}
    for layout in ("fwd", "dgrad", "wgrad"):
        kernel = gemm("x", layout, "forward", "layer", "bf16", *shape.values())
        time[layout] = float(operator_times([kernel], H100, KERNELS, ()).time[0])
    assert 1.01 < time["wgrad"] / time["fwd"] < 1.12
    assert 0.95 < time["dgrad"] / time["fwd"] < 1.05


def test_weights_come_from_memory_and_activations_from_the_cache() -> None:
    """One row against a large matrix moves the matrix at the bandwidth of the memory; as much
    data in activations would come from the cache."""
    wide, tall = products(1, 4096, 8192), products(8192, 4096, 1)
    bandwidth = A100.bandwidth
    assert ideal(wide, A100).time[0] == pytest.approx(2.0 * 4096 * 8192 / bandwidth, rel=1e-3)
    batch = products(1, 4096, 8192, batch=1.0001)  # one product of a batch: no weights
    assert ideal(batch, A100).time[0] < 0.7 * ideal(wide, A100).time[0]
    assert ideal(tall, A100).time[0] < 2.0 * 8192 * 4096 / bandwidth


@given(st.integers(1, 20), st.floats(0.2, 4.0))
def test_more_power_never_slows_a_product(size: int, more: float) -> None:
    from dataclasses import replace

    shapes = products(512 * size, 4096, 4096)
    for device in (A100, H100, catalog.accelerator("L40S-48GB")):
        low, high = (
            ideal(shapes, replace(device, power=device.power * p)).time[0] for p in (1.0, more)
        )
        assert (high <= low) if more >= 1 else (high >= low)


def test_the_power_cap_binds_narrow_units_and_old_processes() -> None:
    from predictor.timing.shapes import power_limit

    share = {
        name: float(power_limit(catalog.accelerator(name)))
        for name in ("A100-SXM4-80GB", "H100-SXM5-80GB", "L40S-48GB")
    }
    assert share["A100-SXM4-80GB"] == 1.0
    assert 0.75 < share["L40S-48GB"] < share["H100-SXM5-80GB"] < 0.95
    # One chip under 350, 300 and 250 W; T4 has 70 W for half of V100's rate.
    volta = ("V100-SXM3-32GB", "V100-SXM2-32GB", "V100-PCIe-32GB", "T4-16GB")
    held = [float(power_limit(catalog.accelerator(name), "fp16")) for name in volta]
    assert held == sorted(held, reverse=True)
    assert held[0] < 1.0
    assert held[1] == pytest.approx((300 / (125e12 * 1.94 * 1.6e-12)) ** 0.45, rel=0.01)
    for name in ("V100-SXM2-32GB", "T4-16GB"):
        free, own = (float(power_limit(catalog.accelerator(name), d)) for d in ("fp32", "fp16"))
        assert own < free, "arithmetic in 32 bits is not in the matrix unit"
    assert float(power_limit(catalog.accelerator("TPUv5p"))) == 1.0, "unknown: no limit"


def test_a_cap_binds_arithmetic_in_32_bits_by_what_it_draws_itself() -> None:
    """Beside the matrix units of NVIDIA's accelerators: one chip under two caps runs by their ratio
    to the clock's exponent, cards of 70 W hardly at half of what they state, and what draws less
    than its cap at all of it; other vendors' are not judged by that."""
    from predictor.timing.shapes import power_limit

    names = ("A100-PCIe-40GB", "A100-PCIe-80GB", "A100-SXM4-80GB", "T4-16GB", "L4-24GB")
    small, large, free, old, card = (
        float(power_limit(catalog.accelerator(name), "fp32")) for name in names
    )
    assert small / large == pytest.approx((250 / 300) ** 0.45)
    assert large < free == 1.0
    assert card < 0.5 < old < small
    amd = catalog.accelerator("MI300X-192GB")
    assert float(power_limit(amd, "fp32")) == float(power_limit(amd))


def decode(sequences: float, kv_len: float, heads: float = 32.0, kv_heads: float = 8.0) -> Shapes:
    row = {"accelerator": "H100-SXM5-80GB", "op": "attention_decode", "dtype": "bf16",
           "batch": sequences, "kv_len": kv_len, "heads": heads, "kv_heads": kv_heads,
           "head_dim": 128, "latency_us": 1.0}  # fmt: skip
    return shapes_of(check_kernels(pd.DataFrame([row]), "t"), "attention_decode", "bf16")


def test_decode_reads_the_cache_once() -> None:
    shapes = decode(64, 8192)
    cache = 2 * 2.0 * 64 * 8192 * 8 * 128
    assert shapes.bytes[0] == pytest.approx(cache, rel=0.01)
    assert shapes.flop[0] == 4 * 64 * 32 * 8192 * 128
    time, _, bound, pedigree, _ = shape_times(shapes, H100, KERNELS)
    assert (bound[0], pedigree) == (1, "interpolated")
    assert 0.5 < cache / H100.bandwidth / time[0] < 1.0


def test_long_caches_take_longer_in_proportion() -> None:
    time = [float(shape_times(decode(128, n), H100, KERNELS)[0][0]) for n in (8192, 16384, 32768)]
    assert time[1] / time[0] == pytest.approx(2.0, rel=0.15)
    assert time[2] / time[1] == pytest.approx(2.0, rel=0.15)


def test_a_pool_carries_its_latency_over_the_years() -> None:
    """Newer devices start a kernel sooner."""
    from dataclasses import replace

    model = KERNELS.kernels["gemm", "bf16", "*hopper"]
    old, new = (replace(A100, name="x", year=year) for year in (2018.0, 2026.0))
    assert model.latency_on(old) > model.latency_on(new) > 0.5e-6
    own = KERNELS.kernels["gemm", "bf16", "A100-SXM4-80GB"]
    assert own.latency_on(old) == own.latency


def test_products_of_whole_tiles_never_get_faster_by_growing() -> None:
    """Over a grid of multiples of the largest tile, doubling m, n or k costs time."""
    sizes = 256.0 * 2.0 ** np.arange(0, 7)
    m, n, k = (x.ravel() for x in np.meshgrid(sizes, sizes, sizes, indexing="ij"))
    for name in ("A100-SXM4-80GB", "H100-SXM5-80GB", "H200-SXM-141GB", "B200-SXM-180GB"):
        found = shape_times(products(m, n, k), catalog.accelerator(name), KERNELS)[0]
        grid = found.reshape(7, 7, 7)
        for axis in range(3):
            assert (np.diff(np.log(grid), axis=axis) > -0.03).all()  # as measurements repeat


def test_far_from_what_was_measured_the_doubt_grows_and_stays_finite() -> None:
    near = shape_times(products(4096, 4096, 4096), H100, KERNELS)[1][0]
    far = shape_times(products(2.0**24, 2.0**18, 2.0**20), H100, KERNELS)[1][0]
    assert near < far < near + 0.26


def test_small_caches_are_read_from_memory_between_the_layers_of_a_model() -> None:
    """A benchmark reads the same keys again; a model has come past all its other layers."""
    one = np.ones(1)
    shapes = Shapes(
        op="attention_decode", dtype="bf16", variants=("flash",), variant=0 * one, m=4 * one,
        n=4096 * one, k=128 * one, batch=8 * one, flop=6.7e7 * one, bytes=1.68e7 * one,
    )  # fmt: skip
    l40s = catalog.accelerator("L40S-48GB")
    warm, cold = ideal(shapes, l40s), ideal(replace(shapes, cold=True), l40s)
    assert np.all(warm.time == cold.time)
    assert not np.any(warm.fetch)
    assert warm.time + cold.fetch == pytest.approx(1.68e7 / l40s.bandwidth)
    large = replace(shapes, bytes=2e8 * one, cold=True)  # would not have stayed near anyway
    assert ideal(large, l40s).fetch == 0.0
    times = [shape_times(replace(shapes, cold=c), l40s, KERNELS)[0][0] for c in (False, True)]
    assert times[1] - times[0] == pytest.approx(float(cold.fetch[0]))


@pytest.mark.parametrize("name", ["L40S-48GB", "RTX-PRO-6000-96GB", "L4-24GB", "H100-SXM5-80GB"])
def test_weights_flow_in_from_memory_while_a_product_runs(name: str) -> None:
    """Benchmarks of small products find their weights in a large cache, a model does not: such a
    product takes what memory needs to deliver them, and no more than that and its beginning (some
    0.6 us) beside its own time; no larger one comes sooner for being read from memory anyway."""
    device = catalog.accelerator(name)
    sizes = 128.0 * np.arange(4, 65)
    shapes = products(16.0 + 0 * sizes, sizes, sizes)
    warm, cold = (shape_times(replace(shapes, cold=one), device, KERNELS)[0] for one in (0.0, 1.0))
    delivery = 2.0 * sizes**2 / device.bandwidth
    assert (cold >= np.maximum(warm, delivery)).all()
    assert (cold <= warm + delivery / 0.8 + 0.6e-6 + 1e-9).all()
    assert (np.diff(cold) >= -0.1 * cold[:-1]).all()


def test_unmeasured_shapes_take_the_relatives_efficiency() -> None:
    """GH200 was measured on large products only: small ones follow H100, as memory-bound as there,
    and what was measured stays as it was."""
    gh200 = catalog.accelerator("GH200-96GB")
    assert KERNELS.resolve("gemm", "bf16", gh200).relative is not None
    assert KERNELS.resolve("gemm", "bf16", H100).relative is None
    few = [float(shape_times(products(1, 14336, 4096), a, KERNELS)[0][0]) for a in (H100, gh200)]
    assert few[1] / few[0] == pytest.approx(H100.bandwidth / gh200.bandwidth, rel=0.1)
    alone = replace(KERNELS, kernels={k: m for k, m in KERNELS.kernels.items() if "*" not in k[2]})
    big = [shape_times(products(4096, 6144, 6144), gh200, c)[0][0] for c in (KERNELS, alone)]
    assert big[0] == big[1]
    doubt = [shape_times(products(m, 6144, 6144), gh200, KERNELS)[1][0] for m in (1, 4096)]
    assert doubt[0] > doubt[1]


def test_consumer_cards_add_up_faster_in_sixteen_bits() -> None:
    rates = {
        name: catalog.accelerator(name).peak_for("fp16_acc") / 1e12
        for name in ("RTX-3090-24GB", "RTX-4090-24GB", "A100-SXM4-80GB", "L40S-48GB")
    }
    assert rates == pytest.approx(
        {"RTX-3090-24GB": 142, "RTX-4090-24GB": 330, "A100-SXM4-80GB": 312, "L40S-48GB": 366},
        rel=0.01,
    )


def test_twice_the_exponentials_show_in_attention() -> None:
    one = np.ones(1)
    shapes = Shapes(
        op="attention_prefill", dtype="bf16", variants=("flash",), variant=0 * one, m=8192 * one,
        n=8192 * one, k=128 * one, batch=64 * one, flop=1.1e12 * one, bytes=5e8 * one,
    )  # fmt: skip
    b200 = catalog.accelerator("B200-SXM-180GB")
    twin = replace(b200, architecture="blackwell-ultra")
    step = ideal(shapes, twin).features - ideal(shapes, b200).features
    assert np.count_nonzero(step) == 1
    assert step.sum() == pytest.approx(-np.log(2.0))


def test_experts_take_their_weights_once() -> None:
    """Two tokens on each of 32 experts: bound by 3 n k weights per expert."""
    one, b200 = np.ones(1), catalog.accelerator("B200-SXM-180GB")
    weights = 3 * 2.0 * 2048 * 7168 * 32
    shapes = Shapes(
        op="moe_gemm", dtype="bf16", variants=("fwd",), variant=0 * one, m=2 * one, n=2048 * one,
        k=7168 * one, batch=32 * one, flop=6.0 * 64 * 2048 * 7168 * one,
        bytes=(weights + 2e6) * one,
    )  # fmt: skip
    found = shape_times(shapes, b200, KERNELS)
    assert weights / b200.bandwidth < found[0][0] < 2.5 * weights / b200.bandwidth
    assert found[3] == "interpolated"
    bigger = replace(shapes, m=64 * one, flop=32 * shapes.flop)
    assert found[0][0] < shape_times(bigger, b200, KERNELS)[0][0]


@pytest.mark.parametrize(
    "name", ["A100-SXM4-80GB", "H100-SXM5-80GB", "B200-SXM-180GB", "GB300-288GB", "MI300X-192GB"]
)
@pytest.mark.parametrize("size", [2048.0, 8192.0])
def test_attention_takes_about_three_times_as_long_backward(name: str, size: float) -> None:
    """2.5 times the arithmetic at a little less speed (Dao 2023), measured there or not."""
    one, accelerator = np.ones(1), catalog.accelerator(name)
    flop = 2.0 * 64 * size * size * 128
    time = {}
    for op, work in (("attention_prefill", 1.0), ("attention_backward", 2.5)):
        shapes = Shapes(
            op=op, dtype="bf16", variants=("flash",), variant=0 * one, m=size * one, n=size * one,
            k=128 * one, batch=64 * one, flop=work * flop * one, bytes=work * 65536.0 * size * one,
        )  # fmt: skip
        time[op] = float(shape_times(shapes, accelerator, KERNELS)[0][0])
    assert 2.2 < time["attention_backward"] / time["attention_prefill"] < 4.5


def test_slow_matrix_units_slow_no_product_that_waits_for_memory() -> None:
    """H20 has H200's processors, fewer, with a seventh of the arithmetic, behind 4.0 of 4.8 TB/s:
    a token's products take 1.2 times as long by bandwidth, in any data type; at most 1.5."""
    for dtype in ("bf16", "fp8"):
        shapes = replace(products(1, 7168, 8192), dtype=dtype)
        slow, quick = (
            float(shape_times(shapes, catalog.accelerator(name), KERNELS)[0][0])
            for name in ("H20-96GB", "H200-SXM-141GB")
        )
        assert 1.0 < slow / quick < 1.5


def test_efficiencies_are_kept_under_what_tells_kernels_apart() -> None:
    assert kind_of("gemm", "fwd") == kind_of("gemm", "wgrad") == "gemm"
    assert kind_of("gemm", "bmm") == kind_of("gemm", "bmm_bwd") == "bmm"
    assert kind_of("elementwise", "add") == "elementwise.add"
    assert kind_of("norm", "rmsnorm") == "norm.fwd"
    assert kind_of("norm", "rmsnorm_bwd") == "norm.bwd"
    assert kind_of("attention_prefill", "flash") == "attention_prefill"
    assert kind_of("attention_prefill", "flash2") == "attention_prefill.flash2"
    assert kind_of("attention_decode", "kv8") == "attention_decode.kv8"
    assert kind_of("optimizer", "adam") == "optimizer"


def test_units_without_ordinary_products_pad_heads() -> None:
    """What states no rate in 32 bits multiplies heads of 100 in 16, all else as it was."""
    model = replace(catalog.model("gpt3-1.3b"), heads=20, kv_heads=20, head_dim=100)
    plan = TrainingPlan(1.0, 1.0, 1.0, 1.0, 1.0, 2048.0, attention="unfused", recompute="none")
    listed = step_operators(model, plan)
    wide = [one for one in listed if one.core and one.op == "gemm"]
    assert {one.dtype for one in wide} == {"fp32"}
    for name, dtype in (("TPUv5p", "bf16"), ("A100-SXM4-80GB", "fp32")):
        found = padded(listed, catalog.accelerator(name))
        for before, after in zip(listed, found, strict=True):
            apart = before.core and before.op == "gemm"
            assert after.dtype == (dtype if apart else before.dtype)
            assert (after.name, after.flop) == (before.name, before.flop)

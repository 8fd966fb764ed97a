"""What stands for an accelerator, a library or a kernel that nobody measured."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictor import catalog
from predictor.catalog.artifacts import load
from predictor.hardware import Accelerator
from predictor.timing import (
    ABROAD,
    Calibration,
    EfficiencyModel,
    Kin,
    Shapes,
    blend,
    shape_times,
    traits,
)
from predictor.timing.data_types import HELD_UP, of_wide
from predictor.timing.features import ideal
from predictor.timing.likeness import likeness, per_clock
from predictor.timing.shapes import Ideal

A100, H100, A40 = (
    catalog.accelerator(name) for name in ("A100-SXM4-80GB", "H100-SXM5-80GB", "A40-48GB")
)
M = np.array([64.0, 1000.0, 8192.0])
ONE = np.ones(3)
PRODUCTS = Shapes(
    op="gemm", dtype="bf16", variants=("fwd",), variant=0 * M, m=M, n=4096 * ONE, k=4096 * ONE,
    batch=ONE, flop=2 * M * 4096.0**2, bytes=2.0 * (2 * M * 4096 + 4096.0**2),
)  # fmt: skip
FEATURES = ideal(PRODUCTS, A100).features.shape[1]


def model(place: str, y: float, kin: Accelerator | None = None, **stacks: float) -> EfficiencyModel:
    """One that answers y for every shape, and y plus its own in each library."""
    wide = np.full(FEATURES, 1e6)
    return EfficiencyModel(
        kind="gemm", dtype="bf16", accelerator=place, latency=2e-6, limit=10.0, degree=1,
        sigma=0.05, points=100, offsets={"fwd": 0.0}, low=-wide, high=wide, mean=0 * wide,
        scale=wide / wide, weights=(np.zeros((FEATURES, 1)),), biases=(np.array([y]),),
        keys=np.empty(0), stacks={name: np.array([step]) for name, step in stacks.items()},
        kin=Kin(kin.vendor, traits(kin)) if kin else None,
    )  # fmt: skip


def known(*models: EfficiencyModel) -> Calibration:
    return Calibration("x", kernels={(m.kind, m.dtype, m.accelerator): m for m in models})


def inefficiency(accelerator: Accelerator, calibration: Calibration, library: str = "") -> float:
    """y behind the time of the largest product."""
    time = shape_times(PRODUCTS, accelerator, calibration, library=library)[0]
    return float(np.log((time[-1] - 2e-6) / ideal(PRODUCTS, accelerator).time[-1]))


def test_an_accelerator_is_most_like_itself() -> None:
    names = [
        n for n in catalog.rows("accelerators") if n.startswith(("A", "H1", "B2", "L4", "RTX"))
    ]
    every = [traits(catalog.accelerator(name)) for name in names]
    for one in every:
        assert likeness(one, one) == 1.0
        assert all(0.0 < likeness(one, other) <= 1.0 for other in every)
        assert likeness(one, (float("nan"),) * 3) < 0.1  # a stranger is not a twin


@given(st.lists(st.tuples(st.floats(0, 5), st.floats(1e-6, 1)), min_size=1, max_size=9))
def test_relatives_together_are_within_what_each_says(found: list[tuple[float, float]]) -> None:
    """No shape is better or worse than with the best or worst of them; one that says what the
    others say changes nothing."""
    relatives = [(model(f"*{at}", y, H100), weight) for at, (y, weight) in enumerate(found)]
    every = [np.full(3, y) for y, _ in found]
    y, latency = blend(relatives, every, A40)
    assert min(v for v, _ in found) - 1e-9 <= y[0] <= max(v for v, _ in found) + 1e-9
    again, _ = blend([*relatives, (relatives[0][0], 0.5)], [*every, y], A40)
    assert again == pytest.approx(y, abs=1e-9)
    assert latency == pytest.approx(2e-6)


def test_the_most_alike_architecture_decides() -> None:
    near, far = replace(A40, name="near"), replace(H100, name="far")
    calibration = known(model("*mine", 0.3, near), model("*other", 1.5, far))
    assert inefficiency(A40, calibration) == pytest.approx(0.3, abs=0.02)
    assert inefficiency(replace(H100, architecture="none"), calibration) == pytest.approx(
        1.5, abs=0.02
    )


def test_all_of_a_vendor_together_weigh_between_its_architectures() -> None:
    """As much as all of these, never beyond what they say; nothing of an accelerator whose
    architecture was measured, or of other vendors."""
    pools = [
        replace(model("*mine", 0.3, A40), points=100_000),
        replace(model("*hopper", 0.5, H100), points=100_000),
    ]
    bare = known(*pools)
    stranger, amd = replace(A40, architecture="none"), replace(A40, vendor="AMD", architecture="x")
    alone = inefficiency(stranger, bare)
    for said, counts in ((0.4, 0.4), (0.9, 0.5), (0.1, 0.3)):
        calibration = known(*pools, model("**NVIDIA", said, H100))
        assert inefficiency(stranger, calibration) == pytest.approx((alone + counts) / 2)
        assert inefficiency(H100, calibration) == inefficiency(H100, bare)
        assert inefficiency(amd, calibration) == inefficiency(amd, bare)


def test_a_type_hardly_measured_gives_way_to_a_related_one() -> None:
    """A handful of int8 products do not speak for all architectures where thousands of fp8 do."""
    few = replace(model("*a", 2.0, A100), dtype="int8", points=60)
    many = replace(model("*b", 0.4, H100), dtype="fp8", points=100_000)
    unmeasured = replace(A40, architecture="none")
    both = known(few, many).resolve("gemm", "int8", unmeasured)
    assert [one.dtype for one, _ in both.relatives] == ["fp8"]
    alone = known(few).resolve("gemm", "int8", unmeasured)
    assert [one.dtype for one, _ in alone.relatives] == ["int8"]
    enough = known(replace(few, points=100_000), many).resolve("gemm", "int8", unmeasured)
    assert [one.dtype for one, _ in enough.relatives] == ["int8"]


def test_vendors_stand_for_their_own() -> None:
    """However alike another vendor's may be on paper."""
    stranger = replace(A40, vendor="AMD")
    calibration = known(model("*a", 0.2, stranger), model("*b", 1.0, H100))
    assert inefficiency(A40, calibration) == pytest.approx(1.0)
    assert inefficiency(stranger, calibration) == pytest.approx(0.2)


def test_a_pool_for_other_architectures_stands_in_place_of_its_own() -> None:
    """A pool of few points that leans on others' is asked from abroad, not both of them."""
    own = replace(model("*few", 1.4, H100), points=100_000)
    abroad = model(f"*few{ABROAD}", 0.6, H100)
    stranger = replace(A40, architecture="none")
    assert inefficiency(stranger, known(own, abroad)) == pytest.approx(0.6)
    assert inefficiency(replace(H100, architecture="few"), known(own, abroad)) == pytest.approx(1.4)


def test_a_vendors_sixteen_bits_come_before_others_narrow_types() -> None:
    """Of its own in the narrow type, or a related one, if there are any; else of its products in 16
    bits, whose memory traffic shrinks and whose arithmetic gains less than the peak does."""
    stranger = replace(H100, vendor="AMD", architecture="none")
    abroad = replace(model("*a", 2.0, H100), dtype="fp8")
    wide = model("*b", 0.5, replace(H100, vendor="AMD"))
    found = known(abroad, wide).resolve("gemm", "fp8", stranger)
    assert [one.dtype for one, _ in found.relatives] == ["bf16"]
    assert found.quicker == pytest.approx(stranger.peak["fp8"] / stranger.peak["bf16"])
    half = known(wide).resolve("gemm", "bf16", stranger)
    assert found.sigma > half.sigma
    own = replace(model("*c", 1.0, replace(H100, vendor="AMD")), dtype="fp8")
    found = known(abroad, wide, own).resolve("gemm", "int8", stranger)
    assert [one.dtype for one, _ in found.relatives] == ["fp8"]
    assert found.quicker == 0.0
    # Weights that are narrower than what they multiply have kernels of their own.
    assert known(wide).resolve("gemm", "int4_wo", stranger).quicker == 0.0


def test_arithmetic_gains_less_than_the_peak_and_traffic_all() -> None:
    flop, moved = np.array([4.0, 1.0, 0.1]), np.array([1.0, 1.0, 1.0])
    y = of_wide(0.2 * ONE, Ideal(np.maximum(flop, moved), flop, moved, np.empty(0)), 2.0)
    assert y[0] - 0.2 == pytest.approx(HELD_UP * np.log(2.0))
    assert y[1] - 0.2 == pytest.approx(HELD_UP * np.log(2.0))
    assert y[2] == pytest.approx(0.2)


def test_a_library_is_what_it_is_on_a_relative() -> None:
    """In the library that both know, plus the step from it to the other there."""
    own = model(A100.name, 0.4, sglang=0.1)
    pool = model("*ampere", 0.9, A100, sglang=0.3, trtllm=0.55)
    calibration = known(own, pool)
    assert inefficiency(A100, calibration, "sglang") == pytest.approx(0.5)
    assert inefficiency(A100, calibration, "trtllm") == pytest.approx(0.5 + 0.25)
    assert inefficiency(A100, calibration, "nobody") == pytest.approx(0.4)
    revised = replace(A100, architecture="ampere-ultra")
    assert inefficiency(revised, calibration, "trtllm") == pytest.approx(0.75)


def test_a_joined_cast_saves_its_launch_and_traffic_and_no_more() -> None:
    own = replace(model(H100.name, 0.3, trtllm=0.0), casts={"trtllm": 5e-6, "": 1e-6})
    calibration = known(own)
    apart = shape_times(PRODUCTS, H100, calibration, library="trtllm")[0]
    joined = shape_times(replace(PRODUCTS, joined=1.0), H100, calibration, library="trtllm")[0]
    moved = 4.0 * M * 4096.0  # bf16 is no narrow type: two bytes read, two written
    saved = np.minimum(5e-6 + moved / (0.8 * H100.bandwidth), apart)
    assert (joined >= ideal(PRODUCTS, H100).time).all()
    assert (apart - joined <= saved + 1e-12).all()
    assert apart[-1] - joined[-1] == pytest.approx(saved[-1], rel=1e-6)
    neutral = shape_times(replace(PRODUCTS, joined=1.0), H100, calibration)[0]
    assert (neutral >= joined).all()


def test_a_cast_for_both_directions_moves_more_and_is_launched_once() -> None:
    own = replace(model(H100.name, 0.3, trtllm=0.0), casts={"trtllm": 5e-6})
    calibration = known(own)
    once = shape_times(PRODUCTS, H100, calibration, library="trtllm")[0]
    twice = shape_times(replace(PRODUCTS, joined=-0.25), H100, calibration, library="trtllm")[0]
    moved = 4.0 * M * 4096.0
    assert twice - once == pytest.approx(0.25 * moved / (0.8 * H100.bandwidth))


def test_narrow_matrix_units_hide_what_is_beside_them() -> None:
    """H20 is H100's die with a quarter of the arithmetic per clock: attention over a long prompt
    takes near the time of its products there, far from it on H100; whatever stands beside it."""
    kernels = load("kernels-only")
    narrow, wide = (catalog.accelerator(name) for name in ("H20-96GB", "H100-SXM5-80GB"))
    s, heads, d = np.array([16384.0]), np.array([32.0]), np.array([128.0])
    one = 0.0 * s
    flop, moved = 2.0 * heads * s**2 * d, 8.0 * s * heads * d
    shapes = Shapes(
        op="attention_prefill", dtype="bf16", variants=("flash",), variant=one, m=s, n=s, k=d,
        batch=heads, flop=flop, bytes=moved,
    )  # fmt: skip
    shares = [
        float(flop[0] / device.peak["bf16"] / shape_times(shapes, device, kernels)[0][0])
        for device in (narrow, wide)
    ]
    assert 0.85 < shares[0] <= 1.0
    assert shares[1] < 0.8
    assert float(per_clock(narrow)) < 0.3 * float(per_clock(wide))


def test_products_that_wait_for_memory_do_so_however_wide_the_matrix_unit_is() -> None:
    """A relative whose products are the less efficient the more arithmetic they have: what half as
    much arithmetic per clock takes longer is what arithmetic binds, nothing else."""
    slope = np.zeros((FEATURES, 1))
    slope[0] = 0.2
    relative = replace(
        model("*other", 1.0, H100), weights=(slope,), low=np.full(FEATURES, -9.0),
        high=np.full(FEATURES, 9.0), mean=np.zeros(FEATURES), scale=np.ones(FEATURES),
    )  # fmt: skip
    wide = replace(H100, architecture="none", name="")
    narrow = replace(wide, peak={name: rate / 2.0 for name, rate in wide.peak.items()})
    quick, slow = (shape_times(PRODUCTS, one, known(relative))[0] for one in (wide, narrow))
    bound = ideal(PRODUCTS, narrow)
    waits = bound.compute < bound.memory
    assert waits.any()
    assert not waits.all()
    assert slow[waits] == pytest.approx(quick[waits])
    assert (slow[~waits] > quick[~waits]).all()


def test_older_units_of_one_design_keep_busier_than_those_that_were_measured() -> None:
    """TPUs were measured in their sixth generation, whose chip multiplies 4.7 times as much as that
    of the cheap fifth with the same vector units: large products there waste no more than here,
    and take no less than their roofline."""
    kernels = load("kernels-only")
    m, k = np.array([16384.0]), np.array([8192.0])
    shapes = Shapes(
        op="gemm", dtype="bf16", variants=("fwd",), variant=0 * m, m=m, n=k, k=k, batch=0 * m + 1,
        flop=2 * m * k * k, bytes=2.0 * (2 * m * k + k * k),
    )  # fmt: skip
    shares = {
        name: float(
            shapes.flop[0] / device.peak["bf16"] / shape_times(shapes, device, kernels)[0][0]
        )
        for name in ("TPUv4", "TPUv5e", "TPUv5p", "TPUv6e")
        for device in (catalog.accelerator(name),)
    }
    assert all(shares["TPUv6e"] < shares[name] <= 1.0 for name in ("TPUv4", "TPUv5e", "TPUv5p"))


def test_who_is_hardly_known_is_nobodys_nearest() -> None:
    """Of two relatives as far apart in what is known of both, the one of which more is known is
    the nearer one as long as the rest is less far than accelerators mostly are."""
    own = (5.7, 0.2, 9.0)
    known, hardly = (5.5, 0.7, 8.6), (np.nan, 0.7, np.nan)
    assert likeness(own, known) > likeness(own, hardly)
    assert likeness(own, own) == 1.0
    far = (3.0, 0.7, 6.0)
    assert likeness(own, hardly) > likeness(own, far)


@pytest.mark.parametrize(
    ("name", "place"),
    [("MI300X-192GB", "*cdna3+"), ("MI325X-256GB", "*cdna3+"), ("MI350X-288GB", "*cdna4")],
)
def test_few_stand_for_those_that_are_balanced_as_they_are(name: str, place: str) -> None:
    """Of CDNA3 one with a fourth of the others' processors before the same memory was timed in fp8,
    of CDNA4 one with as many: what the first says leans on what is known of many others."""
    found = load("kernels-only").resolve("gemm", "fp8", catalog.accelerator(name))
    assert found.model is not None
    assert (found.model.accelerator, found.pedigree) == (place, "transferred")


@pytest.mark.parametrize("factor", [0.51, 0.49, 1.9, 2.1])
def test_another_balance_is_one_twice_as_far(factor: float) -> None:
    kernels = load("kernels-only")
    one = catalog.accelerator("MI308X-192GB")
    peak = {dtype: factor * value for dtype, value in one.peak.items()}
    other = replace(one, name=f"made-{factor}", peak=peak)
    found = kernels.resolve("gemm", "fp8", other).model
    assert found is not None
    assert found.accelerator.endswith("+") == (not 0.5 < factor < 2.0)

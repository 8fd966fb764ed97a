"""Kernels that take turns under a power cap."""

from __future__ import annotations

import numpy as np
import pytest

from predictor import catalog
from predictor.timing import Calibration, Throttle, peak_of
from predictor.timing.sustained import beside_each_other
from predictor.work import Operator
from predictor.work.primitives import gemm, streaming

H100 = catalog.accelerator("H100-SXM5-80GB")
RULE = Throttle(0.5, 0.4, 1e9, float(H100.power / H100.peak["bf16"]))
CAPPED = Calibration("capped", throttles={"hopper": RULE})


def product(share: float, module: str = "layer", count: float = 1.0) -> tuple[Operator, float]:
    """A product, and the time in which it reaches that share of the peak [s]."""
    one = gemm(
        name="x", layout="fwd", phase="forward", module=module, dtype="bf16",
        m=8192.0, n=8192.0, k=8192.0, count=count,
    )  # fmt: skip
    return one, float(one.flop / peak_of("bf16", H100)) / share


def waiting(module: str = "layer", count: float = 1.0) -> Operator:
    """A sum of 8,192 by 8,192."""
    return streaming(
        name="y", op="elementwise", variant="add", phase="forward", module=module, dtype="bf16",
        rows=8192.0, columns=8192.0, bytes_per_element=6.0, count=count,
    )  # fmt: skip


def lasting(*pairs: tuple[Operator, float]) -> np.ndarray:
    times = np.array([time for _, time in pairs])
    return beside_each_other([one for one, _ in pairs], times, H100, CAPPED) / times


def test_a_product_over_and_over_is_throttled_by_its_own_share() -> None:
    """(0.8 / 0.5) ** 0.4 at 0.8 of the peak; nothing at the half from which the cap binds."""
    assert lasting(product(0.8))[0] == pytest.approx(1.6**0.4)
    assert lasting(product(0.5))[0] == 1.0
    assert lasting(product(0.8), product(0.8))[1] == pytest.approx(1.6**0.4)


def test_products_that_take_turns_with_what_waits_are_throttled_by_the_mean() -> None:
    """As long again of sums leaves 0.8 at a mean of 0.4: nothing binds. A third as long, 0.6."""
    hot, time = product(0.8)
    assert lasting((hot, time), (waiting(), time)) == pytest.approx([1.0, 1.0])
    assert lasting((hot, time), (waiting(), time / 3)) == pytest.approx([1.2**0.4, 1.0])
    # Three times a product and once a sum of its length are the same.
    three, _ = product(0.8, count=3.0)
    assert lasting((three, time), (waiting(), time)) == pytest.approx([1.2**0.4, 1.0])


def test_what_lasts_for_milliseconds_is_not_cooled_by_another_module() -> None:
    hot, time = product(0.8)
    assert lasting((hot, time), (waiting("head"), 9 * time))[0] == pytest.approx(1.6**0.4)


def test_a_product_that_hardly_draws_is_slowed_by_less_than_those_around_it() -> None:
    """Its clock falls with theirs, but half of its time does not wait for the clock."""
    slow = lasting(product(0.9, count=9.0), product(0.4))
    assert 1.0 < slow[1] < slow[0]


def test_nothing_is_slowed_where_no_cap_was_timed() -> None:
    hot, time = product(0.9)
    times = np.array([time])
    assert beside_each_other([hot], times, H100, Calibration("none")) is times

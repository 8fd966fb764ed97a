"""What lies between known values: straight lines, and passes that prompts make longer."""

from __future__ import annotations

import numpy as np
import pytest

from predictor.plans.serving import ServingPlan
from predictor.serving.latency import _first_ones, _own_passes
from predictor.serving.meeting import with_prompts
from predictor.serving.pass_times import NOTHING, DeviceTime, decode_time, prompt_time
from predictor.serving.reading import ReadTable
from tests.predictor.serving.bare import BARE, work

SIZES, LENGTHS = [1.0, 2.0, 5.0, 8.0], [100.0, 150.0, 400.0, 1000.0]
PLAN = ServingPlan(batch=8.0, input_len=500.0, output_len=10.0)


def surface(prompts: float, length: float) -> float:
    """Straight in either alone, and not in both together."""
    return 3.0 + 0.5 * prompts + 0.01 * length + 0.002 * prompts * length


@pytest.mark.parametrize("prompts", [1, 2, 3, 4, 5, 7, 8])
@pytest.mark.parametrize("length", [100.0, 120.0, 150.0, 151.0, 399.0, 400.0, 700.0, 1000.0])
def test_between_nodes_a_reading_is_straight_in_each(prompts: int, length: float) -> None:
    """Interpolation along one axis and then the other is exact of such a surface."""
    table = ReadTable(
        sizes=SIZES,
        lengths=LENGTHS,
        times=[[surface(size, own) for own in LENGTHS] for size in SIZES],
        sending=0.0,
        layers=1.0,
        plan=PLAN,
        request=0.0,
        variation=0.0,
    )
    assert table.reading(prompts, length) == pytest.approx(surface(prompts, length))
    assert table.most == 8


@pytest.mark.parametrize("spread", [0.0, 0.3])
def test_prompts_of_lengths_that_vary_take_their_mean_where_time_is_straight(spread: float) -> None:
    table = ReadTable(
        sizes=SIZES,
        lengths=LENGTHS,
        times=[[surface(size, own) for own in LENGTHS] for size in SIZES],
        sending=0.0,
        layers=1.0,
        plan=PLAN,
        request=0.0,
        variation=spread,
    )
    expected = [surface(many, 500.0) for many in range(1, 9)]
    np.testing.assert_allclose(table._means(), expected)


def test_no_pass_takes_no_time() -> None:
    assert (NOTHING.compute, NOTHING.communication, NOTHING.kernels, NOTHING.passes) == (0,) * 4


@pytest.mark.parametrize("each", [0.05, 0.4, 1.0, 2.5])
@pytest.mark.parametrize(
    ("first", "share"), [(0.3, 0.1), (0.05, 0.05), (0.5, 0.0), (4.0, 2.0), (20.0, 5.0)]
)
def test_passes_with_prompts_are_as_often_as_prompts_come_in_passes(
    each: float, first: float, share: float
) -> None:
    """Prompts that arrive at random: of so many passes, a share s has prompts, and the mean pass is
    step + s first + (each - s) more: in it, `each` prompts come. That share follows from how long
    passes are without prompts, with one, and with each of the others."""
    own = work(running=8.0, clients=64.0, synchrony=0.0)
    step = float(decode_time(own, BARE))
    found = float(_first_ones(own, BARE, *map(np.asarray, (each, first, share))))
    mean = step + found * first + max(each - found, 0.0) * share
    more = each / found - 1.0
    expected = float(with_prompts(each / mean, step, step + first, share, more))
    assert found == pytest.approx(expected, rel=1e-3)
    assert 0.0 < found < min(each, 1.0)


@pytest.mark.parametrize("each", [0.05, 0.4, 1.0, 3.0])
@pytest.mark.parametrize("prompt", [0.1, 1.0, 4.0])
def test_passes_of_their_own_are_as_many_as_prompts_that_gather_make_them(
    each: float, prompt: float
) -> None:
    """Prompts that arrive at random, read in passes of their own: one that decodes is followed by
    1 - exp(-r s) of these, and each of these by another unless none came in it."""
    single = DeviceTime(1.0, 0.0, 0.0)
    own = work(running=8.0, clients=64.0, synchrony=0.0, apart=1.0, single=single)
    step, alone = float(decode_time(own, BARE)), float(prompt_time(own, BARE, single=True))
    given = np.asarray(prompt * alone / (1.0 + prompt))
    extra = alone - float(given)
    passes = float(_own_passes(own, BARE, each, given, 1.0)) / extra
    rate = each / (step + passes * extra + each * float(given))
    more = max(each / passes - 1.0, 0.0)
    none = np.exp(-rate * alone) / (1.0 + more * -np.expm1(-rate * float(given)))
    expected = -np.expm1(-rate * step) / none
    assert passes == pytest.approx(min(expected, each), rel=1e-2)


def passes_one_by_one(each: float, step: float, first: float, share: float) -> tuple[float, float]:
    """Mean time of a pass and the share that has prompts, which gather at random in the one before:
    at the rate at which `each` of them come in a mean pass, found by halving."""
    low, high, mean, some = 0.0, min(each / step, 0.999 / share), step, 0.0
    for _ in range(14):
        rate, draws = 0.5 * (low + high), np.random.default_rng(1)
        length, whole, came, having = step, 0.0, 0, 0
        for _ in range(8000):
            whole, prompts = whole + length, draws.poisson(rate * length)
            came, having = came + prompts, having + (prompts > 0)
            length = step + (first + (prompts - 1) * share if prompts else 0.0)
        mean, some = whole / 8000, having / 8000
        low, high = (rate, high) if came < 8000 * each else (low, rate)
    return mean, some


@pytest.mark.parametrize("each", [1.0, 2.0])
@pytest.mark.parametrize(("first", "share"), [(3.0, 2.0), (8.0, 4.0)])
def test_gathered_prompts_lengthen_passes_as_they_do_one_by_one(
    each: float, first: float, share: float
) -> None:
    """Prompts each of which takes many times as long as a pass without: the mean pass within 1 % of
    that of passes drawn one after the other, and the share that has prompts within 5 %."""
    own = work(running=8.0, clients=64.0, synchrony=0.0)
    step = float(decode_time(own, BARE))
    found = float(_first_ones(own, BARE, *map(np.asarray, (each, first * step, share * step))))
    told = step + found * first * step + max(each - found, 0.0) * share * step
    mean, some = passes_one_by_one(each, step, first * step, share * step)
    assert told == pytest.approx(mean, rel=0.01)
    assert found == pytest.approx(some, rel=0.05)


def test_share_of_passes_with_prompts_by_hand() -> None:
    """s a + l b where long passes are no longer: 1 - exp(-r s) of them."""
    for rate in (0.1, 1.0, 3.0):
        found = float(with_prompts(np.asarray(rate), np.asarray(2.0), np.asarray(2.0)))
        assert found == pytest.approx(1.0 - np.exp(-2.0 * rate))

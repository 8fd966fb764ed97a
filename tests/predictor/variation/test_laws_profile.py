"""What numbers a machine may have, and how many of its accelerators are how slow."""

from __future__ import annotations

import math
from dataclasses import fields

import numpy as np
import pytest

from predictor.errors import InputError
from predictor.variation.order import normal_tail
from predictor.variation.profile import (
    LOG2_MOST,
    SPREADS,
    TERMS,
    Profile,
    _table,
    checked,
    drawn,
    slower_than,
    slowest,
)

NUMBERS = [one.name for one in fields(Profile) if one.name != "name"]


@pytest.mark.parametrize("name", NUMBERS)
def test_no_machine_has_less_than_nothing(name: str) -> None:
    assert checked(Profile("own", **{name: 0.0})) == Profile("own", **{name: 0.0})
    for wrong in (-1e-6, math.inf, math.nan):
        with pytest.raises(InputError, match=f"{name} .* is not 0 or more"):
            checked(Profile("own", **{name: wrong}))


def test_steps_are_never_wholly_alike_and_no_more_than_all_are_slow() -> None:
    for right in ({"correlation": 0.999}, {"slow_share": 1.0}, {"stalls": 40.0, "run": 3.0}):
        checked(Profile("own", **right))
    for wrong in ({"correlation": 1.0}, {"slow_share": 1.001}, {"correlation": 1.5}):
        with pytest.raises(InputError, match="correlation is below 1 and slow_share at most 1"):
            checked(Profile("own", **wrong))


def test_slow_ones_are_exponentially_slow_beyond_the_least() -> None:
    """The others are normal about the median; without slow ones all are."""
    of = Profile("own", slow_share=0.25, slow_least=0.2, slow_scale=0.05)
    x = np.array([-0.1, 0.0, 0.02, 0.2, 0.25, 0.3])
    plain = normal_tail(x / 0.02)
    beyond = np.array([1.0, 1.0, 1.0, 1.0, math.exp(-1.0), math.exp(-2.0)])
    assert slower_than(x, 0.02, of) == pytest.approx(0.75 * plain + 0.25 * beyond)
    assert slower_than(x, 0.02, Profile("own")).tolist() == plain.tolist()
    lots = drawn((40_000,), 0.02, of, np.random.default_rng(5))
    for limit in (0.02, 0.15, 0.25):
        share = float(slower_than(limit, 0.02, of))
        assert np.mean(lots > limit) == pytest.approx(share, abs=4 * math.sqrt(share / 40_000))


def test_a_machine_without_a_term_has_none_of_its_numbers() -> None:
    whole = Profile("own", **dict.fromkeys(NUMBERS, 0.5))
    taken: set[str] = set()
    for term, names in TERMS.items():
        less = whole.without(term)
        assert {n for n in NUMBERS if getattr(less, n) == 0.0} == set(names)
        taken.update(names)
    assert {"run", "compute", "memory", "step", "work", "collectives", "stalls"} <= taken


@pytest.mark.parametrize("slow", [(0.0, 0.1, 0.02), (0.02, 0.1, 0.02), (0.3, 0.05, 0.1)])
def test_a_table_of_the_slowest_is_their_integral(slow: tuple[float, float, float]) -> None:
    """Of N: x dF^N, here over a grid of its own, from where none is to where none is left."""
    share, least, scale = slow
    of = Profile("own", slow_share=share, slow_least=least, slow_scale=scale)
    means, spreads = _table(*slow)
    assert means.shape == spreads.shape == (len(SPREADS), 2 * LOG2_MOST + 1)
    for at in (1, 12, 36):
        spread = float(SPREADS[at])
        top = max(8.0 * spread, (least + scale * 30.0) * (share > 0))
        x = np.linspace(-8.0 * spread, top, 20_001)
        tail = np.minimum(slower_than(x, spread, of), 1.0 - 1e-16)
        for half in (0, 1, 6, 13, 30, 2 * LOG2_MOST):
            above = -np.expm1(2.0 ** (0.5 * half) * np.log1p(-tail))
            mean = x[0] + np.trapezoid(above, x)
            square = x[0] ** 2 + np.trapezoid(2.0 * x * above, x)
            deviation = math.sqrt(max(square - mean**2, 0.0))
            near = 0.02 * spread + 0.02 * deviation
            assert means[at, half] == pytest.approx(mean, abs=near)
            assert spreads[at, half] == pytest.approx(deviation, abs=near)
    if not share:
        assert means[0].tolist() == pytest.approx([0.0] * len(means[0]), abs=1e-8)


def test_between_numbers_of_a_table_the_slowest_lies_between_them() -> None:
    """In the logarithm of how many there are, and along the listed spreads; one is no slower than
    itself, and beyond the table it stays as at its end."""
    of = Profile("own", slow_share=0.02, slow_least=0.1, slow_scale=0.02)
    means, spreads = _table(0.02, 0.1, 0.02)
    for at, half in ((5, 3), (12, 20), (36, 48)):
        n, spread = 2.0 ** (0.5 * half), float(SPREADS[at])
        found = slowest(n, spread, of)
        assert found == pytest.approx((means[at, half], spreads[at, half]))
        less = slowest(2.0 ** (0.5 * half - 0.25), spread, of)
        assert less[0] == pytest.approx(0.5 * (means[at, half] + means[at, half - 1]))
        between = slowest(n, 0.5 * (spread + float(SPREADS[at - 1])), of)
        assert between[1] == pytest.approx(0.5 * (spreads[at, half] + spreads[at - 1, half]))
    assert float(slowest(1.0, 0.1, of)[0]) == 0.0
    end = slowest(2.0**LOG2_MOST, 0.3, of)
    assert np.array(slowest(2.0**30, 0.5, of)) == pytest.approx(np.array(end))
    assert float(slowest(64.0, 0.02, of)[0]) > float(slowest(64.0, 0.02, Profile("own"))[0])

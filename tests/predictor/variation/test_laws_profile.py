"""What numbers a machine may have, and how many of its accelerators are how slow."""

from __future__ import annotations

import math
from dataclasses import fields

import numpy as np
import pytest

from predictor.errors import InputError
from predictor.variation.order import normal_tail
from predictor.variation.profile import TERMS, Profile, checked, drawn, slower_than

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

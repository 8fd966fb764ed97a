"""Order statistics by closed forms: the maximum of one and of two, tables that have no steps."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import norm

from predictor.variation.order import maximum, normal_quantile
from predictor.variation.profile import SPREADS, Profile, slowest


def test_the_maximum_of_one_is_itself_and_of_two_is_known() -> None:
    """e_1 = 0 and d_1 = 1; e_2 = 1/sqrt(pi) and d_2^2 = 1 - 1/pi (David and Nagaraja 2003)."""
    mean, spread = maximum(normal_quantile, np.array([1.0, 2.0]))
    assert mean == pytest.approx([0.0, 1.0 / math.sqrt(math.pi)], abs=1e-6)
    assert spread == pytest.approx([1.0, math.sqrt(1.0 - 1.0 / math.pi)], rel=1e-5)


def test_the_maximum_of_constants_is_that_constant() -> None:
    mean, spread = maximum(lambda tail: np.full(np.shape(tail), 3.0), 7.0)
    assert mean == pytest.approx(3.0, rel=1e-12)
    assert spread == pytest.approx(0.0, abs=1e-12)


def test_a_table_of_the_slowest_has_no_steps_between_its_nodes() -> None:
    """From one node to the next of either axis, its values change as little as their distance."""
    of = Profile("own", slow_share=0.02, slow_least=0.1, slow_scale=0.1)
    for node in SPREADS[[5, 20, 30]]:
        below, at = (slowest(3.0, width, of) for width in (node * (1.0 - 1e-9), node))
        assert np.array(below) == pytest.approx(np.array(at), rel=1e-6)
    for number in (4.0, 64.0, 1024.0):
        fewer, more = (slowest(n, SPREADS[25] * 1.01, of) for n in (number * (1.0 - 1e-9), number))
        assert np.array(fewer) == pytest.approx(np.array(more), rel=1e-6)


@pytest.mark.parametrize("tail", [1e-300, 1e-100, 1e-13, 1e-9, 1e-4, 0.02, 0.0799, 0.3, 0.9])
def test_quantiles_are_those_of_another_library(tail: float) -> None:
    """To rounding from a tail of 1e-4 on, far out to a billionth."""
    within = 1e-13 if tail >= 1e-4 else 1e-9
    assert float(normal_quantile(tail)) == pytest.approx(float(norm.isf(tail)), rel=within)

"""Maxima of many: against SciPy, by hand, and as laws."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from predictor.variation.order import (
    clark,
    maximum,
    normal_cdf,
    normal_maximum,
    normal_quantile,
    normal_tail,
    pearson,
)


def test_the_normal_is_scipys_into_the_far_tail() -> None:
    x = np.linspace(-37.0, 37.0, 1481)
    assert normal_tail(x) == pytest.approx(stats.norm.sf(x), rel=1e-12)
    assert normal_cdf(x) == pytest.approx(stats.norm.cdf(x), rel=1e-12)
    tails = np.array([1e-250, 1e-100, 1e-15, 1e-8, 0.01, 0.4, 0.5, 0.9, 1 - 1e-9])
    assert normal_quantile(tails) == pytest.approx(stats.norm.isf(tails), rel=1e-9, abs=1e-12)
    # What is certain, and what never is, as far out as numbers tell.
    least, most = normal_quantile(np.array([1.0, 0.0]))
    assert -9.0 < least < -8.0
    assert 37.0 < most < 38.0


def test_tabulated_maxima_of_normals() -> None:
    """e_N and d_N of the literature (Tippett 1925 for small N)."""
    mean, spread = normal_maximum(np.array([1.0, 2.0, 8.0, 64.0, 1024.0, 8192.0, 65536.0]))
    assert mean[:2] == pytest.approx([0.0, 1 / np.sqrt(np.pi)], abs=1e-6)
    assert mean[2:] == pytest.approx([1.424, 2.344, 3.248, 3.802, 4.291], abs=6e-4)
    assert spread[2:] == pytest.approx([0.611, 0.451, 0.351, 0.308, 0.277], abs=6e-4)
    assert spread[:2] == pytest.approx([1.0, np.sqrt(1 - 1 / np.pi)], abs=1e-4)


def test_bloms_formula_is_within_one_per_cent_from_eight_on() -> None:
    n = np.array([8.0, 64.0, 1024.0, 65536.0])
    blom = normal_quantile(1.0 - (n - 0.375) / (n + 0.25))
    assert blom == pytest.approx(normal_maximum(n)[0], rel=0.01)


@given(st.floats(1.0, 1e6), st.floats(1.0, 10.0))
def test_more_draws_have_a_larger_maximum(n: float, by: float) -> None:
    assert normal_maximum(n * by)[0] >= normal_maximum(n)[0] - 1e-9


@pytest.mark.parametrize("skew", [0.0, 0.3, 0.7, 1.2])
def test_the_shifted_gamma_is_scipys(skew: float) -> None:
    tails = np.array([0.5, 0.1, 0.01, 0.001])
    found = pearson(tails, skew)
    assert found == pytest.approx(stats.pearson3.isf(tails, skew), abs=0.015, rel=0.015)


def test_the_maximum_of_exponentials_is_the_harmonic_number() -> None:
    """H_10 = 7381 / 2520."""
    mean, _ = maximum(lambda tail: -np.log(tail), 10.0)
    assert float(mean) == pytest.approx(7381 / 2520, rel=1e-4)


def test_the_larger_of_two_normals() -> None:
    """Of two alike: m + s / sqrt(pi); of two far apart: the larger one."""
    mean, spread = clark((1.0, 0.2), (1.0, 0.2))
    assert float(mean) == pytest.approx(1.0 + 0.2 / np.sqrt(np.pi))
    assert float(spread) == pytest.approx(0.2 * np.sqrt(1 - 1 / np.pi))
    mean, spread = clark((5.0, 0.2), (1.0, 0.3))
    assert (float(mean), float(spread)) == pytest.approx((5.0, 0.2))

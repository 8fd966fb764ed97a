"""Losses of fits: what rows count, and that priors count in full."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import least_squares

from calibration.robust import Loss, cauchy, soft, with_priors


@pytest.mark.parametrize(("loss", "name"), [(soft, "soft_l1"), (cauchy, "cauchy")])
def test_losses_are_those_of_scipy(loss: Loss, name: str) -> None:
    """A line through points with one far off: the same as scipy's own loss finds."""
    x = np.linspace(0.0, 1.0, 9)
    y = 2.0 * x + np.where(np.arange(9) == 4, 30.0, 0.0)

    def residuals(at: np.ndarray) -> np.ndarray:
        return at[0] + at[1] * x - y

    own = least_squares(residuals, [0.0, 0.0], loss=with_priors(loss, np.ones(9), 0.3))
    other = least_squares(residuals, [0.0, 0.0], loss=name, f_scale=0.3)
    assert own.x == pytest.approx(other.x, abs=1e-5)
    assert own.cost == pytest.approx(other.cost, rel=1e-6)


@pytest.mark.parametrize("loss", [soft, cauchy])
@given(square=st.floats(1e-3, 1e3), weight=st.floats(0.01, 10.0), knee=st.floats(0.1, 10.0))
def test_slopes_are_those_of_the_loss(
    loss: Loss, square: float, weight: float, knee: float
) -> None:
    found = with_priors(loss, np.array([weight]), knee)
    step = 1e-4 * square
    low, here, high = (found(np.array([square + by])) for by in (-step, 0.0, step))
    for order in (0, 1):
        slope = (high[order] - low[order]) / (2.0 * step)
        assert slope == pytest.approx(here[order + 1], rel=1e-3)


@given(small=st.floats(0.0, 1e-4), large=st.floats(0.1, 1e6))
def test_a_prior_is_its_square_however_far_off(small: float, large: float) -> None:
    found = with_priors(cauchy, np.array([1.0]))(np.array([small, small, large]))
    assert found[:, 1:] == pytest.approx(np.array([[small, large], [1.0, 1.0], [0.0, 0.0]]))
    assert found[0, 0] == pytest.approx(small, rel=1e-4, abs=1e-12)


@given(count=st.integers(1, 5), at=st.floats(-3.0, 3.0))
def test_a_weight_is_as_many_rows(count: int, at: float) -> None:
    rows = np.full(count, at**2)
    many = with_priors(soft, np.ones(count))(rows)[0].sum()
    one = with_priors(soft, np.array([float(count)]))(rows[:1])[0].sum()
    assert one == pytest.approx(many)

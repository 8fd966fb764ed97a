"""Robust least squares with priors: closed forms, and scipy's own search."""

import numpy as np
import pytest
from scipy.optimize import least_squares
from scipy.sparse import csr_array

from calibration.robust import cauchy, with_priors
from calibration.serving.descent import loss_of, settle, settle_gently

RNG = np.random.default_rng(3)


def test_a_straight_line_is_solved_as_ridge_regression():
    """Rows that all lie near: Cauchy's loss is their square, and the normal equations hold."""
    table, true = RNG.normal(size=(40, 3)), np.array([0.5, -0.2, 0.1])
    target = table @ true
    stacked = csr_array(np.vstack([table, np.eye(3)]))
    found = settle(
        lambda x: np.concatenate([table @ x - target, x]),
        lambda _: stacked,
        np.zeros(3),
        np.ones(40),
        1e4,
    )
    expected = np.linalg.solve(table.T @ table + np.eye(3), table.T @ target)
    assert found == pytest.approx(expected, abs=1e-6)


def test_it_ends_as_low_as_another_search():
    """Curved rows with outliers, which count little: no higher than scipy's trust region."""
    where = RNG.uniform(0.0, 3.0, 200)
    target = 2.0 * np.exp(-0.7 * where) + RNG.normal(scale=0.02, size=200)
    target[::20] += 3.0
    weight = RNG.uniform(0.2, 1.0, 200)

    def residuals(x):
        return np.concatenate([(np.exp(x[0] - x[1] * where) - target) / 0.05, x])

    def slopes(x):
        value = np.exp(x[0] - x[1] * where)
        table = np.stack([value, -where * value], axis=1) / 0.05
        return csr_array(np.vstack([table, np.eye(2)]))

    mine = settle(residuals, slopes, np.zeros(2), weight, 1.5)
    other = least_squares(residuals, np.zeros(2), loss=with_priors(cauchy, weight, 1.5)).x
    lowest = [loss_of(residuals(x), weight, 1.5) for x in (mine, other)]
    assert lowest[0] <= lowest[1] * (1.0 + 1e-5)
    assert np.exp(mine[0]) == pytest.approx(2.0, rel=0.02)
    assert mine[1] == pytest.approx(0.7, rel=0.03)


def test_rows_that_are_far_off_together_pull_the_parameter_that_explains_them():
    """Ten rows say 4, the prior 0 within 1: seen from 0 each is twenty scales off and counts
    little, so that a search downhill stays near 0, where more is lost than at 4."""
    weight, stacked = np.ones(10), csr_array(np.vstack([np.full((10, 1), 5.0), np.eye(1)]))

    def residuals(x):
        return np.concatenate([np.full(10, 5.0 * (x[0] - 4.0)), x])

    ends = [one(residuals, lambda _: stacked, np.zeros(1), weight, 0.5)
            for one in (settle, settle_gently)]  # fmt: skip
    lost = [loss_of(residuals(x), weight, 0.5) for x in ends]
    best = min(loss_of(residuals(np.array([x])), weight, 0.5) for x in np.linspace(-1, 5, 6001))
    assert lost[1] == pytest.approx(best, rel=1e-4)
    assert lost[1] < lost[0]

"""Least squares in which odd rows count less, and priors in full (`scipy.optimize.least_squares`).

A fit's residuals are its rows' errors, then what its parameters are away from their priors; rows
have weights and a loss, priors are squares.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from predictor.arrays import Array

Loss = Callable[[Array], Array]
"""From squares of residuals, (N,), to the loss and its first two derivatives, (3, N)."""

OTHER_UNIT = 300.0
"""Times that a figure and its prediction lie apart from which on it is of another unit
(milliseconds: 1,000): nothing that is learned of a machine bridges a tenth of it."""


def soft(squares: Array) -> Array:
    """Soft absolute value, 2 (sqrt(1 + z) - 1): outliers count by their distance."""
    root = np.sqrt(1.0 + squares)
    return np.stack([2.0 * (root - 1.0), 1.0 / root, -0.5 / root**3])


def cauchy(squares: Array) -> Array:
    """Cauchy's loss, log(1 + z): what lies far off hardly counts."""
    beyond = 1.0 + squares
    return np.stack([np.log(beyond), 1.0 / beyond, -1.0 / beyond**2])


def with_priors(loss: Loss, weight: Array, knee: float = 1.0) -> Loss:
    """The loss of rows, then priors.

    weight   of each row, (rows,); residuals beyond these are priors, whose loss is their square
    knee     size of a residual at which the loss of rows bends
    """
    rows = len(weight)

    def found(squares: Array) -> Array:
        value, slope, bend = loss(squares[:rows] / knee**2)
        own = weight * np.stack([knee**2 * value, slope, bend / knee**2])
        prior = np.ones((3, len(squares) - rows))
        prior[0], prior[2] = squares[rows:], 0.0
        return np.concatenate([own, prior], axis=1)

    return found


def balanced_quantile(groups: Sequence[Array], share: float = 0.8) -> float:
    """Quantile over groups that count alike, however many values each has."""
    spread = [np.quantile(values, np.linspace(0.005, 0.995, 100)) for values in groups]
    return float(np.quantile(np.concatenate(spread), share))

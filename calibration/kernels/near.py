"""A trend and the points around it: a Gaussian process on few points.

Where tens of shapes were measured, products of features follow the noise between them, and slopes
alone miss what libraries do for single shapes. A Gaussian process does neither: its covariance is
that of a linear trend and of a smooth departure from it, and how far points speak for others is
what makes the measurements likeliest (Rasmussen & Williams 2006, chapters 2 and 5).
"""

from __future__ import annotations

import warnings

import numpy as np

from predictor.timing import Neighbours

APART = 2.0
"""Distance between variants, in standardised features."""

NOISE = 0.03
"""Log-standard-deviation of a measurement that its latency takes no part in."""


def fitted(
    z: np.ndarray, variant: np.ndarray, y: np.ndarray, weight: np.ndarray
) -> tuple[np.ndarray, float, dict[str, float], Neighbours]:
    """Fit y of points at standardised features z.

    z        (N, F); variant (N,) names; y (N,); weight (N,), of how much y decides the time

    Returns slopes (F,), the constant, the offset of each variant, and what the points add nearby.
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, DotProduct

    names, side = np.unique(variant, return_inverse=True)
    position = np.hstack([z, APART * np.eye(len(names))[side]])
    usual = float(np.sqrt(max((z.std(axis=0) > 0).sum(), 1)))
    departure = ConstantKernel(0.3, (1e-3, 1e2)) * RBF(usual, (0.3 * usual, 30.0 * usual))
    trend = ConstantKernel(0.1, (1e-4, 1e2)) * DotProduct(1.0, (1e-2, 1e2))
    center = float(np.average(y, weights=weight))
    process = GaussianProcessRegressor(departure + trend, alpha=NOISE**2 / weight)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        process.fit(position, y - center)
    learned, pull = process.kernel_.get_params(), np.asarray(process.alpha_)
    slopes = learned["k2__k1__constant_value"] * (position.T @ pull)
    constant = learned["k2__k1__constant_value"] * learned["k2__k2__sigma_0"] ** 2 * pull.sum()
    reach = float(learned["k1__k2__length_scale"])
    near = Neighbours(
        z,
        learned["k1__k1__constant_value"] * pull,
        tuple(str(name) for name in names),
        side.astype(float),
        reach,
        float(np.exp(-((APART / reach) ** 2))),
    )
    shift = APART * slopes[z.shape[1] :]
    # y is kept within its bounds before the offsets: these only ever lower it.
    most = float(shift.max())
    offsets = {str(name): float(own - most) for name, own in zip(names, shift, strict=True)}
    return slopes[: z.shape[1]], center + float(constant) + most, offsets, near

"""Order statistics without sampling: what the slowest of N takes.

A standard normal y gives the maximum of N independent draws by their own quantile function, whose
upper tail there is q(y) = 1 - Phi(y)^(1/N). So the moments of a maximum are Gauss-Hermite sums over
y, for every N at once, and its P-quantile is that of one draw at p^(1/N). David and Nagaraja 2003,
"Order Statistics", section 2.1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np

from predictor.arrays import Array, Numeric

QUADRATURE = 96
"""Nodes of Gauss and Hermite; e_N is good to 1e-6 of a standard deviation from N = 1 to 1e6."""

_TOP = (
    0.0352624965998911,
    0.700383064443688,
    6.37396220353165,
    33.912866078383,
    112.079291497871,
    221.213596169931,
    220.206867912376,
)
_BOTTOM = (
    0.0883883476483184,
    1.75566716318264,
    16.064177579207,
    86.7807322029461,
    296.564248779674,
    637.333633378831,
    793.826512519948,
    440.413735824752,
)

"""Coefficients of `normal_tail` (Hart 1968 in West 2005): numerator and denominator."""

_CENTRE = (
    (2.50662823884, -18.61500062529, 41.39119773534, -25.44106049637),
    (-8.47351093090, 23.08336743743, -21.06224101826, 3.13082909833),
)
_TAIL = (
    0.3374754822726147,
    0.9761690190917186,
    0.1607979714918209,
    0.0276438810333863,
    0.0038405729373609,
    0.0003951896511919,
    0.0000321767881768,
    0.0000002888167364,
    0.0000003960315187,
)
"""Coefficients of `normal_quantile`."""


def normal_tail(x: Numeric) -> Array:
    """Probability that a standard normal exceeds x; shape of x. Hart 1968, as in West 2005, "Better
    approximations to cumulative normal functions": exact to 1e-15, relatively in the far tail too.
    """
    z = np.abs(np.asarray(x, float))
    density = np.exp(-0.5 * np.minimum(z * z, 1480.0))
    top, bottom = np.full_like(z, _TOP[0]), np.full_like(z, _BOTTOM[0])
    for a in _TOP[1:]:
        top = top * z + a
    for b in _BOTTOM[1:]:
        bottom = bottom * z + b
    tail = density * top / bottom
    if np.any(z >= 7.07106781186547):
        fraction = z + 0.65
        for n in (4.0, 3.0, 2.0, 1.0):
            fraction = z + n / fraction
        tail = np.where(z < 7.07106781186547, tail, density / (fraction * 2.506628274631))
    return np.asarray(np.where(np.asarray(x) > 0, tail, 1.0 - tail))


def normal_cdf(x: Numeric) -> Array:
    """Probability that a standard normal is at most x; shape of x."""
    return normal_tail(-np.asarray(x, float))


def normal_quantile(tail: Numeric) -> Array:
    """x that a standard normal exceeds with probability `tail` (0 < tail < 1); shape of `tail`.

    Moro 1995, "The full Monte", and a step of Halley's method, which makes it exact to rounding.
    """
    q = np.clip(np.asarray(tail, float), 1e-300, 1.0 - 1e-16)
    y = 0.5 - q
    r = y * y
    above, below = _CENTRE
    top = sum(a * r**n for n, a in enumerate(above))
    bottom = 1.0 + sum(b * r ** (n + 1) for n, b in enumerate(below))
    least = np.minimum(q, 1.0 - q)
    log = np.log(-np.log(least))
    far = sum(c * log**n for n, c in enumerate(_TAIL))
    # Moro's polynomial is made for tails to 1e-12; beyond, the asymptotic form starts the steps.
    beyond = np.sqrt(np.maximum(-2.0 * np.log(least) - np.log(-4.0 * np.pi * np.log(least)), 0.0))
    far = np.sign(y) * np.where(least < 1e-12, beyond, far)
    x = np.where(np.abs(y) < 0.42, y * top / bottom, far)
    for _ in range(2):
        density = np.exp(-0.5 * x * x) / math.sqrt(2.0 * math.pi)
        side = np.where(x > 0, normal_tail(x) - q, (1.0 - q) - normal_tail(-x))
        step = side / np.maximum(density, 1e-300)
        x = x + step / (1.0 - 0.5 * x * step)
    return np.asarray(x)


def tail_of_maximum(y: Numeric, n: Numeric) -> Array:
    """Upper tail of one draw at which the maximum of n has the rank that y has of a standard
    normal: 1 - Phi(y)^(1/n), exact for large n; broadcast shape."""
    below = np.log1p(-np.minimum(normal_tail(y), 1.0 - 1e-16))
    return np.asarray(-np.expm1(below / np.asarray(n, float)))


@lru_cache(maxsize=1)
def _quadrature() -> tuple[Array, Array]:
    """Points and weights; found when first needed, since numpy takes a while over them."""
    points, weights = np.polynomial.hermite_e.hermegauss(QUADRATURE)
    return points, weights / math.sqrt(2.0 * math.pi)


def maximum(quantile: Callable[[Array], Array], n: Numeric) -> tuple[Array, Array]:
    """Mean and standard deviation of the maximum of n independent draws; shape of n.

    quantile   upper tail -> value of one draw, arrays
    n          draws, at least 1 (any number, not whole ones only)
    """
    count = np.maximum(np.asarray(n, float), 1.0)
    points, weights = _quadrature()
    values = quantile(tail_of_maximum(points, count[..., None]))
    mean = np.asarray((values * weights).sum(axis=-1))
    square = (values - mean[..., None]) ** 2
    return mean, np.asarray(np.sqrt((square * weights).sum(axis=-1)))


@lru_cache(maxsize=1)
def _normal_table() -> tuple[Array, Array, Array]:
    """log2 of N, e_N and d_N: sixteen to the octave, between which they are straight to 1e-4."""
    log = np.arange(40 * 16 + 1) / 16.0
    mean, spread = maximum(normal_quantile, 2.0**log)
    mean[0], spread[0] = 0.0, 1.0  # not a bit off zero where nobody waits
    return log, mean, spread


def normal_maximum(n: Numeric) -> tuple[Array, Array]:
    """Mean e_N and standard deviation d_N of the maximum of n standard normals; shape of n."""
    log, mean, spread = _normal_table()
    at = np.log2(np.maximum(np.asarray(n, float), 1.0))
    return np.interp(at, log, mean), np.interp(at, log, spread)


def pearson(tail: Numeric, skew: Numeric) -> Array:
    """Value that a shifted gamma of mean 0, standard deviation 1 and the given skewness (Pearson
    III) exceeds with probability `tail`: Wilson and Hilferty 1931, as modified by Kirby 1972 for a
    lower end that is the gamma's, -2 / skew. Skewness from 0 to about 3; broadcast shape."""
    z, g = normal_quantile(tail), np.asarray(skew, float)
    safe = np.maximum(np.abs(g), 1e-9)
    bent = 2.0 / safe * ((1.0 + safe * z / 6.0 - safe * safe / 36.0) ** 3 - 1.0)
    bent = np.maximum(bent, -2.0 / safe)
    return np.asarray(np.where(np.abs(g) < 1e-6, z, bent))


def clark(
    first: tuple[Numeric, Numeric], second: tuple[Numeric, Numeric], correlation: Numeric = 0.0
) -> tuple[Array, Array]:
    """Mean and standard deviation of the larger of two normals, each (mean, standard deviation):
    Clark 1961, "The greatest of a finite set of random variables", equations 2 to 4."""
    (m1, s1), (m2, s2) = first, second
    a = np.sqrt(np.maximum(s1 * s1 + s2 * s2 - 2.0 * correlation * s1 * s2, 0.0))
    apart = np.asarray(m1, float) - m2
    alpha = np.clip(apart / np.maximum(a, 1e-150), -37.0, 37.0)
    density = np.exp(-0.5 * alpha * alpha) / math.sqrt(2.0 * math.pi)
    above, below = normal_cdf(alpha), normal_cdf(-alpha)
    mean = m1 * above + m2 * below + a * density
    square = (m1 * m1 + s1 * s1) * above + (m2 * m2 + s2 * s2) * below + (m1 + m2) * a * density
    return np.asarray(mean), np.asarray(np.sqrt(np.maximum(square - mean * mean, 0.0)))

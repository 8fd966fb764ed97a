"""What a step, and a run of many, will take: quantiles from spread, correlation and stalls.

A step takes its median times a log-normal factor; a step in which a rank stalls takes as long as
the stall makes it, if that is longer. P(X <= x) = Phi(ln x / s) (1 - q (least / (x - 1))^index),
with q the probability that any rank stalls. The mean of K steps is normal about the mean step; its
variance is that of a correlated series (AR(1)), that of the stalls (Pareto, cut off at `LONGEST`
steps: beyond, a job is restarted), and that of the run itself, which does not average.
"""

from __future__ import annotations

import numpy as np

from predictor.arrays import Array, Numeric
from predictor.records import dataclass
from predictor.variation.order import normal_cdf, normal_quantile
from predictor.variation.profile import Profile

LONGEST = 100.0
"""Steps that the longest stall takes: the longest of 116,000 of MLPerf's logs took 107."""

LEVELS = (0.5, 0.95, 0.99)
"""Quantiles that are told."""


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """Steps of one run, relative to the median step without stalls; arrays of one shape.

    same      log-standard-deviation of what is correlated from step to step
    fresh     of what is drawn anew in every step
    stalled   probability that a step stalls
    run       log-standard-deviation from run to run
    of        correlation, and how long stalls are
    """

    same: Numeric
    fresh: Numeric
    stalled: Numeric
    run: Numeric
    of: Profile

    @property
    def step(self) -> Array:
        """Log-standard-deviation of a step within its run."""
        return np.asarray(np.hypot(self.same, self.fresh))

    def below(self, ratio: Numeric) -> Array:
        """Probability that a step takes at most `ratio` of the median; broadcast shape."""
        x = np.asarray(ratio, float)
        plain = normal_cdf(np.log(np.maximum(x, 1e-12)) / np.maximum(self.step, 1e-12))
        over = np.maximum(x - 1.0, 1e-12)
        longer = np.minimum((self.of.stall_least / over) ** self.of.stall_index, 1.0)
        return np.asarray(plain * (1.0 - self.stalled * longer))

    def quantile(self, p: Numeric) -> Array:
        """Ratio to the median that a step does not exceed with probability p; broadcast shape."""
        spread, stalled = np.broadcast_arrays(self.step, self.stalled)
        shape = np.broadcast_shapes(spread.shape, np.shape(p))
        tail = np.broadcast_to(1.0 - np.asarray(p, float), shape)
        low = np.exp(spread * normal_quantile(tail)) + np.zeros(shape)
        least, index = self.of.stall_least, self.of.stall_index
        far = 1.0 + least * (2.0 * np.maximum(stalled, 1e-12) / tail) ** (1.0 / index)
        high = np.maximum(np.exp(spread * normal_quantile(0.5 * tail)), far)
        high = np.where(stalled > 0, np.maximum(high, low), low)
        for _ in range(40):
            middle = 0.5 * (low + high)
            enough = self.below(middle) >= 1.0 - tail
            low, high = np.where(enough, low, middle), np.where(enough, middle, high)
        return np.asarray(np.where(stalled > 0, high, low))

    def _stall(self) -> tuple[Array, Array]:
        """Mean and variance of what stalls add to a step."""
        a, least = self.of.stall_index, self.of.stall_least
        top = max(LONGEST, least)
        if least <= 0 or self.of.stalls <= 0:
            zero = np.zeros(np.shape(self.stalled))
            return zero, zero
        cut = 1.0 - (least / top) ** a
        first, second = (
            a * least**a / cut * _integral(least, top, power - a) for power in (1.0, 2.0)
        )
        mean = np.asarray(self.stalled * first)
        return mean, np.asarray(self.stalled * second - mean**2)

    def mean(self) -> Array:
        """Mean step over the median one."""
        return np.asarray(np.exp(0.5 * self.step**2) + self._stall()[0])

    def average(self, steps: Numeric) -> tuple[Array, Array]:
        """Mean of so many steps over the median step, and its standard deviation from run to run.

        The AR(1) part: Var = s^2 / K (1 + 2 sum_k (1 - k / K) rho^k).
        """
        k, rho = np.asarray(steps, float), self.of.correlation
        near = rho * (1.0 - np.power(rho, k)) / max(1.0 - rho, 1e-12)
        longer = 1.0 + 2.0 / (1.0 - rho) * (rho - near / k)
        noise = (np.asarray(self.same) ** 2 * longer + np.asarray(self.fresh) ** 2) / k
        mean = self.mean()
        variance = noise + self._stall()[1] / k + np.asarray(self.run) ** 2
        return mean, np.asarray(np.sqrt(variance) * mean)


def _integral(low: float, high: float, power: float) -> float:
    """Integral of x^(power - 1) from low to high."""
    if abs(power) < 1e-12:
        return float(np.log(high / low))
    return float((high**power - low**power) / power)


def stalled(rate: float, accelerators: Numeric) -> Array:
    """Probability that any rank stalls in a step, of `rate` per step and 1,000 accelerators."""
    return np.asarray(-np.expm1(-rate * np.asarray(accelerators, float) / 1000.0))


def levels(mean: Numeric, spread: Numeric) -> tuple[Array, ...]:
    """Values of a normal at `LEVELS`."""
    return tuple(np.asarray(mean + spread * normal_quantile(1.0 - p)) for p in LEVELS)

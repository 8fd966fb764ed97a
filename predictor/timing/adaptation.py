"""What a handful of measured runs says of others: a robust Gaussian process over physics.

The log of measured over predicted time of runs is multivariate Student t (Shah, Wilson and
Ghahramani 2014, eq. 6) with the covariance

    K_ij = level² + sum_a slope_a² J_ia J_ja + sum_c alike_c² [c_i = c_j]
         + near² exp(-1/2 sum_d (z_id - z_jd)² / length_d²)
         + [i = j] (noise² + sum_a rough_a² J_ia² + known² sigma_i² + strayed² w_i²)

where J_a is the slope of the log time over the log of a physical parameter a, c a category, z a
size of the run, sigma what kernels leave open and w what a run lost by waiting for processors that
others used, over its own time, which is without it. The host's cost is no slope, since a step
waits for host or device, whichever is later: it is integrated on a grid. One or two of the runs may
be outliers, or all of them restless: on a shared cluster each run may be off by itself, and so will
the next. What the parameters of the covariance are is learned from published runs
(`calibration.runs.prior`, `calibration.serving.prior`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from functools import cache
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from predictor.arrays import Array
from predictor.records import dataclass

HOSTS = np.log(2.0) * np.arange(-3.0, 3.01, 0.5)
"""Logs of the host's cost over the calibration's, (G,)."""


OUTLIER, FAR = 0.1, 0.6
"""Probability that a run is an outlier, and its log-standard-deviation then."""

RESTLESS, LOUD = 0.05, 0.3
"""Probability that all runs of a place are restless, and the log-standard-deviation of each then.
One of two dozen published sources is: its authors warn of +/-40 %, and its repeats take 125 to
225 s. Between .2 and .4, and .05 and .2, what comes of sources left out hardly moves."""

STRAYED = 0.25
"""Error of the time that a run lost by waiting for processors which others used, as a share of it:
the time that is left is known less well the more was lost. The likeliest of the profiles in
`data/measurements` (`make own` prints it, each of them left out in turn), whose steps have nothing
in common beyond what they waited."""

PAIRED = 24
"""Runs up to which every pair of them may be outliers; of more, those that may be single ones."""

QUANTILE = NormalDist().inv_cdf(0.9)
"""Standard deviations of a normal distribution that hold its middle 80 %, half of them."""

LEAST = 1e-4
"""Weight over the largest below which a part of the mixture is left out."""


@dataclass(frozen=True, slots=True)
class Prior:
    """Parameters of the covariance: log-standard-deviations.

    slopes, rough   by physical parameter, of all runs together and of each by itself
    alike           by category
    near            of the process over sizes; lengths by size, in octaves
    known           share of the kernels' own spread
    host            of the log of the host's cost
    freedom         degrees of freedom
    strayed         share of the time that a run lost by waiting for processors which others used
    most            size of a correction that is hardly exceeded, but for the host's cost
    early           with k runs known an interval is narrower than the covariance says by this
                    share over 1 + k: published sources with one run known lay inside too often
    source          where all this comes from
    """

    level: float
    slopes: Mapping[str, float]
    alike: Mapping[str, float]
    near: float
    lengths: Mapping[str, float]
    noise: float
    rough: Mapping[str, float]
    known: float
    host: float = 0.6
    freedom: float = 4.0
    most: float = 0.8
    early: float = 0.0
    strayed: float = STRAYED
    source: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Traits:
    """What runs are compared by.

    slopes   d log time / d log parameter, (N, A), in the order of the prior's
    sizes    log2 of sizes, (N, D), in the order of the prior's
    words    categories, (N, C), in the order of the prior's
    sigma    what kernels leave open of each, (N,)
    host     log of the time at every host cost of `HOSTS` over that at the calibration's, (N, G)
    waited   time lost by waiting for processors that others used, over the run's own, (N,); plans
             lose none
    """

    slopes: Array
    sizes: Array
    words: npt.NDArray[np.str_]
    sigma: Array
    host: Array
    waited: Array

    def take(self, index: npt.NDArray[np.intp]) -> Traits:
        """Those of some of the runs."""
        return Traits(*(getattr(self, name)[index] for name in Traits.__slots__))


def joined(many: list[Traits]) -> Traits:
    """Traits of several sets of runs as one."""
    return Traits(
        *(np.concatenate([getattr(one, name) for one in many]) for name in Traits.__slots__)
    )


def shared(one: Traits, other: Traits, prior: Prior) -> Array:
    """Covariance of what runs share, (N, M)."""
    weight = np.array([*prior.slopes.values()], float)
    found = prior.level**2 + (one.slopes * weight**2) @ other.slopes.T
    for place, spread in enumerate(prior.alike.values()):
        found = found + spread**2 * (one.words[:, place, None] == other.words[None, :, place])
    if prior.near > 0:
        scale = 1.0 / np.array([*prior.lengths.values()], float)
        a, b = one.sizes * scale, other.sizes * scale
        away = (a**2).sum(1)[:, None] + (b**2).sum(1)[None, :] - 2.0 * a @ b.T
        found = found + prior.near**2 * np.exp(-0.5 * np.maximum(away, 0.0))
    return np.asarray(found)


def alone(one: Traits, prior: Prior) -> Array:
    """Variance that each run has by itself, (N,)."""
    rough = np.array([*prior.rough.values()], float)
    own = (one.slopes**2) @ rough**2 + (prior.strayed * one.waited) ** 2
    return np.asarray(prior.noise**2 + own + (prior.known * one.sigma) ** 2)


def open_variance(one: Traits, prior: Prior) -> Array:
    """Variance of runs of which nothing was measured, but for the host's cost, (N,)."""
    weight = np.array([*prior.slopes.values()], float)
    found = prior.level**2 + (one.slopes**2) @ weight**2 + prior.near**2
    return np.asarray(found + sum(v**2 for v in prior.alike.values()) + alone(one, prior))


@dataclass(frozen=True, slots=True, eq=False)
class Learned:
    """What measured runs say: a mixture over outliers and the host's cost.

    traits    of the runs measured, (k, ...)
    residual  log of measured over predicted, (k,)
    outlying  which runs are outliers in every hypothesis, (O, k)
    loud      in which hypotheses all runs are restless instead, (O,)
    inverse   of the covariance in every hypothesis, (O, k, k)
    parts     hypothesis and place in `HOSTS` of every part of the mixture, (M, 2)
    weight    of every part, (M,)
    pull      inverse times residual, (M, k)
    stretch   of the variance in every part, by how well the runs fit, (M,)
    evidence  log of the probability of the measurements
    """

    prior: Prior
    traits: Traits
    residual: Array
    outlying: npt.NDArray[np.bool_]
    loud: npt.NDArray[np.bool_]
    inverse: Array
    parts: npt.NDArray[np.intp]
    weight: Array
    pull: Array
    stretch: Array
    evidence: float

    @property
    def runs(self) -> int:
        """How many runs were measured."""
        return len(self.residual)

    @property
    def host(self) -> tuple[float, float]:
        """Mean and standard deviation of the log of the host's cost over the calibration's."""
        at = HOSTS[self.parts[:, 1]]
        mean = float(self.weight @ at)
        return mean, float(np.sqrt(max(self.weight @ (at - mean) ** 2, 0.0)))

    @property
    def restless(self) -> float:
        """Probability that all runs are, and that those to come are, too."""
        return float(self.weight @ self.loud[self.parts[:, 0]])

    @property
    def doubtful(self) -> Array:
        """Probability that each run is an outlier, (k,)."""
        return np.asarray(self.weight @ self.outlying[self.parts[:, 0]])

    def slopes(self) -> tuple[Array, Array]:
        """Means and standard deviations of the logs of the physical parameters, (A,)."""
        spread = np.array([*self.prior.slopes.values()], float)
        across = (self.traits.slopes * spread**2).T  # (A, k)
        return self._posterior(across, spread**2)

    def _posterior(self, across: Array, variance: Array) -> tuple[Array, Array]:
        """Mean and standard deviation of quantities whose covariance with the runs is `across`,
        (Q, k), and whose own variance is `variance`, (Q,)."""
        means = across @ self.pull.T  # (Q, M)
        known = np.stack([np.einsum("qi,ij,qj->q", across, own, across) for own in self.inverse], 1)
        left = np.maximum(variance[:, None] - known[:, self.parts[:, 0]], 0.0) * self.stretch
        mean = means @ self.weight
        total = (left + (means - mean[:, None]) ** 2) @ self.weight
        return mean, np.sqrt(total)

    def correction(self, others: Traits) -> tuple[Array, Array]:
        """Log of the factor on the times of other runs, and the standard deviation of the normal
        distribution that holds four fifths of cases as near, (N,)."""
        across = shared(others, self.traits, self.prior)
        most = self.prior.most
        host = others.host[:, self.parts[:, 1]]  # as far as it is: no slope is continued
        means = most * np.tanh(across @ self.pull.T / most) + host  # (N, M)
        left = np.empty((len(across), len(self.inverse)))
        variance = open_variance(others, self.prior)
        for place, own in enumerate(self.inverse):
            known = np.einsum("ni,ij,nj->n", across, own, across, optimize=True)
            left[:, place] = np.maximum(variance - known, 1e-8)
        left += LOUD**2 * self.loud
        spread = left[:, self.parts[:, 0]] * self.stretch
        mean = means @ self.weight
        total = (spread + (means - mean[:, None]) ** 2) @ self.weight
        early = 1.0 - self.prior.early / (1.0 + self.runs)
        return mean, np.sqrt(total) * narrower(self.prior.freedom + self.runs) * early


@cache
def narrower(freedom: float) -> float:
    """Half the width of the middle 80 % of a Student t of variance one, over that of a normal
    distribution: a t has more of its variance in its tails.

    Its quantile is the expansion of Abramowitz and Stegun 1964, 26.7.5, which errs by 1e-4 from 5
    degrees of freedom on.
    """
    z = QUANTILE
    terms = (
        (z**3 + z) / 4.0,
        (5.0 * z**5 + 16.0 * z**3 + 3.0 * z) / 96.0,
        (3.0 * z**7 + 19.0 * z**5 + 17.0 * z**3 - 15.0 * z) / 384.0,
    )
    quantile = z + sum(term / freedom**power for power, term in enumerate(terms, 1))
    return quantile / z * math.sqrt(1.0 - 2.0 / freedom)


@cache
def hypotheses(count: int) -> npt.NDArray[np.bool_]:
    """Which of so many runs are outliers: none, one of them, two of them (of few), (O, k); and none
    where all are restless, which is the last."""
    sets: list[tuple[int, ...]] = [(), *((i,) for i in range(count))]
    if 3 < count <= PAIRED:
        sets += itertools.combinations(range(count), 2)
    sets.append(())
    found = np.zeros((len(sets), count), bool)
    for place, own in enumerate(sets):
        found[place, list(own)] = True
    return found


def log_t(distance: Array, log_determinant: Array, count: int, freedom: float) -> Array:
    """Log density of a multivariate Student t of unit scale for a squared distance; constants that
    depend on the freedom and the count alone are in it."""
    half = 0.5 * (freedom + count)
    constant = (
        math.lgamma(half) - math.lgamma(0.5 * freedom) - 0.5 * count * math.log(math.pi * freedom)
    )
    return np.asarray(constant - 0.5 * log_determinant - half * np.log1p(distance / freedom))


def learn(prior: Prior, traits: Traits, residual: Array) -> Learned:
    """What measured runs say of others.

    traits     of the runs
    residual   log of measured over predicted time, (k,), at least one
    """
    count = len(residual)
    base = shared(traits, traits, prior) + np.diag(alone(traits, prior))
    outlying = hypotheses(count)
    loud = np.arange(len(outlying)) == len(outlying) - 1
    own = np.where(loud[:, None], LOUD, FAR * outlying) ** 2
    covariance = base + np.eye(count) * own[:, None, :]
    inverse = np.linalg.inv(covariance)
    _, determinant = np.linalg.slogdet(covariance)
    left = residual[:, None] - traits.host  # (k, G)
    pull = np.einsum("oij,jg->ogi", inverse, left, optimize=True)
    distance = np.einsum("ogi,ig->og", pull, left, optimize=True)
    density = log_t(distance, determinant[:, None], count, prior.freedom)
    size = outlying.sum(1)
    chance = size * math.log(OUTLIER) + (count - size) * math.log1p(-OUTLIER)
    chance = np.where(loud, math.log(RESTLESS), math.log1p(-RESTLESS) + chance)
    host = -0.5 * (HOSTS / prior.host) ** 2
    host = host - np.log(np.exp(host).sum())
    score = density + chance[:, None] + host[None, :]
    top = float(score.max())
    weight = np.exp(score - top)
    evidence = top + math.log(float(weight.sum()))
    kept = np.argwhere(weight > LEAST * weight.max())
    used, place = np.unique(kept[:, 0], return_inverse=True)
    parts = np.stack([place.ravel(), kept[:, 1]], axis=1)
    at = (kept[:, 0], kept[:, 1])
    share = weight[at] / weight[at].sum()
    freedom = prior.freedom
    # Predictive scale (Shah et al., eq. 8), and the variance of a t of so many degrees of freedom.
    stretch = (freedom + distance[at]) / (freedom + count - 2.0)
    return Learned(
        prior=prior,
        traits=traits,
        residual=residual,
        outlying=outlying[used],
        loud=loud[used],
        inverse=np.asarray(inverse[used], float),
        parts=parts,
        weight=share,
        pull=pull[at],
        stretch=stretch,
        evidence=evidence,
    )

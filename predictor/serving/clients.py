"""Clients: when they send requests, and how long prompts and answers are.

An open loop sends at a rate, whether the engine keeps up or not; a closed loop has so many clients,
each of which sends the next request when it has read the answer to the last. What public benchmark
clients do by default is in `data/software/clients.yaml`.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import NormalDist

import numpy as np

from predictor.arrays import Array, Mask, Numeric
from predictor.errors import InputError
from predictor.records import dataclass

VARIATION = 0.1
"""Of the lengths of requests, unless stated: uniform within so much of their mean."""


def _uniform(draws: np.random.Generator, count: int, variation: float) -> Array:
    return np.asarray(draws.uniform(1.0 - variation, 1.0 + variation, count))


def _lognormal(draws: np.random.Generator, count: int, variation: float) -> Array:
    spread = np.sqrt(np.log1p(variation**2))
    return np.asarray(draws.lognormal(-0.5 * spread**2, spread, count))


def _exponential(draws: np.random.Generator, count: int, variation: float) -> Array:
    return np.asarray(draws.exponential(1.0, count))


LENGTHS: dict[str, Callable[[np.random.Generator, int, float], Array]] = {
    "uniform": _uniform,
    "lognormal": _lognormal,
    "exponential": _exponential,
}
"""Distributions of lengths over their mean; `variation` is the half width of a uniform one, the
standard deviation over the mean of a log-normal one."""


@dataclass(frozen=True, slots=True)
class Client:
    """How requests are sent.

    variation   of lengths, as their distribution (`LENGTHS`) takes it
    lengths     name of the distribution
    burstiness  shape of the gamma-distributed times between arrivals of an open loop: 1 for random
                ones (Poisson), below 1 for bursts, above for an even stream
    think       time between an answer and the client's next request [s]
    warmup      requests at the start that are not counted
    """

    variation: float = VARIATION
    lengths: str = "uniform"
    burstiness: float = 1.0
    think: float = 0.0
    warmup: int = 0


def arrivals(rate: float, count: int, burstiness: float = 1.0, seed: int = 0) -> Array:
    """Arrival times of `count` requests at a mean `rate` per second [s]: gamma-distributed gaps
    (vLLM's `benchmark_serving.py`, --burstiness), random ones where the shape is 1."""
    draws = np.random.default_rng(seed)
    if burstiness == 1.0:
        return np.asarray(np.cumsum(draws.exponential(1.0 / rate, count)))
    return np.asarray(np.cumsum(draws.gamma(burstiness, 1.0 / (rate * burstiness), count)))


def poisson(rate: float, count: int, seed: int = 0) -> Array:
    """Random arrival times of `count` requests at a mean `rate` per second [s]."""
    return arrivals(rate, count, 1.0, seed)


def spread_lengths(
    mean: float, count: int, variation: float, seed: int = 0, lengths: str = "uniform"
) -> Array:
    """Whole lengths of the given mean in one of the distributions `LENGTHS`, uniform within
    +- `variation` of it unless stated; 0: all alike.

    Raises InputError for an unknown distribution.
    """
    if lengths not in LENGTHS:
        raise InputError(f"lengths {lengths!r} are none of {', '.join(LENGTHS)}")
    draws = LENGTHS[lengths](np.random.default_rng(seed), count, variation)
    return np.maximum(np.round(mean * draws), 1.0)


def of_one_length(variation: Numeric, output_len: Numeric) -> Mask:
    """Whether all answers of a mean length are as long: tokens are whole, so that those of four
    that vary by a tenth, uniformly, are of four each."""
    return np.asarray(np.asarray(variation) * np.asarray(output_len) < 0.5)


def poisson_quantile(mean: Numeric, share: float) -> Array:
    """Quantile of a Poisson number, by the Cornish-Fisher expansion of its normal limit."""
    z = NormalDist().inv_cdf(share)
    values = np.asarray(mean, float)
    return np.asarray(np.maximum(values + z * np.sqrt(values) + (z * z - 1.0) / 6.0, values))

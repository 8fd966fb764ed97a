"""What stalls and slow stages take: moments against integrals, small pipelines against events."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

from predictor.plans import timeline
from predictor.variation.order import maximum, normal_maximum, normal_quantile
from predictor.variation.outcome import LONGEST, Series
from predictor.variation.profile import Profile
from predictor.variation.slow import line_time


def stalling(index: float, stalled: float = 0.02, **more: float) -> Series:
    given = {"same": 0.0, "fresh": 0.0, "run": 0.0, **more}
    of = Profile("own", stalls=1.0, stall_least=0.4, stall_index=index)
    return Series(stalled=stalled, of=of, **given)


@pytest.mark.parametrize("index", [0.7, 1.0, 1.5, 2.0, 3.0])
def test_moments_of_stalls_are_those_of_a_pareto_cut_off(index: float) -> None:
    """Density a l^a x^(-a-1) / (1 - (l / L)^a) from l to L; no stall otherwise."""
    one = stalling(index)
    cut = 1.0 - (0.4 / LONGEST) ** index

    def moment(power: int) -> float:
        found, _ = quad(
            lambda log: np.exp(log * (power - index)), np.log(0.4), np.log(LONGEST), limit=200
        )
        return float(0.02 * index * 0.4**index / cut * found)

    mean, variance = one._stall()
    assert float(mean) == pytest.approx(moment(1), rel=1e-6)
    assert float(variance) == pytest.approx(moment(2) - moment(1) ** 2, rel=1e-6)
    assert float(one.mean()) == pytest.approx(1.0 + moment(1))


@pytest.mark.parametrize("stalled", [0.0, 1e-5, 0.001, 0.02, 0.3])
@pytest.mark.parametrize("index", [0.3, 0.8, 1.5, 3.0])
@pytest.mark.parametrize("fresh", [0.02, 0.2])
def test_quantiles_are_where_the_distribution_says(
    stalled: float, index: float, fresh: float
) -> None:
    one = stalling(index, stalled, fresh=fresh, same=0.01)
    for p in (0.5, 0.9, 0.99, 0.9999):
        found = float(one.quantile(p))
        assert float(one.below(found)) == pytest.approx(p, abs=2e-6)
    if not stalled:
        spread = np.hypot(0.01, fresh)
        assert float(one.quantile(0.99)) == pytest.approx(np.exp(spread * norm.ppf(0.99)))


@pytest.mark.parametrize(("same", "rho"), [(0.1, 0.0), (0.1, 0.5), (0.1, 0.9)])
@pytest.mark.parametrize("steps", [1, 2, 7, 50])
def test_the_mean_of_correlated_steps_varies_as_their_covariances_add_up(
    same: float, rho: float, steps: int
) -> None:
    """Var(mean) = sum_ij s^2 rho^|i - j| / K^2, what is drawn anew over K, and the run's own."""
    of = Profile("own", correlation=rho)
    one = Series(same=same, fresh=0.05, stalled=0.0, run=0.03, of=of)
    at = np.arange(steps)
    shared = same**2 * (rho ** np.abs(at[:, None] - at[None, :])).sum() / steps**2
    mean, spread = one.average(float(steps))
    assert float(mean) == pytest.approx(np.exp(0.5 * (same**2 + 0.05**2)))
    assert float(spread / mean) ** 2 == pytest.approx(shared + 0.05**2 / steps + 0.03**2)


@pytest.mark.parametrize("n", [1.0, 3.0, 100.0, 1e4, 3e6, 1e9])
def test_a_table_of_maxima_is_their_integral(n: float) -> None:
    """Straight between sixteen nodes to the octave, to 1e-4."""
    exact = maximum(normal_quantile, n)
    assert np.array(normal_maximum(n)) == pytest.approx(np.array(exact), abs=2e-4)


@pytest.mark.parametrize("m", [1, 2, 3, 4])
@pytest.mark.parametrize(
    ("forward", "backward"),
    [([1.0, 1.0], [1.0, 4.0]), ([1.0, 4.0], [1.0, 1.0]), ([2.0, 1.0], [5.0, 1.0])],
)
def test_two_unlike_stages_take_what_their_events_take(
    m: int, forward: list[float], backward: list[float]
) -> None:
    events = timeline("1f1b", forward, backward, [0.0, 0.0], m)
    found = line_time(np.array(forward), np.array(backward), float(m))
    assert float(found) == pytest.approx(events[-1].end)


@pytest.mark.parametrize("m", [4, 8, 20])
@pytest.mark.parametrize(
    ("forward", "backward"),
    [
        ([1.0, 1.0, 2.0, 1.0], [2.0, 2.0, 4.0, 2.0]),
        ([2.0, 1.0, 1.0, 1.0], [4.0, 2.0, 2.0, 2.0]),
        ([1.0, 1.0, 1.0, 3.0], [2.0, 2.0, 2.0, 6.0]),
        ([1.0, 3.0, 1.0], [1.0, 3.0, 1.0]),
    ],
)
def test_one_slow_stage_among_several_takes_what_its_events_take(
    m: int, forward: list[float], backward: list[float]
) -> None:
    """Whether the slow one is first, last or between, with a micro-batch for each stage at least;
    to a hundredth."""
    events = timeline("1f1b", forward, backward, [0.0] * len(forward), m)
    found = line_time(np.array(forward), np.array(backward), float(m))
    assert float(found) == pytest.approx(events[-1].end, rel=0.01)

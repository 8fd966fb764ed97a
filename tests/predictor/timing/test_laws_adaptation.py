"""What runs share and what each has by itself: covariances against their definition."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import multivariate_t, t

from predictor.timing.adaptation import (
    HOSTS,
    Prior,
    Traits,
    alone,
    hypotheses,
    learn,
    log_t,
    narrower,
    open_variance,
    shared,
)

PRIOR = Prior(
    level=0.11,
    slopes={"a": 0.3, "b": 0.7},
    alike={"model": 0.13, "place": 0.17},
    near=0.19,
    lengths={"size": 2.0, "tp": 0.5},
    noise=0.05,
    rough={"a": 0.4, "b": 0.6},
    known=0.8,
)


def traits(count: int, waited: float = 1.0, seed: int = 0) -> Traits:
    rng = np.random.default_rng(seed)
    return Traits(
        slopes=rng.uniform(-1.0, 1.0, (count, 2)),
        sizes=rng.uniform(0.0, 4.0, (count, 2)),
        words=rng.choice(["x", "y"], (count, 2)),
        sigma=rng.uniform(0.05, 0.2, count),
        host=np.zeros((count, len(HOSTS))),
        waited=waited * rng.uniform(0.0, 1.0, count),
    )


def test_covariance_is_its_definition_pair_by_pair() -> None:
    """K_ij as the module's docstring has it, in loops."""
    one, other = traits(4), traits(3, seed=1)
    found = shared(one, other, PRIOR)
    for i in range(4):
        for j in range(3):
            value = PRIOR.level**2
            for at, weight in enumerate(PRIOR.slopes.values()):
                value += weight**2 * one.slopes[i, at] * other.slopes[j, at]
            for at, weight in enumerate(PRIOR.alike.values()):
                value += weight**2 * (one.words[i, at] == other.words[j, at])
            apart = sum(
                ((one.sizes[i, at] - other.sizes[j, at]) / length) ** 2
                for at, length in enumerate(PRIOR.lengths.values())
            )
            value += PRIOR.near**2 * math.exp(-0.5 * apart)
            assert found[i, j] == pytest.approx(value)
    own = alone(one, PRIOR)
    for i in range(4):
        rough = sum(
            (weight * one.slopes[i, at]) ** 2 for at, weight in enumerate(PRIOR.rough.values())
        )
        strayed = (PRIOR.strayed * one.waited[i]) ** 2
        assert own[i] == pytest.approx(0.05**2 + rough + (0.8 * one.sigma[i]) ** 2 + strayed)


def test_what_is_open_of_a_run_is_what_it_shares_with_itself_and_has_alone() -> None:
    one = traits(6)
    whole = np.diag(shared(one, one, PRIOR)) + alone(one, PRIOR)
    np.testing.assert_allclose(open_variance(one, PRIOR), whole)


def test_covariances_are_symmetric_and_positive() -> None:
    one = traits(9)
    found = shared(one, one, PRIOR)
    np.testing.assert_allclose(found, found.T)
    assert np.linalg.eigvalsh(found).min() > -1e-12


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("freedom", [3.0, 7.0])
def test_densities_are_those_of_another_library(count: int, freedom: float) -> None:
    """Shah et al. parametrise by freedom alone: unit shape."""
    x = np.random.default_rng(count).normal(size=count)
    theirs = multivariate_t(np.zeros(count), np.eye(count), df=freedom).logpdf(x)
    ours = log_t(np.asarray(x @ x), np.asarray(0.0), count, freedom)
    assert float(ours) == pytest.approx(float(theirs))


@pytest.mark.parametrize("freedom", [5.0, 8.0, 20.0, 100.0])
def test_the_middle_of_a_t_is_narrower_than_its_variance_says(freedom: float) -> None:
    """Its quantile, as the docstring has it, errs by 1e-4."""
    scale = math.sqrt((freedom - 2.0) / freedom)
    usual = t(freedom).ppf(0.9) * scale / 1.2815515655446004
    assert narrower(freedom) == pytest.approx(usual, abs=1e-4)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 6, 24, 25])
def test_hypotheses_are_none_one_two_of_few_and_all(count: int) -> None:
    found = hypotheses(count)
    sizes = found.sum(1).tolist()
    assert sizes[0] == sizes[-1] == 0
    assert sizes.count(0) == 2
    assert sizes.count(1) == count
    pairs = math.comb(count, 2) if 3 < count <= 24 else 0
    assert len(found) == len(np.unique(found, axis=0)) + 1 == 2 + count + pairs


@pytest.mark.parametrize("seed", range(4))
def test_learning_weighs_its_parts_and_the_better_explanation_more(seed: int) -> None:
    one = traits(4, waited=0.0, seed=seed)
    residual = np.array([0.1, 0.12, 0.09, 0.11])
    found = learn(PRIOR, one, residual)
    assert float(found.weight.sum()) == pytest.approx(1.0)
    odd = learn(PRIOR, one, residual + np.array([0.0, 0.0, 0.0, 2.0]))
    assert odd.doubtful.argmax() == 3
    assert odd.doubtful[3] > found.doubtful[3]
    assert odd.evidence < found.evidence
    mean, spread = found.host
    assert abs(mean) < 0.2  # nothing waits for hosts here: the prior's middle
    assert spread == pytest.approx(PRIOR.host, rel=0.05)


def test_the_tails_are_as_heavy_as_the_expansion_of_their_quantile_allows() -> None:
    """With one run known it is used with one degree of freedom more, and holds from five on. A
    factor of two is a usual host's cost and correction, and hardly any is of three."""
    assert PRIOR.freedom + 1 == 5
    assert 0.5 <= PRIOR.host <= math.log(2.0) <= PRIOR.most <= math.log(3.0)

"""What measured runs say of others, hypothesis by hypothesis in plain loops (Shah et al. 2014)."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import multivariate_t

from predictor.catalog.learned import learned_mapping, read_learned
from predictor.timing.adaptation import (
    FAR,
    HOSTS,
    LEAST,
    LOUD,
    OUTLIER,
    PAIRED,
    QUANTILE,
    RESTLESS,
    Learned,
    Prior,
    Traits,
    alone,
    joined,
    learn,
    narrower,
    open_variance,
    shared,
)
from tests.predictor.timing.test_laws_adaptation import PRIOR

PRIOR = replace(PRIOR, early=0.3, freedom=5.0, most=0.5, host=0.4)


def traits(count: int, seed: int, waited: float = 1.0) -> Traits:
    rng = np.random.default_rng(seed)
    slopes = rng.uniform(0.1, 0.5, (count, 1))
    return Traits(
        slopes=rng.uniform(-1.0, 1.0, (count, 2)),
        sizes=rng.uniform(0.0, 4.0, (count, 2)),
        words=rng.choice(["x", "y"], (count, 2)),
        sigma=rng.uniform(0.05, 0.2, count),
        host=slopes * HOSTS,
        waited=waited * rng.uniform(0.0, 1.0, count),
    )


Part = tuple[float, np.ndarray, np.ndarray, int, tuple[int, ...]]
"""Weight, precision, what is left of the residuals, place of the host's cost, outliers."""


def mixture(one: Traits, residual: np.ndarray, prior: Prior = PRIOR) -> tuple[list[Part], float]:
    """Every set of outliers (none, one, two, all) with every cost of the host: each by its prior
    and the density of the residuals as another library has it."""
    count = len(residual)
    base = shared(one, one, prior) + np.diag(alone(one, prior))
    sets = [own for size in (0, 1, 2) for own in itertools.combinations(range(count), size)]
    costs = np.exp(-0.5 * (HOSTS / prior.host) ** 2)
    costs = costs / costs.sum()
    found = []
    for own in [*sets, tuple(range(count))]:
        loud = len(own) == count
        spread = LOUD if loud else FAR
        chance = RESTLESS if loud else (
            (1 - RESTLESS) * OUTLIER ** len(own) * (1 - OUTLIER) ** (count - len(own))
        )  # fmt: skip
        covariance = base + np.diag([spread**2 if i in own else 0.0 for i in range(count)])
        inverse = np.linalg.inv(covariance)
        for place, cost in enumerate(costs):
            left = residual - one.host[:, place]
            density = multivariate_t(np.zeros(count), covariance, df=prior.freedom).pdf(left)
            found.append((chance * cost * float(density), inverse, left, place, own))
    whole = sum(part[0] for part in found)
    kept = [part for part in found if part[0] > 1e-4 * max(part[0] for part in found)]
    share = sum(part[0] for part in kept)
    return [(part[0] / share, *part[1:]) for part in kept], math.log(whole)


SETS = [np.array([0.1, 0.2, 0.05, 0.15]), np.array([0.1, 1.5, 0.12, -0.02]),
        np.array([1.0, -0.8, 0.9, -1.2, 0.3])]  # fmt: skip


@pytest.mark.parametrize("residual", SETS, ids=["calm", "one outlier", "restless"])
def test_learning_is_the_mixture_over_all_explanations(residual: np.ndarray) -> None:
    count = len(residual)
    one, others = traits(count, 1), traits(3, 2)
    found = learn(PRIOR, one, residual)
    parts, evidence = mixture(one, residual)
    assert found.runs == count
    assert found.evidence == pytest.approx(evidence)
    assert len(found.weight) == len(parts)
    assert sorted(found.weight) == pytest.approx(sorted(part[0] for part in parts))
    doubts = [
        sum(weight for weight, *_, own in parts if i in own and len(own) < count)
        for i in range(count)
    ]
    assert found.doubtful == pytest.approx(doubts, abs=1e-9)
    loud = sum(weight for weight, *_, own in parts if len(own) == count)
    assert found.restless == pytest.approx(loud, abs=1e-9)
    costs = [(weight, HOSTS[place]) for weight, _, _, place, _ in parts]
    mean = sum(weight * cost for weight, cost in costs)
    assert found.host == pytest.approx(
        (mean, math.sqrt(sum(weight * (cost - mean) ** 2 for weight, cost in costs)))
    )

    # Of other runs: shared covariances times what explains the residuals, bent at the most that a
    # correction may be, and the host's cost; variances by how well the runs fit (Shah, eq. 8).
    across = shared(others, one, PRIOR)
    variance = open_variance(others, PRIOR)
    means, left = [], []
    for _, inverse, rest, place, own in parts:
        pull = across @ inverse @ rest
        means.append(PRIOR.most * np.tanh(pull / PRIOR.most) + others.host[:, place])
        fit = (PRIOR.freedom + rest @ inverse @ rest) / (PRIOR.freedom + count - 2)
        known = np.einsum("ni,ij,nj->n", across, inverse, across)
        beside = LOUD**2 if len(own) == count else 0.0
        left.append((np.maximum(variance - known, 1e-8) + beside) * fit)
    weights = np.array([part[0] for part in parts])
    mean = weights @ np.array(means)
    total = weights @ (np.array(left) + (np.array(means) - mean) ** 2)
    own_mean, own_spread = found.correction(others)
    assert own_mean == pytest.approx(mean)
    scale = narrower(PRIOR.freedom + count) * (1 - PRIOR.early / (1 + count))
    assert own_spread == pytest.approx(np.sqrt(total) * scale)

    # Of the logs of the physical parameters themselves.
    spread = np.array([*PRIOR.slopes.values()])
    across = (one.slopes * spread**2).T
    means = np.array([across @ inverse @ rest for _, inverse, rest, *_ in parts])
    fits = [
        (PRIOR.freedom + rest @ inverse @ rest) / (PRIOR.freedom + count - 2)
        for _, inverse, rest, *_ in parts
    ]
    left = [
        np.maximum(spread**2 - np.einsum("qi,ij,qj->q", across, inverse, across), 0.0) * fit
        for (_, inverse, *_), fit in zip(parts, fits, strict=True)
    ]
    middle = weights @ means
    total = weights @ (np.array(left) + (means - middle) ** 2)
    slopes, deviations = found.slopes()
    assert slopes == pytest.approx(middle)
    assert deviations == pytest.approx(np.sqrt(total))


def test_one_run_may_be_an_outlier_or_restless() -> None:
    """Each as probable as of several; what it says of others is less by that."""
    one = traits(1, 3)
    found = learn(PRIOR, one, np.array([0.2]))
    assert {tuple(row) for row in found.outlying.tolist()} <= {(False,), (True,)}
    base = float(shared(one, one, PRIOR)[0, 0] + alone(one, PRIOR)[0])
    chances = []
    for variance, chance in (
        (base, (1 - RESTLESS) * (1 - OUTLIER)), (base + FAR**2, (1 - RESTLESS) * OUTLIER),
        (base + LOUD**2, RESTLESS),
    ):  # fmt: skip
        costs = np.exp(-0.5 * (HOSTS / PRIOR.host) ** 2)
        costs = costs / costs.sum()
        chances.append(sum(
            chance * cost * multivariate_t([0.0], [[variance]], df=PRIOR.freedom).pdf([0.2 - at])
            for cost, at in zip(costs, one.host[0], strict=True)
        ))  # fmt: skip
    assert found.evidence == pytest.approx(math.log(sum(chances)))
    assert found.doubtful == pytest.approx([chances[1] / sum(chances)], abs=2e-3)
    assert found.restless == pytest.approx(chances[2] / sum(chances), abs=2e-3)
    far = learn(PRIOR, one, np.array([2.0]))
    assert float(far.doubtful[0]) > float(found.doubtful[0])


def test_a_run_that_was_measured_is_known_where_nothing_else_is_open() -> None:
    """As the spread of one run by itself goes to nothing, its prediction is the measurement."""
    sure = replace(PRIOR, noise=1e-6, rough={"a": 0.0, "b": 0.0}, known=0.0, strayed=0.0, most=1e9)
    one = replace(traits(2, 5, waited=0.0), host=np.zeros((2, len(HOSTS))))
    residual = np.array([0.1, 0.1])
    found = learn(sure, one, residual)
    usual = [
        part for part in range(len(found.weight)) if not found.outlying[found.parts[part, 0]].any()
    ]
    assert found.weight[usual].sum() > 0.5
    means = shared(one, one, sure) @ found.pull[usual[0]]
    assert means == pytest.approx(residual, abs=1e-4)


def test_constants_of_learning_are_what_is_said_of_them() -> None:
    """Half-octave steps of the host's cost from an eighth to eight times; one run in ten off by a
    factor of e to the .6; one source in two dozen restless by 30 %, within .2 to .4."""
    assert pytest.approx(np.log([2.0 ** (0.5 * k) for k in range(-6, 7)])) == HOSTS
    assert (OUTLIER, FAR, LEAST, PAIRED) == (0.1, 0.6, 1e-4, 24)
    assert 0.2 <= LOUD <= 0.4
    assert 1 / 24 <= RESTLESS < 0.1
    assert pytest.approx(1.2815515655446004) == QUANTILE
    usual = Prior(
        level=0.1, slopes={}, alike={}, near=0.0, lengths={}, noise=0.1, rough={}, known=0.0
    )
    assert usual.early == 0.0
    assert (usual.host, usual.freedom, usual.most) == (0.6, 4.0, 0.8)


def test_traits_are_taken_and_joined() -> None:
    one, other = traits(3, 1), traits(2, 2)
    both = joined([one, other])
    for name in Traits.__slots__:
        assert getattr(both, name).tolist() == [
            *getattr(one, name).tolist(), *getattr(other, name).tolist()
        ]  # fmt: skip
        taken = getattr(both.take(np.array([4, 0])), name)
        assert taken.tolist() == [getattr(other, name)[1].tolist(), getattr(one, name)[0].tolist()]


def test_sizes_tell_runs_apart_only_where_the_prior_says_so() -> None:
    one = traits(4, 7)
    flat = replace(PRIOR, near=0.0)
    less = shared(one, one, PRIOR) - shared(one, one, flat)
    assert np.diag(less) == pytest.approx(PRIOR.near**2)
    assert (less[~np.eye(4, dtype=bool)] < PRIOR.near**2).all()
    assert isinstance(learn(PRIOR, one, np.zeros(4)), Learned)


def test_hosts_cost_from_an_eighth_to_eight_times_what_they_usually_do() -> None:
    """In steps of a root of two, the usual one among them."""
    assert np.exp(HOSTS[[0, -1]]) == pytest.approx([1 / 8, 8.0])
    assert np.exp(np.diff(HOSTS)) == pytest.approx(math.sqrt(2.0))
    assert HOSTS[len(HOSTS) // 2] == 0.0


def test_what_was_learned_is_read_as_it_is_written() -> None:
    """And of a file that does not say how long its runs waited, they did not."""
    found = learn(PRIOR, traits(3, 5, waited=0.0), np.array([0.1, -0.05, 0.02]))
    content = json.loads(json.dumps(learned_mapping(found)))
    older = {**content, "runs": [{k: v for k, v in run.items() if k != "waited"}
                                 for run in content["runs"]]}  # fmt: skip
    plan = traits(2, 6, waited=0.0)
    for text in (content, older):
        again = read_learned(text)
        assert again is not None
        assert again.traits.waited.tolist() == [0.0] * 3
        for ours, theirs in zip(again.correction(plan), found.correction(plan), strict=True):
            assert ours.tolist() == pytest.approx(theirs.tolist())
    assert read_learned(None) is learned_mapping(None) is None

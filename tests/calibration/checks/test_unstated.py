"""Whether an ablation finds what was planted, and nothing where nothing is."""

from __future__ import annotations

import numpy as np
import pytest

from calibration.checks.unstated import (
    ablation,
    each_alike,
    interval_score,
    kinds,
    shares,
    spreads,
)

LOTS = np.random.default_rng(7)
RUNS, SOURCES = 1200, 12
SOURCE = np.array([f"s{i % SOURCES}" for i in range(RUNS)])
DOUBT = 0.3 * np.abs(LOTS.standard_normal((RUNS, 2)))
OWN = np.full(RUNS, 0.01)
NOISE = 0.03 * LOTS.standard_normal(RUNS)
DENSE = [False] * RUNS


def test_a_share_that_chose_otherwise_is_found() -> None:
    """Half of the runs have the first field's other value: their steps take that much longer than
    predicted. Nobody has the second's."""
    chose = LOTS.random(RUNS) < 0.5
    error = NOISE - chose * DOUBT[:, 0]
    first, second = shares(error, DOUBT, each_alike(SOURCE))
    assert first == pytest.approx(0.5, abs=0.1)
    assert second < 0.1
    found = ablation(error, OWN, DOUBT, SOURCE, DENSE)
    assert found["error of the mixture"] < found["error as assumed"]
    assert found["interval score with terms"] < found["interval score"]


def test_doubts_that_explain_nothing_are_given_nothing() -> None:
    assert np.all(shares(NOISE, DOUBT, each_alike(SOURCE)) < 0.1)
    found = ablation(NOISE, OWN, DOUBT, SOURCE, DENSE)
    assert found["error of the mixture"] == pytest.approx(found["error as assumed"], rel=0.05)
    assert found["interval score with terms"] == pytest.approx(found["interval score"], rel=0.05)


def test_a_spread_covers_its_level() -> None:
    sigma = spreads(NOISE, 0.0 * OWN, np.ones((RUNS, 1)), each_alike(SOURCE))
    inside = np.abs(NOISE) <= 1.2816 * sigma[0] * (1 + 1e-9)
    assert np.mean(inside) == pytest.approx(0.8, abs=0.01)


def test_a_score_punishes_width_and_misses() -> None:
    """Width, and ten times what lies outside an interval of 80 %."""
    wide, narrow = interval_score(np.array([0.0, 0.5]), np.array([0.2, 0.2])).tolist()
    assert wide == pytest.approx(2 * 1.2816 * 0.2)
    assert narrow - wide == pytest.approx(10 * (0.5 - 1.2816 * 0.2))


def test_mixtures_of_experts_have_a_spread_of_their_own_beneath_the_doubts() -> None:
    """Four times as wide as dense models, half of all rows: who knows which are which scores as an
    interval of each kind's own width does, 2 z s + 10 s (phi(z) - .1 z) * 2 of a normal error."""
    mixture = np.arange(RUNS) // SOURCES % 2 == 0
    error = NOISE * np.where(mixture, 4.0, 1.0)
    told = ablation(error, OWN, DOUBT, SOURCE, mixture.tolist())["interval score"]
    blind = ablation(error, OWN, DOUBT, SOURCE, DENSE)["interval score"]
    z, s = 1.2816, 0.03 * (1.0 + 4.0) / 2.0
    beyond = np.exp(-0.5 * z * z) / np.sqrt(2.0 * np.pi) - 0.1 * z
    assert told == pytest.approx(2.0 * z * s + 10.0 * 2.0 * s * beyond, rel=0.05)
    assert blind > 1.1 * told
    assert kinds([True, False]).tolist() == [[0.0, 1.0], [1.0, 0.0]]
    assert kinds([False, False]).tolist() == [[1.0], [1.0]]

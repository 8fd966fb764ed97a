"""Constants of what varies."""

from __future__ import annotations

import numpy as np
import pytest

from predictor.variation import experts, jobs, meeting, packing
from predictor.variation.profile import LOG2_MOST, SPREADS, Profile


def test_loads_that_state_no_number_are_even_in_likelihood_or_mildly_steep() -> None:
    """A flat Dirichlet distribution has 1; Zipf's law of words has about 1, of experts less."""
    assert experts.SHAPED["dirichlet"] == 1.0
    assert 0.5 <= experts.SHAPED["zipf"] < 1.0


def test_means_over_draws_are_known_to_a_few_in_a_hundred() -> None:
    """The error of a mean falls with the root of the draws; of lots that are dealt one by one fewer
    are enough, since they differ less."""
    for draws in (experts.DRAWS, jobs.DRAWS, packing.WINDOWS, packing.POINTS):
        assert 1e-2 < draws**-0.5 * 2 < 0.1
        assert draws < 5000
    assert 0.1 < experts.DEALT**-0.5 < 0.15


def test_packing_follows_what_was_measured_of_documents() -> None:
    """Two ranks that divide documents far below `SHORT` take 0.70 to 0.75 of what one takes, each
    (measured of one document): the root of two more than half. Pipelines vary by less than the root
    of their stages."""
    _, short, _ = packing._unequal_ranks("quantiles:0:16:1:17", 131072.0, 2)
    assert 0.70 <= short / 2 <= 0.75
    assert 0.0 < packing.NARROWER < 0.5
    assert 64 < packing.SHORT < 4096


def test_tables_reach_as_far_as_machines_do() -> None:
    """Sixteen million accelerators; spreads from nothing to a third; no two meetings at once."""
    assert 2**LOG2_MOST == 16 * 2**20
    assert SPREADS[0] == 0.0
    assert np.diff(np.log10(SPREADS[1:])) == pytest.approx(0.1, rel=0.02), "ten to a decade"
    assert 0.25 < SPREADS[-1] < 1 / 3
    assert 0.0 < meeting.SHORTEST < 1e-6


def test_stalls_have_a_mean_and_no_variance() -> None:
    """Pareto's index lies between one and two; slow accelerators and stalls begin at a tenth."""
    usual = Profile("own")
    assert 1.0 < usual.stall_index < 2.0
    assert usual.slow_least == usual.stall_least == 0.1
    assert usual.slow_scale < 0.25 * usual.slow_least
    assert 0.1 < usual.memory_s < 0.3

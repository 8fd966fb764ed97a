"""Copies of a token that go to one domain go there once: every way of drawing them, counted."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from predictor.plans.copies import distinct_share


def counted(domains: int, copies: int) -> float:
    """Share of domains that differ among so many draws, over every way to draw."""
    ways = [len(set(way)) for way in product(range(domains), repeat=copies)]
    return float(np.mean(ways)) / copies


@pytest.mark.parametrize("domains", [1, 2, 3, 5])
@pytest.mark.parametrize("copies", [1, 2, 3, 4])
def test_drawn_copies_differ_as_often_as_every_way_to_draw_them_says(
    domains: int, copies: int
) -> None:
    assert float(distinct_share(float(domains), float(copies))) == pytest.approx(
        counted(domains, copies)
    )
    # Among a few of the domains only; a reach beyond all of them is all of them.
    for reach in (1, 2, 4, 9):
        found = float(distinct_share(float(domains), float(copies), float(reach)))
        assert found == pytest.approx(counted(min(domains, reach), copies))


def test_a_batch_is_each_by_itself() -> None:
    """Those with one copy among those with several, dealt in turn or drawn."""
    domains, copies = np.array([[2.0], [4.0]]), np.array([1.0, 2.0, 3.0, 8.0])
    for turn in (np.nan, 16.0, np.array([np.nan, 8.0, 16.0, 16.0])):
        many = distinct_share(domains, copies, turn=turn)
        for row, column in product(range(2), range(4)):
            own = np.broadcast_to(turn, (2, 4))[row, column]
            one = distinct_share(domains[row, 0], copies[column], turn=float(own))
            assert many[row, column] == pytest.approx(float(one))


@pytest.mark.parametrize("copies", [2.0, 6.0, 8.0])
def test_more_domains_are_more_to_go_to(copies: float) -> None:
    domains = np.array([1.0, 2.0, 4.0, 8.0, 64.0, 1e6])
    for turn in (np.nan, 64.0):
        found = distinct_share(domains, copies, turn=turn)
        assert (np.diff(found) >= 0).all()
        assert found[0] == pytest.approx(1.0 / copies)
        assert found[-1] == pytest.approx(1.0, abs=1e-4)

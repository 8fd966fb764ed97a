"""Two jobs on one network: by hand, and against a clock that plays them."""

from __future__ import annotations

import numpy as np
import pytest

from predictor.errors import InputError
from predictor.variation.links import fair_shares
from predictor.variation.sharing import shared


def played(own: float, other: float, period: float, phase: float, share: float) -> float:
    """Delay of a transfer that begins at 0, the other job's at `phase` and every period after."""
    grain = 1e-3
    left, now, theirs = own, 0.0, 0.0
    began = phase - period
    while left > 0:
        if now >= began + period - 1e-12:
            began, theirs = began + period, other
        both = theirs > 0
        left -= grain * (share if both else 1.0)
        theirs -= grain * (share if both else 0.0)
        now += grain
    return now - own


def test_halves_by_hand() -> None:
    """1 s and 2 s at half the rate each: the job takes 2 s, a second more. 2 s and 1 s: the other
    is done after 2 s, by when half of the job's is: 3 s, a second more."""
    assert float(shared(1.0, 2.0, 10.0, 0.5).worst) == pytest.approx(1.0)
    assert float(shared(2.0, 1.0, 10.0, 0.5).worst) == pytest.approx(1.0)
    assert float(shared(1.0, 2.0, 10.0, 0.5).average) == pytest.approx(0.2)


def test_the_worst_is_as_played() -> None:
    assert played(1.0, 0.6, 10.0, 0.0, 0.5) == pytest.approx(
        float(shared(1.0, 0.6, 10.0, 0.5).worst), abs=0.01
    )


def test_the_average_is_of_that_size_over_phases() -> None:
    """The other's traffic is slowed too, so that jobs meet somewhat longer than when they do not
    hold each other up."""
    delays = [played(0.5, 0.4, 5.0, phase, 0.5) for phase in np.linspace(0.0, 5.0, 60)]
    assert float(shared(0.5, 0.4, 5.0, 0.5).average) == pytest.approx(np.mean(delays), rel=0.6)


def test_who_shares_nothing_waits_for_nobody() -> None:
    alone = shared(1.0, 2.0, 10.0, 1.0)
    assert (float(alone.worst), float(alone.average)) == (0.0, 0.0)
    idle = shared(1.0, 0.0, 10.0, 0.5)
    assert float(idle.worst) == 0.0
    with pytest.raises(InputError, match="above 0"):
        shared(1.0, 1.0, 10.0, 0.0)
    with pytest.raises(InputError, match="no longer"):
        shared(1.0, 11.0, 10.0, 0.5)


def test_shares_come_from_the_links_that_both_cross() -> None:
    """Two jobs through a spine oversubscribed two to one: each could send 1 and gets a half."""
    paths = np.array([[1.0, 0.0, 1.0], [0.0, 1.0, 1.0]])
    rates = fair_shares(np.array([1.0, 1.0, 1.0]), paths)
    assert rates == pytest.approx([0.5, 0.5])
    assert float(shared(1.0, 1.0, 4.0, float(rates[0])).worst) == pytest.approx(1.0)

"""Spreads of engines: what adds to what, and what is left alone."""

from __future__ import annotations

import math

import numpy as np
import pytest

from predictor.timing.engines import (
    ADDED,
    UNFITTED_SIGMA,
    UNNAMED_SIGMA,
    UNNAMED_SPREAD,
    UNSAID_SIGMA,
    EngineParameters,
    ServingParameters,
)

SIGMA = {
    "ttft": 0.1, "tpot.static": 0.2, "all": 0.3, "kernels.tpot": 0.5, "ttft.serving": 0.12,
    "ttft.serving.used": 0.4, "ttft.serving.queued": 0.8, "ttft.late": 0.15, "ttft.late.used": 0.6,
}  # fmt: skip
KNOWN = ServingParameters({}, SIGMA)


def test_kernels_of_the_accelerator_itself_stand_by_their_share() -> None:
    both = np.array([[0.2, 0.0], [0.3, 0.3]])
    found = KNOWN.kernels("tpot", both)
    assert found == pytest.approx([math.hypot(0.1, 0.3), 0.3])
    whole = KNOWN.kernels("e2e", both)
    assert whole == pytest.approx([math.hypot(0.2, 0.3), 0.3])


@pytest.mark.parametrize("used", [-1.0, 0.0, 0.5, 3.0])
@pytest.mark.parametrize("queued", [0.0, 0.25])
def test_first_tokens_are_less_sure_the_more_they_wait(used: float, queued: float) -> None:
    """Shares between nothing and all; where one is not fitted it adds nothing."""
    early = KNOWN.first_token((used, queued), late=False)
    share = min(max(used, 0.0), 1.0)
    assert float(early) == pytest.approx(
        math.sqrt(0.12**2 + (0.4 * share) ** 2 + (0.8 * queued) ** 2)
    )
    late = KNOWN.first_token((used, queued), late=True)
    assert float(late) == pytest.approx(math.hypot(0.15, 0.6 * share))
    bare = ServingParameters({}, {"ttft.serving": 0.2})
    assert float(bare.first_token((used, queued), late=True)) == 0.2


def test_what_is_not_said_widens_every_spread_of_runs() -> None:
    """Not the share of kernels, nor the parts of waiting, nor what itself says how much."""
    for wide, more in ((KNOWN.unnamed(), UNNAMED_SIGMA), (KNOWN.unsaid(), UNSAID_SIGMA)):
        for name in ("ttft", "tpot.static", "all", "ttft.serving", "ttft.late"):
            assert wide.sigma[name] == pytest.approx(math.hypot(SIGMA[name], more)), name
        for name in ("kernels.tpot", "ttft.serving.used", "ttft.serving.queued", "ttft.late.used"):
            assert wide.sigma[name] == SIGMA[name], name
    fitted = ServingParameters({}, {**SIGMA, UNNAMED_SPREAD: 0.05}).unnamed()
    assert fitted.sigma["ttft"] == pytest.approx(math.hypot(0.1, 0.05))
    assert fitted.sigma[UNNAMED_SPREAD] == 0.05
    assert KNOWN.told(True) is KNOWN
    assert KNOWN.told(False).sigma == KNOWN.unnamed().sigma
    assert ServingParameters().unnamed().sigma == {}


def test_how_much_is_added_makes_four_fifths_of_hidden_rows_lie_inside() -> None:
    """65 % (70) of a normal distribution of unit spread lie within .935 (1.036) of it, 80 % within
    1.282: with a spread of s inside, s sqrt((1.282 / .935)² - 1) has to be added, for s of .3."""
    for added, within in ((UNNAMED_SIGMA, 0.935), (UNSAID_SIGMA, 1.036)):
        needed = UNFITTED_SIGMA * math.sqrt((1.2816 / within) ** 2 - 1.0)
        assert needed / 1.5 < added < 1.5 * needed
    assert set(ADDED.values()) == {UNNAMED_SIGMA, UNSAID_SIGMA}


def test_an_engine_that_nobody_fitted_starts_kernels_as_pytorch_does() -> None:
    """A launch of 4 to 10 us, two or three of them; in a graph less than an empty kernel takes."""
    own = EngineParameters()
    assert 8e-6 <= own.launch < 30e-6
    assert 0.0 < own.gap < 1e-6

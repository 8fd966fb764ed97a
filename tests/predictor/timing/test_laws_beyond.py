"""What a relative that was measured further out says of shapes beyond one's own measurements."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from predictor.timing.relatives import beyond
from tests.predictor.timing.test_laws_timing import chained, model


@pytest.mark.parametrize("away", [0.0, 0.5, 3.0])
def test_ones_own_efficiency_fades_into_the_relatives(away: float) -> None:
    """By exp(-d) at d standard deviations outside: the relative's there, times the ratio of both at
    the edge; latency alike, and as unsure as the relative where nothing is left of one's own."""
    own = model(latency=2e-6, high=np.full(2, 4.0))
    relative = model(latency=5e-6, biases=(np.array([0.1, 0.2, -0.3]), np.array([7.0])))
    resolved: Any = SimpleNamespace(model=own, sigma=0.1, relative_sigma=0.3)
    at, edge = np.array([[6.0, 3.0]]), (4.0, 3.0)
    shapes: Any = SimpleNamespace(variants=("x",), variant=np.zeros(1))
    y, latency, sigma, left = beyond(
        resolved=resolved, relative=relative, features=at, y=np.array([1.7]),
        away=np.array([away]), shapes=shapes, library="",
    )  # fmt: skip
    trust = math.exp(-away)
    there = chained(6.0, 3.0) + 3.0
    fading = there + trust * (1.7 - (chained(*edge) + 3.0))
    assert y == pytest.approx([fading if away else 1.7])
    assert latency == pytest.approx([5e-6 + trust * (2e-6 - 5e-6)])
    assert sigma == pytest.approx([math.hypot(0.1, 0.3 * (1.0 - trust))])
    assert left.tolist() == [0.0], "the relative was measured there"

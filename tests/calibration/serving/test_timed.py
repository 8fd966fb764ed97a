"""What published rows state, of what is predicted for them."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest

from calibration.serving.timed import unmoved


@pytest.mark.parametrize("replicas", [1, 4])
@pytest.mark.parametrize("per_pass", [1.0, 2.0])
@pytest.mark.parametrize("output", [101.0, 1001.0])
def test_prompts_move_the_median_pass_where_half_of_the_passes_have_one(output, per_pass, replicas):
    """As many requests begin in a pass as end: one in so many passes as each takes. Counted over
    passes in which prompts arrive at random."""
    passes = (output - 1.0) / per_pass
    running = passes * np.array([0.4, 0.6, 0.68, 0.71, 0.8, 2.0]) / replicas
    work = SimpleNamespace(output_len=output, per_pass=per_pass, running=running, meeting=replicas)
    draws = np.random.default_rng(3).poisson(running / passes, (20_000, replicas, 6)).max(axis=1)
    assert list(unmoved(work)) == list(np.median(draws, axis=0) == 0)


def test_a_single_token_takes_a_pass():
    running = np.array([0.5, 1.0])
    work = SimpleNamespace(output_len=1.0, per_pass=1.0, running=running, meeting=1.0)
    assert list(unmoved(work)) == [math.log(2.0) > 0.5, False]

from __future__ import annotations

import numpy as np
import pytest

from predictor.models.counts import experts_hit, keys_seen


def seen_one_by_one(query: int, key: int, causal: bool, window: float) -> float:
    past = key - query
    total = 0.0
    for position in range(query):
        # A token in the middle of its step, as the continuous form has it.
        reach = past + position + 0.5 if causal else key
        total += min(reach, window)
    return total / query


@pytest.mark.parametrize("query", [1, 7, 64, 300])
@pytest.mark.parametrize("past", [0, 50, 1000])
@pytest.mark.parametrize("window", [16.0, 64.0, 200.0, np.inf])
@pytest.mark.parametrize("causal", [True, False])
def test_keys_that_a_query_sees(query: int, past: int, window: float, causal: bool) -> None:
    found = keys_seen(query, query + past, float(causal), window)
    assert found == pytest.approx(seen_one_by_one(query, query + past, causal, window), rel=2e-3)


def test_plans_broadcast() -> None:
    found = keys_seen(np.array([128.0, 4096.0]), np.array([128.0, 4096.0]), 1.0, 1024.0)
    np.testing.assert_allclose(found, [64.0, 1024.0 - 1024.0**2 / 8192.0])


def test_experts_with_a_token() -> None:
    """256 experts, 8 of which each token chooses: drawn many times."""
    rng = np.random.default_rng(0)
    for tokens in (1, 4, 32, 256):
        drawn = [
            len({e for _ in range(tokens) for e in rng.choice(256, 8, replace=False)})
            for _ in range(60)
        ]
        assert experts_hit(tokens, 8, 256) == pytest.approx(np.mean(drawn), rel=0.03)
    assert experts_hit(10_000, 8, 256, 1 / 8) == pytest.approx(32.0)

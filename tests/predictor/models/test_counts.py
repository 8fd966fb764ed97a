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


def hit_by_draw(tokens: int, topk: int, experts: int, ranks: int) -> float:
    """Experts hit on the rank with most of them, drawn: shares are uneven (beta), choices free."""
    rng = np.random.default_rng(0)
    draws = 4000
    shares = rng.beta(1.0, (experts - topk) / topk, (draws, experts))
    hit = rng.random((draws, experts)) < 1.0 - (1.0 - shares) ** tokens
    return float(hit.reshape(draws, ranks, -1).sum(axis=2).max(axis=1).mean())


@pytest.mark.parametrize(("experts", "topk"), [(256, 8), (128, 8), (8, 2)])
def test_experts_with_a_token(experts: int, topk: int) -> None:
    for tokens in (4, 32, 256):
        drawn = hit_by_draw(tokens, topk, experts, 1)
        assert experts_hit(tokens, topk, experts) == pytest.approx(drawn, rel=0.03)


@pytest.mark.parametrize("ranks", [2, 4, 8, 16])
def test_the_rank_with_most_experts_hit(ranks: int) -> None:
    """Counts are whole and skewed where few are hit: the normal's largest is within 8 %."""
    for tokens in (8, 32, 128):
        drawn = hit_by_draw(tokens, 8, 128, ranks)
        assert experts_hit(tokens, 8, 128, float(ranks)) == pytest.approx(drawn, rel=0.08)


def test_experts_between_one_token_and_many() -> None:
    tokens = np.array([1.0, 2.0, 31.0, 500.0, 1e6])
    found = experts_hit(tokens, 8, 256)
    assert found[0] == pytest.approx(8.0)
    assert found[2] == pytest.approx(128.0)  # half: as many tokens as experts without a choice
    assert found[-1] == pytest.approx(256.0, rel=1e-3)
    assert np.all(np.diff(found) > 0)
    # Fewer than where all are chosen alike, and never more than there are.
    even = 256 * (1 - (1 - 8 / 256) ** tokens)
    assert np.all(found <= even + 1e-9)
    for ranks in (1.0, 4.0, 16.0, 64.0):
        share = experts_hit(tokens, 8, 256, ranks)
        assert np.all(share <= np.minimum(256 / ranks, 8 * tokens) + 1e-9)
        assert np.all(share >= np.minimum(found / ranks, share) - 1e-9)
    assert experts_hit(1e6, 8, 256, 8.0) == pytest.approx(32.0)
    assert experts_hit(1.0, 8, 256, 256.0) == pytest.approx(1.0, rel=0.03)

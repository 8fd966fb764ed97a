"""Counts that workloads and measurements share: keys that queries see, experts that tokens hit."""

from __future__ import annotations

import numpy as np

from predictor.arrays import Array, Numeric


def keys_seen(query: Numeric, key: Numeric, causal: Numeric, window: Numeric = np.inf) -> Array:
    """Mean number of keys that a query sees.

    query    new tokens, the last of `key` tokens
    key      all tokens
    causal   above 0: a token sees none after itself
    window   a token sees itself and those before it, this many at most
    """
    query, key = np.asarray(query, float), np.asarray(key, float)
    past = key - query
    full = past + query / 2.0
    # Past the window the number of keys stops growing.
    grows = np.clip(window - past, 0.0, query)
    cut = (grows * (past + grows / 2.0) + (query - grows) * np.minimum(window, key)) / query
    seen = np.where(np.asarray(window) < key, cut, full)
    return np.asarray(np.where(np.asarray(causal) > 0, seen, np.minimum(key, window)))


POPULARITY = 1
"""How alike experts are: how often a token chooses one of them is drawn from a beta distribution
with this first parameter (1: some are chosen hardly ever; without end: all alike)."""

LARGEST = (0.0, 0.564, 1.029, 1.424, 1.766, 2.070, 2.344, 2.594, 2.826)
"""Mean of the largest of 1, 2, 4 ... 256 standard normals (Harter 1961)."""


def experts_hit(tokens: Numeric, topk: Numeric, experts: Numeric, ranks: Numeric = 1.0) -> Array:
    """Expected number of experts with at least one token, of the rank with most of them.

    tokens   that are routed
    topk     experts that each of them chooses
    experts  among which it chooses
    ranks    that divide the experts

    Which experts tokens choose is uneven: an expert's share of the tokens is beta-distributed about
    topk / experts (`POPULARITY`), so that a chosen expert is likely to be chosen again, and some
    are missed by many tokens (the beta-binomial's chance of none). What a rank has varies as that
    of as many experts, each hit or not; the others wait for the rank with most.
    """
    held = np.asarray(experts, float) / ranks
    others = POPULARITY * (np.asarray(experts, float) - topk) / topk
    missed: Array = np.ones(())
    for j in range(POPULARITY):
        missed = missed * (others + j) / (others + j + np.asarray(tokens, float))
    hit = 1.0 - missed
    mean = held * hit
    largest = np.interp(np.log2(ranks), np.arange(len(LARGEST)), LARGEST)
    most = mean + largest * np.sqrt(mean * missed)
    routed = np.asarray(tokens, float) * topk / ranks
    whole = np.minimum(held, np.asarray(tokens, float) * topk)
    return np.asarray(np.maximum(np.minimum(most, whole), np.minimum(routed, 1.0)))

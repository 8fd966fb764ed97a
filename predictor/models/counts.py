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


LARGEST = (0.0, 0.564, 1.029, 1.424, 1.766, 2.070, 2.344, 2.594, 2.826)
"""Mean of the largest of 1, 2, 4 ... 256 standard normals (Harter 1961)."""


def experts_hit(tokens: Numeric, topk: Numeric, experts: Numeric, ranks: Numeric = 1.0) -> Array:
    """Expected number of experts with at least one token, of the rank that has most of them.

    tokens   that are routed
    topk     experts that each of them chooses
    experts  among which it chooses
    ranks    that divide the experts

    Some experts are chosen more often than others. Shares of the tokens are spread as where all
    ways to divide them are alike likely (Dirichlet's distribution of concentration 1): an expert's
    is beta-distributed about topk / experts with a first parameter of 1, and n tokens hit it with
    n topk / (n topk + experts - topk). Even routing hits more: 1 - (1 - topk / experts)^n.

    How many of a rank's experts are hit varies by chance, and the others wait for the rank with
    most: a mean and so many standard deviations more (`LARGEST`) of as many that are hit or not.
    """
    routed = np.asarray(tokens, float) * topk
    held = np.asarray(experts, float) / ranks
    hit = routed / (routed + np.asarray(experts, float) - topk)
    above = np.interp(np.log2(ranks), np.arange(len(LARGEST)), LARGEST)
    most = held * hit + above * np.sqrt(held * hit * (1.0 - hit))
    return np.asarray(np.minimum(np.maximum(most, 1.0), np.minimum(held, routed)))

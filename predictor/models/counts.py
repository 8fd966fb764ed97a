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


def experts_hit(tokens: Numeric, topk: Numeric, experts: Numeric, share: Numeric = 1.0) -> Array:
    """Expected number of experts with at least one token, under uniform routing.

    tokens   that are routed
    topk     experts that each of them chooses
    experts  among which it chooses
    share    of the experts that are counted, such as those of one device
    """
    missed = (1.0 - np.asarray(topk, float) / experts) ** tokens
    routed = np.asarray(tokens, float) * topk * share
    return np.maximum(experts * share * (1.0 - missed), np.minimum(routed, 1.0))

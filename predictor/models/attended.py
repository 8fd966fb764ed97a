"""Keys that attention sees where it chooses among them or compresses them."""

from __future__ import annotations

import numpy as np

from predictor.arrays import Numeric
from predictor.models.counts import keys_seen
from predictor.models.model import Model


def attended_keys(model: Model, query: Numeric, keys: Numeric) -> Numeric:
    """Mean number of keys that each of the last `query` of `keys` tokens attends to, in blocks that
    are alike: those it chooses, at most; or a window and keys that stand for several tokens each,
    of which it sees those that are complete, or chooses among them.

    Raises nothing; floats or arrays.
    """
    if not model.is_compressed:
        return keys_seen(query, keys, 1.0, float(model.index_topk))
    seen = keys_seen(query, keys, 1.0, float(model.sliding_window))
    if not model.compression:
        return seen
    most = float(model.index_topk * model.compression) if model.is_sparse else np.inf
    return seen + keys_seen(query, keys, 1.0, most) / model.compression

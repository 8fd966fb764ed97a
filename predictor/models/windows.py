"""Which keys layers with windows see, and how many layers those are."""

from __future__ import annotations

import re

import numpy as np

from predictor.arrays import Numeric

MIXED = re.compile(r"(\d+) local : (\d+) global")
SPARSE = re.compile(r"every (\d+)(?:nd|rd|th) layer full")
PATTERNS = "'all layers', 'alternating', '5 local : 1 global' or 'every 4th layer full'"
"""How a `sliding_pattern` says which layers see a window only."""


def understood(pattern: str) -> bool:
    """Whether a `sliding_pattern` is one of `PATTERNS`; an empty one means all layers."""
    told = pattern.lower()
    known = told.startswith(("all layers", "alternating")) or MIXED.search(told)
    return not told or bool(known or SPARSE.search(told))


class Windows:
    """The part of a model that its windows are: fields as `Model` has them."""

    __slots__ = ()

    layers: int
    conv_layers: int
    delta_layers: int
    out_groups: int
    sliding_window: int
    sliding_pattern: str
    causal: bool

    @property
    def windowed_share(self) -> float:
        """Share of the attention blocks that see `sliding_window` keys at most, 0..1.

        Read from `sliding_pattern`: 'all layers', 'alternating ...', '5 local : 1 global', or '...
        every 4th layer full'; an empty pattern means all.
        """
        if not self.sliding_window or self.out_groups:  # compressed keys have kinds of their own
            return 0.0
        own = self.layers - self.conv_layers - self.delta_layers
        return 1.0 - self.full_layers(own) / max(own, 1)

    def full_layers(self, layers: int) -> int:
        """Of the first `layers` layers those that see everything, as `sliding_pattern` says."""
        pattern = self.sliding_pattern.lower()
        if not self.sliding_window:
            return layers
        if mixed := MIXED.search(pattern):
            return layers // (int(mixed[1]) + int(mixed[2])) * int(mixed[2])
        if pattern.startswith("alternating"):
            return layers // 2
        if sparse := SPARSE.search(pattern):
            return layers // int(sparse[1])
        return 0

    def mean_keys(self, seq_len: Numeric, windowed: bool) -> Numeric:
        """Keys that a query sees, on average over a sequence of `seq_len` tokens.

        A sliding window w: w (1 - w / 2s); chunks of w tokens, each causal in itself: w / 2.
        """
        if not windowed:
            return 0.5 * seq_len if self.causal else seq_len
        window = np.minimum(float(self.sliding_window), seq_len)
        if self.sliding_pattern.startswith("chunked"):
            return 0.5 * window
        return np.asarray(window * (1.0 - 0.5 * window / seq_len))

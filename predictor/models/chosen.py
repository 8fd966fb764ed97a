"""Counts of attention that sees chosen keys: what chooses them, and its weights."""

from __future__ import annotations

from typing import Any

SHARED_INDEX: dict[str, Any] = {"index_heads": 0, "index_head_dim": 0, "sharing_layers": 0}
"""What a layer that chooses no keys itself has not."""

NO_INDEX: dict[str, Any] = {"index_topk": 0, "index_pool": 0, **SHARED_INDEX}
"""What a model that chooses no keys has not."""


class ChosenKeys:
    """The part of a model that its indexers are: fields as `Model` has them."""

    __slots__ = ()

    hidden: int
    q_lora_rank: int
    index_heads: int
    index_head_dim: int
    index_topk: int
    index_block: int
    index_pool: int
    index_means: bool

    @property
    def is_sparse(self) -> bool:
        """Whether attention sees chosen keys."""
        return self.index_topk > 0

    @property
    def chooses(self) -> bool:
        """Whether it chooses them itself, not an earlier layer."""
        return self.index_topk > 0 and self.index_heads > 0

    @property
    def index_matrix(self) -> int:
        """Weights of one block's indexer: queries, one key, a weight per head; 0 without it. Every
        tensor-parallel rank holds them whole."""
        if self.index_block:  # no weights per head: each chooses for its own group
            return self.hidden * (self.index_heads + 1) * self.index_head_dim
        query = (self.q_lora_rank or self.hidden) * self.index_heads * self.index_head_dim
        if self.index_means:
            return query + self.hidden * self.index_head_dim
        keys = self.index_head_dim * (2 if self.index_pool else 1)  # and their weights in a sum
        return query + self.hidden * (keys + self.index_heads)

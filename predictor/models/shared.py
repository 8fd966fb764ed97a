"""Counts of attention and feed-forward blocks that several layers share (Zamba2)."""

from __future__ import annotations


class SharedBlocks:
    """The part of a model that its shared blocks are: fields as `Model` has them."""

    __slots__ = ()

    hidden: int
    heads: int
    head_dim: int
    ffn_hidden: int
    gated: bool
    attention_layers: int
    shared_blocks: int
    shared_rank: int
    shared_queries: bool

    @property
    def stored_share(self) -> float:
        """Blocks of attention that are stored for each that runs; 1 unless they are shared."""
        return self.shared_blocks / self.attention_layers if self.shared_blocks else 1.0

    @property
    def attention_input(self) -> int:
        """Width of what attention projects: the residual stream, beside it the token's embedding
        where blocks are shared (Glorioso et al. 2024, arXiv 2405.16712, figure 2)."""
        return self.hidden * (2 if self.shared_blocks else 1)

    @property
    def use_adapters(self) -> int:
        """Weights of the adapters that each use of a shared block has of its own: on its first
        feed-forward projection, maybe on queries, keys and values (arXiv 2411.15242, section 2)."""
        if not self.shared_blocks:
            return 0
        inner = self.ffn_hidden * (2 if self.gated else 1)
        each = self.attention_input + self.heads * self.head_dim
        return self.shared_rank * (self.hidden + inner + 3 * each * self.shared_queries)

    @property
    def use_matrix(self) -> int:
        """Weights of the matrix through which each use adds to the residual stream, whole on every
        tensor-parallel rank (vllm/model_executor/models/zamba2.py: ReplicatedLinear)."""
        return self.hidden**2 if self.shared_blocks else 0

"""Counts of a mixture of experts: blocks, widths and weights of one."""

from __future__ import annotations

from predictor.models.feed_forward import widths


class Mixture:
    """The part of a model that its mixtures are: fields as `Model` has them."""

    __slots__ = ()

    layers: int
    attention_layers: int
    mamba_layers: int
    mamba_beside: bool
    hidden: int
    gated: bool
    num_experts: int
    expert_ffn_hidden: int
    expert_hidden: int
    expert_bias: bool
    shared_experts: int
    shared_expert_ffn_hidden: int
    dense_layers: int
    moe_every_n: int
    ffn_widths: str

    @property
    def is_moe(self) -> bool:
        """Whether feed-forward blocks are mixtures of experts."""
        return self.num_experts > 0

    @property
    def ffn_blocks(self) -> int:
        """Number of feed-forward blocks, dense and mixtures together."""
        if self.ffn_widths:
            return sum(count for count, _ in widths(self.ffn_widths))
        if self.mamba_beside:
            return self.layers
        return self.layers - self.attention_layers - self.mamba_layers

    @property
    def moe_layers(self) -> int:
        """Number of feed-forward blocks that are mixtures of experts."""
        if not self.is_moe:
            return 0
        return (self.ffn_blocks - self.dense_layers) // max(self.moe_every_n, 1)

    @property
    def has_dense(self) -> bool:
        """Whether there are dense feed-forward blocks: not where each is a mixture, nor where all
        blocks are state spaces or attention."""
        return self.ffn_blocks > self.moe_layers or not (self.is_moe or self.mamba_layers)

    @property
    def expert_width(self) -> int:
        """Width of a token as it enters the experts."""
        return self.expert_hidden or self.hidden

    @property
    def expert_matrix(self) -> int:
        """Weights of one routed expert."""
        return (3 if self.gated else 2) * self.expert_width * self.expert_ffn_hidden

    @property
    def expert_vectors(self) -> tuple[int, int]:
        """Bias parameters of one routed expert: (split by ranks that divide it, whole on each)."""
        if not self.expert_bias:
            return 0, 0
        return (2 if self.gated else 1) * self.expert_ffn_hidden, self.expert_width

    @property
    def shared_width(self) -> int:
        """Inner width of all shared experts of a mixture together."""
        return (self.shared_expert_ffn_hidden or self.expert_ffn_hidden) * self.shared_experts

    @property
    def shared_matrix(self) -> int:
        """Weights of a mixture's shared experts."""
        return (3 if self.gated else 2) * self.hidden * self.shared_width

    @property
    def router_matrix(self) -> int:
        """Weights of a mixture's router, and of its projections to `expert_hidden` and back."""
        return self.hidden * (self.num_experts + 2 * self.expert_hidden)

"""Counts of a state space (Mamba-2): widths and weights of one of its blocks."""

from __future__ import annotations


class StateSpace:
    """The part of a model that its state spaces are: fields as `Model` has them."""

    __slots__ = ()

    hidden: int
    mamba_heads: int
    mamba_head_dim: int
    mamba_state: int
    mamba_groups: int

    @property
    def mamba_width(self) -> int:
        """Channels of a state-space block."""
        return self.mamba_heads * self.mamba_head_dim

    @property
    def mamba_in_width(self) -> int:
        """Output width of its first projection: gate, channels, B and C, step sizes."""
        return 2 * (self.mamba_width + self.mamba_groups * self.mamba_state) + self.mamba_heads

    @property
    def mamba_matrix(self) -> int:
        """Weights of the projections of one state-space block."""
        return self.hidden * (self.mamba_in_width + self.mamba_width)

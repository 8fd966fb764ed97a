"""Counts of a state space (Mamba-1 and Mamba-2): widths and weights of one of its blocks."""

from __future__ import annotations

import numpy as np

from predictor.arrays import Numeric


class StateSpace:
    """The part of a model that its state spaces are: fields as `Model` has them."""

    __slots__ = ()

    hidden: int
    mamba_heads: int
    mamba_head_dim: int
    mamba_state: int
    mamba_groups: int
    mamba_rank: int

    @property
    def mamba_width(self) -> int:
        """Channels of a state-space block."""
        return self.mamba_heads * self.mamba_head_dim

    @property
    def mamba_in_width(self) -> int:
        """Output width of its first projection: gate and channels; in Mamba-2 B and C of each
        group, and a step size for each head, too."""
        if self.mamba_rank:
            return 2 * self.mamba_width
        return 2 * (self.mamba_width + self.mamba_groups * self.mamba_state) + self.mamba_heads

    @property
    def mamba_selected_width(self) -> int:
        """What Mamba-1 projects its channels to: step sizes, still in few channels, B and C, which
        all channels share (Gu and Dao 2023, arXiv 2312.00752, section 3.6); 0 in Mamba-2."""
        return self.mamba_rank + 2 * self.mamba_state if self.mamba_rank else 0

    @property
    def mamba_matrix(self) -> int:
        """Weights of the projections of one state-space block; its convolution, decays and norms,
        0.2 % of them, are left out."""
        inner = self.mamba_width * (self.mamba_selected_width + self.mamba_rank)
        return self.hidden * (self.mamba_in_width + self.mamba_width) + inner

    def mamba_repeated(self, tp: Numeric) -> Numeric:
        """Columns of B and C that a tensor-parallel rank has beyond its share: heads need whole
        groups, which several ranks then have (vllm/model_executor/layers/mamba/mamba_mixer2.py:
        `extra_groups_for_head_shards`)."""
        share = self.mamba_groups / tp
        return 2.0 * self.mamba_state * (np.ceil(share) - share)

"""Counts of a gated delta rule: widths and weights of one of its blocks."""

from __future__ import annotations


class DeltaRule:
    """The part of a model that its delta rules are: fields as `Model` has them."""

    __slots__ = ()

    hidden: int
    delta_key_heads: int
    delta_value_heads: int
    delta_key_dim: int
    delta_value_dim: int
    delta_conv: int
    delta_gate_rank: int
    delta_whole_gate: bool
    delta_whole_decay: bool
    delta_fixed: bool

    @property
    def delta_key_width(self) -> int:
        """Width of the concatenated keys of a delta rule, and of its queries."""
        return self.delta_key_heads * self.delta_key_dim

    @property
    def delta_value_width(self) -> int:
        """Width of its concatenated values."""
        return self.delta_value_heads * self.delta_value_dim

    @property
    def delta_taps(self) -> int:
        """Tokens that its short convolution sees; none where it forgets at fixed rates."""
        return 0 if self.delta_fixed else self.delta_conv

    @property
    def delta_mixed_width(self) -> int:
        """Channels of its short convolution: queries, keys and values."""
        return 2 * self.delta_key_width + self.delta_value_width

    @property
    def delta_decay_width(self) -> int:
        """Decays of a delta rule: one per value head, or one for each channel of its keys."""
        return self.delta_value_heads * (self.delta_key_dim if self.delta_gate_rank else 1)

    @property
    def delta_low_ranks(self) -> int:
        """Channels through which decays, and perhaps the gate, are projected."""
        return self.delta_gate_rank * (2 - self.delta_whole_gate - self.delta_whole_decay)

    @property
    def delta_down_matrix(self) -> int:
        """Weights of the projections to those channels, whole on every tensor-parallel rank."""
        return self.hidden * self.delta_low_ranks

    @property
    def delta_matrix(self) -> int:
        """Weights of one block with a delta rule: what the convolution sees, the output's gate,
        decays and a step size per value head; output; the convolution. At fixed rates, queries,
        keys, values, gate and output alone."""
        values, heads = self.delta_value_width, self.delta_value_heads
        if self.delta_fixed:
            return self.hidden * (self.delta_mixed_width + 2 * values)
        widths = self.delta_mixed_width + values + heads
        if self.delta_gate_rank:
            gate = 0 if self.delta_whole_gate else self.delta_gate_rank * values
            decay = 0 if self.delta_whole_decay else self.delta_gate_rank * self.delta_decay_width
            low = self.delta_down_matrix + decay + gate
            widths += values * self.delta_whole_gate
            widths += self.delta_decay_width * self.delta_whole_decay
        else:
            low, widths = 0, widths + values + heads
        return self.hidden * widths + low + self.delta_conv * self.delta_mixed_width

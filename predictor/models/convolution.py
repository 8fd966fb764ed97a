"""Counts of a gated short convolution in attention's place: weights of one of its blocks."""

from __future__ import annotations


class ShortConvolution:
    """The part of a model that its short convolutions are: fields as `Model` has them."""

    __slots__ = ()

    hidden: int
    conv_layers: int
    conv_taps: int
    layers: int

    @property
    def conv_share(self) -> float:
        """Short convolutions per layer."""
        return self.conv_layers / max(self.layers, 1)

    @property
    def conv_matrix(self) -> int:
        """Weights of one block: gate before, gate behind and channels, output; the convolution."""
        return 4 * self.hidden * self.hidden + self.conv_taps * self.hidden

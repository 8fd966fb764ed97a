"""Counts of alternating updates and learned residuals (Gemma 3n).

A layer has several copies of the residual stream, of which its blocks see one: it predicts all from
all, and corrects all by what the blocks made of that one (Baykal et al. 2023, NeurIPS, AltUp).
Beside attention a low-rank product of the same input is added (Menghani et al. 2024, arXiv
2411.07501, LAuReL). Counted off transformers 5.24, modeling_gemma3n.py (`Gemma3nTextAltUp`,
`Gemma3nTextLaurelBlock`, `Gemma3nTextModel`).
"""

from __future__ import annotations


class Alternating:
    """The part of a model that its alternating updates are: fields as `Model` has them."""

    __slots__ = ()

    layers: int
    hidden: int
    alternating_streams: int
    laurel_rank: int

    @property
    def alternating_layer_matrix(self) -> int:
        """Weights of one layer's router of the copies, of its predictions and corrections, a norm
        and a scale, which every tensor-parallel rank holds whole; 0 without several copies."""
        n = self.alternating_streams
        return self.hidden * (n + 2) + n**3 + n**2 if n else 0

    @property
    def laurel_matrix(self) -> int:
        """Weights of one layer's low-rank product beside attention, its norm's aside."""
        return 2 * self.hidden * self.laurel_rank

    @property
    def laurel_norm(self) -> int:
        """Those of its norm."""
        return self.hidden if self.laurel_rank else 0

    @property
    def alternating_ends(self) -> int:
        """Weights that make the other copies of the embedding, and take them together at the
        end."""
        return 2 * max(self.alternating_streams - 1, 0) * self.hidden**2

    @property
    def alternating_matrix(self) -> int:
        """All of them."""
        layer = self.alternating_layer_matrix + self.laurel_matrix + self.laurel_norm
        return self.layers * layer + self.alternating_ends

"""Counts of a model's two ends: embeddings, those of its layers, and the output projection."""

from __future__ import annotations


class Ends:
    """The part of a model that its ends are: fields as `Model` has them."""

    __slots__ = ()

    layers: int
    hidden: int
    vocab: int
    positions: str
    max_context: int
    tied_embeddings: bool
    layer_inputs: int

    @property
    def layer_input_matrix(self) -> int:
        """Weights of one layer's gate and projection of its own embedding."""
        return 2 * self.hidden * self.layer_inputs

    @property
    def input_projection(self) -> int:
        """Weights that take the token embedding to all layers' own inputs."""
        return self.hidden * self.layers * self.layer_inputs

    @property
    def embedding_parameters(self) -> int:
        """Token embedding, those of the layers, and learned positions where the model has them."""
        positions = self.max_context * self.hidden if self.positions == "learned" else 0
        return self.vocab * self.embedding_width + positions

    @property
    def embedding_width(self) -> int:
        """Columns of a token's embeddings, those that layers add on their own with them."""
        return self.hidden + self.layers * self.layer_inputs

    @property
    def head_parameters(self) -> int:
        """Parameters of the output projection that are its own (0 where tied)."""
        return 0 if self.tied_embeddings else self.vocab * self.hidden

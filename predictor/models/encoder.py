"""The second tower as a model of its own, and what lies before and behind its layers."""

from __future__ import annotations

from predictor.models.model import Model
from predictor.models.tower import Tower


def encoder(tower: Tower, looped: bool = False) -> Model:
    """The layers as a model of their own, whose tokens all see each other.

    looped  images and windows attend one after the other
    """
    return Model(
        name=f"{tower.kind} tower",
        layers=tower.layers,
        hidden=tower.hidden,
        heads=tower.heads,
        kv_heads=tower.heads,
        head_dim=tower.hidden // tower.heads,
        ffn_hidden=tower.ffn_hidden,
        vocab=1,
        gated=tower.gated,
        activation="gelu",
        norm="layernorm",
        positions="none",
        bias=True,
        causal=False,
        looped=looped,
    )


def around_layers(tower: Tower, hidden: int) -> float:
    """Products before and behind the layers, of patches and of a projector of two matrices to a
    language model of a width, in layers' worth of arithmetic."""
    before = tower.patches * tower.patch_width * tower.hidden
    behind = tower.tokens * (tower.merged * tower.hidden * hidden + hidden * hidden)
    own = encoder(tower)
    return (before + behind) / (tower.patches * (own.attention_matrix + own.dense_ffn_matrix))


def tower_parameters(tower: Tower, hidden: int) -> int:
    """Weights of the layers and of what is around them."""
    own = encoder(tower)
    around = tower.patch_width * tower.hidden + hidden * (tower.merged * tower.hidden + hidden)
    return own.matrix_parameters() + own.vector_parameters + around

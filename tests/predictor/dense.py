"""A small dense model for tests that count its work by hand."""

from __future__ import annotations

from typing import Any

from predictor.models.model import Model


def dense(
    *,
    layers: int = 12,
    heads: int = 8,
    kv_heads: int | None = None,
    head_dim: int = 64,
    ffn_hidden: int = 2048,
    vocab: int = 4096,
    **more: Any,
) -> Model:
    """As wide as its heads, with keys and values for each of them, if nothing else is said."""
    fields = {"name": "dense", "hidden": heads * head_dim, **more}
    return Model(
        layers=layers,
        heads=heads,
        kv_heads=kv_heads or heads,
        head_dim=head_dim,
        ffn_hidden=ffn_hidden,
        vocab=vocab,
        **fields,
    )

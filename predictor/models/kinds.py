"""Kinds of blocks that a model has, each as a model all of whose blocks are of that kind."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from predictor.models.chosen import NO_INDEX, SHARED_INDEX

if TYPE_CHECKING:
    from predictor.models.model import Model

PLAIN: dict[str, Any] = {
    "window_heads": 0, "window_kv_heads": 0, "window_head_dim": 0, "borrowing_layers": 0,
    "borrowing_ffn_hidden": 0, "sliding_pattern": "",
}  # fmt: skip
"""What a model of one kind of attention has not."""


@lru_cache(maxsize=256)
def plain_kinds(model: Model) -> tuple[tuple[int, Model], ...]:
    """As `Model.attention_kinds`: full layers, windowed ones, and those of both that borrow."""
    whole = replace(model, **PLAIN, sliding_window=0)
    windowed = replace(
        model,
        **PLAIN,
        heads=model.window_heads or model.heads,
        kv_heads=model.window_kv_heads or model.kv_heads,
        head_dim=model.window_head_dim or model.head_dim,
        values_are_keys=False,
    )
    own = model.layers - model.borrowing_layers
    found = []
    for kind, full in ((whole, True), (windowed, False)):
        counts = [model.full_layers(n) if full else n - model.full_layers(n)
                  for n in (own, model.layers)]  # fmt: skip
        found.append((counts[0], kind))
        found.append((counts[1] - counts[0], replace(kind, borrowing_layers=model.layers)))
    return tuple((count, kind) for count, kind in found if count)


@lru_cache(maxsize=256)
def wide_blocks(model: Model) -> Model:
    """The feed-forward blocks of a model's borrowing layers."""
    return replace(model, ffn_hidden=model.borrowing_ffn_hidden, borrowing_ffn_hidden=0)


@lru_cache(maxsize=256)
def sparse_kinds(model: Model) -> tuple[tuple[int, Model], ...]:
    """As `Model.attention_kinds`: layers with a window or all keys, that choose, that pool."""
    if model.sharing_layers and not model.is_compressed:
        choosing = model.attention_blocks - model.sharing_layers
        alike = replace(model, **SHARED_INDEX)
        return ((choosing, replace(model, sharing_layers=0)), (model.sharing_layers, alike))
    if not model.is_compressed:
        whole = replace(model, whole_layers=0, index_block=0, **NO_INDEX)
        choosing = model.attention_blocks - model.whole_layers
        return ((model.whole_layers, whole), (choosing, replace(model, whole_layers=0)))
    return tuple((count, replace(model, **changes)) for count, changes in model.compressed_kinds)

"""The two halves of a model whose prompts pass the last layers over their last window alone
(DeepSeek-V4.1)."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np

from predictor.arrays import Numeric
from predictor.models.model import Model


@lru_cache(maxsize=64)
def halves(model: Model) -> tuple[Model, Model]:
    """The layers before the decoder's, and these, each as a model of its own."""
    first, last = model.prompt_parts
    return replace(model, **first), replace(model, **last)


def parts(model: Model, whole: Numeric, last: Numeric | None) -> tuple[tuple[Model, Numeric], ...]:
    """Models whose layers together are those of a model, and how much passes each.

    whole  what passes all layers, but for the decoder's
    last   what passes these; None: as much
    """
    if last is None or not model.decoder_layers:
        return ((model, whole),)
    first, second = halves(model)
    return ((first, whole), (second, last))


def passing_share(model: Model, tokens: Numeric) -> Numeric:
    """Share of a prompt's new `tokens` that pass the decoder's layers, too: those of its window."""
    return np.minimum(float(model.sliding_window) / np.asarray(tokens, float), 1.0)

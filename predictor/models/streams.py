"""What layers hand on where there is more than one residual stream."""

from __future__ import annotations

from predictor.models.model import Model


def sums_before(model: Model) -> float:
    """Sums of earlier blocks that a layer chooses its input among, on average; the embedding and
    its own sum aside (`Model.residual_block`)."""
    each, layers = model.residual_block, model.layers
    return sum(layer // each for layer in range(layers)) / max(layers, 1) if each else 0.0


def handed_width(model: Model) -> float:
    """Columns that a layer hands to the next: the residual stream, or all of them; or, where later
    layers choose among sums, on average the embedding, the sums before and the layer's own."""
    several = sums_before(model) + 2.0 if model.residual_block else float(max(model.streams, 1))
    return model.hidden * several

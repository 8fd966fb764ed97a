"""What a request says of images: tiles for the second tower, and tokens in the prompt."""

from __future__ import annotations

from predictor.catalog import Assumption, Filler
from predictor.errors import InputError
from predictor.models import Model


def take_images(filler: Filler, model: Model) -> None:
    """Replace `images` and `image_tiles` by `tiles`, and add their tokens to the prompt's.

    Raises InputError for images of a model that has no tower, and for tiles without images.
    """
    values = filler.values
    images, tiles = (float(values.pop(name, usual)) for name, usual in USUAL.items())
    if not images:
        return
    if model.tower is None:
        raise InputError(
            f"images: {model.name} has no second tower; take a config.json with a vision_config or "
            "an audio_config, or state `tower` in its file"
        )
    values["tiles"] = images * tiles
    values["input_len"] += round(images * tiles * model.tower.tokens)
    rule = f"the text's, and {model.tower.tokens} of each of {images * tiles:g} tiles"
    filler.assumed.append(Assumption("input_len", values["input_len"], rule))


USUAL = {"images": 0.0, "image_tiles": 1.0}
"""Where nothing is stated."""

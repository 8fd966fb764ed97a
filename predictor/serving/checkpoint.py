"""Data types that a model's own file states, where a request leaves them open."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from predictor.catalog import NAMED, STORED, Assumption, Filler, known, read_model_name
from predictor.errors import InputError
from predictor.hardware import Accelerator
from predictor.models import Model, Quantization, narrowing

LOOSELY = {"fp8": "fp8_block", "mxfp4": "w4a16_mxfp4"}
"""What people call the data type of a checkpoint, for what it is: with scales by blocks; of the
weights alone."""


def _as_released(model: Model, values: Mapping[str, Any]) -> Model:
    """A model of the catalog as its makers released it, where nobody released it in 16 bits."""
    name = values.get("model")
    if model.quantization is not None or not isinstance(name, str) or not known("models", name):
        return model
    released = read_model_name(name)
    if released is None or released.quantization is None:
        return model
    return replace(model, quantization=Quantization(**released.quantization))


def fill_stored(filler: Filler, model: Model, accelerator: Accelerator) -> None:
    """Take precision, what is narrowed and the cache's data type from the checkpoint, unless
    another precision is stated.

    Raises InputError for a format that no data type of a plan stands for.
    """
    values = filler.values
    model = _as_released(model, values)
    stored = model.quantization
    if stored is None:
        return
    if LOOSELY.get(str(values.get("precision"))) == stored.precision:
        values["precision"] = stored.precision
        rule = "what its checkpoint has, which is called so"
        filler.assumed.append(Assumption("precision", stored.precision, rule))
    if values.get("precision", stored.precision) != stored.precision:
        return
    if not stored.precision:
        raise InputError(
            f"{model.name}: quantization_config ({stored.method}) says {stored.remark}, which no "
            "data type stands for; state --precision"
        )
    form, otherwise = narrowing(model)
    remarks = "; ".join(text for text in (stored.remark, otherwise) if text)
    by_name = stored.method.startswith(NAMED)
    source = stored.method if by_name else f"{STORED} ({stored.method})"
    rule = source + (f": {remarks}" if remarks else "")
    if form == "none":
        filler.assumed.append(Assumption("precision", "16 bits", f"{rule}; the most are exempt"))
        return
    filler.fill("precision", stored.precision, rule)
    own = NAMED if by_name else STORED
    if stored.others:
        told = f"{own}: experts are narrower than the other projections"
        filler.fill("narrowed", "experts_below_fp8", told)
    elif form == "experts":
        filler.fill("narrowed", "experts", f"{own}: the other projections are exempt")
    if stored.cache == "fp8" and "fp8" not in accelerator.peak:
        if "kv_precision" not in values:
            told = f"not fp8, as {STORED} says: {accelerator.name} has no unit for it"
            filler.assumed.append(Assumption("kv_precision", "16 bits", told))
    elif stored.cache:
        filler.fill("kv_precision", stored.cache, STORED)

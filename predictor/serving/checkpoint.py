"""Data types that a model's own file states, where a request leaves them open."""

from __future__ import annotations

from predictor.catalog import NAMED, STORED, Assumption, Filler
from predictor.errors import InputError
from predictor.hardware import Accelerator
from predictor.models import Model, narrowing


def fill_stored(filler: Filler, model: Model, accelerator: Accelerator) -> None:
    """Take precision, what is narrowed and the cache's data type from the checkpoint, unless
    another precision is stated.

    Raises InputError for a format that no data type of a plan stands for.
    """
    stored, values = model.quantization, filler.values
    if stored is None or values.get("precision", stored.precision) != stored.precision:
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
    if form == "experts":
        own = NAMED if by_name else STORED
        filler.fill("narrowed", "experts", f"{own}: the other projections are exempt")
    if stored.cache == "fp8" and "fp8" not in accelerator.peak:
        if "kv_precision" not in values:
            told = f"not fp8, as {STORED} says: {accelerator.name} has no unit for it"
            filler.assumed.append(Assumption("kv_precision", "16 bits", told))
    elif stored.cache:
        filler.fill("kv_precision", stored.cache, STORED)

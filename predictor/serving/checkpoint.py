"""Data types that a model's own file states, where a request leaves them open."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from predictor.arrays import identity
from predictor.catalog import (
    NAMED,
    STORED,
    Assumption,
    Default,
    Filler,
    Setting,
    default_precision,
    engine_named,
    known,
    named_model,
    read_model_name,
    spelled,
)
from predictor.errors import InputError
from predictor.hardware import Accelerator
from predictor.models import Model, Quantization, narrowing
from predictor.precision import PEAK, WEIGHT_BYTES

LOOSELY = {"fp8": "fp8_block", "mxfp4": "w4a16_mxfp4"}
"""What people call the data type of a checkpoint, for what it is: with scales by blocks; of the
weights alone."""

FILLED = 0.9
"""Share of a device's memory that weights fill at most: what vLLM takes in all unless told
otherwise (`gpu_memory_utilization`)."""

NARROWER = ("fp8", "int4_wo")
"""Data types that are taken where 16 bits do not fit, the widest first."""


def own_format(values: Mapping[str, Any], model: Model, accelerator: Accelerator) -> list[Default]:
    """The data type that the engine's checkpoints have unless somebody says otherwise, where it is
    one whose facts say so (llama.cpp takes Q4_K_M, NIM the narrowest profile)."""
    engine = engine_named(spelled(str(values.get("framework", "neutral"))))
    where = Setting(accelerator=accelerator, model=model)
    facts = engine.defaults(where, values.get("era"), str(values.get("version", "")))
    return [one for one in facts if one.field == "precision"]


def as_narrow_as_fits(
    values: Mapping[str, Any], model: Model, accelerator: Accelerator
) -> list[Default]:
    """The widest data type in which the weights fit the accelerators that are stated, of a run that
    there was, and which therefore fitted; none where 16 bits do, or nothing does."""
    # Replicas of the attention share the experts of one another.
    replicas = float(values.get("dp", 1))
    one = float(values.get("tp", 0)) * float(values.get("pp", 1))
    one = one or float(values.get("gpus", 0)) / replicas
    ranks = one * replicas if model.is_moe else one
    room = FILLED * float(accelerator.memory) * ranks
    half = default_precision(accelerator).value
    if not room or values.get("offload", "none") != "none":
        return []
    for name in (half, *NARROWER):
        multiplied = name != "fp8" or name in accelerator.peak
        if multiplied and model.parameters * WEIGHT_BYTES[name] <= room:
            rule = (
                f"the widest in which the weights fit {ranks:g} x {accelerator.name}, as they did"
            )
            return [Default("precision", name, rule, when=name != half)]
    return []


def _as_released(model: Model, values: Mapping[str, Any]) -> Model:
    """A model of the catalog as its makers released it, where nobody released it in 16 bits."""
    name = values.get("model", model.name)
    if model.quantization is not None or not isinstance(name, str) or not known("models", name):
        return model
    if "model" not in values and identity(named_model({"model": name})) != identity(model):
        return model  # somebody's own that is called so
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
    if PEAK.get(stored.cache, stored.cache) in {"fp8", "fp4"} - accelerator.peak.keys():
        if "kv_precision" not in values:
            told = f"not {stored.cache}, as {STORED} says: {accelerator.name} has no unit for it"
            filler.assumed.append(Assumption("kv_precision", "16 bits", told))
    elif stored.cache:
        filler.fill("kv_precision", stored.cache, STORED)


def fill_weights(filler: Filler, model: Model, accelerator: Accelerator, ran: bool) -> bool:
    """Fill in the weights' data type from the checkpoint (`fill_stored`), else from the engine's
    own format, else, of a run that there was, from what fitted; returns whether no checkpoint and
    nobody else says it.

    Raises InputError for a format that no data type of a plan stands for.
    """
    fill_stored(filler, model, accelerator)
    if "precision" in filler.values:
        return False
    filler.run(own_format(filler.values, model, accelerator))
    filler.run(as_narrow_as_fits(filler.values, model, accelerator) if ran else [])
    return True

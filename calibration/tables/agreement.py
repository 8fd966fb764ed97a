"""What a row of a table of runs says twice: whether that agrees, and what counts otherwise."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from calibration.tables.cells import cell
from predictor.errors import InputError
from predictor.plans import ServingPlan, TrainingPlan

RANKS = ("tp", "pp", "cp", "dp")
"""Columns whose product is all accelerators."""


def check_sequences(dp: Any, batch: Any, each: Any) -> None:
    """Raise InputError where a row has more replicas, or more of them times sequences of a
    micro-batch, than sequences.

    each   of a micro-batch, None where the row does not state it
    """
    if not all(isinstance(one, int | float) for one in (dp, batch, each or 1)):
        return
    if dp and batch and batch < dp * max(each or 1, 1):
        told = f"dp {dp:g} x micro-batch {each}" if each else f"dp {dp:g}"
        raise InputError(f"the row contradicts itself: global batch {batch} is less than {told}")


def overruled(row: Mapping[str, Any], plan: TrainingPlan | ServingPlan) -> str:
    """What counts of a row whose accelerators are not the product of its ranks; empty where they
    are, where a row leaves one of them open, and where ranks that divide experts are counted in.

    plan   that the row was read as
    """
    stated = {name: cell(row, name) for name in ("num_gpus", *RANKS, "ep")}
    gpus, named = stated["num_gpus"], [name for name in RANKS if stated[name]]
    product = math.prod(int(stated[name]) for name in named)
    if not gpus or not {"tp", "pp"} <= set(named) or float(gpus) in (
        product, product * float(stated["ep"] or 1)
    ):  # fmt: skip
        return ""
    if "dp" not in named and gpus % product == 0:
        return ""
    if plan.dp == (stated["dp"] or 1) and plan.gpus == gpus:  # ranks of the attention alone
        return ""
    ranks = " x ".join(f"{name} {stated[name]:g}" for name in named)
    told = f"num_gpus {gpus:g} is not {ranks}"
    if plan.gpus == gpus:
        return f"{told}: it counts, and dp {plan.dp:g} follows"
    return f"{told}: the ranks count, {plan.gpus:g} accelerators"

"""What tables of narrow products time beside the product: the kernel that narrows its input.

Libraries' linear layers take 16-bit activations, and narrow them before an fp8 or fp4 product. Of
the smallest products nothing but launches is left: what they take over the same ones in 16 bits is
the cast's, by library.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pandas as pd

from predictor.precision import ELEMENT_BYTES
from predictor.timing import ANY, EfficiencyModel

NARROW = tuple(name for name in ("fp8", "fp8_block", "mxfp8", "nvfp4") if ELEMENT_BYTES[name] < 2)
"""Data types whose products come with a cast."""

FEW_ROWS, SMALL = 16.0, 2.0**22
"""Rows and elements of the matrix up to which a product is little more than its launches."""

SHARE = 0.1
"""Quantile of the times of the smallest products that is compared: neighbours disturb the rest."""


Casts = Mapping[tuple[str, str], Mapping[str, float]]
"""Time of the casts by (data type, accelerator) and library [s]."""


def casts(table: pd.DataFrame) -> dict[tuple[str, str], dict[str, float]]:
    """Time of the casts by (data type, accelerator) and library, '' for their mean [s].

    table   checked rows of products that name their library (`framework`)
    """
    small = table[
        (table["op"] == "gemm")
        & (table["framework"] != "")
        & (table["batch"].fillna(1.0) <= 1.0)
        & (table["m"] <= FEW_ROWS)
        & (table["n"] * table["k"] <= SMALL)
    ]
    keys = ["accelerator", "framework", "dtype"]
    least = small.groupby(keys, observed=True)["latency_us"].quantile(SHARE).unstack("dtype")
    found: dict[tuple[str, str], dict[str, float]] = {}
    if "bf16" not in least:
        return found
    for dtype in NARROW:
        if dtype not in least:
            continue
        over = (least[dtype] - least["bf16"]).dropna().clip(lower=0.0) * 1e-6
        for row in over.rename("cast").reset_index().to_dict("records"):
            own = found.setdefault((dtype, str(row["accelerator"])), {})
            own[str(row["framework"])] = float(row["cast"])
    for own in found.values():
        own[""] = float(np.mean(list(own.values())))
    return found


def with_casts(
    models: Mapping[tuple[str, str, str], EfficiencyModel],
    known: Casts,
    architectures: Mapping[str, str],
) -> dict[tuple[str, str, str], EfficiencyModel]:
    """Models of products with what their tables time beside them; a pooled one has the mean of its
    accelerators'.

    known           `casts`
    architectures   of the accelerators
    """
    pooled: dict[tuple[str, str], dict[str, list[float]]] = {}
    for (dtype, accelerator), own in known.items():
        place = pooled.setdefault((dtype, f"{ANY}{architectures[accelerator]}"), {})
        for library, cast in own.items():
            place.setdefault(library, []).append(cast)
    means = {
        place: {library: float(np.mean(values)) for library, values in own.items()}
        for place, own in pooled.items()
    }
    every = {**means, **{key: dict(own) for key, own in known.items()}}
    return {
        key: replace(model, casts=every[key[1:]])
        if key[0] == "gemm" and key[1:] in every
        else model
        for key, model in models.items()
    }

"""Kernel libraries as a factor: what each takes over the geometric mean of all, which is neutral.

Several serving libraries time the same shapes. The logarithm of a time is that of the neutral
library plus a constant per library; the constants of one kind of kernel add up to zero over the
libraries that the tables hold. Where an accelerator was timed with some of them only, its neutral
time is taken with the constants that hold elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from predictor.schema import KERNEL_NUMBERS

SHAPE = [*KERNEL_NUMBERS, "kv_dtype", "kernel", "layout"]
"""Columns that say which kernel was timed, whoever did it."""

LEAST_COMMON = 20
"""Shapes that libraries must share before their difference is believed."""

UNFIT = np.log(4.0)
"""How much longer than the quickest, each beside its usual, an attention kernel may take: one
beyond was not made for that shape, of which it says nothing to others. TensorRT-LLM decodes 48
query heads and more of a key head some 40 times slower than others do; of the shared shapes 1 %
on the parts of data centres, 6 % on L40S and RTX PRO 6000 are beyond."""


def log_times(rows: pd.DataFrame, more: Sequence[str] = ()) -> pd.DataFrame:
    """log latency by shape (rows) and library (columns).

    more   columns that part rows beside their shape
    """
    shape = rows.groupby(SHAPE, dropna=False, observed=True).ngroup().rename("shape")
    logs = np.log(rows["latency_us"])
    parting = [rows[name] for name in more]
    return logs.groupby([shape, *parting, rows["framework"]]).mean().unstack()


def typical(tables: Mapping[str, pd.DataFrame]) -> dict[str, float]:
    """Constant of each library, averaged over the accelerators on which most libraries were timed.

    tables   rows of one kind and data type by accelerator
    """
    found: list[pd.Series] = []
    for rows in tables.values():
        named = rows[rows["framework"] != ""]
        if named["framework"].nunique() < 2:
            continue
        complete = log_times(named).dropna()
        if len(complete) >= LEAST_COMMON:
            found.append(complete.mean() - complete.mean().mean())
    if not found:
        return {}
    most = max(len(one) for one in found)
    table = pd.DataFrame([one for one in found if len(one) == most])
    return {str(name): float(value) for name, value in table.mean().items()}


def neutral(rows: pd.DataFrame, usual: Mapping[str, float]) -> pd.DataFrame:
    """Rows of one kind, data type and accelerator as the neutral library would time them, one per
    shape; rows without a library stay as they are.

    usual   constants that hold elsewhere (`typical`)
    """
    named = rows["framework"] != ""
    if not named.any():
        return rows
    wide = log_times(rows[named])
    base = np.array([usual.get(str(name), 0.0) for name in wide.columns])
    complete = wide.dropna()
    if wide.shape[1] > 1 and len(complete) >= LEAST_COMMON:
        own = (complete.mean() - complete.mean().mean()).to_numpy() + base.mean()
    else:
        own = base
    beside = wide - own
    if str(rows["op"].iloc[0]).startswith("attention"):
        beside = beside.where(beside.sub(beside.min(axis=1), axis=0) <= UNFIT)
    logs = beside.mean(axis=1)
    shapes = rows[named].assign(shape=rows[named].groupby(SHAPE, dropna=False).ngroup())
    one = shapes.drop_duplicates("shape").set_index("shape").sort_index()
    one = one.assign(latency_us=np.exp(logs), framework="")
    return pd.concat([one, rows[~named]], ignore_index=True)


def library(framework: str) -> str:
    """The library that a table's `framework` names: 'TensorRT-LLM 1.3' -> 'trtllm'."""
    name = framework.lower().replace("tensorrt-llm", "trtllm").replace("tensorrt_llm", "trtllm")
    return name.split()[0] if name.split() else ""

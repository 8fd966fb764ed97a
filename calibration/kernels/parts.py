"""Parts of a kernel table that are fitted together, and what the fits of all of them yield."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from calibration.heldout import HeldOut
from calibration.kernels.fewshot import FewShot
from calibration.kernels.fit import MOST_POINTS, Points, join, points_of, sample
from calibration.tables.kernel_table import STREAMED, kinds, variants
from calibration.tables.libraries import neutral
from predictor.hardware import Accelerator
from predictor.timing import ANY, PLAIN, EfficiencyModel


@dataclass(frozen=True, slots=True, eq=False)
class KernelFit:
    """Models with the held-out errors of each, keyed as in the calibration."""

    models: dict[tuple[str, str, str], EfficiencyModel] = field(default_factory=dict)
    heldout: dict[tuple[str, str, str], HeldOut] = field(default_factory=dict)
    transfer: dict[tuple[str, str, str], HeldOut] = field(default_factory=dict)
    transfer_sigma: dict[str, float] = field(default_factory=dict)
    transfer_coverage: dict[str, float] = field(default_factory=dict)
    fewshot: dict[tuple[str, str, str], FewShot] = field(default_factory=dict)


def split(table: pd.DataFrame) -> Iterator[tuple[str, str, str, pd.DataFrame]]:
    """Parts of a kernel table that are fitted together: (kind, op, dtype, rows)."""
    table = table.assign(kind=kinds(table), layout=variants(table).where(table["op"] == "gemm", ""))
    table = table[table["kind"] != ""]
    for (kind, op, dtype), rows in table.groupby(["kind", "op", "dtype"], observed=True):
        yield str(kind), str(op), str(dtype), rows
    streamed = table["op"].isin(STREAMED) & ~table["kind"].str.endswith(f"@{PLAIN}")
    for (op, dtype), rows in table[streamed].groupby(["op", "dtype"]):
        if rows["kind"].nunique() > 1:
            yield str(op), str(op), str(dtype), rows


def merge_dtypes(table: pd.DataFrame, known: Mapping[str, Accelerator]) -> pd.DataFrame:
    """On GPUs fp16 and bf16 products run alike, and memory-bound kernels in any type do; hosts
    compute in both cases, so their types stay apart."""
    hosts = {name for name, device in known.items() if device.is_host}
    gpu = ~table["accelerator"].isin(hosts)
    merged = table["dtype"].where(~(gpu & (table["dtype"] == "fp16")), "bf16")
    streaming = gpu & table["op"].isin(STREAMED)
    return table.assign(dtype=merged.where(~streaming, ANY))


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """One kind and data type on one accelerator: neutral times, and the measurements behind them
    (the same, where rows name no library)."""

    neutral: Points
    rows: Points

    @property
    def points(self) -> Points:
        """Both, to fit."""
        return self.neutral if self.rows is self.neutral else join([self.neutral, self.rows])


def part_of(
    rows: pd.DataFrame, accelerator: Accelerator, op: str, dtype: str, usual: dict[str, float]
) -> Part:
    """Rows of one kind, data type and accelerator.

    usual   constants of libraries that hold elsewhere (`libraries.typical`)
    """
    names = set(rows["framework"]) - {""}
    if len(names) == 1 and not names & set(usual):
        rows = rows.assign(framework="")  # nobody to compare it with: it stands for all
    plain = neutral(rows, usual)
    named = rows[rows["framework"] != ""]
    everything = points_of(pd.concat([plain, named]), accelerator, op, dtype)
    is_neutral = everything.library == ""
    own = sample(everything.take(np.flatnonzero(is_neutral)), MOST_POINTS)
    if named.empty:
        return Part(own, own)
    return Part(own, everything.take(np.flatnonzero(~is_neutral)))


Key = tuple[str, str]
"""Kind and data type."""

Group = Mapping[str, "Part"]
"""The accelerators on which one kind and data type was measured."""


def join_sample(group: Group, names: list[str], most: int = MOST_POINTS) -> Points:
    """Points of several accelerators, as many of each; neutral ones, and as many measurements."""
    plain = sample(join([group[name].neutral for name in names]), most)
    named = [group[name].rows for name in names if group[name].rows is not group[name].neutral]
    return join([plain, sample(join(named), most)]) if named else plain

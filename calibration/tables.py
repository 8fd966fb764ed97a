"""Kernel tables: reading them, checking them, and turning their rows into shapes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from predictor.errors import InputError
from predictor.features import Shapes, kind_of
from predictor.precision import ELEMENT_BYTES
from predictor.schema import COLLECTIVE_OPS, COMPUTE_OPS, KERNEL_SCHEMA_VERSION

NEEDED = ("accelerator", "op", "dtype", "latency_us")
NUMBERS = [
    "m",
    "n",
    "k",
    "batch",
    "q_len",
    "kv_len",
    "heads",
    "kv_heads",
    "head_dim",
    "causal",
    "num_gpus",
    "num_nodes",
    "message_bytes",
    "link_gbs",
    "in_switch",
    "latency_us",
]


def read_table(path: Path) -> pd.DataFrame:
    """Read a kernel or point table (.csv, .csv.gz, .parquet).

    Raises InputError, one line, for a file that is missing, truncated or of another kind.
    """
    name = path.name
    try:
        if name.endswith(".parquet"):
            return pd.read_parquet(path)
        if name.endswith((".csv", ".csv.gz")):
            return pd.read_csv(path, low_memory=False)
    except FileNotFoundError:
        raise InputError(f"no such file: {path}") from None
    except (OSError, ValueError, EOFError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"{path} cannot be read as a table: {reason}") from None
    raise InputError(f"{path}: expected a .parquet, .csv or .csv.gz file")


def check_kernels(table: pd.DataFrame, where: str) -> pd.DataFrame:
    """Check a kernel table and give every column its type.

    Raises InputError, naming the column or the line (the first row is line 2).
    """
    missing = [column for column in NEEDED if column not in table]
    if missing:
        raise InputError(f"{where} is no kernel table: column {missing[0]!r} is missing")
    if "schema_version" in table:
        versions = set(table["schema_version"].dropna().unique())
        if versions - {KERNEL_SCHEMA_VERSION}:
            raise InputError(
                f"{where} has kernel schema version {versions.pop():g}, this reckon reads "
                f"{KERNEL_SCHEMA_VERSION}; profile the device anew"
            )
    table = table.copy()
    for column in NUMBERS:
        if column not in table:
            table[column] = np.nan
            continue
        values = pd.to_numeric(table[column], errors="coerce").astype(float)
        bad = values.isna() & table[column].notna()
        if bad.any():
            line = int(np.argmax(bad.to_numpy())) + 2
            value = table[column][bad].iloc[0]
            raise InputError(f"{where}, line {line}: {column} {value!r} is not a number")
        table[column] = values
    wrong = ~(table["latency_us"] > 0)
    if wrong.any():
        line = int(np.argmax(wrong.to_numpy())) + 2
        raise InputError(f"{where}, line {line}: latency_us must be above 0")
    for column in ("layout", "kernel", "link", "cache", "mode", "source"):
        given = table[column].astype(object) if column in table else pd.Series("", table.index)
        table[column] = given.where(given.notna(), "").astype(str)
    return table


def variants(table: pd.DataFrame) -> pd.Series:
    """Variant of each row, as `operators.Operator.variant` spells it."""
    layout = table["layout"].where(table["layout"] != "", "fwd")
    batched = (table["op"] == "gemm") & (table["batch"].fillna(1) > 1)
    layout = layout.where(~(batched & (layout == "fwd")), "bmm")
    named = table["op"].isin(["norm", "elementwise", "softmax", "loss", "embedding", "optimizer"])
    attention = table["op"].str.startswith("attention")
    found = layout.where(~named, table["kernel"].where(table["kernel"] != "", "fwd"))
    fused = table["kernel"].where(table["kernel"] == "flash2", "flash")
    return found.where(~attention, fused)


def kinds(table: pd.DataFrame) -> pd.Series:
    """Kind of each row, under which its efficiency is fitted; '' for rows that no fit uses."""
    named = [
        kind_of(op, variant) if op in COMPUTE_OPS and op != "memcpy" else ""
        for op, variant in zip(table["op"], variants(table), strict=True)
    ]
    return pd.Series(named, index=table.index)


def is_collective(table: pd.DataFrame) -> pd.Series:
    """Rows that time a collective."""
    return table["op"].isin(COLLECTIVE_OPS)


def shapes_of(table: pd.DataFrame, op: str, dtype: str) -> Shapes:
    """Rows of one op and data type as shapes; bytes and FLOPs as `operators` counts them."""
    size = ELEMENT_BYTES.get(dtype, 2.0)
    names, codes = np.unique(variants(table).to_numpy(dtype=str), return_inverse=True)

    def column(name: str, default: float = 1.0) -> np.ndarray:
        return table[name].fillna(default).to_numpy(dtype=float)

    if op.startswith("attention"):
        query, key, d = column("q_len"), column("kv_len"), column("head_dim")
        heads = column("heads")
        kv_heads = table["kv_heads"].fillna(table["heads"]).to_numpy(dtype=float)
        sequences = column("batch")
        batch = sequences * heads
        causal = column("causal") > 0
        seen = np.where(causal, key - query / 2.0, key)
        forward = 4.0 * batch * query * seen * d
        moved = size * sequences * d * (2 * query * heads + 2 * key * kv_heads)
        backward = op == "attention_backward"
        return Shapes(
            op,
            dtype,
            tuple(names),
            codes.astype(float),
            query,
            key,
            d,
            batch,
            forward * (2.5 if backward else 1.0),
            moved * (2.0 if backward else 1.0),
        )
    m, n, k, batch = column("m"), column("n"), column("k"), column("batch")
    if op == "gemm":
        out = np.where(variants(table) == "wgrad", 4.0, max(size, 2.0))
        moved = (size * (m * k + k * n) + out * m * n) * batch
        flop = 2.0 * m * n * k * batch
    else:
        moved, flop = column("message_bytes"), np.zeros_like(m)
    return Shapes(op, dtype, tuple(names), codes.astype(float), m, n, k, batch, flop, moved)

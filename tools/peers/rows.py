"""Rows that peers can be asked about: dense models, stated layouts, 16- or 8-bit types.

A row is a plain mapping: what was run, what was measured (`value` in seconds), nothing of reckon.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

Row = dict[str, Any]

DEVICES = ("A100-SXM4-80GB", "H100-SXM5-80GB", "H200-SXM-141GB", "V100-SXM2-32GB")
"""Accelerators that several peers know."""

DIMENSIONS = ("layers", "hidden", "heads", "ffn_hidden", "vocab", "tp", "pp", "dp")
WIDE, SERVED = ("bf16", "fp16"), ("bf16", "fp16", "fp8")
MOST_OF_A_SOURCE = 12
"""Rows of a source, evenly over its table: sources count alike."""


def training(path: Path) -> list[Row]:
    """Steps of dense models whose layout is stated whole."""
    table = pd.read_csv(path, low_memory=False)
    table = table[table["accelerator"].isin(DEVICES) & table["precision"].isin(WIDE)]
    stated = [*DIMENSIONS, "micro_batch", "global_batch", "seq_len", "step_time_s"]
    table = table[table[stated].notna().all(axis=1)]
    table = table[table["num_experts"].isna() & table["cp"].fillna(1).eq(1)]
    table = table[~table["model"].str.contains("lora", case=False)]
    table = table[(table["tp"] * table["pp"] * table["dp"]).eq(table["num_gpus"])]
    table = table.assign(value=table["step_time_s"], recompute=table["recompute"].fillna("none"))
    return _rows(table, ["micro_batch", "global_batch", "seq_len", "recompute", "dp_sharding"])


def serving(path: Path) -> list[Row]:
    """Static batches of dense models: time to the first token, and time per token after it."""
    table = pd.read_csv(path, low_memory=False)
    table = table[table["accelerator"].isin(DEVICES) & table["weights_precision"].isin(SERVED)]
    table = table[table["metric"].isin(["ttft_ms", "tpot_ms"]) & table["concurrency"].isna()]
    stated = [*DIMENSIONS[:-1], "batch", "input_len", "output_len", "value"]
    table = table[table[stated].notna().all(axis=1) & table["num_experts"].isna()]
    table = table[table["request_rate"].isna()]
    table = table.assign(
        value=table["value"] * 1e-3, dp=1, precision=table["weights_precision"],
        framework=table["framework"].fillna(""),
    )  # fmt: skip
    return _rows(table, ["batch", "input_len", "output_len", "metric", "framework"])


def _rows(table: pd.DataFrame, more: list[str]) -> list[Row]:
    table = table.assign(kv_heads=table["kv_heads"].fillna(table["heads"]))
    table = table.assign(gated=table["gated"].fillna(0).astype(int))
    parts = []
    for _, own in table.groupby("source"):
        step = max(len(own) // MOST_OF_A_SOURCE, 1)
        parts.append(own.iloc[::step].head(MOST_OF_A_SOURCE))
    names = ["point_id", "source", "accelerator", "model", *DIMENSIONS, "kv_heads", "gated",
             "precision", "value", *more]  # fmt: skip
    if not parts:
        return []
    chosen = pd.concat(parts)[names]
    return [
        {key: None if value != value else value for key, value in row.items()}
        for row in chosen.astype(object).to_dict("records")
    ]

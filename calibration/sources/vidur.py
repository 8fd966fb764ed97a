"""Profiles of vidur (https://github.com/microsoft/vidur, MIT), data/profiling.

compute/DEVICE/MODEL/mlp.csv and attention.csv hold one row per shape of one layer, with a median
time in milliseconds for each of its kernels (`time_stats.KERNEL.median`: kernel time from PyTorch's
profiler, fp16, no CUDA graphs). network/NODES/all_reduce.csv and send_recv.csv hold one row
per rank and message, in bytes. Traffic is counted as `predictor.work` counts it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from calibration.sources.folders import read_named
from calibration.sources.found import Found, Stated, kernel_rows, link_columns
from calibration.sources.reading import read_table
from predictor.errors import InputError

SIZE = 2.0
"""Bytes of an fp16 element."""

FLAGS = {"True": 1.0, "False": 0.0}

TP = "num_tensor_parallel_workers"
MLP = ("n_head", "n_kv_head", "n_embd", "n_expanded_embd", "use_gated_mlp", "num_tokens", TP)
ATTENTION = (
    "n_embd",
    "n_q_head",
    "n_kv_head",
    "batch_size",
    "prefill_chunk_size",
    "kv_cache_size",
    "is_prefill",
    TP,
)
NETWORK = ("size", "num_workers", "devices_per_node")


def read(path: Path, stated: Stated) -> Found:
    """The known tables of a file or folder as kernel rows.

    Raises InputError where the accelerator is not stated (vidur's files do not name it), and
    naming the line for a value that is no number.
    """
    accelerator = stated.accelerator or (stated.system[1] if stated.system else None)
    if not accelerator:
        raise InputError("vidur's tables do not name the device; give --accelerator")
    stated = replace(stated, accelerator=accelerator)
    return read_named(path, stated, READERS)


def _numbers(path: Path, columns: tuple[str, ...]) -> pd.DataFrame:
    """A table with `columns` and all times as numbers; the first row is line 2."""
    table = read_table(path)
    missing = [column for column in columns if column not in table]
    if missing:
        raise InputError(f"{path} is no such table of vidur: column {missing[0]!r} is missing")
    times = [column for column in table if str(column).startswith("time_stats.")]
    for column in (*columns, *times):
        given = table[column].map(lambda value: FLAGS.get(value, value))
        values = pd.to_numeric(given, errors="coerce").astype(float)
        bad = (values.isna() & (table[column].notna() | (column in columns))) | (values < 0)
        if bad.any():
            row = int(np.argmax(bad.to_numpy()))
            value = table[column].iloc[row]
            raise InputError(f"{path}, line {row + 2}: {column} must be a number, got {value!r}")
        table[column] = values
    for column in {"num_tokens", "n_head", "n_q_head", "devices_per_node", TP} & set(columns):
        if not (table[column] > 0).all():
            row = int(np.argmin(table[column].to_numpy()))
            raise InputError(f"{path}, line {row + 2}: {column} must be above 0")
    return table


class _Collected:
    """Rows of several kernels that one table timed."""

    def __init__(self, table: pd.DataFrame, path: Path, stated: Stated) -> None:
        self.table, self.path, self.stated = table, path, stated
        self.parts: list[pd.DataFrame] = []
        self.left_out: Counter[str] = Counter()

    def add(self, timer: str, use: pd.Series | None = None, **columns: Any) -> None:
        """Rows of the kernel that one timer saw, where it was timed and `use` holds."""
        name = f"time_stats.{timer}.median"
        if name not in self.table:
            return
        wanted = pd.Series(True, self.table.index) if use is None else use
        timed = self.table[name] > 0
        missed = int((wanted & ~timed).sum())
        if missed:
            self.left_out[f"{timer} was not timed"] += missed
        part = pd.DataFrame(columns, index=self.table.index).assign(
            latency_us=self.table[name] * 1e3
        )
        self.parts.append(part[wanted & timed])

    def found(self) -> Found:
        if not self.parts:
            raise InputError(f"{self.path} times no kernel that is known")
        rows = pd.concat(self.parts, ignore_index=True)
        rows = rows.assign(source="vidur", accelerator=self.stated.accelerator, dtype="fp16")
        return Found(kernel_rows(rows), self.left_out)


def mlp(path: Path, stated: Stated) -> Found:
    """`mlp.csv`: the kernels of a layer besides attention, and the embedding."""
    t = _numbers(path, MLP)
    tp, m, h = t[TP], t["num_tokens"], t["n_embd"]
    d = h / t["n_head"]
    queries = t["n_head"] / tp * d
    kv = np.maximum(t["n_kv_head"] / tp, 1.0) * d  # replicated where there are fewer than ranks
    ffn = t["n_expanded_embd"] / tp
    gated = t["use_gated_mlp"] > 0
    rows = _Collected(t, path, stated)

    def product(kernel: str, n: pd.Series, k: pd.Series) -> None:
        rows.add(kernel, op="gemm", layout="fwd", m=m, n=n, k=k, batch=1.0)

    def stream(kernel: str, op: str, variant: Any, n: pd.Series, streams: Any, **use: Any) -> None:
        moved = SIZE * streams * m * n
        rows.add(kernel, op=op, kernel=variant, m=m, n=n, message_bytes=moved, **use)

    product("attn_pre_proj", queries + 2 * kv, h)
    product("attn_post_proj", h, queries)
    product("mlp_up_proj", ffn * np.where(gated, 2.0, 1.0), h)
    product("mlp_down_proj", h, ffn)
    stream("mlp_act", "elementwise", np.where(gated, "swiglu", "gelu"), ffn, np.where(gated, 3, 2))
    stream("attn_rope", "elementwise", "rope", queries + kv, 2)
    stream("add", "elementwise", "add", h, 3)
    stream("input_layernorm", "norm", "", h, 2)
    stream("post_attention_layernorm", "norm", "", h, 2)
    stream("emb", "embedding", "fwd", h, 2, use=tp == 1)
    split = int((tp > 1).sum()) if "time_stats.emb.median" in t else 0
    if split:
        rows.left_out["embedding tables that are split over ranks"] += split
    return rows.found()


def attention(path: Path, stated: Stated) -> Found:
    """`attention.csv`: attention without projections, over a cache of earlier tokens."""
    t = _numbers(path, ATTENTION)
    prefill = t["is_prefill"] > 0
    new = t["prefill_chunk_size"].where(prefill, 1.0)
    rows = _Collected(t, path, stated)
    shape = {
        "batch": t["batch_size"],
        "q_len": new,
        "kv_len": t["kv_cache_size"] + new,
        "heads": t["n_q_head"] / t[TP],
        "kv_heads": np.maximum(t["n_kv_head"] / t[TP], 1.0),
        "head_dim": t["n_embd"] / t["n_q_head"],
    }
    if "attention_backend" in t:
        shape["notes"] = "attention_backend " + t["attention_backend"].astype(str)
    rows.add("attn_prefill", prefill, op="attention_prefill", causal=1.0, **shape)
    rows.add("attn_decode", ~prefill, op="attention_decode", causal=0.0, **shape)
    return rows.found()


def network(path: Path, stated: Stated) -> Found:
    """`all_reduce.csv`, `send_recv.csv`: one row per message, the median over the ranks."""
    kernel = path.stem
    op = {"all_reduce": "allreduce", "send_recv": "p2p"}[kernel]
    t = _numbers(path, (*NETWORK, f"time_stats.{kernel}.median"))
    t["num_nodes"] = np.ceil(t["num_workers"] / t["devices_per_node"])
    keys = ["num_workers", "num_nodes", "size"]
    alone = t["num_workers"] < 2
    medians = t[~alone].groupby(keys)[f"time_stats.{kernel}.median"].median().reset_index()
    rows = _Collected(medians, path, stated)
    links = pd.DataFrame(
        [
            link_columns(stated, ranks, hosts)
            for ranks, hosts in zip(medians["num_workers"], medians["num_nodes"], strict=True)
        ],
        index=medians.index,
    )
    rows.add(
        kernel,
        op=op,
        num_gpus=medians["num_workers"],
        num_nodes=medians["num_nodes"],
        message_bytes=medians["size"],
        **{str(column): links[column] for column in links},
    )
    if alone.any():
        rows.left_out["one rank alone"] += int(alone.sum())
    return rows.found()


READERS = {
    "mlp.csv": mlp,
    "attention.csv": attention,
    "all_reduce.csv": network,
    "send_recv.csv": network,
}

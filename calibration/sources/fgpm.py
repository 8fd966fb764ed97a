"""Operator times of GPT-NeoX training on Perlmutter (A100) and Vista (GH200): the data set of
"Fine-grained performance modelling" (arXiv 2509.22832).

Each row states an operator, its arguments ('mp=2.0;b=4.0;l=2048.0;dim=5120.0': tensor-parallel
size, sequences, sequence length, hidden size; h heads) and microseconds forward and backward, in
16 bit. Traffic is counted as `predictor.work` counts it.

Left out: gradients of linear layers (taken of constant outputs, whose low switching activity makes
them 10 % faster than on real data; kernels that only move bytes are not affected), and on GH200
the optimizer and the backward pass of attention (shorter than their bytes and FLOPs allow: only
the dispatch was timed). The attention rows are not causal: counted in full they run at 188 TFLOP/s
on A100 and 350 on GH200, what FlashAttention-2 reaches without a mask (Dao 2023, fig. 5).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd

VOCAB = 50304.0
"""GPT-2's 50,257 words, filled up to a multiple of 128."""
LICENCE = "facts from the paper's repository"

UNTIMED_BACKWARD = "GH200-96GB"

_LINEAR = ("linear1", "linear2", "linear3", "linear4", "linear_final")


def _arguments(column: pd.Series) -> pd.DataFrame:
    parts = [dict(item.split("=") for item in text.split(";")) for text in column]
    return pd.DataFrame(parts, index=column.index).astype(float)


def _streaming(
    rows: pd.DataFrame,
    op: str,
    kernel: str,
    m: pd.Series,
    n: pd.Series | float,
    bytes_per_element: float,
    time: str,
) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "accelerator": rows["gpu"],
            "op": op,
            "kernel": kernel,
            "m": m,
            "n": n,
            "message_bytes": m * n * bytes_per_element,
            "latency_us": rows[time],
        }
    )


def operators(path: Path) -> pd.DataFrame:
    """The operator table as kernel rows."""
    table = pd.read_csv(path)

    def part(*names: str) -> pd.DataFrame:
        rows = table[table["op"].isin(names)]
        return pd.concat([rows, _arguments(rows["args"])], axis=1)

    found = [
        _linear(part(*_LINEAR)),
        *_products(part("baddbmm"), scores=True),
        *_products(part("bmm"), scores=False),
        *_flash(part("flash_atten")),
        *_streams(part),
    ]
    joined = pd.concat(found, ignore_index=True)
    joined = joined[joined["latency_us"] > 0]
    return joined.assign(dtype="fp16", source="fgpm")


def _linear(rows: pd.DataFrame) -> pd.DataFrame:
    """Linear layers forward."""
    h, mp, op = rows["dim"], rows["mp"], rows["op"]
    wide = [op == name for name in _LINEAR]
    return pd.DataFrame(
        {
            "accelerator": rows["gpu"],
            "op": "gemm",
            "layout": "fwd",
            "m": rows["b"] * rows["l"],
            "n": np.select(wide, [3 * h / mp, h, 4 * h / mp, h, VOCAB / mp]),
            "k": np.select(wide, [h, h / mp, h, 4 * h / mp, h]),
            "latency_us": rows["fwd_us"],
        }
    )


def _products(rows: pd.DataFrame, scores: bool) -> list[pd.DataFrame]:
    """Batched products of unfused attention: the scores, with their gradients, or the values."""
    length, d = rows["l"], rows["dim"] / rows["h"]

    def product(layout: str, n: pd.Series, k: pd.Series, time: pd.Series) -> pd.DataFrame:
        return pd.DataFrame(
            {
                "accelerator": rows["gpu"],
                "op": "gemm",
                "layout": layout,
                "batch": rows["b"] * rows["h"] / rows["mp"],
                "m": length,
                "n": n,
                "k": k,
                "latency_us": time,
            }
        )

    if not scores:
        return [product("bmm", d, length, rows["fwd_us"])]
    return [
        product("bmm", length, d, rows["fwd_us"]),
        product("bmm_bwd", d, length, rows["bwd_us"] / 2),  # two products of the same shape
    ]


def _flash(rows: pd.DataFrame) -> list[pd.DataFrame]:
    """Fused attention, forward and backward."""
    found = []
    for op, time in (("attention_prefill", "fwd_us"), ("attention_backward", "bwd_us")):
        own = rows if op == "attention_prefill" else rows[rows["gpu"] != UNTIMED_BACKWARD]
        columns = {
            "accelerator": own["gpu"],
            "op": op,
            "batch": own["b"],
            "q_len": own["l"],
            "kv_len": own["l"],
            "heads": own["h"] / own["mp"],
            "kv_heads": own["h"] / own["mp"],
            "head_dim": own["dim"] / own["h"],
            "causal": 0.0,
            "kernel": "flash2",
            "latency_us": own[time],
        }
        found.append(pd.DataFrame(columns))
    return found


def _streams(part: Callable[..., pd.DataFrame]) -> list[pd.DataFrame]:
    """Kernels bound by memory, forward and backward."""
    found = []

    def add(
        rows: pd.DataFrame, op: str, kernels: tuple[str, ...], sizes: tuple[int, ...],
        lines: pd.Series, width: pd.Series | float,
    ) -> None:  # fmt: skip
        for kernel, size, time in zip(kernels, sizes, ("fwd_us", "bwd_us"), strict=False):
            found.append(_streaming(rows, op, kernel, lines, width, size, time))

    rows = part("ScaledUpperTriangMaskedSoftmax")
    lines = rows["b"] * rows["h"] / rows["mp"] * rows["l"]
    add(rows, "softmax", ("fwd", "bwd"), (4, 6), lines, rows["l"])
    rows = part("layernorm")
    add(rows, "norm", ("layernorm", "layernorm_bwd"), (4, 6), rows["b"] * rows["l"], rows["dim"])
    rows = part("gelu")
    width = 4 * rows["dim"] / rows["mp"]
    add(rows, "elementwise", ("gelu", "gelu_bwd"), (4, 6), rows["b"] * rows["l"], width)
    rows = part("res_add")
    add(rows, "elementwise", ("add",), (6,), rows["b"] * rows["l"], rows["dim"])
    rows = part("embedding")
    rows = rows[rows["mp"] == 1]
    add(rows, "embedding", ("fwd", "bwd"), (4, 6), rows["b"] * rows["l"], rows["dim"])
    found[-1]["message_bytes"] += 2 * VOCAB * rows["dim"]  # gradients are cleared first
    rows = part("parallel_cross_entropy_128")
    add(rows, "loss", ("fwd", "bwd"), (6, 6), rows["b"] * rows["l"], VOCAB / rows["mp"])
    rows = part("middleStage_optimizer")
    rows = rows[rows["gpu"] != UNTIMED_BACKWARD]
    parameters = rows["encoders"] * 12 * rows["dim"] ** 2 / rows["mp"]
    add(rows, "optimizer", ("adam",), (30,), parameters, 1.0)
    return found


COLLECTIVES = {
    "allreduce": "allreduce",
    "allreduce_large": "allreduce",
    "p2p": "p2p",
}
BETWEEN_NODES = {
    "Vista": ("infiniband-ndr", 50.0, "GH200-96GB"),
    "Perlmutter": ("perlmutter-slingshot", 25.0, "A100-SXM4-40GB"),
}
"""Network, GB/s per accelerator and direction, accelerator."""

PAIR_GBS = 100.0
"""Perlmutter's four GPUs are wired to each other without a switch: a pair has 4 of 12 links."""


def _collectives(path: Path) -> pd.DataFrame:
    """All rows; sizes are fp16 elements."""
    table = pd.read_csv(path)
    table = table[table["collective"].isin(COLLECTIVES)]
    gpus = (table["nodes"] * table["gpus_per_node"]).astype(float)
    return table.assign(
        op=table["collective"].map(COLLECTIVES),
        message_bytes=2.0 * table["elements_fp16"],
        num_gpus=gpus,
        num_nodes=table["nodes"].astype(float),
        latency_us=table["dur_us"],
        source="fgpm",
        dtype="fp16",
        in_switch=0.0,
    )


_COLUMNS = [
    "source", "accelerator", "op", "dtype", "num_gpus", "num_nodes", "message_bytes", "latency_us",
    "link", "link_gbs", "in_switch",
]  # fmt: skip


def _between(path: Path, cluster: str) -> pd.DataFrame:
    link, rate, accelerator = BETWEEN_NODES[cluster]
    table = _collectives(path)
    table = table[(table["cluster"] == cluster) & (table["num_nodes"] > 1)]
    kept = table.groupby(["collective", "nodes", "gpus_per_node"], group_keys=False).apply(
        lambda rows: rows.iloc[::16]
    )
    return kept.assign(link=link, link_gbs=rate, accelerator=accelerator)[_COLUMNS]


def collectives(path: Path) -> pd.DataFrame:
    """NCCL between the one-GPU nodes of Vista (400 Gb/s InfiniBand), and inside a node of
    Perlmutter (four A100, NVLink without a switch).

    Left out: the all-gathers (Vista's take the same time on any number of nodes, Perlmutter's do
    not say whose size they state) and Perlmutter's network (`perlmutter`).
    """
    vista = _between(path, "Vista")
    inside = _collectives(path)
    inside = inside[(inside["cluster"] == "Perlmutter") & (inside["num_nodes"] == 1)]
    inside = inside.assign(num_gpus=inside["num_gpus"].where(inside["op"] != "p2p", 2.0))
    # Single calls take up to a hundred times as long as their neighbours: medians of close sizes.
    step = np.round(4.0 * np.log2(inside["message_bytes"]))
    keys = [inside["op"], inside["num_gpus"], step]
    rate = inside["message_bytes"] / inside["latency_us"]
    message = inside["message_bytes"].groupby(keys).median()
    found = pd.DataFrame({"message_bytes": message, "rate": rate.groupby(keys).median()})
    found = found.rename_axis(["op", "num_gpus", "step"]).reset_index()
    inside = found.assign(
        latency_us=found["message_bytes"] / found["rate"],
        link_gbs=np.where((found["num_gpus"] == 2), PAIR_GBS, 300.0),
        link="nvlink3",
        accelerator="A100-SXM4-40GB",
        num_nodes=1.0,
        source="fgpm",
        dtype="fp16",
        in_switch=0.0,
    )
    return pd.concat([vista, inside[_COLUMNS]], ignore_index=True)


def perlmutter(path: Path) -> pd.DataFrame:
    """NCCL between the nodes of Perlmutter (Slingshot, 200 Gb/s per GPU), which ran at 1 to 2 GB/s
    per GPU: a fault of that installation and not of its network, in no calibration of ours; an
    example of a curve that a cluster carries itself."""
    return _between(path, "Perlmutter")

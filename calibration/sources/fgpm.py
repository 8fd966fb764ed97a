"""Operator times of GPT-NeoX training on Perlmutter (A100) and Vista (GH200): the data set of
"Fine-grained performance modelling" (arXiv 2509.22832).

Each row states an operator, its arguments ('mp=2.0;b=4.0;l=2048.0;dim=5120.0': tensor-parallel
size, sequences, sequence length, hidden size; h heads) and microseconds forward and backward, in
16 bit. Traffic is counted as `predictor.operators` counts it.

Left out: gradients of linear layers (taken of constant outputs, whose low switching activity makes
them 10 % faster than on real data; kernels that only move bytes are not affected), and on GH200
the optimizer and the backward pass of attention (shorter than their bytes and FLOPs allow: only
the dispatch was timed). The attention rows are not causal: counted in full they run at 188 TFLOP/s
on A100 and 350 on GH200, what FlashAttention-2 reaches without a mask (Dao 2023, fig. 5).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

VOCAB = 50304.0
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
    found: list[pd.DataFrame] = []

    def part(*names: str) -> pd.DataFrame:
        rows = table[table["op"].isin(names)]
        return pd.concat([rows, _arguments(rows["args"])], axis=1)

    rows = part(*_LINEAR)
    h, mp, op = rows["dim"], rows["mp"], rows["op"]
    wide = [op == name for name in _LINEAR]
    n = np.select(wide, [3 * h / mp, h, 4 * h / mp, h, VOCAB / mp])
    k = np.select(wide, [h, h / mp, h, 4 * h / mp, h])
    found.append(
        pd.DataFrame(
            {
                "accelerator": rows["gpu"],
                "op": "gemm",
                "layout": "fwd",
                "m": rows["b"] * rows["l"],
                "n": n,
                "k": k,
                "latency_us": rows["fwd_us"],
            }
        )
    )

    for name in ("baddbmm", "bmm"):
        rows = part(name)
        batch, length, d = rows["b"] * rows["h"] / rows["mp"], rows["l"], rows["dim"] / rows["h"]
        scores = name == "baddbmm"

        def product(
            layout: str,
            n: pd.Series,
            k: pd.Series,
            time: pd.Series,
            rows: pd.DataFrame = rows,
            batch: pd.Series = batch,
            length: pd.Series = length,
        ) -> pd.DataFrame:
            return pd.DataFrame(
                {
                    "accelerator": rows["gpu"],
                    "op": "gemm",
                    "layout": layout,
                    "batch": batch,
                    "m": length,
                    "n": n,
                    "k": k,
                    "latency_us": time,
                }
            )

        found.append(
            product("bmm", length if scores else d, d if scores else length, rows["fwd_us"])
        )
        if scores:  # two products of the same shape
            found.append(product("bmm_bwd", d, length, rows["bwd_us"] / 2))

    rows = part("flash_atten")
    for op_name, time in (("attention_prefill", "fwd_us"), ("attention_backward", "bwd_us")):
        own = rows if op_name == "attention_prefill" else rows[rows["gpu"] != UNTIMED_BACKWARD]
        found.append(
            pd.DataFrame(
                {
                    "accelerator": own["gpu"],
                    "op": op_name,
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
            )
        )

    rows = part("ScaledUpperTriangMaskedSoftmax")
    lines = rows["b"] * rows["h"] / rows["mp"] * rows["l"]
    found.append(_streaming(rows, "softmax", "fwd", lines, rows["l"], 4, "fwd_us"))
    found.append(_streaming(rows, "softmax", "bwd", lines, rows["l"], 6, "bwd_us"))

    rows = part("layernorm")
    lines = rows["b"] * rows["l"]
    found.append(_streaming(rows, "norm", "layernorm", lines, rows["dim"], 4, "fwd_us"))
    found.append(_streaming(rows, "norm", "layernorm_bwd", lines, rows["dim"], 6, "bwd_us"))

    rows = part("gelu")
    lines, width = rows["b"] * rows["l"], 4 * rows["dim"] / rows["mp"]
    found.append(_streaming(rows, "elementwise", "gelu", lines, width, 4, "fwd_us"))
    found.append(_streaming(rows, "elementwise", "gelu_bwd", lines, width, 6, "bwd_us"))

    rows = part("res_add")
    found.append(
        _streaming(rows, "elementwise", "add", rows["b"] * rows["l"], rows["dim"], 6, "fwd_us")
    )

    rows = part("embedding")
    rows = rows[rows["mp"] == 1]
    lines = rows["b"] * rows["l"]
    found.append(_streaming(rows, "embedding", "fwd", lines, rows["dim"], 4, "fwd_us"))
    backward = _streaming(rows, "embedding", "bwd", lines, rows["dim"], 6, "bwd_us")
    backward["message_bytes"] += 2 * VOCAB * rows["dim"]  # the table of gradients is cleared first
    found.append(backward)

    rows = part("parallel_cross_entropy_128")
    lines, width = rows["b"] * rows["l"], VOCAB / rows["mp"]
    found.append(_streaming(rows, "loss", "fwd", lines, width, 6, "fwd_us"))
    found.append(_streaming(rows, "loss", "bwd", lines, width, 6, "bwd_us"))

    rows = part("middleStage_optimizer")
    rows = rows[rows["gpu"] != UNTIMED_BACKWARD]
    parameters = rows["encoders"] * 12 * rows["dim"] ** 2 / rows["mp"]
    found.append(_streaming(rows, "optimizer", "adam", parameters, 1.0, 30, "fwd_us"))

    joined = pd.concat(found, ignore_index=True)
    joined = joined[joined["latency_us"] > 0]
    return joined.assign(dtype="fp16", source="fgpm")


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

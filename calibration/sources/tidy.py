"""The tidy table of operator measurements gathered from many repositories (`ops.parquet`)."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from predictor import catalog

LICENCE = "facts from the repositories named in `source`"

FABRICS = (
    ("awsome-distributed-training", "p4de", "efa", 6.25),
    ("awsome-distributed-training", "p5", "efa", 50.0),
    ("dstack-docs", "Nebius", "infiniband", 50.0),
)
"""Multi-node tables that are sound: source, word in its notes, network, GB/s per accelerator. Left
out are reports of fabrics that their authors call slow or abnormal, and of GPUDirect-TCP."""

SIMUMAX_LAYOUTS = {"layout=TN": "fwd", "layout=NN": "dgrad", "layout=NT": "wgrad"}


def _load(path: Path) -> pd.DataFrame:
    table = pd.read_parquet(path)
    for column in ("m", "n", "k", "batch", "num_gpus", "num_nodes", "message_bytes"):
        table[column] = table[column].astype(float)
    return table


def training_gemms(path: Path) -> pd.DataFrame:
    """SimuMax efficiency tables: products of training in their three layouts (A100-PCIe)."""
    table = _load(path)
    table = table[(table["source"] == "simumax") & (table["op"] == "gemm")]
    layout = table["kernel"].str.extract(r"^(layout=\w+)")[0].map(SIMUMAX_LAYOUTS)
    columns = ["source", "accelerator", "op", "dtype", "m", "n", "k", "latency_us"]
    return table[columns].assign(layout=layout, batch=1.0).reset_index(drop=True)


def streaming(path: Path) -> pd.DataFrame:
    """NeuSight: elementwise kernels and layer norms in fp32, on accelerators of the catalog."""
    table = _load(path)
    table = table[(table["source"] == "neusight") & table["op"].isin(["norm", "elementwise"])]
    kernel = table["kernel"].fillna("")
    binary = kernel.isin(["add", "div", "mul", "pow"])
    unary = kernel.isin(["addu", "divu", "mulu", "relu", "tanh", "gelu"])
    norm = kernel == "ln"
    table = table[(binary | unary | norm) & table["accelerator"].isin(catalog.rows("accelerators"))]
    table = table.assign(
        kernel=kernel.map({"ln": "layernorm", "gelu": "gelu", "add": "add"}).fillna("other"),
        message_bytes=table["m"] * table["n"] * 4.0 * (2.0 + binary),
    )
    columns = [
        "source",
        "accelerator",
        "op",
        "dtype",
        "kernel",
        "m",
        "n",
        "message_bytes",
        "latency_us",
    ]
    return table[columns].reset_index(drop=True)


def multi_node(path: Path) -> pd.DataFrame:
    """nccl-tests tables over several nodes."""
    table = _load(path)
    found = []
    for source, word, link, rate in FABRICS:
        rows = table[
            (table["source"] == source)
            & table["notes"].fillna("").str.contains(word)
            & (table["num_nodes"] > 1)
            & table["message_bytes"].notna()
        ]
        found.append(rows.assign(link=link, link_gbs=rate, in_switch=0.0))
    columns = [
        "source",
        "accelerator",
        "op",
        "dtype",
        "num_gpus",
        "num_nodes",
        "message_bytes",
        "latency_us",
        "link",
        "link_gbs",
        "in_switch",
    ]
    return pd.concat(found, ignore_index=True)[columns]

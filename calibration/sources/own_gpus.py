"""Kernels of plain PyTorch of GPUs that were profiled here (`data/measurements`): those that wait
for memory (`reckon profile`), and attention over prompts (`tools/attention_sweep.py`).

Nobody else's tables hold them: what is known of norms, losses and chains of small kernels are
modules of Megatron (arXiv 2509.22832), and of attention on Hopper modules of serving engines, which
put keys into a cache. Those of the size of training, in 16 bits.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from predictor.timing import PLAIN_OPS

LICENCE = "own"

SOURCE = "own-gpus"

PROFILES = {
    "h100-sxm": "H100-SXM5-80GB",
    "h100-sxm-2": "H100-SXM5-80GB",
    "h200-sxm": "H200-SXM-141GB",
    "h200-sxm-2": "H200-SXM-141GB",
}
"""Folders of profiles, and what the catalog calls their GPU."""

SWEPT = {"h100-sxm-3": "H100-SXM5-80GB", "h200-sxm-3": "H200-SXM-141GB"}
"""The same of those where attention was swept."""

SWEEP = "own-attention"
"""Source of its rows, which are kernels of their own names."""

LEAST = 4e6
"""Traffic of a kernel of training at least [bytes]: what an H100 moves in the 1.5 us that an empty
kernel takes."""


def plain(measurements: Path) -> pd.DataFrame:
    """`kernels.parquet` of every profile, under the names of the catalog."""
    parts = []
    for folder, accelerator in PROFILES.items():
        table = pd.read_parquet(measurements / folder / "kernels.parquet")
        table = table[table["op"].isin(PLAIN_OPS) & (table["mode"] == "eager")]
        table = table[table["dtype"].isin(["bf16", "fp16"]) & (table["message_bytes"] >= LEAST)]
        parts.append(table.assign(accelerator=accelerator, source=SOURCE, framework=""))
    return pd.concat(parts, ignore_index=True)


def attention(measurements: Path) -> pd.DataFrame:
    """`attention.csv` of every sweep, under the names of the catalog."""
    parts = [
        pd.read_csv(measurements / folder / "attention.csv").assign(accelerator=accelerator)
        for folder, accelerator in SWEPT.items()
    ]
    return pd.concat(parts, ignore_index=True).assign(source=SWEEP, framework="")

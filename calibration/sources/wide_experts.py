"""Experts divided among many ranks (ai-dynamo/aiconfigurator's `wideep_*` tables, Parquet,
Apache-2.0): the products behind DeepEP, which see the tokens of their own rank alone, and the
exchange of tokens before and after.

Latency is in milliseconds, tokens are those of all ranks.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from calibration.sources.aiconfigurator import ACCELERATORS, EXPERT_SIZES, LINKS
from calibration.sources.exchanges import known
from calibration.sources.expert_kernels import OWN

LIBRARY = "deepgemm"
"""SGLang's `deepepmoe` runs DeepGEMM's grouped products (sgl-project/sglang,
python/sglang/srt/layers/moe/ep_moe/layer.py)."""


TABLES = ("wideep_context_moe_perf.parquet", "wideep_generation_moe_perf.parquet")


def grouped(folder: Path) -> pd.DataFrame:
    """Gated experts in block-scaled fp8 under uniform routing (`TABLES` of a folder); of prompts'
    and decoding's kernels the faster."""
    table = pd.concat([pd.read_parquet(folder / name) for name in TABLES], ignore_index=True)
    table = table.assign(accelerator=table["device"].map(ACCELERATORS))
    table = table[table["accelerator"].notna() & (table["distribution"] == "uniform")]
    sizes = {new: table[old].astype(float) for old, new in EXPERT_SIZES.items()}
    table = table.assign(**sizes, latency_us=table["latency"] * 1e3, dtype=table["moe_dtype"])
    keys = ["accelerator", "dtype", *EXPERT_SIZES.values()]
    rows = table.groupby(keys, observed=True)["latency_us"].min().reset_index()
    return rows.assign(op="moe_gemm", kernel=OWN, framework=LIBRARY, source="aiconfigurator")


PER_HOST = {"gb200": 4.0}
"""Accelerators of a host, by the tables' name of a system; 8 elsewhere."""

DEFAULT_SMS = 20
"""Processors that DeepEP's kernels for throughput take unless told otherwise (deepseek-ai/DeepEP,
deep_ep/buffer.py, `Buffer.num_sms`); tables measure other numbers too."""

FABRIC = ("infiniband-ndr", 50.0)
"""Network between the nodes of H100 and H200 whose exchanges were timed: 400 Gb/s each, of which
low-latency kernels reach 43 GB/s; its name is not stated."""


def exchanges(folder: Path) -> pd.DataFrame:
    """The way of a mixture's tokens to their experts and back: DeepEP's kernels
    (`wideep_deepep_*`) and TensorRT-LLM's within an NVLink domain (`trtllm_alltoall`)."""
    parts = [_deepep(folder, "ll"), _deepep(folder, "normal"), _one_domain(folder)]
    table = pd.concat(parts, ignore_index=True)
    scale_up = {name: link for name, link in LINKS.items() if link[0].startswith("nvlink")}
    table = table[table["accelerator"].isin(scale_up)]
    inner = [scale_up[name] for name in table["accelerator"]]
    across = (table["num_nodes"] > 1).to_numpy()
    return known(
        table.assign(
            link=np.where(across, FABRIC[0], [link for link, *_ in inner]),
            link_gbs=np.where(across, FABRIC[1], [rate for _, rate, _ in inner]),
            in_switch=0.0,
            mode="",
            framework="",
            op="alltoall",
            source="aiconfigurator",
        )
    )


def _deepep(folder: Path, way: str) -> pd.DataFrame:
    """DeepEP's kernels for low latency ('ll') or throughput ('normal'), newest version."""
    table = pd.read_parquet(folder / f"wideep_deepep_{way}_perf.parquet")
    if way == "normal":
        table = table[
            (table["dispatch_sms"] == DEFAULT_SMS) & (table["combine_sms"] == DEFAULT_SMS)
        ]
    each = table["system"].map(PER_HOST).fillna(8.0)
    nodes = table["node_num"].astype(float)
    parts = []
    for step, dtype in (("dispatch", "fp8"), ("combine", "bf16")):
        if way == "ll":
            spent = table[f"{step}_avg_t_us"]
        else:
            spent = table[f"{step}_transmit_us"] + table[f"{step}_notify_us"]
        parts.append(
            pd.DataFrame(
                {
                    "accelerator": table["device"].replace(OLDER).map(ACCELERATORS),
                    "num_gpus": nodes * each,
                    "num_nodes": nodes,
                    "m": table["num_token"].astype(float),
                    "k": table["hidden_size"].astype(float),
                    "topk": table["num_topk"].astype(float),
                    "experts": table["num_experts"].astype(float),
                    "dtype": dtype,
                    "kernel": f"deepep_{way}_{step}",
                    "latency_us": spent.astype(float),
                }
            )
        )
    found = pd.concat(parts, ignore_index=True).assign(message_bytes=np.nan)
    return found[found["latency_us"] > 0]


OLDER = {"NVIDIA H100": "NVIDIA H100 80GB HBM3"}
"""Devices by an older name."""


def _one_domain(folder: Path) -> pd.DataFrame:
    """TensorRT-LLM's kernels among the accelerators of one NVLink domain."""
    table = pd.read_parquet(folder / "trtllm_alltoall_perf.parquet")
    table = table[~table["op_name"].str.endswith("low_precision")]
    return pd.DataFrame(
        {
            "accelerator": table["device"].map(ACCELERATORS),
            "num_gpus": table["moe_ep_size"].astype(float),
            "num_nodes": 1.0,
            "m": table["num_tokens"].astype(float),
            "k": table["hidden_size"].astype(float),
            "topk": table["topk"].astype(float),
            "experts": table["num_experts"].astype(float),
            "dtype": table["moe_dtype"],
            "kernel": table["kernel_source"] + "_" + table["op_name"],
            "latency_us": table["latency"].astype(float) * 1e3,
            "message_bytes": np.nan,
        }
    )

"""Rebuild the catalogs and reference tables in `data/` from the shared fact tables.

    python tools/curate.py ../shared

Run by `make catalogs` where the shared tables are at hand; the result is committed. What is
changed on the way (names, units, added rows) stands here, so that a diff shows every fact.
"""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd

DATA = Path(__file__).resolve().parent.parent / "data"

# Datasheets write GB for memory built in binary gigabytes: an "80 GB" H100 reports 81,559 MiB.
ACCELERATOR_COLUMNS = {
    "name": "name",
    "vendor": "vendor",
    "year": "year",
    "sm_cu_count": "sm_count",
    "boost_clock_mhz": "clock_mhz",
    "fp32_tflops": "fp32_tflops",
    "tf32_tflops": "tf32_tflops",
    "fp16_tflops": "fp16_tflops",
    "bf16_tflops": "bf16_tflops",
    "fp8_tflops": "fp8_tflops",
    "fp4_tflops": "fp4_tflops",
    "int8_tops": "int8_tops",
    "memory_gb": "memory_gib",
    "memory_bandwidth_gbs": "memory_bandwidth_gbs",
    "l2_mb": "l2_mb",
    "tdp_w": "tdp_w",
    "host_link_gbs": "host_link_gbs",
    "source": "source",
    "notes": "notes",
}
ACCELERATOR_ALIASES = {
    "TPUv6e": "TPUv6e-Trillium",
    "TPUv7": "TPUv7x-Ironwood",
    "RTX-PRO-6000-96GB": "RTX-PRO-6000-BSE-96GB",
    "A100-SXM4-80GB": "a100;a100-80gb",
    "H100-SXM5-80GB": "h100;h100-80gb",
    "H200-SXM-141GB": "h200",
    "B200-SXM-180GB": "b200",
}
ARCHITECTURES = {
    "Blackwell Ultra": "blackwell-ultra",
    "Blackwell GB202": "blackwell-rtx",
    "Blackwell": "blackwell",
    "Ampere GA102": "ampere-rtx",
    "TPU": "tpu",
    "NeuronCore": "neuron",
}
EXTRA_ACCELERATORS = [
    {
        "like": "V100-SXM2-32GB",
        "name": "V100-SXM3-32GB",
        "tdp_w": 350,
        "source": "DGX-2 datasheet (350 W SXM3); rates as V100-SXM2",
    },
    {
        "like": "H100-SXM5-80GB",
        "name": "H100-SXM5-96GB-HBM2e-500W",
        "memory_gib": 96,
        "memory_bandwidth_gbs": 2400,
        "tdp_w": 500,
        "source": "pytorch/torchtitan docs/performance.md: H100 96 GB HBM2e, 2.4 TB/s, 500 W",
    },
    {
        "like": "RTX-4090-24GB",
        "name": "RTX-6000Ada-48GB",
        "sm_count": 142,
        "clock_mhz": 2505,
        "fp32_tflops": 91.1,
        "tf32_tflops": 91.1,
        "fp16_tflops": 182.2,
        "bf16_tflops": 182.2,
        "fp8_tflops": 364.3,
        "int8_tops": 728.6,
        "memory_gib": 48,
        "memory_bandwidth_gbs": 960,
        "l2_mb": 96,
        "tdp_w": 300,
        "source": "datasheet (from memory); rates with fp32 accumulate",
    },
    {
        "like": "RTX-4090-24GB",
        "name": "RTX-5000Ada-32GB",
        "sm_count": 100,
        "clock_mhz": 2550,
        "fp32_tflops": 65.3,
        "tf32_tflops": 65.3,
        "fp16_tflops": 130.6,
        "bf16_tflops": 130.6,
        "fp8_tflops": 261.1,
        "int8_tops": 522.2,
        "memory_gib": 32,
        "memory_bandwidth_gbs": 576,
        "l2_mb": 72,
        "tdp_w": 250,
        "source": "datasheet (from memory); rates with fp32 accumulate",
    },
    {
        "like": "RTX-4090-24GB",
        "name": "RTX-4000Ada-20GB",
        "sm_count": 48,
        "clock_mhz": 2175,
        "fp32_tflops": 26.7,
        "tf32_tflops": 26.7,
        "fp16_tflops": 53.4,
        "bf16_tflops": 53.4,
        "fp8_tflops": 106.9,
        "int8_tops": 213.8,
        "memory_gib": 20,
        "memory_bandwidth_gbs": 360,
        "l2_mb": 48,
        "tdp_w": 130,
        "source": "datasheet (from memory); rates with fp32 accumulate",
    },
    {
        "like": "RTX-4090-24GB",
        "name": "RTX-4080-16GB",
        "sm_count": 76,
        "clock_mhz": 2505,
        "fp32_tflops": 48.7,
        "tf32_tflops": 48.75,
        "fp16_tflops": 97.5,
        "bf16_tflops": 97.5,
        "fp8_tflops": 194.9,
        "int8_tops": 389.8,
        "memory_gib": 16,
        "memory_bandwidth_gbs": 717,
        "l2_mb": 64,
        "tdp_w": 320,
        "source": "datasheet (from memory); rates with fp32 accumulate",
    },
    {
        "like": "RTX-4090-24GB",
        "name": "RTX-4070Ti-12GB",
        "sm_count": 60,
        "clock_mhz": 2610,
        "fp32_tflops": 40.1,
        "tf32_tflops": 40.1,
        "fp16_tflops": 80.2,
        "bf16_tflops": 80.2,
        "fp8_tflops": 160.4,
        "int8_tops": 320.8,
        "memory_gib": 12,
        "memory_bandwidth_gbs": 504,
        "l2_mb": 48,
        "tdp_w": 285,
        "source": "datasheet (from memory); rates with fp32 accumulate",
    },
    {
        "like": "RTX-3090-24GB",
        "name": "RTX-3090Ti-24GB",
        "sm_count": 84,
        "clock_mhz": 1860,
        "fp32_tflops": 40.0,
        "tf32_tflops": 40.0,
        "fp16_tflops": 80.0,
        "bf16_tflops": 80.0,
        "int8_tops": 320.0,
        "memory_gib": 24,
        "memory_bandwidth_gbs": 1008,
        "l2_mb": 6,
        "tdp_w": 450,
        "source": "datasheet (from memory); rates with fp32 accumulate",
    },
    {
        "like": "RTX-3090-24GB",
        "name": "RTX-3080Ti-12GB",
        "sm_count": 80,
        "clock_mhz": 1665,
        "fp32_tflops": 34.1,
        "tf32_tflops": 34.1,
        "fp16_tflops": 68.2,
        "bf16_tflops": 68.2,
        "int8_tops": 272.8,
        "memory_gib": 12,
        "memory_bandwidth_gbs": 912,
        "l2_mb": 6,
        "tdp_w": 350,
        "source": "datasheet (from memory); rates with fp32 accumulate",
    },
    {
        "like": "RTX-3090-24GB",
        "name": "RTX-3080-10GB",
        "sm_count": 68,
        "clock_mhz": 1710,
        "fp32_tflops": 29.8,
        "tf32_tflops": 29.8,
        "fp16_tflops": 59.5,
        "bf16_tflops": 59.5,
        "int8_tops": 238.0,
        "memory_gib": 10,
        "memory_bandwidth_gbs": 760,
        "l2_mb": 5,
        "tdp_w": 320,
        "source": "datasheet (from memory); rates with fp32 accumulate",
    },
    {
        "like": "RTX-3090-24GB",
        "name": "RTX-3070-8GB",
        "sm_count": 46,
        "clock_mhz": 1725,
        "fp32_tflops": 20.3,
        "tf32_tflops": 20.3,
        "fp16_tflops": 40.6,
        "bf16_tflops": 40.6,
        "int8_tops": 162.4,
        "memory_gib": 8,
        "memory_bandwidth_gbs": 448,
        "l2_mb": 4,
        "tdp_w": 220,
        "source": "datasheet (from memory); rates with fp32 accumulate",
    },
]

LINKS = {
    "InfiniBand EDR": "infiniband-edr",
    "InfiniBand HDR": "infiniband-hdr",
    "InfiniBand HDR100": "infiniband-hdr",
    "InfiniBand NDR": "infiniband-ndr",
    "InfiniBand XDR": "infiniband-xdr",
    "RoCE": "roce",
    "Slingshot": "slingshot",
    "EFA v1": "efa1",
    "EFA v2": "efa2",
    "EFA v3": "efa3",
    "EFA v4": "efa4",
    "EFA": "efa",
    "Omni-Path": "omnipath",
    "Ethernet": "ethernet",
    "GPUDirect-TCP": "ethernet",
    "ICI": "ici",
    "CX9": "infiniband-gdr",
}
REDUCING_SWITCH = ("nvlink4", "nvlink5", "nvlink6")  # NVLink SHARP since the third NVSwitch
SYSTEM_ACCELERATOR = {"DGX-2": "V100-SXM3-32GB", "A100-SXM4-64GB (custom)": "A100-SXM4-40GB"}
SYSTEM_CORRECTIONS = {
    # The 7:1 oversubscription is between pods of 3,072 GPUs, not inside them.
    "Meta-GrandTeton-24k-RoCE": {
        "tier2_size": 3072,
        "tier2_oversubscription": "",
        "tier3_link": "roce",
        "tier3_bandwidth_gbs": 50,
        "tier3_oversubscription": 7,
    },
    # Slices beyond a pod: 25.6 Tb/s per pod of 256 chips (docs.cloud.google.com/tpu/docs/v6e).
    "TPU-v6e-pod": {"tier3_link": "ethernet", "tier3_bandwidth_gbs": 12.5},
}
EXTRA_SYSTEMS = [
    {
        "name": "Meta-GrandTeton-HBM2e",
        "accelerator": "H100-SXM5-96GB-HBM2e-500W",
        "accelerators_per_node": 8,
        "tier1_link": "nvlink4",
        "tier1_size": 8,
        "tier1_bandwidth_gbs": 450,
        "tier1_in_switch": 1,
        "tier2_link": "roce",
        "tier2_bandwidth_gbs": 50,
        "source": "pytorch/torchtitan docs/performance.md: 8 per node, 400 Gb/s RDMA per GPU",
    },
    {
        "name": "JeanZay-V100",
        "accelerator": "V100-SXM2-32GB",
        "accelerators_per_node": 4,
        "tier1_link": "nvlink2",
        "tier1_size": 4,
        "tier1_bandwidth_gbs": 150,
        "tier2_link": "omnipath",
        "tier2_bandwidth_gbs": 12.5,
        "source": "bigscience experiments/gpt2.md: 4 V100 per node, 400 Gb/s per node",
    },
]

STANDARD_NODES = (
    ("HGX-H800", "H800-SXM5-80GB", 8, "nvlink4", 200, 1, "infiniband-ndr", 50),
    ("HGX-H20", "H20-96GB", 8, "nvlink4", 450, 1, "infiniband-ndr", 50),
    ("MI250X-4x", "MI250X-128GB", 4, "xgmi3", 350, 0, "slingshot", 25),
    ("MI250-4x", "MI250-128GB", 4, "xgmi3", 300, 0, "infiniband-hdr", 25),
    ("MI300A-4x", "MI300A-128GB", 4, "xgmi4", 384, 0, "slingshot", 25),
    ("MI325X-8x", "MI325X-256GB", 8, "xgmi4", 448, 0, "roce", 50),
    ("MI350X-8x", "MI350X-288GB", 8, "xgmi4", 537.6, 0, "roce", 50),
)
"""Nodes as they are sold with accelerators that the shared table has no node of: name, accelerator,
how many, their link with its bandwidth [GB/s, one direction] (the accelerator's own, in the shared
table) and whether its switch reduces, network and its bandwidth per accelerator [GB/s]."""

EXTRA_SYSTEMS += [
    {
        "name": name,
        "accelerator": accelerator,
        "accelerators_per_node": size,
        "tier1_link": link,
        "tier1_size": size,
        "tier1_bandwidth_gbs": bandwidth,
        "tier1_in_switch": in_switch,
        "tier2_link": network,
        "tier2_bandwidth_gbs": rate,
        "source": "link of the accelerator's datasheet; node and network as commonly sold "
        "(from memory)",
    }
    for name, accelerator, size, link, bandwidth, in_switch, network, rate in STANDARD_NODES
]

HYBRID_COLUMNS = (
    "expert_hidden",
    "attention_layers",
    "mamba_layers",
    "mamba_heads",
    "mamba_head_dim",
    "mamba_state",
    "mamba_groups",
)
"""Columns that the shared table lacks: only rows added here have them."""
MODEL_COLUMNS = [
    "name",
    "family",
    "year",
    "layers",
    "hidden",
    "heads",
    "kv_heads",
    "head_dim",
    "ffn_hidden",
    "gated",
    "vocab",
    "max_context",
    "num_experts",
    "top_k",
    "expert_ffn_hidden",
    "shared_experts",
    "shared_expert_ffn_hidden",
    "dense_layers",
    "moe_every_n",
    "q_lora_rank",
    "kv_lora_rank",
    "qk_rope_head_dim",
    "qk_nope_head_dim",
    "v_head_dim",
    "mtp_layers",
    "sliding_window",
    "sliding_pattern",
    *HYBRID_COLUMNS,
    "hf_id",
    "source",
    "notes",
]
MODEL_ALIASES = {
    "megatron-1.7b": "gpt-1.7b",
    "megatron-3.6b": "gpt-3.6b",
    "megatron-7.5b": "gpt-7.5b",
    "megatron-18.4b": "gpt-18b",
    "megatron-39.1b": "gpt-39b",
    "megatron-76.1b": "gpt-76b",
    "megatron-145.6b": "gpt-145b",
    "megatron-310.1b": "gpt-310b",
    "megatron-529.6b": "gpt-530b",
    "megatron-1008b": "gpt-1t",
    "korthikanti-22b": "gpt-22b",
    "nemotron-4-15b": "nemotron4-15b",
    "nemotron-4-340b": "nemotron4-340b",
    "llama3.1-405b": "llama3-405b",
    "llama1-7b": "llama-7b",
    "llama1-13b": "llama-13b",
    "llama1-65b": "llama-65b",
    "grok-1-314b": "grok1-314b",
    "llama4-scout-17b-16e": "llama4-scout;llama4-scout-llm",
    "llama4-maverick-17b-128e": "llama4-maverick-400b",
    "deepseek-v2": "deepseekv2",
}
HYBRID: dict[str, Any] = {
    "like": "nemotron-4-15b",
    "family": "nemotron-h",
    "head_dim": 128,
    "norm": "rmsnorm",
    "positions": "none",
    "vocab": 131072,
    "max_context": 8192,
    "mamba_head_dim": 64,
    "mamba_groups": 8,
}
EXTRA_MODELS = [
    {
        "like": "qwen3-30b-a3b",
        "name": "minimax-m2",
        "aliases": "minimax-m2.1",
        "family": "minimax",
        "layers": 62,
        "hidden": 3072,
        "heads": 48,
        "kv_heads": 8,
        "head_dim": 128,
        "ffn_hidden": 1536,
        "vocab": 200064,
        "max_context": 196608,
        "num_experts": 256,
        "top_k": 8,
        "expert_ffn_hidden": 1536,
        "hf_id": "MiniMaxAI/MiniMax-M2",
        "source": "paper/config (from memory); 230 B parameters, 10 B active",
    },
    {
        "like": "llama3-8b",
        "name": "decilm-7b",
        "family": "decilm",
        "year": 2023,
        "kv_heads": 2,
        "vocab": 32000,
        "max_context": 8192,
        "hf_id": "Deci/DeciLM-7B",
        "source": "config (from memory); 1 to 4 key heads by layer, 67 in 32 layers",
    },
    {
        "like": "gpt3-6.7b",
        "name": "gpt3-5b",
        "aliases": "gpt-5b",
        "layers": 24,
        "hidden": 4096,
        "heads": 32,
        "kv_heads": 32,
        "head_dim": 128,
        "ffn_hidden": 16384,
        "vocab": 51200,
        "source": "NeMo launcher conf/training/gpt3/5b.yaml@80353286 (dims as in its README rows)",
    },
    {
        "like": "gpt3-13b",
        "name": "gpt3-20b",
        "layers": 44,
        "hidden": 6144,
        "heads": 48,
        "kv_heads": 48,
        "head_dim": 128,
        "ffn_hidden": 24576,
        "vocab": 51200,
        "source": "NeMo performance tables (dims as in their rows)",
    },
    {
        "like": "nemotron-4-15b",
        "name": "nemotron-3-8b",
        "aliases": "nemotron3-8b-2023",
        "year": 2023,
        "layers": 32,
        "hidden": 4096,
        "heads": 32,
        "kv_heads": 32,
        "head_dim": 128,
        "ffn_hidden": 16384,
        "source": "NVIDIA/NeMo nemo/collections/llm/gpt/model/nemotron.py, 8B (from memory)",
    },
    {
        "like": "nemotron-4-15b",
        "name": "nemotron-3-22b",
        "aliases": "nemotron-22b",
        "year": 2023,
        "layers": 40,
        "hidden": 6144,
        "heads": 48,
        "kv_heads": 48,
        "head_dim": 128,
        "ffn_hidden": 24576,
        "source": "NVIDIA/NeMo nemo/collections/llm/gpt/model/nemotron.py, 22B (from memory)",
    },
    {
        "like": "mixtral-8x7b",
        "name": "mixtral-8x3b",
        "layers": 32,
        "hidden": 2560,
        "heads": 32,
        "kv_heads": 8,
        "head_dim": 80,
        "ffn_hidden": 8960,
        "expert_ffn_hidden": 8960,
        "hf_id": "",
        "source": "NVIDIA/NeMo nemo/collections/llm/gpt/model/mixtral.py, 8x3B (from memory)",
    },
    {
        "like": "deepseek-v2-lite",
        "name": "moonlight-16b-a3b",
        "family": "deepseek",
        "year": 2025,
        "vocab": 163840,
        "max_context": 8192,
        "ffn_hidden": 11264,
        "hf_id": "moonshotai/Moonlight-16B-A3B",
        "source": "HuggingFace config.json (from memory)",
    },
    {
        **HYBRID,
        "name": "nemotron-h-8b",
        "year": 2025,
        "layers": 52,
        "hidden": 4096,
        "heads": 32,
        "kv_heads": 8,
        "ffn_hidden": 21504,
        "attention_layers": 4,
        "mamba_layers": 24,
        "mamba_heads": 128,
        "mamba_state": 128,
        "hf_id": "nvidia/Nemotron-H-8B-Base-8K",
        "source": "arXiv 2504.03624, table 1 (from memory)",
    },
    {
        **HYBRID,
        "name": "nemotron-h-56b",
        "year": 2025,
        "layers": 118,
        "hidden": 8192,
        "heads": 64,
        "kv_heads": 8,
        "ffn_hidden": 32768,
        "attention_layers": 10,
        "mamba_layers": 54,
        "mamba_heads": 256,
        "mamba_state": 256,
        "hf_id": "nvidia/Nemotron-H-56B-Base-8K",
        "source": "arXiv 2504.03624, table 1 (from memory)",
    },
    {
        **HYBRID,
        "name": "nemotron-nano-9b-v2",
        "aliases": "nvidia-nemotron-nano-9b-v2",
        "year": 2025,
        "layers": 56,
        "hidden": 4480,
        "heads": 40,
        "kv_heads": 8,
        "ffn_hidden": 15680,
        "max_context": 131072,
        "attention_layers": 4,
        "mamba_layers": 27,
        "mamba_heads": 128,
        "mamba_head_dim": 80,
        "mamba_state": 128,
        "hf_id": "nvidia/NVIDIA-Nemotron-Nano-9B-v2",
        "source": "HuggingFace config.json (from memory; gives the stated 8.9B)",
    },
    {
        **HYBRID,
        "name": "nemotron-nano-12b-v2",
        "aliases": "nvidia-nemotron-nano-12b-v2",
        "year": 2025,
        "layers": 62,
        "hidden": 5120,
        "heads": 40,
        "kv_heads": 8,
        "ffn_hidden": 20480,
        "max_context": 131072,
        "attention_layers": 6,
        "mamba_layers": 28,
        "mamba_heads": 128,
        "mamba_head_dim": 80,
        "mamba_state": 128,
        "hf_id": "nvidia/NVIDIA-Nemotron-Nano-12B-v2",
        "source": "HuggingFace config.json (from memory; gives the stated 12.3B)",
    },
    {
        **HYBRID,
        "name": "nemotron-3-nano-30b-a3b",
        "aliases": "nemotron3-nano;nemotron-v3-nano-30b",
        "year": 2025,
        "layers": 52,
        "hidden": 2688,
        "heads": 32,
        "kv_heads": 2,
        "ffn_hidden": 1856,
        "attention_layers": 6,
        "mamba_layers": 23,
        "mamba_heads": 64,
        "mamba_state": 128,
        "num_experts": 128,
        "top_k": 6,
        "expert_ffn_hidden": 1856,
        "shared_experts": 1,
        "shared_expert_ffn_hidden": 3712,
        "hf_id": "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
        "source": "HuggingFace config.json (from memory; gives the stated 31.6B, 3.6B active)",
    },
    {
        **HYBRID,
        "name": "nemotron-3-super-120b-a12b",
        "aliases": "nemotron3-super;nemotron-v3-super-120b",
        "year": 2026,
        "layers": 88,
        "hidden": 4096,
        "heads": 32,
        "kv_heads": 2,
        "ffn_hidden": 2688,
        "attention_layers": 8,
        "mamba_layers": 40,
        "mamba_heads": 128,
        "mamba_state": 128,
        "num_experts": 512,
        "top_k": 22,
        "expert_ffn_hidden": 2688,
        "expert_hidden": 1024,
        "shared_experts": 1,
        "shared_expert_ffn_hidden": 5376,
        "hf_id": "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-BF16",
        "source": "HuggingFace config.json (from memory; gives the stated 120B, 12B active)",
    },
]


def write(path: Path, rows: list[dict[str, Any]], columns: Iterable[str]) -> None:
    """Write a table whole or not at all."""
    temporary = path.with_suffix(".tmp")
    with temporary.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, list(columns), extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    temporary.replace(path)
    print(f"{path.relative_to(DATA.parent)}: {len(rows)} rows")


def clean(value: Any) -> Any:
    """Empty for missing, integers without a trailing '.0'."""
    if value is None or (isinstance(value, float) and pd.isna(value)):
        return ""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def architecture(text: str) -> str:
    for start, name in ARCHITECTURES.items():
        if text.startswith(start):
            return name
    return text.split()[0].lower()


def derived(table: list[dict[str, Any]], extras: list[dict[str, Any]]) -> list[dict[str, Any]]:
    by_name = {row["name"]: row for row in table}
    return [{**by_name[extra["like"]], "aliases": "", "notes": "", **extra} for extra in extras]


PCIE_GBS = {3: 15.75, 4: 31.5, 5: 63, 6: 126}
"""Sixteen lanes of a generation, each way."""

HOST_LINKS = {"GH200": 450, "GB200": 225, "GB300": 225, "TPU": "", "Trainium": ""}
"""Accelerators whose host is not behind sixteen lanes: NVLink-C2C, 900 GB/s of a Grace both ways
(datasheets, from memory), which one GPU has or two share; unknown for what clouds rent."""


def host_link(name: str, generation: Any) -> Any:
    special = next((link for start, link in HOST_LINKS.items() if name.startswith(start)), None)
    return PCIE_GBS.get(generation, "") if special is None else special


def accelerators(shared: Path) -> None:
    source = pd.read_csv(shared / "catalog" / "accelerators.csv")
    source["host_link_gbs"] = [
        host_link(name, generation)
        for name, generation in zip(source["name"], source["pcie_gen"], strict=True)
    ]
    rows = []
    for record in source.to_dict("records"):
        row = {new: clean(record[old]) for old, new in ACCELERATOR_COLUMNS.items()}
        row["architecture"] = architecture(str(record["arch"]))
        row["aliases"] = ACCELERATOR_ALIASES.get(row["name"], "")
        rows.append(row)
    rows += derived(rows, EXTRA_ACCELERATORS)
    columns = list(ACCELERATOR_COLUMNS.values())
    columns[1:1] = ["aliases"]
    columns[3:3] = ["architecture"]
    write(DATA / "accelerators.csv", rows, columns)


def link_name(technology: str) -> str:
    for start, name in LINKS.items():
        if technology.startswith(start):
            return name
    return re.sub(r"[^a-z0-9]+", "-", technology.lower()).strip("-")


def systems(shared: Path) -> None:
    source = pd.read_csv(shared / "catalog" / "nodes.csv")
    rows: list[dict[str, Any]] = []
    for record in source.to_dict("records"):
        record = {key: clean(value) for key, value in record.items()}
        inner = str(record["intra_link"]).lower().split()[0].replace("nvlink-c2c", "nvlink4")
        inner = {"roce": "rocemesh"}.get(inner, inner)
        size, domain = int(record["gpus_per_node"]), int(record["scaleup_domain_gpus"] or 1)
        gpu = str(record["gpu"])
        row: dict[str, Any] = {
            "name": record["name"],
            "accelerator": SYSTEM_ACCELERATOR.get(
                str(record["name"]), SYSTEM_ACCELERATOR.get(gpu, gpu)
            ),
            "accelerators_per_node": size,
            "source": record["source"],
            "notes": record["notes"],
            "tier1_link": inner,
            "tier1_size": size,
            "tier1_bandwidth_gbs": record["per_gpu_intra_unidir_gbs"],
            "tier1_in_switch": int(
                inner in REDUCING_SWITCH and "witch" in str(record["intra_topology"])
            ),
        }
        position = 2
        if domain > size:
            row |= {
                f"tier{position}_link": inner,
                f"tier{position}_size": domain,
                f"tier{position}_bandwidth_gbs": record["per_gpu_intra_unidir_gbs"],
                f"tier{position}_in_switch": row["tier1_in_switch"],
            }
            position += 1
        if record["per_gpu_inter_gbps"] != "":
            row |= {
                f"tier{position}_link": link_name(str(record["network_tech"])),
                f"tier{position}_bandwidth_gbs": float(record["per_gpu_inter_gbps"]) / 8,
                f"tier{position}_oversubscription": record["oversubscription"],
            }
        rows.append(row | SYSTEM_CORRECTIONS.get(str(record["name"]), {}))
    for extra in EXTRA_SYSTEMS:
        rows.append(extra)
    aliases = {"DGX-A100-80GB": "dgx-a100", "Meta-GrandTeton-24k-RoCE": "grand-teton"}
    for row in rows:
        row["aliases"] = aliases.get(row["name"], "")
    tier_columns = [
        f"tier{i}_{key}"
        for i in (1, 2, 3)
        for key in ("link", "size", "bandwidth_gbs", "oversubscription", "in_switch")
    ]
    columns = [
        "name",
        "aliases",
        "accelerator",
        "accelerators_per_node",
        *tier_columns,
        "source",
        "notes",
    ]
    write(DATA / "systems.csv", rows, columns)


def models(shared: Path) -> None:
    source = pd.read_csv(shared / "catalog" / "models.csv")
    rows = []
    for record in source.to_dict("records"):
        row = {column: clean(record.get(column)) for column in MODEL_COLUMNS}
        norm = "rmsnorm" if "rms" in str(record["norm_type"]).lower() else "layernorm"
        position = str(record["pos_embedding"]).lower()
        row["norm"] = norm
        row["positions"] = next(
            (kind for kind in ("learned", "alibi", "rope") if position.startswith(kind)), "none"
        )
        row["activation"] = clean(record["activation"]) or ("silu" if row["gated"] else "gelu")
        row["tied_embeddings"] = int(record["tied_embeddings"])
        biased = norm == "layernorm" and row["family"] in ("gpt", "opt", "bloom", "gpt-neox", "phi")
        row["bias"] = int(biased)
        row["qkv_bias"] = int(str(row["family"]).startswith("qwen2"))
        row["aliases"] = MODEL_ALIASES.get(row["name"], "")
        rows.append(row)
    rows += derived(rows, EXTRA_MODELS)
    columns = list(MODEL_COLUMNS)
    columns[1:1] = ["aliases"]
    columns[columns.index("gated") + 1 : columns.index("gated") + 1] = [
        "activation",
        "norm",
        "positions",
        "tied_embeddings",
        "bias",
        "qkv_bias",
    ]
    write(DATA / "models.csv", rows, columns)


def references(shared: Path) -> None:
    """Published points: every column but the page title; rows that state a step time or memory."""
    table = pd.read_csv(shared / "reference" / "training.csv", low_memory=False)
    table = table[table.step_time_s.notna() | table.memory_gb_per_gpu.notna()]
    rows = [{k: clean(v) for k, v in row.items()} for row in table.to_dict("records")]
    columns = [column for column in table.columns if column != "source_title"]
    write(DATA / "reference" / "training.csv", rows, columns)
    table = pd.read_csv(shared / "reference" / "memory_validation_korthikanti.csv")
    table = table.drop(columns=["calculon", "calculon_err_pct"])
    write(
        DATA / "reference" / "memory_korthikanti.csv",
        [{k: clean(v) for k, v in row.items()} for row in table.to_dict("records")],
        table.columns,
    )


def failures(shared: Path) -> None:
    """What is known of interruptions, goodput and checkpoints of training jobs."""
    table = pd.read_csv(shared / "catalog" / "failures_power.csv")
    table = table[table.category.isin(["failure", "goodput", "checkpoint"])]
    rows = [{k: clean(v) for k, v in row.items()} for row in table.to_dict("records")]
    write(DATA / "reference" / "failures.csv", rows, table.columns)


def main() -> None:
    shared = Path(sys.argv[1])
    accelerators(shared)
    systems(shared)
    models(shared)
    references(shared)
    failures(shared)


if __name__ == "__main__":
    main()

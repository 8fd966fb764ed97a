"""Rebuild the catalogs and reference tables in `data/` from the shared fact tables.

    python tools/curate.py ../shared [--out data]

Run by `make catalogs` where the shared tables are at hand; the result is committed. What is
changed on the way (names, units) stands here, and what the shared tables lack in the tables of
`tools/facts`, each row with its source, so that a diff shows every fact.
"""

from __future__ import annotations

import argparse
import csv
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from calibration.tables.conventions import RATES

DATA = Path(__file__).resolve().parent.parent / "data"
FACTS = Path(__file__).resolve().parent / "facts"

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
    "l2_bandwidth_gbs": "l2_bandwidth_gbs",
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
SYSTEM_ACCELERATOR = {"DGX-2": "V100-SXM3-32GB", "A100-SXM4-64GB (custom)": "A100-SXM4-64GB"}
HYBRID_COLUMNS = (
    "expert_hidden",
    "attention_layers",
    "mamba_layers",
    "mamba_heads",
    "mamba_head_dim",
    "mamba_state",
    "mamba_groups",
    "mamba_rank",
    "mamba_chunk",
    "mamba_beside",
    "shared_blocks",
    "shared_rank",
    "shared_queries",
    "output_gate",
    "delta_layers",
    "delta_key_heads",
    "delta_value_heads",
    "delta_key_dim",
    "delta_value_dim",
    "delta_gate_rank",
    "delta_whole_gate",
    "delta_whole_decay",
    "delta_fixed",
    "conv_layers",
    "conv_taps",
    "residual_block",
    "index_heads",
    "index_head_dim",
    "index_topk",
    "index_block",
    "index_pool",
    "sharing_layers",
    "whole_layers",
    "choosing_layers",
    "choosing_ratio",
    "pooling_layers",
    "pooling_ratio",
    "reading_layers",
    "decoder_layers",
    "decoder_choosers",
    "candidates",
    "index_from_keys",
    "index_means",
    "ngram_layers",
    "ngram_rows",
    "ngram_lookups",
    "ngram_width",
    "ngram_taps",
    "ngram_embedding",
    "out_groups",
    "out_rank",
    "streams",
    "stream_rank",
    "window_heads",
    "window_kv_heads",
    "window_head_dim",
    "head_gate",
    "values_are_keys",
    "borrowing_layers",
    "borrowing_ffn_hidden",
    "bare_layers",
    "ffn_widths",
    "layer_inputs",
    "alternating_streams",
    "laurel_rank",
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


def write(path: Path, rows: list[dict[str, Any]], columns: Iterable[str]) -> None:
    """Write a table whole or not at all."""
    temporary = path.with_suffix(".tmp")
    with temporary.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, list(columns), extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    temporary.replace(path)
    print(f"{path}: {len(rows)} rows")


def facts(name: str) -> list[dict[str, Any]]:
    """Rows that are added or corrected: what is not stated is left out, '-' leaves a cell empty."""
    with (FACTS / f"{name}.csv").open(newline="", encoding="utf-8") as stream:
        return [
            {key: "" if value == "-" else value for key, value in row.items() if value}
            for row in csv.DictReader(stream)
        ]


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


CACHE_GBS = {"Gaudi2-96GB": 6400, "Gaudi3-128GB": 12800}
"""Bandwidth of memory on the chip, where it is not that of a GPU's processors (Intel, Hot Chips
2024: 12.8 TB/s of Gaudi 3's L2; half of it of Gaudi 2, from memory)."""


def accelerators(shared: Path, out: Path) -> None:
    source = pd.read_csv(shared / "catalog" / "accelerators.csv")
    source["l2_bandwidth_gbs"] = ""
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
    rows += derived(rows, facts("accelerators"))
    for row in rows:
        row["l2_bandwidth_gbs"] = CACHE_GBS.get(row["name"], "")
    columns = list(ACCELERATOR_COLUMNS.values())
    columns[1:1] = ["aliases"]
    columns[3:3] = ["architecture"]
    write(out / "accelerators.csv", rows, columns)


def link_name(technology: str) -> str:
    for start, name in LINKS.items():
        if technology.startswith(start):
            return name
    return re.sub(r"[^a-z0-9]+", "-", technology.lower()).strip("-")


WIRED = ("fully connected", "full mesh")
"""How the shared table says that accelerators of a node are wired to one another in pairs."""


def networks(record: dict[str, Any]) -> dict[str, Any]:
    """The tiers of a node's network: inside it, to the end of the scale-up domain, beyond."""
    inner = str(record["intra_link"]).lower().split()[0].replace("nvlink-c2c", "nvlink4")
    inner = {"roce": "rocemesh"}.get(inner, inner)
    size, domain = int(record["gpus_per_node"]), int(record["scaleup_domain_gpus"] or 1)
    reduces = int(inner in REDUCING_SWITCH and "witch" in str(record["intra_topology"]))
    row: dict[str, Any] = {}
    sizes = [size, domain] if domain > size else [size]
    for position, reach in enumerate(sizes, 1):
        row |= {
            f"tier{position}_link": inner,
            f"tier{position}_size": reach,
            f"tier{position}_bandwidth_gbs": record["per_gpu_intra_unidir_gbs"],
            f"tier{position}_in_switch": reduces,
        }
    if any(words in str(record["intra_topology"]) for words in WIRED):
        row["tier1_direct"] = 1
    if record["per_gpu_inter_gbps"] != "":
        position = len(sizes) + 1
        row |= {
            f"tier{position}_link": link_name(str(record["network_tech"])),
            f"tier{position}_bandwidth_gbs": float(record["per_gpu_inter_gbps"]) / 8,
            f"tier{position}_oversubscription": record["oversubscription"],
        }
    return row


SYSTEM_COLUMNS = [
    "name",
    "aliases",
    "accelerator",
    "accelerators_per_node",
    "host_memory_gb",
    *(
        f"tier{i}_{key}"
        for i in (1, 2, 3)
        for key in ("link", "size", "bandwidth_gbs", "oversubscription", "in_switch", "direct")
    ),
    "source",
    "notes",
]
SYSTEM_ALIASES = {
    "DGX-A100-80GB": "dgx-a100",
    "Meta-GrandTeton-24k-RoCE": "grand-teton",
    "Helios-MI455X": "helios",
    "AWS-trn3-ultraserver": "trn3",
}


def systems(shared: Path, out: Path) -> None:
    source = pd.read_csv(shared / "catalog" / "nodes.csv")
    corrections = {row["name"]: row for row in facts("corrections")}
    rows: list[dict[str, Any]] = []
    for record in source.to_dict("records"):
        record = {key: clean(value) for key, value in record.items()}
        name, gpu = str(record["name"]), str(record["gpu"])
        own = SYSTEM_ACCELERATOR.get(name, SYSTEM_ACCELERATOR.get(gpu, gpu))
        corrected = corrections.get(name, {})
        rows.append(
            {
                "accelerator": own,
                "accelerators_per_node": int(record["gpus_per_node"]),
                "host_memory_gb": record["host_mem_gb"],
                "notes": record["notes"],
                **networks(record),
                **corrected,
                "name": name,
                "source": record["source"],
            }
        )
    rows += facts("systems")
    for row in rows:
        row["aliases"] = SYSTEM_ALIASES.get(row["name"], "")
    write(out / "systems.csv", rows, SYSTEM_COLUMNS)


PARALLEL = {
    "gpt-j": "shared_norm",
    "gpt-neox": "own_norms",
    "palm": "shared_norm",
    "falcon-7b": "shared_norm",
    "falcon": "own_norms",
    "phi-2": "shared_norm",
}
"""Attention and MLP side by side, by model or family: Wang & Komatsuzaki 2021; arXiv 2204.06745 and
2204.02311; HuggingFace configurations of Falcon (num_ln_in_parallel_attn) and Phi."""


NEW_GELU = ("gpt2-", "distilgpt2", "gpt-neo-", "gpt-j-", "codegen-", "phi-1.5", "phi-2")
"""How names begin of models whose HuggingFace configurations name `gelu_new` as their activation
(classes GPT2Config, GPTNeoConfig, GPTJConfig, CodeGenConfig and PhiConfig of transformers)."""


def models(shared: Path, out: Path) -> None:
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
        row["expert_bias"] = int(row["family"] == "gpt-oss")
        row["parallel"] = PARALLEL.get(row["name"], PARALLEL.get(row["family"], ""))
        row["aliases"] = MODEL_ALIASES.get(row["name"], "")
        rows.append(row)
    rows += derived(rows, facts("models"))
    rows += facts("models_whole")
    for row in rows:
        if str(row["name"]).startswith(NEW_GELU) and row["activation"] == "gelu":
            row["activation"] = "gelu_new"
    columns = list(MODEL_COLUMNS)
    columns[1:1] = ["aliases"]
    columns[columns.index("gated") + 1 : columns.index("gated") + 1] = [
        "activation",
        "norm",
        "positions",
        "tied_embeddings",
        "bias",
        "qkv_bias",
        "expert_bias",
        "parallel",
    ]
    write(out / "models.csv", rows, columns)


def references(shared: Path, out: Path) -> None:
    """Published points: every column but the page title; rows that state a step time, memory or a
    rate. Those of `tools/facts/unseen.csv`, and those that state a rate alone, go to a table of
    their own, which no fit reads."""
    table = pd.read_csv(shared / "reference" / "training.csv", low_memory=False)
    timed = table.step_time_s.notna() | table.memory_gb_per_gpu.notna()
    rated = table.metric.isin(RATES) & table.value.notna()
    table, timed = table[timed | rated], timed[timed | rated]
    columns = [column for column in table.columns if column != "source_title"]
    apart = {(row["source"], row["point_id"]) for row in facts("unseen")}
    pairs = zip(table.source, table.point_id, strict=True)
    unseen = [pair in apart for pair in pairs] | ~timed.to_numpy()
    for name, mask in (("training", np.logical_not(unseen)), ("unseen", unseen)):
        rows = [{k: clean(v) for k, v in row.items()} for row in table[mask].to_dict("records")]
        write(out / "reference" / f"{name}.csv", rows, columns)
    table = pd.read_csv(shared / "reference" / "memory_validation_korthikanti.csv")
    table = table.drop(columns=["calculon", "calculon_err_pct"])
    write(
        out / "reference" / "memory_korthikanti.csv",
        [{k: clean(v) for k, v in row.items()} for row in table.to_dict("records")],
        table.columns,
    )


def failures(shared: Path, out: Path) -> None:
    """What is known of interruptions, goodput and checkpoints of training jobs."""
    table = pd.read_csv(shared / "catalog" / "failures_power.csv")
    table = table[table.category.isin(["failure", "goodput", "checkpoint"])]
    rows = [{k: clean(v) for k, v in row.items()} for row in table.to_dict("records")]
    write(out / "reference" / "failures.csv", rows, table.columns)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shared", type=Path)
    parser.add_argument("--out", type=Path, default=DATA)
    given = parser.parse_args()
    shared, out = given.shared, given.out
    (out / "reference").mkdir(parents=True, exist_ok=True)
    accelerators(shared, out)
    systems(shared, out)
    models(shared, out)
    references(shared, out)
    failures(shared, out)


if __name__ == "__main__":
    main()

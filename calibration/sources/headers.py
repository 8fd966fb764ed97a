"""Columns of tables as people head them: the schema's in other letters, with blanks or their unit
in brackets, and what else they are called."""

from __future__ import annotations

import re

import pandas as pd

from predictor.schema import KERNEL_KEY, RATIO_KEY, RUN_NUMBERS

WORDS = (
    "point_id", "source", "source_title", "source_locator", "published", "accelerator",
    "intra_link",
    "model", "family", "gated", "precision", "weights_precision", "kv_precision",
    "sequence_parallel", "dp_sharding", "recompute", "framework", "framework_version", "metric",
    "flops_convention", "notes", "status", "trained", "lora_rank", "quantized", "optimizer",
    "tokens", "engine", "task", "workload", "control", "group", "n_gpus", "max_num_seqs",
    "max_output_tokens", "output_tok_s", "energy_per_out_token_j", "avg_power_w",
    "power_per_gpu_w", "power_limit_w", "time_s", "time_unit", "core_clock_mhz",
    "throughput_tok_s", "enforced_limit_w", "temp_c", "power_w", "position", "node_power_w",
    "avg_power_per_gpu_w", "median_power_per_gpu_w", "peak_gib",
)  # fmt: skip
"""Columns of tables of runs and of power beside those of numbers."""

OTHERS = {
    "accelerator": ("gpu", "gpu_type", "gpu_model", "gpu_name", "chip", "hardware"),
    "num_gpus": ("gpus", "gpu_count", "ngpus", "number_of_gpus", "total_gpus", "chips"),
    "model": ("model_name",),
    "global_batch": ("gbs", "global_batch_size"),
    "micro_batch": ("mbs", "micro_batch_size", "per_device_batch_size",
                    "per_device_train_batch_size"),
    "seq_len": ("sequence_length", "seq_length", "seqlen", "context_length", "max_seq_len"),
    "tp": ("tp_size", "tensor_parallel", "tensor_parallel_size"),
    "pp": ("pp_size", "pipeline_parallel", "pipeline_parallel_size"),
    "dp": ("dp_size", "data_parallel", "data_parallel_size"),
    "ep": ("ep_size", "expert_parallel", "expert_parallel_size"),
    "cp": ("cp_size", "context_parallel", "context_parallel_size"),
    "precision": ("dtype",),
    "input_len": ("isl", "prompt_len", "prompt_tokens", "input_tokens", "input_length"),
    "output_len": ("osl", "output_tokens", "output_length"),
    "memory_gb_per_gpu": ("peak_memory_gb", "peak_memory_gib", "max_memory_gb", "memory_gb",
                          "gpu_memory_gb", "peak_gb", "memory_gib"),
    "power_limit_w": ("power_cap_w", "power_cap", "power_limit"),
    "avg_power_w": ("avg_power", "average_power_w", "mean_power_w"),
}  # fmt: skip
"""What else a column is called."""

KNOWN = {
    **{name: name for name in (*RUN_NUMBERS, *WORDS)},
    **{other: name for name, others in OTHERS.items() for other in others},
}


def as_headed(table: pd.DataFrame) -> pd.DataFrame:
    """A table of runs or of power whose columns are called as the schema calls them, where it has
    no such one yet; tables of kernels and of ratios as they are."""
    if KERNEL_KEY in table or RATIO_KEY in table:
        return table
    taken, renamed = set(table.columns), {}
    for column in table.columns:
        folded = re.sub(r"[^a-z0-9]+", "_", str(column).lower()).strip("_")
        name = KNOWN.get(folded)
        if name is not None and name not in taken:
            renamed[column] = name
            taken.add(name)
    return table.rename(columns=renamed) if renamed else table

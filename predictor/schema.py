"""Columns, units and allowed values of the project's tables, as plain data."""

from __future__ import annotations

from collections.abc import Collection

KERNEL_SCHEMA_VERSION = 1

KERNEL_NUMBERS = (
    "m",
    "n",
    "k",
    "batch",
    "q_len",
    "kv_len",
    "heads",
    "kv_heads",
    "head_dim",
    "causal",
    "window",
    "experts",
    "topk",
    "moe_tp",
    "moe_ep",
    "num_gpus",
    "num_nodes",
    "message_bytes",
)
"""What describes a kernel or a collective in numbers."""

KERNEL_COLUMNS = (
    "source",
    "accelerator",
    "op",
    "dtype",
    "kv_dtype",
    *KERNEL_NUMBERS,
    "latency_us",
    "latency_p10_us",
    "latency_p90_us",
    "samples",
    "waited",
    "layout",
    "kernel",
    "cache",
    "mode",
    "link",
    "link_gbs",
    "in_switch",
    "node_link",
    "node_link_gbs",
    "node_in_switch",
    "ranks_per_host",
    "power_w",
    "power_limit_w",
    "clock_mhz",
    "framework",
    "framework_version",
    "device_file",
    "schema_version",
    "notes",
)
"""Columns of a kernel table. `message_bytes` of a collective follows nccl-tests; of a memory-bound
kernel it is the traffic that `latency_us` is compared with. `waited` is the share of its time that
a measurement's threads waited for processors which others used, 0 where that is next to none.
`link` is the outermost that a collective crosses; one between nodes may state the link inside them
too (`node_link`). The kernel 'custom' marks the all-reduce of an inference engine, `mode` whether
in a captured graph."""

COLLECTIVE_OPS = ("allreduce", "allgather", "reducescatter", "alltoall", "broadcast", "p2p")

COMPUTE_OPS = (
    "gemm",
    "attention_prefill",
    "attention_backward",
    "attention_decode",
    "moe_gemm",
    "norm",
    "elementwise",
    "softmax",
    "embedding",
    "loss",
    "optimizer",
)

DEVICE_OPS = ("memcpy", "launch", "overlap", "dispatch", "waiting")
"""Measurements that describe a device and are no operators of a model."""


LAYOUTS = ("fwd", "dgrad", "wgrad", "bmm", "bmm_bwd")

RUN_NUMBERS = (
    "gpus_per_node",
    "num_gpus",
    "inter_link_gbps",
    "params_b",
    "layers",
    "hidden",
    "heads",
    "kv_heads",
    "ffn_hidden",
    "vocab",
    "num_experts",
    "top_k",
    "expert_ffn_hidden",
    "shared_experts",
    "seq_len",
    "global_batch",
    "micro_batch",
    "tp",
    "pp",
    "vpp",
    "cp",
    "ep",
    "dp",
    "batch",
    "concurrency",
    "request_rate",
    "prefill_workers",
    "prefill_tp",
    "prefill_dp",
    "prefill_ep",
    "prefill_batch",
    "workers",
    "input_len",
    "output_len",
    "value",
    "step_time_s",
    "memory_gb_per_gpu",
    "memory_reserved_gb",
    "peak_gib",
    "waited",
)
"""Columns of tables of runs, of training and of inference, that hold numbers from 0 up."""

ENDLESS = ("request_rate",)
"""Those of which a number may be infinite: all requests at once."""

TRAINING_KEYS = ("global_batch", "micro_batch", "seq_len")
INFERENCE_KEYS = ("input_len", "output_len", "concurrency", "weights_precision")
"""Columns that only tables of training runs, or of inference, have: one of them is enough."""

KERNEL_KEY = "latency_us"
RATIO_KEY = "ratio"
"""A column that only tables of one kind have, by which `validate` tells them apart."""


def of_training(columns: Collection[str]) -> bool:
    """Whether a table of these columns is of training runs."""
    return not of_inference(columns) and any(one in columns for one in TRAINING_KEYS)


def of_inference(columns: Collection[str]) -> bool:
    """Whether a table of these columns is of inference."""
    return any(one in columns for one in INFERENCE_KEYS)


ALONE = "alone"
"""`kernel` of a product in a narrow data type that was timed without what narrows its input."""

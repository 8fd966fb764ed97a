"""What is said of a flag that a command does not have: the one that means it, or how a key of a
plan without a flag of its own is stated.
"""

from __future__ import annotations

import click

from predictor.plans import SERVING_FIELDS, TRAINING_FIELDS

CALLED: dict[str, tuple[str, ...]] = {
    "tp": ("tensor-parallel", "tensor-parallel-size", "tensor-model-parallel-size", "tensor"),
    "pp": ("pipeline-parallel", "pipeline-parallel-size", "pipeline-model-parallel-size"),
    "dp": ("data-parallel", "data-parallel-size"),
    "cp": ("context-parallel", "context-parallel-size"),
    "ep": ("expert-parallel", "expert-parallel-size", "expert-model-parallel-size"),
    "gpus": ("num-gpus", "n-gpus", "ngpus", "world-size", "num-devices", "devices", "chips",
             "accelerators", "nodes", "num-nodes"),
    "system": ("gpu", "hardware", "machine", "cluster", "device", "node"),
    "seq-len": ("sequence-length", "seq-length", "max-seq-len", "max-seq-length", "seqlen",
                "context-length", "max-length"),
    "global-batch": ("global-batch-size", "train-batch-size", "gbs", "batch-size", "batch"),
    "micro-batch": ("micro-batch-size", "mbs", "per-device-batch-size"),
    "batch": ("batch-size",),
    "concurrency": ("max-num-seqs", "users", "clients", "max-concurrency", "num-concurrent"),
    "rate": ("request-rate", "qps", "rps"),
    "input-len": ("isl", "prompt-len", "input-length", "prompt-length", "input-tokens",
                  "random-input-len"),
    "output-len": ("osl", "output-length", "max-tokens", "max-new-tokens", "output-tokens",
                   "random-output-len"),
    "precision": ("dtype", "quantization", "quant", "weights-precision"),
    "kv-precision": ("kv-cache-dtype", "kv-dtype"),
    "price-per-gpu-hour": ("price", "cost", "gpu-price", "price-per-hour"),
    "framework": ("engine", "backend", "software"),
    "recompute": ("activation-checkpointing", "gradient-checkpointing", "remat"),
    "sharding": ("zero", "zero-stage", "fsdp"),
    "tokens": ("train-tokens", "num-tokens", "token-budget"),
}  # fmt: skip
"""Flags, and what other programs and people call them."""


def hint(error: click.NoSuchOption) -> str:
    """What is said of an option that is not there."""
    word = str(error.option_name).lstrip("-").replace("_", "-").lower()
    command = error.ctx.command if error.ctx else None
    params = command.params if command else []
    has = {name.lstrip("-") for param in params for name in (*param.opts, *param.secondary_opts)}
    said = f"No such option {error.option_name!r}"
    if near := next(
        (flag for flag, names in CALLED.items() if word in names and flag in has), None
    ):
        return f"{said}; it is --{near} here"
    key = word.replace("-", "_")
    if "ttft-ms" in has and key in SERVING_FIELDS:  # a search of fleets, which takes a load
        return f"{said}; a search takes a load, --rate X, and seeks the rest"
    if "set" in has and f"slo_{key}" in SERVING_FIELDS:
        return f"{said}; as a key of the plan: --set slo_{key}=..."
    if "set" in has and any(key in table for table in (TRAINING_FIELDS, SERVING_FIELDS)):
        return f"{said}; as a key of the plan: --set {key}=..."
    needed = any(isinstance(param, click.Argument) and param.required for param in params)
    if needed and key in TRAINING_FIELDS:
        return f"{said}; it takes a file, as in '{_example(command)}'"
    return str(error.format_message())


def missing(error: click.MissingParameter) -> str:
    """What is said where something must be given and is not."""
    param, context = error.param, error.ctx
    if param is None or context is None:
        return str(error.format_message())
    name = param.opts[0] if isinstance(param, click.Option) else param.make_metavar(context)
    example = _example(context.command)
    return f"give {name}, as in '{example}'" if example else f"give {name}"


def _example(command: click.Command | None) -> str:
    """The example of a command's help."""
    return str(getattr(command, "epilog", None) or "").removeprefix("Example: ")

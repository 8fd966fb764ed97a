"""Names of Megatron Core's configurations: those of Megatron-LM's flags, and where they differ."""

from __future__ import annotations

from typing import Any

from reckon.launch.dialect import Source
from reckon.launch.launcher import NODES, PER_NODE
from reckon.launch.megatron_plan import FLAGS
from reckon.launch.table import Flags, truth

NAMES: dict[str, str] = {
    "--num-experts": "num_moe_experts",
    "--num-virtual-stages-per-pipeline-rank": "virtual_pipeline_model_parallel_size",
    "--swiglu": "gated_linear_unit",
    "--accumulate-allreduce-grads-in-fp32": "grad_reduce_in_fp32",
    "--account-for-embedding-in-pipeline-split": "account_for_embedding_in_pipeline_split",
    "--account-for-loss-in-pipeline-split": "account_for_loss_in_pipeline_split",
    "--use-tp-pp-dp-mapping": "use_tp_pp_dp_mapping",
}
"""Flags whose name in Megatron Core is not the flag's own with underscores."""

CONTRARY: dict[str, str] = {
    "--disable-bias-linear": "add_bias_linear",
    "--untie-embeddings-and-output-weights": "share_embeddings_and_output_weights",
    "--grad-reduce-in-bf16": "grad_reduce_in_fp32",
    "--no-bias-swiglu-fusion": "bias_activation_fusion",
    "--no-bias-gelu-fusion": "bias_activation_fusion",
    "--no-rope-fusion": "apply_rope_fusion",
    "--no-gradient-accumulation-fusion": "gradient_accumulation_fusion",
    "--no-overlap-p2p-communication": "overlap_p2p_comm",
    "--no-async-tensor-model-parallel-allreduce": "async_tensor_model_parallel_allreduce",
}
"""Switches that are on where Megatron Core's key is false."""

LEFT_OUT = ("--tokenizer-type", "--group-query-attention")
"""Flags that have no key."""

SECTIONS: dict[str, tuple[str, ...]] = {
    "train": ("micro_batch_size", "global_batch_size", "train_iters", "train_samples"),
    "ddp": ("use_distributed_optimizer", "overlap_grad_reduce", "overlap_param_gather",
            "grad_reduce_in_fp32", "use_megatron_fsdp", "data_parallel_sharding_strategy",
            "num_distributed_optimizer_instances", "fp8_param_gather"),
    "optimizer": ("clip_grad", "use_precision_aware_optimizer", "main_params_dtype",
                  "exp_avg_dtype", "exp_avg_sq_dtype"),
    "comm_overlap": ("tp_comm_overlap", "overlap_p2p_comm_warmup_flush"),
    "dist": ("use_tp_pp_dp_mapping",),
}  # fmt: skip
"""Configurations other than the model's."""


def core_name(flag: str) -> str:
    """Megatron Core's key of a flag, with its section."""
    name = CONTRARY.get(flag) or NAMES.get(flag) or flag.removeprefix("--").replace("-", "_")
    section = next((s for s, names in SECTIONS.items() if name in names), "model")
    return f"{section}.{name}"


FROM_CORE: dict[str, tuple[str, bool]] = {
    **{core_name(f).split(".")[1]: (f, False) for f in reversed(FLAGS) if f in CONTRARY},
    **{
        core_name(f).split(".")[1]: (f, True)
        for f in FLAGS
        if f.startswith("--") and f not in CONTRARY
    },
    "sequence_length": ("--seq-length", True),
    "encoder_seq_length": ("--seq-length", True),
}
"""Flag of a key, and whether both are on together."""


def from_core(flat: dict[str, Any]) -> Source:
    """Flags of Megatron-LM that keys of Megatron Core's configurations stand for; a key that begins
    with dashes is a flag itself.

    A gated MLP of no stated width is four times the model's (`TransformerConfig.__post_init__`),
    but for the activation 'swiglu', which Megatron-LM reads as its flag
    (`training/yaml_arguments.py` @ 00caa53a)."""
    found: Flags = {}
    for name, value in flat.items():
        last = str(name).rsplit(".", 1)[-1]
        if last.startswith("--"):
            found[last.replace("_", "-")] = value
        elif last == "activation_func" and str(value).lower() in ("swiglu", "gelu", "silu"):
            found["--swiglu"] = str(value).lower() != "gelu"
        elif last == "bias" and str(name) in ("model.bias", "bias"):
            found["--disable-bias-linear"] = not truth(last, value)
        elif last == "qkv_bias":
            found["--add-qkv-bias"] = value
        elif last in ("num_nodes", "nnodes"):
            found[NODES] = value
        elif last in ("devices", "gpus_per_node", "num_gpus_per_node"):
            found[PER_NODE] = value
        elif last in ("mixed_precision",) or str(name) in ("trainer.precision", "precision"):
            found["mixed_precision"] = value
        elif last in FROM_CORE:
            flag, alike = FROM_CORE[last]
            found[flag] = value if alike else not truth(last, value)
        else:
            found[str(name)] = value
    keys = {str(name).rsplit(".", 1)[-1]: value for name, value in flat.items()}
    gated = truth("gated_linear_unit", keys.get("gated_linear_unit") or False)
    hidden = found.get("--hidden-size")
    if gated and isinstance(hidden, int) and str(keys.get("activation_func")).lower() != "swiglu":
        found["--ffn-hidden-size"] = found.get("--ffn-hidden-size") or 4 * hidden
    return Source(found)


def to_core(flags: Flags) -> dict[str, Any]:
    """The contrary of `from_core`."""
    found: dict[str, Any] = {}
    for flag, value in flags.items():
        if flag.startswith("@") or flag in LEFT_OUT:
            continue
        if not flag.startswith("--"):
            found[flag] = value
        elif flag in CONTRARY:
            found.setdefault(core_name(flag), not value)
        else:
            found[core_name(flag)] = value
    return found

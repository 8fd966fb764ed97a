"""GPT-NeoX: its YAML, whose keys are Megatron-LM's and DeepSpeed's, as flags of Megatron-LM.

Read in EleutherAI/gpt-neox @ ea7aefd (megatron/neox_arguments, megatron/model/transformer.py).
Attention and MLP stand one behind the other unless `gpt_j_residual` is on, then behind two norms,
or, with `gpt_j_tied`, behind one (neox_arguments/neox_args.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from predictor.errors import InputError
from reckon.launch.megatron_model import BESIDE
from reckon.launch.table import Flags, truth, whole_number

SIGNS = ("pipe_parallel_size", "pos_emb", "no_weight_tying", "train_micro_batch_size_per_gpu")
"""Keys by which its configurations are told from others; two of them are enough."""

SAME = {
    "pipe_parallel_size": "--pipeline-model-parallel-size",
    "model_parallel_size": "--tensor-model-parallel-size",
    "num_kv_heads": "--num-query-groups",
    "train_micro_batch_size_per_gpu": "--micro-batch-size",
    "train_batch_size": "--global-batch-size",
    "gradient_clipping": "--clip-grad",
    "zero_optimization.stage": "--zero-stage",
    "moe_num_experts": "--num-experts",
    "moe_top_k": "--moe-router-topk",
    "sliding_window_width": "--window-size",
}

POSITIONS = {"rotary": "rope", "learned": "learned_absolute", "alibi": "alibi", "none": "none"}

GATED = ("swiglu", "geglu", "reglu", "bilinear", "glu")

OTHERS = ("mamba", "rwkv", "gmlp", "amlp", "local", "bslongformer", "bigbird", "fixed")
"""Kinds of layers in `attention_config` that are not predicted."""

LEFT = (
    "pos_emb", "norm", "no_weight_tying", "activation", "intermediate_size", "mlp_multiple_of",
    "precision", "fp16", "bf16", "attention_config", "checkpoint_activations", "rotary_pct",
    "use_bias_in_attn_linear", "use_bias_in_mlp", "use_bias_in_norms", "fp16.enabled", "fp16.type",
    "bf16.enabled", "overlap_comm", "zero_optimization.overlap_comm", "output_layer_parallelism",
    "scaled_upper_triang_masked_softmax_fusion", "bias_gelu_fusion", "layernorm_fusion",
    "optimizer.type", "optimizer.params.eps", "zero_optimization.allgather_bucket_size",
    "zero_optimization.reduce_bucket_size", "zero_optimization.allgather_partitions",
    "zero_optimization.reduce_scatter", "zero_optimization.contiguous_gradients",
    "partition_activations", "synchronize_each_layer", "rms_norm_epsilon", "warmup",
    "fp16.min_loss_scale", "fp16.initial_scale_power", "checkpoint_factor", "steps_per_print",
    "wall_clock_breakdown", "output_layer_init_method", "gpt_j_residual", "gpt_j_tied",
)  # fmt: skip
"""Keys that are read under another name, or have no effect on speed."""


def is_neox(content: Mapping[Any, Any]) -> bool:
    """Whether a mapping is a configuration of GPT-NeoX."""
    names = {str(key).replace("-", "_") for key in content}
    return len(names & set(SIGNS)) > 1


def from_neox(flat: Mapping[str, Any]) -> Flags:
    """Flags of Megatron-LM, of keys by their dotted names.

    Raises InputError for layers that are not predicted.
    """
    own = {str(key).replace("-", "_"): value for key, value in flat.items()}
    found: Flags = {}
    for key, value in own.items():
        if key not in LEFT:
            found[SAME.get(key, "--" + key.rsplit(".", 1)[-1].replace("_", "-"))] = value
    if str(found.get("--pipeline-model-parallel-size", 1)) == "0":  # without its module of stages
        found["--pipeline-model-parallel-size"] = 1
    for dropout in ("--hidden-dropout", "--attention-dropout"):
        found.setdefault(dropout, 0.0)
    found["--position-embedding-type"] = POSITIONS.get(str(own.get("pos_emb", "learned")), "rope")
    if "rms" in str(own.get("norm", "")).lower():
        found["--normalization"] = "RMSNorm"
    if truth("no_weight_tying", own.get("no_weight_tying", False)):
        found["--untie-embeddings-and-output-weights"] = True
    biases = [own.get(f"use_bias_in_{part}", True) for part in ("attn_linear", "mlp")]
    if not any(truth("use_bias", bias) for bias in biases):
        found["--disable-bias-linear"] = True
    if truth("checkpoint_activations", own.get("checkpoint_activations", False)):
        found["--checkpoint-activations"] = True
    if truth("overlap_comm", own.get("zero_optimization.overlap_comm", False)):
        found["--overlap-grad-reduce"] = True
    found[BESIDE] = _residual(own)
    _precision(own, found)
    _width(own, found)
    _attention(own, found)
    return found


def _residual(own: Mapping[str, Any]) -> str:
    beside, tied = (truth(key, own.get(key, False)) for key in ("gpt_j_residual", "gpt_j_tied"))
    return ("shared_norm" if tied else "own_norms") if beside else "none"


def _precision(own: Mapping[str, Any], found: Flags) -> None:
    kind = str(own.get("precision", "")).lower()
    if truth("", own.get("bf16.enabled", False)) or str(own.get("fp16.type")) == "bfloat16":
        kind = "bfloat16"
    elif truth("", own.get("fp16.enabled", False)):
        kind = "fp16"
    if kind in ("bfloat16", "bf16", "fp16"):
        found["--fp16" if kind == "fp16" else "--bf16"] = True


def _width(own: Mapping[str, Any], found: Flags) -> None:
    """The feed-forward width; of a gated one a third of what the key says, as both halves together
    have two thirds of it (transformer.py, `ParallelMLP`)."""
    hidden = whole_number("hidden_size", own.get("hidden_size", 0))
    width = whole_number("intermediate_size", own.get("intermediate_size") or 4 * hidden)
    if str(own.get("activation", "gelu")).lower() in GATED:
        found["--swiglu"] = True
        multiple = whole_number("mlp_multiple_of", own.get("mlp_multiple_of", 1))
        width = -(-(2 * width // 3 // 2) // multiple) * multiple
    if hidden:
        found["--ffn-hidden-size"] = width


def _attention(own: Mapping[str, Any], found: Flags) -> None:
    said = str(own.get("attention_config", "")).lower()
    other = next((kind for kind in OTHERS if f"'{kind}'" in said), None)
    if other is not None:
        raise InputError(f"--from-megatron: the line is of {other} layers, which is not read")
    if "flash" in said:
        found["--use-flash-attn"] = True

"""nanotron: its YAML, alone or as `--config-file` of a command (huggingface/nanotron @ 2411b022,
src/nanotron/config: config.py, models_config.py, parallelism_config.py).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from predictor.errors import InputError
from reckon.launch.dialect import Dialect, Source
from reckon.launch.launcher import NODES, PER_NODE, PROCESSES
from reckon.launch.repository import HINTS
from reckon.launch.settings import read_settings
from reckon.launch.structured import flatten
from reckon.launch.table import (
    Cases,
    Derived,
    Entry,
    Facts,
    Flags,
    Number,
    clipping,
    tokens_of_steps,
    truth,
    whole_number,
)

M, E, P, T = "model.model_config.", "model.model_config.moe_config.", "parallelism.", "tokens."
HEADS, GROUPS = f"{M}num_attention_heads", f"{M}num_key_value_heads"
DIVISIBLE, VOCAB = "model.make_vocab_size_divisible_by", f"{M}vocab_size"
ACCUMULATED, PART, LENGTH = f"{T}batch_accumulation_per_replica", f"{T}micro_batch_size", (
    f"{T}sequence_length"
)  # fmt: skip
STARCODER = f"{M}is_starcoder2_config"

SIZES = {
    "num_hidden_layers": ("layers", 32), "hidden_size": ("hidden", 4096),
    "num_attention_heads": ("heads", 32), "intermediate_size": ("ffn_hidden", 11008),
}  # fmt: skip
"""Keys of a model, today's dimensions, and what counts where a Llama's or Qwen's has none."""


def _nothing(facts: Facts) -> Flags:
    """Such files are not written."""
    return {}


def _sizes_means(flags: Flags, facts: Facts) -> Facts:
    """The model's dimensions, as `LlamaConfig`, `Qwen2Config` and `Starcoder2Config` have them."""
    if not any(flag.startswith(M) for flag in flags):
        return {}
    found: Facts = {f"model.{own}": whole_number(M + key, flags.get(M + key, absent))
                    for key, (own, absent) in SIZES.items()}  # fmt: skip
    star = STARCODER in flags
    if star and f"{M}intermediate_size" not in flags:
        found["model.ffn_hidden"] = 4 * found["model.hidden"]
    groups = flags.get(GROUPS, flags.get(f"{M}num_kv_heads"))
    if groups is None:
        groups = 1 if star else found["model.heads"]
    found["model.kv_heads"] = whole_number(GROUPS, groups)
    found["model.gated"] = not star
    found["model.activation"] = "gelu" if star else "silu"
    found["model.norm"] = "layernorm" if star else "rmsnorm"
    found["model.bias"] = star
    found["model.positions"] = "rope"
    if f"{M}attention_bias" in flags:
        found["model.qkv_bias"] = truth("attention_bias", flags[f"{M}attention_bias"])
    tied = flags.get(f"{M}tie_word_embeddings", star)
    found["model.tied_embeddings"] = truth("tie_word_embeddings", tied)
    if f"{M}sliding_window_size" in flags:
        found["model.sliding_window"] = whole_number("window", flags[f"{M}sliding_window_size"])
        found["model.windowed_share"] = 1.0
    most = whole_number(VOCAB, flags.get(VOCAB, 49280 if star else 32000))
    if most > 0:  # -1 takes the data's
        each = whole_number(DIVISIBLE, flags.get(DIVISIBLE, 1))
        ranks = whole_number(f"{P}tp", flags.get(f"{P}tp", 1))
        each = max(each * ranks, 1)
        found["model.vocab"] = -(-most // each) * each
    return found


def _experts_means(flags: Flags, facts: Facts) -> Facts:
    """Mixtures of experts, in all layers (`MoEConfig`), and of older files of its example."""
    if not any(flag.startswith(E) for flag in flags):
        count = whole_number("num_experts", flags.get(f"{M}moe_num_experts", 0))
        if count < 2:
            return {}
        top = whole_number("top_k", flags.get(f"{M}num_experts_per_tok", 1))
        wide = facts["model.ffn_hidden"]
        return {"model.num_experts": count, "model.expert_ffn_hidden": wide, "model.top_k": top}
    layers = flags.get(f"{E}layers", [-1])
    whole = [-1, list(range(int(facts["model.layers"])))]
    if layers not in whole and layers != whole[:1]:
        raise InputError(f"{E}layers: mixtures in some layers only are not read")
    found: Facts = {
        "model.num_experts": whole_number("num_experts", flags.get(f"{E}num_experts", 8)),
        "model.top_k": whole_number("top_k", flags.get(f"{E}top_k", 2)),
        "model.expert_ffn_hidden": whole_number(
            "width", flags.get(f"{E}moe_intermediate_size", 1408)
        ),
    }
    if truth("shared", flags.get(f"{E}enable_shared_expert", False)):
        key = f"{E}shared_expert_intermediate_size"
        found["model.shared_width"] = whole_number(key, flags.get(key, 5632))
    return found


def _batch_means(flags: Flags, facts: Facts) -> Facts:
    """Replicas times micro-batches of each (`Config.global_batch_size`)."""
    if "dp" not in facts or PART not in flags:
        return {}
    each = whole_number(PART, flags[PART]) * whole_number(ACCUMULATED, flags.get(ACCUMULATED, 1))
    return {"global_batch": each * int(facts["dp"])}


def _sharding_means(flags: Flags, facts: Facts) -> Facts:
    stage = whole_number("optimizer.zero_stage", flags.get("optimizer.zero_stage", 0))
    return {"sharding": f"zero{stage}" if stage else "none"}


def _async_means(flags: Flags, facts: Facts) -> Facts:
    """Tensor parallelism in reduce-scatter mode, whose linear layers may hide what they send."""
    split = str(flags.get(f"{P}tp_mode", "ALL_REDUCE")).upper() == "REDUCE_SCATTER"
    found: Facts = {"sequence_parallel": split and facts.get("tp", 1) > 1}
    key = f"{P}tp_linear_async_communication"
    if key in flags:
        found["tp_async_backward"] = truth(key, flags[key])
    key = f"{P}tp_recompute_allgather"
    return {**found, "tp_regather": truth(key, flags.get(key, True))}


def _again_means(flags: Flags, facts: Facts) -> Facts:
    """Whole layers; older files by a granularity."""
    kind = str(flags.get(f"{P}recompute_granularity", "none")).lower()
    if truth("", flags.get(f"{P}recompute_layer", False)):
        kind = "full"
    if kind not in ("none", "selective", "full"):
        raise InputError(f"{P}recompute_granularity {kind}: known are selective, full")
    return {"recompute": kind}


MODEL: tuple[Entry, ...] = (
    Derived(
        (HEADS, GROUPS, f"{M}num_kv_heads", f"{M}num_hidden_layers", f"{M}hidden_size",
         f"{M}intermediate_size", VOCAB, DIVISIBLE, f"{M}tie_word_embeddings", STARCODER,
         f"{M}sliding_window_size", f"{M}attention_bias"),
        _nothing,
        _sizes_means,
    ),
    Derived(
        (f"{E}num_experts", f"{E}top_k", f"{E}moe_intermediate_size", f"{E}layers",
         f"{E}shared_expert_intermediate_size", f"{E}enable_shared_expert",
         f"{M}moe_num_experts", f"{M}num_experts_per_tok"),
        _nothing,
        _experts_means,
    ),
)  # fmt: skip

ENTRIES: tuple[Entry, ...] = (
    Number(f"{P}tp", "tp", absent=1),
    Number(f"{P}pp", "pp", absent=1),
    Number(f"{P}dp", "dp"),
    Number(f"{P}context_parallel_size", "cp", absent=1),
    Number(f"{P}expert_parallel_size", "ep", absent=1),
    Derived(
        (NODES, PER_NODE, PROCESSES),  # the file's degrees count
        _nothing,
        lambda flags, facts: {},
    ),
    Number(PART, "micro_batch"),
    Number(LENGTH, "seq_len"),
    Derived((ACCUMULATED,), _nothing, _batch_means),
    Cases(
        ("schedule",),
        (
            (("1f1b",), {f"{P}pp_engine": "1f1b"}),
            (("gpipe",), {f"{P}pp_engine": "afab"}),
            (("gpipe",), {}),
        ),
    ),
    Cases(
        ("precision",),
        (
            (("bf16",), {"model.dtype": ("bfloat16", "bf16")}),
            (("fp16",), {"model.dtype": "float16"}),
            (("fp32",), {"model.dtype": "float32"}),
            (("fp8",), {"model.dtype": ("fp8", "float8")}),
            (("bf16",), {}),
        ),
    ),
    Derived(("optimizer.zero_stage",), _nothing, _sharding_means, fields=("sharding",)),
    Derived(
        (f"{P}tp_mode", f"{P}tp_linear_async_communication", f"{P}tp_recompute_allgather"),
        _nothing,
        _async_means,
        fields=("sequence_parallel",),
    ),
    Derived((f"{P}recompute_layer", f"{P}recompute_granularity"), _nothing, _again_means),
    Cases(
        ("gradient_bytes",),
        (
            ((6,), {"optimizer.accumulate_grad_in_fp32": True}),
            ((2,), {"optimizer.accumulate_grad_in_fp32": False}),
            ((None,), {}),
        ),
    ),
    clipping("optimizer.clip_grad", absent=0.0),
    Derived(
        (f"{T}train_steps",),
        _nothing,
        lambda flags, facts: tokens_of_steps(f"{T}train_steps", flags, facts),
    ),
)

IGNORED = ("@", "checkpoints", "data", "general", "lighteval", "logging", "metrics_logging",
           "optimizer", "profiler", "tokenizer", "s3_upload", "model.init_method", "experiment_log",
           "model.seed", "learning_rate", "model.tokenizer", "doremi", "brrr_data", "model.ddp",
           "kill_switch_path", f"{T}limit", f"{T}val", f"{M}bos", f"{M}eos", f"{M}pad_token",
           f"{M}initializer", f"{M}rms_norm", f"{M}rope", f"{M}use_cache", f"{M}hidden_act",
           f"{M}is_", f"{M}max_position", f"{M}pretraining_tp", f"{M}z_loss", f"{M}log_attn",
           f"{M}layer_norm", f"{M}activation_function", f"{M}scale_attn", f"{M}grouped_query",
           f"{M}multi_query", f"{M}attention_softmax", f"{M}scale_attention",
           f"{M}use_rotary", f"{M}_fused", f"{M}_use", f"{M}_attn", f"{M}attn_pdrop",
           f"{M}resid_pdrop", f"{M}embd_pdrop", f"{M}no_rope", f"{M}interleaved",
           f"{M}use_position", f"{E}router", f"{E}token_dispatcher")  # fmt: skip
"""Beginnings of keys that say nothing of speed or memory, or are read by others."""


def _foreign(flags: Flags, text: str) -> str | None:
    if f"{M}is_mamba_config" in flags or f"{M}ssm_cfg" in flags or f"{M}d_state" in flags:
        return "a model of Mamba layers, as model.model_config shows"
    return None


def _parse(text: str, folder: Path) -> Source:
    found = read_settings(text, folder, r"run_train\w*\.py|--config[-_]file")
    if not found.content and found.missing:
        raise InputError(f"cannot read {found.missing[0]}, the settings that the command names")
    own: Any = found.content
    if not {"parallelism", "tokens"} & set(own):
        raise InputError("--from-nanotron: neither parallelism nor tokens are in it")
    flags = flatten(own)
    if "general.run" in flags:
        flags["@name"] = str(flags["general.run"])
    return Source({**found.launcher, **flags})


NANOTRON = Dialect(
    name="nanotron",
    framework="nanotron",
    model=(*HINTS, *MODEL),
    entries=ENTRIES,
    ignored=IGNORED,
    parse=_parse,
    foreign=_foreign,
)

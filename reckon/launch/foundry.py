"""llm-foundry: its YAML, alone, inside a request to MosaicML's platform, or named by a command
(mosaicml/llm-foundry @ 8c8dd48f: llmfoundry/utils/config_utils.py, models/mpt/configuration_mpt.py,
models/utils/config_defaults.py; words of precision and sharding are Composer's).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from predictor.errors import InputError
from reckon.launch.dialect import Dialect, Source
from reckon.launch.interpolation import interpolated
from reckon.launch.launcher import NODES, PER_NODE, PROCESSES, WORLD
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
    number,
    truth,
    whole_number,
)

A, F, S = "model.attn_config.", "model.ffn_config.", "fsdp_config."
OVER = "model.config_overrides.attn_config.attn_impl"
TENSOR = "tp_config.tensor_parallel_degree"
PART, TOTAL, LENGTH = "device_train_microbatch_size", "global_train_batch_size", "max_seq_len"
SHARDED, SHARD, COPIES = f"{S}sharding_strategy", f"{S}data_parallel_shard_degree", (
    f"{S}data_parallel_replicate_degree"
)  # fmt: skip
RANK, TARGETS = "model.peft_config.r", "model.peft_config.target_modules"
LONG, CLIP = "max_duration", "algorithms.gradient_clipping.clipping_type"

SIZES = {"n_layers": ("layers", 24), "d_model": ("hidden", 2048), "n_heads": ("heads", 16),
         "vocab_size": ("vocab", 50368)}  # fmt: skip
"""Keys of an MPT, today's dimensions, and what counts where it has none (`MPTConfig`)."""

EXPERTS = ("mb_moe", "mb_dmoe", "torch_dmoe")
"""Feed-forward parts of experts; they have a gate where `mlp_type` says glu."""

SHARDINGS = {"full_shard": "fsdp", "shard_grad_op": "zero2", "no_shard": "none",
             "hybrid_shard": "hsdp"}  # fmt: skip


def _nothing(facts: Facts) -> Flags:
    """Such files are not written."""
    return {}


def _sizes_means(flags: Flags, facts: Facts) -> Facts:
    """An MPT's dimensions."""
    if "mpt" not in str(flags.get("model.name", "")).lower():
        return {}
    found: Facts = {f"model.{own}": whole_number(f"model.{key}", flags.get(f"model.{key}", absent))
                    for key, (own, absent) in SIZES.items()}  # fmt: skip
    heads = found["model.heads"]
    kind = str(flags.get(f"{A}attn_type", "multihead_attention"))
    alone = 1 if kind == "multiquery_attention" else heads
    found["model.kv_heads"] = whole_number("kv_n_heads", flags.get(f"{A}kv_n_heads", alone))
    if "model.head_dim" in flags:
        found["model.head_dim"] = whole_number("head_dim", flags["model.head_dim"])
    wide = found["model.hidden"] * number("ratio", flags.get("model.expansion_ratio", 4))
    found["model.ffn_hidden"] = whole_number("ffn", flags.get(f"{F}ffn_hidden_size", wide))
    part = str(flags.get(f"{F}ffn_type", "mptmlp"))
    glu = part in EXPERTS and str(flags.get(f"{F}mlp_type", "mlp")) == "glu"
    found["model.gated"] = part == "mptglu" or glu
    act = str(flags.get(f"{F}ffn_act_fn.name", "gelu"))
    found["model.activation"] = "silu" if "silu" in act else "relu" if act == "relu" else "gelu"
    if found["model.gated"]:
        found["model.activation"] = "silu"
    found["model.norm"] = "rmsnorm" if "rms" in str(flags.get("model.norm_type", "")) else (
        "layernorm"
    )  # fmt: skip
    found["model.bias"] = not truth("no_bias", flags.get("model.no_bias", False))
    tied = flags.get("model.tie_word_embeddings", True)
    found["model.tied_embeddings"] = truth("tie_word_embeddings", tied)
    found["model.positions"] = _positions(flags)
    if found["model.positions"] == "learned":
        most = flags.get("model.max_seq_len", flags.get(LENGTH, 2048))
        found["model.max_context"] = whole_number(LENGTH, most)
    window = whole_number("window", flags.get(f"{A}sliding_window_size", -1))
    if window > 0:
        found |= {"model.sliding_window": window, "model.windowed_share": 1.0}
    if part in EXPERTS:
        found |= {
            "model.num_experts": whole_number("experts", flags.get(f"{F}moe_num_experts", 1)),
            "model.top_k": whole_number("top_k", flags.get(f"{F}moe_top_k", 1)),
            "model.expert_ffn_hidden": found["model.ffn_hidden"],
        }
    return found


def _positions(flags: Flags) -> str:
    for key in ("alibi", "rope", "nope"):
        if truth(key, flags.get(f"{A}{key}", False)):
            return {"nope": "none"}.get(key, key)
    learned = truth("learned_pos_emb", flags.get("model.learned_pos_emb", True))
    return "learned" if learned else "none"


def _part_means(flags: Flags, facts: Facts) -> Facts:
    """Sequences of a micro-batch; what Composer seeks while it runs is left open."""
    said = str(flags.get(PART, flags.get("device_train_grad_accum", "auto")))
    if said == "auto" or PART not in flags:
        return {}
    found = number(PART, said)
    if found < 1:
        raise InputError(f"{PART} {said}: less than a sequence, which is not read")
    return {"micro_batch": whole_number(PART, found)}


def _shard_means(flags: Flags, facts: Facts) -> Facts:
    """By the words of FSDP; without a section of it, replicas are whole."""
    if not any(flag.startswith(S) for flag in flags):
        return {"sharding": "none"}
    said = str(flags.get(SHARDED, "FULL_SHARD")).lower().lstrip("_").replace("_zero2", "")
    if said not in SHARDINGS:
        raise InputError(f"{SHARDED} {said}: known are {', '.join(SHARDINGS).upper()}")
    if COPIES in flags and whole_number(COPIES, flags[COPIES]) > 1 and SHARD in flags:
        return {"sharding": "hsdp", "dp_shard": whole_number(SHARD, flags[SHARD])}
    return {"sharding": SHARDINGS[said]}


def _types_means(flags: Flags, facts: Facts) -> Facts:
    """What is multiplied, and in which type gradients are added up over ranks: that of the shards,
    or with PURE that of the products."""
    said = str(flags.get("precision", "amp_bf16")).lower()
    kinds = {"amp_bf16": "bf16", "amp_fp16": "fp16", "fp32": "fp32", "amp_fp8": "fp8",
             "bf16": "bf16", "fp16": "fp16", "amp": "fp16"}  # fmt: skip
    if said not in kinds:
        raise InputError(f"precision {said}: known are {', '.join(kinds)}")
    found: Facts = {"precision": kinds[said]}
    mixed = str(flags.get(f"{S}mixed_precision", "")).upper()
    if mixed in ("PURE", "DEFAULT", "FULL"):
        narrow = mixed == "PURE" and found["precision"] != "fp32"
        found["reduce_bytes"] = 2 if narrow else 4
    master = str(flags.get("model.master_weights_dtype", flags.get("master_weights_dtype", "")))
    if "16" in master:
        found |= {"weight_bytes": 2, "gradient_bytes": 2, "optimizer_bytes": 4}
    return found


def _again_means(flags: Flags, facts: Facts) -> Facts:
    key = f"{S}activation_checkpointing"
    found: Facts = {"recompute": "full" if truth(key, flags.get(key, False)) else "none"}
    if found["recompute"] == "full":
        key = f"{S}activation_checkpointing_reentrant"
        found["stops_early"] = not truth(key, flags.get(key, True))
    key = f"{S}activation_cpu_offload"
    return found | ({"offload_activations": 1.0} if truth(key, flags.get(key, False)) else {})


def _attention_means(flags: Flags, facts: Facts) -> Facts:
    said = str(flags.get(f"{A}attn_impl", flags.get("model.attn_impl", flags.get(OVER, ""))))
    known = {"flash": "flash2", "triton": "triton", "torch": "eager"}
    if "model.use_flash_attention_2" in flags:
        on = truth("", flags["model.use_flash_attention_2"])
        return {"attention": "flash2"} if on else {}
    return {"attention": known[said]} if said in known else {}


def _adapter_means(flags: Flags, facts: Facts) -> Facts:
    """Low-rank adapters (`peft_config`)."""
    if str(flags.get("model.peft_config.peft_type", "")).lower() != "lora":
        return {"trained": "all"}
    words = set(re.findall(r"[a-z]+", str(flags.get(TARGETS, "")).lower())) - {"proj"}
    few = bool(words) and words <= {"q", "k", "v", "wqkv"}
    found: Facts = {"trained": "lora_qkv" if few else "lora"}
    return found | ({"lora_rank": whole_number(RANK, flags[RANK])} if RANK in flags else {})


def _long_means(flags: Flags, facts: Facts) -> Facts:
    """The budget: batches, samples or tokens (Composer's `Time`); epochs say nothing of it."""
    match = re.fullmatch(r"([\d_.eE+]+?)(ba|tok|sp)", str(flags.get(LONG, "")))
    if not match or not {"seq_len", "global_batch"} <= set(facts):
        return {}
    each = {"ba": facts["seq_len"] * facts["global_batch"], "sp": facts["seq_len"], "tok": 1}
    return {"tokens": number(LONG, match[1]) * each[match[2]]}


MODEL: tuple[Entry, ...] = (
    Derived(
        ("model.name", *(f"model.{key}" for key in SIZES), "model.head_dim",
         "model.expansion_ratio", f"{A}attn_type", f"{A}kv_n_heads", f"{F}ffn_hidden_size",
         f"{F}ffn_type", f"{F}ffn_act_fn.name", "model.norm_type", "model.no_bias",
         "model.tie_word_embeddings", f"{A}alibi", f"{A}rope", f"{A}nope", "model.learned_pos_emb",
         f"{A}sliding_window_size", "model.max_seq_len", f"{F}moe_num_experts", f"{F}moe_top_k",
         f"{F}mlp_type"),
        _nothing,
        _sizes_means,
    ),
)  # fmt: skip

ENTRIES: tuple[Entry, ...] = (
    WORLD,
    Number(TENSOR, "tp", absent=1),
    Derived((PART,), _nothing, _part_means, fields=("micro_batch",)),
    Number(LENGTH, "seq_len"),
    Number(TOTAL, "global_batch"),
    Derived((f"{F}moe_world_size",), _nothing,
            lambda flags, facts: {"ep": whole_number("moe_world_size", flags.get(
                f"{F}moe_world_size", 1))}, fields=("ep",)),
    Derived(("precision", f"{S}mixed_precision", "model.master_weights_dtype",
             "master_weights_dtype"), _nothing, _types_means, fields=("precision",)),
    Derived((SHARDED, SHARD, COPIES), _nothing, _shard_means, fields=("sharding",)),
    Derived((f"{S}activation_checkpointing", f"{S}activation_checkpointing_reentrant",
             f"{S}activation_cpu_offload"), _nothing, _again_means, fields=("recompute",)),
    Derived((f"{A}attn_impl", "model.attn_impl", OVER, "model.use_flash_attention_2"),
            _nothing, _attention_means),
    Derived(("model.peft_config.peft_type", RANK, TARGETS), _nothing, _adapter_means,
            fields=("trained", "lora_rank")),
    Cases(
        ("grad_clip",),
        (
            ((True,), {CLIP: ("norm", "value", "adaptive")}),
            ((False,), {}),
        ),
    ),
    Derived((LONG,), _nothing, _long_means),
)  # fmt: skip

IGNORED = (
    "@", "variables", "tokenizer", "train_loader", "eval", "scheduler", "optimizer", "algorithms",
    "seed", "global_seed", "device_eval", "progress_bar", "log", "console", "python_log",
    "callbacks", "save_", "load_", "run_name", "autoresume", "icl_", "dist_timeout", "metadata",
    "expandable", "max_split", "spin", "only_", "data_", "model.init", "model.pretrained",
    "model.emb_pdrop", "model.resid_pdrop", "model.embedding_fraction", "model.logit_scale",
    "model.use_auth", "model.trust", "model.norm_eps", "model.use_cache", f"{A}attn_pdrop",
    f"{A}clip_qkv", f"{A}softmax_scale", f"{A}alibi_bias", f"{A}rope_", f"{A}qk_", f"{A}fused_qkv",
    f"{A}attn_uses", f"{F}moe_loss", f"{F}moe_jitter", f"{F}uniform", "train_subset", "flatten",
    "model.peft_config", "model.device", "model.verbose", f"{S}limit_all", f"{S}backward_prefetch",
    f"{S}forward_prefetch", f"{S}sync_module", f"{S}state_dict", f"{S}load_", f"{S}verbose",
    f"{S}use_orig", f"{S}activation_checkpointing_target", f"{S}min_params", "tp_config.strategy",
    "code_paths", "image", "integrations", "compute", "command", "name", "scheduling", "env_",
    "cluster", "gpu_type", "gpus", "model.use_train", "model.ffn_config.ffn_act", "dataset",
    "index_", "accumulate_train", "max_", "model.init_config", "model.loss_fn", "model.allow",
    "model.config_overrides.attn_config.attn_uses", "model.config_overrides.max_",
    "model.config_overrides.n_positions", "model.tokenizer", "model.model_type",
)  # fmt: skip
"""Beginnings of keys that say nothing of speed or memory, or were read under another name."""


def _foreign(flags: Flags, text: str) -> str | None:
    name = str(flags.get("model.name", ""))
    if "t5" in name or "prefix_lm" in name:
        return f"a model {name}, an encoder or a prefix attended both ways, as model.name shows"
    if "bert" in name:
        return f"a model {name}, an encoder with masked words, as model.name shows"
    if "diffusion" in name:
        return f"a model {name}, which makes images, as model.name shows"
    if "openai" in name or "fmapi" in name:
        return f"a model {name}, which a service runs, as model.name shows"
    if any(word in name for word in ("dpo", "reward", "ppo", "grpo")):
        return f"a model {name}, whose steps are more than a pass forward and back"
    return None


def _flat(content: Mapping[str, Any]) -> Flags:
    """Dotted keys; of a platform's request its `parameters`, with its accelerators."""
    inner = content.get("parameters")
    outer = content if isinstance(inner, Mapping) else {}
    own = interpolated(inner) if isinstance(inner, Mapping) else content
    found = flatten(own)
    if "model" not in own and "model_name" in found:  # settings of an older form
        found["model.name"] = found["model_name"]
    compute = outer.get("compute")
    count = compute.get("gpus") if isinstance(compute, Mapping) else None
    if (count or outer.get("gpus") or outer.get("gpu_num")) is not None:
        found[PROCESSES] = count or outer.get("gpus") or outer.get("gpu_num")
    return found


def _parse(text: str, folder: Path) -> Source:
    found = read_settings(text, folder, r"\bcomposer\b|train/?\w*\.py")
    if not found.content and found.missing:
        raise InputError(f"cannot read {found.missing[0]}, the settings that the command names")
    flags = _flat(found.content)
    if not {TOTAL, PART, "model.name"} & set(flags):
        raise InputError(f"--from-llm-foundry: neither {TOTAL} nor model.name is in it")
    named = flags.get("model.pretrained_model_name_or_path")
    if named and "mpt_causal" not in str(flags.get("model.name")):
        flags["@repository"] = str(named)
    launcher = dict(found.launcher)
    for word, after in zip(found.words, found.words[1:], strict=False):
        if word in ("-n", "--nproc") and after.isdigit():  # composer's, of one node
            launcher |= {NODES: launcher.get(NODES, 1), PER_NODE: int(after)}
    return Source({**launcher, **flags})


FOUNDRY = Dialect(
    name="llm-foundry",
    framework="llm-foundry",
    model=(*HINTS, *MODEL),
    entries=ENTRIES,
    ignored=IGNORED,
    parse=_parse,
    foreign=_foreign,
)

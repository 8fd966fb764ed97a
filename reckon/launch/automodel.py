"""NeMo AutoModel: its YAML, alone or named by a command (NVIDIA-NeMo/Automodel @ 36044ad3d:
components/distributed/config.py, pipelining/config.py, components/models/common/utils.py,
recipes/llm/train_ft.py).
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

from predictor.errors import InputError
from reckon.launch.dialect import Dialect, Source
from reckon.launch.launcher import NODES, PER_NODE, WORLD
from reckon.launch.repository import HINTS
from reckon.launch.settings import read_settings
from reckon.launch.structured import flatten
from reckon.launch.table import Derived, Entry, Facts, Flags, Number, truth, whole_number

S, D, P, B = "step_scheduler.", "distributed.", "distributed.pipeline.", "model.backend."
LOCAL, GLOBAL = f"{S}local_batch_size", f"{S}global_batch_size"
PART, SCHEDULE, LAYERS = f"{P}pp_microbatch_size", f"{P}pp_schedule", f"{P}layers_per_stage"
STRATEGY, ZERO, COPIES = f"{D}strategy", f"{D}zero_dp_strategy", f"{D}dp_replicate_size"
AGAIN, REDUCED = f"{D}activation_checkpointing", f"{D}mp_policy.reduce_dtype"
DEFERRED, OPTIMISED = f"{D}defer_fsdp_grad_sync", f"{B}enable_fsdp_optimizations"
RESHARDS = f"{D}moe.reshard_after_forward", f"{D}reshard_after_forward"
LENGTHS = ("packed_sequence.packed_sequence_size", "dataset.seq_len", "dataset.seq_length",
           "dataset.max_seq_length", "dataset.sequence_length", "dataset.block_size")  # fmt: skip
MATRICES, RANK = "peft.target_modules", "peft.dim"
TYPES = ("model.torch_dtype", "model.dtype", "dtype")
OPTIMIZER, STATES = "optimizer._target_", "optimizer.exp_avg_dtype"
FP8 = ("fp8.enabled", "fp8.recipe_name", f"{B}te_fp8.recipe")
BITS4 = ("model.quantization_config.load_in_4bit", "quantization.load_in_4bit")
REPOSITORY = ("model.config.pretrained_model_name_or_path", "model.pretrained_model_name_or_path",
              "model.config.name_or_path", "model.config")  # fmt: skip
DISPATCHER, PROCESSORS = f"{B}dispatcher", f"{B}dispatcher_num_sms"

SCHEDULES = {"1f1b": ("1f1b", 1), "interleaved1f1b": ("1f1b", 2), "gpipe": ("gpipe", 1),
             "interleavedzerobubble": ("zb-h1", 1), "zbvzerobubble": ("zb-v", 2),
             "dualpipev": ("dualpipev", 2)}  # fmt: skip
"""Schedules of PyTorch, in lower case, and the stages of a device where nothing else is said."""

ATTENTION = {"flash_attention_2": "flash2", "eager": "eager", "te": "flash"}


def _nothing(facts: Facts) -> Flags:
    """Such files are not written."""
    return {}


def _first(flags: Flags, names: tuple[str, ...]) -> Any:
    """The first of several keys that is there."""
    return next((flags[name] for name in names if name in flags), None)


def _bytes(said: Any) -> int | None:
    """Of an element of a type by its name; None for one that only a model's repository knows."""
    text = str(said).lower()
    return 4 if "32" in text else 2 if "16" in text else None


def _batch_means(flags: Flags, facts: Facts) -> Facts:
    """A local batch is a micro-batch, or what goes through a pipeline before it runs empty."""
    found: Facts = {}
    if GLOBAL in flags:
        found["global_batch"] = whole_number(GLOBAL, flags[GLOBAL])
    if LOCAL not in flags:
        return found
    local = whole_number(LOCAL, flags[LOCAL])
    if facts["pp"] == 1:
        return {**found, "micro_batch": local}
    part = whole_number(PART, flags.get(PART, 1))
    if local % max(part, 1):
        raise InputError(f"{LOCAL} {local} is not a multiple of {PART} {part}")
    return {**found, "micro_batch": part, "pipeline_fill": local / (part * facts["pp"])}


def _sharding_means(flags: Flags, facts: Facts) -> Facts:
    said = str(flags.get(STRATEGY, "fsdp2")).lower()
    if said == "ddp":
        return {"sharding": "none"}
    if said == "megatron_fsdp":
        stage = str(flags.get(ZERO, 3))
        return {"sharding": {"0": "none", "1": "zero1", "2": "zero2"}.get(stage, "fsdp")}
    if said != "fsdp2":
        raise InputError(f"{STRATEGY} {said}: known are fsdp2, megatron_fsdp, ddp")
    copies = whole_number(COPIES, flags.get(COPIES, 1)) if flags.get(COPIES) != "none" else 1
    if copies > 1 and "dp" in facts:
        return {"sharding": "hsdp", "dp_shard": int(facts["dp"]) // copies}
    return {"sharding": "hsdp" if copies > 1 else "fsdp"}


def _replicas_means(flags: Flags, facts: Facts) -> Facts:
    """Replicas, where the file has a number of them, else what accelerators make."""
    ranks = math.prod(int(facts.get(name, 1)) for name in ("tp", "cp", "pp"))
    said = str(flags.get(f"{D}dp_size", "none"))
    if said.isdigit():
        return {"dp": int(said), "gpus": int(said) * ranks}
    whole = "gpus" in facts and facts["gpus"] % ranks == 0
    return {"dp": facts["gpus"] // ranks} if whole else {}


def _stages_means(flags: Flags, facts: Facts) -> Facts:
    if facts["pp"] == 1:
        return {"vpp": 1}
    said = str(flags.get(SCHEDULE, "1f1b")).lower()
    if said not in SCHEDULES:
        raise InputError(f"{SCHEDULE} {said}: known are {', '.join(SCHEDULES)}")
    schedule, vpp = SCHEDULES[said]
    if LAYERS in flags and "interleaved1f1b" in said and "model.layers" in facts:
        each, pp = max(whole_number(LAYERS, flags[LAYERS]), 1), int(facts["pp"])
        stages = math.ceil(facts["model.layers"] / each)
        up = str(flags.get(f"{P}round_virtual_stages_to_pp_multiple", "up")).lower() != "down"
        vpp = max(math.ceil(stages / pp) if up else stages // pp, 1)
    return {"schedule": schedule, "vpp": vpp}


def _again_means(flags: Flags, facts: Facts) -> Facts:
    said = flags.get(AGAIN, False)
    if str(said).lower() == "selective":
        return {"recompute": "per_op"}
    return {"recompute": "full" if truth(AGAIN, said) else "none"}


def _types_means(flags: Flags, facts: Facts) -> Facts:
    """Weights, and gradients with them; moments are of the weights' type unless the optimizer has
    one of its own, with a copy in fp32, or what it has beyond 16 bits."""
    size = _bytes(_first(flags, TYPES) or "bf16")
    if size is None:
        return {}
    found: Facts = {"weight_bytes": size, "gradient_bytes": size, "optimizer_bytes": 2 * size}
    if "muon" in str(flags.get(OPTIMIZER, "")).lower():
        return {**found, "optimizer": "muon"}
    if STATES in flags:
        wide = 2 * (_bytes(flags[STATES]) or 4)
        copy = truth("master_weights", flags.get("optimizer.master_weights", False)) and size == 2
        rest = truth("remainders", flags.get("optimizer.store_param_remainders", False))
        found["optimizer_bytes"] = wide + (2 if rest else 4) * copy
    return found


def _precision_means(flags: Flags, facts: Facts) -> Facts:
    """16 bits, or what products of Transformer Engine and torchao are given."""
    recipe = str(flags.get(f"{B}te_fp8.recipe", flags.get("fp8.recipe_name", ""))).lower()
    on = f"{B}te_fp8.recipe" in flags or truth("fp8.enabled", flags.get("fp8.enabled", False))
    if not on:
        wide = _bytes(flags.get(f"{D}mp_policy.param_dtype", "bf16")) == 4
        return {"precision": "fp32" if wide else "bf16"}
    kinds = {"mx": "mxfp8", "nvfp4": "nvfp4", "rowwise": "fp8_rowwise", "block": "fp8_block"}
    return {"precision": next((kind for word, kind in kinds.items() if word in recipe), "fp8")}


def _reduced_means(flags: Flags, facts: Facts) -> Facts:
    found: Facts = {}
    size = _bytes(flags[REDUCED]) if REDUCED in flags else None
    if size is not None:
        found["reduce_bytes"] = size
    last = _first(flags, (OPTIMISED, DEFERRED))
    if last is not None:
        found["reduce_last"] = truth(DEFERRED, last)
    kept = _first(flags, RESHARDS)
    if kept is not None:
        found["reshard"] = truth("reshard_after_forward", kept)
    return found


def _adapter_means(flags: Flags, facts: Facts) -> Facts:
    """Low-rank adapters, over weights that may be held in four bits."""
    if not any(flag.startswith("peft.") for flag in flags):
        return {"trained": "all"}
    words = set(re.findall(r"\*|[a-z]+", str(flags.get(MATRICES, "*")).lower())) - {"proj", "self"}
    few = bool(words) and words <= {"q", "k", "v", "qkv"}
    found: Facts = {"trained": "lora_qkv" if few else "lora"}
    if RANK in flags:
        found["lora_rank"] = whole_number(RANK, flags[RANK])
    if truth("load_in_4bit", _first(flags, BITS4) or False):
        found["frozen_precision"] = "nf4"
    return found


def _experts_means(flags: Flags, facts: Facts) -> Facts:
    found: Facts = {}
    said = str(flags.get(DISPATCHER, "")).lower()
    if said:
        found["dispatch"] = "once" if said in ("deepep", "hybridep", "uccl_ep") else "copies"
    if PROCESSORS in flags:
        found["dispatch_processors"] = whole_number(PROCESSORS, flags[PROCESSORS])
    return found


def _attention_means(flags: Flags, facts: Facts) -> Facts:
    said = str(flags.get(f"{B}attn", flags.get("model.attn_implementation", ""))).lower()
    return {"attention": ATTENTION[said]} if said in ATTENTION else {}


def _length_means(flags: Flags, facts: Facts) -> Facts:
    """Of a packed sequence, else of the data."""
    said = _first(flags, LENGTHS)
    return {} if said is None or not whole_number("seq_len", said) else {"seq_len": said}


ENTRIES: tuple[Entry, ...] = (
    WORLD,
    *(Number(f"{D}{name}_size", name, absent=1) for name in ("tp", "cp", "pp", "ep")),
    Derived((f"{D}dp_size",), _nothing, _replicas_means),
    Derived((LOCAL, GLOBAL, PART), _nothing, _batch_means, fields=("micro_batch",)),
    Derived(LENGTHS, _nothing, _length_means, fields=("seq_len",)),
    Derived((STRATEGY, ZERO, COPIES), _nothing, _sharding_means, fields=("sharding",)),
    Derived(
        (SCHEDULE, LAYERS, f"{P}round_virtual_stages_to_pp_multiple"), _nothing, _stages_means,
        fields=("schedule", "vpp"),
    ),
    Derived((AGAIN,), _nothing, _again_means, fields=("recompute",)),
    Derived(
        (*TYPES, OPTIMIZER, STATES, "optimizer.master_weights", "optimizer.store_param_remainders"),
        _nothing, _types_means,
    ),
    Derived(
        (*FP8, f"{D}mp_policy.param_dtype"), _nothing, _precision_means, fields=("precision",)
    ),
    Derived((REDUCED, DEFERRED, OPTIMISED, *RESHARDS), _nothing, _reduced_means),
    Derived((RANK, MATRICES, *BITS4), _nothing, _adapter_means, fields=("trained", "lora_rank")),
    Derived((DISPATCHER, PROCESSORS), _nothing, _experts_means),
    Derived((f"{B}attn", "model.attn_implementation"), _nothing, _attention_means),
    Derived(
        (f"{D}sequence_parallel",), _nothing,
        lambda flags, facts: {
            "sequence_parallel": facts.get("tp", 1) > 1
            and truth("sequence_parallel", flags.get(f"{D}sequence_parallel", False))
        },
    ),
    Derived(
        ("compile.enabled",), _nothing,
        lambda flags, facts: {"fused": True}
        if truth("compile.enabled", flags.get("compile.enabled", False)) else {},
    ),
)  # fmt: skip

IGNORED = (
    "@", "recipe", "seed", "rng", "benchmark", S, "dist_env", "checkpoint", "loss_fn", "dataset",
    "dataloader", "validation", "optimizer", "lr_scheduler", "ci", "wandb", "mlflow", "comet",
    "packed_sequence", "peft", "model", "quantization", "fp8", "compile", "slurm", "launcher",
    "clip_grad_norm", "max_grad_norm", "auto_resume", "logger", "tokenizer", "variables", "nsys",
    "profiling", "te_", "freeze_config", "processor", f"{D}pipeline", f"{D}mp_policy", f"{D}moe",
    f"{D}dp_", f"{D}activation_checkpointing_scope", f"{D}enable_", f"{D}fsdp2_", f"{D}offload",
    f"{D}multimodal", f"{D}overlap", f"{D}use_", f"{D}average", f"{D}preserve", f"{D}check",
    f"{D}keep", f"{D}calculate", f"{D}grad", f"{D}bucket", f"{D}find_unused", f"{D}init",
    f"{D}report", f"{D}tp_plan", f"{D}_target_",
)  # fmt: skip
"""Beginnings of keys that say nothing of speed or memory, or were read under another name."""


def _foreign(flags: Flags, text: str) -> str | None:
    recipe = str(flags.get("recipe", flags.get("recipe._target_", ""))).lower()
    for word, what in (("diffusion", "a model that makes images"), ("biencoder", "a retriever"),
                       ("knowledgedistillation", "distillation from a second model"),
                       ("dllm", "a model that fills in masked words")):  # fmt: skip
        if word in recipe:
            return f"{what}, as recipe shows"
    images = next((flag for flag in flags if flag.startswith("flow_matching.")), "")
    return f"a model that makes images, as {images} shows" if images else None


def _parse(text: str, folder: Path) -> Source:
    found = read_settings(text, folder, r"\bautomodel\b|finetune\.py|pretrain\.py|benchmark\.py")
    if not found.content and found.missing:
        raise InputError(f"cannot read {found.missing[0]}, the settings that the command names")
    flags = {
        re.sub(r"^autopipeline\.", P, key): value for key, value in flatten(found.content).items()
    }
    if not {LOCAL, GLOBAL} & set(flags):
        raise InputError(f"--from-automodel: neither {LOCAL} nor {GLOBAL} is in it")
    named = _first(flags, REPOSITORY)
    if isinstance(named, str):
        flags["@repository"] = named
    launcher = dict(found.launcher)
    for own, key in (("slurm.nodes", NODES), ("slurm.ntasks_per_node", PER_NODE),
                     ("benchmark.num_nodes", NODES), ("ci.nodes", NODES)):  # fmt: skip
        if own in flags:
            launcher.setdefault(key, whole_number(own, flags[own]))
    for word, after in zip(found.words, found.words[1:], strict=False):
        if word in ("--nproc-per-node", "--nproc_per_node") and after.isdigit():
            launcher |= {PER_NODE: int(after), NODES: launcher.get(NODES, 1)}
    return Source({**launcher, **flags})


AUTOMODEL = Dialect(
    name="automodel",
    framework="nemo-automodel",
    model=HINTS,
    entries=ENTRIES,
    ignored=IGNORED,
    parse=_parse,
    foreign=_foreign,
)

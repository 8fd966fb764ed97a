"""Trainers of single files: HuggingFace's `Trainer` and TRL, axolotl, LLaMA-Factory, torchtune and
litgpt, as their YAML or as a command of such arguments.

Keys are those of `TrainingArguments`; other programs' are translated to them first (`SAME`, read in
axolotl @ 067b021, LLaMA-Factory @ ff6d4d1, torchtune @ bd2a0fc, litgpt @ 2685705).
"""

from __future__ import annotations

import math
import re
from itertools import pairwise
from pathlib import Path

from predictor.errors import InputError
from predictor.plans import SHARDINGS
from reckon.launch.accelerate import launcher_sharding, staged
from reckon.launch.dialect import Dialect, Source
from reckon.launch.fused import FUSED
from reckon.launch.launcher import PROCESSES, WORLD, command, named_file
from reckon.launch.preferences import PREFERENCES, compared
from reckon.launch.repository import HINTS
from reckon.launch.structured import flatten, read_mapping_text
from reckon.launch.table import (
    Cases,
    Derived,
    Entry,
    Facts,
    Flags,
    Number,
    clipping,
    truth,
    whole_number,
)

MODEL, PART, STEPS = (
    "model_name_or_path",
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
)
TOTAL, LENGTH, RANK = "global_batch_size", "max_length", "lora_r"
AGAIN, CLIP, ADAPTED, STORED = "gradient_checkpointing", "max_grad_norm", "use_peft", "quantization"
TARGETS = "lora_target_modules"
SHARDED, SHARDS, STAGE, OPTIMIZER = "fsdp", "deepspeed", "zero_stage", "optim"
REPLICAS, SHARED = "dp_replicate_size", "dp_shard_size"

SAME = {
    "base_model": MODEL, "model_name": MODEL, "model": MODEL, "checkpoint_dir": MODEL,
    "checkpointer.checkpoint_dir": MODEL,
    "micro_batch_size": PART, "batch_size": PART, "train.micro_batch_size": PART,
    "train.global_batch_size": TOTAL,
    "sequence_len": LENGTH, "cutoff_len": LENGTH, "max_seq_length": LENGTH,
    "model_max_length": LENGTH, "max_seq_len": LENGTH, "lora_dim": RANK,
    "block_size": LENGTH, "tokenizer.max_seq_len": LENGTH,
    "train.max_seq_length": LENGTH,
    "lora_rank": RANK, "model.lora_rank": RANK, "lora_target": TARGETS,
    "model.lora_attn_modules": TARGETS, "torch_compile": "compile",
    "enable_activation_checkpointing": AGAIN, "activation_checkpointing": AGAIN,
    "enable_activation_offloading": "activation_offloading",
    "fsdp_size": SHARDED, "cp_size": "context_parallel_size", "tp_size": "tensor_parallel_size",
    "recompute": AGAIN, "fsdp_cpu_offload": "cpu_offload", "fsdp.cpu_offload": "cpu_offload",
    "optimizer": OPTIMIZER, "optimizer._component_": OPTIMIZER, "optimizer.class_path": OPTIMIZER,
    "clip_grad_norm": CLIP, "train.max_norm": CLIP,
    "flash_attn": "attn_implementation", "dtype": "precision", "torch_dtype": "precision",
    "tensor_parallel_dim": "tensor_parallel_size", "sequence_parallel_degree":
    "context_parallel_size", "context_parallel_dim": "context_parallel_size",
}  # fmt: skip
"""Other programs' keys by their own names."""

PROGRAM = "program"
WHOSE = {"torchtune": "torchtune", "litgpt": "litgpt"}
"""Programs that do not stand on HuggingFace's trainer, and whose modules theirs are like."""

STAGED = r"z(?:ero)?[_-]?(?:stage[_-]?)?([0-3])"
"""How names of DeepSpeed's configurations tell the stage."""

GENERATES = "whose steps generate too (reckon predict rl)"
NOT_TRAINED = {**{one: f"reinforcement learning ({one.upper()}), {GENERATES}"
                  for one in ("ppo", "grpo", "gdpo", "rloo", "ebft")},
               "rm": "a reward model", "gkd": "a distillation"}  # fmt: skip
"""What `rl` and `stage` say of steps that are more than passes of answers that are there."""


def _nothing(facts: Facts) -> Flags:
    """Such files are not written."""
    return {}


PARTLY = {"oft": "adapters that turn weights (OFT)", "freeze": "a few of the layers alone"}
"""What `finetuning_type` of LLaMA-Factory says beside all weights and low ranks."""

OTHERWISE = {"infer_backend": "a run that generates and does not train (reckon predict infer)",
             "export_dir": "weights that are joined and written; nothing is trained",
             "hatchery.loss_fn": "a service that trains elsewhere"}  # fmt: skip
"""Keys of files that are no run of training, and what these do."""


def _foreign(flags: Flags, text: str) -> str | None:
    """What is trained otherwise: by preferences, rewards, or a teacher; or not at all."""
    said = str(flags.get("rl") or flags.get("rlhf_type") or flags.get("stage") or "").lower()
    if said in NOT_TRAINED:
        return NOT_TRAINED[said]
    if (kind := str(flags.get("finetuning_type", "")).lower()) in PARTLY:
        return f"{PARTLY[kind]}, as finetuning_type {kind} shows"
    for key, what in OTHERWISE.items():
        if key in flags and "do_train" not in flags:
            return f"{what}, as {key} shows"
    if program := re.search(r"\b(ppo|grpo)\w*\.py|\btrl\s+(grpo|rloo)\b", text):
        return f"{NOT_TRAINED[program[1] or program[2]]}, as {program[0]} shows"
    parts = " ".join(str(value) for key, value in flags.items() if key.endswith("_component_"))
    loss = re.search(r"\b(PPO|GRPO|KD|KnowledgeDistillation)\w*Loss", parts)
    if loss or "teacher_model._component_" in flags:
        return f"a loss of {loss[0] if loss else 'a teacher'}"
    return None


def _batch_means(flags: Flags, facts: Facts) -> Facts:
    """The whole batch, where the file states it, or where accelerators are known."""
    if TOTAL in flags:
        return {"global_batch": whole_number(TOTAL, flags[TOTAL])}
    if PART not in flags or "gpus" not in facts:
        return {}
    ranks = int(facts.get("tp", 1) * facts.get("cp", 1) * facts.get("pp", 1))
    steps = str(flags.get(STEPS, 1))
    each = whole_number(PART, flags[PART]) * (whole_number(STEPS, steps) if steps != "auto" else 1)
    return {"global_batch": each * (int(facts["gpus"]) // ranks)}


def _shard_means(flags: Flags, facts: Facts) -> Facts:
    """By the words of FSDP, or the stage that the name of DeepSpeed's configuration tells."""
    if SHARDS in flags and (match := re.search(STAGED, str(flags[SHARDS]), re.I)):
        stage = int(match[1])
        return {"sharding": f"zero{stage}" if stage else "none", "framework": "deepspeed"}
    if flags.get(SHARDS) is True:  # DeepSpeed-Chat: the stage stands beside the switch
        stage = whole_number(STAGE, flags.get(STAGE, 0))
        return {"sharding": f"zero{stage}" if stage else "none", "framework": "deepspeed"}
    if SHARDS in flags:
        raise InputError(f"{SHARDS} {flags[SHARDS]}: its stage is not in its name; give --sharding")
    said = str(flags.get(SHARDED, "")).lower()
    if not said:
        return {"sharding": "none"}
    for word, sharding in (("hybrid", "hsdp"), ("grad_op", "zero2"), ("no_shard", "none")):
        if word in said:
            return {"sharding": sharding}
    return {"sharding": "fsdp"}


def _grid_means(flags: Flags, facts: Facts) -> Facts:
    """Replicas of weights, and accelerators that share each (accelerate, `ParallelismConfig`;
    axolotl's n-dimensional parallelism), where both are numbers."""
    sizes = [whole_number(name, flags.get(name, 1)) for name in (REPLICAS, SHARED)]
    if not {REPLICAS, SHARED} & set(flags) or min(sizes) < 1:
        return {}
    found: Facts = {"dp": math.prod(sizes)}
    if "gpus" not in facts:
        found["gpus"] = found["dp"] * int(facts.get("tp", 1) * facts.get("cp", 1))
    return found


SIGNS = (
    (r"adam\w*8bit|8bit\w*adam", "adam8bit"), (r"adafactor", "adafactor"), (r"muon", "muon"),
    (r"lion", "lion"), (r"sgd", "sgd"),
)  # fmt: skip
"""Optimizers other than Adam by what is in the names that programs give them."""


def _optimizer_means(flags: Flags, facts: Facts) -> Facts:
    """Which it is, where it is not Adam; weights, gradients and moments in 16 bits where nothing is
    in more."""
    name = re.sub(r"[^a-z0-9]", "", str(flags.get(OPTIMIZER, "")).lower())
    found: Facts = next(({"optimizer": own} for sign, own in SIGNS if re.search(sign, name)), {})
    if "pure" not in flags:
        return found
    bytes_ = {"optimizer_bytes": 4} if not found else {}
    return {**found, "weight_bytes": 2, "gradient_bytes": 2, **bytes_}


def _offload_means(flags: Flags, facts: Facts) -> Facts:
    """The optimizer with the host, and weights where ranks divide them: FSDP's `CPUOffload`, and
    the third stage's configurations that are called so (LLaMA-Factory's ds_z3_offload_config.json
    has offload_param), unless the configuration says otherwise."""
    states = truth("cpu_offload", flags.get("cpu_offload", False))
    divided = SHARDINGS[str(facts.get("sharding", "none"))].weights
    found: Facts = {"offload_optimizer": 1.0, "offload_to": "cpu"} if states else {}
    weights = divided and truth("param_offload", flags.get("param_offload", states))
    return {**found, "offload_weights": 1.0} if weights else found


def _narrow(targets: str) -> bool:
    """Whether adapters stand beside projections of attention alone."""
    words = set(re.findall(r"[a-z]+", targets.lower())) - {"proj", "output"}
    attention = {"q", "k", "v", "o", "query", "key", "value", "qkv", "c", "attn"}
    return bool(words) and words <= attention


def _adapter_means(flags: Flags, facts: Facts) -> Facts:
    if not truth(ADAPTED, flags.get(ADAPTED, False)):
        return {"trained": "all"}
    found: Facts = {"trained": "lora_qkv" if _narrow(str(flags.get(TARGETS, ""))) else "lora"}
    if RANK in flags:
        found["lora_rank"] = whole_number(RANK, flags[RANK])
    bits = {"4": "nf4", "8": "int8"}.get(str(flags.get(STORED, "")))
    return {**found, "frozen_precision": bits} if bits else found


ENTRIES: tuple[Entry, ...] = (
    WORLD,
    Number("tensor_parallel_size", "tp", absent=1),
    Number("pipeline_parallel_size", "pp", absent=1),
    Number("context_parallel_size", "cp", absent=1),
    Derived((REPLICAS, SHARED), _nothing, _grid_means),
    Number(PART, "micro_batch"),
    Number(LENGTH, "seq_len"),
    Derived((TOTAL, STEPS), _nothing, _batch_means),
    Cases(
        ("precision",),
        (
            (("fp16",), {"fp16": True}),
            (("fp8",), {"bf16": True, "fp8": True}),
            (("fp8",), {"fp8": True}),  # axolotl takes bfloat16 of its own accord
            (("bf16",), {"bf16": True}),
            (("fp32",), {"bf16": False, "fp16": False}),
        ),
    ),
    Cases(
        ("recompute",), ((("full",), {AGAIN: True}), (("none",), {AGAIN: False}), (("none",), {}))
    ),
    Cases(
        ("attention", "windows_masked"),
        (
            (
                ("flash", False),
                {
                    "attn_implementation": (
                        "flash_attention_2",
                        "flash_attention_3",
                        "fa2",
                        "flash",
                        "kernels-community/flash-attn",
                        "kernels-community/vllm-flash-attn3",
                        "flex_attention",
                        "xformers",
                    )
                },
            ),
            (("flash", True), {"attn_implementation": ("sdpa", "auto")}),
            (("eager", True), {"attn_implementation": ("eager", "disabled")}),
            (("eager", False), {"attn_implementation": ("eager", "disabled")}),
            ((None, None), {}),
        ),
    ),
    Derived((SHARDED, SHARDS, STAGE), _nothing, _shard_means, fields=("sharding",)),
    Derived(
        (ADAPTED, RANK, STORED, TARGETS),
        _nothing,
        _adapter_means,
        fields=("trained", "lora_rank", "frozen_precision"),
    ),
    Derived(
        (PROGRAM,),
        _nothing,
        lambda flags, facts: {"framework": WHOSE[str(flags[PROGRAM])]} if PROGRAM in flags else {},
    ),
    Derived((OPTIMIZER, "pure"), _nothing, _optimizer_means),
    Derived(("cpu_offload", "param_offload"), _nothing, _offload_means),
    Derived(
        ("activation_offloading",),
        _nothing,
        lambda flags, facts: (
            {"offload_activations": 1.0}
            if str(flags.get("activation_offloading", False)).lower() not in ("false", "none")
            else {}
        ),
    ),
    Derived(
        ("compile",),
        _nothing,
        lambda flags, facts: {"fused": True} if truth("", flags.get("compile", False)) else {},
    ),
    PREFERENCES,
    FUSED,
    Derived(
        ("optimizer_in_bwd",),
        _nothing,
        lambda flags, facts: (
            {"update_early": True} if truth("", flags.get("optimizer_in_bwd", False)) else {}
        ),
    ),
    clipping(CLIP, absent=1.0),
)

IGNORED = (
    "@", "learning_rate", "lr", "num_", "epochs", "output", "out_dir", "dataset", "data", "val_",
    "eval", "warmup", "save", "logging", "log_", "wandb", "weight_decay", "seed", "special_tokens",
    "chat_template", "tokenizer", "model_type", "hub", "resume", "report_to", "lora_alpha",
    "lora_dropout", "template", "stage", "do_", "overwrite", "preprocessing", "ddp_timeout", "plot",
    "trust", "loss", "metric", "profiler", "checkpointer", "shuffle", "device", "max_steps", "adam",
    "train", "push", "run_name", "tf32", "early", "strict", "processor", "eot", "remove_unused",
    "skip_prepare", "plugins", "group_by", "max_samples", "gradient_checkpointing_kwargs",
    "dataloader", "debug", "use_tensorboard", "comet", "mlflow", "logger", "quantizer", "cosine",
    "max_prompt", "beta", "resize", "finetuning_type", "adapter", "type_of_model", "is_",
    "xformers", "s2_", "bf16", "fp16", "optimizer", "local_rank", "load_in", "lora_query",
    "lora_key", "lora_value", "lora_projection", "lora_mlp", "lora_head", "lora_target_linear",
    "quantize", "fsdp_transformer", "lazy_preprocess", "model.apply_lora", "per_device_eval",
    "model_revision", "batch_size_val", "compute_env",
    "machine_rank", "main_training", "rdzv", "same_network", "use_cpu", "downcast", "tpu_",
    "model.lora_alpha", "model.lora_dropout", "max_length_", "model._component_", "pref_",
    "rlhf_", "pad_to_sequence", "quantization_bit", "double_quant", "desirable", "undesirable",
    "loss._component_",
)  # fmt: skip
"""Beginnings of keys that say nothing of speed or memory, or that were read under another name."""


def _translated(flat: Flags, notes: list[str]) -> Flags:
    """Under the names of `TrainingArguments`."""
    found: Flags = {}
    if any(key.startswith("training.") for key in flat):  # sections of MindSpeed-LLM's own trainer
        flat = {re.sub(r"^(model|training|parallel|data)\.", "", k): v for k, v in flat.items()}
    for key, value in flat.items():
        name = SAME.get(key, key)
        if name not in found or key == name:
            found[name] = value
    if MODEL in found:
        where = str(found.pop(MODEL)).rstrip("/").removeprefix("checkpoints/")
        found["@repository"] = where.rsplit("/", 1)[-1] if where.startswith(("/", ".")) else where
    _kinds(found, notes)
    if "model._component_" in found:
        found[PROGRAM] = "torchtune"
    elif "lora_query" in found:
        found[PROGRAM] = "litgpt"
    if "devices" in found and str(found["devices"]).isdigit():
        nodes = str(found.get("num_nodes", 1))
        found[PROCESSES] = int(found["devices"]) * (int(nodes) if nodes.isdigit() else 1)
    return found


def _kinds(found: Flags, notes: list[str]) -> None:
    """Adapters, data types, recomputation, sharding and attention, as each program says them."""
    litgpt = "lora_query" in found
    _adapters(found, litgpt)
    if truth("", found.get("sample_packing", False)) or truth("", found.get("packing", False)):
        found.pop("sample_packing", None)  # sequences are full
        found.pop("packing", None)
    _targets(found, litgpt)
    _types(found)
    _run_again(found, notes)
    if truth("", found.pop("flash_attention", None) or False):
        found["attn_implementation"] = "flash_attention_2"
    if found.pop("sdp_attention", None):
        found["attn_implementation"] = "sdpa"
    _fully_sharded(found)


def _adapter(found: Flags) -> str:
    """What is trained, in a program's word for it; empty where it says none."""
    return str(found.get("adapter") or found.get("finetuning_type") or "").lower()


def _adapters(found: Flags, litgpt: bool) -> None:
    """Whether adapters are trained, and in how many bits the weights below them are stored."""
    component = str(found.get("model._component_", "")).rsplit(".", 1)[-1]
    adapter = _adapter(found)
    if "lora" in adapter or "lora" in component or (litgpt and RANK in found):
        found[ADAPTED] = True
    four = truth("", found.get("load_in_4bit", False)) or "qlora" in (adapter, component[:5])
    eight = truth("", found.get("load_in_8bit", False))
    if truth("", found.pop("only_optimize_lora", False)):  # DeepSpeed-Chat; else all is trained
        found[ADAPTED] = True
    bits = str(found.get("quantization_bit") or ("4" if four else "8" if eight else ""))
    if bits or "nf4" in str(found.get("quantize", "")):
        found[STORED] = bits or "4"


def _run_again(found: Flags, notes: list[str]) -> None:
    """Whether layers run again in the backward pass."""
    if _adapter(found) and "stage" in found and AGAIN not in found:
        # LLaMA-Factory: unless told otherwise
        found[AGAIN] = not truth("", found.get("disable_gradient_checkpointing", False))
    if str(found.get(AGAIN, "")) in ("0", "1"):
        found[AGAIN] = str(found[AGAIN]) == "1"
    if AGAIN in found and str(found[AGAIN]).lower() in ("unsloth", "offload", "offload_disk"):
        notes.append(f"{AGAIN} {found[AGAIN]}: as whole layers that run again")
        found[AGAIN] = True


def _fully_sharded(found: Flags) -> None:
    """What accelerate's section of fully sharded data parallelism says; its keys are taken out."""
    sharded = [key for key in found if key.startswith("fsdp_config.")]

    def ending(*names: str) -> list[str]:
        return [key for key in sharded if key.endswith(names)]

    if (sharded or "fsdp_version" in found) and SHARDED not in found:
        found[SHARDED] = next((str(found[k]) for k in ending("_strategy")), "full")
    if any(truth(key, found[key]) for key in ending("activation_checkpointing")):
        found[AGAIN] = True
    joint = "hybrid" not in str(found.get(SHARDED, "")).lower()
    kept = ending("reshard_after_forward")
    if joint and any(str(found[key]).lower() == "false" for key in kept):
        found[SHARDED] = "shard_grad_op"
    whole = str(found.get(SHARDED, "")) + str(found.get(SHARDS, ""))
    moved = ending("offload_params", "fsdp_offload")
    if "offload" in whole or any(truth(key, found[key]) for key in moved):
        found["cpu_offload"] = True
    for key in [*sharded, "fsdp_version"]:
        found.pop(key, None)


def _targets(found: Flags, litgpt: bool) -> None:
    """Where adapters stand, of programs that say it by switches."""
    on = [name for name in ("projection", "mlp", "head") if truth("", found.get(f"lora_{name}", 0))]
    if litgpt:
        found[TARGETS] = ",".join(["q,k,v", *on])
    if truth("", found.get("lora_target_linear", False)) or truth(
        "", found.get("model.apply_lora_to_mlp", False)
    ):
        found[TARGETS] = "all-linear"


def _types(found: Flags) -> None:
    """The data type, and whether nothing is kept in a wider one."""
    said = str(found.pop("precision", "") or "").lower()
    for name, kind in (("bf16", "bf16"), ("bfloat16", "bf16"), ("fp16", "fp16"), ("16-", "fp16"),
                       ("float16", "fp16")):  # fmt: skip
        if said.startswith(name):
            found[kind] = True
            if said in ("bf16", "bf16-true", "16-true") and "model.lora_rank" not in found:
                found["pure"] = True
            break
    else:
        if said.startswith(("32", "fp32", "float32")):
            found |= {"bf16": False, "fp16": False}
    if truth("", found.pop("pure_bf16", False)):
        found |= {"bf16": True, "pure": True}
    for kind in ("bf16", "fp16"):
        if str(found.get(kind, "")).lower() in ("auto", "full"):
            found[kind] = kind == "bf16"
    if found.get("bf16") is True and found.get("fp16") is False:
        del found["fp16"]
    if found.get("fp16") is True:
        found.pop("bf16", None)


def _parse(text: str, folder: Path) -> Source:
    mapping = read_mapping_text(text)
    notes: list[str] = []
    if mapping is not None:
        flat = _staged(flatten(mapping), folder)
        return _source(_translated(flat, notes), text, notes)
    script, launcher, said, notes = command(
        text, (*(f"--{k}" for k in (PART, MODEL, STEPS)),), folder
    )
    flags = {name.lstrip("-").replace("-", "_"): value for name, value in said.items()}
    for before, word in (pair for one in script.commands for pair in pairwise(one)):
        if before.replace("-", "_") == "__mixed_precision" and "fp16" not in flags:
            flags.setdefault("precision", word)  # of accelerate's launcher
    words = [
        word for words in script.commands for word in words if word.endswith((".yaml", ".yml"))
    ]
    for word in words:  # a file of arguments that the command names
        path = named_file(word, folder)
        content = read_mapping_text(path.read_text(encoding="utf-8")) if path else None
        if content is not None and {PART, "base_model", "training"} & set(content):
            flags = {**flatten(content), **flags}
    flags = {**launcher_sharding(script, folder), **_staged(flags, folder)}
    return _source({**launcher, **_translated(flags, notes)}, text, notes)


def _source(flags: Flags, text: str, notes: list[str]) -> Source:
    """Flags with what is learned from."""
    found, pairs = compared(flags, text, (PART, TOTAL))
    return Source(found, [*notes, *pairs])


def _staged(flags: Flags, folder: Path) -> Flags:
    """With what a DeepSpeed configuration says, where its file is there."""
    config = flags.get(SHARDS)
    return {**flags, **staged(config, folder)} if isinstance(config, str) else flags


TRAINER = Dialect(
    name="trainer",
    framework="huggingface",
    model=HINTS,
    entries=ENTRIES,
    ignored=IGNORED,
    parse=_parse,
    foreign=_foreign,
)

"""MaxText: its YAML, and commands with `KEY=VALUE` behind such a file (AI-Hypercomputer/maxtext @
e591f30c, src/maxtext/configs: base.yml, types.py, models/*.yml; layers/decoders.py).

A file of its own names the file it starts from (`base_config`); what neither says is base.yml's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from predictor import catalog
from predictor.errors import InputError
from reckon.launch.dialect import Dialect, Source
from reckon.launch.interpolation import loaded
from reckon.launch.maxtext_job import kubernetes_job
from reckon.launch.maxtext_mesh import CORES, DEVICES, EACH, KEYS, MESH, SLICES
from reckon.launch.maxtext_model import MODEL, SPELLED, WIDTHS, is_mixture
from reckon.launch.maxtext_remat import REMAT
from reckon.launch.primus import read_job
from reckon.launch.repository import HINTS
from reckon.launch.settings import Settings, file_named, read_settings
from reckon.launch.table import (
    Cases,
    Derived,
    Entry,
    Facts,
    Flags,
    Number,
    clipping,
    number,
    tokens_of_steps,
    truth,
    whole_number,
)

PART, STEPS, LENGTH = "per_device_batch_size", "steps", "max_target_length"
GATHERED = "gradient_accumulation_steps"
TOPOLOGY = "compile_topology"

BASES = ("base.yml", "base.yaml")
"""The file whose settings are the defaults here."""


def _nothing(facts: Facts) -> Flags:
    """Such files are not written."""
    return {}


def _batch_means(flags: Flags, facts: Facts) -> Facts:
    """Sequences of an accelerator, by which a replica's micro-batches follow; as many of a pipeline
    as it has stages, unless told (`num_pipeline_microbatches`)."""
    each = number(PART, flags.get(PART, 12)) * int(flags.get(EACH, 1))
    steps = whole_number(GATHERED, flags.get(GATHERED, 1))
    ranks = int(facts.get("tp", 1) * facts.get("cp", 1) * facts.get("pp", 1))
    parts, stages = 1, int(facts.get("pp", 1))
    if stages > 1:
        parts = whole_number("parts", flags.get("num_pipeline_microbatches", -1))
        parts = stages if parts < 1 else parts
    own = each * ranks / parts
    found: Facts = {}
    if own >= 1 and own == int(own):
        found["micro_batch"] = int(own)
    elif "gpus" in facts or own < 1:
        raise InputError(
            f"{PART} {each:g}: a replica of {ranks} accelerators has {own:g} sequences in a pass"
        )
    if "gpus" in facts:
        found["global_batch"] = round(each * int(facts["gpus"])) * steps
    if steps > 1 and stages > 1:
        found["pipeline_fill"] = parts / stages
    return found


def _stages_means(flags: Flags, facts: Facts) -> Facts:
    """A circular pipeline: each device has so many parts of the model (`num_pipeline_repeats`)."""
    stages = int(facts.get("pp", 1))
    if stages == 1:
        return {"vpp": 1}
    each = whole_number("layers", flags.get("num_layers_per_pipeline_stage", 1))
    repeats = whole_number("repeats", flags.get("num_pipeline_repeats", -1))
    layers = whole_number("layers", flags.get("pipeline_parallel_layers", -1))
    layers = facts.get("model.layers", 0) if layers < 1 else layers
    if repeats < 1 and layers:
        repeats = int(layers) // (stages * max(each, 1))
    return {"vpp": max(repeats, 1)}


PRECISIONS = {"": "bf16", "int8": "int8", "fp8": "fp8", "fp8_gpu": "fp8", "nanoo_fp8": "fp8",
              "fp8_nanoo": "fp8", "fp8_full": "fp8", "te_fp8_delayedscaling": "fp8",
              "te_fp8_currentscaling": "fp8", "te_mxfp8": "mxfp8", "te_nvfp4": "nvfp4",
              "te_noquant": "bf16", "aqt_fp8": "fp8", "aqt_fp8_full": "fp8",
              "none": "bf16"}  # fmt: skip
"""What `quantization` says of products in training."""


def _precision_means(flags: Flags, facts: Facts) -> Facts:
    said = str(flags.get("quantization", "")).lower()
    if said not in PRECISIONS:
        raise InputError(f"quantization {said}: known are {', '.join(sorted(PRECISIONS))[2:]}")
    plain = str(flags.get("dtype", "bfloat16"))
    if not said and plain in ("float32", "fp32"):
        return {"precision": "fp32"}
    return {"precision": PRECISIONS[said]}


def _states_means(flags: Flags, facts: Facts) -> Facts:
    """Weights, two moments and gradients; the second moment has the weights' type."""
    sizes = {"float32": 4, "bfloat16": 2}
    wide = sizes.get(str(flags.get("weight_dtype", "float32")), 4)
    first = sizes.get(str(flags.get("mu_dtype") or ""), wide)
    kind = str(flags.get("opt_type", "adamw"))
    moments = {"sgd": 0, "muon": first}.get(kind, first + wide)
    found: Facts = {"weight_bytes": wide, "optimizer_bytes": moments}
    found["gradient_bytes"] = sizes.get(str(flags.get("grad_dtype", "float32")), 4)
    key = "optimizer_memory_host_offload"
    return found | ({"offload_optimizer": 1.0} if truth(key, flags.get(key, False)) else {})


def _capacity_means(flags: Flags, facts: Facts) -> Facts:
    """Experts that are padded, or cut, to a capacity: where products are dense."""
    most = number("capacity_factor", flags.get("capacity_factor", -1))
    sparse = truth("sparse_matmul", flags.get("sparse_matmul", True))
    return {"expert_load": most} if most >= 1 and not sparse else {}


ENTRIES: tuple[Entry, ...] = (
    MESH,
    Number(LENGTH, "seq_len", absent=2048),
    Derived((PART, GATHERED, "num_pipeline_microbatches"), _nothing, _batch_means),
    Derived(
        ("num_layers_per_pipeline_stage", "num_pipeline_repeats", "pipeline_parallel_layers"),
        _nothing,
        _stages_means,
        fields=("vpp",),
    ),
    Derived(("quantization", "dtype"), _nothing, _precision_means, fields=("precision",)),
    Derived(
        ("weight_dtype", "mu_dtype", "grad_dtype", "opt_type", "optimizer_memory_host_offload"),
        _nothing,
        _states_means,
    ),
    REMAT,
    Derived(
        ("capacity_factor", "sparse_matmul", "megablox"),
        _nothing,
        _capacity_means,
        fields=("expert_load",),
    ),
    Cases(
        ("attention",),
        (
            (("unfused",), {"attention": "dot_product"}),
            (("flash",), {"attention": ("flash", "cudnn_flash_te", "autoselected",
                                        "cudnn_flash_jax",
                                        "splash", "tokamax_flash", "vllm_rpa", "paged")}),
            (("flash",), {}),
        ),
    ),
    Cases(
        ("cp_kind",),
        (
            (("ring",), {"context_parallel_strategy": "ring"}),
            (("ulysses",), {"context_parallel_strategy": ("ulysses", "usp")}),
            (("allgather",), {"context_parallel_strategy": "all_gather"}),
            (("allgather",), {}),
        ),
    ),
    clipping("gradient_clipping_threshold", absent=1.0),
    Derived((STEPS,), _nothing, lambda flags, facts: tokens_of_steps(STEPS, flags, facts)),
)  # fmt: skip

IGNORED = (
    "@", "base_config", "run_name", "base_output", "load_", "enable_check", "checkpoint", "async_",
    "save_", "dataset", "eval", "train_split", "hf_", "grain", "tokenizer", "tokenize", "vocab_tok",
    "learning_rate", "cosine", "warmup", "adam", "steps", "log_", "metrics", "gcs_", "profiler",
    "skip_first", "upload", "enable_goodput", "monitor", "goodput", "reuse_example", "packing",
    "max_segments", "use_iota", "normalization_layer", "rope_", "dropout", "enable_dropout",
    "normalize_", "logits_dot", "float32_", "jax_", "data_", "init_weights", "per_device_eval",
    "use_vertex", "vertex", "stack_trace", "collect_stack", "enable_tensorboard", "trainable_pos",
    "mlp_activations_limit", "routed_", "norm_topk", "load_balance", "mscale", "max_position",
    "original_max", "beta_", "attn_logits", "final_logits", "use_post", "scan_layers", "query_pre",
    "cast_logits", "param_scan", "prompt", "autoregressive_decode", "decode_", "max_prefill",
    "target_eval", "expansion", "max_corpus", "add_", "use_direct", "dump", "sa_", "logical_axis",
    "mesh_axes", "allow_split", "sharding_tolerance", "enable_single", "override_model", "compile_",
    "compiled_", "emergency", "enable_emergency", "local_check", "opt_type", "num_epoch", "z_loss",
    "use_random", "n_routing", "topk_routing", "shuffle", "elastic", "skip_jax", "matmul_precision",
    "constant_bound", "use_qwix", "wandb", "enable_wandb", "final_weights", "gradient_clip", "qk_",
    "inhomogeneous", "nope_layer", "interleave_moe", "temperature_tuning", "tile_",
    "moe_fsdp", "dense_init", "record", "enable_diloco", "generate_", "report_", "forward_",
    "use_bias", "use_qk", "image", "enable_", "profile", "inference", "replicate_", "quantize_kv",
    "kv_quant", "optimize_mesh", "prefill", "ar_cache", "multi_samp", "heartbeat", "step_dev",
    "max_checkify", "model_call", "force_unroll", "use_untrain", "use_dpo", "use_grpo", "use_sft",
    "sft_", "use_multimodal", "xprof", "managed_", "prometheus", "rl",
    "freeze_vision", "position_id", "remat_policy_for_vit", "megacore",
    "allow_", "quantization_local", "use_custom_sort", "use_chat", "chat_", "v_norm", "wi_", "wo_",
)  # fmt: skip
"""Beginnings of keys that say nothing of speed or memory, or were read under another name."""


def _foreign(flags: Flags, text: str) -> str | None:
    if "distill" in str(flags.get("base_config", "")) or "teacher_overrides" in text:
        return "a distillation, whose steps have a teacher's pass too"
    for key, what in (("use_dpo", "preferences (DPO)"), ("use_grpo", "reinforcement learning")):
        if truth(key, flags.get(key, False)):
            return f"{what}, as {key} shows"
    if truth("", flags.get("use_multimodal", False)):
        return "a model that sees images, as use_multimodal shows"
    started = str(flags.get("@program", ""))
    if started and not re.search(TRAINS, started):
        return f"a program that does not train, as {started.split()[-1]} shows"
    if reward := re.search(r"\b(train_)?(rl|grpo|dpo|distill)\w*", started):
        return f"a run whose steps are more than a pass forward and back, as {reward[0]} shows"
    return None


TRAINS = r"-m\s+\S*train\S*|\btrain\w*\.py"
"""How commands name its programs that train."""


def _based(content: dict[str, Any], folder: Path) -> tuple[dict[str, Any], list[str]]:
    """Settings upon those of the file they start from; a note for one that is not there."""
    name = str(content.get("base_config", ""))
    if not name or Path(name).name in BASES:
        return content, []
    below = file_named(name, folder)
    if below is None:
        return content, [f"{name}, from which it starts, is not there; as {BASES[0]} has it"]
    own, notes = _based(below, folder)
    return {**own, **content}, notes


def _program(words: tuple[str, ...]) -> str:
    """The part of a command that says which program runs."""
    names = [i for i, word in enumerate(words) if word.endswith(".py") or word == "-m"]
    end = names[-1] + (2 if names and words[names[-1]] == "-m" else 1) if names else 1
    return " ".join(words[max(end - 2, 0) : end])


def _topology(flags: Flags) -> int | None:
    """Accelerators of a topology that is compiled for, or of a request for a workload."""
    name = flags.get("@type") or flags.get(TOPOLOGY)
    if not name:
        return None
    meant = catalog.read_machine_name(str(name))
    if meant is None or not meant.count:
        return None
    slices = whole_number(SLICES, flags.get(SLICES, -1))
    return int(meant.count) * max(slices, 1)


TYPE, COUNT = r"--(?:tpu|device)[-_]type[= ](\S+)", r"--num[-_]slices[= ](\d+)"


def _requested(text: str) -> Flags:
    """The accelerators that a request for a workload (xpk) asks for."""
    kind, count = re.search(TYPE, text), re.search(COUNT, text)
    found: Flags = {"@type": kind[1].strip("'\"")} if kind and "$" not in kind[1] else {}
    return found | ({SLICES: int(count[1])} if count else {})


MODELS = ("src/maxtext/configs/models", "src/MaxText/configs/models", "MaxText/configs/models",
          "models")  # fmt: skip
"""Where its own models' files stand, beside what names them."""


def _modelled(content: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Settings upon those of the file of a model that no catalog has."""
    name = str(content.get("model_name") or "default")
    if name == "default" or name in SPELLED or catalog.read_model_name(name) is not None:
        return content
    files = (file_named(f"{place}/{name}.yml", folder) for place in MODELS)
    own = next((one for one in files if one), None)
    return content if own is None else {**own, **content, "model_name": "default"}


def _own(found: Settings, folder: Path) -> tuple[Flags, list[str]]:
    """Flags of settings: what they set, and what stands for nothing taken out."""
    content, notes = _based(found.content, folder)
    content = _modelled(content, folder)
    notes += [f"{name} is not there; as {BASES[0]} has it" for name in found.missing]
    flags: Flags = {key.removeprefix("--"): value for key, value in content.items()
                    if value is not None and not isinstance(value, Mapping)}  # fmt: skip
    return flags, notes


def _parse(text: str, folder: Path) -> Source:
    asked: Flags = {}
    if (made := kubernetes_job(text, TRAINS)) is not None:
        text, asked = made
    if (job := read_job(loaded(text) or {}, "maxtext")) is not None:
        named = {"model_name": job.model.lower().replace("_", "-")} if job.model else {}
        text = yaml.safe_dump({**named, **job.settings})
    found = read_settings(text, folder, TRAINS, r"python\S* .*[Mm]ax[Tt]ext", defaults=BASES)
    flags, notes = _own(found, folder)
    if found.words:
        flags |= {k: v for k, v in {**asked, **_requested(text)}.items() if k not in flags}
        flags["@program"] = _program(found.words)
    elif not {PART, "model_name", "base_config", *KEYS, *WIDTHS, "remat_policy"} & set(flags):
        raise InputError(f"--from-maxtext: no flag of maxtext is in it: neither {PART} nor "
                         "model_name")  # fmt: skip
    if (count := _topology(flags)) is not None:
        flags[DEVICES] = count
        flags[EACH] = CORES.get(str(flags.get("@type", "")).partition("-")[0], 1)
    if flags.get("model_name") in SPELLED:
        flags["model_name"] = SPELLED[str(flags["model_name"])]
    flags["@experts"] = is_mixture(flags)
    return Source(flags, notes)


MAXTEXT = Dialect(
    name="maxtext",
    framework="maxtext",
    model=(*HINTS, *MODEL),
    entries=ENTRIES,
    ignored=IGNORED,
    parse=_parse,
    foreign=_foreign,
)

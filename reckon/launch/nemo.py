"""NeMo and Megatron-Bridge: overrides of a recipe, by the names of Megatron Core's configurations.

The table is Megatron-LM's; here are the names that differ. Overrides say nothing by what they leave
out, so every field is written.
"""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

from predictor.catalog import read_model_name
from predictor.errors import InputError
from reckon.launch.dialect import Dialect, Source
from reckon.launch.foreign import foreign
from reckon.launch.interpolation import loaded
from reckon.launch.launcher import NODES, PER_NODE, choose, quoted
from reckon.launch.megatron import completed
from reckon.launch.megatron_core import from_core, to_core
from reckon.launch.megatron_model import MODEL
from reckon.launch.megatron_plan import PLAN
from reckon.launch.recipe import NULLS, read_recipe, versioned
from reckon.launch.repository import HINTS
from reckon.launch.shell import read_script
from reckon.launch.structured import flatten, scalar
from reckon.launch.table import Cases, Derived, Entry, Facts, Flags, same, truth, whole_number

IGNORED_KEYS = ("optimizer.", "scheduler.", "checkpoint.", "logger.", "tokenizer.", "dataset.",
                "rng.", "profiling.", "exp_manager.", "data.", "validation.", "peft.",
                "model.peft.")  # fmt: skip

PRECISION = Cases(
    ("precision",),
    (
        (("bf16",), {"mixed_precision": ("bf16_mixed", "bf16-mixed", "bf16")}),
        (("fp16",), {"mixed_precision": ("16-mixed", "fp16_mixed", "16", "fp16-mixed")}),
        (("fp8",), {"mixed_precision": ("bf16_with_fp8_current_scaling_mixed",
                                        "bf16_with_fp8_delayed_scaling_mixed",
                                        "bf16_with_fp8_mixed", "bf16_fp8_mixed")}),
        (("fp8_block",), {"mixed_precision": "bf16_with_fp8_subchannel_scaling_mixed"}),
        (("mxfp8",), {"mixed_precision": "bf16_with_mxfp8_mixed"}),
        (("nvfp4",), {"mixed_precision": "bf16_with_nvfp4_mixed"}),
        (("fp32",), {"mixed_precision": ("32", "fp32")}),
    ),
)  # fmt: skip

MIXED = tuple(sorted(
    {name for _, given in PRECISION.rows for names in given.values()
     for name in (names if isinstance(names, tuple) else (names,)) if "bf16" in name},
    key=len, reverse=True,
))  # fmt: skip
"""Names of mixed precisions, longer ones first."""

SCHEMES = ("peft", "model.peft.peft_scheme", "peft_scheme")
RANKS = ("peft.dim", "model.peft.lora_tuning.adapter_dim")
TARGETS = ("peft.target_modules", "model.peft.lora_tuning.target_modules")
ADAPTER_RANK = 32
"""Of NeMo's and Megatron-Bridge's adapters (megatron/bridge/peft/lora.py)."""


def _adapter_means(flags: Flags, facts: Facts) -> Facts:
    """What is trained: of NeMo 1 the projections to queries, keys and values unless more is named
    (megatron_gpt_finetuning_config.yaml), of later ones all linear layers."""
    scheme = next((str(flags[name]).lower() for name in SCHEMES if name in flags), "")
    if scheme in ("", "none", "null", "false"):
        return {"trained": "all"} if scheme else {}
    if scheme not in ("lora", "dora", "qlora", "canonical_lora"):
        raise InputError(f"adapters of the kind {scheme}: training them is not predicted; known "
                         "are lora, dora, none")  # fmt: skip
    first = SCHEMES[1] in flags
    said = next((str(flags[name]) for name in TARGETS if name in flags), "qkv" if first else "")
    words = set(re.findall(r"\w+", said))
    narrow = bool(words) and all("qkv" in word for word in words)
    rank = next((whole_number(name, flags[name]) for name in RANKS if name in flags), ADAPTER_RANK)
    return {"trained": "lora_qkv" if narrow else "lora", "lora_rank": rank}


ENTRIES: tuple[Entry, ...] = (
    *(PRECISION if getattr(entry, "fields", ()) == ("precision",) else entry for entry in PLAN),
    Derived((*SCHEMES, *RANKS, *TARGETS), lambda facts: {}, _adapter_means),
)


DEGREES = ("--tensor-model-parallel-size", "--pipeline-model-parallel-size")
"""What NeMo 1 reads from the checkpoint where a file of its inference says -1 (NVIDIA/NeMo 1.23
examples/nlp/language_modeling/conf/megatron_gpt_inference.yaml)."""


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def _render(flags: Flags, facts: Facts) -> str:
    lines = [f"torchrun --nproc-per-node {flags[PER_NODE]} --nnodes {flags[NODES]} pretrain.py"]
    for key, value in to_core(flags).items():
        text = _value(value)
        if key.endswith("recompute_modules"):
            text = f"[{','.join(text.split())}]"
        lines.append(quoted(f"{key}={text}"))
    return " \\\n    ".join(lines) + "\n"


OLD = {
    "trainer.num_nodes": NODES,
    "trainer.devices": PER_NODE,
    "trainer.precision": "mixed_precision",
    "trainer.max_steps": "--train-iters",
    "trainer.gradient_clip_val": "--clip-grad",
    "model.activations_checkpoint_granularity": "--recompute-granularity",
    "model.activations_checkpoint_method": "--recompute-method",
    "model.activations_checkpoint_num_layers": "--recompute-num-layers",
    "model.ub_tp_comm_overlap": "--tp-comm-overlap",
    "model.optim.overlap_grad_sync": "--overlap-grad-reduce",
    "model.optim.overlap_param_sync": "--overlap-param-gather",
    "model.use_flash_attention": "--use-flash-attn",
    "model.num_kv_heads": "--num-query-groups",
    "model.moe.num_experts": "--num-experts",
    "model.moe.top_k": "--moe-router-topk",
    "model.moe_token_dispatcher_type": "--moe-token-dispatcher-type",
    "model.override_vocab_size": "--vocab-size",
    "model.window_size": "--window-size",
    "model.expert_model_parallel_size": "--expert-model-parallel-size",
    "model.data.seq_length": "@length",
}
"""Keys of NeMo 1 that Megatron-LM has under another name (NVIDIA/NeMo 1.23
examples/nlp/language_modeling/conf/megatron_gpt_config.yaml)."""

GATED = ("swiglu", "fast-swiglu", "geglu", "fast-geglu", "reglu", "fast-reglu")

SHARDED = ("distributed_fused_adam", "mcore_distributed_optim", "megatron_distributed_optim")
"""Optimizers whose states the replicas divide among them."""

READ_ELSEWHERE = ("model.fp8", "model.fp8_e4m3", "model.fp8_hybrid", "model.activation", "name",
                  "model.precision")  # fmt: skip
"""Keys that were read into other flags."""

SPEED_IGNORED = (
    "run.", "hydra.", "defaults", "trainer.", "exp_manager.", "model.data.", "model.nsys_profile.",
    "model.optim.", "model.native_amp", "model.seed", "model.init_method", "model.use_scaled_init",
    "model.layernorm_epsilon", "model.tokenizer.", "model.rotary", "model.seq_len_interp",
    "model.gc_interval", "model.resume", "model.pre_process", "model.post_process",
    "model.mcore_gpt", "model.onnx_safe", "model.apex_transformer", "model.hysteresis",
    "model.fp8_margin", "model.fp8_interval", "model.fp8_amax", "model.rampup_batch_size",
    "model.do_layer_norm", "model.attention_type", "model.transformer_block_type",
    "model.normalize_attention_scores", "model.headscale", "model.use_cpu_init",
    "model.gradient_as_bucket_view", "model.fp16_lm", "model.ffn_dropout", "model.openai_gelu",
    "model.transformer_engine", "model.apply_query_key", "model.sync_batch_comm",
    "model.grad_allreduce_chunk", "model.megatron_amp_O2", "model.bias_gelu_fusion",
    "model.persist_layer_norm", "model.make_vocab", "model.dist_ckpt", "model.nsys", "model.sharp",
    "model.deterministic", "model.name", "model.restore", "model.mcore", "model.reduce_amax",
    "model.batch_p2p_comm", "model.get_attention_mask", "model.layernorm_zero", "model.use_emha",
    "model.masked_softmax_fusion", "model.fp32_residual",
)  # fmt: skip
"""Beginnings of NeMo 1's keys that say nothing of speed or memory."""


def _first(mapping: dict[Any, Any]) -> Source:
    """Flags that a configuration of NeMo 1 means: its model, its trainer, its optimizer."""
    flat = flatten(mapping)
    kept = {name: value for name, value in flat.items() if name not in OLD}
    found = from_core(kept).flags
    found |= {
        OLD[name]: value
        for name, value in flat.items()
        if name in OLD and not (OLD[name] in found and OLD[name] == "--vocab-size")
    }
    found.pop("@length", None)
    _activation(found, str(flat.get("model.activation", "gelu")))
    if str(flat.get("model.optim.name", "")) in SHARDED:
        found["--use-distributed-optimizer"] = True
    if truth("", flat.get("model.fp8", False)):
        found["mixed_precision"] = "bf16_with_fp8_delayed_scaling_mixed"
    said = str(found.get("mixed_precision", "")).replace("bf16-mixed", "bf16")
    if said:
        found["mixed_precision"] = said
    if "--normalization" in found:
        kinds = {"rmsnorm": "RMSNorm", "layernorm": "LayerNorm", "layernorm1p": "LayerNorm"}
        found["--normalization"] = kinds.get(
            str(found["--normalization"]).lower(), found["--normalization"]
        )
    kind, named = flat.get("model.tokenizer.type"), flat.get("model.tokenizer.model")
    if kind and str(flat.get("model.tokenizer.library")) == "megatron":
        found["--tokenizer-type"] = kind
    elif kind or named:
        found["--tokenizer-model"] = kind if kind and "/" in str(kind) else named or kind
    found["@name"] = flat.get("run.name", flat.get("name", ""))
    notes = [f"{name} {value}: read as it stands" for name, value in flat.items()
             if isinstance(value, str) and "${" in value and name in OLD]  # fmt: skip
    done = completed(Source({f: v for f, v in found.items() if not _open(v)}, notes), Path())
    return Source(
        {f: v for f, v in done.flags.items() if f not in READ_ELSEWHERE},
        done.notes,
    )


def _open(value: Any) -> bool:
    """Whether a value is left to a part of the configuration that is not there."""
    return isinstance(value, str) and value.startswith("${") and "_" not in value[:2]


def _activation(found: Flags, name: str) -> None:
    found["--swiglu"] = name in GATED
    if name == "squared-relu":
        found["--squared-relu"] = True


BASE = re.compile(r"\b(\w+?)_(?:pretrain|finetune|sft|peft)_(?:config|recipe)\(")
"""Calls of recipes of Megatron-Bridge and NeMo 2 by their names."""


def _null(key: str) -> bool:
    return key.rsplit(".", 1)[-1] in NULLS


def _parse(text: str, folder: Path) -> Source:
    if re.search(r"^(from|import) |^def ", text, re.M):
        called = [name for name in BASE.findall(text) if f"def {name}_" not in text]
        return _based(_core(read_recipe(text)), called)
    mapping = loaded(text)
    if mapping is not None and isinstance(mapping.get("training"), dict):
        mapping = mapping["training"]  # of a launcher that holds several
    if mapping is not None and {"model", "trainer"} <= set(mapping):
        return _first(mapping)
    if mapping is not None:
        return _core(flatten(mapping))
    script = read_script(text, folder)
    launcher, _, notes = choose(script, ())
    words = [word for command in script.commands for word in command]
    pairs = (word.lstrip("+").partition("=") for word in words if "=" in word and word[0] != "-")
    flat = {key: scalar(value) for key, _, value in pairs}
    found = _core(
        {k: "none" if v is None else v for k, v in flat.items() if v is not None or _null(k)}
    )
    called = [name for before, name in pairwise(words) if before == "--factory"]
    return _based(Source({**launcher, **found.flags}, [*notes, *found.notes]), called)


def _based(found: Source, called: list[str]) -> Source:
    """With the model of the library's recipe that a file or a command starts from, by its name;
    what else that recipe sets is not there to be read."""
    if "@repository" in found.flags or not called:
        return found
    name = called[0].partition("(")[0]
    try:
        known = read_model_name(versioned(name))
    except InputError:
        known = None
    if known is None:
        return found
    note = f"{name} is the library's recipe: only its model is taken, state what else it sets"
    return Source({**found.flags, "@repository": known.row}, [*found.notes, note])


def _core(flat: dict[str, Any]) -> Source:
    """Flags of keys of Megatron Core's configurations; a recipe's model by its repository.

    Raises InputError for degrees that are a checkpoint's.
    """
    found = from_core(flat)
    for flag in DEGREES:
        if flag in found.flags and same(found.flags[flag], -1):
            key = flag.removeprefix("--").replace("-", "_")
            raise InputError(
                f"{key} -1: NeMo's inference takes it from the checkpoint; state the number"
            )
    said = str(found.flags.get("mixed_precision", ""))
    for name in MIXED:  # recipes of a family have precisions of their own: nemotron_h_bf16_...
        if said.endswith(f"_{name}"):
            found.flags["mixed_precision"] = name
            break
    done = completed(found, Path())
    provider = done.flags.pop("@provider", None)
    if provider is not None and "@repository" not in done.flags:
        done.notes.append(f"the model is that of {provider}, whose sizes are not in the file")
    return done


NEMO = Dialect(
    name="nemo",
    framework="megatron-bridge",
    model=(*HINTS, *MODEL),
    entries=ENTRIES,
    ignored=(*IGNORED_KEYS, *SPEED_IGNORED),
    foreign=foreign,
    whole=False,
    render=_render,
    parse=_parse,
)

"""torchtitan: a job's TOML (torchtitan/config/job_config.py), and `--section.key` beside it."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

from predictor import catalog
from predictor.errors import InputError
from predictor.precision import PRECISIONS
from reckon.launch.dialect import Dialect, Source
from reckon.launch.interpolation import loaded
from reckon.launch.launcher import (
    NODES,
    PER_NODE,
    PROCESSES,
    command,
    named_file,
    named_text,
    processes,
)
from reckon.launch.primus import Job, read_job
from reckon.launch.recipe import CHOSEN
from reckon.launch.structured import flatten, read_toml, scalar, toml
from reckon.launch.table import (
    Cases,
    Derived,
    Entry,
    Facts,
    Flags,
    Number,
    Switch,
    Where,
    clipping,
    tokens_of_steps,
    truth,
    whole_number,
)
from reckon.launch.titan_registry import FILE, read_registry

FLAVORS: dict[str, tuple[str, str]] = {
    "llama3-8b": ("llama3", "8B"),
    "llama3-70b": ("llama3", "70B"),
    "llama3.1-405b": ("llama3", "405B"),
    "llama3.1-8b": ("llama3", "8B"),
    "llama3.1-70b": ("llama3", "70B"),
    "llama4-scout-17b-16e": ("llama4", "17bx16e"),
    "llama4-maverick-17b-128e": ("llama4", "17bx128e"),
    "deepseek-v2-lite": ("deepseek_v3", "16B"),
    "deepseek-v2": ("deepseek_v3", "236B"),
    "deepseek-v3": ("deepseek_v3", "671B"),
    "qwen3-0.6b": ("qwen3", "0.6B"),
    "qwen3-1.7b": ("qwen3", "1.7B"),
    "qwen3-4b": ("qwen3", "4B"),
    "qwen3-8b": ("qwen3", "8B"),
    "qwen3-14b": ("qwen3", "14B"),
    "qwen3-32b": ("qwen3", "32B"),
    "qwen3-30b-a3b": ("qwen3", "30B-A3B"),
    "qwen3-235b-a22b": ("qwen3", "235B-A22B"),
    "gpt-oss-20b": ("gpt_oss", "20b"),
    "gpt-oss-120b": ("gpt_oss", "120b"),
}
"""Names and flavours of models. torchtitan's Llama 3 is 3.1, whose dimensions are those of 3."""

P = "parallelism."
DEGREES = {
    name: f"{P}{key}_parallel_degree"
    for name, key in (("tp", "tensor"), ("pp", "pipeline"), ("cp", "context"))
}
REPLICATE, SHARD = f"{P}data_parallel_replicate_degree", f"{P}data_parallel_shard_degree"
LOCAL, GLOBAL = "training.local_batch_size", "training.global_batch_size"
PART = f"{P}pipeline_parallel_microbatch_size"
SCHEDULE, LAYERS = f"{P}pipeline_parallel_schedule", f"{P}pipeline_parallel_layers_per_stage"
LESS = (f"{P}pipeline_parallel_first_stage_less_layers",
        f"{P}pipeline_parallel_last_stage_less_layers")  # fmt: skip


def _model_says(facts: Facts) -> Flags:
    named = FLAVORS.get(facts["model.name"])
    if named is None:
        return {}
    return {"model.name": named[0], "model.flavor": named[1]}


def _model_means(flags: Flags, facts: Facts) -> Facts:
    said = (str(flags.get("model.name", "")).lower(), str(flags.get("model.flavor", "")).lower())
    for name, (family, flavor) in FLAVORS.items():
        if said == (family, flavor.lower()) and name in catalog.rows("models"):
            return {"model.name": name}
    if not all(said):
        return {}
    written = said[1] if "/" in said[1] else f"{said[0]}-{said[1]}".replace("_", "-")
    known = catalog.read_model_name(written) is not None
    return {"model.name": written} if known else {"model.unknown": f"{said[0]} {said[1]}"}


def _foreign(flags: Flags, text: str) -> str | None:
    """What is trained by torchtitan's experiments and is no decoder of text alone."""
    name = str(flags.get("model.name", "")).lower()
    if "flux" in name:
        return "a model that makes images, as model.name shows"
    seen = "vlm" in name or "siglip" in name
    return "a model that sees images, as model.name shows" if seen else None


def _data_says(facts: Facts) -> Flags:
    dp = facts["dp"]
    shard = {"none": 1, "hsdp": facts.get("dp_shard", dp)}.get(facts["sharding"], dp)
    return {REPLICATE: max(round(dp / shard), 1), SHARD: shard}


def _data_means(flags: Flags, facts: Facts) -> Facts:
    copies = whole_number(REPLICATE, flags.get(REPLICATE, 1))
    shard = whole_number(SHARD, flags.get(SHARD, -1))
    ranks = int(facts["tp"] * facts["pp"] * facts["cp"])
    if "gpus" not in facts:
        facts = {**facts, **processes(flags)}
    found: Facts = {"gpus": facts["gpus"]} if "gpus" in facts else {}
    if shard == -1:
        if "gpus" not in facts:
            return {"sharding": "fsdp"} if copies == 1 else {"sharding": "hsdp", "@copies": copies}
        if facts["gpus"] % (ranks * copies):
            raise InputError(
                f"{facts['gpus']} accelerators are not a multiple of tp x pp x cp {ranks} x "
                f"{REPLICATE} {copies}"
            )
        shard = facts["gpus"] // (ranks * copies)
    dp = copies * shard
    found |= {"dp": dp, "gpus": dp * ranks}
    if copies == 1:
        return {**found, "sharding": "fsdp"}
    if shard == 1:
        return {**found, "sharding": "none"}
    return {**found, "sharding": "hsdp", "dp_shard": shard}


def _batch_says(facts: Facts) -> Flags:
    """Without a pipeline a rank's batch is one micro-batch; with one, all of a step."""
    if facts["pp"] == 1:
        return {LOCAL: facts["micro_batch"], GLOBAL: facts["global_batch"]}
    local = facts["global_batch"] // facts["dp"]
    if fill := facts.get("pipeline_fill"):
        local = min(local, round(fill * facts["pp"] * facts["micro_batch"]))
    return {LOCAL: local, GLOBAL: facts["global_batch"], PART: facts["micro_batch"]}


def _batch_means(flags: Flags, facts: Facts) -> Facts:
    local = whole_number(LOCAL, flags.get(LOCAL, flags.get("training.batch_size", 8)))
    found: Facts = {"micro_batch": local}
    if facts["pp"] > 1:
        found["micro_batch"] = whole_number(PART, flags.get(PART, 1))
        if local % max(found["micro_batch"], 1):
            raise InputError(f"{LOCAL} {local} is not a multiple of {PART} {found['micro_batch']}")
    stated = whole_number(GLOBAL, flags.get(GLOBAL, -1))
    if stated > 0:
        found["global_batch"] = stated
        if facts["pp"] > 1 and stated > local * facts.get("dp", stated):
            found["pipeline_fill"] = local / (found["micro_batch"] * facts["pp"])
    elif "dp" in facts:
        found["global_batch"] = local * facts["dp"]
    return found


SCHEDULES = {"1F1B": "1f1b", "Interleaved1F1B": "1f1b", "GPipe": "gpipe",
             "InterleavedZeroBubble": "zb-h1", "ZBVZeroBubble": "zb-v",
             "DualPipeV": "dualpipev"}  # fmt: skip


def _stages_says(facts: Facts) -> Flags:
    """Layers per stage where torchtitan's own rule (two stages per rank if interleaved) gives
    another number of stages; embedding and head count as a layer each."""
    if facts["pp"] == 1:
        return {}
    vpp = facts["vpp"]
    name = next((n for n, own in SCHEDULES.items() if own == facts["schedule"]), None)
    found: Flags = {SCHEDULE: "Interleaved1F1B" if name == "1F1B" and vpp > 1 else name}
    stages = facts["pp"] * vpp
    each = math.ceil((facts["model.layers"] + 2) / stages)
    if math.ceil((facts["model.layers"] + 2) / each) == stages:
        found[LAYERS] = each
    return found if name else {}


def _stages_means(flags: Flags, facts: Facts) -> Facts:
    name = str(flags.get(SCHEDULE, "1F1B"))
    if facts["pp"] == 1:
        return {"vpp": 1}
    if name not in SCHEDULES:
        raise InputError(f"{SCHEDULE} {name}: known are {', '.join(SCHEDULES)}")
    vpp = 2 if name in ("Interleaved1F1B", "ZBVZeroBubble", "DualPipeV") else 1
    if LAYERS in flags:
        if "model.layers" not in facts:
            raise InputError(f"{LAYERS}: needs a model; give --model")
        each = whole_number(LAYERS, flags[LAYERS])
        slots = facts["model.layers"] + sum(whole_number(f, flags.get(f, 1)) for f in LESS)
        stages = math.ceil(slots / max(each, 1))
        if stages % facts["pp"]:
            raise InputError(
                f"{LAYERS} {each} gives {stages} stages, which pp {facts['pp']} does not divide"
            )
        vpp = stages // int(facts["pp"])
    return {"schedule": SCHEDULES[name], "vpp": vpp}


DTYPES = {"float32": 4, "bfloat16": 2, "float16": 2}
DTYPE, REDUCE = "training.dtype", "training.mixed_precision_reduce"


def _states_says(facts: Facts) -> Flags:
    """Weights as they are stored, and with them gradients and the two moments; fp32 where there is
    a copy in fp32."""
    wide = facts["weight_bytes"] + facts["optimizer_bytes"] >= 12
    return {
        DTYPE: "float32" if wide else "bfloat16",
        REDUCE: "bfloat16" if facts["reduce_bytes"] == 2 else "float32",
    }


def _states_means(flags: Flags, facts: Facts) -> Facts:
    found: Facts = {}
    for name in (DTYPE, REDUCE):
        said = str(flags.get(name, "float32"))
        if said not in DTYPES:
            raise InputError(f"{name} {said}: known are {', '.join(DTYPES)}")
        size = DTYPES[said]
        if name == DTYPE:
            found |= {"weight_bytes": size, "optimizer_bytes": 2 * size, "gradient_bytes": size}
        else:
            found["reduce_bytes"] = size
    return found


CONVERTERS = "model.converters"
RECIPE8, RECIPEMX = "quantize.linear.float8.recipe_name", "quantize.linear.mx.recipe_name"
GATHER8 = "quantize.linear.float8.enable_fsdp_float8_all_gather"
PARAM = "training.mixed_precision_param"
ROWS = {"fp8": "tensorwise", "fp8_rowwise": "rowwise"}
"""Recipes of torchao's float8 linear layers by precision; unnamed, they have a scale a tensor."""
KINDS = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}


def _precision_says(facts: Facts) -> Flags:
    name = facts["precision"]
    halves = {own: said for said, own in KINDS.items()}
    found: Flags = {PARAM: halves.get(name, "bfloat16")}
    if name in ROWS:
        found |= {CONVERTERS: ["quantize.linear.float8"], RECIPE8: ROWS[name]}
        if facts["gather_bytes"] == 1:
            found |= {GATHER8: True}
    elif name in ("mxfp8", "nvfp4"):
        recipe = {"mxfp8": "mxfp8_cublas", "nvfp4": "nvfp4"}[name]
        found |= {CONVERTERS: ["quantize.linear.mx"], RECIPEMX: recipe}
    return found


def _precision_means(flags: Flags, facts: Facts) -> Facts:
    said = str(flags.get(PARAM, "bfloat16"))
    if said not in KINDS:
        raise InputError(f"{PARAM} {said}: known are {', '.join(KINDS)}")
    used = str(flags.get(CONVERTERS, ""))
    found: Facts = {"precision": KINDS[said], "gather_bytes": PRECISIONS[KINDS[said]].weight}
    if "float8" in used:
        found["precision"] = "fp8_rowwise" if "row" in str(flags.get(RECIPE8, "")) else "fp8"
        if truth(GATHER8, flags.get(GATHER8, False)):
            found["gather_bytes"] = 1
    elif ".mx" in used or "mx" in used.split("'"):
        recipe = str(flags.get(RECIPEMX, "mxfp8"))
        found["precision"] = "nvfp4" if "fp4" in recipe else "mxfp8"
    return found


def _compiled_means(flags: Flags, facts: Facts) -> Facts:
    old, new = flags.get("training.compile", False), flags.get("compile.enable", False)
    parts = str(flags.get("compile.components", "model"))
    return {"fused": (truth("", old) or truth("", new)) and "model" in parts}


AC, ACS = "activation_checkpoint.mode", "activation_checkpoint.selective_ac_option"


def _checkpoints_says(facts: Facts) -> Flags:
    """Whole layers: all, or every n-th where the share is 1 / n."""
    kind, share = facts["recompute"], facts.get("recompute_share", 1)
    if kind == "per_op":
        return {AC: "selective", ACS: "op"}
    if kind == "full" and share < 1:
        return {AC: "selective", ACS: str(max(round(1 / share), 1))}
    return {AC: "full" if kind == "full" else "none"}


def _checkpoints_means(flags: Flags, facts: Facts) -> Facts:
    kind, option = str(flags.get(AC, "selective")), str(flags.get(ACS, "2"))
    if kind in ("none", "full"):
        return {"recompute": kind, **({"recompute_share": 1} if kind == "full" else {})}
    if kind != "selective":
        raise InputError(f"{AC} {kind}: known are none, selective, full")
    if option == "op":
        return {"recompute": "per_op"}
    every = max(whole_number(ACS, option), 1)
    return {"recompute": "full", "recompute_share": 1 / every}


STEPS = "training.steps"
RESHARD = f"{P}fsdp_reshard_after_forward"

MODEL: tuple[Entry, ...] = (Derived(("model.name", "model.flavor"), _model_says, _model_means),)

ENTRIES: tuple[Entry, ...] = (
    *(Number(flag, field, absent=1) for field, flag in DEGREES.items()),
    Number(f"{P}expert_parallel_degree", "ep", absent=1),
    Number(f"{P}expert_tensor_parallel_degree", "etp", absent=1),
    Derived(
        (REPLICATE, SHARD, NODES, PER_NODE, PROCESSES),
        _data_says,
        _data_means,
        fields=("sharding", "dp_shard"),
        needs=("tp", "pp", "cp", "dp"),
    ),
    Derived(
        (LOCAL, "training.batch_size", GLOBAL, PART),
        _batch_says,
        _batch_means,
        fields=("micro_batch", "pipeline_fill"),
        needs=("pp", "dp", "global_batch"),
    ),
    Number("training.seq_len", "seq_len"),
    Derived(
        (SCHEDULE, LAYERS, *LESS),
        _stages_says,
        _stages_means,
        fields=("schedule", "vpp"),
        needs=("pp",),
    ),
    Derived(
        (PARAM, CONVERTERS, RECIPE8, RECIPEMX, GATHER8),
        _precision_says,
        _precision_means,
        fields=("precision",),
    ),
    Derived((DTYPE, REDUCE), _states_says, _states_means),
    Derived(
        (AC, ACS),
        _checkpoints_says,
        _checkpoints_means,
        fields=("recompute", "recompute_share"),
    ),
    Derived(
        (RESHARD,),
        lambda facts: {RESHARD: "always" if facts["reshard"] else "never"},
        lambda flags, facts: {
            "reshard": {"always": True, "never": False}.get(
                str(flags.get(RESHARD, "default")), facts["pp"] == 1
            )
        },
        fields=("reshard",),
        needs=("pp",),
    ),
    Switch(f"{P}enable_async_tensor_parallel", "tp_overlap"),
    Where(
        Cases(
            ("cp_kind",),
            (
                (("allgather",), {f"{P}context_parallel_rotate_method": "allgather"}),
                (("ring",), {f"{P}context_parallel_rotate_method": "alltoall"}),
                (("allgather",), {}),
            ),
        ),
        lambda facts: facts["cp"] > 1,
        needs=("cp",),
    ),
    Derived(
        ("training.compile", "compile.enable", "compile.components"),
        lambda facts: {"compile.enable": facts["fused"]},
        _compiled_means,
        fields=("fused",),
    ),
    clipping("training.max_norm", absent=1.0),
    Derived(
        (STEPS,),
        lambda facts: (
            {STEPS: math.ceil(facts["tokens"] / facts["seq_len"] / facts["global_batch"])}
            if "tokens" in facts
            else {}
        ),
        lambda flags, facts: tokens_of_steps(STEPS, flags, facts),
    ),
)

IGNORED = ("job.", "profiling.", "metrics.", "optimizer.", "lr_scheduler.", "checkpoint.",
           "comm.", "training.dataset", "training.seed", "training.deterministic",
           "model.tokenizer_path", "model.hf_assets_path", "validation.", "memory_estimation.",
           "fault_tolerance.", "experimental.", "float8.filter", "training.gc",
           "training.enable_cpu_offload_none", "activation_checkpoint.per_op",
           "quantize.linear.float8.filter", "quantize.linear.mx.filter", "profiler.",
           "validator.", "loss.", "dataloader.", "tokenizer.")  # fmt: skip

ORDER = ("job", "model", "training", "parallelism", "activation_checkpoint", "compile")


def _render(flags: Flags, facts: Facts) -> str:
    config = {k: v for k, v in flags.items() if not k.startswith("@")}

    def place(name: str) -> int:
        section = name.split(".")[0]
        return ORDER.index(section) if section in ORDER else len(ORDER)

    return toml({name: config[name] for name in sorted(config, key=place)})


OLD = {
    "float8.": "quantize.linear.float8.",
    "mx.": "quantize.linear.mx.",
    "training.data_parallel_degree": f"{P}data_parallel_shard_degree",
    "training.data_parallel_": f"{P}data_parallel_",
    "training.tensor_parallel_degree": DEGREES["tp"],
    "training.enable_async_tensor": f"{P}enable_async_tensor",
    "training.fsdp_reshard": f"{P}fsdp_reshard",
    "training.pipeline_parallel_": f"{P}pipeline_parallel_",
    "experimental.pipeline_parallel_": f"{P}pipeline_parallel_",
    "experimental.context_parallel_": f"{P}context_parallel_",
    "experimental.enable_async_tensor": f"{P}enable_async_tensor",
}
"""Beginnings of keys of earlier versions (pytorch/torchtitan before 2025), and today's."""


def _current(name: str) -> str:
    """Today's name of a key."""
    for before, now in OLD.items():
        if name.startswith(before):
            return now + name.removeprefix(before)
    return name


def _of_primus(job: Job) -> Flags:
    """Keys of a configuration of Primus, whose models' files are named by family and flavour."""
    family, _, flavor = job.model.rpartition("_")
    family = "llama3" if family.startswith("llama3") else family
    found = flatten({"model": {"name": family, "flavor": flavor}, **job.settings})
    if job.narrow:
        found.setdefault(CONVERTERS, ["quantize.linear.float8"])
    return found


def _of_registry(module: str, config: str, folder: Path) -> tuple[Flags, list[str]]:
    """Keys of a configuration that a command names by the module of its model (`--module llama3
    --config llama3_8b`), where the registry is there; else what the names say."""
    path = named_file(f"torchtitan/models/{module}/{FILE}", folder)
    if path is not None:
        text = path.read_text(encoding="utf-8", errors="replace")
        return read_registry(text, config, module), []
    flavor = config.removeprefix(f"{module}_").upper()
    note = f"torchtitan/models/{module}/{FILE} is not there; what its {config} sets is not known"
    return {"model.name": module, "model.flavor": flavor}, [note]


def _parse(text: str, folder: Path) -> Source:
    """A TOML text; or a command, whose `--job.config_file` is read where it exists; or a
    function of a registry; or a configuration of Primus."""
    if (wanted := CHOSEN.match(text)) is not None:
        return Source(read_registry(text, wanted[1], folder.resolve().name))
    if (own := read_job(loaded(text) or {}, "torchtitan")) is not None:
        return Source({_current(name): value for name, value in _of_primus(own).items()})
    if re.search(r"^\s*\[[\w.]+\]\s*(#.*)?$", text, re.M):
        flat = flatten(read_toml(text, "the job"))
        return Source({_current(name): value for name, value in flat.items()})
    keys = tuple(flag for entry in (*MODEL, *ENTRIES) for flag in entry.flags)
    script, launcher, written, notes = command(
        text, (*keys, "job.config_file", "module", "config"), folder
    )
    said: dict[str, Any] = {
        name.lstrip("-").replace("-", "_"): scalar(v) if isinstance(v, str) else v
        for name, v in written.items()
    }
    config = said.pop("job.config_file", None)
    found: Flags = dict(launcher)
    if {"module", "config"} <= set(said):
        named = _of_registry(str(said.pop("module")), str(said.pop("config")), folder)
        found |= named[0]
        notes = [*notes, *named[1]]
    if config is not None:
        job = named_text(str(config), folder, script, "which --job.config_file names")
        found |= flatten(read_toml(job, str(config)))
    found |= {k: v for k, v in said.items() if v is not None}
    return Source({_current(name): value for name, value in found.items()}, notes)


TORCHTITAN = Dialect(
    name="torchtitan",
    framework="torchtitan",
    model=MODEL,
    entries=ENTRIES,
    foreign=_foreign,
    ignored=IGNORED,
    render=_render,
    parse=_parse,
)

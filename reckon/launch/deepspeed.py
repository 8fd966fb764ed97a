"""DeepSpeed: its JSON configuration, and a command that names one.

The configuration says how a batch is cut, what is sharded and in which types; the model, the length
of sequences and other parallelism are the program's. A command's own arguments are read as those of
Megatron-DeepSpeed, as far as they are.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from predictor.errors import InputError
from predictor.plans import OFFLOADS, SHARDINGS, Rule
from predictor.precision import PRECISIONS
from predictor.records import dataclass
from reckon.launch.dialect import Dialect, Source
from reckon.launch.foreign import foreign
from reckon.launch.launcher import command, named_text
from reckon.launch.megatron import IGNORED as MEGATRON_IGNORED
from reckon.launch.megatron import canonical
from reckon.launch.megatron_model import MODEL
from reckon.launch.megatron_plan import FLAGS as MEGATRON_FLAGS
from reckon.launch.megatron_plan import PLAN
from reckon.launch.repository import HINTS
from reckon.launch.structured import flatten, nest, read_mapping_text
from reckon.launch.table import (
    Cases,
    Derived,
    Entry,
    Facts,
    Flags,
    clipping,
    number,
    truth,
    whole_number,
)


@dataclass(frozen=True, slots=True)
class Beside:
    """An entry of Megatron's table: read where a command has its flags, never written."""

    entry: Entry
    whole_with: str = "--num-layers"

    @property
    def flags(self) -> tuple[str, ...]:
        """Flags of the entry."""
        return self.entry.flags

    @property
    def fields(self) -> tuple[str, ...]:
        """None."""
        return ()

    @property
    def needs(self) -> tuple[str, ...]:
        """None."""
        return ()

    def write(self, facts: Facts, whole: bool) -> Flags:
        """Nothing."""
        return {}

    def read(self, flags: Flags, facts: Facts, whole: bool) -> Facts:
        """As the entry does; absence counts where the command states the model."""
        return self.entry.read(flags, facts, self.whole_with in flags)


TOTAL, PART, STEPS = (
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
)
STAGE, MICS = "zero_optimization.stage", "zero_optimization.mics_shard_size"
OVERLAP, CLIP = "zero_optimization.overlap_comm", "gradient_clipping"


def _batch_says(facts: Facts) -> Flags:
    ranks = facts["dp"] * facts["micro_batch"]
    return {
        TOTAL: facts["global_batch"],
        PART: facts["micro_batch"],
        STEPS: facts["global_batch"] // ranks,
    }


def _batch_means(flags: Flags, facts: Facts) -> Facts:
    """Two of batch, micro-batch, steps and ranks, and what follows from them."""
    size = {name: whole_number(name, flags[name]) for name in (TOTAL, PART, STEPS) if name in flags}
    ranks = int(facts.get("tp", 1) * facts.get("pp", 1) * facts.get("cp", 1))
    dp = facts["gpus"] // ranks if "gpus" in facts else None
    found: Facts = {}
    if PART in size:
        found["micro_batch"] = size[PART]
    elif TOTAL in size and dp:
        found["micro_batch"] = max(size[TOTAL] // (dp * size.get(STEPS, 1)), 1)
    if TOTAL in size:
        found["global_batch"] = size[TOTAL]
        if PART in size and STEPS in size:
            each = size[PART] * size[STEPS]
            if not each or size[TOTAL] % each:
                raise InputError(
                    f"{TOTAL} {size[TOTAL]} contradicts {PART} {size[PART]} x {STEPS} {size[STEPS]}"
                )
            found["dp"] = size[TOTAL] // each
            if dp and dp != found["dp"]:
                raise InputError(
                    f"{TOTAL} {size[TOTAL]} over {PART} {size[PART]} x {STEPS} {size[STEPS]} is "
                    f"{found['dp']} replicas; the command starts {dp}"
                )
    elif PART in size and dp:
        found["global_batch"] = size[PART] * size.get(STEPS, 1) * dp
    return found


def _zero_says(facts: Facts) -> Flags:
    stage = {"none": 0, "zero1": 1, "zero2": 2}.get(facts["sharding"], 3)
    found: Flags = {STAGE: stage, OVERLAP: facts["grad_overlap"]}
    if facts["sharding"] == "hsdp" and facts.get("dp_shard"):
        found[MICS] = facts["dp_shard"]
    return found


def _zero_means(flags: Flags, facts: Facts) -> Facts:
    stage = whole_number(STAGE, flags.get(STAGE, 0))
    if stage not in range(4):
        raise InputError(f"{STAGE} {stage}: known are 0, 1, 2, 3")
    overlap = truth(OVERLAP, flags.get(OVERLAP, stage == 3))
    found: Facts = {"sharding": ("none", "zero1", "zero2", "zero3")[stage], "grad_overlap": overlap}
    if MICS in flags and whole_number(MICS, flags[MICS]) > 0:
        if stage != 3:
            raise InputError(f"{MICS} {flags[MICS]} contradicts {STAGE} {stage}: it needs stage 3")
        found |= {"sharding": "hsdp", "dp_shard": whole_number(MICS, flags[MICS])}
    return found


OFFLOADED = tuple(f"zero_optimization.offload_optimizer.{key}" for key in ("device", "ratio"))


def _offload_says(facts: Facts) -> Flags:
    share = facts.get("offload_optimizer", 0)
    return dict(zip(OFFLOADED, (facts["offload_to"], share), strict=True)) if share else {}


def _offload_means(flags: Flags, facts: Facts) -> Facts:
    device = str(flags.get(OFFLOADED[0], "none"))
    if device == "none":
        return {"offload_optimizer": facts.get("offload_optimizer", 0)}
    if device not in OFFLOADS:
        raise InputError(f"{OFFLOADED[0]} {device}: known are none, {', '.join(OFFLOADS)}")
    share = number(OFFLOADED[1], flags.get(OFFLOADED[1], 1))
    return {"offload_optimizer": share, "offload_to": device}


PARAMETERS = "zero_optimization.offload_param.device"


def _parameters_say(facts: Facts) -> Flags:
    return {PARAMETERS: facts["offload_to"]} if facts.get("offload_weights", 0) == 1 else {}


def _parameters_mean(flags: Flags, facts: Facts) -> Facts:
    device = str(flags.get(PARAMETERS, "none"))
    if device not in ("none", *OFFLOADS):
        raise InputError(f"{PARAMETERS} {device}: known are none, {', '.join(OFFLOADS)}")
    return {"offload_weights": 0.0 if device == "none" else 1.0}


SIZES = {2: ("bf16", "fp16"), 4: ("fp32",)}


def _type(name: str, field: str) -> Cases:
    """A key that holds a data type, whose size is a field."""
    rows = tuple(((size,), {name: spellings}) for size, spellings in SIZES.items())
    return Cases((field,), (*rows, ((None,), {})))


def _pipeline(facts: Facts) -> Flags:
    return {"pipeline.stages": facts["pp"]} if facts["pp"] > 1 else {}


ENTRIES: tuple[Entry, ...] = (
    *(Beside(entry) for entry in PLAN),
    Derived(
        ("tensor_parallel.autotp_size",),
        lambda facts: {"tensor_parallel.autotp_size": facts["tp"]} if facts["tp"] > 1 else {},
        lambda flags, facts: (
            {"tp": whole_number("autotp_size", flags["tensor_parallel.autotp_size"])}
            if "tensor_parallel.autotp_size" in flags
            else {"tp": facts.get("tp", 1)}
        ),
        fields=("tp",),
    ),
    Derived(
        ("pipeline.stages",),
        _pipeline,
        lambda flags, facts: (
            {"pp": whole_number("pipeline.stages", flags["pipeline.stages"])}
            if str(flags.get("pipeline.stages", "auto")) != "auto"
            else {"pp": facts.get("pp", 1)}
        ),
        fields=("pp",),
    ),
    Derived(
        ("sequence_parallel_size",),
        lambda facts: {"sequence_parallel_size": facts["cp"]} if facts["cp"] > 1 else {},
        lambda flags, facts: (
            {
                "cp": whole_number("sequence_parallel_size", flags["sequence_parallel_size"]),
                "cp_kind": "ulysses",
            }
            if "sequence_parallel_size" in flags
            else {"cp": facts.get("cp", 1)}
        ),
        fields=("cp", "cp_kind"),
    ),
    Derived(
        (TOTAL, PART, STEPS),
        _batch_says,
        _batch_means,
        fields=("micro_batch",),
        needs=("tp", "pp", "cp", "dp", "global_batch"),
    ),
    Cases(
        ("precision",),
        (
            (("bf16",), {"bf16.enabled": True, "fp16.enabled": False}),
            (("fp16",), {"fp16.enabled": True, "bf16.enabled": False}),
            (("fp32",), {"bf16.enabled": False, "fp16.enabled": False}),
            *(
                ((name,), {"bf16.enabled": True})
                for name in PRECISIONS
                if "p8" in name or "p4" in name
            ),
        ),
    ),
    Derived(
        (STAGE, OVERLAP, MICS),
        _zero_says,
        _zero_means,
        fields=("sharding", "dp_shard", "grad_overlap"),
        needs=("cp", "dp"),
    ),
    Derived(OFFLOADED, _offload_says, _offload_means, fields=("offload_optimizer", "offload_to")),
    Derived((PARAMETERS,), _parameters_say, _parameters_mean, fields=("offload_weights",)),
    _type("communication_data_type", "reduce_bytes"),
    _type("data_types.grad_accum_dtype", "gradient_bytes"),
    clipping(CLIP, absent=0.0),
)

TRAINER = {
    "--per-device-train-batch-size": PART,
    "--gradient-accumulation-steps": STEPS,
    "--max-grad-norm": CLIP,
    "--model-name-or-path": "@repository",
    "--max-seq-length": "--seq-length",
    "--max-length": "--seq-length",
    "--model-max-length": "--seq-length",
    "--block-size": "--seq-length",
    "--cutoff-len": "--seq-length",
    "--bf16": "bf16.enabled",
    "--fp16": "fp16.enabled",
}
"""Arguments of HuggingFace's trainer, which fills in what the configuration leaves 'auto'."""

TRAINER_IGNORED = ("--output-dir", "--learning-rate", "--num-train-epochs", "--save-", "--logging",
                   "--report-to", "--dataset", "--data-path", "--warmup", "--lr-scheduler",
                   "--evaluation", "--do-train", "--overwrite", "--preprocessing", "--weight-decay",
                   "--max-steps", "--dataloader", "--ddp-", "--remove-unused", "--per-device-eval",
                   "--tf32", "--trust-remote", "--train-file", "--template", "--stage")  # fmt: skip


IGNORED = ("optimizer.", "scheduler.", "steps_per_print", "wall_clock_breakdown", "tensorboard.",
           "wandb.", "csv_monitor.", "flops_profiler.", "comms_logger.", "dump_state",
           "fp16.", "bf16.", "checkpoint.", "zero_allow_untested_optimizer", "elasticity.",
           "zero_optimization.contiguous_gradients", "zero_optimization.stage3_gather_16bit",
           "prescale_gradients", "--deepspeed", "zero_force_ds_cpu_optimizer",
           *TRAINER_IGNORED, *MEGATRON_IGNORED)  # fmt: skip


def _render(flags: Flags, facts: Facts) -> str:
    return json.dumps(nest({k: v for k, v in flags.items() if not k.startswith("@")}), indent=2)


USUAL: dict[str, Any] = {
    "sub_group_size": 1e9, "stage3_max_live_parameters": 1e9, "stage3_max_reuse_distance": 1e9,
    "stage3_prefetch_bucket_size": 5e7, "stage3_param_persistence_threshold": 1e5,
    "reduce_bucket_size": 5e8, "allgather_bucket_size": 5e8, "allgather_partitions": True,
    "reduce_scatter": True, "offload_optimizer.pin_memory": True,
    "offload_param.pin_memory": True, "round_robin_gradients": False,
}  # fmt: skip
"""What `zero_optimization` takes where nothing is said (DeepSpeed 0.19.6, deepspeed/runtime/zero/
config.py); host memory that is pinned, which every example states, is what copies are timed in."""


def _said(name: str, value: Any) -> bool:
    """Whether a key says anything that is not so without it."""
    usual = USUAL.get(name.removeprefix("zero_optimization."))
    return usual is None or str(value).lower() == "auto" or float(usual) != _as_float(value)


def _as_float(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan


def _config(text: str, where: str) -> tuple[Flags, list[str]]:
    mapping = read_mapping_text(text)
    if mapping is None:
        raise InputError(f"{where} is not a JSON configuration")
    flat = {name: value for name, value in flatten(mapping).items() if _said(name, value)}
    open_ = [name for name, value in flat.items() if value == "auto"]
    notes = [f"{', '.join(open_)}: 'auto', left to what is assumed"] if open_ else []
    return {name: value for name, value in flat.items() if value != "auto"}, notes


def _trainer(found: Flags) -> None:
    """Put arguments of HuggingFace's trainer where the configuration has them."""
    if "--per-device-train-batch-size" not in found:
        return
    for flag, key in TRAINER.items():
        if flag in found:
            value = found.pop(flag)
            found[key] = truth(flag, value) if key.endswith(".enabled") else value
    if truth("", found.pop("--gradient-checkpointing", False)):
        found |= {"--recompute-granularity": "full", "--recompute-method": "uniform"}


def _parse(text: str, folder: Path) -> Source:
    if text.lstrip().startswith("{"):
        return Source(*_config(text, "the text"))
    named = ("deepspeed-config", "deepspeed_config", "deepspeed")
    script, launcher, written, notes = command(text, (*MEGATRON_FLAGS, *TRAINER, *named), folder)
    said: dict[str, Any] = canonical(written)
    found: Flags = {**launcher, **said}
    config = said.get("--deepspeed-config", said.get("--deepspeed"))
    if isinstance(config, str):
        what = "the configuration"
        flags, own = _config(named_text(config, folder, script, what), config)
        left = [name for name in own if "'auto'" in name]
        found |= flags
        trained = "--per-device-train-batch-size" in found
        if trained and any(CLIP in one for one in left):
            found.setdefault("--max-grad-norm", 1.0)  # what transformers' arguments take
        notes += [one for one in own if not (trained and one in left)]
    _trainer(found)
    return Source(found, notes)


def _laws(plans: Any) -> list[Rule]:
    """Whole layers run again or nothing does (`activation_checkpointing`). Pipelines keep gradients
    until the last micro-batch, which ZeRO-2 and 3 do not (asserted by PipelineEngine)."""
    found = []
    if plans.recompute not in ("none", "full"):
        told = f"DeepSpeed does not recompute {plans.recompute} (tp {{tp}})"
        found.append(Rule(np.ones(plans.shape, dtype=bool), told, ("tp",)))
    if SHARDINGS[plans.sharding].per_micro_batch:
        told = f"DeepSpeed's pipelines (pp {{pp}}) do not take sharding {plans.sharding}"
        found.append(Rule(np.asarray(plans.pp > 1), told, ("pp",)))
    return found


DEEPSPEED = Dialect(
    name="deepspeed",
    framework="deepspeed",
    model=(*HINTS, *(Beside(entry) for entry in MODEL)),
    entries=ENTRIES,
    ignored=IGNORED,
    render=lambda flags, facts: _render(flags, facts) + "\n",
    parse=_parse,
    comment="",
    beside=("ep", "etp", "recompute", "recompute_modules", "recompute_share"),
    laws=_laws,
    foreign=foreign,
)

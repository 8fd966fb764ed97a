"""Rows of published tables as model, cluster and plan.

Only what a row states is taken; the rest is filled by `predictor.training.complete_training`. A row
that cannot be predicted gives a reason instead.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from calibration.sources.told import amended, noted
from calibration.tables import conventions
from calibration.tables.agreement import check_sequences, overruled
from calibration.tables.cells import UNREAD, cell
from calibration.tables.dimensions import described
from calibration.tables.rates import measured, seconds
from calibration.tables.waiting import calm_share, threads_of
from calibration.tables.words import (
    frozen,
    modules_of,
    of_its_halves,
    recomputed,
    sharded,
    status_of,
    told_month,
    trained,
    yes,
)
from predictor.catalog import (
    TrainingPlanSpec,
    accelerator,
    frameworks,
    parse,
    read_machine_name,
    recognised,
)
from predictor.errors import InputError
from predictor.hardware import Cluster
from predictor.plans import (
    FROZEN_BYTES,
    OBJECTIVE_WORDS,
    OBJECTIVES,
    OPTIMIZER_WORDS,
    OPTIMIZERS,
    PLAIN,
    RECOMPUTE_MODULES,
    TRAINED,
    TRAINING_FIELDS,
    meant,
)
from predictor.timing import RunParameters
from predictor.training import TrainingRequest, complete_training, trainer

FRAMEWORKS = {
    "kempnerforge (pytorch fsdp2)": "kempnerforge",
    "pytorch-fsdp (fms-fsdp)": "fms-fsdp",
}
"""Frameworks of published tables whose defaults are those of another entry."""

READ_OTHERWISE = (
    "model", "accelerator", "accelerators_per_node", "inter_link_gbps", "gpus", "tp", "pp", "vpp",
    "cp", "ep", "dp", "micro_batch", "global_batch", "seq_len", "precision", "recompute",
    "sharding", "sequence_parallel", "framework", "era", "power_limit",
)  # fmt: skip
"""Fields of a plan that have columns with rules of their own; every other is read from the column
of its name, where a table (the project's own, of profiles and of logs) has one."""

BYTES = ("weight_bytes", "gradient_bytes", "optimizer_bytes")
"""Fields of bytes of a parameter that is trained."""

READ_BY_NAME = tuple(key for key in TRAINING_FIELDS if key not in READ_OTHERWISE)
"""Those others."""

ADAPTERS = re.compile(r"(?<!no )(?<!without )(?<!not )\bq?lora\b", re.IGNORECASE)
"""What a row's model or its notes call training of adapters alone; QLoRA is that of adapters beside
weights in 4 bits (Dettmers et al. 2023)."""

BESIDE = re.compile(r"q?lora|dora|adapter|peft")
"""What a row that says what is trained may call adapters; DoRA's hardly differ in size."""

LORA = {"nemo": "lora_qkv", "megatron-bridge": "lora_qkv"}
"""What a framework's LoRA runs adapt, where not every linear layer: NeMo's default is
attention_qkv, and its fine-tuning performance scripts set target_modules to linear_qkv."""


ROWS = re.compile(r"\brow.?wise", re.IGNORECASE)
"""What the notes of a row in fp8 say of its scales (torchao's recipes: rowwise and
rowwise_with_gw_hp), for which tables have no word of their own."""

COMPARED = re.compile(r"\b(dpo|ipo|kto|orpo|simpo|cpo)\b", re.IGNORECASE)
BRACKETS = re.compile(r"[(\[][^)\]]*[)\]]")
"""What a row's notes, or brackets of its model's name, call training from preferences; a name alone
(`tulu-2-dpo-70b`) says how its weights came about."""


@dataclass(frozen=True, slots=True, eq=False)
class Point:
    """A published training point.

    measured   step time [s], less what its threads waited for processors; NaN where only memory is
               stated
    one_layer  the row times one layer, forward and backward, not a step
    memory     stated peak per device [bytes], NaN where not stated
    waited     how long all its threads together waited for processors which others used, over the
               time that went by
    doubtful   the row is not of the machine that it names, as far as anybody can know; no fit to
               published runs learns from it
    memory_of  what that is of: all of the device, the allocator, tensors (`conventions.memory_of`)
    status     'Success', 'OOM' or ''
    told       whether the row says how many sequences of which length a step has, and how its
               FLOPs are counted where it states those; no fit learns from one that does not
    note       what counts of a row that says one thing twice; empty where nothing is to be said
    why        why it has no step time; empty where it has one
    """

    point_id: str
    source: str
    request: TrainingRequest
    measured: float
    one_layer: bool
    memory: float
    status: str
    told: bool = True
    memory_of: str = "allocator"
    doubtful: bool = False
    waited: float = 0.0
    note: str = ""
    why: str = ""


@dataclass(frozen=True, slots=True)
class Skipped:
    """A row that is not predicted, and why; or one that is, and what was made of it."""

    point_id: str
    source: str
    reason: str


def point_of(
    row: Mapping[Any, Any],
    run: RunParameters,
    devices: Mapping[str, Cluster] | None = None,
) -> Point | Skipped:
    """A row of a training table as a point, or the reason why it is none.

    run      memory parameters, to fill in what is unstated
    devices  systems by the name of their accelerator, where a profile lies beside the table
    """
    point_id, source = str(row.get("point_id", "")), str(row.get("source", ""))
    if (unread := cell(row, UNREAD)) is not None:
        return Skipped(point_id, source, str(unread))
    row = noted(amended(row), "training")
    metric, value = measured(row)
    row = {**row, "metric": metric, "value": value, "metric_said": cell(row, "metric")}
    name = str(cell(row, "model") or "")
    if cell(row, "accelerator") is None:
        return Skipped(point_id, source, "the accelerator is not stated")
    try:
        request = _request(row, run, devices or {})
    except InputError as error:
        return Skipped(point_id, source, str(error))
    step = _step_time(row, request)
    memory = cell(row, "memory_reserved_gb")
    if memory is None:
        memory = value if metric == "memory_gb_per_gpu" else cell(row, "memory_gb_per_gpu")
    memory = cell(row, "peak_gib") if memory is None else memory
    sized = all(cell(row, name) is not None for name in ("seq_len", "global_batch"))
    held = sized or all(cell(row, name) is not None for name in ("seq_len", "micro_batch"))
    waited, status = float(cell(row, "waited") or 0.0), status_of(cell(row, "status"))
    if step is not None:
        step *= float(calm_share(waited, threads_of(request.cluster.accelerator)))
    return Point(
        point_id=point_id,
        source=source,
        request=request,
        measured=step if step is not None else math.nan,
        one_layer="1layer" in name,
        memory=float(memory) * 2.0**30 if memory and held else math.nan,
        status=status,
        told=sized and conventions.says_how(row),
        memory_of=conventions.memory_of(source),
        doubtful=cell(row, "doubtful") is not None,
        waited=waited,
        note=overruled(row, request.plan),
        why=conventions.why_none(row) if step is None else "",
    )


def _step_time(row: Mapping[str, Any], request: TrainingRequest) -> float | None:
    """Step time as a row states it or as it follows; None where only memory is stated."""
    step = cell(row, "step_time_s")
    if step is None:
        plan = request.plan
        sizes = (float(plan.global_batch) / _each(row), float(plan.seq_len) * _each(row))
        metric, value = cell(row, "metric"), cell(row, "value")
        step = seconds(row, metric, value, (*sizes, float(plan.gpus)))
        step = step or conventions.step_time(row, request)
    return None if step is None else float(step)


def _objective(row: Mapping[str, Any]) -> str | None:
    """What a row says in words that is learned from; None where a column says it, or nothing."""
    if cell(row, "learns_from") is not None:
        return None
    told = " ".join([*BRACKETS.findall(str(cell(row, "model"))), str(cell(row, "notes"))])
    found = COMPARED.search(told)
    if found is None or re.search(r"\b(no|not|without|unlike)\s*$", told[: found.start()], re.I):
        return None
    return meant(found[0], tuple(OBJECTIVES), OBJECTIVE_WORDS)


def _each(row: Mapping[str, Any]) -> int:
    """Sequences of a row's sample: two where it says in words that pairs are compared, as those
    count who train so (`reckon.launch.preferences`)."""
    return OBJECTIVES[_objective(row) or "tokens"].together


def _recipe(row: Mapping[str, Any], devices: Mapping[str, Cluster]) -> str | None:
    """How a row's layers multiply, by its own column or, of fp8, by its notes."""
    said = trained(str(cell(row, "precision")))
    device = str(cell(row, "accelerator"))
    if said == "fp16" and device not in devices:
        return of_its_halves(accelerator(device))
    return "fp8_rowwise" if said == "fp8" and ROWS.search(str(cell(row, "notes"))) else said


def _compared(row: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """The objective of a row that says it in words, and its batches in sequences."""
    if (objective := _objective(row)) is None:
        return {}
    own, each = {key: fields[key] for key in ("micro_batch", "global_batch")}, _each(row)
    return {"learns_from": objective, **{key: own[key] and own[key] * each for key in own}}


def _capped(cluster: Cluster, watts: float) -> Cluster:
    """A cluster whose accelerators may draw so much at most: their kernels sustain lower clocks."""
    own = cluster.accelerator
    return replace(cluster, accelerator=replace(own, power=np.fmin(own.power, watts)))


def _repeated(fields: Mapping[str, Any], ranks: int) -> bool:
    """Whether ranks among which experts are divided stand beside the data-parallel ones, and work
    on the same sequences (KempnerForge's mesh of dp_shard x ep, 2026-04): its stated ranks are all
    accelerators only with `ep` counted in.

    ranks   of a replica
    """
    dp, ep, gpus = (fields[name] for name in ("dp", "ep", "gpus"))
    known = all((dp, ep, gpus, fields["global_batch"]))
    return bool(known and ep > 1 and ranks * dp * ep == gpus)


def _named(fields: Mapping[str, Any]) -> int | None:
    """Accelerators that the name of one says ('8xH100', 'v5p-128'), where nothing else does."""
    found = read_machine_name(str(fields["accelerator"])) if fields["dp"] is None else None
    return (found.count or None) if found is not None else None


def _replicas(fields: Mapping[str, Any], ranks: int) -> int | None:
    """Data-parallel ranks of a stated layout; open where there are fewer sequences than replicas
    and nobody says how many ranks share one.

    ranks   of a replica
    """
    whole, batch = int(fields["gpus"] // ranks), fields["global_batch"]
    shared = fields["cp"] is None and fields["dp"] is None and batch and batch < whole
    return None if shared else whole


def _at_once(fields: Mapping[str, Any]) -> int | None:
    """Sequences of a micro-batch as stated. MaxText and Pax state those of a chip
    (per_device_batch_size) and have one micro-batch a step: a tensor-parallel group works on those
    of all its chips at once (the tables' own note: "per chip, before TP")."""
    batch, dp, tp, own = (fields[name] for name in ("global_batch", "dp", "tp", "micro_batch"))
    known = all((batch, dp, tp, own)) and fields["framework"] in ("maxtext", "paxml")
    return own * tp if known and own * tp * dp == batch else own


def _framework(row: Mapping[str, Any]) -> str:
    """Entry of the framework that a row names; of a plain loop in somebody's repository, that of
    the repository where it is known ('github.com/meta-pytorch/torchtune/...')."""
    told = str(cell(row, "framework") or "neutral").lower()
    named = trainer(FRAMEWORKS.get(told, told))
    found = recognised(named, frameworks()) or "neutral"
    place = re.search(r"github\.com/[^/]+/([^/]+)", str(cell(row, "url") or ""))
    if found != PLAIN or not place:
        return found
    return recognised(place[1].lower(), frameworks()) or found


WHOLE = (
    "full",
    "sft",
    "pretraining",
    "pre-training",
    "pretrain",
    "full-parameter",
    "full_parameter",
)
"""What tables call runs that train all parameters."""


def _frozen(row: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """What a row trains, and how it keeps the rest: by its own columns, or where its model, its
    notes or the first of these speak of adapters."""
    found: dict[str, Any] = {}
    if (quantized := frozen(cell(row, "quantized"), FROZEN_BYTES)) in FROZEN_BYTES:
        found["frozen_precision"] = quantized
    stated = str(fields.get("trained") or "").lower()
    if stated in WHOLE:
        return {**found, "trained": "all"}
    if stated not in TRAINED and (called := BESIDE.search(stated)):
        stated = "qlora" if "qlora" in called[0] else "lora"
        fields = {**fields, "trained": stated}
        found["trained"] = "lora"
    told = f"{cell(row, 'model')}".replace("_", " "), f"{cell(row, 'notes')}"  # not: q_lora_rank
    if adapters := ADAPTERS.search(" ".join(("qlora",) if stated == "qlora" else told)):
        own = None if stated == "qlora" else fields.get("trained")
        found["trained"] = own or LORA.get(str(fields["framework"]), "lora")
        if adapters[0].lower() == "qlora" and not quantized:
            found["frozen_precision"] = fields.get("frozen_precision") or "nf4"
    return found


def _divided(fields: Mapping[str, Any]) -> int | None:
    """Ranks that divide experts, as stated; no more than a stage has, whatever a row says."""
    gpus, pp, ep = (fields[name] for name in ("gpus", "pp", "ep"))
    return max(min(ep, gpus // pp), 1) if gpus and pp and ep else ep


def _request(
    row: Mapping[str, Any], run: RunParameters, devices: Mapping[str, Cluster]
) -> TrainingRequest:
    model, assumed = described(row)
    fields: dict[str, Any] = {
        "accelerator": cell(row, "accelerator"),
        "accelerators_per_node": cell(row, "gpus_per_node"),
        "inter_link_gbps": cell(row, "inter_link_gbps") or None,
        "era": told_month(cell(row, "published")),
    }
    if not re.fullmatch(r"\d{4}(-\d\d)?", fields["era"] or ""):
        fields["era"] = None  # 'v2', 'in review': no date
    for key in ("tp", "pp", "vpp", "cp", "ep"):  # nought is what is not divided
        fields[key] = cell(row, key) if cell(row, key) != 0 else 1
    for key in ("micro_batch", "global_batch", "seq_len"):
        fields[key] = cell(row, key)
    fields["dp"] = cell(row, "dp") or None
    fields["gpus"] = cell(row, "num_gpus") or _named(fields)
    ranks = math.prod(int(fields[k] or 1) for k in ("tp", "pp", "cp"))
    if _repeated(fields, ranks):  # in all, the ranks work on as many sequences
        fields["global_batch"] *= fields["ep"]
    if fields["gpus"] and fields["tp"] and fields["pp"] and fields["gpus"] % ranks == 0:
        fields["dp"] = _replicas(fields, ranks)
    if fields["dp"] and fields["gpus"]:
        others, rest = divmod(fields["gpus"], ranks * fields["dp"])
        if rest or (others > 1 and fields["tp"] and fields["pp"]):
            fields["gpus"] = None  # the row contradicts itself; its layout decides
    fields["precision"] = _recipe(row, devices)
    fields["sequence_parallel"] = yes(cell(row, "sequence_parallel"))
    fields["recompute"] = recomputed(cell(row, "recompute"))
    fields["sharding"] = sharded(cell(row, "dp_sharding"))
    fields["framework"] = _framework(row)
    fields |= {key: cell(row, key) if key in row else None for key in READ_BY_NAME}
    fields |= {key: fields[key] or None for key in BYTES}  # nought of what is frozen: not said
    told_optimizer = str(cell(row, "optimizer") or "")
    fields["optimizer"] = meant(told_optimizer, tuple(OPTIMIZERS), OPTIMIZER_WORDS)
    fields["ep"] = _divided(fields) if model.is_moe else None
    if modules := cell(row, "recompute_modules") or modules_of(cell(row, "recompute")):
        named = [name for name in str(modules).split(",") if name in RECOMPUTE_MODULES]
        fields["recompute"] = "selective" if named else "none"
        fields["recompute_modules"] = ",".join(named) or None
    fields |= _frozen(row, fields)
    fields |= _compared(row, fields)
    fields["micro_batch"] = _at_once(fields)
    check_sequences(cell(row, "dp"), fields["global_batch"], fields["micro_batch"])
    fields |= conventions.usual_size(row, fields, model)
    cluster = devices.get(str(fields["accelerator"]))
    spec = parse(TrainingPlanSpec, {k: v for k, v in fields.items() if v is not None}, "row")
    request = complete_training(spec, run, strict=False, model=model, cluster=cluster)
    if fields["micro_batch"]:  # of replicas that follow from the rest, too
        check_sequences(request.plan.dp, fields["global_batch"], fields["micro_batch"])
    limit = cell(row, "power_limit")
    if limit is not None:
        request = replace(request, cluster=_capped(request.cluster, float(limit)))
    return replace(request, assumed=(*assumed, *request.assumed))

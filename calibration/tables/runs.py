"""Rows of published tables as model, cluster and plan.

Only what a row states is taken; the rest is filled by `predictor.complete`. A row that cannot be
predicted gives a reason instead.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from predictor import catalog
from predictor.catalog import TrainingPlanSpec, frameworks, parse, spelled
from predictor.errors import InputError
from predictor.hardware import Cluster
from predictor.models import Model
from predictor.plans import FIT, RECOMPUTE_MODULES
from predictor.precision import PRECISIONS
from predictor.timing import RunParameters
from predictor.training import TrainingRequest, complete_training

EXPERT_DIMENSIONS = ("num_experts", "top_k", "expert_ffn_hidden", "shared_experts", "gated")
DIMENSIONS = ("layers", "hidden", "heads", "ffn_hidden", "vocab")
GPT3_VOCAB = 51200

FRAMEWORKS = {
    "kempnerforge (pytorch fsdp2)": "kempnerforge",
    "pytorch-fsdp (fms-fsdp)": "fms-fsdp",
    "huggingface/transformer-engine": "torchtitan",
    "lit-gpt fork (FSDP)": "fms-fsdp",
    "primus (megatron)": "megatron-lm",
    "megatron-llama": "megatron-lm",
    "levanter": "maxtext",
    "colossalai": "deepspeed",
}
"""Frameworks of published tables whose defaults are those of another entry."""

PLAN_COLUMNS = (
    "weight_bytes", "gradient_bytes", "reduce_bytes", "gather_bytes", "optimizer_bytes",
)  # fmt: skip
"""Fields of a plan that the project's own step tables state beside the shared columns."""

NO_OVERLAP = dict.fromkeys(
    ("tp_overlap", "tp_async_backward", "grad_overlap", "param_overlap"), False
)
NOTED: tuple[tuple[str, dict[str, Any]], ...] = (
    ("force-balanced", {"expert_load": 1.0}),
    ("forced-balanced", {"expert_load": 1.0}),
    ("fake balanced gate", {"expert_load": 1.0}),
    ("capacity factor 1 padded", {"expert_load": 1.0}),
    ("alltoall dispatcher", {"dispatch": "copies"}),
    ("hybridep", {"dispatch": "once"}),
    ("deepep", {"dispatch": "once"}),
    ("ep overlap on", {"ep_overlap": True}),
    ("no tp/dp comm overlap", NO_OVERLAP),
    ("async tp;", {"tp_overlap": True}),
    ("+asynctp", {"tp_overlap": True}),
    ("+ asynctp", {"tp_overlap": True}),
    ("compile", {"fused": True}),
    ("without torch.compile", {"fused": False}),
)
"""Deciding settings that stand in a row's notes only: words, and what they say."""

LORA = {"nemo": "lora_qkv", "megatron-bridge": "lora_qkv"}
"""What a framework's LoRA runs adapt, where not every linear layer: NeMo's default is
attention_qkv, and its fine-tuning performance scripts set target_modules to linear_qkv."""

IMPLIED = (
    ("imply ~184.3 gib capacity", {"accelerator": "GB200-186GB"}),
    ("torchao mx benchmark; see torchao source", {"model": "llama3-8b"}),
    ('"400gbps" interconnect (appears to be per node', {"inter_link_gbps": 50.0}),
    ('"800gbps" interconnect (appears to be per node', {"inter_link_gbps": 100.0}),
)
"""Empty cells whose content follows from a row's notes: four devices of 184.3 GiB that run nvfp4
are a GB200 tray (a B200 has 180); torchao's page repeats the same rates and names the model; the
rate of a node of eight is an eighth for each."""

GUESSED = (
    (
        "h100 variant not stated (torchtitan h100s elsewhere are 96gb hbm2e 500w)",
        {"accelerator": "H100-SXM5-96GB-HBM2e-500W"},
    ),
)
"""Cells that the table's own notes call a guess, and what they say instead."""

GPT_LIKE = ("gpt", "bloom", "opt", "mpt", "mt-nlg", "megatron", "nemotron", "falcon")


@dataclass(frozen=True, slots=True, eq=False)
class Point:
    """A published training point.

    measured   step time [s], NaN where only memory is stated
    one_layer  the row times one layer, forward and backward, not a step
    memory     stated peak per device [bytes], NaN where not stated
    status     'Success', 'OOM' or ''
    """

    point_id: str
    source: str
    request: TrainingRequest
    measured: float
    one_layer: bool
    memory: float
    status: str


@dataclass(frozen=True, slots=True)
class Skipped:
    """A row that is not predicted, and why."""

    point_id: str
    source: str
    reason: str


def cell(row: Mapping[str, Any], key: str) -> Any:
    """A cell, None where it is empty; whole floats become integers."""
    value = row.get(key)
    if value is None or (isinstance(value, float) and math.isnan(value)) or value == "":
        return None
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def base_name(name: str) -> str:
    """Catalog name behind a table's: fine-tuning and proxy suffixes dropped."""
    text = re.sub(r"\s*\(.*\)$", "", name.lower())
    return re.sub(r"-(sft|lora|1layer|[0-9]+l-proxy|[0-9]+layers?)$", "", text)


def model_of(row: Mapping[str, Any]) -> Model:
    """The model of a row: stated dimensions over the catalog's entry of that name.

    Raises InputError where neither gives a dimension.
    """
    name = str(cell(row, "model") or "unnamed")
    try:
        known: dict[str, Any] = dict(catalog.find("models", base_name(name)))
    except InputError:
        known = {}
    stated = {key: cell(row, key) for key in (*DIMENSIONS, "kv_heads", *EXPERT_DIMENSIONS)}
    merged = {**known, **{key: value for key, value in stated.items() if value is not None}}
    if stated["heads"] is not None and stated["hidden"] is not None and not known:
        merged.pop("head_dim", None)
    if proxy := re.search(r"-([0-9]+)(?:l-proxy|layers?)$", name.lower()):
        merged["layers"] = int(proxy[1])
    for key in ("aliases", "source", "notes"):
        merged.pop(key, None)
    family = str(cell(row, "family") or merged.get("family") or "")
    if not known:
        merged |= _style(f"{family} {name}".lower(), merged, str(cell(row, "framework") or ""))
    _derive(merged, family, name, cell(row, "params_b"))
    missing = [key for key in DIMENSIONS if merged.get(key) in (None, "")]
    if missing:
        raise InputError(f"model {name!r}: {', '.join(missing)} not stated and not in the catalog")
    merged["name"] = name
    return catalog.model(merged)


def _derive(merged: dict[str, Any], family: str, name: str, params_b: float | None) -> None:
    """Dimensions that follow from others.

    Feed-forward width of a mixture: its experts'; without either, the last of the Llama code's
    8/3 hidden x 1.3, rounded up to 256. Vocabulary of GPT models: GPT-3's. Heads: those whose
    size, a divisor of `hidden`, is nearest to 128. Layers: from the parameters stated.
    """
    hidden = merged.get("hidden")
    if merged.get("num_experts"):
        merged.setdefault("ffn_hidden", merged.get("expert_ffn_hidden") or 0)
        if not merged["ffn_hidden"] and hidden:
            merged["ffn_hidden"] = -(-int(8 * int(hidden) / 3 * 1.3) // 256) * 256
        merged.setdefault("expert_ffn_hidden", merged["ffn_hidden"])
    if "vocab" not in merged and "gpt" in f"{family} {name}".lower():
        merged["vocab"] = GPT3_VOCAB
    if hidden and not merged.get("heads"):
        sizes = [d for d in range(32, 257) if int(hidden) % d == 0]
        if sizes:
            merged["heads"] = int(hidden) // min(sizes, key=lambda d: abs(d - 128))
    if params_b and not merged.get("layers") and not merged.get("num_experts"):
        needed = ("hidden", "ffn_hidden", "vocab", "heads")
        if all(merged.get(key) for key in needed):
            one = catalog.model({**merged, "name": name, "layers": 1})
            per_layer = one.matrix_parameters() + sum(one.mixer_vectors) + sum(one.ffn_vectors)
            rest = one.parameters - per_layer
            merged["layers"] = max(round((1e9 * float(params_b) - rest) / per_layer), 1)


def _style(text: str, merged: Mapping[str, Any], framework: str) -> dict[str, Any]:
    """What an architecture's family implies beyond its dimensions."""
    gated = merged.get("gated")
    gpt = any(word in text for word in GPT_LIKE) if gated is None else not gated
    if not gpt:
        return {"gated": True, "norm": "rmsnorm", "positions": "rope"}
    biased = "mpt" not in text and "falcon" not in text and "nemotron" not in text
    return {
        "gated": False,
        "norm": "layernorm",
        "activation": "gelu",
        "bias": biased,
        "positions": "alibi" if "bloom" in text or "mpt" in text else "learned",
        "tied_embeddings": "nemotron" not in text,
        "max_context": 2048,
    }


def _refusals(row: Mapping[str, Any], model_name: str) -> str | None:
    """Reasons to skip that the row itself shows."""
    notes = str(cell(row, "notes") or "").lower()
    if "offload" in notes and "mleng" in str(cell(row, "source")):
        return "optimizer offload to the host is not predicted yet"
    if cell(row, "accelerator") is None:
        return "the accelerator is not stated"
    return None


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
    notes = str(cell(row, "notes") or "").lower()
    implied = [cells for words, cells in IMPLIED if words in notes]
    for column, content in (item for cells in implied for item in cells.items()):
        row = row if cell(row, column) is not None else {**row, column: content}
    for words, cells in GUESSED:
        row = {**row, **cells} if words in notes else row
    name = str(cell(row, "model") or "")
    reason = _refusals(row, name)
    if reason:
        return Skipped(point_id, source, reason)
    try:
        request = _request(row, run, devices or {})
    except InputError as error:
        return Skipped(point_id, source, str(error))
    step = cell(row, "step_time_s")
    if step is None and cell(row, "metric") == "step_time_s":
        step = cell(row, "value")
    if step is None:
        step = _converted(row, request)
    memory = cell(row, "memory_reserved_gb")
    if memory is None:
        memory = cell(row, "memory_gb_per_gpu")
    return Point(
        point_id=point_id,
        source=source,
        request=request,
        measured=float(step) if step is not None else math.nan,
        one_layer="1layer" in name,
        memory=float(memory) * 2.0**30 if memory is not None else math.nan,
        status=str(cell(row, "status") or ""),
    )


def _converted(row: Mapping[str, Any], request: TrainingRequest) -> float | None:
    """Step time from a throughput, which is exact; None for other metrics."""
    metric, value = cell(row, "metric"), cell(row, "value")
    if value is None or metric not in ("tokens_per_s", "tokens_per_s_per_gpu"):
        return None
    plan = request.plan
    tokens = float(plan.global_batch * plan.seq_len)
    rate = float(value) * (float(plan.gpus) if metric.endswith("gpu") else 1.0)
    return tokens / rate


def _request(
    row: Mapping[str, Any], run: RunParameters, devices: Mapping[str, Cluster]
) -> TrainingRequest:
    model = model_of(row)
    fields: dict[str, Any] = {
        "accelerator": cell(row, "accelerator"),
        "accelerators_per_node": cell(row, "gpus_per_node"),
        "inter_link_gbps": cell(row, "inter_link_gbps"),
        "era": str(cell(row, "published") or "") or None,
    }
    for key in ("tp", "pp", "vpp", "cp", "ep", "micro_batch", "global_batch", "seq_len"):
        fields[key] = cell(row, key)
    fields["dp"], fields["gpus"] = cell(row, "dp"), cell(row, "num_gpus")
    ranks = math.prod(int(fields[k] or 1) for k in ("tp", "pp", "cp"))
    if fields["gpus"] and fields["tp"] and fields["pp"] and fields["gpus"] % ranks == 0:
        fields["dp"] = fields["gpus"] // ranks
    if fields["dp"] and fields["gpus"] and ranks * fields["dp"] != fields["gpus"]:
        fields["gpus"] = None  # the row contradicts itself; its layout decides
    precision = cell(row, "precision")
    fields["precision"] = precision if precision in PRECISIONS else None
    sequence_parallel = cell(row, "sequence_parallel")
    if sequence_parallel is not None:
        fields["sequence_parallel"] = bool(sequence_parallel)
    recompute = cell(row, "recompute")
    # "partial" is some of the layers, how many is not said: as few as fit.
    fields["recompute"] = FIT if recompute == "partial" else recompute
    fields["sharding"] = cell(row, "dp_sharding")
    framework = str(cell(row, "framework") or "neutral").lower()
    framework = spelled(FRAMEWORKS.get(framework, framework))
    fields["framework"] = framework if framework in frameworks() else "neutral"
    for key in PLAN_COLUMNS:
        fields[key] = cell(row, key)
    if not model.is_moe:
        fields["ep"] = None
    notes = str(cell(row, "notes") or "").lower()
    for words, meaning in NOTED:
        if words in notes:
            fields |= meaning
    if modules := re.search(r"recompute_modules=([\w,]+)", notes):
        named = [name for name in modules[1].split(",") if name in RECOMPUTE_MODULES]
        fields["recompute"] = "selective" if named else "none"
        fields["recompute_modules"] = ",".join(named) or None
    if "-lora" in str(cell(row, "model")).lower():
        fields["trained"] = LORA.get(fields["framework"], "lora")
    cluster = devices.get(str(fields["accelerator"]))
    spec = parse(TrainingPlanSpec, {k: v for k, v in fields.items() if v is not None}, "row")
    return complete_training(spec, run, strict=False, model=model, cluster=cluster)

"""Rows of published inference tables as model, cluster and serving plan.

Only what a row states is taken; the rest is filled by `predictor.serving.complete_serving`. A row
that cannot be predicted gives a reason instead.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from calibration.sources.told import noted
from calibration.tables import mlperf
from calibration.tables.agreement import overruled
from calibration.tables.cells import UNREAD, cell
from calibration.tables.columns import (
    attention_replicas,
    decoders,
    own_ranks,
    plan_columns,
    read_apart,
)
from calibration.tables.dimensions import described
from calibration.tables.runs import Skipped
from calibration.tables.scripts import script_settings
from calibration.tables.words import cached, measured, of_its_halves, stored, told_month
from predictor import catalog
from predictor.catalog import ServingPlanSpec, all_engines, known, parse, ported, recognised
from predictor.errors import InputError
from predictor.models import Model, Quantization
from predictor.serving import ServingRequest, complete_serving
from predictor.timing import RunParameters

ENGINES = {
    "nvidia-nim (tensorrt-llm)": "nim",
    "triton (tensorrt-llm/ft backend, unspecified)": "tensorrt-llm",
}
"""Engines of published tables under the names that facts are known of."""

MODELS = {
    "gptj-6b": "gpt-j-6b",
    "deepseek-v3.1": "deepseek-v3",
    "kimi-k2.5": "kimi-k2",
    "llama-4-scout-17b-16e": "llama4-scout-17b-16e",
    "llama-4-maverick-17b-128e-fp8": "llama4-maverick-17b-128e",
    "llama4-maverick": "llama4-maverick-17b-128e",
    "qwen3-coder-480b-a35b-fp8": "qwen3-coder-480b-a35b",
    "qwen3-coder-30b-a3b": "qwen3-30b-a3b",
    "minimax-m2.5": "minimax-m2",
}
"""Models of published tables that have the dimensions of a catalog entry of another name."""

ACCELERATORS = {
    "MI250": "MI250X-GCD-64GB",
    "RTX-PRO6000-BSE-96GB": "RTX-PRO-6000-BSE-96GB",
}
"""What a row means by a name: engines see each die of an MI250 as an accelerator."""

SOURCES_ACCELERATORS = {("mlc_llm_perf_bench", "A100"): "A100-PCIe-80GB"}
"""The same of a source's rows: this one's A100 without a form are 'PCIe, not NVLink'."""

DIES = {"MI250": 2}
"""Accelerators, as engines see them, of a card of that name: a layout that counts cards splits each
among its dies. Cards are what rows count: Mixtral's 94 GB run on one, the 138 GB of Llama 2 70B on
two, and a die has 64 GB."""

CORES = {
    "Trainium1-32GB": (2,), "Inferentia2-32GB": (2,), "Trainium2-96GB": (4, 8),
    "Trainium3-144GB": (4, 8), "TPUv7": (2,), "Ascend-910C-128GB": (2,), "MI250X-128GB": (2,),
}  # fmt: skip
"""Cores of an accelerator that engines may count as ranks, where it has several: of a Trainium2 all
eight, or four of two each (awsdocs-neuron neuron-hardware/trainium2.rst, logical NeuronCores of two
by default; from memory), TensorCores of a TPU7x, dies of others."""

NARROW_EXPERTS = ("kimi-k2",)
"""Models whose published 4-bit checkpoints are narrow in the experts alone."""

BLOCK_SCALED = ("deepseek", "qwen3", "minimax", "kimi", "glm")
"""Families whose fp8 checkpoints are scaled in blocks of 128."""

DECODE_ONLY = ("gpt-fast", "mlc-llm", "llama.cpp", "exllamav2")
"""Engines whose published tokens per second count decoding only."""

SCRIPTED = (
    *DECODE_ONLY, "huggingface", "optimum-habana", "transformers-neuronx", "megatron-lm",
    "deepspeed", "fastertransformer",
)  # fmt: skip
"""Engines of a batch that a script makes, of one sequence where it is not told how many (default of
optimum-habana's `--batch_size`, and of the others' examples, from memory); the rest take in what
comes."""

LAYER_SPLIT = ("llama.cpp", "exllamav2", "huggingface")
"""Engines without tensor parallelism, whatever a table calls their devices: whole layers on each
(llama.cpp's and exllama's split, `device_map` of transformers)."""

SOURCES_DECODE_ONLY = ("mlc_llm_perf_bench",)

ALONE = ("ttft_ms", "tpot_ms", "e2e_latency_s")
"""Metrics of one request: a row that says nothing of others is of one that had none beside it."""

UNSTATED_OUTPUT = {"gpt_fast": 200, "exllamav2_readme": 128, "trtllm_blogs": 128}
"""Tokens that the sources' scripts generate where a table does not say."""

DATASETS = {"ShareGPT": (247.0, 233.0)}
"""Mean prompt and answer [tokens] of conversations that bench clients sample, where a row names no
lengths: of ShareGPT as vLLM's and LMDeploy's clients filter it, total and generated tokens per
second over requests per second of `lmdeploy_a100_fp16`, in tokens of Llama 2."""

FIXED = {"variation": 0.0}
"""Lengths of requests that arrive at a rate, unless a row or its script says otherwise: all alike
(vLLM's and TensorRT-LLM's bench clients)."""

REQUESTS = 500
"""Requests of an open loop that does not say how many."""


@dataclass(frozen=True, slots=True, eq=False)
class InferencePoint:
    """A published point of inference.

    kind     'prefill' (first token or prompts alone), 'static', 'serving' (at a concurrency),
             'saturated' (no concurrency stated) or 'open' (arrivals at a rate)
    metric   'ttft_s', 'tpot_s', 'e2e_s', 'output_tokens_per_s', 'requests_per_s'; one of the
             whole engine, in SI
    rate     at which requests arrive at random [1/s], inf: all at once; None: a closed loop
    requests that arrive in all
    named    whether the row's engine is one that is known, or none is stated
    pure     the median time between tokens, which passes with prompts do not move
    flagged  the notes advise care
    tentative  the source calls its own figures experimental, or leaves out how they were made
    note     what counts of a row that says one thing twice; empty where nothing is to be said
    """

    point_id: str
    source: str
    request: ServingRequest
    kind: str
    metric: str
    value: float
    pure: bool
    flagged: bool
    tentative: bool = False
    rate: float | None = None
    requests: int = REQUESTS
    named: bool = True
    note: str = ""


def _precision(row: Mapping[str, Any]) -> str | None:
    stated = cell(row, "weights_precision")
    if stated is None:
        return None
    name = stored(str(stated))
    family = str(cell(row, "model")).lower()
    blocks = cell(row, "block_scaled") is not None or family.startswith(BLOCK_SCALED)
    if name == "fp16":
        name = of_its_halves(catalog.accelerator(_accelerator(row)))
    return "fp8_block" if name == "fp8" and blocks else name


def _released(model: Model, name: str) -> Model:
    """The model with its weights as its makers released them, where that is known and narrow."""
    try:
        found = catalog.read_model_name(name)
    except InputError:  # it may be several
        return model
    if found is None or found.quantization is None:
        return model
    return replace(model, quantization=Quantization(**found.quantization))


def inference_point(row: Mapping[Any, Any], run: RunParameters) -> InferencePoint | Skipped:
    """A row of an inference table as a point, or the reason why it is none.

    run   memory parameters, to fill in what is unstated
    """
    point_id, source = str(row.get("point_id", "")), str(row.get("source", ""))
    if (unread := cell(row, UNREAD)) is not None:
        return Skipped(point_id, source, str(unread))
    try:
        return _point(noted(row, "inference"), run, point_id, source)
    except InputError as error:
        return Skipped(point_id, source, str(error))


def _before(month: str) -> str:
    """The month before one ('YYYY-MM'); a year as it is."""
    year, _, number = month.partition("-")
    if not number:
        return month
    return f"{year}-{int(number) - 1:02}" if int(number) > 1 else f"{int(year) - 1}-12"


def _release(row: Mapping[Any, Any], framework: str) -> dict[str, str]:
    """The engine's release where the row states one and its releases are known; and a month: that
    of publication, or where nothing is said of the software that before it, since runs come before
    pages and a release of the same month can be as young as the page."""
    month = told_month(cell(row, "published")) or ""
    if cell(row, "framework_version") is None:
        month = _before(month)
    found = {"era": month} if month else {}
    told = cell(row, "framework_version") or str(cell(row, "framework") or "").partition(",")[0]
    stated = re.search(r"(?:^|[\s@=(-])[vV]?(\d+\.\d+[.\d]*)", str(told))
    if stated and framework in all_engines() and all_engines()[framework].releases:
        found["version"] = stated[1].rstrip(".")
    return found


def _lengths(row: Mapping[Any, Any], source: str) -> tuple[float, float]:
    """Prompt and output [tokens].

    Raises InputError where neither the row nor its source's scripts say.
    """
    given, made = cell(row, "input_len"), cell(row, "output_len")
    if made is None:
        made = UNSTATED_OUTPUT.get(source)
    if given is None and source == "exllamav2_readme":
        given = 1
    if given is None and mlperf.is_mlperf(source):
        given, usual = mlperf.lengths(str(cell(row, "benchmark") or cell(row, "model")))
        made = usual if made is None else made
    if given is None and made is None:
        given, made = DATASETS.get(str(cell(row, "dataset")), (None, None))
    if given is None or made is None:
        raise InputError("the lengths of prompts and outputs are not stated")
    return max(float(given), 1.0), float(made)


def _point(
    row: Mapping[Any, Any], run: RunParameters, point_id: str, source: str
) -> InferencePoint | Skipped:
    metric, value = str(cell(row, "metric")), cell(row, "value")
    if value is None or not float(value) > 0:
        return Skipped(point_id, source, "no value is stated")
    metric, value = measured(metric, float(value))
    if cell(row, "accelerator") is None:
        return Skipped(point_id, source, "the accelerator is not stated")
    stated = str(cell(row, "model") or "")
    model, assumed = described({**row, "model": MODELS.get(stated, stated)})
    given, made = _lengths(row, source)
    framework = _framework(row)
    batch, concurrency = _requests(row, metric, framework)
    if batch is None and concurrency is None and not _laid_out(row, source):
        return Skipped(point_id, source, "neither layout nor batch is stated")
    rate = cell(row, "request_rate")
    prefill = made < 1 or (metric == "ttft_ms" and concurrency is None and rate is None)
    sampled = cell(row, "input_len") is None and cell(row, "dataset") in DATASETS
    # A client for each sequence of a batch: LMDeploy's own tables, which state both.
    both = framework == "lmdeploy" and batch is not None and not sampled
    serving = concurrency is not None and not both
    fields = {
        "input_len": round(given),
        "output_len": max(round(made), 1),
        **_where(row, framework, model),
        **_load(row, batch, concurrency if serving else None),
    }
    model = _released(model, stated) if fields["precision"] is None else model
    script = script_settings(row, framework, source)
    doubtful = script.pop("doubtful", cell(row, "doubtful"))
    fields = {
        **_release(row, framework),
        **({} if rate is None else FIXED),
        **_with_script(fields, script),
        **plan_columns(row),
    }
    request = _completed(fields, run, model)
    request = replace(request, assumed=(*assumed, *request.assumed))
    closed = "serving" if serving else ("saturated" if batch is None else "static")
    kind = closed if rate is None else "open"
    own = float(value) / _several(row, metric, request)
    found = _metric(metric, own, request, framework, source, prefill)
    if isinstance(found, str):
        return Skipped(point_id, source, found)
    return InferencePoint(
        point_id=point_id,
        source=source,
        request=request,
        kind="prefill" if prefill else kind,
        metric=found[0],
        value=found[1],
        pure=cell(row, "statistic") == "median",
        flagged=doubtful is not None,
        tentative=cell(row, "tentative") is not None or mlperf.is_mlperf(source),
        named=framework != "neutral" or cell(row, "framework") in (None, "neutral"),
        rate=None if rate is None else float(rate),
        requests=int(cell(row, "requests") or REQUESTS),
        note="" if _counted_otherwise(row) else overruled(row, request.plan),
    )


def _several(row: Mapping[str, Any], metric: str, request: ServingRequest) -> int:
    """Workers that decode, or engines beside each other, of which one is predicted, in a figure of
    all of them."""
    if metric.endswith("per_gpu") or "per_s" not in metric:
        return 1
    return decoders(row) * mlperf.engines(row, float(request.plan.gpus))


def _with_script(stated: dict[str, Any], script: dict[str, Any]) -> dict[str, Any]:
    """What a row states, and what it leaves to its source's script. A script may say to what
    activations are narrowed for weights in mxfp4, which rows do not."""
    narrowed = script.pop("activations", None) == "mxfp8"
    if not all_engines()[str(stated.get("framework", "neutral"))].releases:
        script.pop("version", None)  # of an engine that the row does not name
    fields = {**script, **{name: value for name, value in stated.items() if value is not None}}
    if narrowed and fields.get("precision") == "w4a16_mxfp4":
        fields["precision"] = "w4a8_mxfp4_mxfp8"
    return fields


def _laid_out(row: Mapping[Any, Any], source: str) -> bool:
    """Whether a row, or the rules of its source, state its layout or how many devices it has."""
    stated = cell(row, "tp") is not None or cell(row, "num_gpus") is not None
    return stated or mlperf.is_mlperf(source)


def _where(row: Mapping[Any, Any], framework: str, model: Model) -> dict[str, Any]:
    """What a row says of machine, engine, layout and precision."""
    accelerator = _accelerator(row)
    source = str(row.get("source", ""))
    return {
        "accelerator": accelerator,
        "accelerators_per_node": _per_node(row),
        "inter_link_gbps": cell(row, "inter_link_gbps"),
        "framework": framework,
        **_layout(row, framework, model),
        **_numbers(row, framework, model, accelerator),
        **(mlperf.settings(row, model, str(accelerator)) if mlperf.is_mlperf(source) else {}),
    }


def _counted_otherwise(row: Mapping[Any, Any]) -> bool:
    """Whether a row counts others than ranks: cards of several dies or cores, several workers."""
    parts = str(row["accelerator"]) in DIES
    return parts or bool(cell(row, "prefill_workers")) or _accelerator(row) in CORES


def _per_node(row: Mapping[Any, Any]) -> Any:
    """Accelerators of a node, as engines see them."""
    cards = cell(row, "gpus_per_node")
    return None if cards is None else cards * DIES.get(str(row["accelerator"]), 1)


def _requests(row: Mapping[Any, Any], metric: str, framework: str) -> tuple[Any, Any]:
    """Batch and concurrency of a row; of one worker that decodes where prompts are read apart."""
    batch, concurrency = cell(row, "batch"), cell(row, "concurrency")
    unsaid = all(cell(row, name) is None for name in ("batch", "concurrency", "request_rate"))
    alone = metric in ALONE or str(row.get("source", "")) in SOURCES_DECODE_ONLY
    if unsaid and (alone or framework in SCRIPTED):
        batch = 1.0
    if cell(row, "prefill_workers"):
        return None, batch if concurrency is None else concurrency / decoders(row)
    if concurrency is None and cell(row, "batch_counts") == "clients":
        concurrency = batch
    if batch is not None and concurrency is None:
        batch = batch * int(cell(row, "batches") or 1)  # each got as many
    return batch, concurrency


def _completed(fields: dict[str, Any], run: RunParameters, model: Model) -> ServingRequest:
    """A complete request, with workers that read prompts for several that decode as a share."""
    shared = fields.get("prefill_workers")
    if shared is not None:
        fields = {**fields, "prefill_workers": math.ceil(shared)}
    spec = parse(ServingPlanSpec, fields, "row")
    request = complete_serving(spec, run, strict=False, model=model, ran=True)
    if shared is None:
        return request
    return replace(request, plan=replace(request.plan, prefill_workers=float(shared)))


def _framework(row: Mapping[Any, Any]) -> str:
    """Name of a row's engine among those that facts are known of, else 'neutral'."""
    stated = str(cell(row, "framework") or "neutral").lower()
    name = recognised(ENGINES.get(stated, stated), all_engines()) or "neutral"
    there = known("accelerators", str(_accelerator(row)))
    return ported(name, str(there.get("vendor", ""))) if there else name


def _accelerator(row: Mapping[Any, Any]) -> Any:
    """A row's accelerator under the catalog's name."""
    stated = row["accelerator"]
    own = SOURCES_ACCELERATORS.get((str(row.get("source")), str(stated)))
    return own or ACCELERATORS.get(str(stated), stated)


def _of_devices(row: Mapping[Any, Any], tp: int, pp: int, gpus: int) -> int:
    """Ranks of a stage as accelerators: the row's, or where these are cores of the accelerators
    that it counts, their accelerators."""
    cores = CORES.get(catalog.accelerator(_accelerator(row)).name, ())
    if cell(row, "num_gpus") is not None and any(tp * pp == gpus * each for each in cores):
        return max(gpus // pp, 1)
    return tp


def _layout(row: Mapping[Any, Any], framework: str, model: Model) -> dict[str, Any]:
    """Ranks of each kind that a row states, or its engine implies."""
    dies = DIES.get(str(row["accelerator"]), 1)
    gpus = int(cell(row, "num_gpus") or 1) * dies
    own = read_apart(row, model.is_moe) or attention_replicas(row, gpus)
    if own:
        return {**own, "ep": own["ep"] if model.is_moe else None}
    tp, pp, dp = (cell(row, name) or None for name in ("tp", "pp", "dp"))
    tp = None if tp is None else _of_devices(row, int(tp), int(pp or 1), gpus) * dies
    if model.is_moe and tp and dp and tp * int(dp) * int(pp or 1) > gpus:
        tp = own_ranks(tp, int(dp), gpus // int(pp or 1))
    if framework in LAYER_SPLIT and gpus > 1:
        tp, pp = 1, gpus  # layers are dealt out to the devices, which take turns
    if tp is None and cell(row, "ep") is not None:
        # Experts are divided among ranks that split the attention, but for stated replicas of it.
        tp = gpus // int(dp or 1)
    if tp is not None and gpus % (int(tp) * int(pp or 1)) == 0:
        dp = gpus // (int(tp) * int(pp or 1))
    if gpus > 1 and tp is None and not mlperf.is_mlperf(str(row.get("source", ""))):
        return {"gpus": gpus, "pp": pp, "dp": dp}  # engines on all of them
    ep = cell(row, "ep") if model.is_moe else None
    return {"tp": tp, "pp": pp, "dp": 1 if dp is None else dp, "ep": ep}


def _numbers(
    row: Mapping[Any, Any], framework: str, model: Model, accelerator: str
) -> dict[str, Any]:
    """Data types of weights, activations and cache."""
    found: dict[str, Any] = {
        "precision": _precision(row),
        "kv_precision": cached(str(cell(row, "kv_precision"))),
    }
    units = catalog.accelerator(accelerator).peak
    if (found["precision"], framework) == ("w4a16_mxfp4", "tensorrt-llm") and "fp4" in units:
        found["precision"] = "w4a8_mxfp4_mxfp8"  # what it runs where there is a unit for it
    if model.name in NARROW_EXPERTS and found["precision"] == "int4_wo":
        found["narrowed"] = "experts"
    return found


def _load(row: Mapping[Any, Any], batch: Any, concurrency: Any) -> dict[str, Any]:
    """Requests at a time: those of clients, of a batch, or as many as there is room for."""
    found: dict[str, Any] = {}
    if concurrency is not None:
        found["concurrency"] = max(round(float(concurrency)), 1)
        if (sent := cell(row, "requests")) is not None:
            found["rounds"] = max(float(sent) / found["concurrency"], 1.0)
        if batch is not None and cell(row, "batch_counts") == "most":
            found["max_batch"] = max(round(float(batch)), 1)
    elif batch is not None:
        found["batch"] = max(round(float(batch)), 1)
    else:
        found["saturated"] = True
    return found


def _metric(
    metric: str,
    value: float,
    request: ServingRequest,
    framework: str,
    source: str,
    prefill: bool,
) -> tuple[str, float] | str:
    """Name and value in SI of what a row states, or why it is not predicted."""
    plan = request.plan
    if metric in ("ttft_ms", "tpot_ms"):
        return metric.replace("_ms", "_s"), value / 1e3
    if metric == "e2e_latency_s":
        return "e2e_s", value
    if metric == "output_tokens_per_s_per_gpu":
        return "output_tokens_per_s", value * float(plan.gpus)
    if metric == "total_tokens_per_s_per_gpu":
        metric, value = "total_tokens_per_s", value * float(plan.gpus)
    if metric == "total_tokens_per_s":
        if prefill:
            return "ttft_s", float(plan.batch * plan.input_len) / value
        made = float(plan.output_len) / float(plan.input_len + plan.output_len)
        return "output_tokens_per_s", value * made
    if metric == "output_tokens_per_s":
        if framework in DECODE_ONLY or source in SOURCES_DECODE_ONLY:
            return "tpot_s", float(plan.batch) / value
        return metric, value
    if metric == "requests_per_s" and math.isfinite(value):
        return metric, value
    return f"metric {metric!r} is not predicted"

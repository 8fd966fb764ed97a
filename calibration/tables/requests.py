"""Rows of published inference tables as model, cluster and serving plan.

Only what a row states is taken; the rest is filled by `predictor.complete_serving`. A row that
cannot be predicted gives a reason instead.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from calibration.tables.runs import Skipped, cell, model_of
from predictor import catalog
from predictor.catalog import ServingPlanSpec, parse, spelled
from predictor.errors import InputError
from predictor.serving import ServingRequest, complete_serving, engines
from predictor.timing import RunParameters

ENGINES = {
    "nvidia-nim (tensorrt-llm)": "nim",
    "lmdeploy-turbomind": "lmdeploy",
    "vllm (rocm/vllm-dev)": "vllm",
    "huggingface-transformers": "huggingface",
    "exllama": "exllamav2",
    "triton (tensorrt-llm/ft backend, unspecified)": "tensorrt-llm",
}
"""Engines of published tables under the names of `engines.yaml`."""

MODELS = {
    "gptj-6b": "gpt-j-6b",
    "deepseek-v3.1": "deepseek-v3",
    "kimi-k2.5": "kimi-k2",
    "llama-4-scout-17b-16e": "llama4-scout-17b-16e",
    "llama-4-maverick-17b-128e-fp8": "llama4-maverick-17b-128e",
    "llama4-maverick": "llama4-maverick-17b-128e",
    "qwen3-coder-480b-a35b-fp8": "qwen3-coder-480b-a35b",
    "qwen3-coder-30b-a3b": "qwen3-30b-a3b",
    "llama-33b": "llama1-33b",
    "minimax-m2.5": "minimax-m2",
    "qwen1.5-7b": "llama2-7b",
    "aquila-7b": "llama2-7b",
}
"""Models of published tables that have the dimensions of a catalog entry of another name."""

ACCELERATORS = {
    "MI250": "MI250X-GCD-64GB",
    "RTX-PRO6000-BSE-96GB": "RTX-PRO-6000-BSE-96GB",
    "A100": "A100-PCIe-80GB",
}
"""What a row means by a name: engines see each die of an MI250 as an accelerator; the A100 rows
without a form are 'PCIe, not NVLink'."""

WEIGHTS = {
    "fp16": "fp16",
    "bf16": "bf16",
    "fp8": "fp8",
    "int8": "int8_wo",
    "nvfp4": "nvfp4",
    "mxfp4": "w4a16_mxfp4",
    "int4 (Q4_K_M)": "q4_k",
}
"""Stated precision of the weights as data types; every other int4, AWQ, GPTQ, q4 and exl2 is
weight-only with 4 bits; so is mxfp4, whose weights are widened as they are read."""

NARROW_EXPERTS = ("kimi-k2",)
"""Models whose published 4-bit checkpoints are narrow in the experts alone."""

RELEASES: dict[str, tuple[tuple[str, str], ...]] = {
    "vllm": (
        ("0.6", "2024-09"),
        ("0.7", "2025-02"),
        ("0.8", "2025-04"),
        ("0.9", "2025-06"),
        ("0.10", "2025-08"),
        ("0.11", "2025-10"),
        ("0.12", "2025-12"),
        ("0.13", "2025-12"),
        ("0.14", "2026-01"),
    ),
    "sglang": (("0.3", "2024-09"), ("0.4", "2024-12"), ("0.5", "2025-09")),
    "tensorrt-llm": (
        ("0.5", "2023-10"),
        ("0.8", "2024-02"),
        ("0.10", "2024-06"),
        ("0.11", "2024-07"),
        ("0.12", "2024-08"),
        ("0.13", "2024-10"),
        ("0.15", "2024-12"),
        ("0.17", "2025-02"),
        ("0.20", "2025-06"),
        ("1.0", "2025-09"),
    ),
}
"""First month of engines' releases (their pages on GitHub): a row is as old as its engine."""

UNSTATED_VERSION = {"ml_energy_v3": "0.11"}
"""Engine that a source's report names where its table does not (ML.ENERGY Benchmark v3: vLLM
0.11)."""

BLOCK_SCALED = ("deepseek", "qwen3", "minimax", "kimi", "glm")
"""Families whose fp8 checkpoints are scaled in blocks of 128."""

DECODE_ONLY = ("gpt-fast", "mlc-llm", "llama.cpp", "exllamav2")
"""Engines whose published tokens per second count decoding only."""

LAYER_SPLIT = ("llama.cpp", "exllamav2", "huggingface")
"""Engines without tensor parallelism, whatever a table calls their devices: whole layers on each
(llama.cpp's and exllama's split, `device_map` of transformers)."""

SOURCES_DECODE_ONLY = ("mlc_llm_perf_bench",)

UNSTATED_OUTPUT = {"gpt_fast": 200, "exllamav2_readme": 128, "trtllm_blogs": 128}
"""Tokens that the sources' scripts generate where a table does not say."""

TASK_INPUT = {"gpqa": 250, "lm-arena-chat": 150, "sourcegraph-fim": 500}
"""Mean prompt of the ML.ENERGY tasks [tokens], which the table leaves out: GPQA questions with
their four answers, first turns of chats, code around a gap. Decoding depends on it little."""


@dataclass(frozen=True, slots=True, eq=False)
class InferencePoint:
    """A published point of inference.

    kind     'prefill' (first token or prompts alone), 'static', 'serving' (at a concurrency) or
             'saturated' (no concurrency stated)
    metric   'ttft_s', 'tpot_s', 'e2e_s', 'output_tokens_per_s', 'requests_per_s'; one of the
             whole engine, in SI
    pure     the median time between tokens, which passes with prompts do not move
    flagged  the notes advise care
    tentative  the source calls its own figures experimental
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


def _precision(row: Mapping[str, Any], notes: str) -> str | None:
    stated = cell(row, "weights_precision")
    if stated is None:
        return None
    packed = re.match(r"exl2-([\d.]+)bpw", str(stated))
    if packed:
        return f"exl2_{float(packed[1]):g}"
    name = WEIGHTS.get(str(stated), "int4_wo")
    family = str(cell(row, "model")).lower()
    blocks = "block-scaled" in notes or family.startswith(BLOCK_SCALED)
    return "fp8_block" if name == "fp8" and blocks else name


def inference_point(row: Mapping[Any, Any], run: RunParameters) -> InferencePoint | Skipped:
    """A row of an inference table as a point, or the reason why it is none.

    run   memory parameters, to fill in what is unstated
    """
    point_id, source = str(row.get("point_id", "")), str(row.get("source", ""))
    notes = str(cell(row, "notes") or "")
    try:
        return _point(row, run, point_id, source, notes)
    except InputError as error:
        return Skipped(point_id, source, str(error))


def _era(row: Mapping[Any, Any], framework: str, source: str) -> str | None:
    """Month of the engine's release where the row states one that is known, else of publication."""
    stated = str(cell(row, "framework_version") or UNSTATED_VERSION.get(source, ""))
    numbers = re.match(r"v?(\d+)\.(\d+)", stated)
    if numbers:
        release = (int(numbers[1]), int(numbers[2]))
        known = RELEASES.get(framework, ())
        months = [m for name, m in known if tuple(map(int, name.split("."))) <= release]
        if months:
            return months[-1]
    return re.sub(r"/.*", "", str(cell(row, "published") or "")) or None


def _lengths(row: Mapping[Any, Any], source: str, notes: str) -> tuple[float, float]:
    """Prompt and output [tokens].

    Raises InputError where neither the row nor its source's scripts say.
    """
    given, made = cell(row, "input_len"), cell(row, "output_len")
    if given is None and (task := re.search(r"task ([\w-]+)", notes)):
        given = TASK_INPUT.get(task[1])
    if made is None:
        made = UNSTATED_OUTPUT.get(source)
    if given is None and source == "exllamav2_readme":
        given = 1
    if given is None or made is None:
        raise InputError("the lengths of prompts and outputs are not stated")
    return max(float(given), 1.0), float(made)


def _point(
    row: Mapping[Any, Any], run: RunParameters, point_id: str, source: str, notes: str
) -> InferencePoint | Skipped:
    metric, value = str(cell(row, "metric")), cell(row, "value")
    if value is None or not float(value) > 0:
        return Skipped(point_id, source, "no value is stated")
    if cell(row, "accelerator") is None:
        return Skipped(point_id, source, "the accelerator is not stated")
    stated = str(cell(row, "model") or "")
    model = model_of({**row, "model": MODELS.get(stated, stated)})
    given, made = _lengths(row, source, notes)
    framework = str(cell(row, "framework") or "neutral").lower()
    framework = spelled(ENGINES.get(framework, framework))
    framework = framework if framework in engines() else "neutral"
    if framework == "vllm" and str(row["accelerator"]).startswith("MI"):
        framework = "vllm-rocm"
    batch, concurrency = cell(row, "batch"), cell(row, "concurrency")
    if concurrency is None and "serving at fixed concurrency" in notes:
        concurrency = batch
    if batch is None and concurrency is None and cell(row, "tp") is None:
        return Skipped(point_id, source, "neither layout nor batch is stated")
    prefill = made < 1 or (metric == "ttft_ms" and concurrency is None)
    gpus = int(cell(row, "num_gpus") or 1)
    tp, pp = cell(row, "tp"), cell(row, "pp")
    if framework in LAYER_SPLIT and gpus > 1:
        tp, pp = 1, gpus  # layers are dealt out to the devices, which take turns
    if tp is None and cell(row, "ep") is not None:
        tp = gpus  # experts divided among ranks that split the attention, unless dp is stated
    serving = concurrency is not None and framework != "lmdeploy"
    fields: dict[str, Any] = {
        "accelerator": ACCELERATORS.get(str(row["accelerator"]), row["accelerator"]),
        "accelerators_per_node": cell(row, "gpus_per_node"),
        "inter_link_gbps": cell(row, "inter_link_gbps"),
        "era": _era(row, framework, source),
        "framework": framework,
        "precision": _precision(row, notes),
        "kv_precision": cell(row, "kv_precision"),
        "tp": tp,
        "pp": pp,
        "dp": cell(row, "dp"),
        "ep": cell(row, "ep") if model.is_moe else None,
    }
    if tp is not None and gpus % (int(tp) * int(pp or 1)) == 0:
        fields["dp"] = gpus // (int(tp) * int(pp or 1))
    elif fields["dp"] is None:
        fields["dp"] = 1
    units = catalog.accelerator(fields["accelerator"]).peak
    if (fields["precision"], framework) == ("w4a16_mxfp4", "tensorrt-llm") and "fp4" in units:
        fields["precision"] = "w4a8_mxfp4_mxfp8"  # what it runs where there is a unit for it
    if fields["precision"] == "fp8" and re.search(r"/nvidia_\S*-FP8", notes):
        fields["kv_precision"] = "fp8"  # ModelOpt's checkpoints declare it
    if model.name in NARROW_EXPERTS and fields["precision"] == "int4_wo":
        fields["narrowed"] = "experts"
    if "fixed-length prompts" in notes:
        fields["synchrony"] = 1.0  # all clients start at once, and answers are of one length
    fields["input_len"] = round(given)
    fields["output_len"] = max(round(made), 1)
    if serving:
        fields["concurrency"] = max(round(float(concurrency)), 1)
        if batch is not None and "batch=max_num_seqs" in notes:
            fields["max_batch"] = max(round(float(batch)), 1)
    elif batch is not None:
        fields["batch"] = max(round(float(batch)), 1)
    else:
        fields["saturated"] = True
    spec = parse(ServingPlanSpec, {k: v for k, v in fields.items() if v is not None}, "row")
    request = complete_serving(spec, run, strict=False, model=model)
    kind = "serving" if serving else ("saturated" if batch is None else "static")
    found = _metric(metric, float(value), request, framework, source, prefill)
    if isinstance(found, str):
        return Skipped(point_id, source, found)
    return InferencePoint(
        point_id,
        source,
        request,
        "prefill" if prefill else kind,
        found[0],
        found[1],
        "median ITL" in notes,
        "FLAG" in notes,
        "experimental" in notes,
    )


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
    if metric == "total_tokens_per_s" and prefill:
        return "ttft_s", float(plan.batch * plan.input_len) / value
    if metric == "output_tokens_per_s":
        if framework in DECODE_ONLY or source in SOURCES_DECODE_ONLY:
            return "tpot_s", float(plan.batch) / value
        return metric, value
    if metric == "requests_per_s" and math.isfinite(value):
        return metric, value
    return f"metric {metric!r} is not predicted"

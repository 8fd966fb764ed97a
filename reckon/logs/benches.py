"""Reports of benchmarks of serving: what each client calls lengths, load and latencies.

Sources of the forms (read November 2026): vllm-project/vllm `vllm/benchmarks/serve.py` and
sgl-project/sglang `bench_serving.py` (result files), NVIDIA genai-perf and aiperf profile exports,
ray-project/llmperf `token_benchmark_ray.py` (summary file), NVIDIA/TensorRT-LLM
`tensorrt_llm/bench/dataclasses/reporting.py` (`--report_json`), SemiAnalysisAI/InferenceX
`utils/process_result.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any

from predictor.records import dataclass

METRICS = ("ttft_ms", "tpot_ms", "e2e_latency_s", "output_tokens_per_s", "requests_per_s")
"""Metrics of inference tables that reports hold."""

Report = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Bench:
    """A report that was read.

    form     whose it is
    stated   columns of an inference table that it says
    values   metric -> value, those of `METRICS` that it says
    median   metrics of which it says the median alone
    notes    for the table
    """

    form: str
    stated: Mapping[str, Any]
    values: Mapping[str, float]
    median: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default_factory=tuple)


def number(value: Any) -> float | None:
    """A number; None for anything else. 'inf' is one."""
    if isinstance(value, bool) or value is None:
        return None
    try:
        found = float(value)
    except (TypeError, ValueError):
        return None
    return None if math.isnan(found) else found


def _values(report: Report, names: Mapping[str, tuple[tuple[str, float], ...]]) -> dict[str, float]:
    """Metrics by the first of the names that a report has, times a factor."""
    found: dict[str, float] = {}
    for metric, keys in names.items():
        for key, scale in keys:
            value = number(report.get(key))
            if value is not None and value > 0 and math.isfinite(value):
                found[metric] = value * scale
                break
    return found


def _medians(
    report: Report, values: Mapping[str, float], means: Mapping[str, tuple[str, ...]]
) -> tuple[str, ...]:
    """Metrics whose mean a report lacks, under every name that it may have."""
    return tuple(
        metric
        for metric, keys in means.items()
        if metric in values and all(number(report.get(key)) is None for key in keys)
    )


def _shared(stated: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in stated.items() if value not in (None, "")}


def _month(date: Any) -> str | None:
    """YYYY-MM of a date such as 20250601-101112 or 2025-06-01."""
    digits = str(date or "").replace("-", "")[:6]
    return f"{digits[:4]}-{digits[4:]}" if len(digits) == 6 and digits.isdigit() else None


RANKS = {
    "tp": ("tp", "tensor_parallel_size", "tensor_parallel", "tp_size"),
    "pp": ("pp", "pipeline_parallel_size", "pp_size"),
    "ep": ("ep", "expert_parallel_size", "ep_size"),
    "dp": ("dp", "data_parallel_size", "dp_size"),
    "num_gpus": ("num_gpus", "gpus", "n_gpus"),
    "accelerator": ("accelerator", "gpu", "gpu_type", "hw", "hardware"),
    "weights_precision": ("precision", "quantization"),
}
"""Columns, and keys of the metadata that users add to a report (`--metadata KEY=VALUE`)."""


def _metadata(report: Report) -> dict[str, Any]:
    return {
        column: report[key]
        for column, keys in RANKS.items()
        for key in keys
        if key in report and not isinstance(report[key], dict | list)
    }


def _load(
    concurrency: Any, rate: Any, requests: Any, stay: float = math.nan
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Columns of a load: a closed loop where clients are bounded, else arrivals at a rate.

    stay   how long a request is in flight [s]; NaN where that is not told

    Of both, the bound holds where arrivals would keep more requests in flight than it lets be
    (Little 1961: their mean number is the rate times the stay).
    """
    most, per_second, count = number(concurrency), number(rate), number(requests)
    most, count = (one if one and math.isfinite(one) else None for one in (most, count))
    notes: tuple[str, ...] = (f"{int(count)} prompts",) if count else ()
    if most is not None and (per_second is None or not math.isfinite(per_second)):
        return {"concurrency": int(most), "batch": int(most)}, notes
    if per_second is not None:
        if most is not None and per_second * stay > most:
            notes += (
                f"{per_second:g} requests/s were asked for, which {int(most)} at once held back",
            )
            return {"concurrency": int(most), "batch": int(most)}, notes
        if most is not None:
            notes += (f"no more than {int(most)} at once, which is not followed",)
        return {"request_rate": per_second}, notes
    return {}, notes


def _stay(values: Mapping[str, float], output: float | None) -> float:
    """How long a request is in flight [s], by latencies in the units of `METRICS`: from end to end,
    else its first token and those behind it; NaN where neither is told.

    output   tokens that a request makes
    """
    first, each = (values.get(name, math.nan) / 1e3 for name in ("ttft_ms", "tpot_ms"))
    parts = first + each * ((output or math.nan) - 1.0)
    return values.get("e2e_latency_s", parts)


VLLM_NAMES: dict[str, tuple[tuple[str, float], ...]] = {
    "ttft_ms": (("mean_ttft_ms", 1.0), ("median_ttft_ms", 1.0)),
    "tpot_ms": (("mean_tpot_ms", 1.0), ("mean_itl_ms", 1.0), ("median_tpot_ms", 1.0),
                ("median_itl_ms", 1.0)),
    "e2e_latency_s": (("mean_e2el_ms", 1e-3), ("mean_e2e_latency_ms", 1e-3),
                      ("median_e2el_ms", 1e-3), ("median_e2e_latency_ms", 1e-3)),
    "output_tokens_per_s": (("output_throughput", 1.0),),
    "requests_per_s": (("request_throughput", 1.0),),
}  # fmt: skip


def _client(report: Report, form: str, framework: str) -> Bench:
    """vLLM's and SGLang's clients, which have one origin."""
    done = number(report.get("completed")) or number(report.get("num_prompts"))
    given, made = (number(report.get(f"total_{side}_tokens")) for side in ("input", "output"))
    values = _values(report, VLLM_NAMES)
    output = made / done if made and done else number(report.get("random_output_len"))
    load, notes = _load(report.get("max_concurrency"), report.get("request_rate"), done,
                        _stay(values, output))  # fmt: skip
    stated = {
        "model": report.get("model_id") or report.get("model"),
        "framework": framework,
        "input_len": given / done if given and done else number(report.get("random_input_len")),
        "output_len": output,
        "published": _month(report.get("date")),
        **load,
        **_metadata(report),
    }
    if number(report.get("completed")) == 0:
        return Bench(form, {}, {})
    if failed := number(report.get("failed")):
        notes += (f"{int(failed)} requests failed, which are in no figure",)
    means = {"ttft_ms": ("mean_ttft_ms",), "tpot_ms": ("mean_tpot_ms", "mean_itl_ms")}
    return Bench(form, _shared(stated), values, _medians(report, values, means), notes)


ENGINES = {"vllm": "vllm", "openai": "vllm", "openai-chat": "vllm", "sglang": "sglang",
           "sglang-oai": "sglang", "sglang-native": "sglang", "trt": "tensorrt-llm",
           "tensorrt-llm": "tensorrt-llm", "lmdeploy": "lmdeploy", "tgi": "tgi",
           "huggingface": "huggingface"}  # fmt: skip
"""Engines behind the names of a client's backends; 'openai' says only the protocol."""


def _vllm(report: Report) -> Bench:
    return _client(report, "vllm-bench", ENGINES.get(str(report.get("backend")), "vllm"))


def _sglang(report: Report) -> Bench:
    return _client(report, "sglang-bench", ENGINES.get(str(report.get("backend")), "sglang"))


def _genai(report: Report) -> Bench:
    """genai-perf and aiperf: a metric is a mapping with its unit, of aiperf's first releases among
    its records."""
    first = isinstance(report.get("records"), Mapping)
    report = {**report["records"], **report} if first else report
    scale = {"ns": 1e-6, "us": 1e-3, "ms": 1.0, "s": 1e3, "sec": 1e3, "seconds": 1e3}

    def told(name: str) -> float | None:
        entry = report.get(name)
        if not isinstance(entry, Mapping):
            return None
        value, unit = number(entry.get("avg")), str(entry.get("unit", "")).lower()
        return None if value is None else value * scale.get(unit, 1.0)

    config = report.get("input_config")
    config = config if isinstance(config, Mapping) else {}
    flat = {**_leaves(config)}
    names = {"ttft_ms": "time_to_first_token", "tpot_ms": "inter_token_latency",
             "e2e_latency_s": "request_latency", "output_tokens_per_s": "output_token_throughput",
             "requests_per_s": "request_throughput"}  # fmt: skip
    values = {metric: value for metric, name in names.items() if (value := told(name))}
    if "e2e_latency_s" in values:
        values["e2e_latency_s"] *= 1e-3
    stay = _stay(values, told("output_sequence_length"))
    load, notes = _load(
        flat.get("concurrency"), flat.get("request_rate"), flat.get("request_count"), stay
    )
    model = flat.get("model") or flat.get("model_names") or flat.get("formatted_model_name")
    stated = {
        "model": model[0] if isinstance(model, list) and model else model,
        "input_len": told("input_sequence_length"),
        "output_len": told("output_sequence_length"),
        **load,
        **_metadata(flat),
    }
    own = first or "aiperf_version" in report or "schema_version" in report
    form = "aiperf" if own else "genai-perf"
    return Bench(form, _shared(stated), values, (), notes)


def _leaves(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """Leaves of nested mappings by their own names; the outermost counts."""
    found: dict[str, Any] = {}
    for key, value in mapping.items():
        if isinstance(value, Mapping):
            found = {**_leaves(value), **found}
        else:
            found[key] = value
    return found


def _llmperf(report: Report) -> Bench:
    values = _values(report, {
        "ttft_ms": (("results_ttft_s_mean", 1e3), ("results_ttft_s_quantiles_p50", 1e3)),
        "tpot_ms": (("results_inter_token_latency_s_mean", 1e3),
                    ("results_inter_token_latency_s_quantiles_p50", 1e3)),
        "e2e_latency_s": (("results_end_to_end_latency_s_mean", 1.0),
                          ("results_end_to_end_latency_s_quantiles_p50", 1.0)),
        "output_tokens_per_s": (("results_mean_output_throughput_token_per_s", 1.0),),
        "requests_per_s": (("results_num_completed_requests_per_min", 1.0 / 60.0),),
    })  # fmt: skip
    load, notes = _load(report.get("num_concurrent_requests"), None,
                        report.get("results_num_completed_requests"))  # fmt: skip
    lengths = {
        "input_len": ("results_number_input_tokens_mean", "mean_input_tokens"),
        "output_len": ("results_number_output_tokens_mean", "mean_output_tokens"),
    }
    stated = {
        "model": report.get("model"),
        **{c: next((v for k in keys if (v := number(report.get(k)))), None)
           for c, keys in lengths.items()},
        **load,
        **_metadata(report),
    }  # fmt: skip
    return Bench("llmperf", _shared(stated), values, (), notes)


def _trtllm(report: Report) -> Bench:
    def part(name: str) -> Mapping[str, Any]:
        found = report.get(name)
        return found if isinstance(found, Mapping) else {}

    engine, world, asked = part("engine"), part("world_info"), part("request_info")
    flat = {**part("performance"), **part("streaming_metrics")}
    values = _values(flat, {
        "ttft_ms": (("avg_ttft_ms", 1.0),),
        "tpot_ms": (("avg_tpot_ms", 1.0),),
        "e2e_latency_s": (("avg_request_latency_ms", 1e-3),),
        "output_tokens_per_s": (("system_output_throughput_tok_s", 1.0),),
        "requests_per_s": (("request_throughput_req_s", 1.0),),
    })  # fmt: skip
    mean = number(asked.get("avg_num_concurrent_requests"))
    load, notes = _load(mean and max(round(mean), 1), None, asked.get("num_requests"))
    precision = {"FP8": "fp8", "NVFP4": "nvfp4", "W4A16_AWQ": "int4"}
    stated = {
        "model": engine.get("model"),
        "framework": "tensorrt-llm",
        "framework_version": engine.get("version"),
        "weights_precision": precision.get(str(engine.get("quantization"))),
        "kv_precision": "fp8" if str(engine.get("kv_cache_dtype")) == "FP8" else None,
        "tp": number(world.get("tp_size")),
        "pp": number(world.get("pp_size")),
        "num_gpus": number(world.get("world_size")),
        "input_len": number(asked.get("avg_input_length")),
        "output_len": number(asked.get("avg_output_length")),
        **load,
    }
    return Bench("trtllm-bench", _shared(stated), values, (), notes)


HARDWARE = {"h100": "H100-SXM5-80GB", "h200": "H200-SXM-141GB", "b200": "B200-SXM-180GB",
            "gb200": "GB200-186GB", "b300": "B300-SXM-288GB", "gb300": "GB300-288GB",
            "mi300x": "MI300X-192GB", "mi325x": "MI325X-256GB",
            "mi355x": "MI355X-288GB"}  # fmt: skip
"""InferenceX's names of accelerators, what follows a dash (runner, engine) aside."""


def _inferencex(report: Report) -> Bench:
    """A row of InferenceX's results: latencies in seconds, throughputs per accelerator."""
    ranks = {key: number(report.get(key)) or 1.0 for key in ("tp", "ep")}
    spread = str(report.get("dp_attention", "")).lower() in ("true", "1")
    gpus = number(report.get("num_gpus")) or ranks["tp"]
    values = _values(report, {
        "ttft_ms": (("mean_ttft", 1e3), ("median_ttft", 1e3)),
        "tpot_ms": (("mean_tpot", 1e3), ("median_tpot", 1e3)),
        "e2e_latency_s": (("mean_e2el", 1.0), ("median_e2el", 1.0)),
        "output_tokens_per_s": (("output_tput_per_gpu", gpus),),
    })  # fmt: skip
    name = str(report.get("hw", "")).lower().split("-")[0]
    stated = {
        "accelerator": HARDWARE.get(name, report.get("hw")),
        "model": report.get("model"),
        "framework": str(report.get("framework", "")).split("-")[0] or None,
        "weights_precision": report.get("precision"),
        "tp": ranks["tp"],
        "ep": ranks["ep"] if ranks["ep"] > 1 else None,
        "dp_attention": 1 if spread else None,
        "num_gpus": gpus,
        "input_len": number(report.get("isl")),
        "output_len": number(report.get("osl")),
        "concurrency": number(report.get("conc")),
        "batch": number(report.get("conc")),
        "published": _month(report.get("date")),
    }
    return Bench("inferencex", _shared(stated), values)


BENCHES: tuple[tuple[str, Callable[[Report], bool], Callable[[Report], Bench]], ...] = (
    ("trtllm-bench", lambda r: "world_info" in r and "performance" in r, _trtllm),
    ("inferencex", lambda r: "tput_per_gpu" in r and "conc" in r, _inferencex),
    ("llmperf", lambda r: "results_ttft_s_mean" in r or "results_ttft_s_quantiles_p50" in r,
     _llmperf),
    ("genai-perf", lambda r: any(isinstance(one, Mapping) and isinstance(one.get(name), Mapping)
                                 for one in (r, r.get("records"))
                                 for name in ("time_to_first_token", "request_latency")), _genai),
    ("sglang-bench", lambda r: "output_throughput" in r
     and ("total_output_tokens_retokenized" in r or "mean_e2e_latency_ms" in r), _sglang),
    ("vllm-bench", lambda r: "output_throughput" in r and "total_input_tokens" in r, _vllm),
)  # fmt: skip
"""Forms of reports: what tells one, and its reader; the first that fits counts."""


def read_report(report: Report) -> Bench | None:
    """A report, whatever client wrote it; None where it is of none that is known."""
    for _, fits, read in BENCHES:
        if fits(report):
            found = read(report)
            return found if found.values else None
    return None

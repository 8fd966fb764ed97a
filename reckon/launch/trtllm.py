"""TensorRT-LLM: `trtllm-serve` with its YAML of further options, and its benchmark client.

The tensor-parallel size counts all ranks of a stage; attention data parallelism gives each of them
its own sequences, so that attention is either split over all of them or not at all. Replicas of a
dense model are servers of their own.
"""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from predictor.errors import InputError
from reckon.launch.dialect import Dialect, Source
from reckon.launch.engines import (
    CLIENT_IGNORED,
    CLIENTS,
    LOAD,
    MODEL,
    NAMED,
    RATE,
    RELEASED,
    Largest,
    client,
    clients,
    engine_flags,
    released,
    split_load,
    whole_world,
)
from reckon.launch.launcher import named_text, quoted, rendered
from reckon.launch.manifest import read_lines
from reckon.launch.replicas import SERVERS, as_servers, servers_mean, servers_of, servers_say
from reckon.launch.structured import flatten, nest, read_mapping_text
from reckon.launch.table import (
    Cases,
    Derived,
    Entry,
    Facts,
    Flags,
    Number,
    Where,
    truth,
    whole_number,
)

TP, ATTENTION = "--tp-size", "enable_attention_dp"
OPTIONS = "--extra-llm-api-options"
GRAPHS = "cuda_graph_config"
BALANCE = "attention_dp_config.enable_balance"
FRACTION = "kv_cache_config.free_gpu_memory_fraction"


def _ranks_says(facts: Facts) -> Flags:
    """Attention replicas of a mixture, one on each rank of a stage; replicas of a dense model are
    servers of their own."""
    if facts.get("model.num_experts") and facts["dp"] > 1:
        return {TP: whole_world(facts), ATTENTION: True}
    return {TP: facts["tp"], **servers_say(facts)}


def _ranks_means(flags: Flags, facts: Facts) -> Facts:
    ranks = whole_number(TP, flags.get(TP, 1))
    if truth(ATTENTION, flags.get(ATTENTION, False)):
        return {"tp": 1, "dp": ranks}
    return {"tp": ranks, "dp": servers_mean(flags, facts)}


TIMEOUT, LONGEST = "attention_dp_config.timeout_iters", 50
"""Passes for which prompts wait until each replica has one, and how many unless told
(tensorrt_llm/llmapi/llm_args.py, AttentionDpConfig; _torch/pyexecutor/py_executor.py,
_balance_adp_requests: counted whether any wait or not, so that one waits for half of them)."""

HELD = "batch_wait_timeout_iters"


def _balance_says(facts: Facts) -> Flags:
    """Prompts of all replicas together; where they are not, what the server does unless told."""
    every = facts.get("polling", 1)
    if ATTENTION in _ranks_says(facts) and facts["replica_passes"] == "apart":
        return {BALANCE: True, TIMEOUT: every}
    return {HELD: every} if every != 1 else {}


def _balance_means(flags: Flags, facts: Facts) -> Facts:
    every = whole_number(HELD, flags.get(HELD, 1))
    if not truth(ATTENTION, flags.get(ATTENTION, False)):
        return {"polling": max(every, 1)}
    if not truth(BALANCE, flags.get(BALANCE, False)):
        return {"replica_passes": "waiting", "polling": max(every, 1)}
    every = max(every, whole_number(TIMEOUT, flags.get(TIMEOUT, LONGEST)))
    return {"replica_passes": "apart", "polling": max(every, 1)}


QUANTIZED = {
    "fp8": "FP8", "fp8_block": "FP8_BLOCK_SCALES", "nvfp4": "NVFP4", "int4_wo": "W4A16_AWQ",
    "int8_wo": "W8A16", "sq": "W8A8_SQ_PER_CHANNEL", "w4a16_mxfp4": "W4A16_MXFP4",
    "w4a8_mxfp4_mxfp8": "W4A8_MXFP4_MXFP8",
}  # fmt: skip
"""Data types of the weights, and `quant_config.quant_algo`."""


def _cache_says(facts: Facts) -> Flags:
    own = facts["weights"] if facts["weights"] in ("bf16", "fp16", "fp32") else "bf16"
    if facts["kv"] == own:
        return {}
    if facts["kv"] == "int8":
        return {"quant_config.kv_cache_quant_algo": "INT8"}
    return {"kv_cache_config.dtype": facts["kv"]} if facts["kv"] in ("fp8", "nvfp4") else {}


def _cache_means(flags: Flags, facts: Facts) -> Facts:
    said = str(flags.get("quant_config.kv_cache_quant_algo", "")).lower()
    said = said or str(flags.get("kv_cache_config.dtype", "auto")).lower()
    if said in ("auto", "none"):
        return {}
    if said not in ("fp8", "int8", "nvfp4"):
        raise InputError(f"kv_cache_config.dtype {said}: known are auto, fp8, int8, nvfp4")
    return {"kv": said}


def _graphs_means(flags: Flags, facts: Facts) -> Facts:
    return {"execution": "eager" if GRAPHS in flags and flags[GRAPHS] is None else "graph"}


PIECES = "torch_compile_config.enable_piecewise_cuda_graph"
SIZES = "torch_compile_config.capture_num_tokens"


def _pieces_says(facts: Facts) -> Flags:
    limit = facts.get("prompt_graphs", 0)
    return {PIECES: True, SIZES: [limit]} if limit else {}


def _pieces_means(flags: Flags, facts: Facts) -> Facts:
    """Passes over prompts in captured pieces, up to the largest size or as much as a pass takes."""
    if not truth(PIECES, flags.get(PIECES, False)):
        return {"prompt_graphs": 0}
    sizes = flags.get(SIZES) or [facts.get("chunk", 8192)]
    return {"prompt_graphs": max(whole_number(SIZES, size) for size in sizes)}


REUSE = "kv_cache_config.enable_block_reuse"


def _reuse_says(facts: Facts) -> Flags:
    return {REUSE: facts["prefix_cache"] == "on"} if "prefix_cache" in facts else {}


def _reuse_means(flags: Flags, facts: Facts) -> Facts:
    """Whether prompts find each other's cache; as its release does where nothing is said of it."""
    if REUSE not in flags:
        return {}
    return {"prefix_cache": "on" if truth(REUSE, flags[REUSE]) else "off"}


EVERY, TEXTS, FRONTS = "stream_interval", "num_postprocess_workers", "num_serve_frontends"


def _front_means(flags: Flags, facts: Facts) -> Facts:
    """Several tokens to an event, other processes that make texts, or several servers send more
    tokens; the first leaves at once in any case (pyexecutor: py_decoding_iter == 1)."""
    most = max(whole_number(flag, flags.get(flag, none)) - none
               for flag, none in ((EVERY, 1), (TEXTS, 0), (FRONTS, 1)))  # fmt: skip
    return {"front_end": "beside"} if most > 0 else {}


ENTRIES: tuple[Entry, ...] = (
    Derived((EVERY, TEXTS, FRONTS), lambda facts: {}, _front_means),
    Derived((TP, ATTENTION, SERVERS), _ranks_says, _ranks_means, fields=("tp", "dp")),
    Derived(
        (ATTENTION, BALANCE, TIMEOUT, HELD),
        _balance_says,
        _balance_means,
        fields=("replica_passes", "polling"),
    ),
    Number("--pp-size", "pp", absent=1),
    Derived(
        ("--ep-size",),
        lambda facts: {"--ep-size": facts["ep"]} if facts.get("model.num_experts") else {},
        lambda flags, facts: {"ep": whole_number("--ep-size", flags.get("--ep-size", 1))},
        fields=("ep",),
    ),
    Cases(
        ("weights",),
        (
            (("bf16",), {"dtype": "bfloat16"}),
            (("fp16",), {"dtype": "float16"}),
            (("fp32",), {"dtype": "float32"}),
            *(((name,), {"quant_config.quant_algo": said}) for name, said in QUANTIZED.items()),
            ((None,), {"dtype": "auto"}),
            ((None,), {}),
        ),
    ),
    Derived(
        ("kv_cache_config.dtype", "quant_config.kv_cache_quant_algo"),
        _cache_says,
        _cache_means,
        fields=("kv",),
        needs=("weights",),
    ),
    Number("--max-batch-size", "max_batch"),
    Number("--max-num-tokens", "chunk"),
    Derived(
        (GRAPHS,),
        lambda facts: {GRAPHS: None} if facts["execution"] == "eager" else {},
        _graphs_means,
        fields=("execution",),
    ),
    Cases(
        ("allreduce",),
        (
            (("nccl",), {"allreduce_strategy": "NCCL"}),
            (("custom",), {"allreduce_strategy": ("AUTO", "ONESHOT", "TWOSHOT", "MIN_LATENCY")}),
            (("custom",), {}),
        ),
    ),
    Cases(
        ("admission",),
        (
            (("whole",), {"scheduler_config.capacity_scheduler_policy": "GUARANTEED_NO_EVICT"}),
            (("mean",), {"scheduler_config.capacity_scheduler_policy": "MAX_UTILIZATION"}),
            (("whole",), {}),
        ),
    ),
    Number(
        FRACTION,
        "memory_fraction",
        also=(
            "--kv-cache-free-gpu-memory-fraction",
            "--free-gpu-memory-fraction",
            "--kv-cache-free-gpu-mem-fraction",
        ),
    ),
    Where(
        Largest(
            "cuda_graph_config.max_batch_size",
            "graph_limit",
            also=("cuda_graph_config.batch_sizes",),
        ),
        lambda facts: facts.get("execution") != "eager",
        ("execution",),
    ),
    Derived((PIECES, SIZES), _pieces_says, _pieces_means, fields=("prompt_graphs",)),
    Cases(
        ("scheduling",),
        (
            (("serial",), {"disable_overlap_scheduler": True}),
            (("overlapped",), {"disable_overlap_scheduler": False}),
        ),
    ),
    Derived((REUSE,), _reuse_says, _reuse_means, fields=("prefix_cache",)),
    RELEASED,
    Derived(
        ("speculative_config.max_draft_len",),
        lambda facts: (
            {
                "speculative_config.decoding_type": "DraftTarget",
                "speculative_config.max_draft_len": facts["drafted"],
            }
            if facts.get("drafted")
            else {}
        ),
        lambda flags, facts: {
            "drafted": whole_number("", flags.get("speculative_config.max_draft_len", 0))
        },
        fields=("drafted",),
    ),
    LOAD,
)


def _render(flags: Flags, facts: Facts) -> str:
    engine, load = split_load(flags)
    further = {name: value for name, value in engine.items() if name[0] not in "-@"}
    name = quoted(flags[MODEL])
    text = ""
    head = f"trtllm-serve {name}"
    own = {n.replace("-", "_").replace("__", "--", 1): v for n, v in engine.items() if n[0] == "-"}
    if further:
        body = yaml.safe_dump(nest(further), sort_keys=False)
        text = f"cat > options.yaml <<'EOF'\n{body}EOF\n"
        own["--extra_llm_api_options"] = "options.yaml"
    return (
        text
        + as_servers(rendered(head, own), flags, 8000)
        + client(
            f"python -m tensorrt_llm.serve.scripts.benchmark_serving --model {name} "
            "--dataset-name random --random-ids",
            clients(load),
        )
    )


DRAFT = "speculative_config.max_draft_len"
SHORT = {
    **dict.fromkeys(("--tensor-parallel-size", "--tp"), TP),
    **dict.fromkeys(("--ep", "--moe-expert-parallel-size", "--expert-parallel-size"), "--ep-size"),
    **dict.fromkeys(("--pp", "--pipeline-parallel-size"), "--pp-size"),
    "--enable-attention-dp": ATTENTION,
    "--kv-cache-dtype": "kv_cache_config.dtype",
    "--concurrency": CLIENTS,
    "--num-postprocess-workers": TEXTS,
    "--num-serve-frontends": FRONTS,
}
"""What flags of trtllm-serve, trtllm-bench and Dynamo's worker are called besides
(tensorrt_llm/commands/serve.py @ 00209af149, bench/; components of ai-dynamo, from memory)."""

BENCHMARKS = r"trtllm-bench.*\s(throughput|latency)(\s|$)"
"""trtllm-bench sends all requests at once, or one after the other (bench/benchmark)."""


def _benchmark(flags: Flags, lines: str) -> Flags:
    """With what trtllm-bench asks for, and the model that it names first."""
    found = re.search(BENCHMARKS, lines, re.MULTILINE)
    if found is None:
        return flags
    name = flags.get("--m", flags.get(MODEL))
    load: Flags = {RATE: "inf"} if found[1] == "throughput" else {CLIENTS: 1}
    usual = {} if CLIENTS in flags else load
    own = {} if name is None else {MODEL: str(name).split()[0]}
    return {**usual, **{flag: v for flag, v in flags.items() if flag != "--m"}, **own}


OF_FILE = {
    "tensor_parallel_size": TP,
    "pipeline_parallel_size": "--pp-size",
    "moe_expert_parallel_size": "--ep-size",
    "max_batch_size": "--max-batch-size",
    "max_num_tokens": "--max-num-tokens",
    "speculative_config.num_nextn_predict_layers": DRAFT,
}
"""Options of the file that commands have flags for (tensorrt_llm/llmapi/llm_args.py), which count
instead of those flags."""


def _parse(text: str, folder: Path) -> Source:
    script = read_lines(text, folder, "trtllm")
    found, notes = engine_flags(
        script,
        lambda command: re.search(r"trtllm|tensorrt[_-]llm", command) is not None,
        r"(.*/)?trtllm-(serve|bench)|serve",
    )
    config = found.pop(OPTIONS, found.pop("--config", None))
    if isinstance(config, str):
        what = "the options"
        mapping = read_mapping_text(named_text(config, folder, script, what))
        if mapping is None:
            raise InputError(f"{config} is not a YAML mapping")
        found |= {OF_FILE.get(key, key): value for key, value in flatten(mapping).items()}
        if GRAPHS in mapping and mapping[GRAPHS] is None:
            found[GRAPHS] = None
    flags = {SHORT.get(f, f): v for f, v in found.items()}
    lines = "\n".join(" ".join(words) for words in script.commands)
    own = servers_of(script) | released(text, r"tensorrt-llm/release")
    return Source(_benchmark(flags, lines) | own, notes)


TRTLLM = Dialect(
    name="trtllm",
    framework="tensorrt-llm",
    serving=True,
    model=NAMED,
    entries=ENTRIES,
    ignored=(*CLIENT_IGNORED, "print_iter_log", "attention_dp_config.batching_wait_iters",
             "cuda_graph_config.", "speculative_config.", "enable_chunked_prefill"),
    render=_render,
    parse=_parse,
)  # fmt: skip

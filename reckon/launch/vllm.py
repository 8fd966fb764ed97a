"""vLLM: `vllm serve` with its benchmark client, or `vllm bench latency` for a static batch."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from predictor.errors import InputError
from reckon.launch.apart import APART, Roles
from reckon.launch.dialect import Dialect, Source
from reckon.launch.engines import (
    ALLREDUCE,
    BATCH,
    CLIENT_IGNORED,
    INPUT,
    LOAD,
    MODEL,
    NAMED,
    NARROWS,
    OF_CHECKPOINT,
    OUTPUT,
    RATE,
    RELEASED,
    SET,
    Largest,
    cache,
    client,
    engine_flags,
    released,
    split_load,
    static,
    weights,
    whole_world,
)
from reckon.launch.launcher import named_text, quoted, rendered
from reckon.launch.manifest import read_lines
from reckon.launch.shell import Script
from reckon.launch.structured import nest, read_mapping_text, scalar
from reckon.launch.table import Cases, Derived, Entry, Facts, Flags, Number, truth

ALL_TO_ALL = "--all2all-backend"
NVLINK = (
    "flashinfer_all2allv", "flashinfer_nvlink_one_sided", "flashinfer_nvlink_two_sided",
)  # fmt: skip
EXPERTS = "--enable-expert-parallel"
GUESSES = "--speculative-config"
COMPILATION, FUSED = "--compilation-config", "fuse_allreduce_rms"
NGRAMS = "--engram-config"


def _experts_says(facts: Facts) -> Flags:
    whole = whole_world(facts)
    on = facts.get("model.num_experts") and whole > 1 and facts["ep"] == whole
    return {EXPERTS: True} if on else {}


def _experts_means(flags: Flags, facts: Facts) -> Facts:
    on = truth(EXPERTS, flags.get(EXPERTS, False)) and bool(facts.get("model.num_experts", 1))
    return {"ep": whole_world(facts) if on else 1}


def _guesses_means(flags: Flags, facts: Facts) -> Facts:
    if GUESSES not in flags:
        return {"drafted": 0}
    said = re.search(r"['\"]num_speculative_tokens['\"]\s*:\s*['\"]?(\d+)", str(flags[GUESSES]))
    if said is None:
        raise InputError(f"{GUESSES} {flags[GUESSES]}: expected JSON with num_speculative_tokens")
    return {"drafted": int(said[1])}


def _ngrams_means(flags: Flags, facts: Facts) -> Facts:
    """Where tables of n-grams lie (vllm-project/recipes, DeepSeek-V4.1-Flash.yaml, 2026-09)."""
    if NGRAMS not in flags:
        return {}
    try:
        host = json.loads(str(flags[NGRAMS])).get("cpu_offload", False)
    except (ValueError, AttributeError):
        raise InputError(f"{NGRAMS} {flags[NGRAMS]}: expected JSON") from None
    return {"offload": "ngrams"} if host else {}


def _reductions_says(facts: Facts) -> Flags:
    """The pass that joins norms with all-reduces; nothing where no rank adds up with others."""
    if int(facts.get("tp", 1)) < 2 or "reductions" not in facts:
        return {}
    return {COMPILATION: json.dumps({"pass_config": {FUSED: facts["reductions"] == "joined"}})}


def _reductions_means(flags: Flags, facts: Facts) -> Facts:
    passes = _compilation(flags).get("pass_config", {})
    on = next(
        (passes[name] for name in (FUSED, "enable_fi_allreduce_fusion") if name in passes), None
    )
    return {} if on is None else {"reductions": "joined" if on else "apart"}


def _compilation(flags: Flags) -> dict[str, Any]:
    """What is said of compilation; of a level alone, as early versions took it, that."""
    said = flags.get(COMPILATION, "{}")
    if str(said).isdigit():
        return {"level": int(said)}
    try:
        found = json.loads(str(said))
        return {**found, "pass_config": {**found.get("pass_config", {})}}
    except (ValueError, TypeError, AttributeError):
        raise InputError(f"{COMPILATION} {said}: expected JSON") from None


def _graphs_means(flags: Flags, facts: Facts) -> Facts:
    """Captured graphs, where compilation says which: none, of passes up to a size, or of those that
    decode alone."""
    own = _compilation(flags)
    mode = str(own.get("cudagraph_mode", "")).upper()
    found: Facts = {}
    if mode in ("NONE", "0") or own.get("use_cudagraph") is False or own.get("level") == 0:
        found["execution"] = "eager"
    sizes = own.get("cudagraph_capture_sizes") or [own.get("max_cudagraph_capture_size")]
    if isinstance(sizes, list) and sizes and all(isinstance(size, int) for size in sizes):
        found["graph_limit"] = max(sizes)
    # Sizes are of all passes, those with prompts, too.
    if limit := found.get("graph_limit", facts.get("graph_limit")):
        found["prompt_graphs"] = limit
    return found | ({"prompt_graphs": 0} if mode in DECODE_ONLY else {})


DECODE_ONLY = ("FULL_DECODE_ONLY", "NONE", "0")
"""Modes in which passes with prompts are launched kernel by kernel (docs/design/cuda_graphs.md)."""


QUANTIZED: dict[str | None, tuple[str, ...]] = {
    "fp8": ("fp8", "fbgemm_fp8", "ptpc_fp8", "modelopt"),
    "int4_wo": (
        "awq_marlin",
        "awq",
        "gptq_marlin",
        "gptq",
        "gptq_marlin_24",
        "gptq_bitblas",
        "marlin",
        "squeezellm",
        "cpu_awq",
        *NARROWS,
    ),
    "int8_wo": ("experts_int8", "quark_int8", "tpu_int8", "int8_per_channel_weight_only"),
    "nvfp4": ("modelopt_fp4", "petit_nvfp4"),
    "mxfp4": ("mxfp4",),
    "mxfp8": ("modelopt_mxfp8", "mxfp8"),
    None: (
        *OF_CHECKPOINT[None],
        "aqlm",
        "bitblas",
        "deepspeedfp",
        "hqq",
        "inc",
        "ipex",
        "moe_wna16",
        "rtn",
    ),
}
"""Data types of the weights, and vLLM's methods (model_executor/layers/quantization/__init__.py of
0.4 to 0.11, from memory)."""

ENTRIES: tuple[Entry, ...] = (
    Number("--tensor-parallel-size", "tp", absent=1, also=("--tp", "--tensor-parallel")),
    Number("--pipeline-parallel-size", "pp", absent=1, also=("--pp",)),
    Number("--data-parallel-size", "dp", absent=1, also=("--dp",)),
    Derived((EXPERTS,), _experts_says, _experts_means, fields=("ep",), needs=("tp", "dp")),
    weights(QUANTIZED),
    cache(("fp8", "fp8_e4m3", "fp8_e5m2", "fp8_ds_mla"), "bfloat16"),
    Number("--max-num-seqs", "max_batch"),
    Number("--max-num-batched-tokens", "chunk"),
    Cases(
        ("execution",),
        ((("eager",), {"--enforce-eager": True}), (("graph",), {"--enforce-eager": False})),
    ),
    ALLREDUCE,
    Number("--gpu-memory-utilization", "memory_fraction"),
    Largest(
        "--cuda-graph-sizes",
        "graph_limit",
        also=("--max-cudagraph-capture-size", "--cudagraph-capture-sizes"),
    ),
    Cases(
        ("scheduling",),
        (
            (("overlapped",), {"--async-scheduling": True}),
            (("serial",), {"--no-async-scheduling": True}),
            ((None,), {}),
        ),
    ),
    Cases(
        ("batching",),
        (
            (("mixed",), {"--enable-chunked-prefill": True}),
            (("apart",), {"--no-enable-chunked-prefill": True}),
            ((None,), {}),
        ),
    ),
    Cases(
        ("exchange",),
        (
            (("gather",), {ALL_TO_ALL: ("allgather_reducescatter", "naive")}),
            (("deepep",), {ALL_TO_ALL: ("deepep_high_throughput", "deepep_low_latency")}),
            (("nvlink",), {ALL_TO_ALL: NVLINK}),
            (("alltoall",), {ALL_TO_ALL: ("pplx", "mori", "nixl_ep")}),
            ((None,), {}),
        ),
    ),
    Cases(
        ("prefix_cache",),
        (
            (("off",), {"--no-enable-prefix-caching": True}),
            (("on",), {"--enable-prefix-caching": True}),
            ((None,), {}),
        ),
    ),
    Derived(
        (NGRAMS,),
        lambda facts: (
            {NGRAMS: json.dumps({"cpu_offload": True})} if facts.get("offload") == "ngrams" else {}
        ),
        _ngrams_means,
        fields=("offload",),
    ),
    Derived((COMPILATION,), _reductions_says, _reductions_means, fields=("reductions",)),
    Derived((COMPILATION,), lambda facts: {}, _graphs_means),
    Derived(
        (GUESSES,),
        lambda facts: (
            {GUESSES: json.dumps({"model": "DRAFT", "num_speculative_tokens": facts["drafted"]})}
            if facts.get("drafted")
            else {}
        ),
        _guesses_means,
        fields=("drafted",),
    ),
    APART,
    RELEASED,
    LOAD,
)

ROLES = Roles(
    "--kv-transfer-config",
    '{"kv_connector": "NixlConnector", "kv_role": "kv_producer"}',
    '{"kv_connector": "NixlConnector", "kv_role": "kv_consumer"}',
    "kv_producer",
    ("--tensor-parallel-size", "--tp", "-tp"),
    "vllm-router --vllm-pd-disaggregation",
)
"""vLLM's connector of caches, and the router of its project."""


def _render(flags: Flags, facts: Facts) -> str:
    engine, load = split_load(flags)
    name = quoted(flags[MODEL])
    if BATCH in load:
        return rendered(f"vllm bench latency --model {name}", {**engine, **static(load)})
    engine["--max-model-len"] = load[INPUT] + load[OUTPUT]
    served = ROLES.lines(f"vllm serve {name}", engine, facts, ENTRIES, flags)
    return served + client(f"vllm bench serve --model {name} --dataset-name random", load)


SHORT = {"--tp": "--tensor-parallel-size", "--q": "--quantization", "--sc": GUESSES,
         "--cc": COMPILATION, "--O": COMPILATION, "--max-num-seq": "--max-num-seqs",
         "--ep": EXPERTS}  # fmt: skip
OLD_GUESSES = "--num-speculative-tokens"
"""Guesses, of which releases before 0.9 had a flag of their own."""

READABLE = {"k": 10**3, "m": 10**6, "K": 2**10, "M": 2**20}
"""What vLLM's numbers may end with (engine/arg_utils.py: `human_readable_int`)."""


def _plain(value: Any) -> Any:
    """A value without such an ending."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kKmM])", str(value).strip())
    return int(float(match[1]) * READABLE[match[2]]) if match else value


def _joined(flags: Flags) -> Flags:
    """With what is said by dotted names put into the JSON that they are parts of, as vLLM's own
    parser does (utils/argparse_utils.py: `--speculative-config.method mtp`, `-cc.mode 3`)."""
    found: Flags = {}
    parts: dict[str, dict[str, Any]] = {}
    for flag, value in flags.items():
        name, dot, key = flag.partition(".")
        name = SHORT.get(name, name)
        if dot and name in (GUESSES, COMPILATION, NGRAMS):
            parts.setdefault(name, {})[key.replace("-", "_")] = scalar(str(value))
        elif level := re.fullmatch(r"--O([0-3])", flag):
            parts.setdefault(COMPILATION, {})["level"] = int(level[1])
        elif flag == OLD_GUESSES:
            parts.setdefault(GUESSES, {})["num_speculative_tokens"] = value
        else:
            found[SHORT.get(flag, flag)] = _plain(value)
    for name, own in parts.items():
        whole = read_mapping_text(str(found.get(name, "{}"))) or {}
        found[name] = json.dumps({**whole, **nest(own)}, default=str)
    return found


PROGRAMS = r"vllm|benchmark_(latency|throughput)\.py"
IMAGES = r"vllm/vllm-openai|rocm/vllm|\bvllm(?===)"

BENCHMARKS: tuple[tuple[str, Flags], ...] = (
    (r"vllm bench throughput|benchmark_throughput\.py", {RATE: "inf"}),
    (r"vllm bench latency|benchmark_latency\.py",
     {BATCH: 8, "--input-len": 32, "--output-len": 128}),
)  # fmt: skip
"""What vLLM's offline benchmarks do unless told otherwise: all requests at once; a static batch
(vllm/benchmarks/latency.py @ 00cae0753b: `add_cli_args`)."""


def _of_file(flags: Flags, folder: Path, script: Script) -> Flags:
    """With the options of the file that `--config` names, which flags count instead of
    (vllm/utils/argparse_utils.py: `_pull_args_from_config`); one that is not there is left."""
    config = flags.get("--config")
    if not isinstance(config, str):
        return flags
    try:
        mapping = read_mapping_text(named_text(config, folder, script, "the options")) or {}
    except InputError:
        return flags
    own = {f"--{str(key).replace('_', '-')}": value for key, value in mapping.items()}
    own = {key: json.dumps(v) if isinstance(v, dict) else v for key, v in own.items()}
    return {**own, **{flag: value for flag, value in flags.items() if flag != "--config"}}


def _environment(text: str) -> tuple[Flags, list[str]]:
    """What variables say that flags say today, and what none does (vllm/envs.py of 0.8 to 0.11)."""
    named = re.search(rf"VLLM_ALL2ALL_BACKEND{SET}(\w+)", text)
    flags: Flags = {ALL_TO_ALL: named[1]} if named else {}
    if re.search(rf"VLLM_USE_V1{SET}0\b", text):
        return flags, ["VLLM_USE_V1=0: the engine of before 0.8, which --version 0.7.3 comes near"]
    return flags, []


def _parse(text: str, folder: Path) -> Source:
    script, apart = ROLES.taken(read_lines(text, folder, "vllm"))
    belongs = re.compile(PROGRAMS).search
    found, notes = engine_flags(script, lambda command: bool(belongs(command)), "serve")
    found = _of_file(found, folder, script)
    lines = "\n".join(" ".join(words) for words in script.commands)
    for pattern, usual in BENCHMARKS:
        if re.search(pattern, lines):
            found = {**usual, **found}
    usual, remarks = _environment(text)
    return Source({**usual, **_joined(found | apart), **released(text, IMAGES)}, notes + remarks)


VLLM = Dialect(
    name="vllm",
    framework="vllm",
    serving=True,
    model=NAMED,
    entries=ENTRIES,
    ignored=(
        *CLIENT_IGNORED,
        "--stream-interval",  # the first token leaves at once (v1/engine/output_processor.py)
        "--swap-space",
        ROLES.flag,
    ),
    render=_render,
    parse=_parse,
)

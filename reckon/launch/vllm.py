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
    OF_CHECKPOINT,
    OUTPUT,
    cache,
    client,
    engine_flags,
    split_load,
    static,
    weights,
    whole_world,
)
from reckon.launch.launcher import quoted, rendered
from reckon.launch.manifest import read_lines
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
    said = flags.get(COMPILATION)
    if said is None:
        return {}
    if str(said).isdigit():  # a level of compilation alone, as early versions took it
        return {}
    try:
        passes = json.loads(str(said)).get("pass_config", {})
        on = next(
            (passes[name] for name in (FUSED, "enable_fi_allreduce_fusion") if name in passes), None
        )
    except (ValueError, TypeError, AttributeError):
        raise InputError(f"{COMPILATION} {said}: expected JSON") from None
    return {} if on is None else {"reductions": "joined" if on else "apart"}


QUANTIZED: dict[str | None, tuple[str, ...]] = {
    "fp8": ("fp8", "fbgemm_fp8", "ptpc_fp8", "modelopt"),
    "int4_wo": ("awq_marlin", "awq", "gptq_marlin", "gptq", "gptq_marlin_24"),
    "int8_wo": ("experts_int8", "quark_int8", "tpu_int8", "int8_per_channel_weight_only"),
    "nvfp4": ("modelopt_fp4",),
    "mxfp4": ("mxfp4",),
    **OF_CHECKPOINT,
}
"""Data types of the weights, and vLLM's methods."""

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
    Number("--cuda-graph-sizes", "graph_limit", also=("--max-cudagraph-capture-size",)),
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
         "--cc": COMPILATION, "--max-num-seq": "--max-num-seqs"}  # fmt: skip


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
        else:
            found[SHORT.get(flag, flag)] = value
    for name, own in parts.items():
        whole = read_mapping_text(str(found.get(name, "{}"))) or {}
        found[name] = json.dumps({**whole, **nest(own)}, default=str)
    return found


def _parse(text: str, folder: Path) -> Source:
    script, apart = ROLES.taken(read_lines(text, folder, "vllm"))
    found, notes = engine_flags(script, lambda command: "vllm" in command, "serve")
    return Source(_joined(found | apart), notes)


VLLM = Dialect(
    name="vllm",
    framework="vllm",
    serving=True,
    model=NAMED,
    entries=ENTRIES,
    ignored=(
        *CLIENT_IGNORED,
        "--swap-space",
        ROLES.flag,
    ),
    render=_render,
    parse=_parse,
)

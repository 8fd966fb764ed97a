"""Text Generation Inference: `text-generation-launcher`, its variables, and a client that asks as
OpenAI's do (huggingface/text-generation-inference, docs/source/reference/launcher.md @ 032fc4c,
read 2026-11-27).

It shards a model over the accelerators of one server, experts too; replicas are servers of their
own.
"""

from __future__ import annotations

import re
from pathlib import Path

from reckon.launch.dialect import Dialect, Source
from reckon.launch.engines import (
    CLIENT_IGNORED,
    LOAD,
    MODEL,
    NAMED,
    OF_CHECKPOINT,
    RELEASED,
    cache,
    environment,
    openai_client,
    released,
    served_flags,
    split_load,
    weights,
    whole_world,
)
from reckon.launch.launcher import quoted, rendered
from reckon.launch.manifest import read_lines
from reckon.launch.replicas import SERVERS, as_servers, servers_mean, servers_of, servers_say
from reckon.launch.table import Cases, Derived, Entry, Facts, Flags, Number, truth, whole_number

SHARDS, SHARDED = "--num-shard", "--sharded"
MOST = ("--max-concurrent-requests", "--max-batch-size")
CHUNK, LONGEST = "--max-batch-prefill-tokens", ("--max-input-tokens", "--max-input-length")
GRAPHS = "--cuda-graphs"
QUANTIZE = "--quantize"
PREFIXES = "--prefix-caching"
PORT = 3000


def _ranks_says(facts: Facts) -> Flags:
    """Of a mixture one server, whose shards are all ranks: its attention has no replicas."""
    if facts.get("model.num_experts"):
        return {SHARDS: whole_world(facts)}
    return {SHARDS: facts["tp"], **servers_say(facts)}


def _ranks_means(flags: Flags, facts: Facts) -> Facts:
    """Shards, where they are stated: a launcher without them takes all that it sees."""
    found: Facts = {"pp": 1, "dp": servers_mean(flags, facts), "ep": 1}
    if not truth(SHARDED, flags.get(SHARDED, True)):
        return {**found, "tp": 1}
    if SHARDS in flags:
        return {**found, "tp": whole_number(SHARDS, flags[SHARDS])}
    return found


def _most_means(flags: Flags, facts: Facts) -> Facts:
    said = [whole_number(flag, flags[flag]) for flag in MOST if flag in flags]
    return {"max_batch": min(said)} if said else {}


ROOM = 50
"""Tokens beyond the longest prompt that are read at once where nothing is said of it."""


def _chunk_means(flags: Flags, facts: Facts) -> Facts:
    if CHUNK in flags:
        return {"chunk": whole_number(CHUNK, flags[CHUNK])}
    longest = next((flag for flag in LONGEST if flag in flags), None)
    return {"chunk": whole_number(longest, flags[longest]) + ROOM} if longest else {}


def _graphs_says(facts: Facts) -> Flags:
    """Powers of two up to the largest that is captured, and that; 0 captures none."""
    if facts["execution"] == "eager":
        return {GRAPHS: "0"}
    most = int(facts.get("graph_limit", 0))
    sizes = [2**power for power in range(most.bit_length()) if 2**power < most]
    return {GRAPHS: ",".join(map(str, [*sizes, most]))} if most else {}


def _graphs_means(flags: Flags, facts: Facts) -> Facts:
    if GRAPHS not in flags:
        return {}
    said = re.split(r"[\s,]+", str(flags[GRAPHS]).strip())
    sizes = [whole_number(GRAPHS, size) for size in said]
    if not any(sizes):
        return {"execution": "eager"}
    return {"execution": "graph", "graph_limit": max(sizes)}


QUANTIZED: dict[str | None, tuple[str, ...]] = {
    "fp8": ("fp8",),
    "int4_wo": ("awq", "gptq", "marlin", "bitsandbytes-nf4", "bitsandbytes-fp4"),
    "int8_wo": ("eetq", "bitsandbytes"),
    None: (*OF_CHECKPOINT[None], "exl2"),
}
"""Data types of the weights, and the launcher's methods."""

ENTRIES: tuple[Entry, ...] = (
    Derived((SHARDS, SHARDED, SERVERS), _ranks_says, _ranks_means, fields=("tp", "pp", "dp", "ep")),
    weights(QUANTIZED),
    cache(("fp8_e4m3fn", "fp8_e5m2"), ""),
    Derived(
        MOST,
        lambda facts: {MOST[0]: facts["max_batch"]} if "max_batch" in facts else {},
        _most_means,
        fields=("max_batch",),
    ),
    Derived(
        (CHUNK, *LONGEST),
        lambda facts: {CHUNK: facts["chunk"]} if "chunk" in facts else {},
        _chunk_means,
        fields=("chunk",),
    ),
    Derived((GRAPHS,), _graphs_says, _graphs_means, fields=("execution", "graph_limit")),
    Number("--cuda-memory-fraction", "memory_fraction"),
    Number("--max-waiting-tokens", "polling"),
    Cases(
        ("prefix_cache",),
        (
            (("off",), {PREFIXES: ("0", "false")}),
            (("on",), {PREFIXES: ("1", "true")}),
            ((None,), {}),
        ),
    ),
    Number("--speculate", "drafted", absent=0),
    RELEASED,
    LOAD,
)


def _render(flags: Flags, facts: Facts) -> str:
    engine, load = split_load(flags)
    name = quoted(flags[MODEL])
    own = {QUANTIZE if f == "--quantization" else f: v for f, v in engine.items()}
    own = {f: v for f, v in own.items() if f not in (SERVERS, PREFIXES)}
    prefixes = f"export PREFIX_CACHING={engine[PREFIXES]}\n" if PREFIXES in engine else ""
    line = rendered(f"text-generation-launcher --model-id {name}", {**own, "--port": PORT})
    return prefixes + as_servers(line, flags, PORT) + openai_client(name, PORT, load)


OF_LAUNCHER = (SHARDS, SHARDED, QUANTIZE, "--dtype", "--kv-cache-dtype", *MOST, CHUNK, *LONGEST,
               GRAPHS, "--cuda-memory-fraction", "--max-waiting-tokens", "--speculate",
               "--max-batch-total-tokens", "--max-total-tokens",
               "--waiting-served-ratio")  # fmt: skip
VARIABLES: dict[str, str] = {
    **{flag.removeprefix("--").replace("-", "_").upper(): flag for flag in OF_LAUNCHER},
    "MODEL_ID": MODEL,
    "HF_MODEL_ID": MODEL,
    "SM_NUM_GPUS": SHARDS,
    "HF_MODEL_QUANTIZE": QUANTIZE,
    "PREFIX_CACHING": PREFIXES,
    "USE_PREFIX_CACHING": PREFIXES,
}
"""Variables that say what flags say; those of SageMaker's image (sagemaker-entrypoint.sh), and the
one for caches of beginnings that has no flag (launcher/src/main.rs, `resolve_attention`)."""

IMAGES = r"huggingface/text-generation-inference"


def _parse(text: str, folder: Path) -> Source:
    script = read_lines(text, folder, "tgi")
    found, notes = served_flags(script, rf"text-generation-launcher|{IMAGES}", r"(?!)")
    found = {**environment(text, VARIABLES), **found}
    flags = {"--quantization" if f == QUANTIZE else f: v for f, v in found.items()}
    if flags and SHARDS not in flags and truth(SHARDED, flags.get(SHARDED, True)):
        notes.append(f"no {SHARDS}: the launcher takes all accelerators that it sees; --tp says it")
    return Source(flags | servers_of(script) | released(text, IMAGES), notes)


def _foreign(flags: Flags, text: str) -> str | None:
    """Lines of TGI's other backends, which have engines of their own."""
    for image in (r"text-generation-inference:[\w.-]*trtllm", r"--executor-worker\b"):
        if found := re.search(image, text):
            return f"TGI's backend of TensorRT-LLM, as {found[0]} shows (--framework tensorrt-llm)"
    return None


TGI = Dialect(
    name="tgi",
    framework="tgi",
    serving=True,
    model=NAMED,
    entries=ENTRIES,
    ignored=(*CLIENT_IGNORED, "--validation-workers", "--max-best-of", "--max-stop-sequences",
             "--max-top-n-tokens", "--max-total-tokens", "--hostname", "--shard-uds-path",
             "--master-addr", "--master-port", "--huggingface-hub-cache", "--json-output",
             "--weights-cache-override", "--otlp-", "--cors-", "--rope-", "--watermark-",
             "--ngrok", "--env", "--max-client-batch-size", "--usage-stats", "--payload-limit",
             "--disable-grammar-support", "--tokenizer-config-path", "--prometheus-port"),
    render=_render,
    parse=_parse,
    foreign=_foreign,
)  # fmt: skip
"""Flags that say nothing of speed are those of its page."""

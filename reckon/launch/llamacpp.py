"""llama.cpp: `llama-server`, its variables, and a client that asks as OpenAI's do
(ggml-org/llama.cpp, tools/server/README.md @ 00dc8057ab, read 2026-11-27).

A model is divided by layers, by rows of its products, or by heads (`--split-mode`) over the devices
that `--tensor-split` or `--device` counts; replicas are servers of their own. How weights are
stored stands in the name of the file.
"""

from __future__ import annotations

import re
from pathlib import Path

from predictor import catalog
from predictor.errors import InputError
from reckon.launch.dialect import Dialect, Source
from reckon.launch.engines import (
    CLIENT_IGNORED,
    INPUT,
    LOAD,
    MODEL,
    NAMED,
    OUTPUT,
    RELEASED,
    environment,
    openai_client,
    served_flags,
    split_load,
    whole_world,
)
from reckon.launch.launcher import quoted, rendered
from reckon.launch.manifest import read_lines
from reckon.launch.replicas import SERVERS, as_servers, servers_mean, servers_of, servers_say
from reckon.launch.table import Derived, Entry, Facts, Flags, same, whole_number

SPLIT, PARTS, DEVICES = "--split-mode", "--tensor-split", "--device"
SLOTS, CONTEXT, LAYERS = "--parallel", "--ctx-size", "--n-gpu-layers"
LOGICAL, PHYSICAL = "--logical-batch", "--ubatch-size"
KEYS, VALUES = "--cache-type-k", "--cache-type-v"
DRAFT, GUESSES, KIND = "--model-draft", "--spec-draft-n-max", "--spec-type"
PROMPTS, NO_PROMPTS = "--cache-prompt", "--no-cache-prompt"
STORED = "@stored"
PORT = 8080


def _ranks_says(facts: Facts) -> Flags:
    """Layers dealt out to devices, unless tensor parallelism alone divides the model."""
    mixture = bool(facts.get("model.num_experts"))
    copies = {} if mixture else servers_say(facts)
    count = int((whole_world(facts) if mixture else facts["tp"]) * facts["pp"])
    if count == 1:
        return {SPLIT: "none", **copies}
    by_layers = "row" if facts.get("pipelining") == "rows" else "layer"
    mode = by_layers if facts["pp"] > 1 else "tensor"
    if mode != "tensor":  # a device without a layer does nothing
        count = min(count, int(facts.get("model.layers") or count))
    return {SPLIT: mode, PARTS: ",".join(["1"] * count), **copies}


def _devices(flags: Flags) -> int | None:
    """Devices that the line counts; None where it takes all that it sees."""
    if PARTS in flags:
        return sum(float(part) > 0 for part in re.findall(r"[\d.]+", str(flags[PARTS])))
    return len(str(flags[DEVICES]).split(",")) if DEVICES in flags else None


def _ranks_means(flags: Flags, facts: Facts) -> Facts:
    mode = str(flags.get(SPLIT, "layer")).lower()
    if mode not in ("none", "layer", "row", "tensor"):
        raise InputError(f"{SPLIT} {mode}: known are none, layer, row, tensor")
    found: Facts = {"dp": servers_mean(flags, facts), "ep": 1}
    if mode == "row":
        found["pipelining"] = "rows"
    count = 1 if mode == "none" else _devices(flags)
    if mode == "tensor":
        return {**found, "pp": 1, **({} if count is None else {"tp": count})}
    return {**found, "tp": 1, **({} if count is None else {"pp": count})}


FILES = {"bf16": "BF16", "fp16": "F16", "fp32": "F32", "q3_k": "Q3_K_M", "q4_k": "Q4_K_M",
         "q5_k": "Q5_K_M", "q6_k": "Q6_K", "q8_0": "Q8_0", "int4_wo": "Q4_0",
         "mxfp4": "MXFP4"}  # fmt: skip
"""Data types of the weights, and how files are called for them."""


def _stored_means(flags: Flags, facts: Facts) -> Facts:
    said = str(flags.get(STORED, ""))
    if not said or "weights" in facts:
        return {}
    if said not in FILES:
        known = ", ".join(FILES.values())
        raise InputError(
            f"weights {said} are not predicted (known are {known}); give the nearest beside the "
            "line: --precision q3_k"
        )
    return {"weights": said}


CACHED = {"fp32": "f32", "fp16": "f16", "bf16": "bf16", "int8": "q8_0", "int4": "q4_0"}
"""Data types of the cache, and what they are called."""


def _cache_says(facts: Facts) -> Flags:
    said = CACHED.get(facts["kv"])
    return {KEYS: said, VALUES: said} if said else {}


def _cache_means(flags: Flags, facts: Facts) -> Facts:
    if KEYS not in flags and VALUES not in flags:
        return {}
    keys, values = (str(flags.get(flag, "f16")).lower() for flag in (KEYS, VALUES))
    if keys != values:
        raise InputError(f"{KEYS} {keys} {VALUES} {values}: keys and values of one data type only")
    found = next((kv for kv, own in CACHED.items() if own == keys), None)
    if found is None:
        raise InputError(f"{KEYS} {keys}: known are {', '.join(CACHED.values())}")
    return {"kv": found}


FEW = 4
"""Slots of a server that is told of none (tools/server/server.cpp: 'n_parallel is set to auto')."""


def _slots_means(flags: Flags, facts: Facts) -> Facts:
    said = whole_number(SLOTS, flags.get(SLOTS, -1))
    return {"max_batch": FEW if said < 0 else said}


AT_ONCE, IN_PARTS = 512, 2048
"""Tokens of a pass, and of the passes that follow each other through stages, by default."""


def _parts_says(facts: Facts) -> Flags:
    chunk = facts.get("chunk", AT_ONCE)
    logical = {LOGICAL: chunk * facts["window"]} if "window" in facts else {}
    return {PHYSICAL: chunk, **logical}


def _parts_means(flags: Flags, facts: Facts) -> Facts:
    if PHYSICAL not in flags and LOGICAL not in flags:
        return {}
    logical = whole_number("--batch-size", flags.get(LOGICAL, IN_PARTS))
    physical = whole_number(PHYSICAL, flags.get(PHYSICAL, AT_ONCE))
    if min(logical, physical) < 1:
        raise InputError(f"--batch-size {logical} {PHYSICAL} {physical}: at least 1 each")
    chunk = min(physical, logical)
    return {"chunk": chunk, "window": logical // chunk}


ALL = ("all", "auto")


def _layers_means(flags: Flags, facts: Facts) -> Facts:
    """Nothing where all layers are on the devices.

    Raises InputError where the host's processor computes some.
    """
    said, layers = str(flags.get(LAYERS, "all")).lower(), int(facts.get("model.layers", 0))
    if said not in ALL and 0 <= whole_number(LAYERS, said) < layers:
        raise InputError(
            f"{LAYERS} {said} of {layers} layers: what the host's processor computes is not "
            "predicted; state accelerators that hold the model"
        )
    return {}


def _guesses_says(facts: Facts) -> Flags:
    if not facts.get("drafted"):
        return {}
    return {DRAFT: "DRAFT.gguf", GUESSES: facts["drafted"]}


GUESSED = 3
"""Guesses unless told otherwise."""


def _guesses_means(flags: Flags, facts: Facts) -> Facts:
    guesses = DRAFT in flags or "draft" in str(flags.get(KIND, ""))
    return {"drafted": whole_number(GUESSES, flags.get(GUESSES, GUESSED)) if guesses else 0}


def _prompts_means(flags: Flags, facts: Facts) -> Facts:
    if not {PROMPTS, NO_PROMPTS} & flags.keys():
        return {}
    return {"prefix_cache": "off" if NO_PROMPTS in flags else "on"}


ENTRIES: tuple[Entry, ...] = (
    Derived(
        (SPLIT, PARTS, DEVICES, SERVERS),
        _ranks_says,
        _ranks_means,
        fields=("tp", "pp", "dp", "ep", "pipelining"),
    ),
    Derived(
        (STORED,),
        lambda facts: {STORED: facts["weights"]} if facts["weights"] in FILES else {},
        _stored_means,
        fields=("weights",),
    ),
    Derived((KEYS, VALUES), _cache_says, _cache_means, fields=("kv",)),
    Derived(
        (SLOTS,),
        lambda facts: {SLOTS: facts["max_batch"]} if "max_batch" in facts else {},
        _slots_means,
        fields=("max_batch",),
    ),
    Derived((PHYSICAL, LOGICAL), _parts_says, _parts_means, fields=("chunk", "window")),
    Derived((LAYERS,), lambda facts: {LAYERS: "all"}, _layers_means),
    Derived(
        ("--swa-full",),
        lambda facts: {},
        lambda flags, facts: {"windows": "unset"} if "--swa-full" in flags else {},
    ),
    Derived(
        (PROMPTS, NO_PROMPTS),
        lambda facts: {PROMPTS if facts.get("prefix_cache") == "on" else NO_PROMPTS: True},
        _prompts_means,
        fields=("prefix_cache",),
    ),
    Derived((DRAFT, GUESSES, KIND), _guesses_says, _guesses_means, fields=("drafted",)),
    RELEASED,
    LOAD,
)


def _render(flags: Flags, facts: Facts) -> str:
    engine, load = split_load(flags)
    name = str(flags[MODEL]).removesuffix("-BF16")
    kind = FILES.get(engine.pop(STORED, ""), "")
    file = f"{name.rsplit('/', 1)[-1]}{'-' if kind else ''}{kind}.gguf"
    own = {"--batch-size" if f == LOGICAL else f: v for f, v in engine.items() if f != SERVERS}
    own[CONTEXT] = (load[INPUT] + load[OUTPUT]) * engine.get(SLOTS, FEW)
    line = rendered(f"llama-server --model {quoted(file)}", {**own, "--port": PORT})
    return as_servers(line, flags, PORT) + openai_client(quoted(name), PORT, load)


SHORT = {
    "--sm": SPLIT, "--ts": PARTS, "--dev": DEVICES, "--np": SLOTS, "--c": CONTEXT,
    **dict.fromkeys(("--ngl", "--gpu-layers"), LAYERS),
    **dict.fromkeys(("--b", "--batch-size"), LOGICAL), "--ub": PHYSICAL,
    "--ctk": KEYS, "--ctv": VALUES, "--fa": "--flash-attn", "--t": "--threads", "--a": "--alias",
    "--n": "--n-predict", "--mg": "--main-gpu", "--cb": "--cont-batching", "--kvu": "--kv-unified",
    "--cram": "--cache-ram",
    **dict.fromkeys(("--md", "--spec-draft-model", "--hfd", "--hfrd", "--spec-draft-hf",
                     "--hf-repo-draft"), DRAFT),
    **dict.fromkeys(("--draft", "--draft-n", "--draft-max"), GUESSES),
}  # fmt: skip
"""Other names of its options, and of those of earlier releases."""

MODELS = ("--m", "--model-url", "--mu", "--hf-file", "--hff", "--hf-repo", "--hfr", "--hf", MODEL)
"""Options that name the model: the file counts before the repository that it is in, and both before
what the client calls it."""

VARIABLES = {
    f"LLAMA_ARG_{name}": flag
    for name, flag in (
        ("HF_REPO", MODEL), ("HF_FILE", MODEL), ("MODEL", MODEL), ("CTX_SIZE", CONTEXT),
        ("N_PARALLEL", SLOTS), ("BATCH", LOGICAL), ("UBATCH", PHYSICAL), ("SPLIT_MODE", SPLIT),
        ("TENSOR_SPLIT", PARTS), ("DEVICE", DEVICES), ("N_GPU_LAYERS", LAYERS),
        ("CACHE_TYPE_K", KEYS), ("CACHE_TYPE_V", VALUES),
    )
}  # fmt: skip
"""Variables that say what flags say; flags count before them."""

PIECE = re.compile(r"-\d{5}-of-\d{5}(?=\.gguf$)")
PLAIN = re.compile(r"[-_.:](BF16|F16|F32|MXFP4)(_MOE)?$", re.I)
OTHER = re.compile(r"[-_.:]((?:UD-)?I?Q\d\w*|TQ\d_\d)$", re.I)
"""Parts of a file that is cut; and how weights are said to be stored, other than by `gguf_name`."""


def _file(name: str) -> Flags:
    """The model, and how its weights are stored, of a file of llama.cpp or a repository of them."""
    owner, _, last = PIECE.sub("", name.strip()).rpartition("/")
    local = last.lower().endswith(".gguf")
    last, stored = catalog.gguf_name(re.sub(r"\.gguf$", "", last, flags=re.I))
    if not stored and (match := PLAIN.search(last) or OTHER.search(last)):
        last = last[: match.start()]
        stored = next((kind for kind, own in FILES.items() if same(own, match[1])), match[1])
    last = re.sub(r"[-_.]gguf$", "", last, flags=re.I)
    if local and "_" in last and catalog.read_model_name(last) is None:
        last = last.split("_", 1)[1]  # the owner stands before it: Qwen_Qwen3-8B
    return {MODEL: last if local or not owner else f"{owner}/{last}",
            **({STORED: stored} if stored else {})}  # fmt: skip


IMAGES = r"ggml-org/llama\.cpp|ggerganov/llama\.cpp"


def _parse(text: str, folder: Path) -> Source:
    script = read_lines(text, folder, "llama-cpp")
    found, notes = served_flags(script, rf"llama-server|{IMAGES}", r"(?!)")
    flags = environment(text, VARIABLES)
    flags |= {SHORT.get(f, f): value for f, value in found.items() if f not in MODELS}
    named = [found[flag] for flag in MODELS if flag in found] or [flags.get(MODEL)]
    if str(flags.get("--flash-attn", "on")).lower() in ("on", "auto", "true", "1"):
        flags.pop("--flash-attn", None)  # attention is fused unless it says otherwise
    if named[0] is not None:
        flags |= _file(str(named[0]))
    one = str(flags.get(SPLIT, "")).lower() == "none"
    if flags and not one and _devices(flags) is None:
        notes.append("the server takes all devices that it sees: --pp says how many")
    return Source(flags | servers_of(script), notes)


HOST = ("--cpu-moe", "--cmoe", "--n-cpu-moe", "--ncmoe", "--n-cpu-ffn", "--ncffn",
        "--no-kv-offload", "--nkvo", "--override-tensor", "--ot")  # fmt: skip
"""Options by which the host's processor computes a part."""


def _foreign(flags: Flags, text: str) -> str | None:
    """Models of which the host's processor computes a part."""
    shown = next((flag for flag in HOST if flag in flags), None)
    return (
        None if shown is None else f"a model that the host's processor computes, as {shown} shows"
    )


LLAMACPP = Dialect(
    name="llama-cpp",
    framework="llama.cpp",
    serving=True,
    model=NAMED,
    entries=ENTRIES,
    ignored=(*CLIENT_IGNORED, CONTEXT, "--threads", "--alias", "--jinja", "--temp", "--top-",
             "--min-p", "--predict", "--n-predict", "--mlock", "--mmap", "--no-mmap",
             "--load-mode", "--numa", "--prio", "--poll", "--metrics", "--slots", "--reasoning",
             "--keep", "--verbose", "--timeout", "--cont-batching", "--no-warmup",
             "--samplers", "--repeat", "--presence", "--frequency", "--main-gpu", "--perf",
             "--no-perf", "--ui", "--no-ui", "--webui", "--no-webui", "--fit", "--cache-ram",
             "--hft", "--offline", "--rope-", "--yarn-", "--props", "--no-mmproj",
             "--context-shift", "--no-context-shift", "--kv-unified"),
    render=_render,
    parse=_parse,
    foreign=_foreign,
)  # fmt: skip

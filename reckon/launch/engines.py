"""What the lines of serving engines share: how a model is named, its data types, and the client
that sends load."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

from predictor import catalog
from predictor.errors import InputError
from predictor.plans import CACHE_WORDS, KV_BYTES, meant
from predictor.records import dataclass
from reckon.launch.launcher import program, rendered
from reckon.launch.shell import Script, options
from reckon.launch.table import Cases, Derived, Entry, Facts, Flags, Number, number, whole_number

MODEL = "--model"
"""Flag under which the model is kept, however the line names it."""


def _model_says(facts: Facts) -> Flags:
    """The repository; where its checkpoint is narrow and the weights are to be otherwise, that of
    a copy in 16 bits, which the engine narrows."""
    name = facts["model.repository"] or facts["model.name"]
    own = catalog.read_model_name(name)
    if own is None or not own.stored or facts.get("weights", own.stored) == own.stored:
        return {MODEL: name}
    return {MODEL: f"{name}-BF16"}


def _model_means(flags: Flags, facts: Facts) -> Facts:
    if MODEL not in flags:
        return {}
    written = str(flags[MODEL])
    known = catalog.read_model_name(written) is not None
    return {"model.name" if known else "model.unknown": written}


NAMED: tuple[Entry, ...] = (Derived((MODEL,), _model_says, _model_means),)
"""The model, by its repository."""


def whole_world(facts: Facts) -> int:
    """Ranks of a pipeline stage."""
    return int(facts.get("tp", 1) * facts.get("dp", 1))


OF_CHECKPOINT: dict[str | None, tuple[str, ...]] = {
    None: ("compressed-tensors", "auto-round", "torchao", "gguf", "quark", "modelopt_mixed",
           "ascend"),
}  # fmt: skip
"""Methods that leave it to the checkpoint how its weights are stored."""

NARROWS = ("bitsandbytes",)
"""Methods that narrow a checkpoint of 16 bits to 4 as it is loaded (vLLM docs
features/quantization/bnb.md, inflight quantization; SGLang's is vLLM's)."""


MODELOPT = "modelopt"
"""A method whose checkpoints say themselves whether they are of fp8 or nvfp4 (vLLM,
quantization/modelopt.py: `override_quantization_method`)."""


@dataclass(frozen=True, slots=True)
class Stored(Cases):
    """The weights' data type; where the line names no method, or one that the checkpoint refines, a
    checkpoint that is narrow stays so whatever `--dtype` says, which is of what is left."""

    def read(self, flags: Flags, facts: Facts, whole: bool) -> Facts:
        """The weights, or nothing where the checkpoint decides."""
        found = Cases.read(self, flags, facts, whole)
        if facts.get("model.stored") and flags.get("--quantization", MODELOPT) == MODELOPT:
            return {}
        return found


def weights(quantized: Mapping[str | None, tuple[str, ...]]) -> Cases:
    """The weights' data type: of 16 bits and more by its name, else by an engine's method.

    quantized  data types, and the engine's methods
    """
    return Stored(
        ("weights",),
        (
            (("bf16",), {"--dtype": "bfloat16"}),
            (("fp16",), {"--dtype": ("float16", "half")}),
            (("fp32",), {"--dtype": ("float32", "float")}),
            *(((name,), {"--quantization": methods}) for name, methods in quantized.items()),
            *(
                ((name,), {"--quantization": methods, "--dtype": ("auto", "bfloat16", "float16")})
                for name, methods in quantized.items()
            ),
            ((None,), {"--dtype": "auto"}),
            ((None,), {}),
        ),
    )


ALLREDUCE = Cases(
    ("allreduce",),
    (
        (("nccl",), {"--disable-custom-all-reduce": True}),
        (("custom",), {"--disable-custom-all-reduce": False}),
    ),
)
"""Whose kernels reduce among the ranks of a stage."""

CACHE = "--kv-cache-dtype"


def cache(eight: tuple[str, ...], sixteen: str) -> Derived:
    """The cache's data type: 'auto' is that of the weights, bf16 where those are narrower.

    eight, sixteen  spellings of fp8, and of bf16; empty where the engine has none
    """

    def says(facts: Facts) -> Flags:
        own = facts["weights"] if facts["weights"] in ("bf16", "fp16", "fp32") else "bf16"
        if facts["kv"] == own:
            return {}
        said = {"fp8": eight[0], "bf16": sixteen}.get(facts["kv"])
        return {CACHE: said} if said else {}

    def means(flags: Flags, facts: Facts) -> Facts:
        said = str(flags.get(CACHE, "auto")).lower()
        if said == "auto":
            return {}
        if said in eight:
            return {"kv": "fp8"}
        if said in (sixteen, "bf16"):
            return {"kv": "bf16"}
        if other := meant(said, tuple(KV_BYTES), CACHE_WORDS):
            return {"kv": other}
        known = ", ".join(filter(None, ("auto", sixteen, *eight)))
        raise InputError(f"{CACHE} {said}: known are {known}")

    return Derived((CACHE,), says, means, fields=("kv",), needs=("weights",))


@dataclass(frozen=True, slots=True)
class Largest(Number):
    """A number, or several sizes of which the largest counts (`--cuda-graph-bs 1 2 4 8`)."""

    def read(self, flags: Flags, facts: Facts, whole: bool) -> Facts:
        """The field."""
        own = {flag: _largest(flag, flags[flag]) for flag in self.flags if flag in flags}
        return Number.read(self, own, facts, whole)


def _largest(flag: str, value: Any) -> Any:
    sizes = re.split(r"[\s,]+", str(value).strip("[] "))
    return value if value is True else max(number(flag, size) for size in sizes)


def _released_means(flags: Flags, facts: Facts) -> Facts:
    named = "@version" in flags and not {"era", "version"} & facts.keys()
    return {"version": flags["@version"]} if named else {}


RELEASED = Derived(("@version",), lambda facts: {}, _released_means)
"""The release that a line's image or package names, unless an era is given beside it."""


def released(text: str, images: str) -> Flags:
    """The release of an engine that the tag of its image, or its package's version, names.

    images   pattern of the images and packages
    """
    found = re.search(rf"(?:{images})[\w.-]*(?::|==)v?(?P<version>\d+\.\d+\.\d+)", text)
    return {"@version": found["version"]} if found else {}


CLIENTS, RATE = "--max-concurrency", "--request-rate"
BATCH = "--batch-size"
INPUT, OUTPUT = "--random-input-len", "--random-output-len"


def _load_says(facts: Facts) -> Flags:
    """A static batch; a number of clients; a rate of arrivals; or all requests at once."""
    lengths = {INPUT: facts["input_len"], OUTPUT: facts["output_len"]}
    if not facts.get("serving"):
        return {**lengths, BATCH: facts["batch"]}
    if "rate" in facts:
        return {**lengths, RATE: facts["rate"]}
    if "batch" in facts:
        return {**lengths, CLIENTS: facts["batch"]}
    return {**lengths, RATE: "inf"}


def _load_means(flags: Flags, facts: Facts) -> Facts:
    found: Facts = {}
    for flag, name in ((INPUT, "input_len"), (OUTPUT, "output_len")):
        short = flag.replace("random-", "")
        for spelling in (flag, short):
            if spelling in flags:
                found[name] = whole_number(spelling, flags[spelling])
    if BATCH in flags:
        return {**found, "batch": whole_number(BATCH, flags[BATCH])}
    if CLIENTS in flags:
        return {**found, "concurrency": whole_number(CLIENTS, flags[CLIENTS])}
    if RATE in flags and str(flags[RATE]) != "inf":
        return {**found, "rate": number(RATE, flags[RATE])}
    return {**found, "saturated": True} if INPUT in flags or RATE in flags else found


LOAD = Derived(
    (BATCH, CLIENTS, RATE, INPUT, OUTPUT, "--input-len", "--output-len"), _load_says, _load_means
)
"""What the client, or the benchmark of a static batch, asks for."""


def split_load(flags: Flags) -> tuple[Flags, Flags]:
    """Flags of the engine, and flags of the load."""
    load = {f: v for f, v in flags.items() if f in LOAD.flags}
    return {f: v for f, v in flags.items() if f not in load and f != MODEL}, load


def static(load: Flags) -> Flags:
    """Flags of a load as benchmarks of a static batch spell them."""
    return {BATCH: load[BATCH], "--input-len": load[INPUT], "--output-len": load[OUTPUT]}


def clients(load: Flags) -> Flags:
    """Flags of a load, a static batch being as many clients."""
    return {CLIENTS if flag == BATCH else flag: value for flag, value in load.items()}


def openai_client(name: str, port: int, load: Flags) -> str:
    """The command of vLLM's client, which knows every server that answers as OpenAI's does.

    name   of the model, as a shell takes it
    """
    head = f"vllm bench serve --backend openai --base-url http://localhost:{port} --model {name}"
    return client(f"{head} --dataset-name random", clients(load))


OPENAI = r"\bvllm bench serve\b.*--backend[ =]openai\b"
"""That command, in lines of other engines."""


def client(head: str, load: Flags, per_client: int = 10) -> str:
    """The command of a benchmark client: random requests of these lengths, ten for each client."""
    clients = load.get(CLIENTS)
    prompts = int(clients) * per_client if clients else 1000
    return rendered(head, {**load, "--num-prompts": prompts})


SET = r"[\"']?\s*(?:=|:|,?\s*value:)\s*[\"']?"
"""What stands between a variable of the environment and its value: in a shell, in compose files, in
lists of Kubernetes."""


def environment(text: str, names: Mapping[str, str]) -> Flags:
    """Flags that variables of the environment stand for, where the text gives them a value.

    names  variables, and flags with dashes
    """
    found: Flags = {}
    for name, flag in names.items():
        if said := re.search(rf"(?<![\w$]){name}{SET}([\w./,:-]+)", text):
            found[flag] = said[1]
    return found


REPOSITORY = r"[\w.-]+/[\w.-]+"
"""A model as an image's own command takes it first: `vllm/vllm-openai` starts `vllm serve` (vLLM,
docker/Dockerfile: ENTRYPOINT ["vllm", "serve"], since 0.11)."""


def engine_flags(
    script: Script, belongs: Callable[[str], bool], positional: str
) -> tuple[Flags, list[str]]:
    """Flags of all commands of an engine, the client's too, with dashes for underscores.

    belongs     whether a command, as text, is one
    positional  pattern of the word before the one that names the model
    """
    found: Flags = {}
    for words in script.commands:
        text = " ".join(words)
        if not (belongs(text) or words[0].startswith("-")):
            continue
        if words[0] in ("docker", "podman"):
            image = next((i for i, w in enumerate(words) if "/" in w and belongs(w)), len(words))
            words = words[image + 1 :]
            if words and re.fullmatch(REPOSITORY, words[0]):  # the image's own command takes it
                found[MODEL] = words[0]
        _, behind = program(words)
        for name, value in options(behind).items():
            long = name if name.startswith("--") else f"-{name}"
            found[long.replace("_", "-")] = value
        for before, word in pairwise(words):
            if re.fullmatch(positional, before) and not word.startswith("-"):
                found[MODEL] = word
    for name in ("--model-path", "--model-name-or-path", "--model-id", "--model-tag"):
        if name in found:
            found.setdefault(MODEL, found[name])
            del found[name]
    return found, list(script.notes)


def served_flags(script: Script, programs: str, positional: str) -> tuple[Flags, list[str]]:
    """Flags of an engine that is asked as OpenAI's server, and of the client beside it, whose own
    do not count where both have one of that name.

    programs    pattern of the engine's commands and images
    positional  pattern of the word before the one that names the model
    """
    loads, _ = engine_flags(script, lambda one: bool(re.search(OPENAI, one)), r"(?!)")
    found, notes = engine_flags(script, lambda one: bool(re.search(programs, one)), positional)
    loads.pop("--backend", None)
    return {**loads, **found}, notes


CLIENT_IGNORED = (
    "--backend", "--dataset", "--num-prompts", "--endpoint", "--host", "--port", "--base-url",
    "--ignore-eos", "--random-range-ratio", "--random-ids", "--seed", "--served-model-name",
    "--api-key", "--trust-remote-code", "--tokenizer", "--download-dir", "--load-format",
    "--log", "--disable-log", "--enable-log", "--percentile", "--save-result", "--result",
    "--metric", "--revision", "--chat-template", "--tool-call", "--enable-auto-tool",
    "--reasoning-parser", "--max-model-len", "--context-length", "--max-seq-len", "--uvicorn",
    "--num-iters", "--warmup", "--goodput", "--burstiness", "--disable-tqdm", "--profile",
    "--enable-metrics", "--watchdog", "--dist-init-addr", "--node-rank", "--nnodes",
    "--distributed-executor-backend", "--language-model-only", "--limit-mm", "--run-name",
)  # fmt: skip
"""Beginnings of flags that say nothing of speed or memory."""

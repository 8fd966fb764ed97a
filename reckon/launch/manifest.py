"""Serving commands in manifests and in pages: Kubernetes workloads, docker compose, values of the
vLLM production stack, KServe; blocks of code in Markdown. What a container runs is read as the
command that it is; nothing is run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from predictor import catalog
from predictor.errors import InputError
from reckon.launch.shell import Script, options, read_script

LOOKS = re.compile(
    r"^\s*-?\s*(apiVersion|kind|services|image|containers|servingEngineSpec|command|args):", re.M
)
"""Lines of a manifest."""

APPLIED = re.compile(r"kubectl .*<<-?\s*['\"]?(\w+)['\"]?[^\n]*\n(.*?)\n\s*\1\s*$", re.S | re.M)
"""A manifest that is given to kubectl behind a command."""

TEMPLATE = re.compile(r"\{\{[^}]*\}\}")

ENGINES: tuple[tuple[str, str], ...] = (
    (r"vllm", "vllm serve"),
    (r"sglang|lmsysorg", "python -m sglang.launch_server"),
    (r"tensorrt|trtllm|tritonserver", "trtllm-serve"),
    (r"text-generation-(inference|launcher)", "text-generation-launcher"),
    (r"lmdeploy", "lmdeploy serve api_server"),
    (r"llama-server|llama\.cpp", "llama-server"),
)
"""What images are called, and the command that they start with bare arguments."""

CONFIG = {
    "tensorParallelSize": "--tensor-parallel-size",
    "pipelineParallelSize": "--pipeline-parallel-size",
    "maxModelLen": "--max-model-len",
    "dtype": "--dtype",
    "maxNumSeqs": "--max-num-seqs",
    "gpuMemoryUtilization": "--gpu-memory-utilization",
    "enableChunkedPrefill": "--enable-chunked-prefill",
    "enablePrefixCaching": "--enable-prefix-caching",
}
"""Keys of `vllmConfig` (vllm-project/production-stack helm/values.yaml), and vLLM's flags."""

PARALLELISM = {"tensor": "--tensor-parallel-size", "pipeline": "--pipeline-parallel-size",
               "data": "--data-parallel-size"}  # fmt: skip
"""Keys of `parallelism` (KServe's LLMInferenceService), and vLLM's flags."""

DEEPEST = 24
"""Levels of a file that are looked through: those of Kubernetes have a dozen."""


BLOCK = re.compile(r"^([ \t]*)```[^\n]*\n(.*?)^[ \t]*```", re.S | re.M)
"""A block of code of a page, also of one that is a text within YAML (vllm-project/recipes)."""

STARTS = {
    "vllm": r"\bvllm serve\b|vllm\.entrypoints|docker run[^`]*\bvllm/vllm-openai",
    "sglang": r"sglang\.launch_server|\bsglang serve\b",
    "trtllm": r"\btrtllm-serve\b",
    "tgi": r"\btext-generation-launcher\b|docker run[^`]*\btext-generation-inference\b",
    "lmdeploy": r"\blmdeploy serve api_server\b",
    "llama-cpp": r"\bllama-server\b",
}
"""How commands start each engine."""


def read_lines(text: str, folder: Path | None = None, engine: str = "") -> Script:
    """The commands of a script, of one line, of the containers of a manifest, or of the first block
    of a page that starts an engine.

    engine  that is asked for, of `STARTS`; empty for none

    Raises InputError for a manifest that is a template, or that starts no engine.
    """
    if match := APPLIED.search(text):
        text = match[2]
    if engine and (blocks := _blocks(text, STARTS[engine])):
        script = read_lines(blocks[0], folder)
        if len(blocks) > 1:
            told = " ".join(blocks[0].replace("\\\n", " ").split())
            script.notes.append(f"{len(blocks)} launch lines in the page: the first, {told:.80}")
        return script
    if not LOOKS.search(text):
        try:
            return read_script(text, folder)
        except InputError:
            if not _documents(text):
                raise
    documents = _documents(text)
    if documents is None and (match := TEMPLATE.search(text)):
        documents = _documents(TEMPLATE.sub("OPEN", text))
        if documents is None:
            raise _open(match[0])
    if documents is None:
        return read_script(text, folder)
    script = Script()
    found = [words for one in documents for words in _containers(one, script, {}, 0)]
    if not found:
        raise InputError(
            "the manifest has no container that runs an engine with arguments ("
            + ", ".join(start for _, start in ENGINES)
            + ")"
        )
    for words in found:
        match = TEMPLATE.search(_model(words) or "")
        if match or _model(words) == "OPEN":
            raise _open(match[0] if match else "the model's name")
    models = list(dict.fromkeys(filter(None, map(_model, found))))
    if len(models) > 1:
        script.notes.append(
            f"{len(models)} models in the manifest: the first, {models[0]}, is read"
        )
        found = [words for words in found if _model(words) in (None, models[0])]
    script.commands = found
    script.notes += list(dict.fromkeys(_asked(documents)))
    return script


def _blocks(text: str, starts: str) -> list[str]:
    """Blocks of code that start an engine, at the left edge."""
    found = (re.sub(rf"^{indent}", "", block, flags=re.M) for indent, block in BLOCK.findall(text))
    return [block for block in found if re.search(starts, block)]


def _documents(text: str) -> list[Mapping[Any, Any]] | None:
    """The mappings of a YAML text; None where it is none."""
    try:
        return [one for one in yaml.safe_load_all(text) if isinstance(one, Mapping)]
    except (yaml.YAMLError, ValueError, TypeError, RecursionError):
        return None


def _open(part: str) -> InputError:
    return InputError(
        f"the manifest is a template, {part:.60} is not filled in; give what 'helm template' "
        "prints of it"
    )


def _model(words: list[str]) -> str | None:
    """The model that a command names, where a flag does."""
    given = {name.replace("_", "-"): value for name, value in options(words).items()}
    for name in ("--model", "--model-path", "--model-id"):
        if isinstance(given.get(name), str):
            return str(given[name])
    for before, word in pairwise(words):
        if before in ("serve", "trtllm-serve", "api_server") and not word.startswith("-"):
            return word
    return None


def _containers(
    node: Any, script: Script, outer: Mapping[str, str], depth: int
) -> Iterator[list[str]]:
    """Commands of everything in a document that is started."""
    if depth > DEEPEST:
        return
    if isinstance(node, list):
        for one in node:
            yield from _containers(one, script, outer, depth + 1)
    if not isinstance(node, Mapping):
        return
    env = {**outer, **_environment(node.get("env", node.get("environment")))}
    yield from _started(node, script, env)
    if isinstance(node.get("vllmConfig"), Mapping) or "modelURL" in node:
        yield from _stack(node)
    if isinstance(node.get("model"), Mapping):
        yield from _served(node)
    if str(node.get("modelURI", node.get("url", ""))).startswith("hf://"):
        yield from _named(node)
    for key, one in node.items():
        if key not in ("command", "args", "env"):
            yield from _containers(one, script, env, depth + 1)


def _environment(given: Any) -> dict[str, str]:
    """Variables of a container, of either form."""
    if isinstance(given, Mapping):
        return {str(name): str(value) for name, value in given.items()}
    found = {}
    for one in given if isinstance(given, list) else ():
        if isinstance(one, Mapping) and "name" in one and "value" in one:
            found[str(one["name"])] = str(one["value"])
        elif isinstance(one, str) and "=" in one:
            name, _, value = one.partition("=")
            found[name] = value
    return found


def _started(node: Mapping[Any, Any], script: Script, env: Mapping[str, str]) -> list[list[str]]:
    """What a container runs, where it is an engine."""
    parts = [node.get(key) for key in ("entrypoint", "command", "args")]
    words: list[str] = []
    for part in parts:
        if isinstance(part, str):
            words += [w for command in read_script(part).commands for w in command]
        elif isinstance(part, list):
            words += [str(word) for word in part]
    words = [_filled(word, env) for word in words]
    image = str(node.get("image", ""))
    inner = next((i for i, w in enumerate(words) if re.fullmatch(r"-[a-z]*c", w)), None)
    if inner is not None and inner + 1 < len(words):
        text = "\n".join(words[inner + 1 :])
        own = read_script("".join(f"{k}={v!r}\n" for k, v in env.items()) + text)
        script.notes += own.notes
        return [one for one in own.commands if _engine(" ".join(one))]
    if not words or not (_engine(" ".join(words)) or _engine(image)):
        return []
    if words[0].startswith("-"):
        words = [*(_engine(image) or _engine(" ".join(words))).split(), *words]
    return [words]


def _engine(text: str) -> str:
    """The command that starts an engine that a text is about; empty where it is about none."""
    return next((start for pattern, start in ENGINES if re.search(pattern, text.lower())), "")


def _filled(word: str, env: Mapping[str, str]) -> str:
    """A word with the container's variables put in."""
    return re.sub(
        r"\$\((\w+)\)|\$\{(\w+)\}|\$(\w+)",
        lambda m: env.get(m[1] or m[2] or m[3], m[0]),
        word.replace("$$", "$"),  # as docker compose writes a variable of the container
    )


def _stack(node: Mapping[Any, Any]) -> Iterator[list[str]]:
    """An engine of the vLLM production stack."""
    place = node["model"] if isinstance(node.get("model"), Mapping) else node
    named = place.get("modelURL", node.get("modelURL"))
    config = node.get("vllmConfig")
    own = config if isinstance(config, Mapping) else {}
    words = ["vllm", "serve", str(named)] if named else ["vllm", "serve"]
    for key, flag in CONFIG.items():
        value = own.get(key)
        if value is True:
            words.append(flag)
        elif value not in (None, False, ""):
            words += [flag, str(value)]
    if own.get("enableLoRA") or node.get("enableLoRA"):
        words.append("--enable-lora")
    more = own.get("extraArgs", ())
    words += [str(word) for word in more] if isinstance(more, list) else []
    if isinstance(named, str):
        yield words


def _named(node: Mapping[Any, Any]) -> Iterator[list[str]]:
    """A model that a controller serves with vLLM, by its address: KubeAI's `url`, with arguments
    beside (kubeai.org/v1 Model), or kthena's `modelURI`, with a worker's `config` of flags without
    dashes (workload.serving.volcano.sh/v1alpha1 ModelBooster)."""
    engine = str(node.get("engine", node.get("type", ""))).lower()
    if not engine.startswith("vllm"):
        return
    words = ["vllm", "serve", str(node.get("modelURI", node.get("url"))).removeprefix("hf://")]
    more = node.get("args", ())
    words += [str(word) for word in more] if isinstance(more, list) else []
    workers = node.get("workers")
    for worker in workers if isinstance(workers, list) else ():
        config = worker.get("config") if isinstance(worker, Mapping) else None
        for key, value in (config if isinstance(config, Mapping) else {}).items():
            words += [
                f"--{key}",
                *([str(value)] if value is not True and value not in ("", None) else []),
            ]
    yield words


def _served(node: Mapping[Any, Any]) -> Iterator[list[str]]:
    """A model of KServe."""
    model = node["model"]
    uri = str(model.get("uri", model.get("storageUri", "")))
    words = ["vllm", "serve"]
    if uri.startswith("hf://"):
        words.append(uri.removeprefix("hf://"))
    sizes = node.get("parallelism")
    for key, flag in PARALLELISM.items():
        if isinstance(sizes, Mapping) and key in sizes:
            words += [flag, str(sizes[key])]
    if isinstance(sizes, Mapping) and sizes.get("expert"):
        words.append("--enable-expert-parallel")
    more = model.get("args", ())
    words += [str(word) for word in more] if isinstance(more, list) else []
    if uri.startswith("hf://") or any("model" in word and "id" in word for word in words):
        yield words


def _asked(documents: list[Mapping[Any, Any]]) -> Iterator[str]:
    """What accelerators the workloads ask for, and how many of each workload there are."""
    text = yaml.safe_dump_all(documents)
    copies = [int(n) for n in re.findall(r"^ *(?:replicas|replicaCount): '?(\d+)'?$", text, re.M)]
    if (many := max(copies, default=1)) > 1:
        yield (
            f"the manifest starts {many} of them: this is one, which gets its part of the load "
            f"(--set replicas={many}: all, behind a router)"
        )
    counts = [int(n) for n in re.findall(r"(?:nvidia|amd)\.com/gpu: '?\"?(\d+)", text) if int(n)]
    kinds = re.findall(r"(?:gke-accelerator|gpu\.product|instance-type): *([\w.\-]+)", text)
    if not counts and not kinds:
        return
    try:
        known = catalog.read_machine_name(kinds[0]) if kinds else None
    except InputError:
        known = None
    name = known.accelerator if known and known.accelerator else (kinds[0] if kinds else "")
    asked = f"{max(counts)}{'x' if name else ' '}" if counts else ""
    yield f"the manifest asks for {asked}{name or 'accelerators of no stated kind'} in each pod"

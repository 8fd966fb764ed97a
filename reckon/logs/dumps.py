"""The configuration that a log prints of its own accord, gathered as the lines come."""

from __future__ import annotations

import ast
import json
import math
import re
from dataclasses import field
from typing import Any

from predictor.records import dataclass
from reckon.logs.preferences import GENERATES, each_of, objective_of, scaled

DOTTED = re.compile(r"(?:^|\s)([a-z][a-z0-9_]*) \.{2,} (.*?)\s*$")
"""A line of a table of arguments, as Megatron-LM and DeepSpeed print it."""

SET_BY = re.compile(r"(?:\.+|(?<=[\])}'\"]))(?:updated|default)$")
"""What GPT-NeoX writes behind a value: 'hidden_size ..... 2048.......updated'."""

PARAM = re.compile(r"Config param (\w+): (.*?)\s*$")
"""MaxText's."""

BEHIND = ("Running with args:", "Running with configs:", "Running with config:", "json = {")
"""What stands before a configuration in JSON, or as Python prints a mapping: torchtitan's,
DeepSpeed's."""

YAML_BEGINS = "Experiment configuration"
"""What stands before NeMo's YAML."""

STARTS = ("-- arguments --", "using world size:", "DeepSpeedEngine configuration:", YAML_BEGINS,
          "Config(general=", "Config param ", *BEHIND[:3])  # fmt: skip
"""What a program begins to tell its configuration with: Megatron-LM, DeepSpeed, NeMo, nanotron,
MaxText, torchtitan."""

CAPACITY = re.compile(r"(?:CUDA|GPU|XPU) capacity: (.+?) with [\d.]+\s*GiB")
BANNER = re.compile(r"\\\\\s+/\|\s+(\S.*?)\. Num GPUs = \d+\. Max memory")
"""unsloth's: the accelerator."""

DEVICE = re.compile(r"\b(?:GPU name|Device name|device_name|gpu_model)[:=]\s*['\"]?([^'\"|,]+)")

SIZES: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("gpus", re.compile(r"using world size: (\d+)")),
    ("gpus", re.compile(r"Num_devices: (\d+)")),
    ("gpus", re.compile(r"Starting on (\d+) (?:GPUs|ranks|devices)", re.I)),
    ("gpus", re.compile(r"world_size[=:]\s*(\d+)")),
    ("seq_len", re.compile(r"sequence length (\d+)")),
    ("global_batch", re.compile(r"global batch size (\d+)")),
    ("global_batch", re.compile(r"Total (?:train )?batch size \([^)]*\) = ([\d,]+)")),
    ("micro_batch", re.compile(r"(?:Instantaneous b|B)atch size per device = ([\d,]+)")),
    ("gpus", re.compile(r"Data Parallel GPUs = (\d+)")),
    ("batch_tokens", re.compile(r"tokens per iteration will be: ([\d,]+)")),
)
"""Sizes that lines outside any table of arguments say: Megatron-LM's first line, MaxText's system
information, torchtitan's 'Trainer is initialized with ...', HuggingFace's 'Running training', the
banner of unsloth, which replicates models, nanoGPT's first line."""

SHARE = re.compile(r"trainable%: (\d+(?:\.\d+)?)|\((\d+(?:\.\d+)?)% trained\)")
"""Parameters that learn [%], as PEFT (`print_trainable_parameters`) and unsloth say."""

MOST_ADAPTED = 50.0
"""Share of parameters that learn [%] up to which they are those of adapters."""

MESH = re.compile(r"[Bb]uilding.*device mesh with")
RANKS = re.compile(r"\b(?:pp|dp_replicate|dp_shard|cp|tp)=(\d+)|\[(\d+(?:, ?\d+)*)\]")
"""torchtitan's mesh: 'parallelism: pp=1, dp_replicate=1, ...', or names and sizes in brackets."""

NANOTRON: dict[str, str] = {
    "dp": "dp", "tp": "tp", "pp": "pp", "context_parallel_size": "cp",
    "sequence_length": "seq_len", "micro_batch_size": "micro_batch",
    "num_hidden_layers": "model.layers", "hidden_size": "model.hidden",
    "num_attention_heads": "model.heads", "num_key_value_heads": "model.kv_heads",
    "intermediate_size": "model.ffn_hidden", "vocab_size": "model.vocab",
    "tie_word_embeddings": "model.tied_embeddings", "zero_stage": "zero_stage",
    "batch_accumulation_per_replica": "accumulation", "tp_mode": "tp_mode",
}  # fmt: skip
"""Arguments in the representation of nanotron's configuration, and keys of a plan."""

MAXTEXT: dict[str, tuple[str, ...]] = {
    "model.layers": ("num_decoder_layers", "base_num_decoder_layers"),
    "model.hidden": ("emb_dim", "base_emb_dim"),
    "model.heads": ("num_query_heads", "base_num_query_heads"),
    "model.kv_heads": ("num_kv_heads", "base_num_kv_heads"),
    "model.ffn_hidden": ("mlp_dim", "base_mlp_dim"),
    "model.head_dim": ("head_dim",),
    "model.vocab": ("vocab_size",),
    "seq_len": ("max_target_length",),
    "global_batch": ("global_batch_size_to_train_on",),
}
"""Keys of a plan, and parameters of MaxText that say them, the first of which counts."""

AXES = {"tp": "tensor", "pp": "pipeline", "cp": "context", "ep": "expert"}
"""Axes of MaxText's mesh, whose sizes inside (`ici_`) and between slices (`dcn_`) multiply."""

PAIR = re.compile(r"\b(\w+)=([\w.<>: ]+?)(?=[,)]|$)")

MOST = 400_000
"""Letters of a configuration beyond which it is given up."""


def plain(text: str) -> Any:
    """A value as it is printed: None, truth, number or text."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text


@dataclass(slots=True)
class Dump:
    """What a log says of its run.

    facts      keys of a plan that lines say by themselves
    arguments  of a table of arguments
    params     of MaxText
    pairs      of nanotron
    """

    facts: dict[str, Any] = field(default_factory=dict)
    arguments: dict[str, Any] = field(default_factory=dict)
    params: dict[str, Any] = field(default_factory=dict)
    pairs: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    mapping: dict[str, Any] = field(default_factory=dict)
    yaml: list[str] = field(default_factory=list)
    _open: str = ""
    _depth: int = 0
    _in_yaml: bool = False
    _voice: str = ""

    def feed(self, line: str, voice: str = "") -> None:
        """One line more, and the rank or host that it is labelled with: what others say between
        the lines of a configuration is none of them."""
        if self._open:
            if voice == self._voice:
                self._block(line)
            return
        if self._in_yaml and voice == self._voice and not self._yaml_line(line):
            self._in_yaml = False
        if match := DOTTED.search(line):
            self.arguments[match[1]] = plain(SET_BY.sub("", match[2]))
        elif match := PARAM.search(line):
            self.params[match[1]] = plain(match[2])
        elif start := next((text for text in BEHIND if text in line), None):
            rest, self._voice = line.partition(start)[2].strip(), voice
            self._block("{" + rest if start.endswith("{") else rest)
        elif YAML_BEGINS in line:
            self._in_yaml, self.yaml, self._voice = True, [], voice
        elif "Args(" in line or "Config(" in line or (self.pairs and PAIR.search(line)):
            for name, value in PAIR.findall(line):
                if name in NANOTRON:
                    self.pairs.setdefault(name, plain(value))
        self._said(line)

    def _said(self, line: str) -> None:
        """Facts in lines of their own."""
        for name, pattern in SIZES:
            if name not in self.facts and (match := pattern.search(line)):
                self.facts[name] = int(match[1].replace(",", ""))
        if "accelerator" not in self.facts:
            match = CAPACITY.search(line) or BANNER.search(line) or DEVICE.search(line)
            if match and match[1].strip().lower() not in ("cpu", "none"):
                self.facts["accelerator"] = match[1].strip()
        if "learns_from" not in self.facts and (learned := objective_of(line)):
            self.facts["learns_from"] = learned
            if learned == "grpo":
                self.notes.append(GENERATES)
        if "train" in line and "trained" not in self.facts and (match := SHARE.search(line)):
            self._adapted(float(match[1] or match[2]))
        if match := MESH.search(line):
            told = RANKS.findall(line, match.end())
            sizes = [int(n) for pair in told for n in re.findall(r"\d+", "".join(pair))]
            if math.prod(sizes) > 0 and sizes:
                self.facts["gpus"] = math.prod(sizes)

    def _adapted(self, share: float) -> None:
        """Take what share of parameters learns [%]."""
        if share < MOST_ADAPTED:
            self.facts["trained"] = "lora"
            self.notes.append(
                f"adapters learn, {share:g} % of the parameters; --set lora_rank= says more"
            )

    def said(self) -> dict[str, Any]:
        """Keys of a plan that the log says outside a launch line's arguments."""
        own = self.arguments
        world = own.get("global_num_gpus", own.get("world_size"))  # the first is GPT-NeoX's
        return {
            **({"gpus": world} if isinstance(world, int) else {}),
            **_of_maxtext(self.params),
            **_of_nanotron(self.pairs),
            **scaled(self.facts, each_of(self.facts)),
        }

    def note_memory(self, name: str, gib: float) -> None:
        """Memory that was allocated (`memory_gib`) or reserved (`reserved_gib`) at most [GiB]."""
        self.facts[name] = max(gib, float(self.facts.get(name, 0.0)))

    def _block(self, line: str) -> None:
        """One more line of a configuration in braces."""
        self._open += line + "\n"
        self._depth += line.count("{") - line.count("}")
        if len(self._open) > MOST:
            self._open, self._depth = "", 0
            self.notes.append("a configuration that does not end was left out")
        elif self._depth <= 0:
            text, self._open, self._depth = self._open, "", 0
            self.mapping |= _mapping(text)

    def _yaml_line(self, line: str) -> bool:
        """Take a line of NeMo's YAML; whether it is one."""
        bare = re.sub(r"^\s*\[NeMo [^\]]*\]\s?", "", line)
        if re.match(r"^\s*(- |\w[\w.]*:)", bare):
            self.yaml.append(bare)
            return True
        return not self.yaml and not bare.strip()

    def launch(self, dialect: str) -> tuple[str, str]:
        """Dialect and text of the arguments that were printed; both empty where none were."""
        if dialect == "megatron" and self.arguments:
            own = {k: v for k, v in self.arguments.items() if v is not None}
            if world := own.pop("world_size", self.facts.get("gpus")):
                own["@processes"] = world
            return dialect, json.dumps(own, default=str)
        if dialect == "nemo" and self.yaml:
            return dialect, "\n".join(_dedented(self.yaml))
        if dialect == "torchtitan" and self.mapping:
            return dialect, _toml(self.mapping)
        if dialect == "deepspeed" and self.mapping:
            own = {key: value for key, value in self.mapping.items() if value is not None}
            return dialect, json.dumps(own, default=str)
        return "", ""


def _of_maxtext(params: dict[str, Any]) -> dict[str, Any]:
    """What MaxText's parameters say; -1 means that it is left to the mesh."""

    def size(name: str) -> int:
        value = params.get(name, 0)
        return value if isinstance(value, int) and value > 0 else 0

    if not params:
        return {}
    found: dict[str, Any] = {"model.gated": True, "model.norm": "rmsnorm"}
    for key, names in MAXTEXT.items():
        value = next((size(name) for name in names if size(name)), 0)
        if value:
            found[key] = value
    for key, axis in AXES.items():
        inside, between = (size(f"{at}_{axis}_parallelism") for at in ("ici", "dcn"))
        if inside or between:
            found[key] = max(inside, 1) * max(between, 1)
    if "ici_fsdp_parallelism" in params and params["ici_fsdp_parallelism"] != 1:
        found["sharding"] = "fsdp"
    narrow = str(params.get("quantization", ""))
    if "fp8" in narrow:
        found["precision"] = "fp8"
    elif "bfloat16" in str(params.get("dtype", "")):
        found["precision"] = "bf16"
    if params.get("remat_policy") in ("full", "none"):
        found["recompute"] = params["remat_policy"]
    return found


def _of_nanotron(pairs: dict[str, Any]) -> dict[str, Any]:
    """What nanotron's configuration says."""
    found = {NANOTRON[k]: v for k, v in pairs.items() if v is not None}
    own = {key: pairs[key] for key in ("dp", "tp", "pp") if isinstance(pairs.get(key), int)}
    if len(own) == 3:
        split = found.get("cp", 1)
        cp = split if isinstance(split, int) else 1
        found["gpus"] = own["dp"] * own["tp"] * own["pp"] * cp
        each = found.get("micro_batch"), pairs.get("batch_accumulation_per_replica")
        if all(isinstance(one, int) for one in each):
            found["global_batch"] = own["dp"] * each[0] * each[1]
    stage = found.pop("zero_stage", None)
    if isinstance(stage, int):
        found["sharding"] = ("none", "zero1", "zero2", "zero3")[min(stage, 3)]
    mode = found.pop("tp_mode", None)
    if mode is not None:
        found["sequence_parallel"] = "REDUCE_SCATTER" in str(mode)
    found.pop("accumulation", None)
    if "model.layers" in found:
        found |= {"model.gated": True, "model.norm": "rmsnorm"}
    return found


def _dedented(lines: list[str]) -> list[str]:
    least = min(len(line) - len(line.lstrip()) for line in lines)
    return [line[least:] for line in lines]


def _mapping(text: str) -> dict[str, Any]:
    """The mapping that a text holds, as JSON or as Python prints it; empty where it holds none."""
    for read in (json.loads, ast.literal_eval):
        try:
            found = read(text.strip())
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            continue
        if isinstance(found, dict):
            return found
    return {}


def _toml(mapping: dict[str, Any]) -> str:
    """A configuration as the TOML that torchtitan's reader takes."""
    from reckon.launch.structured import flatten, toml

    flat = {
        name: value
        for name, value in flatten(mapping).items()
        if isinstance(value, str | int | float | bool | list) and "." in name
    }
    return toml(flat)

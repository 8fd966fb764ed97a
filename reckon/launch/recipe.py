"""Recipes of Megatron-Bridge and NeMo 2: functions of a Python file that fill a configuration.
Their text is parsed; nothing of it is run.
"""

from __future__ import annotations

import ast
import re
from typing import Any

from predictor.errors import InputError, unknown
from reckon.launch.launcher import PROCESSES

CHOSEN = re.compile(r"\A# recipe: (\w+)\n")
"""First line of a text of which one function is wanted."""

DTYPES = {"bfloat16": "bf16", "float32": "fp32", "float16": "fp16", "uint8": "fp8"}

PARALLELISM = {
    "tensor_parallelism": "tensor_model_parallel_size",
    "pipeline_parallelism": "pipeline_model_parallel_size",
    "virtual_pipeline_parallelism": "virtual_pipeline_model_parallel_size",
    "context_parallelism": "context_parallel_size",
    "expert_parallelism": "expert_model_parallel_size",
    "sequence_parallelism": "sequence_parallel",
    "num_gpus_per_node": "num_gpus_per_node",
    "devices": "num_gpus_per_node",
    "num_nodes": "num_nodes",
    "max_steps": "train_iters",
    "seq_length": "seq_length",
    "global_batch_size": "global_batch_size",
    "micro_batch_size": "micro_batch_size",
    "tensor_model_parallel_size": "tensor_model_parallel_size",
    "pipeline_model_parallel_size": "pipeline_model_parallel_size",
    "context_parallel_size": "context_parallel_size",
    "expert_model_parallel_size": "expert_model_parallel_size",
}
"""Arguments of calls that say the layout (NVIDIA/NeMo 2 nemo/collections/llm/recipes), and the keys
of Megatron Core."""

REPOSITORY = "from_hf_pretrained"

CONFIGURED = re.compile(r"([A-Z]\w*?)(\d*)Config_?(\d\w*)?$")
"""Classes of NeMo 2 that hold a model's dimensions: `Llama31Config70B`, `MixtralConfig8x7B`,
`Qwen25Config1P5B` (nemo/collections/llm/gpt/model); versions 3 and 31 are 3 and 3.1."""


NULLS = ("recompute_granularity", "virtual_pipeline_model_parallel_size")
"""Keys whose null says something."""

DEEPEST = 4
"""Functions within functions of the file that are followed."""


def read_recipe(text: str) -> dict[str, Any]:
    """Keys that a recipe sets, by dotted names; `@repository` is the model's.

    Raises InputError where the text is no Python, or has several recipes and none is named.
    """
    try:
        module = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise InputError("the recipe is not Python that can be parsed") from None
    functions = {one.name: one for one in module.body if isinstance(one, ast.FunctionDef)}
    constants = {
        target.id: node.value.value
        for node in module.body
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Constant)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
    }
    chosen = _chosen(text, functions)
    found = _Recipe(functions, constants).follow(chosen, {}, 0)
    if match := re.search(r"_(\d+)gpu", chosen.name):
        found.setdefault(PROCESSES, int(match[1]))
    if "@repository" in found:
        found.setdefault("mixed_precision", "bf16_mixed")  # recipes/common.py of Megatron-Bridge
        if not any(key.endswith(NULLS[1]) for key in found):  # its models' own, transformer_config
            found[f"model.{NULLS[1]}"] = "none"
    return found


def _chosen(text: str, functions: dict[str, ast.FunctionDef]) -> ast.FunctionDef:
    public = {name: one for name, one in functions.items() if not name.startswith("_")}
    if match := CHOSEN.match(text):
        if match[1] not in functions:
            raise unknown("recipe", match[1], public, "functions of the file")
        return functions[match[1]]
    recipes = {n: f for n, f in public.items() if n.endswith(("_config", "recipe"))} or public
    if len(recipes) == 1:
        return next(iter(recipes.values()))
    if not recipes:
        raise InputError("the recipe has no function")
    some = ", ".join(list(recipes)[:4])
    raise InputError(f"the file has {len(recipes)} recipes; name one as FILE.py:NAME, e.g. {some}")


class _Recipe:
    """Follows the statements of functions in their order."""

    def __init__(self, functions: dict[str, ast.FunctionDef], constants: dict[str, Any]) -> None:
        self.functions = functions
        self.constants = constants

    def follow(
        self, function: ast.FunctionDef, given: dict[str, Any], depth: int
    ) -> dict[str, Any]:
        """Keys that a function sets; `given` are its arguments."""
        names = {**self.constants, **self._arguments(function), **given}
        found: dict[str, Any] = {}
        nodes = [n for n in ast.walk(function) if isinstance(n, ast.Call | ast.Assign)]
        for node in sorted(nodes, key=lambda one: (one.lineno, one.col_offset)):
            if isinstance(node, ast.Call):
                found |= self._call(node, names, depth)
            else:
                for target in node.targets:
                    self._assign(target, node.value, names, found)
        return {key: value for key, value in found.items() if value is not ...}

    def _arguments(self, function: ast.FunctionDef) -> dict[str, Any]:
        own = function.args
        last = own.args[len(own.args) - len(own.defaults) :]
        pairs = [
            *zip(last, own.defaults, strict=True),
            *zip(own.kwonlyargs, own.kw_defaults, strict=True),
        ]
        return {a.arg: d.value for a, d in pairs if isinstance(d, ast.Constant)}

    def _call(self, node: ast.Call, names: dict[str, Any], depth: int) -> dict[str, Any]:
        name = _called(node)
        given = {k.arg: self.value(k.value, names) for k in node.keywords if k.arg}
        given = {key: value for key, value in given.items() if value is not ...}
        if name == REPOSITORY and node.args:
            said = self.value(node.args[0], names)
            return {"@repository": said} if isinstance(said, str) else {}
        if name == "Config" and node.args and (own := _configured(node.args[0])):
            return {"@repository": own}
        if name.endswith("_model") and isinstance(given.get("version"), str):
            return {"@repository": versioned(given["version"])}
        if name in self.functions and depth < DEEPEST:
            return self.follow(self.functions[name], given, depth + 1)
        if name == "MixedPrecisionConfig":
            return _precision(given)
        if name.endswith("Provider"):  # whose arguments are keys of the model
            kept = {k: "none" if v is None and k in NULLS else v for k, v in given.items()}
            return {f"model.{k}": v for k, v in kept.items() if v is not None} | {"@provider": name}
        return {PARALLELISM[k]: v for k, v in given.items() if k in PARALLELISM and v is not None}

    def _assign(
        self, target: ast.expr, value: ast.expr, names: dict[str, Any], found: dict[str, Any]
    ) -> None:
        parts: list[str] = []
        while isinstance(target, ast.Attribute):
            parts.append(target.attr)
            target = target.value
        if not isinstance(target, ast.Name):
            return
        own = self.value(value, names)
        if not parts:
            names[target.id] = own
            return
        key = ".".join(reversed(parts))
        if own is None:
            own = "none" if parts[0] in NULLS else ...
        if key in ("mixed_precision", "model.seq_length", "dataset.seq_length"):
            key = parts[0]
        if own is not ...:
            found[key] = own

    def _adapters(self, node: ast.Call, names: dict[str, Any]) -> str:
        """The scheme of a call that says what is trained; empty for other calls."""
        name = _called(node)
        if name in ADAPTERS:
            return ADAPTERS[name]
        if name != "default_peft_config" or not node.args:
            return ""
        said = self.value(node.args[0], names)
        return said if isinstance(said, str) else "none" if said is None else ""

    def value(self, node: ast.expr, names: dict[str, Any]) -> Any:
        """The value of an expression; `...` where it is not known."""
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name):
            return names.get(node.id, ...)
        if isinstance(node, ast.Attribute):
            return DTYPES.get(node.attr, ...)
        if isinstance(node, ast.List | ast.Tuple):
            items = [self.value(item, names) for item in node.elts]
            return ... if ... in items else " ".join(map(str, items))
        if isinstance(node, ast.Call) and (scheme := self._adapters(node, names)):
            return scheme
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.args:
            return node.func.id if "mixed" in node.func.id else ...
        if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            said = node.args[0].value
            return said if isinstance(said, str) and "mixed" in said else ...
        return ...


def _called(node: ast.Call) -> str:
    """The name of what is called, without what it stands in."""
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


ADAPTERS = {"LoRA": "lora", "DoRA": "dora", "CanonicalLoRA": "lora", "VLMLoRA": "lora"}
"""Classes of Megatron-Bridge and NeMo 2 that say what is trained (megatron/bridge/peft)."""

RECIPES = {"tensorwise": "fp8_current_scaling", "delayed": "fp8_delayed_scaling",
           "blockwise": "fp8_subchannel_scaling", "mxfp8": "mxfp8"}  # fmt: skip
"""Recipes of 8 bits, and what names of mixed precisions call them."""


def _precision(given: dict[str, Any]) -> dict[str, Any]:
    """Keys that a precision which is put together means (MixedPrecisionConfig of
    NVIDIA-NeMo/Megatron-Bridge @ 067f987d)."""
    name = "bf16_mixed" if given.get("bf16") else "16-mixed" if given.get("fp16") else "32"
    if given.get("fp8"):
        name = f"bf16_with_{RECIPES.get(str(given.get('fp8_recipe', 'delayed')), 'fp8')}_mixed"
    if given.get("fp4"):
        name = "bf16_with_nvfp4_mixed"
    wide = given.get("grad_reduce_in_fp32")
    return {"mixed_precision": name, **({} if wide is None else {"ddp.grad_reduce_in_fp32": wide})}


def _configured(node: ast.expr) -> str:
    """The model whose dimensions a class holds, as names are written; empty for other classes."""
    name = node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")
    match = CONFIGURED.match(name)
    if not match or match[1] in ("Optimizer", "Trainer") or not (match[2] or match[3]):
        return ""
    version = ".".join(match[2])
    size = (match[3] or "").replace("_", "-")
    size = re.sub(r"(?<=\d)P(?=\d)", ".", size).replace("500M", "0.5B").replace("600M", "0.6B")
    return f"{match[1]}{version}-{size}".strip("-")


def versioned(version: str) -> str:
    """The model that a recipe's `version` means: `qwen25_1p5b` is Qwen2.5-1.5B."""
    family, _, size = version.partition("_")
    match = re.fullmatch(r"([a-z]+)(\d+)", family)
    if match:
        family = match[1] + ".".join(match[2])
    return f"{family}-{re.sub(r'(?<=[0-9])p(?=[0-9])', '.', size).replace('_', '-')}".strip("-")

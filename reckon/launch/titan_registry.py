"""torchtitan's configurations of 2026: functions of a model's `config_registry.py`, in place of
TOML (pytorch/torchtitan, torchtitan/models/*/config_registry.py and torchtitan/config; read
2026-11). Their text is parsed; nothing of it is run.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import Any

from predictor.errors import InputError, unknown
from reckon.launch.structured import flatten
from reckon.launch.table import Flags

FILE = "config_registry.py"

DEEPEST = 8
"""Functions within functions of the file, and expressions within each other, that are followed."""

SUMS: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Mult: operator.mul, ast.Add: operator.add, ast.Sub: operator.sub,
    ast.FloorDiv: operator.floordiv,
}  # fmt: skip

RECOMPUTED = {"FullAC": {"mode": "full"}, "SelectiveAC": {"mode": "selective",
              "selective_ac_option": "op"}}  # fmt: skip
"""Classes of `activation_checkpoint`, and the settings of before."""

CONVERTERS = {"Float8": "quantize.linear.float8", "MXFP8": "quantize.linear.mx",
              "NVFP4": "quantize.linear.mx"}  # fmt: skip
"""How classes of converters begin, and what they are called in TOML."""


def read_registry(text: str, wanted: str, family: str) -> Flags:
    """Keys of TOML that a function of a registry means.

    wanted  the function
    family  of the model, which is the folder of the file

    Raises InputError where the text is no Python, or has no such function.
    """
    try:
        module = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise InputError("the registry is not Python that can be parsed") from None
    functions = {one.name: one for one in module.body if isinstance(one, ast.FunctionDef)}
    if wanted not in functions:
        raise unknown("configuration", wanted, functions)
    return _toml(_called(functions, wanted, 0), family)


def _called(functions: dict[str, ast.FunctionDef], name: str, deep: int) -> dict[str, Any]:
    """The configuration that a function returns, as nested as it is written."""
    names: dict[str, Any] = {}

    def value(node: ast.expr | None, level: int = 0) -> Any:
        if node is None or level > DEEPEST:
            return None
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name):
            return names.get(node.id)
        if isinstance(node, ast.List | ast.Tuple):
            return [value(one, level + 1) for one in node.elts]
        if isinstance(node, ast.BinOp) and type(node.op) in SUMS:
            left, right = value(node.left, level + 1), value(node.right, level + 1)
            numbers = isinstance(left, int | float) and isinstance(right, int | float)
            return SUMS[type(node.op)](left, right) if numbers and right else None
        if isinstance(node, ast.Call):
            said = ast.unparse(node.func)
            if said in functions and deep < DEEPEST and not node.args:
                return _called(functions, said, deep + 1)
            kept = {one.arg: value(one.value, level + 1) for one in node.keywords if one.arg}
            return {"@class": said.split(".")[0], "@first": value(next(iter(node.args), None)),
                    **kept}  # fmt: skip
        return None

    for node in functions[name].body:
        if isinstance(node, ast.Return):
            found = value(node.value)
            return found if isinstance(found, dict) else {}
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            _put(names, ast.unparse(node.targets[0]).split("."), value(node.value))
    return {}


def _put(names: dict[str, Any], path: list[str], value: Any) -> None:
    """Set a name, or a field of what a name holds."""
    for part in path[:-1]:
        inner = names.get(part)
        names[part] = names = dict(inner) if isinstance(inner, dict) else {}
    names[path[-1]] = value


def _toml(config: dict[str, Any], family: str) -> Flags:
    """The settings under the names that TOML has for them."""
    found: dict[str, Any] = {key: one for key, one in config.items() if not key.startswith("@")}
    spec = _section(found.pop("model_spec", None))
    found["model"] = {"name": family, "flavor": spec.get("@first"),
                      "hf_assets_path": found.pop("hf_assets_path", None)}  # fmt: skip
    listed = spec.get("converters")
    used = [
        str(_section(one).get("@class")) for one in (listed if isinstance(listed, list) else ())
    ]
    kinds = [own for start, own in CONVERTERS.items() if any(u.startswith(start) for u in used)]
    if kinds:
        found["model"]["converters"] = kinds
        narrow = any(one.startswith("NVFP4") for one in used)
        found["quantize"] = {"linear": {"mx": {"recipe_name": "nvfp4" if narrow else None}}}
    kept = _section(found.get("activation_checkpoint"))
    found["activation_checkpoint"] = RECOMPUTED.get(str(kept.get("@class")), {"mode": "none"})
    training = dict(_section(found.get("training")))
    length = training.pop("max_context_length", 2048)
    if not _whole(length):
        length = None  # as an expression that is not followed
    for key, own in (("num_tokens_per_microbatch_per_dp_rank", "local_batch_size"),
                     ("num_tokens_per_train_step", "global_batch_size")):  # fmt: skip
        tokens = training.pop(key, -1)
        if length and _whole(tokens):
            training[own] = tokens // length
    found["training"] = {**training, "seq_len": length}
    flat = {key: one for key, one in flatten(found).items() if "@" not in key}
    asynchronous = flat.pop("compile.enable_async_tensor_parallel", None)
    if asynchronous is not None:
        flat["parallelism.enable_async_tensor_parallel"] = asynchronous
    return flat


def _section(value: Any) -> dict[str, Any]:
    """A part of a configuration; an empty one where something else stands."""
    return value if isinstance(value, dict) else {}


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0

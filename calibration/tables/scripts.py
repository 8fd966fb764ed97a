"""Settings of public benchmark scripts: what they passed to the engines of published rows.

They are facts of the rows, `data/software/serving/scripts/`, each with its source; none looks at a
measured value. What a row itself states counts more. `doubtful` says that rows are not of the
machine that they name, as far as anybody can know: no fit to them, and reported apart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from calibration.tables.cells import cell
from predictor import catalog
from predictor.errors import unknown

ONE_PROMPT = "one_prompt_and"
"""Key of a budget of as many tokens as the longest prompt, one token of each client and so many
more."""

LEAST = "at_least"
"""Key of the least that such a budget is."""

PROMPTS = "prompts"
"""Key of a budget of so many of the longest prompts."""

CLIENTS_LESS = "clients_less"
"""Key of an engine's room for as many requests as there are clients, less so many."""

BLOCK = 16
"""Tokens of a block of the cache: the last one of a prompt is read again (vLLM's default)."""


@lru_cache(maxsize=1)
def _scripts() -> Mapping[str, list[Mapping[str, Any]]]:
    """Settings by source of rows, in the order in which they count."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for path in sorted((catalog.data_dir() / "software" / "serving" / "scripts").glob("*.yaml")):
        content = catalog.read_mapping(path)
        for source in content["sources"]:
            found.setdefault(source, []).extend(content["settings"])
    return found


def _begins(column: str) -> Callable[[Any, Mapping[Any, Any]], bool]:
    return lambda names, row: (
        str(row.get(column)).lower().startswith(tuple(name.lower() for name in names))
    )


def _number(column: str, row: Mapping[Any, Any]) -> float:
    value = cell(row, column)
    return float("nan") if value is None else float(value)


ASKED: dict[str, Callable[[Any, Mapping[Any, Any]], bool]] = {
    "framework": lambda names, row: row["@framework"] in names,
    "accelerator": _begins("accelerator"),
    "model": _begins("model"),
    "version": _begins("framework_version"),
    "locator": lambda parts, row: any(one in str(row.get("source_locator")) for one in parts),
    "notes": lambda parts, row: any(one in str(row.get("notes")) for one in parts),
    "weights": lambda names, row: str(row.get("weights_precision")) in names,
    "concurrency_from": lambda least, row: _number("concurrency", row) >= least,
    "concurrency_below": lambda most, row: _number("concurrency", row) < most,
    "tp_from": lambda least, row: _number("tp", row) >= least,
    "tp_below": lambda most, row: _number("tp", row) < most,
    "dp_below": lambda most, row: _number("dp", row) < most,
    "ep_below": lambda most, row: _number("ep", row) < most,
    "dp_from": lambda least, row: _number("dp", row) >= least,
    "ep_from": lambda least, row: _number("ep", row) >= least,
    "input_from": lambda least, row: _number("input_len", row) >= least,
    "output_from": lambda least, row: _number("output_len", row) >= least,
    "input_below": lambda most, row: _number("input_len", row) < most,
    "output_below": lambda most, row: _number("output_len", row) < most,
    "since": lambda month, row: str(row.get("published")) >= month,
    "until": lambda month, row: str(row.get("published")) <= month,
}
"""What a setting's `where` may ask of a row: beginnings of names, parts of where it was read and of
its notes, numbers, months."""


def script_settings(row: Mapping[Any, Any], framework: str, source: str) -> dict[str, Any]:
    """Fields of a plan that the script of a row's source sets.

    framework   the row's engine, as facts call it

    Raises InputError for a condition that is not known.
    """
    asked = {**row, "@framework": framework}
    found: dict[str, Any] = {}
    for setting in _scripts().get(source, ()):
        where = setting.get("where", {})
        for name in where:
            if name not in ASKED:
                raise unknown(f"condition of {source}'s scripts", name, ASKED)
        if all(ASKED[name](value, asked) for name, value in where.items()):
            found |= setting["set"]
    longest = {**row, "input_len": _number("input_len", row) * (1.0 + found.get("variation", 0.0))}
    rules = (("chunk", _budget, longest), ("cached", _repeated, row), ("max_batch", _room, row))
    for name, rule, of in rules:
        if isinstance(found.get(name), Mapping):
            told = rule(found[name], of)
            found[name] = None if told != told else told
    return {name: value for name, value in found.items() if value is not None}


def _budget(rule: Mapping[str, Any], row: Mapping[Any, Any]) -> float:
    """Tokens of a pass that a script derives from the clients and the longest prompts that it asks
    for."""
    longest = _number("input_len", row)
    if PROMPTS in rule:
        tokens = longest * float(rule[PROMPTS])
    else:
        tokens = _number("concurrency", row) + longest + float(rule[ONE_PROMPT])
    return round(max(tokens, float(rule.get(LEAST, 0.0)))) if tokens == tokens else tokens


def _room(rule: Mapping[str, Any], row: Mapping[Any, Any]) -> float:
    """Requests that an engine runs at a time, of a script that starts it for its clients."""
    return max(_number("concurrency", row) - float(rule[CLIENTS_LESS]), 1.0)


def _repeated(rule: Mapping[str, Any], row: Mapping[Any, Any]) -> float:
    """Share of the prompts' tokens that an engine with a cache of prefixes holds, where a client
    sends `distinct` prompts in turn: `warmup` requests of each client, then `requests` that count.
    """
    clients, length = _number("concurrency", row), _number("input_len", row)
    new = max(float(rule["distinct"]) - float(rule["warmup"]) * clients, 0.0)
    again = 1.0 - min(new / (float(rule["requests"]) * clients), 1.0)
    return again * max(length - BLOCK, 0.0) / length

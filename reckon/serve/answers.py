"""Requests answered: a prediction as `--json` has it, with the command that says the same."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from predictor import catalog
from predictor.errors import InputError
from predictor.files import finite
from predictor.plans import PREDICT, SERVING_FIELDS, SWITCH, TRAINING_FIELDS, WEIGHTS, Table
from predictor.timing import Calibration

Answer = dict[str, Any]

LISTED = 12
"""Operators that the page lists."""


def train(fields: Mapping[str, Any], calibration: Calibration) -> Answer:
    """A training run.

    Raises InputError.
    """
    from reckon.verbs.training import sweep

    found = _one(sweep(_single(fields), calibration, "request").predictions)
    return {**_trimmed(found.to_dict()), "command": command("train", fields, TRAINING_FIELDS)}


def infer(fields: Mapping[str, Any], calibration: Calibration) -> Answer:
    """A serving engine.

    Raises InputError.
    """
    from reckon.verbs.serving import sweep_serving

    found = _one(sweep_serving(_single(fields), calibration, "request").predictions)
    return {**_trimmed(found.to_dict()), "command": command("infer", fields, SERVING_FIELDS)}


def _single(fields: Mapping[str, Any]) -> dict[str, Any]:
    for name, value in fields.items():
        if isinstance(value, list):
            raise InputError(f"{name}: one value, not a list; compare variants in their own tab")
    return dict(fields)


def _one(found: list[Any]) -> Any:
    return found[0]


def _trimmed(content: Answer) -> Answer:
    return finite({**content, "operators": content["operators"][:LISTED]})


def command(verb: str, fields: Mapping[str, Any], table: Table, group: str = "predict") -> str:
    """The command line that says the same; a mapping stands for a file of that content."""
    words = ["reckon", group, verb]
    for name in ("model", "system"):
        value = fields.get(name)
        if value is not None:
            words += [f"--{name}", value if isinstance(value, str) else f"{name}.yaml"]
    for name, value in fields.items():
        if name in ("model", "system"):
            continue
        entry = table.get(name)
        flag = name.replace("_", "-")
        if entry is None or PREDICT not in entry.flags:
            words += ["--set", f"{name}={_said(value)}"]
        elif entry.kind is SWITCH:
            words.append(f"--{flag}" if value in (True, "true") else f"--no-{flag}")
        else:
            words += [f"--{flag}", _said(value)]
    return " ".join(shlex.quote(word) for word in words)


def _said(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float) and abs(value) >= 1e6 and float(f"{value:g}") == value:
        return f"{value:g}".replace("e+", "e")
    return f"{value:g}" if isinstance(value, float) else str(value)


def names() -> Answer:
    """What the page offers: names of catalogs, choices of fields, and their help."""
    systems = [*catalog.rows("systems")]
    return {
        "models": [*catalog.rows("models")],
        "systems": systems,
        "machines": [one.name for one in catalog.instances()],
        "fields": {
            "train": _fields(TRAINING_FIELDS),
            "infer": _fields(SERVING_FIELDS),
        },
        "precisions": [*WEIGHTS],
    }


def _fields(table: Table) -> Answer:
    return {
        name: {"help": entry.help, "choices": [*entry.choices], "default": str(entry.default or "")}
        for name, entry in table.items()
    }

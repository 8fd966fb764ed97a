"""Nested configurations (YAML, JSON, TOML) as flat flags, and back."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from typing import Any

import yaml

from predictor.errors import InputError


def flatten(content: Mapping[Any, Any], prefix: str = "") -> dict[str, Any]:
    """Leaves by dotted names; what is null is left out."""
    found: dict[str, Any] = {}
    for key, value in content.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            found |= flatten(value, f"{name}.")
        elif value is not None:
            found[name] = value
    return found


def nest(flat: Mapping[str, Any]) -> dict[str, Any]:
    """The contrary of `flatten`."""
    found: dict[str, Any] = {}
    for name, value in flat.items():
        *sections, last = name.split(".")
        place = found
        for section in sections:
            place = place.setdefault(section, {})
        place[last] = value
    return found


def read_mapping_text(text: str) -> dict[Any, Any] | None:
    """The mapping that a YAML or JSON text holds; None where it is something else."""
    try:
        content = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def read_toml(text: str, where: str) -> dict[str, Any]:
    """The mapping that a TOML text holds.

    Raises InputError, one line, for a text that is not TOML.
    """
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(f"{where} is not TOML: {str(error).splitlines()[0]}") from None


def toml(flat: Mapping[str, Any]) -> str:
    """A TOML text with a table for each section of the dotted names."""
    sections: dict[str, dict[str, Any]] = {}
    for name, value in flat.items():
        section, _, key = name.rpartition(".")
        sections.setdefault(section, {})[key] = value
    blocks = [
        "\n".join([f"[{section}]", *(f"{key} = {json.dumps(v)}" for key, v in entries.items())])
        for section, entries in sections.items()
    ]
    return "\n\n".join(blocks) + "\n"


def scalar(text: str) -> Any:
    """A value as a command line gives it: a number, true, false, null, or the text."""
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError):
        return text
